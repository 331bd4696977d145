// A program is held to its record: what is written down, and every way to break the promise.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

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

void good(Context& ctx) {
  Tensor a = floats(ctx, "a", 100, Category::activations);
  set_op(ctx, a, 2);
  Tensor b = floats(ctx, "b", 50);
  mix_op(ctx, b, a, a);
  a.reset();
  Tensor c = floats(ctx, "c", 10);
  mix_op(ctx, c, b, b, "mix_again");
  b.reset();
}

TEST(Context, RecordsTensorsOpsAndTicks) {
  Recorded r([](Context& ctx) {
    EXPECT_TRUE(ctx.planning());
    EXPECT_EQ(ctx.place(), Place::plan);
    const Context::Scope scope(ctx, Name("h.3"));
    good(ctx);
  });
  const Program& p = r.program();
  // a born 0; b born 1; a died 2; c born 3; b died 4; c died 5
  ASSERT_EQ(p.tensors.size(), 3u);
  EXPECT_EQ(p.ticks, 6);
  const struct {
    const char* name;
    int64_t bytes, born, died;
    int32_t first_op, last_op;
  } rows[] = {{"a", 400, 0, 2, 0, 2}, {"b", 200, 1, 4, 1, 3}, {"c", 40, 3, 5, 2, 3}};
  for (size_t i = 0; i < 3; ++i) {
    const TensorRecord& t = p.tensors[i];
    EXPECT_EQ(t.name.view(), rows[i].name);
    EXPECT_EQ(t.scope.view(), "h.3");
    EXPECT_EQ(t.bytes, rows[i].bytes) << rows[i].name;
    EXPECT_EQ(t.born, rows[i].born) << rows[i].name;
    EXPECT_EQ(t.died, rows[i].died) << rows[i].name;
    EXPECT_EQ(t.first_op, rows[i].first_op) << rows[i].name;
    EXPECT_EQ(t.last_op, rows[i].last_op) << rows[i].name;
  }
  EXPECT_EQ(p.tensors[0].category, Category::activations);
  ASSERT_EQ(p.ops.size(), 3u);
  EXPECT_STREQ(p.ops[1].name, "mix");
  EXPECT_EQ(p.ops[1].flops, 150);
  EXPECT_EQ(p.ops[1].bytes, 200 + 800);
  EXPECT_EQ(p.ops[1].scope.view(), "h.3");
  EXPECT_EQ(p.ops[0].time, 1);
  EXPECT_EQ(p.ops[2].time, 4);
}

TEST(Context, RunsWhatItRecordedAgainAndAgain) {
  Recorded r(good);
  for (int i = 0; i < 3; ++i) r.run(good);
  EXPECT_EQ(r.cpu().resident_bytes(), r.schedule().arena_bytes());
  EXPECT_EQ(r.cpu().current(), nullptr);
}

TEST(Context, RecordingAgainReplacesTheRecord) {
  Schedule s;
  s.add(Name("p"), -1, false);
  Context plan(Place::plan, {});
  plan.program(s, 0, [&] { good(plan); });
  plan.program(s, 0, [&] { floats(plan, "only", 4); });
  EXPECT_EQ(s.at(0).tensors.size(), 1u);
  EXPECT_TRUE(s.at(0).ops.empty());
  EXPECT_EQ(s.at(0).ticks, 2);
}

TEST(Context, FewerBytesThanPlannedAreAllowed) {
  Recorded r([](Context& ctx) { floats(ctx, "a", 100); });
  r.run([](Context& ctx) { EXPECT_EQ(floats(ctx, "a", 60).view().elements(), 60); });
}

struct Drift {
  const char* what;
  Steps steps;
  std::vector<std::string> words;
};

