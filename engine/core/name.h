// Interned names: a Name is one pointer, so views stay trivially copyable and comparing two names
// is comparing two pointers. Interning allocates, so names are made when a model is built, never on
// the step path.
#pragma once

#include <string>
#include <string_view>

namespace snug {

class Name {
 public:
  Name() = default;
  explicit Name(std::string_view text);  // interns; thread-safe
  const char* c_str() const { return text_ ? text_->c_str() : ""; }
  std::string_view view() const { return text_ ? std::string_view(*text_) : std::string_view(); }
  std::string str() const { return std::string(view()); }
  bool empty() const { return text_ == nullptr || text_->empty(); }
  friend bool operator==(Name a, Name b) { return a.text_ == b.text_; }

 private:
  const std::string* text_ = nullptr;
};

// "parent.child"; either may be empty.
Name join(Name parent, std::string_view child);

}  // namespace snug
