// Two arenas and three streams: where tensors lie, what the record says of copies and events, and
// that an order which is missing is an error, on plan and when run.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "engine/core/units.h"
#include "tests/engine/memory/program_run.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::expect_error;
using test::floats;
using test::mix_op;
using test::Recorded;
using test::set_op;
using test::Steps;

constexpr int64_t kFloats = 700;  // no whole number of pages

Tensor host_floats(Context& ctx, const char* name, int64_t n) {
  return ctx.host_tensor(Name(name), {n}, DType::f32);
}

// x goes to the host, its place is taken by others, and it comes back. Each step may be left out
// by its number.
enum Step : int { none, wait_source, wait_sent, wait_birth, wait_back, wait_end };

Steps there_and_back(const std::function<void(const View&)>& out, Step without = none) {
  return [out, without](Context& ctx) {
    const auto wait = [&](Step step, StreamId stream, StreamId of) {
      if (step != without) ctx.wait_event(stream, ctx.record_event(of));
    };
    Tensor x = floats(ctx, "x", kFloats, Category::activations);
    set_op(ctx, x, 2);
    mix_op(ctx, x, x, x);
    Tensor h = host_floats(ctx, "h", kFloats);
    wait(wait_source, kToHost, kCompute);
    ctx.copy_to_host(h, x);
    const Event sent = ctx.record_event(kToHost);
    if (without != wait_sent) ctx.wait_event(kCompute, sent);
    x.reset();
    Tensor y = floats(ctx, "y", kFloats);  // where x was
    set_op(ctx, y, -1);
    y.reset();
    x = floats(ctx, "x", kFloats, Category::activations);
    wait(wait_birth, kToDevice, kCompute);
    ctx.copy_to_device(x, h);
    const Event back = ctx.record_event(kToDevice);
    if (without != wait_back) ctx.wait_event(kCompute, back);
    if (without != wait_end) h.reset();
    Tensor sum = floats(ctx, "sum", kFloats);
    mix_op(ctx, sum, x, x);
    if (!ctx.planning()) out(sum);
  };
}

std::vector<float> result_of(const Settings& settings, uint64_t shuffle = 0) {
  std::vector<float> result;
  const Steps steps = there_and_back(
      [&](const View& v) { result.assign(v.as<float>(), v.as<float>() + v.elements()); });
  Recorded r(steps, settings, shuffle);
  for (int i = 0; i < 2; ++i) r.run(steps);
  EXPECT_EQ(r.cpu().resident_bytes(), r.schedule().arena_bytes());
  EXPECT_EQ(r.cpu().host_resident_bytes(), r.schedule().host_bytes());
  EXPECT_EQ(r.cpu().host_bytes(), r.schedule().host_bytes());
  return result;
}