// Every case is good() with one promise broken; the context must then run good() again.
TEST(Context, EveryDriftIsCaught) {
  const std::vector<Drift> cases = {
      {"another name",
       [](Context& ctx) {
         Tensor a = floats(ctx, "other", 100);
         set_op(ctx, a, 2);
       },
       {"tensor a of 400 bytes at tick 0", "tensor other of 400 bytes at tick 0"}},
      {"more bytes",
       [](Context& ctx) { floats(ctx, "a", 101); },
       {"tensor a of 400 bytes at tick 0", "tensor a of 404 bytes at tick 0"}},
      {"a tensor too late",
       [](Context& ctx) {
         floats(ctx, "a", 100);
         floats(ctx, "b", 50);
       },
       {"tensor b of 200 bytes at tick 1", "tensor b of 200 bytes at tick 2"}},
      {"one tensor more",
       [](Context& ctx) {
         good(ctx);
         floats(ctx, "d", 1);
       },
       {"3 tensors", "one more, d"}},
      {"nothing at all", [](Context&) {}, {"3 tensors in 6 ticks", "0 tensors in 0 ticks"}},
      {"a tensor less",
       [](Context& ctx) {
         Tensor a = floats(ctx, "a", 100);
         set_op(ctx, a, 2);
         Tensor b = floats(ctx, "b", 50);
         mix_op(ctx, b, a, a);
         a.reset();
       },
       {"tensor b"}},
      {"released in another order",
       [](Context& ctx) {
         Tensor a = floats(ctx, "a", 100);
         set_op(ctx, a, 2);
         Tensor b = floats(ctx, "b", 50);
         mix_op(ctx, b, a, a);
         a.reset();
         Tensor c = floats(ctx, "c", 10);
         mix_op(ctx, c, b, b, "mix_again");
         c.reset();
         b.reset();
       },
       {"every tensor to end at its planned tick", "tensor c"}},
      {"an op renamed",
       [](Context& ctx) {
         const Tensor a = floats(ctx, "a", 100);
         set_op(ctx, a, 2, "fill");
       },
       {"op set at tick 1 as number 0", "op fill at tick 1"}},
      {"an op less",
       [](Context& ctx) {
         Tensor a = floats(ctx, "a", 100);
         set_op(ctx, a, 2);
         Tensor b = floats(ctx, "b", 50);
         mix_op(ctx, b, a, a);
         a.reset();
         const Tensor c = floats(ctx, "c", 10);
         b.reset();
       },
       {"3 ops", "2 ops"}},
      {"an op more",
       [](Context& ctx) {
         good(ctx);
         const Op op(ctx, "extra", {});
       },
       {"3 ops", "one more, extra"}},
      {"an op after the release of its input",
       [](Context& ctx) {
         Tensor a = floats(ctx, "a", 100);
         set_op(ctx, a, 2);
         const Tensor b = floats(ctx, "b", 50);
         const View gone = a;
         a.reset();
         mix_op(ctx, b, gone, gone);
       },
       {"op mix at tick 2 as number 1", "op mix at tick 3"}},
  };
  for (const bool checked : {false, true}) {
    Settings settings;
    settings.guard_bytes = checked ? 64 : 0;
    settings.poison = checked;
    Recorded r(good, settings);
    for (const Drift& c : cases) {
      SCOPED_TRACE(c.what);
      const std::string text =
          expect_error(ErrorCode::internal, {"program step to do what was planned", "report"},
                       [&] { r.run(c.steps); });
      for (const std::string& word : c.words)
        if (!checked)  // guards count as bytes
        {
          EXPECT_NE(text.find(word), std::string::npos) << word << " in\n" << text;
        }
      EXPECT_EQ(r.cpu().current(), nullptr);
      EXPECT_NO_THROW(r.run(good)) << "the context is no longer usable";
    }
  }
}

TEST(Context, LifetimesAreCheckedOnPlan) {
  Schedule s;
  s.add(Name("root"), -1, true);
  s.add(Name("step"), 0, false);
  Context plan(Place::plan, {});
  expect_error(ErrorCode::internal,
               {"program root to do what was planned", "resident tensors to outlive", "tensor w"},
               [&] { plan.program(s, 0, [&] { floats(plan, "w", 4); }); });
  Tensor outlives;
  expect_error(ErrorCode::internal, {"program step", "all tensors to end inside it", "tensor leak"},
               [&] { plan.program(s, 1, [&] { outlives = floats(plan, "leak", 4); }); });
  outlives.reset();
  Tensor w;
  plan.program(s, 0, [&] { w = floats(plan, "w", 4); });
  EXPECT_EQ(s.at(0).tensors.at(0).died, kNever);
  plan.program(s, 1, [&] { w.reset(); });  // a resident tensor may end at any time
  EXPECT_EQ(s.at(0).tensors.at(0).died, kNever);
  EXPECT_EQ(s.at(1).ticks, 0);
}

TEST(Context, ATensorThatOutlivesTheRunIsCaughtOnCpu) {
  Recorded r([](Context& ctx) { floats(ctx, "a", 4); });
  Tensor leak;
  expect_error(ErrorCode::internal, {"1 tensors in 2 ticks", "1 tensors in 1 ticks"},
               [&] { r.run([&](Context& ctx) { leak = floats(ctx, "a", 4); }); });
  EXPECT_NO_THROW(r.run([](Context& ctx) { floats(ctx, "a", 4); }));
}

TEST(Context, ExceptionsInsideAProgramLeaveTheContextUsable) {
  Settings settings;
  settings.guard_bytes = 32;
  settings.poison = true;
  Recorded r(good, settings);
  Tensor outside;
  const Steps broken = [&](Context& ctx) {
    const Context::Scope scope(ctx, Name("h.1"));
    outside = floats(ctx, "a", 100);
    throw std::runtime_error("disk full");
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(r.run(broken), std::runtime_error);
    EXPECT_TRUE(r.cpu().scope().empty());
    EXPECT_NO_THROW(r.run(good));
  }
  outside.reset();  // its run is over: no effect
  EXPECT_NO_THROW(r.run(good));
  // The end of a tensor of an abandoned run does not count in the next.
  EXPECT_THROW(r.run(broken), std::runtime_error);
  EXPECT_NO_THROW(r.run([&](Context& ctx) {
    outside.reset();
    good(ctx);
  }));
  // On plan too.
  Schedule s;
  s.add(Name("step"), -1, false);
  Context plan(Place::plan, {});
  EXPECT_THROW(plan.program(s, 0, [&] { broken(plan); }), std::runtime_error);
  plan.program(s, 0, [&] { good(plan); });
  EXPECT_EQ(s.at(0).tensors.size(), 3u);
  outside.reset();
}

