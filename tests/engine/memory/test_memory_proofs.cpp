// That planned memory is the memory used, and that a wrong plan could not pass unseen: the guards,
// the poison and the placement are each shown a defect.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "engine/core/rng.h"
#include "tests/engine/memory/program_run.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace snug {
namespace {

using test::expect_error;
using test::floats;
using test::mix_op;
using test::Recorded;
using test::set_op;
using test::Steps;

Settings checked() {
  Settings s;
  s.guard_bytes = 256;
  s.poison = true;
  return s;
}

// A forward that pushes and a backward that pops, with workspaces of odd sizes between; the result
// is a running mix of everything. `out` sees the last tensor before it ends.
Steps nested_steps(const std::function<void(const View&)>& out, int layers = 8) {
  return [out, layers](Context& ctx) {
    std::vector<Tensor> saved;
    saved.push_back(floats(ctx, "x", 700, Category::activations));
    set_op(ctx, saved.back(), 0.25f);
    for (int l = 0; l < layers; ++l) {
      const Tensor work = floats(ctx, "work", 100 + 333 * (l % 3));
      set_op(ctx, work, static_cast<float>(l));
      Tensor next = floats(ctx, "act", 500 + 17 * l, Category::activations);
      mix_op(ctx, next, saved.back(), work);
      saved.push_back(std::move(next));
    }
    Tensor grad = floats(ctx, "grad", 900);
    set_op(ctx, grad, 1);
    while (!saved.empty()) {
      Tensor next = floats(ctx, "grad", 300 + 50 * static_cast<int64_t>(saved.size()));
      mix_op(ctx, next, saved.back(), grad);
      saved.pop_back();
      // Scaled down, so that values stay finite: the mean of itself and a small part of it.
      {
        const Op op(ctx, "scale",
                    {.flops = next.view().elements(), .bytes = 2 * next.view().bytes()});
        if (op.run())
          for (int64_t i = 0; i < next.view().elements(); ++i) next.view().as<float>()[i] *= 0.125f;
      }
      grad = std::move(next);
    }
    if (!ctx.planning()) out(grad);
  };
}

std::vector<float> result_of(const Settings& settings, uint64_t shuffle, int repeats = 1) {
  std::vector<float> result;
  const Steps steps = nested_steps([&](const View& v) {
    const auto* p = v.as<float>();
    result.assign(p, p + v.elements());
  });
  Recorded r(steps, settings, shuffle);
  for (int i = 0; i < repeats; ++i) r.run(steps);
  EXPECT_EQ(r.cpu().resident_bytes(), r.schedule().arena_bytes());
  EXPECT_EQ(r.cpu().arena_bytes(), r.schedule().arena_bytes());
  return result;
}

TEST(Memory, ResultsDoNotDependOnPlacement) {
  const std::vector<float> plain = result_of({}, 0);
  ASSERT_FALSE(plain.empty());
  for (const float f : plain) ASSERT_TRUE(std::isfinite(f));
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    ASSERT_EQ(result_of({}, seed, 2), plain) << "packing " << seed;
    ASSERT_EQ(result_of(checked(), seed), plain) << "packing " << seed << " with guards";
  }
}

TEST(Memory, TheResultNeedsEveryTensor) {
  // What makes the test above mean something: change one value of one tensor, and it shows.
  const std::vector<float> plain = result_of({}, 0);
  std::vector<float> other;
  const auto keep = [&](const View& v) {
    other.assign(v.as<float>(), v.as<float>() + v.elements());
  };
  const Steps steps = nested_steps(keep, 7);
  Recorded r(steps);
  r.run(steps);
  EXPECT_NE(other, plain);
}

TEST(Memory, ResidentIsPlannedForManySizes) {
  for (const int64_t n : {1, 64, 1023, 1024, 1025, 100000, 3000000}) {
    const Steps steps = [n](Context& ctx) {
      const Tensor a = floats(ctx, "a", n);
      set_op(ctx, a, 1);
      const Tensor b = floats(ctx, "b", n / 2 + 1);
      mix_op(ctx, b, a, a);
    };
    Recorded r(steps);
    r.run(steps);
    EXPECT_EQ(r.cpu().resident_bytes(), r.schedule().arena_bytes()) << n;
    EXPECT_EQ(r.schedule().arena_bytes() % 4096, 0) << n;
  }
}

TEST(Guards, ArePartOfThePlan) {
  const Steps steps = nested_steps([](const View&) {});
  Recorded plain(steps), guarded(steps, checked());
  for (size_t i = 0; i < plain.program().tensors.size(); ++i)
    EXPECT_EQ(guarded.program().tensors[i].bytes, plain.program().tensors[i].bytes + 256);
  EXPECT_GT(guarded.schedule().arena_bytes(), plain.schedule().arena_bytes());
}

TEST(Guards, EveryGuardByteIsWatched) {
  for (const int64_t at : {0, 1, 100, 255}) {
    const Steps steps = [at](Context& ctx) {
      const Tensor before = floats(ctx, "before", 64);
      const Tensor victim = floats(ctx, "victim", 33);
      if (!ctx.planning() && at >= 0)
        static_cast<std::byte*>(victim.view().data)[victim.view().bytes() + at] = std::byte{0};
    };
    Recorded r(steps, checked());
    expect_error(ErrorCode::internal,
                 {"no op to write past the end of a tensor (guard bytes were changed)",
                  "tensor victim", "program step", "report"},
                 [&] { r.run(steps); });
  }
  // One byte short of the guard is the tensor's own.
  const Steps steps = [](Context& ctx) {
    const Tensor victim = floats(ctx, "victim", 33);
    if (!ctx.planning())
      static_cast<std::byte*>(victim.view().data)[victim.view().bytes() - 1] = std::byte{0};
  };
  Recorded r(steps, checked());
  EXPECT_NO_THROW(r.run(steps));
}