TEST(Residence, CopiesAndEventsAreInTheRecord) {
  Recorded r(there_and_back([](const View&) {}));
  const Program& p = r.program();
  ASSERT_EQ(p.tensors.size(), 5u);
  for (const TensorRecord& t : p.tensors) {
    const bool host = t.name.view() == "h";
    EXPECT_EQ(t.residence, host ? Residence::host : Residence::device);
    EXPECT_EQ(t.category == Category::offload, host);
  }
  std::vector<std::string> ops;
  for (const OpRecord& op : p.ops)
    ops.push_back(std::string(stream_name(op.stream)) + " " + op.name);
  EXPECT_EQ(ops,
            (std::vector<std::string>{"compute set", "compute mix", "to_host copy_to_host",
                                      "compute set", "to_device copy_to_device", "compute mix"}));
  EXPECT_EQ(p.bytes_copied(kToHost), 4 * kFloats);
  EXPECT_EQ(p.bytes_copied(kToDevice), 4 * kFloats);
  EXPECT_EQ(p.bytes_moved(), p.ops[0].bytes + p.ops[1].bytes + p.ops[3].bytes + p.ops[5].bytes);
  struct Row {
    SyncRecord::Kind kind;
    StreamId stream;
    int32_t event;
    int64_t time;
    int32_t op;
  };
  const auto record = SyncRecord::Kind::record, wait = SyncRecord::Kind::wait;
  // x born 0, h born 1, x ends 2, y born 3, ends 4, x born 5, h ends 6, sum born 7
  const Row rows[] = {{record, kCompute, 0, 2, 2},  {wait, kToHost, 0, 2, 2},
                      {record, kToHost, 1, 2, 3},   {wait, kCompute, 1, 2, 3},
                      {record, kCompute, 2, 6, 4},  {wait, kToDevice, 2, 6, 4},
                      {record, kToDevice, 3, 6, 5}, {wait, kCompute, 3, 6, 5}};
  ASSERT_EQ(p.syncs.size(), std::size(rows));
  for (size_t i = 0; i < std::size(rows); ++i) {
    EXPECT_EQ(p.syncs[i].kind, rows[i].kind) << i;
    EXPECT_EQ(p.syncs[i].stream, rows[i].stream) << i;
    EXPECT_EQ(p.syncs[i].event, rows[i].event) << i;
    EXPECT_EQ(p.syncs[i].time, rows[i].time) << i;
    EXPECT_EQ(p.syncs[i].op, rows[i].op) << i;
  }
}

TEST(Residence, EveryModeAndPlaceGivesTheSameBits) {
  const std::vector<float> plain = result_of({});
  ASSERT_EQ(plain.size(), static_cast<size_t>(kFloats));
  EXPECT_EQ(plain[1], (2 * 3 + 2 + 1) * 4 + 1);
  for (const StreamMode mode : {StreamMode::immediate, StreamMode::deferred, StreamMode::worker})
    for (const bool checked : {false, true})
      for (uint64_t shuffle = 0; shuffle < 10; ++shuffle) {
        Settings s;
        s.streams = mode;
        s.poison = checked;
        s.guard_bytes = checked ? 128 : 0;
        ASSERT_EQ(result_of(s, shuffle), plain) << to_string(mode) << " " << shuffle;
      }
}

struct Missing {
  Step step;
  std::vector<std::string> words;
};
const Missing kMissing[] = {
    {wait_source, {"to_host to wait for compute before a copy", "a copy of h without it"}},
    {wait_sent, {"to_device to wait for to_host before a copy", "a copy of h without it"}},
    {wait_birth, {"to_device to wait for compute before a copy", "a copy of x without it"}},
    {wait_back, {"compute to wait for the copies of a tensor before it ends", "tensor h"}},
};

TEST(Residence, AMissingWaitIsAnErrorOnPlan) {
  for (const Missing& m : kMissing) {
    Schedule s;
    s.add(Name("step"), -1, false);
    Context plan(Place::plan, {});
    const std::string text = expect_error(
        ErrorCode::internal, {"program step to do what was planned", "report"},
        [&] { plan.program(s, 0, [&] { there_and_back([](const View&) {}, m.step)(plan); }); });
    for (const std::string& word : m.words)
      EXPECT_NE(text.find(word), std::string::npos) << word << " in\n" << text;
    EXPECT_NO_THROW(plan.program(s, 0, [&] { there_and_back([](const View&) {})(plan); }));
  }
}

