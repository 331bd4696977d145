// The table of parameters and the plain stores over it.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/seams/comm.h"
#include "engine/seams/grad_sink.h"
#include "engine/seams/param_store.h"
#include "engine/seams/state_store.h"
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

TEST(ParamTable, OffsetsAreAlignedAndDoNotOverlap) {
  const Small m;
  int64_t end = 0;
  for (int i = 0; i < m.table.size(); ++i) {
    EXPECT_EQ(m.table[i].offset % 256, 0);
    EXPECT_GE(m.table[i].offset, end);
    EXPECT_LT(m.table[i].offset - end, 256);
    end = m.table[i].offset + m.table[i].elements();
  }
  EXPECT_EQ(m.table[m.wte].offset, 0);
  EXPECT_EQ(m.table[m.weight].offset, 2048);  // 1920 rounded up
  EXPECT_EQ(m.table[m.frozen].offset, 2304);
  EXPECT_EQ(m.table[m.bias].offset, 2560);
  EXPECT_EQ(m.table.flat_elements(), 2560 + 512);
}

TEST(ParamTable, PaddedRowsAreNotReal) {
  const Small m;
  EXPECT_EQ(m.table[m.wte].elements(), 1920);
  EXPECT_EQ(m.table[m.wte].real_elements(), 1500);
  EXPECT_EQ(m.table[m.weight].rows, 16) << "all rows are real unless said otherwise";
  EXPECT_EQ(m.table.real_elements(), 1500 + 256 + 7 + 257);
}

TEST(ParamTable, ScalarsAndEmptyTables) {
  ParamTable t;
  EXPECT_EQ(t.real_elements(), 0);
  EXPECT_EQ(t.flat_elements(), 0);
  EXPECT_EQ(t.find("x"), -1);
  const int s = t.add({.name = Name("scalar"), .shape = {}});
  EXPECT_EQ(t[s].real_elements(), 1);
  EXPECT_EQ(t.flat_elements(), 256);
}

TEST(ParamTable, FindAndRules) {
  Small m;
  EXPECT_EQ(m.table.find("wte"), m.wte);
  EXPECT_EQ(m.table.find("b"), m.bias);
  EXPECT_EQ(m.table.find("wt"), -1);
  expect_error(ErrorCode::internal, {"one parameter of each name"},
               [&] { m.table.add({.name = Name("wte"), .shape = {1}}); });
  expect_error(ErrorCode::internal, {"no more real rows than a parameter has"}, [&] {
    m.table.add({.name = Name("n"), .shape = {4, 2}, .rows = 5});
  });
  EXPECT_EQ(m.table.size(), 4);
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
  EXPECT_EQ(t[1].bytes, 4 * 3072);
  EXPECT_EQ(t[1].name.view(), "gradients");
  EXPECT_EQ(t[2].name.view(), "exp_avg");
  EXPECT_EQ(t[3].name.view(), "exp_avg_sq");
  for (const size_t i : {2, 3}) {
    EXPECT_EQ(t[i].category, Category::optimizer);
    EXPECT_EQ(t[i].bytes, 4 * 3072);
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
        EXPECT_EQ(store.stored(0, 0).elements(), m.table.flat_elements());
        if (!ctx.planning()) {
          for (int k = 0; k < 2; ++k)
            for (const StateSpan& span : store.spans())
              EXPECT_EQ(*store.stored(k, span.offset + span.elements - 1).as<float>(),
                        static_cast<float>(10 * k + span.param));
        }
      });
}

TEST(SoloComm, IsTheIdentityAndRecordsNothing) {
  SoloComm comm;
  EXPECT_EQ(comm.rank(), 0);
  EXPECT_EQ(comm.size(), 1);
  Schedule schedule;
  schedule.add(Name("step"), -1, false);
  Context plan(Place::plan, {});
  float x[2] = {1, 2};
  const View v{x, {2}, DType::f32, Place::cpu, Name("x")};
  plan.program(schedule, 0, [&] {
    comm.all_reduce_sum(plan, v);
    comm.all_gather(plan, v);
    comm.reduce_scatter_sum(plan, v);
    comm.broadcast(plan, v, 0);
  });
  EXPECT_TRUE(schedule.at(0).ops.empty());
  EXPECT_EQ(x[0], 1);
  EXPECT_EQ(x[1], 2);
}

}  // namespace
}  // namespace snug
