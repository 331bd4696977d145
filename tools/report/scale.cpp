#include "tools/report/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"

namespace snug {
namespace {

std::string milliseconds(double seconds) {
  return fmt::format("{:.1f} ms", 1e3 * seconds);
}

}  // namespace

std::vector<int64_t> parse_scale(const std::string& text) {
  const size_t dots = text.find("..");
  const auto number = [](const std::string& s) -> int64_t {
    if (s.empty() || s.size() > 5 || s.find_first_not_of("0123456789") != std::string::npos)
      return 0;
    return std::stoll(s);
  };
  const int64_t first = dots == std::string::npos ? 0 : number(text.substr(0, dots)),
                last = dots == std::string::npos ? 0 : number(text.substr(dots + 2));
  if (first < 1 || last < first || last > 4096)
    fail(ErrorCode::usage, "--scale as FROM..TO, ranks from 1 to 4096", fmt::format("\"{}\"", text),
         "--scale 1..64");
  std::vector<int64_t> list = {first, last};
  for (int64_t r = 1; r < last; r *= 2)
    if (r > first) list.push_back(r);
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

void settle_scale(Scale& scale) {
  const ScaledPlan& first = scale.plans.front();
  const double one = first.plan.tokens_per_second() / static_cast<double>(first.ranks);
  for (ScaledPlan& p : scale.plans) {
    scale.cost = p.plan.cost;
    if (one > 0) p.efficiency = p.plan.tokens_per_second() / static_cast<double>(p.ranks) / one;
  }
}

std::string scale_text(const Scale& scale) {
  std::string out =
      fmt::format("{:>6} {:>5} {:>12} {:>14} {:>12} {:>12} {:>14} {:>11}\n", "ranks", "zero",
                  "memory each", "read each", "collectives", "step", "tokens/s", "efficiency");
  for (const ScaledPlan& s : scale.plans) {
    const Plan& p = s.plan;
    if (!p.fits) {
      out += fmt::format("{:>6} {:>5} {:>12}\n", s.ranks, p.decisions.zero, "does not fit");
      continue;
    }
    out += fmt::format("{:>6} {:>5} {:>12} {:>14} {:>12} {:>12} {:>14.0f} {:>9.1f} %\n", s.ranks,
                       p.decisions.zero, human_bytes(p.engine_bytes + p.runtime_bytes),
                       human_bytes(p.collective_bytes), milliseconds(p.collective_seconds),
                       milliseconds(p.step_seconds), p.tokens_per_second(), 100 * s.efficiency);
  }
  return out + fmt::format(
                   "Every rank has the same share of a step: the global batch grows with "
                   "them. Nothing overlaps.\n{}\n",
                   scale.cost);
}

nlohmann::json scale_json(const Scale& scale) {
  nlohmann::json list = nlohmann::json::array();
  for (const ScaledPlan& s : scale.plans)
    list.push_back({{"ranks", s.ranks},
                    {"zero", s.plan.decisions.zero},
                    {"fits", s.plan.fits},
                    {"global_batch_size", s.plan.global_batch},
                    {"engine_bytes", s.plan.engine_bytes},
                    {"runtime_bytes", s.plan.runtime_bytes},
                    {"collective_bytes", s.plan.collective_bytes},
                    {"collective_seconds", s.plan.collective_seconds},
                    {"step_seconds", s.plan.step_seconds},
                    {"predicted_tokens_per_second", s.plan.tokens_per_second()},
                    {"efficiency", s.efficiency}});
  return {{"cost", scale.cost}, {"plans", list}};
}

std::string scale_svg(const Scale& scale) {
  constexpr double kWidth = 720, kHeight = 360, kLeft = 90, kRight = 690, kTop = 40, kBottom = 310;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\">\n{2}\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      kWidth, kHeight, kScaleMark);
  std::vector<const ScaledPlan*> plans;
  for (const ScaledPlan& s : scale.plans)
    if (s.plan.fits && s.plan.tokens_per_second() > 0) plans.push_back(&s);
  if (plans.empty())
    return out +
           fmt::format("<text x=\"{}\" y=\"{}\">None of them fits.</text>\n</svg>\n", kLeft, kTop);
  const auto log_of = [](double v) { return std::log2(v); };
  const double one =
      plans.front()->plan.tokens_per_second() / static_cast<double>(plans.front()->ranks);
  const double left = log_of(static_cast<double>(plans.front()->ranks)),
               right = std::max(left + 1, log_of(static_cast<double>(plans.back()->ranks)));
  const auto x = [&](double ranks) {
    return kLeft + (kRight - kLeft) * (log_of(ranks) - left) / (right - left);
  };
  // As many doublings upwards as to the right.
  const auto y = [&](double rate) {
    return kBottom - (kBottom - kTop) * (log_of(rate / one) - left) / (right - left);
  };
  std::string path, ideal;
  for (const ScaledPlan* s : plans) {
    const auto ranks = static_cast<double>(s->ranks);
    const char* const move = path.empty() ? "M" : "L";
    path += fmt::format("{}{:.1f} {:.1f}", move, x(ranks), y(s->plan.tokens_per_second()));
    ideal += fmt::format("{}{:.1f} {:.1f}", move, x(ranks), y(one * ranks));
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#eee\"/>\n"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n"
        "<text x=\"{5}\" y=\"{6:.1f}\" text-anchor=\"end\">{7:.3g}</text>\n",
        x(ranks), kTop, kBottom, kBottom + 18, s->ranks, kLeft - 6, y(one * ranks) + 4,
        one * ranks);
  }
  out += fmt::format(
      "<path d=\"{}\" fill=\"none\" stroke=\"#bbb\" stroke-dasharray=\"4 3\"/>\n"
      "<path d=\"{}\" fill=\"none\" stroke=\"#1f5fa8\" stroke-width=\"2\"/>\n",
      ideal, path);
  for (const ScaledPlan* s : plans)
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"#1f5fa8\"><title>{} ranks, zero {}: "
        "{:.0f} tokens/s, {:.1f} % of as many alone</title></circle>\n",
        x(static_cast<double>(s->ranks)), y(s->plan.tokens_per_second()), s->ranks,
        s->plan.decisions.zero, s->plan.tokens_per_second(), 100 * s->efficiency);
  return out + fmt::format(
                   "<text x=\"{}\" y=\"{}\">tokens/s, predicted, by ranks; dashed: without "
                   "traffic</text>\n</svg>\n",
                   kLeft, kTop - 16);
}

}  // namespace snug
