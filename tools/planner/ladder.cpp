#include "tools/planner/ladder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/io/text_reader.h"
#include "tools/planner/decision_table.h"
#include "tools/planner/plan_search.h"

namespace snug {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kMostRungs = 1000;

[[noreturn]] void wrong_sweep(std::string_view found) {
  fail(ErrorCode::usage, "--sweep as FROM..TO, FROM..TO/COUNT or a list of budgets",
       fmt::format("\"{}\"", found), "--sweep 2GiB..24GiB, 2GiB..24GiB/9 or 2GiB,4GiB,8GiB");
}

// What of it is with the host.
std::string beside_recompute(const Decisions& d) {
  std::string text;
  if (d.packed_weights != WeightPacking::none) text += ", weights packed";
  if (!d.offload.none()) text += ", offload " + d.offload.text();
  if (d.offload_params)
    text += fmt::format(", weights{} optimizer with the host",
                        d.offload_gradients ? ", gradients and" : " and");
  else if (d.offload_gradients)
    text += fmt::format(", gradients{} with the host", d.offload_optimizer ? " and optimizer" : "");
  else if (d.offload_optimizer)
    text += ", optimizer with the host";
  if (d.states_on_disk) text += ", optimizer on disk";
  if (d.update_on_host) text += ", which updates";
  if (d.delayed_update) text += " one step late";
  for (const Decision& row : decision_table())
    if (row.beside != nullptr && !row.same(d, Decisions())) text += std::string(", ") + row.beside;
  return text;
}

}  // namespace

Ladder make_ladder(const PlanRequest& request, std::vector<int64_t> budgets) {
  PlanSearch search(request);
  return make_ladder(request, std::move(budgets), search);
}

Ladder make_ladder(const PlanRequest& request, std::vector<int64_t> budgets, PlanSearch& search) {
  std::sort(budgets.begin(), budgets.end());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  PlanRequest r = request;
  r.reserve = 0;
  r.whole_device = false;
  Ladder ladder;
  if (!budgets.empty()) ladder.least = budgets.front(), ladder.most = budgets.back();
  for (const int64_t budget : budgets) {
    r.budget = budget;
    const Plan plan = make_plan(r, search);
    LadderRung rung;
    rung.budget = budget;
    rung.fits = plan.fits;
    rung.engine_bytes = plan.engine_bytes;
    rung.runtime_bytes = plan.runtime_bytes;
    rung.decisions = plan.decisions;
    rung.host_bytes = plan.host_bytes;
    rung.tokens_per_second = plan.tokens_per_second();
    rung.sentence = plan_sentence(plan);
    ladder.rungs.push_back(std::move(rung));
    ladder.minimum_bytes = plan.minimum_bytes;
    if (const int64_t host = search.smallest->host_bytes; r.host_budget > 0 && host > r.host_budget)
      ladder.minimum_host_bytes = host;
    ladder.cost = plan.cost;
  }
  return ladder;
}

Ladder staircase(const Ladder& ladder) {
  Ladder merged = ladder;
  merged.rungs.clear();
  for (const LadderRung& rung : ladder.rungs) {
    if (merged.rungs.empty()) {
      merged.rungs.push_back(rung);
      continue;
    }
    LadderRung& last = merged.rungs.back();
    if (!rung.fits || rung.fits != last.fits || rung.engine_bytes != last.engine_bytes ||
        !same_decisions(rung.decisions, last.decisions))
      merged.rungs.push_back(rung);
    else
      ++merged.left_out;
  }
  return merged;
}

std::vector<int64_t> spread_budgets(int64_t least, int64_t most, int64_t count) {
  require(least > 0 && most >= least && count >= 1, "budgets of more than 0 bytes that go up");
  std::vector<int64_t> list;
  for (int64_t i = 0; i < count; ++i) {
    const double share = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1) : 0.0;
    const double bytes = static_cast<double>(least) *
                         std::pow(static_cast<double>(most) / static_cast<double>(least), share);
    int64_t budget = static_cast<int64_t>(std::llround(bytes / kMiB)) * kMiB;
    if (i == 0) budget = least;
    if (i == count - 1 && count > 1) budget = most;
    budget = std::clamp(budget, least, most);
    if (list.empty() || budget > list.back()) list.push_back(budget);
  }
  return list;
}