TEST(Residence, AMissingWaitIsAnErrorWhenRun) {
  for (const StreamMode mode : {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
    Settings settings;
    settings.streams = mode;
    settings.poison = true;
    const Steps good = there_and_back([](const View&) {});
    Recorded r(good, settings);
    for (const Missing& m : kMissing) {
      expect_error(ErrorCode::internal, {"program step to do what was planned", "report"},
                   [&] { r.run(there_and_back([](const View&) {}, m.step)); });
      EXPECT_NO_THROW(r.run(good)) << "the context is no longer usable";
    }
  }
}

// What an op before the copy reads is not overwritten under it.
TEST(Residence, ACopyComesAfterTheOpsBeforeIt) {
  Schedule s;
  s.add(Name("root"), -1, true);
  s.add(Name("step"), 0, false);
  Context plan(Place::plan, {});
  Tensor w, h;
  plan.program(s, 0, [&] {
    w = floats(plan, "w", 64);
    h = plan.host_tensor(Name("h"), {64}, DType::f32);
  });
  const auto step = [&](bool resident, bool behind) {
    plan.program(s, 1, [&] {
      Tensor t = floats(plan, "t", 64);
      if (!behind) plan.wait_event(kToDevice, plan.record_event(kCompute));
      { const Op op(plan, "reads", {}); }
      if (behind) plan.wait_event(kToDevice, plan.record_event(kCompute));
      plan.copy_to_device(resident ? w : t, h);
      plan.wait_event(kCompute, plan.record_event(kToDevice));
    });
  };
  for (const bool resident : {true, false}) {
    expect_error(ErrorCode::internal,
                 {"to_device to wait for compute before a copy",
                  resident ? "a copy of w without it" : "a copy of t without it"},
                 [&] { step(resident, false); });
    EXPECT_NO_THROW(step(resident, true));
  }
}

// A wait in another place than planned is a drift like any other.
TEST(Residence, EventsAreHeldToTheRecord) {
  const auto steps = [](int waits) {
    return [waits](Context& ctx) {
      const Tensor a = floats(ctx, "a", 4);
      const Event e = ctx.record_event(kCompute);
      for (int i = 0; i < waits; ++i) ctx.wait_event(i == 0 ? kToHost : kToDevice, e);
    };
  };
  Recorded r(steps(1));
  r.run(steps(1));
  expect_error(ErrorCode::internal, {"2 events and waits", "1 events and waits"},
               [&] { r.run(steps(0)); });
  expect_error(ErrorCode::internal,
               {"2 events and waits", "to_device to wait for event 0 at tick 1"},
               [&] { r.run(steps(2)); });
  expect_error(ErrorCode::internal,
               {"to_host to wait for event 0 at tick 1", "to_device to wait for event 0 at tick 1"},
               [&] {
                 r.run([](Context& ctx) {
                   const Tensor a = floats(ctx, "a", 4);
                   ctx.wait_event(kToDevice, ctx.record_event(kCompute));
                 });
               });
  r.run(steps(1));
}

// An end that compute did not wait for, of a tensor that is still in a program's hands: the copy
// would write after the program.
TEST(Residence, CopiesEndWithTheirProgram) {
  Schedule s;
  s.add(Name("root"), -1, true);
  Context plan(Place::plan, {});
  Tensor a, h;
  expect_error(ErrorCode::internal,
               {"program root", "compute to have waited for all copies at its end",
                "copies that it did not wait for"},
               [&] {
                 plan.program(s, 0, [&] {
                   a = floats(plan, "a", 4);
                   h = host_floats(plan, "h", 4);
                   plan.wait_event(kToHost, plan.record_event(kCompute));
                   plan.copy_to_host(h, a);
                 });
               });
}

// What the checks cannot see: compute reads what has not arrived, and waits afterwards. On a stream
// that is as late as it may be this is NaN; done at once it would go unseen.
TEST(Residence, DeferredStreamsShowAWaitThatComesTooLate) {
  float seen = 0;
  const Steps late = [&](Context& ctx) {
    Tensor x = floats(ctx, "x", 16), h = host_floats(ctx, "h", 16);
    set_op(ctx, x, 3);
    ctx.wait_event(kToHost, ctx.record_event(kCompute));
    ctx.copy_to_host(h, x);
    ctx.wait_event(kCompute, ctx.record_event(kToHost));
    x.reset();
    x = floats(ctx, "x", 16);
    ctx.wait_event(kToDevice, ctx.record_event(kCompute));
    ctx.copy_to_device(x, h);
    const Event back = ctx.record_event(kToDevice);
    if (!ctx.planning()) seen = x.view().as<float>()[5];
    ctx.wait_event(kCompute, back);
    h.reset();
  };
  Settings settings;
  settings.poison = true;
  Recorded at_once(late, settings);
  at_once.run(late);
  EXPECT_EQ(seen, 3.0f);
  settings.streams = StreamMode::deferred;
  Recorded deferred(late, settings);
  deferred.run(late);
  EXPECT_TRUE(std::isnan(seen));
}

TEST(Residence, GuardsOfHostTensorsAreWatched) {
  Settings settings;
  settings.guard_bytes = 64;
  settings.poison = true;
  const Steps steps = [](Context& ctx) {
    const Tensor a = floats(ctx, "a", 4), h = host_floats(ctx, "h", 5);
    if (!ctx.planning()) {
      EXPECT_TRUE(std::isnan(h.view().as<float>()[4]));
      h.view().as<float>()[5] = 0;
    }
  };
  Recorded r(steps, settings);
  expect_error(ErrorCode::internal, {"guard bytes were changed", "tensor h"},
               [&] { r.run(steps); });
}

TEST(Residence, BothArenasArePackedOnTheirOwn) {
  Schedule s;
  const int root = s.add(Name("root"), -1, true), a = s.add(Name("a"), root, false),
            b = s.add(Name("b"), root, false);
  Context plan(Place::plan, {});
  std::vector<Tensor> kept;
  const auto record = [&](Context& ctx) {
    ctx.program(s, root, [&] {
      kept.push_back(floats(ctx, "weights", 100, Category::weights));
      kept.push_back(host_floats(ctx, "state", 1500));  // two pages
    });
    ctx.program(s, a, [&] {
      const Tensor x = floats(ctx, "x", 1000), h1 = host_floats(ctx, "h1", 10),
                   h2 = host_floats(ctx, "h2", 1025);
    });
    ctx.program(s, b, [&] { const Tensor h3 = host_floats(ctx, "h3", 1); });
  };
  record(plan);
  for (const uint64_t shuffle : {0, 1, 2, 3, 4}) {
    s.pack({}, shuffle);
    EXPECT_EQ(s.lower_bound(Residence::host), 5 * 4096);
    EXPECT_EQ(s.lower_bound(), 8192)
        << "400 B of weights and 4000 B of x, to whole tensors and pages";
    EXPECT_EQ(s.at(a).host_base, 2 * 4096);
    EXPECT_EQ(s.at(b).host_base, 2 * 4096);
    EXPECT_GE(s.host_bytes(), 5 * 4096);
    if (shuffle == 0) {
      EXPECT_EQ(s.host_bytes(), 5 * 4096);
    }
    const auto host = intervals_of(s.at(a), Residence::host);
    ASSERT_EQ(host.size(), 3u);
    EXPECT_EQ(host[0].bytes, 0);
    EXPECT_EQ(intervals_of(s.at(a))[1].bytes, 0);
    check_packing(host, s.at(a).host_packing.offsets, kHostAlignment);
    int64_t padding = 0;
    const CategoryBytes peak = s.at_peak(&padding);
    EXPECT_EQ(peak[static_cast<size_t>(Category::offload)], 0) << "not of this arena";
    EXPECT_EQ(peak[static_cast<size_t>(Category::workspace)], 4000);
    EXPECT_EQ(s.arena_bytes(), 400 + 4000 + padding);
  }
  s.pack();
  kept.clear();
  Context cpu(Place::cpu, {});
  cpu.reserve(s);
  record(cpu);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(kept[1].view().data) % 4096, 0u);
  EXPECT_EQ(cpu.host_resident_bytes(), 5 * 4096);
  kept.clear();
}

