// Complaints about one configuration, which are all said at once.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/error.h"

namespace snug {

class Complaints {
 public:
  // Does `what` and keeps what it refuses; what is no refusal of a user's input goes on.
  template <class F>
  void of(F&& what) {
    try {
      what();
    } catch (const Error& error) {
      if (error.exit_code() != 2) throw;
      add(error);
    }
  }
  void add(ErrorCode code, std::string expected, std::string found, std::string advice) {
    add(Error(code, std::move(expected), std::move(found), std::move(advice)));
  }
  // A key whose value was refused: what others are said to ask of it says nothing more.
  void distrust(std::string_view key) { distrusted_.emplace_back(key); }
  bool empty() const { return list_.empty(); }
  // Throws the complaint, or the first one with all others behind it, each in its three parts.
  void raise() const;

 private:
  void add(const Error& error);

  std::vector<Error> list_;
  std::vector<std::string> distrusted_;
};

}  // namespace snug
