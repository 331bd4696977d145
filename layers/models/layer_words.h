// What a key says of every layer, as a value: `norms`, or "0-5: block, 6-11: none". Read once, where
// a configuration or a file is; from there on it is copied, compared and joined, never read again.
// What the words mean a model says (recompute.h): here they are words.
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace snug {

class LayerWords {
 public:
  // `none` of all layers.
  LayerWords();
  // Any text: what is no word of a model, or no layer of it, a model refuses.
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view> LayerWords(const Text& text)
      : LayerWords(read(text)) {}
  // Of each layer its own, none of which is of a map: neighbours that are alike are one run.
  static LayerWords of(std::span<const LayerWords> layers);

  // Layers in a row, and what is said of them.
  struct Run {
    int64_t first = 0, last = -1;         // of a map; -1: all layers, or `layers` is no range
    std::string_view layers;              // as written; empty: all
    std::string_view entry;               // the run as written
    std::vector<std::string_view> words;  // what is joined by +
    bool map = false;
  };
  std::span<const Run> runs() const { return data_->runs; }
  const std::string& text() const { return data_->text; }  // as it was written
  bool none() const { return text() == "none"; }
  bool open() const { return text() == "auto"; }  // left to the planner
  // The text, or of many runs what they say: "by layer (act, none in 7 groups)".
  std::string brief() const;

  friend bool operator==(const LayerWords& a, const LayerWords& b) {
    return a.data_ == b.data_ || a.text() == b.text();
  }
  friend std::strong_ordering operator<=>(const LayerWords& a, const LayerWords& b) {
    return a.data_ == b.data_ ? std::strong_ordering::equal : a.text() <=> b.text();
  }
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view>
  friend bool operator==(const LayerWords& a, const Text& b) {
    return a.text() == std::string_view(b);
  }

 private:
  struct Data {  // never changed: copies share it
    std::string text;
    std::vector<Run> runs;  // views of `text`
  };
  explicit LayerWords(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  static LayerWords read(std::string_view text);

  std::shared_ptr<const Data> data_;
};

}  // namespace snug