TEST(Residence, WithoutHostTensorsThereIsNoHostArena) {
  Recorded r([](Context& ctx) { floats(ctx, "a", 4); });
  r.run([](Context& ctx) { floats(ctx, "a", 4); });
  EXPECT_EQ(r.schedule().host_bytes(), 0);
  EXPECT_EQ(r.cpu().host_bytes(), 0);
  EXPECT_EQ(r.cpu().host_resident_bytes(), 0);
}

TEST(Residence, AHostArenaThatNoMachineHolds) {
  Recorded r([](Context& ctx) {
    floats(ctx, "a", 4);
    host_floats(ctx, "h", int64_t{1} << 58);
  });
  expect_error(ErrorCode::out_of_memory, {"to reserve 1024.00 PiB", "offload less"},
               [&] { r.cpu().reserve(r.schedule()); });
}

TEST(Residence, PiecesEndWithoutATrace) {
  Schedule s;
  s.add(Name("root"), -1, true);
  Context plan(Place::plan, {});
  Tensor w;
  const int64_t halves[] = {32, 32};
  EXPECT_NO_THROW(plan.program(s, 0, [&] {
    w = floats(plan, "w", 64);
    const std::vector<Tensor> pieces = plan.split(w, halves);
  }));
  EXPECT_EQ(s.at(0).tensors[0].died, kNever);
}

