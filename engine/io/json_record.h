// The one string of a JSON record that is wanted, found without building the others: a tree of
// values takes twenty times the text of some records, this takes eight bytes a key.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/io/long_buffer.h"

namespace snug {

class JsonRecord {
 public:
  // Records of at most max_bytes; what is open at once may have key_bytes(max_bytes) / 8 keys.
  explicit JsonRecord(int64_t max_bytes) : keys_(key_bytes(max_bytes)) {}
  // An eighth, and as many as any short record has.
  static constexpr int64_t key_bytes(int64_t max_bytes) {
    return max_bytes / 64 * 8 + (int64_t{256} << 10);
  }

  // The string under `key` of the object `bytes[0, size)`, which must be well-formed UTF-8; it is
  // unescaped in place and lies there. Nothing if parse_json (json.h) would refuse the text, if it
  // is no object with a string there, or if it has too many keys; `bytes` are then as they were,
  // and bad() is how many of them were read until that was known.
  std::optional<std::string_view> find(char* bytes, int64_t size, std::string_view key);
  int64_t bad() const { return at_ - begin_; }

 private:
  bool value();  // one of any kind, with all that is in it
  bool string(std::string_view* raw);
  bool number();
  bool word(std::string_view text);
  bool escape();
  void skip_space();
  bool take(char c);
  bool add_key(std::string_view raw);
  bool keys_differ(int64_t first);

  const char *begin_ = nullptr, *at_ = nullptr, *end_ = nullptr;
  LongBuffer keys_;  // hashes of the keys of all objects that are open
};

}  // namespace snug
