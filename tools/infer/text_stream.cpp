#include "tools/infer/text_stream.h"

#include <algorithm>

#include "engine/text/unicode.h"

namespace snug {

size_t find_stop(std::string_view text, const std::vector<std::string>& stops) {
  size_t begin = std::string_view::npos, end = std::string_view::npos;
  for (const std::string& stop : stops) {
    const size_t at = text.find(stop);
    if (at == std::string_view::npos) continue;
    const size_t after = at + stop.size();
    if (after > end || (after == end && at >= begin)) continue;
    begin = at;
    end = after;
  }
  return begin;
}

std::string TextStream::add(std::string_view bytes) {
  if (stopped_) return {};
  held_.append(bytes);
  if (const size_t at = find_stop(held_, stops_); at != std::string::npos) {
    stopped_ = true;
    held_.resize(at);
    std::string shown = sanitize_utf8(held_);
    held_.clear();
    return shown;
  }
  // The longest end of the text that begins a stop string stays, and half a character.
  size_t keep = 0;
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n)
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) keep = n;
  const size_t whole = utf8_complete_prefix(std::string_view(held_).substr(0, held_.size() - keep));
  std::string shown = sanitize_utf8(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  return shown;
}

std::string TextStream::rest() {
  std::string shown = sanitize_utf8(held_);
  held_.clear();
  return shown;
}

}  // namespace snug
