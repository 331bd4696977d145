#include "engine/io/json_record.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

namespace snug {
namespace {

constexpr size_t kDeepest = 512;  // as parse_json has it

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Of four digits that were checked, or -1.
int32_t hex4(const char* p) {
  int32_t code = 0;
  for (int i = 0; i < 4; ++i) {
    const int digit = hex_digit(p[i]);
    if (digit < 0) return -1;
    code = code * 16 + digit;
  }
  return code;
}

bool is_high(int32_t code) {
  return code >= 0xd800 && code < 0xdc00;
}
bool is_low(int32_t code) {
  return code >= 0xdc00 && code < 0xe000;
}

// The characters between the quotes of a string that was checked, each byte to `put`. It is never
// ahead of what it reads.
template <class Put>
void unescape(std::string_view raw, const Put& put) {
  for (size_t i = 0; i < raw.size();) {
    if (raw[i] != '\\') {
      put(raw[i++]);
      continue;
    }
    const char c = raw[i + 1];
    i += 2;
    if (c != 'u') {
      constexpr std::string_view kNames = "bfnrt", kBytes = "\b\f\n\r\t";
      const size_t named = kNames.find(c);
      put(named == kNames.npos ? c : kBytes[named]);
      continue;
    }
    auto code = static_cast<uint32_t>(hex4(raw.data() + i));
    i += 4;
    if (is_high(static_cast<int32_t>(code))) {
      code = 0x10000 + ((code - 0xd800) << 10) +
             (static_cast<uint32_t>(hex4(raw.data() + i + 2)) - 0xdc00);
      i += 6;
    }
    const auto tail = [&](int shift) { put(static_cast<char>(0x80 | (code >> shift & 0x3f))); };
    if (code < 0x80) {
      put(static_cast<char>(code));
    } else if (code < 0x800) {
      put(static_cast<char>(0xc0 | code >> 6));
      tail(0);
    } else if (code < 0x10000) {
      put(static_cast<char>(0xe0 | code >> 12));
      tail(6);
      tail(0);
    } else {
      put(static_cast<char>(0xf0 | code >> 18));
      tail(12);
      tail(6);
      tail(0);
    }
  }
}

bool same(std::string_view raw, std::string_view key) {
  size_t n = 0;
  bool equal = true;
  unescape(raw, [&](char c) {
    equal = equal && n < key.size() && key[n] == c;
    ++n;
  });
  return equal && n == key.size();
}

}  // namespace

void JsonRecord::skip_space() {
  while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
}

bool JsonRecord::take(char c) {
  if (at_ == end_ || *at_ != c) return false;
  ++at_;
  return true;
}

bool JsonRecord::word(std::string_view text) {
  if (std::string_view(at_, static_cast<size_t>(end_ - at_)).substr(0, text.size()) != text)
    return false;
  at_ += text.size();
  return true;
}

// Behind a backslash.
bool JsonRecord::escape() {
  if (at_ == end_) return false;
  const char c = *at_++;
  if (c != 'u') return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
  if (end_ - at_ < 4) return false;
  const int32_t code = hex4(at_);
  if (code < 0 || is_low(code)) return false;
  at_ += 4;
  if (!is_high(code)) return true;
  if (end_ - at_ < 6 || at_[0] != '\\' || at_[1] != 'u' || !is_low(hex4(at_ + 2))) return false;
  at_ += 6;
  return true;
}

bool JsonRecord::string(std::string_view* raw) {
  if (!take('"')) return false;
  const char* const first = at_;
  while (at_ < end_ && *at_ != '"') {
    if (static_cast<uint8_t>(*at_) < 0x20) return false;
    if (*at_++ == '\\' && !escape()) return false;
  }
  if (raw) *raw = {first, static_cast<size_t>(at_ - first)};
  return take('"');
}

bool JsonRecord::number() {
  const char* const first = at_;
  const auto digits = [&] {
    const char* const from = at_;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return at_ > from;
  };
  take('-');
  if (!take('0') && !digits()) return false;
  if (take('.') && !digits()) return false;
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    if (!digits()) return false;
  }
  // One that no double holds is refused there; others cannot be as large.
  constexpr std::ptrdiff_t kPlain = 100, kLongest = 4096;
  const std::string_view text(first, static_cast<size_t>(at_ - first));
  if (at_ - first <= kPlain && text.find_first_of("eE") == text.npos) return true;
  return at_ - first <= kLongest && std::isfinite(std::strtod(std::string(text).c_str(), nullptr));
}

