// Offloaded slots on a stack of toy parts: the same bits as when everything is kept, in every mode
// of the streams; what lies where and when; and that each wait is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/engine/memory/program_run.h"
#include "tests/engine/memory/toy_part.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::Environment;
using test::expect_error;
using test::Toy;

constexpr Dims kDims{2, 3};
using Policies = std::vector<std::vector<SlotPolicy>>;  // of every layer
using Values = std::vector<std::pair<std::string, std::vector<float>>>;

struct Options {
  bool prefetch = true;
  bool settle = true;
  int stop_in = -1;  // throws in this layer's backward
};

// Layers forward, then backward, which asks for every slot; prefetching one layer ahead.
class Stack {
 public:
  Stack(const Toy& toy, const Policies& policies)
      : toy_(toy), offload_(static_cast<int>(policies.size()), toy.body.slots()) {
    for (size_t l = 0; l < policies.size(); ++l)
      passes_.emplace_back(toy.body, policies[l], &offload_, static_cast<int>(l));
  }
  int recomputed() const {
    int n = 0;
    for (const Pass& p : passes_) n += p.stages_recomputed();
    return n;
  }
  int layers() const { return static_cast<int>(passes_.size()); }

  void run(Context& ctx, Values& values, const Options& o) {
    values.clear();
    const auto see = [&](const View& v) {
      if (v.data)
        values.emplace_back(v.name.str(),
                            std::vector<float>(v.as<float>(), v.as<float>() + v.elements()));
    };
    Environment e;
    Tensor x = ctx.tensor(Name("x"), {kDims.N(), 10}, DType::f32, Category::activations);
    if (!ctx.planning())
      for (int64_t i = 0; i < 60; ++i)
        x.view().as<float>()[i] = 0.3f * static_cast<float>(i) - 5.1f;
    for (Pass& pass : passes_) {
      pass.begin(kDims, PassMode::train, e);
      pass.give(toy_.x, std::move(x));
      pass.forward(ctx);
      x = pass.take(toy_.y);
      scale(ctx, x);
    }
    if (o.settle) offload_.settle();
    see(x);
    x.reset();
    const int L = layers();
    if (o.prefetch) passes_.back().fetch(ctx);
    for (int l = L - 1; l >= 0; --l) {
      Pass& pass = passes_[static_cast<size_t>(l)];
      if (o.prefetch && l > 0) passes_[static_cast<size_t>(l - 1)].fetch(ctx);
      if (l == o.stop_in) throw std::runtime_error("disk full");
      for (const int s : {toy_.d, toy_.c, toy_.b, toy_.stat, toy_.a, toy_.x}) {
        see(pass.need(ctx, s));
        // As a gradient would: what arrives later must not be overwritten by this.
        pass.drop(s);
      }
      pass.clear();
    }
  }

 private:
  // Keeps the values of a deep stack finite.
  static void scale(Context& ctx, const View& x) {
    const Op op(ctx, "scale", {});
    if (op.run())
      for (int64_t i = 0; i < x.elements(); ++i) x.as<float>()[i] *= 0.0625f;
  }
  const Toy& toy_;
  Offload offload_;
  std::vector<Pass> passes_;
};

struct Result {
  Values values;
  Program program;
  int64_t device = 0, host = 0;
};

Result run_stack(const Toy& toy, const Policies& policies, const Settings& settings,
                 const Options& o = {}, uint64_t shuffle = 0) {
  Result r;
  Stack stack(toy, policies);
  const test::Steps steps = [&](Context& ctx) { stack.run(ctx, r.values, o); };
  test::Recorded recorded(steps, settings, shuffle);
  for (int i = 0; i < 2; ++i) recorded.run(steps);
  r.program = recorded.program();
  r.device = recorded.schedule().arena_bytes();
  r.host = recorded.schedule().host_bytes();
  return r;
}

Settings checked(StreamMode mode) {
  Settings s;
  s.streams = mode;
  s.guard_bytes = 64;
  s.poison = true;
  return s;
}

Policies layers_of(const Toy& toy, int L, SlotPolicy policy) {
  return Policies(static_cast<size_t>(L), toy.all(policy));
}

