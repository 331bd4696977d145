#include "layers/models/layer_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

namespace snug {
namespace {

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '{')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '}')) s.remove_suffix(1);
  return s;
}

// Calls f with every piece of `s` between separators.
template <class F>
void split(std::string_view s, char separator, F&& f) {
  while (true) {
    const size_t at = s.find(separator);
    f(trim(s.substr(0, at)));
    if (at == std::string_view::npos) return;
    s.remove_prefix(at + 1);
  }
}

int64_t number(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

std::vector<std::string_view> joined(std::string_view text) {
  std::vector<std::string_view> words;
  split(text, '+', [&](std::string_view word) { words.push_back(word); });
  return words;
}

}  // namespace

LayerWords::LayerWords() {
  static const LayerWords none = read("none");
  data_ = none.data_;
}

LayerWords LayerWords::read(std::string_view text) {
  auto data = std::make_shared<Data>();
  data->text = text;
  const std::string_view all = trim(data->text);
  if (all.find(':') == std::string_view::npos) {
    Run& run = data->runs.emplace_back();
    run.entry = all;
    run.words = joined(all);
    return LayerWords(std::move(data));
  }
  split(all, ',', [&](std::string_view entry) {
    Run run;
    run.entry = entry;
    run.map = true;
    const size_t colon = entry.find(':');
    if (colon != std::string_view::npos) {
      run.layers = trim(entry.substr(0, colon));
      const size_t dash = run.layers.find('-');
      run.first = number(trim(run.layers.substr(0, dash)));
      run.last =
          dash == std::string_view::npos ? run.first : number(trim(run.layers.substr(dash + 1)));
      run.words = joined(trim(entry.substr(colon + 1)));
    }
    data->runs.push_back(std::move(run));
  });
  return LayerWords(std::move(data));
}

LayerWords LayerWords::of(std::span<const LayerWords> layers) {
  struct Piece {  // of the text
    size_t entry = 0, layers_end = 0, words = 0, end = 0;
    int64_t first = 0, last = 0;
  };
  auto data = std::make_shared<Data>();
  std::vector<Piece> pieces;
  for (size_t first = 0, end = 0; first < layers.size(); first = end) {
    while (end < layers.size() && layers[end] == layers[first]) ++end;
    if (first == 0 && end == layers.size()) return layers[0];
    std::string& text = data->text;
    if (!text.empty()) text += ", ";
    Piece piece{.entry = text.size(),
                .first = static_cast<int64_t>(first),
                .last = static_cast<int64_t>(end) - 1};
    text += std::to_string(first);
    if (end - first > 1) text += fmt::format("-{}", end - 1);
    piece.layers_end = text.size();
    text += ": ";
    piece.words = text.size();
    text += layers[first].text();
    piece.end = text.size();
    pieces.push_back(piece);
  }
  if (pieces.empty()) return {};
  const std::string_view text = data->text;
  for (const Piece& p : pieces)
    data->runs.push_back({.first = p.first,
                          .last = p.last,
                          .layers = text.substr(p.entry, p.layers_end - p.entry),
                          .entry = text.substr(p.entry, p.end - p.entry),
                          .words = joined(text.substr(p.words, p.end - p.words)),
                          .map = true});
  return LayerWords(std::move(data));
}

std::string LayerWords::brief() const {
  constexpr size_t kMost = 4;
  if (runs().size() <= kMost) return text();
  std::set<std::string_view> ways;
  for (const Run& run : runs()) {
    const size_t colon = run.entry.find(':');
    if (colon != std::string_view::npos) ways.insert(trim(run.entry.substr(colon + 1)));
  }
  return fmt::format("by layer ({} in {} groups)", fmt::join(ways, ", "), runs().size());
}

}  // namespace snug
