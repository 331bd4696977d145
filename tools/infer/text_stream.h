// Text that appears as it is made: whole characters only, and nothing that may turn out to be the
// beginning of a stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

class TextStream {
 public:
  // `stops` are not empty and well-formed UTF-8.
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Adds the bytes of a token; returns what can be shown now, ill-formed bytes as U+FFFD. The text
  // ends before the stop string that is complete first, of those the longest; what the bytes hold
  // after it is gone.
  std::string add(std::string_view bytes);
  // What was held back, at the end of the text. Nothing after a stop string.
  std::string rest();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

// Where the text ends for the first stop string in it; npos: nowhere.
size_t find_stop(std::string_view text, const std::vector<std::string>& stops);

}  // namespace snug
