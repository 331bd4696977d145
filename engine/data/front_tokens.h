// Virtual tokens that every sequence begins with, of which a model has rows of its own (prompt tuning): ids from
// the size of the vocabulary on.
#pragma once

#include <cstdint>
#include <numeric>

namespace snug {

struct FrontTokens {
  int64_t count = 0;
  int64_t first = 0;  // id of the first
  bool asked = true;  // the last of them for the first token behind them
  // Writes them to the beginning of a sequence; gives where its own tokens begin.
  int32_t* write(int32_t* tokens) const {
    std::iota(tokens, tokens + count, static_cast<int32_t>(first));
    return tokens + count;
  }
};

}  // namespace snug
