// Puts special tokens around ids: [CLS] A [SEP] and the like. Equal to what Hugging Face
// `tokenizers` does with add_special_tokens=True.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace snug {

struct TokenSequence {
  std::vector<int32_t> ids;
  std::vector<int32_t> type_ids;  // token_type_ids: which text an id belongs to
};

class PostProcessor {
 public:
  // A special token's ids, or the ids of text A or B.
  struct Part {
    enum class Kind { special, first, second } kind = Kind::special;
    std::vector<int32_t> ids = {};
    int32_t type_id = 0;
  };
  // Without rules the ids are returned as they are, the second text after the first.
  PostProcessor() = default;
  PostProcessor(std::vector<Part> single, std::vector<Part> pair)
      : single_(std::move(single)), pair_(std::move(pair)), set_(true) {}

  TokenSequence single(std::span<const int32_t> a) const;
  TokenSequence pair(std::span<const int32_t> a, std::span<const int32_t> b) const;
  bool empty() const { return !set_; }

 private:
  std::vector<Part> single_, pair_;
  bool set_ = false;
};

}  // namespace snug
