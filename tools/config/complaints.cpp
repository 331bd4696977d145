#include "tools/config/complaints.h"

#include <algorithm>
#include <cctype>

namespace snug {
namespace {

bool names(std::string_view text, std::string_view key) {
  const auto part = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  for (size_t i = text.find(key); i != std::string_view::npos; i = text.find(key, i + 1)) {
    const size_t end = i + key.size();
    if ((i == 0 || !part(text[i - 1])) && (end == text.size() || !part(text[end]))) return true;
  }
  return false;
}

}  // namespace

void Complaints::add(const Error& error) {
  const std::string_view text = error.what();
  const auto repeated = [&](const Error& other) { return other.what() == text; };
  const auto of_a_refused_key = [&](const std::string& key) { return names(text, key); };
  if (std::any_of(list_.begin(), list_.end(), repeated) ||
      std::any_of(distrusted_.begin(), distrusted_.end(), of_a_refused_key))
    return;
  list_.push_back(error);
}

void Complaints::raise() const {
  if (list_.empty()) return;
  const Error& first = list_.front();
  std::string advice = first.advice();
  for (size_t i = 1; i < list_.size(); ++i) advice += std::string("\n") + list_[i].what();
  fail(first.code(), first.expected(), first.found(), advice);
}

}  // namespace snug
