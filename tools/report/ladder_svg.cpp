#include "tools/report/ladder_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/core/units.h"
#include "tools/report/markup.h"

namespace snug {

std::string ladder_svg(const Ladder& ladder) {
  constexpr double kWidth = 720, kHeight = 360, kLeft = 70, kRight = 700, kTop = 40, kBottom = 310;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<title>Predicted tokens/s by memory budget</title>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      kWidth, kHeight);
  std::vector<const LadderRung*> rungs;
  double most = 0;
  for (const LadderRung& r : ladder.rungs)
    if (r.fits && r.tokens_per_second > 0) {
      rungs.push_back(&r);
      most = std::max(most, r.tokens_per_second);
    }
  if (rungs.empty())
    return out + fmt::format(
                     "<text x=\"{}\" y=\"{}\">No budget of the list fits: {} is the "
                     "smallest that does{}.</text>\n</svg>\n",
                     kLeft, kTop, human_bytes(ladder.minimum_bytes), with_host_memory(ladder));
  // All that was asked: what does not fit at its left, and budgets with the plan of the last rung.
  const int64_t most_asked = std::max(ladder.most, ladder.rungs.back().budget);
  const double low =
      std::log(static_cast<double>(ladder.least > 0 ? ladder.least : ladder.rungs.front().budget));
  const double high = std::max(low + 0.1, std::log(static_cast<double>(most_asked)));
  const auto x = [&](int64_t budget) {
    return kLeft + (kRight - kLeft) * (std::log(static_cast<double>(budget)) - low) / (high - low);
  };
  const auto y = [&](double rate) { return kBottom - (kBottom - kTop) * rate / most; };
  for (int i = 0; i <= 4; ++i)
    out += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>\n"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.0f}</text>\n",
        kLeft, kRight, y(most * i / 4), kLeft - 6, y(most * i / 4) + 4, most * i / 4);
  std::string path = fmt::format("M{:.1f} {:.1f}", x(rungs.front()->budget), kBottom);
  for (const LadderRung* r : rungs)
    path += fmt::format("H{:.1f}V{:.1f}", x(r->budget), y(r->tokens_per_second));
  path += fmt::format("H{:.1f}", kRight);
  out +=
      fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"#1f5fa8\" stroke-width=\"2\"/>\n", path);
  for (const LadderRung* r : rungs)
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"#1f5fa8\"><title>{}: micro-batch {}, "
        "recompute {}, {:.0f} tokens/s</title></circle>\n",
        x(r->budget), y(r->tokens_per_second), human_bytes(r->budget), r->decisions.micro_batch,
        escape_html(r->decisions.recompute.text()), r->tokens_per_second);
  // The ends of what was asked first; then rungs, where they leave room.
  std::vector<int64_t> labels = {most_asked};
  if (ladder.least > 0) labels.push_back(ladder.least);
  for (const LadderRung& r : ladder.rungs)
    if (std::all_of(labels.begin(), labels.end(), [&](int64_t b) {
          return std::fabs(x(r.budget) - x(b)) >= (b == most_asked ? 115 : 75);
        }))
      labels.push_back(r.budget);
  for (const int64_t budget : labels)
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", x(budget),
                       kBottom + 18, budget == most_asked && labels.size() > 1 ? "end" : "middle",
                       human_bytes(budget));
  return out + fmt::format(
                   "<text x=\"{}\" y=\"{}\">tokens/s, predicted ({}), by memory budget</text>\n"
                   "</svg>\n",
                   kLeft, kTop - 16, escape_html(ladder.cost));
}

}  // namespace snug