bool JsonRecord::add_key(std::string_view raw) {
  uint64_t hash = 0x9e3779b97f4a7c15u;
  unescape(raw, [&](char c) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  });
  if (keys_.size() + 8 > keys_.capacity()) return false;
  char bytes[8];
  std::memcpy(bytes, &hash, 8);
  keys_.append({bytes, 8});
  return true;
}

// Of the keys of an object that ends; they are forgotten.
bool JsonRecord::keys_differ(int64_t first) {
  auto* const keys = reinterpret_cast<uint64_t*>(keys_.data());
  uint64_t *const from = keys + first / 8, *const to = keys + keys_.size() / 8;
  if (to - from > 1) std::sort(from, to);
  const bool differ = to - from < 2 || std::adjacent_find(from, to) == to;
  keys_.cut(first);
  return differ;
}

bool JsonRecord::value() {
  // Of every object that is open, where its keys begin; of an array -1.
  std::vector<int64_t> open;
  while (true) {
    // A value begins.
    skip_space();
    if (at_ == end_) return false;
    bool ended = true;
    if (*at_ == '{' || *at_ == '[') {
      // The record itself is the first level.
      if (open.size() + 1 >= kDeepest) return false;
      const bool object = *at_++ == '{';
      open.push_back(object ? keys_.size() : -1);
      skip_space();
      ended = take(object ? '}' : ']');
      if (ended) open.pop_back();
    } else if (*at_ == '"') {
      if (!string(nullptr)) return false;
    } else if (*at_ == 't' || *at_ == 'f' || *at_ == 'n') {
      if (!word("true") && !word("false") && !word("null")) return false;
    } else if (!number()) {
      return false;
    }
    // What follows a value: the end of what it is in, or a comma.
    while (ended && !open.empty()) {
      skip_space();
      if (take(',')) {
        ended = false;
        skip_space();
      } else if (take(open.back() < 0 ? ']' : '}')) {
        if (open.back() >= 0 && !keys_differ(open.back())) return false;
        open.pop_back();
      } else {
        return false;
      }
    }
    if (open.empty()) return true;
    if (open.back() >= 0) {
      std::string_view raw;
      if (!string(&raw) || !add_key(raw)) return false;
      skip_space();
      if (!take(':')) return false;
    }
  }
}

std::optional<std::string_view> JsonRecord::find(char* bytes, int64_t size, std::string_view key) {
  begin_ = at_ = bytes;
  end_ = bytes + size;
  keys_.cut(0);
  word("\xef\xbb\xbf");
  skip_space();
  if (!take('{')) return std::nullopt;
  skip_space();
  std::string_view text;
  bool found = false;
  if (!take('}')) {
    do {
      skip_space();
      std::string_view raw;
      if (!string(&raw) || !add_key(raw)) return std::nullopt;
      skip_space();
      if (!take(':')) return std::nullopt;
      skip_space();
      const bool wanted = at_ < end_ && *at_ == '"' && same(raw, key);
      if (wanted ? !string(&text) : !value()) return std::nullopt;
      found = found || wanted;
      skip_space();
    } while (take(','));
    if (!take('}') || !keys_differ(0)) return std::nullopt;
  }
  skip_space();
  if (at_ != end_ || !found) return std::nullopt;
  char* const first = bytes + (text.data() - bytes);
  char* out = first;
  const size_t plain = text.find('\\');
  if (plain == text.npos) return text;
  out += plain;
  unescape(text.substr(plain), [&](char c) { *out++ = c; });
  return std::string_view(first, static_cast<size_t>(out - first));
}

}  // namespace snug
