// Plans over budgets for devices made up by hand, as they were when somebody last looked: what is chosen, its
// bytes, its seconds and what was proved of them. A change of a bound, which no plan needs to show by its decisions,
// shows here. SNUG_RECORD=1 writes recorded_plans.txt anew: read the difference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/support/folders.h"
#include "tests/tools/plan_case.h"
#include "tests/tools/session_case.h"
#include "tools/planner/plan_search.h"

namespace snug {
namespace {

const test::Tiny kDeep{.V = 200, .P = 32, .C = 64, .L = 8, .H = 2, .F = 256};

struct Case {
  const char* name;
  ModelSpec spec;
  const char* precision;
  CostModel cost;
  std::function<void(PlanRequest&)> set;
};

CostModel with_ranks(double link, int ranks) {
  return CostModel::described("one of several", {.fp32_matrix = 1e11,
                                                 .bf16_matrix = 2e11,
                                                 .fp32_attention = 5e10,
                                                 .bf16_attention = 1e11,
                                                 .vector = 1e10,
                                                 .memory = 1e10,
                                                 .link = 1e9,
                                                 .op = 1e-8,
                                                 .rank_link = link,
                                                 .rank_latency = 1e-6,
                                                 .ranks = ranks,
                                                 .half_rate_rows = 16});
}

std::vector<Case> cases() {
  const ModelSpec deep = test::tiny_spec(kDeep);
  const ModelSpec kinds = resolve_model("", test::kTwoKinds).spec;
  std::vector<Case> list;
  const auto all_open = [](PlanRequest& r) {
    r.evaluate = r.save = true;
    r.offload_params = r.offload_gradients = r.offload_embedding = "auto";
  };
  list.push_back({"slots and states, slow link", deep, "fp32", test::even_device(1e11, 1e8),
                  [](PlanRequest&) {}});
  list.push_back({"slots and states, fast link", deep, "fp32", test::described_device(1e11, 1e10),
                  [](PlanRequest& r) { r.bf16_gradients = true; }});
  list.push_back(
      {"two kinds of layers", kinds, "fp32", test::even_device(1e11, 3e9), [](PlanRequest&) {}});
  list.push_back(
      {"two kinds, nothing away", kinds, "bf16", test::even_device(1e11, 3e9), [](PlanRequest& r) {
         r.use_host = false;
         r.evaluate = true;
       }});
  list.push_back({"all away, slow link", deep, "fp32", test::even_device(1e11, 1e8), all_open});
  list.push_back(
      {"all away, fast link", deep, "bf16", test::even_device(1e11, 1e11), [&](PlanRequest& r) {
         all_open(r);
         r.max_grad_norm = 0;
         r.settings.target = Place::cuda;
       }});
  list.push_back(
      {"updates by the host", deep, "bf16", test::device_with_host(1e9, 5e9), [&](PlanRequest& r) {
         all_open(r);
         r.settings.target = Place::cuda;
         r.offload_update = "auto";
         r.stale_update = true;
       }});
  list.push_back({"bounded host", deep, "fp32", test::even_device(1e11, 1e9), [&](PlanRequest& r) {
                    all_open(r);
                    r.host_budget = 6 << 20;
                  }});
  for (const int zero : {0, 1, 2, 3})
    list.push_back({zero == 0   ? "ranks that keep all"
                    : zero == 1 ? "ranks, states"
                    : zero == 2 ? "ranks, gradients"
                                : "ranks, weights",
                    deep, "fp32", with_ranks(2e9, 4), [zero](PlanRequest& r) {
                      r.ranks = 4;
                      r.zero = zero;
                      r.ranks_on_machine = 2;
                      r.staged = zero % 2 == 1;
                      r.evaluate = r.save = true;
                      r.settings.target = Place::cuda;
                    }});
  return list;
}

std::string number(double value) {
  return fmt::format("{:.6g}", value);
}

std::string line_of(const Plan& plan) {
  const Decisions& d = plan.decisions;
  std::string text =
      fmt::format("{} | {} of {} rows {} | {} / {} | {} + {} B, {} at least", plan.budget,
                  d.micro_batch, plan.accumulation, d.head_rows, d.recompute.text(),
                  d.offload.text(), plan.engine_bytes, plan.host_bytes, plan.minimum_bytes);
  if (!plan.fits) text += ", does not fit";
  for (const auto& [word, on] : {std::pair("states", d.offload_optimizer),
                                 {"params", d.offload_params},
                                 {"gradients", d.offload_gradients},
                                 {"at once", d.update_in_backward},
                                 {"by the host", d.update_on_host},
                                 {"late", d.delayed_update},
                                 {"in turn", d.in_turn},
                                 {"bf16 gradients", d.gradients == DType::bf16},
                                 {"moved", plan.moved}})
    if (on) text += fmt::format(", {}", word);
  text += fmt::format(" | {} s, bound {}, unlimited {}, more {}, unmoved {}, fastest {}",
                      number(plan.step_seconds), number(plan.bound_seconds),
                      number(plan.unlimited_seconds), number(plan.more_seconds),
                      number(plan.unmoved_seconds), number(plan.fastest_seconds));
  if (plan.host_update.bytes > 0)
    text +=
        fmt::format(" | host {} B {} s", plan.host_update.bytes, number(plan.host_update.seconds));
  if (plan.collective_bytes > 0)
    text += fmt::format(" | ranks {} B {} s, {} exposed", plan.collective_bytes,
                        number(plan.collective_seconds), number(plan.collective_exposed));
  return text + " | " + plan.optimality;
}

std::vector<std::string> lines_of(const Case& c) {
  const int ranks = c.cost.rates().ranks;
  const Model model(c.spec, parse_precision(c.precision), {}, {}, ranks);
  PlanRequest r = test::host_request(model, c.cost, 32, 8);
  r.runtime_bytes = 1 << 20;
  c.set(r);
  PlanSearch search(r);
  PlanRequest ask = r;
  ask.budget = 1;
  const Plan refused = make_plan(ask, search);
  std::vector<std::string> lines = {fmt::format("== {}", c.name), line_of(refused)};
  for (const double more : {1.0, 1.08, 1.2, 1.45, 2.0, 3.5}) {
    ask.budget = refused.runtime_bytes +
                 static_cast<int64_t>(
                     static_cast<double>(refused.minimum_bytes - refused.runtime_bytes) * more);
    lines.push_back(line_of(make_plan(ask, search)));
  }
  ask.budget = 0;
  lines.push_back(line_of(make_plan(ask, search)));
  return lines;
}

std::vector<std::string> recorded(const std::string& name) {
  std::ifstream in(source_folder() + "/tests/tools/recorded_plans.txt");
  std::vector<std::string> lines;
  bool own = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("== ")) own = line == "== " + name;
    if (own) lines.push_back(line);
  }
  return lines;
}

TEST(RecordedPlans, AreAsTheyWere) {
  const bool record = std::getenv("SNUG_RECORD") != nullptr;
  std::string written;
  for (const Case& c : cases()) {
    const std::vector<std::string> lines = lines_of(c);
    for (const std::string& line : lines) written += line + "\n";
    if (record) continue;
    EXPECT_EQ(lines, recorded(c.name)) << "SNUG_RECORD=1 records what it is";
  }
  if (record) std::ofstream(source_folder() + "/tests/tools/recorded_plans.txt") << written;
}

}  // namespace
}  // namespace snug