// All 3^5 policies of x, a, stat, b, c in a stack of three, d kept here and recomputed there.
TEST(Offload, EveryMixOfPoliciesGivesTheSameBits) {
  const Toy toy;
  const Values kept =
      run_stack(toy, layers_of(toy, 3, SlotPolicy::keep), checked(StreamMode::immediate)).values;
  ASSERT_EQ(kept.size(), 1u + 3 * 6);
  const int slots[] = {toy.x, toy.a, toy.stat, toy.b, toy.c};
  for (int code = 0; code < 243; ++code) {
    Policies policies = layers_of(toy, 3, SlotPolicy::keep);
    for (size_t l = 0; l < 3; ++l) {
      int rest = l == 1 ? 242 - code : code;  // the layer between does the opposite
      for (const int s : slots) {
        policies[l][static_cast<size_t>(s)] = static_cast<SlotPolicy>(rest % 3);
        rest /= 3;
      }
      policies[l][static_cast<size_t>(toy.d)] = static_cast<SlotPolicy>((code + l) % 3);
    }
    for (const StreamMode mode : {StreamMode::immediate, StreamMode::deferred})
      for (const bool prefetch : {true, false})
        ASSERT_EQ(run_stack(toy, policies, checked(mode), {.prefetch = prefetch}).values, kept)
            << to_string(mode) << " policies " << code << " prefetch " << prefetch;
  }
}

TEST(OffloadThreads, TheWorkerAndRandomPlacesGiveTheSameBits) {
  const Toy toy;
  const Values kept =
      run_stack(toy, layers_of(toy, 6, SlotPolicy::keep), checked(StreamMode::immediate)).values;
  const Policies policies = layers_of(toy, 6, SlotPolicy::offload);
  for (const StreamMode mode : {StreamMode::immediate, StreamMode::deferred, StreamMode::worker})
    for (uint64_t shuffle = 0; shuffle < 20; ++shuffle) {
      const Result r = run_stack(toy, policies, checked(mode), {}, shuffle);
      ASSERT_EQ(r.values, kept) << to_string(mode) << " packing " << shuffle;
    }
}

// Without the wait at the end of all forwards the tensors are joined when they come back.
TEST(Offload, SettlingIsNotNeededForTheRightNumbers) {
  const Toy toy;
  const Policies policies = layers_of(toy, 3, SlotPolicy::offload);
  const Values kept =
      run_stack(toy, layers_of(toy, 3, SlotPolicy::keep), checked(StreamMode::immediate)).values;
  EXPECT_EQ(run_stack(toy, policies, checked(StreamMode::deferred), {.settle = false}).values,
            kept);
}

// Bytes of slot x on the device at every tick: never more than two layers' worth.
TEST(Offload, TheDoubleBufferIsAllThatIsOnTheDevice) {
  const Toy toy;
  const int L = 8;
  Policies policies = layers_of(toy, L, SlotPolicy::recompute);
  for (auto& layer : policies) layer[static_cast<size_t>(toy.x)] = SlotPolicy::offload;
  const Result r = run_stack(toy, policies, {});
  std::map<int64_t, int> device, host;  // ticks to changes
  int64_t sent = 0;
  for (const TensorRecord& t : r.program.tensors) {
    const bool x = t.name.view() == "x" || t.name.view() == "toy.y";  // an x is the y before
    if (!x) continue;
    auto& changes = t.residence == Residence::host ? host : device;
    ++changes[t.born], --changes[t.died];
    sent += t.residence == Residence::host;
  }
  EXPECT_EQ(sent, L);
  const auto most = [](const std::map<int64_t, int>& changes) {
    int live = 0, top = 0;
    for (const auto& [time, change] : changes) top = std::max(top, live += change);
    return top;
  };
  EXPECT_EQ(most(host), L);
  EXPECT_LE(most(device), 3) << "two, and the y that becomes the next x";
  EXPECT_EQ(r.host, L * 4096);
  EXPECT_EQ(r.program.bytes_copied(kToHost), L * 240);
  EXPECT_EQ(r.program.bytes_copied(kToDevice), L * 240);
  // Deeper stacks need more of the host, and no byte more of the device.
  for (int l = 0; l < L; ++l) policies.push_back(policies[0]);
  const Result deeper = run_stack(toy, policies, {});
  EXPECT_EQ(deeper.device, r.device);
  EXPECT_EQ(deeper.host, 2 * r.host);
  const Result kept = run_stack(toy, layers_of(toy, L, SlotPolicy::keep), {});
  EXPECT_LT(r.device, kept.device);
  EXPECT_EQ(kept.host, 0);
  EXPECT_TRUE(kept.program.syncs.empty());
}