TEST(Guards, TheFirstBrokenPromiseIsTold) {
  const Steps steps = [](Context& ctx) {
    Tensor a = floats(ctx, "a", 4), b = floats(ctx, "b", 4);
    if (!ctx.planning())
      for (const View& v : {a.view(), b.view()}) v.as<float>()[4] = 0;
    b.reset();
    a.reset();
  };
  Recorded r(steps, checked());
  expect_error(ErrorCode::internal, {"guard bytes", "tensor b"}, [&] { r.run(steps); });
}

TEST(Poison, ReadBeforeWriteIsNaNInEveryFloatType) {
  const Steps steps = [](Context& ctx) {
    for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32}) {
      const Tensor x = ctx.tensor(Name("x"), {5}, t, Category::workspace);
      if (ctx.planning()) continue;
      const View& v = x;
      for (const double value : test::load_values(v.data, t, 5)) {
        const bool poisoned = t == DType::i32 ? value == -1 : std::isnan(value);
        EXPECT_TRUE(poisoned) << to_string(t) << " " << value;
      }
    }
  };
  Recorded r(steps, checked());
  r.run(steps);
  r.run(steps);
}

// x is written, released and read: on bytes that nobody took since. The plain run sees old values,
// the poisoned one sees NaN.
TEST(Poison, ReadAfterReleaseIsNaN) {
  float seen = 0;
  const Steps steps = [&](Context& ctx) {
    Tensor x = floats(ctx, "x", 16);
    set_op(ctx, x, 3);
    const View gone = x;
    x.reset();
    if (!ctx.planning()) seen = gone.as<float>()[7];
  };
  Recorded poisoned(steps, checked());
  poisoned.run(steps);
  EXPECT_TRUE(std::isnan(seen));
  Recorded plain(steps);
  plain.run(steps);
  EXPECT_EQ(seen, 3.0f) << "without poison such a read goes unseen, which is why there is poison";
}

// Mutations of a plan: the life of one tensor is shortened by hand before packing, so that another
// tensor may take its bytes. One of the three nets must catch each: the tick of its end (always
// on), a guard, or the result.
TEST(Mutation, AShortenedLifeIsCaught) {
  std::vector<float> result;
  const Steps steps = nested_steps(
      [&](const View& v) { result.assign(v.as<float>(), v.as<float>() + v.elements()); });
  Recorded honest(steps, checked());
  const size_t tensors = honest.program().tensors.size();
  for (size_t i = 0; i < tensors; ++i) {
    Recorded r(steps, checked());
    TensorRecord& t = r.program().tensors[i];
    if (t.died - t.born < 2) continue;
    t.died = t.born + 1;
    r.schedule().pack();
    expect_error(ErrorCode::internal, {"every tensor to end at its planned tick"},
                 [&] { r.run(steps); });
  }
}

// The same with the tick forgiven: packed with the short life, the record then put right, as if the
// packer had been wrong. Only guards and poison are left.
TEST(Mutation, AWrongPackingIsCaughtByGuardsOrPoison) {
  std::vector<float> result;
  const Steps steps = nested_steps(
      [&](const View& v) { result.assign(v.as<float>(), v.as<float>() + v.elements()); });
  Recorded honest(steps, checked());
  honest.run(steps);
  const std::vector<float> truth = result;
  int overlapping = 0, caught = 0;
  for (size_t i = 0; i < honest.program().tensors.size(); ++i) {
    Recorded r(steps, checked());
    TensorRecord& t = r.program().tensors[i];
    const int64_t died = t.died;
    t.died = t.born + 1;
    r.schedule().pack();
    t.died = died;
    bool overlap = false;
    try {
      check_packing(intervals_of(r.program()), r.program().packing.offsets, kTensorAlignment);
    } catch (const Error&) {
      overlap = true;
    }
    overlapping += overlap;
    bool seen = false;
    result.clear();
    try {
      r.run(steps);
      const bool nan =
          std::any_of(result.begin(), result.end(), [](float f) { return std::isnan(f); });
      seen = nan || result != truth;
    } catch (const Error&) {
      seen = true;
    }
    EXPECT_TRUE(!overlap || seen) << "tensor " << i << " shares bytes and nothing notices";
    EXPECT_TRUE(overlap || !seen) << "tensor " << i << " shares no byte and is accused";
    caught += seen;
  }
  EXPECT_GT(overlapping, 8) << "the mutations do something";
  EXPECT_EQ(caught, overlapping);
}

TEST(Mutation, ASmallerTensorIsCaught) {
  const Steps steps = nested_steps([](const View&) {});
  Recorded r(steps);
  r.program().tensors[3].bytes -= 4;
  r.schedule().pack();
  expect_error(ErrorCode::internal, {"bytes at tick"}, [&] { r.run(steps); });
}

}  // namespace
}  // namespace snug
