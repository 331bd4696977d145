// Requests of a random sort: whatever is fixed, left open, allowed and bounded, the smallest memory
// works and a page less does not, budgets hold, more memory is never slower, and nothing that was
// asked for by name is smaller or faster than what is planned.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/tools/plan_case.h"
#include "tests/tools/session_case.h"
#include "tools/planner/plan_search.h"

namespace snug {
namespace {

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  int64_t operator()(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  bool once_in(int64_t n) { return (*this)(1, n) == 1; }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[(*this)(0, static_cast<int64_t>(list.size()) - 1)];
  }

 private:
  std::mt19937 random_;
};

test::Tiny random_shape(Draw& draw) {
  return {.V = draw(50, 400),
          .P = 64,
          .C = 16 * draw(1, 4),
          .L = draw(1, 6),
          .H = 2,
          .F = 64 * draw(1, 4),
          .tied = draw.once_in(2),
          .dropout = draw.once_in(3) ? 0.1f : 0.0f};
}

PlanRequest random_request(Draw& draw, const Model& model, const CostModel& cost) {
  PlanRequest r = test::host_request(model, cost, 16 * draw(1, 3), draw(1, 12));
  r.max_grad_norm = draw.once_in(2) ? 0 : 1;
  r.evaluate = draw.once_in(2);
  r.save = draw.once_in(2);
  if (draw.once_in(3)) r.micro_batch = draw(1, r.global_batch);
  while (r.micro_batch > 0 && r.global_batch % r.micro_batch != 0) --r.micro_batch;
  if (draw.once_in(4)) r.head_rows = 64;
  r.recompute = draw.one_of({"auto", "auto", "none", "block"});
  r.offload = draw.one_of({"auto", "auto", "none", "inputs"});
  r.offload_optimizer = draw.one_of({"auto", "auto", "none", "cpu"});
  r.offload_params = draw.one_of({"auto", "auto", "none", "cpu"});
  r.offload_gradients = draw.one_of({"auto", "auto", "none", "cpu"});
  if (r.offload_params == "cpu" && r.offload_optimizer == "none") r.offload_optimizer = "auto";
  r.use_host = !draw.once_in(4);
  r.settings.target = draw.once_in(4) ? Place::cuda : Place::cpu;
  r.bf16_gradients = r.settings.target == Place::cpu && draw.once_in(4);
  return r;
}

// Everything that was left open, by name.
PlanRequest fixed_request(Draw& draw, PlanRequest r) {
  const auto fix = [&](auto& key, std::initializer_list<const char*> words, bool may) {
    if (key == "auto") key = may ? draw.one_of(words) : "none";
  };
  fix(r.recompute, {"none", "norms", "norms+mlp", "mlp+attention+norms", "block"}, true);
  fix(r.offload, {"none", "inputs"}, r.use_host);
  if (r.offload_params == "cpu") r.offload_optimizer = "cpu";
  fix(r.offload_optimizer, {"none", "cpu"}, r.use_host);
  fix(r.offload_params, {"none", "cpu"}, r.use_host && r.offload_optimizer == "cpu");
  fix(r.offload_gradients, {"none", "cpu"}, r.use_host);
  r.budget = 0;
  return r;
}

void look_at(Draw& draw, PlanRequest r) {
  PlanRequest ask = r;
  ask.budget = 1;
  Plan refused = make_plan(ask);
  if (draw.once_in(2)) {  // a host that has room for a part of it
    ask.budget = refused.minimum_bytes;
    const Plan small = make_plan(ask);
    const int64_t bytes = small.host_bytes * draw(2, 8) / 8;
    if (draw.once_in(2))
      r.host_budget = std::max<int64_t>(bytes, 4096);
    else
      r.free_bytes = (r.settings.target == Place::cuda ? 0 : small.engine_bytes) + bytes;
  }
  ask = r;
  PlanSearch search(r);
  ask.budget = 1;
  refused = make_plan(ask, search);
  const int64_t least = refused.minimum_bytes;
  ask.budget = least;
  const Plan smallest = make_plan(ask, search);
  if (!smallest.fits) {  // of what was set
    EXPECT_FALSE(host_fits(smallest));
    return;
  }
  --ask.budget;
  EXPECT_FALSE(make_plan(ask, search).fits);
  ask.budget = 0;
  const Plan roomy = make_plan(ask, search);
  const int64_t most = std::max(least, roomy.engine_bytes + roomy.runtime_bytes);
  double before = INFINITY;
  for (int i = 0; i <= 8; ++i) {
    ask.budget = least + (most - least) * i / 8;
    const Plan p = make_plan(ask, search);
    ASSERT_TRUE(p.fits && host_fits(p)) << i;
    EXPECT_EQ(p.minimum_bytes, least);
    EXPECT_LE(p.engine_bytes + p.runtime_bytes, ask.budget);
    EXPECT_LE(p.step_seconds, before * (1 + 1e-9)) << i << ", repairs " << p.repairs;
    before = std::min(before, p.step_seconds);
    if (i == 3) {
      EXPECT_EQ(plan_hash(make_plan(ask)), plan_hash(p)) << "other budgets changed the plan";
    }
  }
  for (int i = 0; i < 6; ++i) {
    const PlanRequest f = fixed_request(draw, r);
    const Plan u = make_plan(f);
    if (!u.fits) continue;
    const std::string what = f.recompute.text() + " | " + f.offload.text() + " | " +
                             f.offload_optimizer + f.offload_params + f.offload_gradients;
    EXPECT_GE(u.minimum_bytes, least) << what;
    ask.budget = u.engine_bytes + u.runtime_bytes;
    const Plan p = make_plan(ask, search);
    ASSERT_TRUE(p.fits) << what;
    EXPECT_LE(p.step_seconds, u.step_seconds * (1 + 1e-9)) << what;
  }
}

TEST(SlowPlanRandom, PromisesHoldWhateverIsAsked) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const Model model(test::tiny_spec(random_shape(draw)),
                      parse_precision(draw.one_of({"fp32", "bf16"})));
    const double link = draw.one_of({1e8, 3e9, 1e11});
    const CostModel cost =
        draw.once_in(2) ? test::described_device(1e11, link) : test::even_device(1e11, link);
    look_at(draw, random_request(draw, model, cost));
  }
}

}  // namespace
}  // namespace snug