// A copy to the host has the time of a whole layer: between it and compute's wait lie the stages of
// the layer that follows. And back: the copy begins before the backward of the layer before.
TEST(Offload, CopiesHaveTheTimeOfALayer) {
  const Toy toy;
  const int L = 5;
  Policies policies = layers_of(toy, L, SlotPolicy::keep);
  for (auto& layer : policies) layer[static_cast<size_t>(toy.c)] = SlotPolicy::offload;
  const Result r = run_stack(toy, policies, {});
  const Program& p = r.program;
  std::map<int32_t, SyncRecord> records;
  int out = 0;
  for (const SyncRecord& s : p.syncs) {
    if (s.kind == SyncRecord::Kind::record) {
      records[s.event] = s;
      continue;
    }
    if (s.stream != kCompute || records.at(s.event).stream != kToHost) continue;
    int stages = 0;
    for (int32_t i = records.at(s.event).op; i < s.op; ++i)
      stages += p.ops[static_cast<size_t>(i)].stream == kCompute;
    EXPECT_EQ(stages, ++out < L ? 6 : 2) << "five stages and a scale; the last waits at the end";
  }
  EXPECT_EQ(out, L);
}

// An error in the middle of a step leaves passes and streams as if nothing had happened.
TEST(Offload, AnAbandonedStepLeavesNothingBehind) {
  const Toy toy;
  const Policies policies = layers_of(toy, 4, SlotPolicy::offload);
  const Values kept =
      run_stack(toy, layers_of(toy, 4, SlotPolicy::keep), checked(StreamMode::immediate)).values;
  for (const StreamMode mode : {StreamMode::immediate, StreamMode::deferred, StreamMode::worker})
    for (int stop = 3; stop >= 0; --stop) {
      Values values;
      Stack stack(toy, policies);
      Options o;
      const test::Steps steps = [&](Context& ctx) { stack.run(ctx, values, o); };
      test::Recorded recorded(steps, checked(mode));
      o.stop_in = stop;
      EXPECT_THROW(recorded.run(steps), std::runtime_error);
      o.stop_in = -1;
      recorded.run(steps);
      EXPECT_EQ(values, kept) << to_string(mode) << " " << stop;
    }
}

TEST(Offload, EvaluationSendsNothing) {
  const Toy toy;
  Offload offload(1, toy.body.slots());
  Pass pass(toy.body, toy.all(SlotPolicy::offload), &offload);
  const auto steps = [&](Context& ctx) {
    Environment e;
    pass.begin(kDims, PassMode::inference, e);
    pass.give(toy.x, ctx.tensor(Name("x"), {kDims.N(), 10}, DType::f32, Category::activations));
    pass.forward(ctx);
    const Tensor y = pass.take(toy.y);
    pass.clear();
  };
  test::Recorded r(steps);
  r.run(steps);
  EXPECT_EQ(r.schedule().host_bytes(), 0);
  EXPECT_TRUE(r.program().syncs.empty());
}

TEST(Offload, Misuse) {
  Schedule s;
  s.add(Name("step"), -1, false);
  Context plan(Place::plan, {});
  expect_error(ErrorCode::internal, {"a slot to be sent once"}, [&] {
    Offload offload(1, 1);
    plan.program(s, 0, [&] {
      offload.send(plan, 0, 0, test::floats(plan, "a", 4));
      offload.send(plan, 0, 0, test::floats(plan, "a", 4));
    });
  });
  expect_error(ErrorCode::internal, {"a slot that is with the host to be fetched"}, [&] {
    Offload offload(1, 1);
    plan.program(s, 0, [&] { offload.fetch(plan, 0, 0, Category::activations); });
  });
}

}  // namespace
}  // namespace snug
