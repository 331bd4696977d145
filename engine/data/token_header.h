// The numbers of the layouts that token_file.h describes, for its reader and its writer.
#pragma once

#include <cstdint>

namespace snug::token_header {

constexpr int64_t kBytes = 1024;
constexpr int32_t kMagic16 = 20240520, kVersion16 = 1, kMagic32 = 20240801, kVersion32 = 7;
constexpr int32_t kCountIsBelow = -1;  // more tokens than an int32 can say
constexpr char kMark[] = "SNUG";
constexpr int32_t kFactsVersion = 1;
constexpr int64_t kFactsAt = 24;

struct Facts {
  uint64_t tokenizer = 0;
  int64_t tokens = 0, documents = 0, vocab_size = 0;
  uint64_t digest = 0;
};
static_assert(sizeof(Facts) == 40, "five numbers of 64 bits without gaps");

constexpr char kIndexMark[] = "SNUGDOCS";
constexpr int64_t kIndexVersion = 1, kIndexBytes = 32;

constexpr const char* kSide = ".json";
constexpr const char* kIndex = ".idx";
constexpr const char* kMakeAgain = "make the token file again from its text";

}  // namespace snug::token_header