TEST(Residence, Misuse) {
  Schedule s;
  s.add(Name("root"), -1, true);
  s.add(Name("step"), 0, false);
  Context plan(Place::plan, {});
  Tensor resident;
  plan.program(s, 0, [&] { resident = floats(plan, "r", 4); });
  Event old;
  expect_error(ErrorCode::internal, {"events to be recorded inside a program"},
               [&] { plan.record_event(kCompute); });
  expect_error(ErrorCode::internal, {"copies to be made inside a program"},
               [&] { plan.copy_to_host(resident, resident); });
  plan.program(s, 1, [&] { old = plan.record_event(kCompute); });
  expect_error(ErrorCode::internal, {"a wait for an event of the program that runs"},
               [&] { plan.program(s, 1, [&] { plan.wait_event(kToHost, old); }); });
  expect_error(ErrorCode::internal, {"a wait for an event of the program that runs"},
               [&] { plan.program(s, 1, [&] { plan.wait_event(kToHost, Event()); }); });
  const auto copy = [&](const std::function<void(Tensor&, Tensor&, Tensor&)>& f) {
    return [&, f] {
      plan.program(s, 1, [&] {
        Tensor a = floats(plan, "a", 4), h = host_floats(plan, "h", 4);
        Tensor longer = host_floats(plan, "longer", 5);
        plan.wait_event(kToHost, plan.record_event(kCompute));
        f(a, h, longer);
      });
    };
  };
  Schedule others;
  others.add(Name("root"), -1, true);
  Context other(Place::plan, {});
  Tensor foreign;
  other.program(others, 0, [&] { foreign = floats(other, "f", 4); });
  expect_error(ErrorCode::internal, {"copies between tensors of the program that runs"},
               copy([&](Tensor&, Tensor& h, Tensor&) { plan.copy_to_host(h, foreign); }));
  // A resident may be copied, and what waits for the copy is held to it.
  expect_error(ErrorCode::internal, {"compute to wait for the copies of a tensor before it ends"},
               copy([&](Tensor&, Tensor& h, Tensor&) { plan.copy_to_host(h, resident); }));
  expect_error(ErrorCode::internal, {"pieces of a resident tensor of one dimension"}, [&] {
    plan.program(s, 1, [&] {
      const Tensor a = floats(plan, "a", 4);
      const int64_t sizes[] = {4};
      plan.split(a, sizes);
    });
  });
  const int64_t less[] = {2, 1};
  expect_error(ErrorCode::internal, {"pieces that are the whole"},
               [&] { plan.split(resident, less); });
  expect_error(ErrorCode::internal, {"copies in the direction of their stream"},
               copy([&](Tensor& a, Tensor& h, Tensor&) { plan.copy_to_host(a, h); }));
  expect_error(ErrorCode::internal, {"copies between tensors of one shape and dtype"},
               copy([&](Tensor& a, Tensor&, Tensor& longer) { plan.copy_to_host(longer, a); }));
  resident.reset();
}

}  // namespace
}  // namespace snug
