#include "tools/codes/codes_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/core/units.h"
#include "tools/report/markup.h"
#include "tools/report/pictures.h"

namespace snug {
namespace {

constexpr int kHeight = 150;
constexpr size_t kPictures = 40;  // of tensors: the page stays under 2 MB

int64_t most_of(const std::vector<int64_t>& counts) {
  return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t extent : shape) out += fmt::format("{}{}", out.empty() ? "" : " x ", extent);
  return out.empty() ? "scalar" : out;
}

std::string picture(const CodedFile& file, const CodedTensor& t) {
  const auto x = [&](double place) { return (place - file.low) / (1 - file.low); };
  Plot plot(kHeight, fmt::format("Values and codes of {}: {} codes over {} elements.", t.name,
                                 t.entries.size(), t.elements));
  for (int k = 0; k <= 4; ++k) {
    const double at = file.low + (1 - file.low) * k / 4;
    plot.x_tick(x(at), coordinate(at));
  }
  plot.x_title(file.low < 0 ? "value over the largest magnitude of its block"
                            : "value on the way from the least to the largest of its block");
  const auto most = static_cast<double>(std::max<int64_t>(1, most_of(t.values)));
  std::string path = fmt::format("M0 {}", kHeight);
  for (size_t b = 0; b < t.values.size(); ++b)
    path +=
        fmt::format("V{}H{}", coordinate(kHeight * (1 - static_cast<double>(t.values[b]) / most)),
                    coordinate(Plot::kWidth * static_cast<double>(b + 1) / kCodeBins));
  plot.shape(fmt::format("<path class=\"c1\" fill-opacity=\".45\" d=\"{}V{}Z\"/>", path, kHeight));
  const auto most_used = static_cast<double>(std::max<int64_t>(1, most_of(t.used)));
  for (size_t k = 0; k < t.entries.size(); ++k) {
    const double share = static_cast<double>(t.used[k]) / most_used;
    plot.shape(fmt::format("<path class=\"curve s1\" d=\"M{0} {1}V{2}\"/>",
                           coordinate(Plot::kWidth * x(t.entries[k])), kHeight,
                           coordinate(kHeight * (1 - share) - (share > 0 ? 0 : 2))));
  }
  return fmt::format(
             "<figure class=\"chart\"><figcaption>{}<span class=\"key\">{}; relative error "
             "{:.4g}</span></figcaption>\n",
             escape_html(t.name), shape_text(t.shape), t.relative_error()) +
         plot.html() + "</figure>\n";
}

std::string row(const CodedTensor& t, const char* css) {
  return fmt::format(
      "<tr{}><td>{}</td><td>{}</td><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td>"
      "<td class=\"num\">{:.3f}</td><td class=\"num\">{:.4g}</td><td class=\"num\">{:.4g}</td>"
      "<td class=\"num\">{:.4g}</td><td class=\"num\">{:.4g}</td></tr>\n",
      css, escape_html(t.name), t.dtype, t.name == "all" ? "" : shape_text(t.shape),
      data_bytes(t.bytes), data_bytes(t.coded_bytes),
      8.0 * static_cast<double>(t.coded_bytes) /
          static_cast<double>(std::max<int64_t>(1, t.elements)),
      t.max_error, t.mean_error, t.rms_error, t.relative_error());
}

}  // namespace

CodedTensor all_tensors(const CodedFile& file) {
  CodedTensor all;
  all.name = "all";
  all.values.assign(kCodeBins, 0);
  double squares = 0, values = 0, magnitudes = 0;
  bool alike = true;
  for (const CodedTensor& t : file.tensors) {
    const auto n = static_cast<double>(t.elements);
    all.elements += t.elements;
    all.bytes += t.bytes;
    all.coded_bytes += t.coded_bytes;
    all.max_error = std::max(all.max_error, t.max_error);
    magnitudes += t.mean_error * n;
    squares += t.rms_error * t.rms_error * n;
    values += t.rms * t.rms * n;
    for (size_t b = 0; b < all.values.size(); ++b) all.values[b] += t.values[b];
    if (all.entries.empty()) {
      all.entries = t.entries;
      all.used.assign(t.entries.size(), 0);
    }
    alike = alike && all.entries == t.entries;
    if (alike)
      for (size_t k = 0; k < t.used.size(); ++k) all.used[k] += t.used[k];
  }
  if (!alike) {
    all.entries.clear();
    all.used.clear();
  }
  const auto n = static_cast<double>(std::max<int64_t>(1, all.elements));
  all.mean_error = magnitudes / n;
  all.rms_error = std::sqrt(squares / n);
  all.rms = std::sqrt(values / n);
  return all;
}

