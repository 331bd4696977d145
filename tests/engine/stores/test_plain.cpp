// The plain stores: all bytes of weights, gradients and states, on the device.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/stores/plain_gradients.h"
#include "engine/stores/plain_params.h"
#include "engine/stores/plain_states.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::expect_error;

// A small model: an embedding of 300 tokens padded to 384 rows, a matrix, a frozen vector, a bias.
struct Small {
  ParamTable table;
  int wte, weight, frozen, bias;
  Small() {
    wte = table.add({.name = Name("wte"), .shape = {384, 5}, .rows = 300});
    weight = table.add({.name = Name("w"), .shape = {16, 16}});
    frozen = table.add({.name = Name("frozen"), .shape = {7}, .trainable = false});
    bias = table.add({.name = Name("b"), .shape = {257}, .group = kGroupNoDecay});
  }
};

// make(ctx) returns a store, as the root program; use(ctx, store) is a program on top of it. Both
// are recorded on plan and run on cpu.
template <class Make, class Use>
void on_plan_and_cpu(Make&& make, Use&& use) {
  Schedule schedule;
  schedule.add(Name("root"), -1, true);
  schedule.add(Name("step"), 0, false);
  const auto both = [&](Context& ctx) {
    decltype(make(ctx)) store;  // outlives the root program, as resident tensors must
    ctx.program(schedule, 0, [&] { store = make(ctx); });
    ctx.program(schedule, 1, [&] { use(ctx, *store); });
  };
  Context plan(Place::plan, {});
  both(plan);
  schedule.pack();
  Context cpu(Place::cpu, {});
  cpu.reserve(schedule);
  both(cpu);
}

// Where an element of `flat` is.
const void* element(const View& flat, int64_t index) {
  return flat.data ? static_cast<const std::byte*>(flat.data) + index * size_of(flat.dtype)
                   : nullptr;
}

TEST(PlainParamStore, ViewsAreSpansOfOneFlatTensor) {
  const Small m;
  for (const DType dtype : {DType::f32, DType::bf16})
    on_plan_and_cpu(
        [&](Context& ctx) { return std::make_unique<PlainParamStore>(ctx, m.table, dtype); },
        [&](Context& ctx, PlainParamStore& store) {
          EXPECT_EQ(&store.table(), &m.table);
          EXPECT_EQ(describe(store.flat()), std::string("weights (3072) ") + to_string(dtype));
          for (int i = 0; i < m.table.size(); ++i) {
            const View v = store.acquire(ctx, i);
            EXPECT_EQ(v.name, m.table[i].name);
            EXPECT_EQ(v.shape, m.table[i].shape);
            EXPECT_EQ(v.dtype, dtype);
            EXPECT_EQ(v.data, element(store.flat(), m.table[i].offset));
            EXPECT_EQ(v.data == nullptr, ctx.planning());
            EXPECT_EQ(store.acquire(ctx, i).data, v.data);  // a second acquire is normal
            store.release(ctx, i);
            store.release(ctx, i);
          }
        });
}

TEST(PlainParamStore, ItsBytesAreWeights) {
  const Small m;
  Schedule s;
  s.add(Name("root"), -1, true);
  Context plan(Place::plan, {});
  std::unique_ptr<PlainParamStore> weights;
  std::unique_ptr<PlainGradSink> gradients;
  std::unique_ptr<PlainStateStore> state;
  plan.program(s, 0, [&] {
    weights = std::make_unique<PlainParamStore>(plan, m.table, DType::bf16);
    gradients = std::make_unique<PlainGradSink>(plan, m.table);
    state = std::make_unique<PlainStateStore>(
        plan, m.table, std::vector<Name>{Name("exp_avg"), Name("exp_avg_sq")});
  });
  const auto& t = s.at(0).tensors;
  ASSERT_EQ(t.size(), 4u);
  EXPECT_EQ(t[0].category, Category::weights);
  EXPECT_EQ(t[0].bytes, 2 * 3072);
  EXPECT_EQ(t[1].category, Category::gradients);
  EXPECT_EQ(t[1].bytes, 4 * 2816);  // of what is trained
  EXPECT_EQ(t[1].name.view(), "gradients");
  EXPECT_EQ(t[2].name.view(), "exp_avg");
  EXPECT_EQ(t[3].name.view(), "exp_avg_sq");
  for (const size_t i : {2, 3}) {
    EXPECT_EQ(t[i].category, Category::optimizer);
    EXPECT_EQ(t[i].bytes, 4 * 2816);
  }
}