TEST(Context, Misuse) {
  Recorded r(good);
  Context plan(Place::plan, {});
  Context cpu(Place::cpu, {});
  EXPECT_EQ(cpu.resident_bytes(), 0);
  expect_error(ErrorCode::internal, {"tensors to be made inside a program"},
               [&] { floats(plan, "a", 1); });
  expect_error(ErrorCode::internal, {"ops to run inside a program"},
               [&] { const Op op(plan, "x", {}); });
  expect_error(ErrorCode::internal, {"one program at a time"}, [&] {
    plan.program(r.schedule(), 0, [&] { plan.program(r.schedule(), 0, [] {}); });
  });
  plan.program(r.schedule(), 0, [&] { good(plan); });
  r.schedule().pack();
  expect_error(ErrorCode::internal, {"a program of the schedule"},
               [&] { plan.program(r.schedule(), 1, [] {}); });
  expect_error(ErrorCode::internal, {"a place with storage"}, [&] { plan.reserve(r.schedule()); });
  for (int i = 0; i < 2; ++i)  // refused, and not left half begun
    expect_error(ErrorCode::internal, {"a reserved arena"},
                 [&] { cpu.program(r.schedule(), 0, [&] { good(cpu); }); });
  cpu.reserve(r.schedule());
  expect_error(ErrorCode::internal, {"one reservation per context"},
               [&] { cpu.reserve(r.schedule()); });
  cpu.program(r.schedule(), 0, [&] { good(cpu); });
  Recorded larger([](Context& ctx) { floats(ctx, "a", 1 << 20); });
  expect_error(ErrorCode::internal, {"a packed schedule that fits the reserved arena"},
               [&] { cpu.program(larger.schedule(), 0, [] {}); });
  Schedule unpacked;
  unpacked.add(Name("p"), -1, false);
  plan.program(unpacked, 0, [&] { good(plan); });
  expect_error(ErrorCode::internal, {"a packed schedule that fits the reserved arena"},
               [&] { cpu.program(unpacked, 0, [&] { good(cpu); }); });
}

TEST(Context, ATensorThatNoMachineHolds) {
  Schedule s;
  s.add(Name("step"), -1, false);
  Context plan(Place::plan, {});
  for (const DType t : {DType::f32, DType::f64, DType::u8})
    expect_error(ErrorCode::out_of_memory,
                 {"less than 2^61 bytes", "w (2305843009213693952)", "sizes of the model"}, [&] {
                   plan.program(s, 0, [&] {
                     plan.tensor(Name("w"), {int64_t{1} << 61}, t, Category::weights);
                   });
                 });
  plan.program(s, 0, [&] {
    const Tensor most =
        plan.tensor(Name("w"), {(int64_t{1} << 61) - 1}, DType::u8, Category::weights);
  });
  EXPECT_EQ(s.lower_bound(), int64_t{1} << 61);
}

TEST(Tensor, MovesAreNotEnds) {
  Recorded r([](Context& ctx) {
    Tensor a = floats(ctx, "a", 4);
    Tensor b = std::move(a);
    EXPECT_FALSE(a.defined());  // NOLINT: the moved-from state is what is tested
    EXPECT_TRUE(b.defined());
    EXPECT_EQ(b.view().name.view(), "a");
    b = std::move(b);  // NOLINT
    EXPECT_TRUE(b.defined());
    const Tensor c = floats(ctx, "c", 4);
    b = Tensor();
    EXPECT_FALSE(b.defined());
    EXPECT_FALSE(b.view().defined());
  });
  EXPECT_EQ(r.program().tensors[0].died, 2);
  EXPECT_EQ(r.program().ticks, 4);
}

struct Listener final : OpListener {
  std::vector<std::string> seen;
  void op_done(const Program& program, int32_t op, double seconds) override {
    EXPECT_GE(seconds, 0);
    seen.push_back(program.name.str() + "/" + program.ops[static_cast<size_t>(op)].name);
  }
};

TEST(Context, AListenerHearsEveryOpOfARun) {
  Recorded r(good);
  Listener listener;
  r.cpu().set_listener(&listener);
  r.run(good);
  EXPECT_EQ(listener.seen, (std::vector<std::string>{"step/set", "step/mix", "step/mix_again"}));
  r.cpu().set_listener(nullptr);
  r.run(good);
  EXPECT_EQ(listener.seen.size(), 3u);
}

}  // namespace
}  // namespace snug