std::string codes_html(const CodedFile& file) {
  const std::string title =
      escape_html(fmt::format("{} as {}", file.path.substr(file.path.rfind('/') + 1), file.codec));
  const CodedTensor all = all_tensors(file);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"generator\" content=\"Snug\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'\"/>\n";
  out +=
      fmt::format("<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n",
                  title, page_style());
  out += fmt::format(
      "<p class=\"lead\">{} tensors, {} elements in blocks of {}{}: {} become {}, {:.3f} bits an "
      "element; relative error {:.4g}.</p>\n",
      file.tensors.size(), grouped(all.elements), file.block,
      file.doubled ? ", their scales coded too" : "", human_bytes(all.bytes),
      human_bytes(all.coded_bytes),
      8.0 * static_cast<double>(all.coded_bytes) /
          static_cast<double>(std::max<int64_t>(1, all.elements)),
      all.relative_error());
  out +=
      "<h2>Codes over the values</h2>\n<p class=\"sub\">The area is how many values lie at a place "
      "of their block; a line is a code, as high as the elements that have it. Both are drawn to "
      "their own highest.</p>\n";
  if (file.tensors.size() > 1) out += picture(file, all);
  std::vector<size_t> order(file.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (order.size() > kPictures) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return file.tensors[a].elements > file.tensors[b].elements;
    });
    order.resize(kPictures);
    std::sort(order.begin(), order.end());
    out += fmt::format("<p class=\"note\">The {} largest of {} tensors.</p>\n", kPictures,
                       file.tensors.size());
  }
  for (const size_t i : order) out += picture(file, file.tensors[i]);
  out +=
      "<h2>Sizes and errors</h2>\n<div "
      "class=\"scroll\"><table><caption>Tensors</caption><thead><tr>"
      "<th scope=\"col\">tensor</th><th scope=\"col\">dtype</th><th scope=\"col\">shape</th>";
  for (const char* head : {"bytes", "coded bytes", "bits an element", "largest error", "mean error",
                           "rms error", "relative error"})
    out += fmt::format("<th scope=\"col\" class=\"num\">{}</th>", head);
  out += "</tr></thead><tbody>\n";
  for (const CodedTensor& t : file.tensors) out += row(t, "");
  out += row(all, " class=\"sum\"");
  return out + "</tbody></table></div>\n</main>\n</body>\n</html>\n";
}

std::string codes_text(const CodedFile& file, bool blocks) {
  constexpr size_t kLines = 32;
  constexpr int kBar = 56;
  const CodedTensor all = all_tensors(file);
  if (all.entries.empty()) return "";
  const size_t each = (all.entries.size() + kLines - 1) / kLines;
  std::vector<int64_t> lines;
  for (size_t k = 0; k < all.entries.size(); k += each)
    lines.push_back(std::accumulate(
        all.used.begin() + static_cast<int64_t>(k),
        all.used.begin() + static_cast<int64_t>(std::min(k + each, all.used.size())), int64_t{0}));
  const auto most = static_cast<double>(std::max<int64_t>(1, most_of(lines)));
  std::string out = each == 1 ? "code at   share of elements\n"
                              : fmt::format("from      share of elements, {} codes a line\n", each);
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto count = static_cast<double>(lines[i]);
    out += fmt::format("{:>8.4f}  {:>5.1f} %", all.entries[i * each],
                       100 * count / static_cast<double>(std::max<int64_t>(1, all.elements)));
    const int bar = static_cast<int>(std::lround(kBar * count / most));
    if (bar > 0) out += "  ";
    for (int k = 0; k < bar; ++k) out += blocks ? "\u2588" : "#";
    out += "\n";
  }
  return out;
}

}  // namespace snug