std::vector<int64_t> parse_sweep(std::string_view text) {
  constexpr int64_t kUsual = 33;
  const auto bytes = [&](std::string_view part) {
    const int64_t value = parse_bytes(part, "--sweep");
    if (value <= 0) wrong_sweep(text);
    return value;
  };
  if (const size_t dots = text.find(".."); dots != std::string_view::npos) {
    std::string_view to = text.substr(dots + 2);
    int64_t count = kUsual;
    if (const size_t slash = to.find('/'); slash != std::string_view::npos) {
      const std::string_view digits = to.substr(slash + 1);
      count = 0;
      for (const char c : digits) {
        if (c < '0' || c > '9' || count > kMostRungs) wrong_sweep(text);
        count = 10 * count + (c - '0');
      }
      if (count < 2 || count > kMostRungs) wrong_sweep(text);
      to = to.substr(0, slash);
    }
    // 2..4GiB: the unit is that of both.
    std::string from(text.substr(0, dots));
    constexpr std::string_view kDigits = "0123456789. ";
    if (from.find_first_not_of(kDigits) == std::string::npos)
      if (const size_t unit = to.find_first_not_of(kDigits); unit != std::string_view::npos)
        from += to.substr(unit);
    const int64_t first = bytes(from), last = bytes(to);
    if (last < first) wrong_sweep(text);
    return spread_budgets(first, last, count);
  }
  std::vector<int64_t> list;
  while (true) {
    const size_t comma = text.find(',');
    list.push_back(bytes(text.substr(0, comma)));
    if (static_cast<int64_t>(list.size()) > kMostRungs) wrong_sweep(text_beginning(text, 40));
    if (comma == std::string_view::npos) return list;
    text.remove_prefix(comma + 1);
  }
}

std::string with_host_memory(const Ladder& ladder) {
  const int64_t bytes = ladder.minimum_host_bytes;
  return bytes > 0 ? fmt::format(", with host_memory of {} B ({})", bytes, human_bytes(bytes)) : "";
}

std::string ladder_text(const Ladder& ladder) {
  const auto wide = [](int64_t bytes) { return human_bytes(bytes); };
  std::string out = fmt::format("{:>11} {:>11} {:>6} {:>6} {:>10}  {}\n", "budget", "engine",
                                "micro", "head", "tokens/s", "recompute");
  for (const LadderRung& r : ladder.rungs) {
    if (!r.fits) {
      out += r.budget < ladder.minimum_bytes
                 ? fmt::format("{:>11}  does not fit, needs at least {}\n", wide(r.budget),
                               wide(ladder.minimum_bytes))
                 : fmt::format("{:>11}  does not fit, the host's memory has no room\n",
                               wide(r.budget));
      continue;
    }
    out += fmt::format("{:>11} {:>11} {:>6} {:>6} {:>10.0f}  {}\n", wide(r.budget),
                       wide(r.engine_bytes), r.decisions.micro_batch, r.decisions.head_rows,
                       r.tokens_per_second,
                       r.decisions.recompute.text() + beside_recompute(r.decisions));
  }
  if (ladder.left_out > 0)
    out +=
        fmt::format("{} more budget{} the plan of a smaller one and {} left out\n", ladder.left_out,
                    ladder.left_out == 1 ? " has" : "s have", ladder.left_out == 1 ? "is" : "are");
  out += fmt::format(
      "\nmemory of {} B ({}) is the smallest that works{}; tokens/s are predicted ({})\n",
      ladder.minimum_bytes, human_bytes(ladder.minimum_bytes), with_host_memory(ladder),
      ladder.cost);
  return out;
}

nlohmann::json ladder_json(const Ladder& ladder) {
  nlohmann::json list = nlohmann::json::array();
  for (const LadderRung& r : ladder.rungs) {
    list.push_back(
        {{"budget_bytes", r.budget},
         {"fits", r.fits},
         {"engine_bytes", r.engine_bytes},
         {"runtime_bytes", r.runtime_bytes},
         {"host_bytes", r.host_bytes},
         {"predicted_tokens_per_second",
          r.tokens_per_second > 0 ? nlohmann::json(r.tokens_per_second) : nlohmann::json(nullptr)},
         {"minimum_bytes", ladder.minimum_bytes},
         {"prediction", ladder.cost},
         {"sentence", r.sentence}});
    add_decisions(list.back(), r.decisions);
  }
  return list;
}

}  // namespace snug