TEST(PlainGradSink, TheFirstOfAWindowAssignsLaterOnesAdd) {
  const Small m;
  for (const DType dtype : {DType::f32, DType::bf16})
    on_plan_and_cpu(
        [&](Context& ctx) { return std::make_unique<PlainGradSink>(ctx, m.table, dtype); },
        [&](Context& ctx, PlainGradSink& sink) {
          const auto open = [&](int param) {
            const GradView g = sink.open(ctx, param);
            EXPECT_EQ(g.view.shape, m.table[param].shape);
            EXPECT_EQ(g.view.dtype, dtype);
            EXPECT_EQ(g.view.data, element(sink.flat(), m.table[param].offset));
            sink.close(ctx, param);
            return g.add;
          };
          for (int window = 0; window < 2; ++window) {
            sink.begin(true);
            EXPECT_FALSE(open(m.wte));
            EXPECT_TRUE(open(m.wte)) << "tied: the second contribution of one pass adds";
            EXPECT_FALSE(open(m.weight));
            sink.begin(false);
            EXPECT_TRUE(open(m.wte));
            EXPECT_TRUE(open(m.weight));
            EXPECT_FALSE(open(m.bias)) << "its first contribution, in a later micro-step";
            sink.begin(false);
            EXPECT_TRUE(open(m.bias));
          }
        });
}

TEST(PlainGradSink, FrozenParametersHaveNone) {
  const Small m;
  expect_error(ErrorCode::internal, {"gradients in f32 or bf16"}, [&] {
    on_plan_and_cpu(
        [&](Context& ctx) { return std::make_unique<PlainGradSink>(ctx, m.table, DType::f16); },
        [](Context&, PlainGradSink&) {});
  });
  on_plan_and_cpu([&](Context& ctx) { return std::make_unique<PlainGradSink>(ctx, m.table); },
                  [&](Context& ctx, PlainGradSink& sink) {
                    EXPECT_TRUE(sink.wants(m.wte));
                    EXPECT_FALSE(sink.wants(m.frozen));
                    expect_error(ErrorCode::internal, {"gradients of trainable parameters only"},
                                 [&] { sink.open(ctx, m.frozen); });
                  });
}

TEST(PlainStateStore, SpansLeaveOutPaddingAndFrozenParameters) {
  const Small m;
  const std::vector<StateSpan> spans = whole_parameter_spans(m.table);
  ASSERT_EQ(spans.size(), 3u);
  const int params[] = {m.wte, m.weight, m.bias};
  const int64_t elements[] = {1500, 256, 257};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(spans[i].param, params[i]);
    EXPECT_EQ(spans[i].elements, elements[i]);
    EXPECT_EQ(spans[i].offset, m.table[params[i]].offset);
    EXPECT_EQ(spans[i].group, m.table[params[i]].group);
  }
  EXPECT_EQ(spans[2].group, kGroupNoDecay);
}

TEST(PlainStateStore, AcquireGivesTheSpanAndChangesStay) {
  const Small m;
  on_plan_and_cpu(
      [&](Context& ctx) {
        return std::make_unique<PlainStateStore>(ctx, m.table,
                                                 std::vector<Name>{Name("m"), Name("v")});
      },
      [&](Context& ctx, PlainStateStore& store) {
        ASSERT_EQ(store.states(), 2);
        ASSERT_EQ(store.spans().size(), 3u);
        for (int k = 0; k < 2; ++k)
          for (const StateSpan& span : store.spans()) {
            const View v = store.acquire(ctx, k, span);
            EXPECT_EQ(v.shape, (Shape{span.elements}));
            EXPECT_EQ(v.dtype, DType::f32);
            EXPECT_EQ(v.data, store.stored(k, span.offset).data);
            if (v.data) v.as<float>()[span.elements - 1] = static_cast<float>(10 * k + span.param);
            store.release(ctx, k, span);
          }
        EXPECT_EQ(store.stored(0, 0).elements(), m.table.trained_elements());
        if (!ctx.planning()) {
          for (int k = 0; k < 2; ++k)
            for (const StateSpan& span : store.spans())
              EXPECT_EQ(*store.stored(k, span.offset + span.elements - 1).as<float>(),
                        static_cast<float>(10 * k + span.param));
        }
      });
}

}  // namespace
}  // namespace snug
