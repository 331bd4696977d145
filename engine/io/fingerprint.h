// 64-bit fingerprints of bytes and files: XXH64 of the xxHash specification with seed 0. They tell
// contents apart (which tokenizer made these tokens); they resist accidents, not attackers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace snug {

// Streaming form: the digest depends on the bytes alone, not on how add() cut them.
class Fingerprint {
 public:
  void add(const void* data, int64_t bytes);
  void add(std::string_view text) { add(text.data(), static_cast<int64_t>(text.size())); }
  uint64_t digest() const;

 private:
  void stripe(const uint8_t* p);

  uint64_t lanes_[4] = {0x60ea27eeadc0b5d6u, 0xc2b2ae3d27d4eb4fu, 0, 0x61c8864e7a143579u};
  uint8_t held_[32] = {};
  uint64_t total_ = 0;
};

uint64_t fingerprint(std::string_view bytes);
uint64_t fingerprint_file(const std::string& path);  // throws data if it cannot be read
std::string fingerprint_text(uint64_t digest);       // 16 lower-case hex digits

}  // namespace snug
