#include "tools/planner/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "tools/planner/decision_table.h"

namespace snug {
namespace {

int64_t bytes_of(const Plan& p, Category c) {
  return p.categories[static_cast<size_t>(c)];
}

const ComparedPlan* first_plan(const Comparison& all) {
  for (const ComparedPlan& c : all.plans)
    if (c.refused.empty()) return &c;
  return nullptr;
}

// "1.50 GiB less".
std::string change(int64_t bytes) {
  if (bytes == 0) return "as much";
  return fmt::format("{} {}", human_bytes(bytes < 0 ? -bytes : bytes), bytes > 0 ? "less" : "more");
}

// Of gradients and states nothing: what the batch and the model's shapes make.
int64_t of_the_batch(const Plan& p) {
  return bytes_of(p, Category::activations) + bytes_of(p, Category::recomputed) +
         bytes_of(p, Category::logits) + bytes_of(p, Category::workspace);
}

// "workspace 538.00 KiB less, padding 2.00 KiB more": what differs at the peak beside the state.
std::string other_changes(const Plan& a, const Plan& b) {
  std::string out;
  const auto add = [&](const char* name, int64_t less) {
    if (less != 0) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, change(less));
  };
  for (int i = 0; i < kCategories; ++i) {
    const auto c = static_cast<Category>(i);
    if (c != Category::optimizer && c != Category::offload)
      add(to_string(c), bytes_of(a, c) - bytes_of(b, c));
  }
  add("padding", a.padding - b.padding);
  return out;
}

// "8 B of state a parameter", "2.03 B of state a parameter, with 38.60M in fp32 3.9 on the mean".
std::string state_text(const StateWeight& w) {
  std::string text = fmt::format("{:.3g} B of state a parameter", w.form);
  if (w.in_f32 > 0)
    text += fmt::format(", with {} in fp32 {:.3g} on the mean",
                        human_count(static_cast<double>(w.in_f32)), w.mean);
  return text;
}

double share(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

Comparison parse_comparison(std::string_view text) {
  Comparison out;
  const size_t equals = text.find('=');
  if (equals != std::string_view::npos) {
    out.key = text.substr(0, equals);
    for (std::string_view rest = text.substr(equals + 1); !rest.empty();) {
      const size_t comma = std::min(rest.find(','), rest.size());
      if (comma > 0) {
        ComparedPlan one;
        one.value = rest.substr(0, comma);
        out.plans.push_back(std::move(one));
      }
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  if (out.key.empty() || out.plans.size() < 2)
    fail(ErrorCode::usage, "--compare as a key and two values or more", fmt::format("\"{}\"", text),
         "--compare optim=adamw,lion");
  return out;
}

int64_t driver_bytes(const Plan& plan) {
  return plan.engine_bytes + plan.runtime_bytes;
}

std::string saving_text(const Comparison& all, const ComparedPlan& one) {
  const ComparedPlan& first = *first_plan(all);
  const Plan &a = first.plan, &b = one.plan;
  if (&first == &one) {
    const int64_t state = bytes_of(a, Category::optimizer);
    if (a.decisions.offload_optimizer)
      return fmt::format(
          "its states rest with the host: of {} there, less state saves nothing here",
          human_bytes(a.host_bytes));
    return fmt::format(
        "state is {:.0f} % of the peak, which is what another optimizer can save; the batch's "
        "activations, logits and workspace are {:.0f} %",
        share(state, a.engine_bytes), share(of_the_batch(a), a.engine_bytes));
  }
  const int64_t state = bytes_of(a, Category::optimizer) - bytes_of(b, Category::optimizer);
  const int64_t peak = a.engine_bytes - b.engine_bytes;
  std::string out = fmt::format("state {}, peak {}", change(state), change(peak));
  if (const std::string spent = changed_decisions(a.decisions, b.decisions); !spent.empty())
    return out + ": the room goes to " + spent;
  if (a.decisions.offload_optimizer)
    return out + fmt::format(": states rest with the host, which has {}",
                             change(a.host_bytes - b.host_bytes));
  if (state == 0 && peak == 0) return out;
  if (state == peak) return out + ": states are at the peak, so all of it shows";
  return out + ": beside the state " + other_changes(a, b);
}

std::string comparison_text(const Comparison& all) {
  const ComparedPlan* first = first_plan(all);
  size_t width = all.key.size();
  for (const ComparedPlan& c : all.plans) width = std::max(width, c.value.size());
  std::vector<Category> columns;  // those of which any plan has some
  for (int i = 0; i < kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    for (const ComparedPlan& c : all.plans)
      if (c.refused.empty() && bytes_of(c.plan, category) > 0 && category != Category::offload) {
        columns.push_back(category);
        break;
      }
  }
  std::string out = fmt::format("{:<{}}", all.key, width);
  for (const Category c : columns) out += fmt::format("  {:>11}", to_string(c));
  out += fmt::format("  {:>11}  {:>11}  {:>11}  {:>11}  {:>8}\n", "engine", "host", "driver shows",
                     "smallest", "tokens/s");
  for (const ComparedPlan& c : all.plans) {
    out += fmt::format("{:<{}}", c.value, width);
    if (!c.refused.empty()) {
      out += "  " + c.refused + "\n";
      continue;
    }
    for (const Category category : columns)
      out += fmt::format("  {:>11}", human_bytes(bytes_of(c.plan, category)));
    out += fmt::format("  {:>11}  {:>11}  {:>12}  {:>11}  {:>8.0f}{}\n",
                       human_bytes(c.plan.engine_bytes), human_bytes(c.plan.host_bytes),
                       human_bytes(driver_bytes(c.plan)), human_bytes(c.plan.minimum_bytes),
                       c.plan.tokens_per_second(), c.plan.fits ? "" : "  does not fit");
  }
  if (first == nullptr) return out;
  out += "\n";
  for (const ComparedPlan& c : all.plans)
    if (c.refused.empty())
      out +=
          fmt::format("{:<{}}  {}; {}\n", c.value, width, state_text(c.state), saving_text(all, c));
  out +=
      "\nBytes are at the peak. A driver's tool shows engine and runtime whole from before the "
      "first "
      "step to the end, for all\nis reserved at once. That of a program with a caching allocator "
      "shows the most it ever held: backward of its first\nstep gets there before any state "
      "exists, "
      "and states then take room that is held already, so that less of them may\nshow as "
      "nothing.\n";
  return out;
}

nlohmann::json comparison_json(const Comparison& all) {
  nlohmann::json plans = nlohmann::json::array();
  for (const ComparedPlan& c : all.plans) {
    nlohmann::json row = {{"value", c.value}};
    if (!c.refused.empty()) {
      row["refused"] = c.refused;
      plans.push_back(std::move(row));
      continue;
    }
    const nlohmann::json plan = plan_json(c.plan);
    for (const char* key : {"fits", "engine_bytes", "runtime_bytes", "host_bytes", "minimum_bytes",
                            "predicted_tokens_per_second", "categories", "decisions", "hash"})
      row[key] = plan.at(key);
    const ComparedPlan& first = *first_plan(all);
    row["refused"] = nullptr;
    row["driver_bytes"] = driver_bytes(c.plan);
    row["state_bytes_per_parameter"] = c.state.form;
    row["mean_state_bytes_per_parameter"] = c.state.mean;
    row["parameters_with_fp32_state"] = c.state.in_f32;
    row["parameters"] = c.parameters;
    row["saved_state_bytes"] =
        bytes_of(first.plan, Category::optimizer) - bytes_of(c.plan, Category::optimizer);
    row["saved_peak_bytes"] = first.plan.engine_bytes - c.plan.engine_bytes;
    row["why"] = saving_text(all, c);
    plans.push_back(std::move(row));
  }
  return {{"key", all.key}, {"plans", plans}};
}

}  // namespace snug
