#include "engine/text/decoder.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/text_bound.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

[[noreturn]] void fail_long(size_t max_bytes) {
  fail(ErrorCode::data,
       "tokens that the decoder keeps below " + human_bytes(static_cast<int64_t>(max_bytes)),
       "more than that", "decode fewer at a time, or correct the decoder of the tokenizer");
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        size_t room, size_t max_bytes) {
  std::string out;
  size_t done = 0;
  for (size_t at = 0; !from.empty() && (at = text.find(from, done)) != text.npos;) {
    out += text.substr(done, at - done);
    out += to;
    done = at + from.size();
    if (out.size() > room) fail_long(max_bytes);
  }
  out += text.substr(done);
  return out;
}

std::string clean_up(std::string text) {
  constexpr std::pair<const char*, const char*> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules)
    text = replace_all(text, from, to, text.size(), text.size());
  return text;
}

std::string strip(std::string_view text, std::string_view c, int64_t start, int64_t stop) {
  for (; start > 0 && !c.empty() && text.starts_with(c); --start) text.remove_prefix(c.size());
  for (; stop > 0 && !c.empty() && text.ends_with(c); --stop) text.remove_suffix(c.size());
  return std::string(text);
}

void byte_fallback(std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (is_valid_utf8(bytes)) {
      out.push_back(bytes);
    } else {
      out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    const int byte = byte_of_token(token);
    if (byte >= 0) {
      bytes += static_cast<char>(byte);
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  tokens = std::move(out);
}

std::string joined(const std::vector<std::string>& tokens) {
  std::string out;
  for (const std::string& token : tokens) out += token;
  return out;
}

}  // namespace

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

void Decoder::add(Step step) {
  if (steps_.size() >= kMaxSteps) {
    fail(ErrorCode::unsupported, "at most " + std::to_string(kMaxSteps) + " decoder steps",
         "more of them in one Sequence", "join them into fewer steps");
  }
  steps_.push_back(std::move(step));
}

void Decoder::add_byte_level() {
  add({.kind = Kind::byte_level});
}
void Decoder::add_word_piece(std::string_view prefix, bool cleanup) {
  add({.kind = Kind::word_piece, .text = std::string(prefix), .flag = cleanup});
}
void Decoder::add_metaspace(std::string_view replacement, bool drop_first) {
  add({.kind = Kind::metaspace, .text = std::string(replacement), .flag = drop_first});
}
void Decoder::add_byte_fallback() {
  add({.kind = Kind::byte_fallback});
}
void Decoder::add_fuse() {
  add({.kind = Kind::fuse});
}
void Decoder::add_strip(std::string_view character, int64_t start, int64_t stop) {
  add({.kind = Kind::strip, .text = std::string(character), .start = start, .stop = stop});
}
void Decoder::add_replace(std::string_view literal, std::string_view content) {
  add({.kind = Kind::replace, .text = std::string(literal), .content = std::string(content)});
}
void Decoder::add_replace_pattern(std::string_view pattern, std::string_view content,
                                  std::string_view where) {
  add({.kind = Kind::pattern,
       .content = std::string(content),
       .regex = std::make_shared<const Regex>(pattern, where)});
}
void Decoder::add_bpe(std::string_view suffix) {
  add({.kind = Kind::bpe, .text = std::string(suffix)});
}

bool Decoder::bytes_only() const {
  return std::all_of(steps_.begin(), steps_.end(), [](const Step& s) {
    return s.kind == Kind::byte_level || s.kind == Kind::fuse;
  });
}

void Decoder::run(const Step& step, std::vector<std::string>& tokens, size_t max_bytes) {
  // The replacements, which may make much of little, on all tokens: f(token, number, room).
  const auto replace_each = [&](auto&& f) {
    size_t room = max_bytes;
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = f(tokens[i], i, room);
      if (tokens[i].size() > room) fail_long(max_bytes);
      room -= tokens[i].size();
    }
  };
  switch (step.kind) {
    case Kind::byte_level: {
      std::string bytes;
      for (const std::string& token : tokens) bytes += alphabet_to_bytes(token).value_or(token);
      tokens = {sanitize_utf8(bytes)};
      return;
    }
    case Kind::word_piece:
      for (size_t i = 0; i < tokens.size(); ++i) {
        std::string& token = tokens[i];
        if (i > 0) {
          const bool part = token.starts_with(step.text);
          token = part ? token.substr(step.text.size()) : " " + token;
        }
        if (step.flag) token = clean_up(std::move(token));
      }
      return;
    case Kind::metaspace:
      return replace_each([&](std::string_view token, size_t i, size_t room) {
        return replace_all(token, step.text, i == 0 && step.flag ? "" : " ", room, max_bytes);
      });
    case Kind::byte_fallback:
      return byte_fallback(tokens);
    case Kind::fuse:
      tokens = {joined(tokens)};
      return;
    case Kind::strip:
      for (std::string& token : tokens) token = strip(token, step.text, step.start, step.stop);
      return;
    case Kind::replace:
      return replace_each([&](std::string_view token, size_t, size_t room) {
        return replace_all(token, step.text, step.content, room, max_bytes);
      });
    case Kind::pattern: {
      RegexScratch scratch;
      return replace_each([&](std::string_view token, size_t, size_t room) {
        std::string out;
        if (!step.regex->replace_all(token, step.content, scratch, room, out)) fail_long(max_bytes);
        return out;
      });
    }
    case Kind::bpe:
      return replace_each([&](std::string_view token, size_t i, size_t room) {
        return replace_all(token, step.text, i + 1 == tokens.size() ? "" : " ", room, max_bytes);
      });
  }
  require(false, "an unknown decoder step");
}

std::string Decoder::apply(std::vector<std::string> tokens) const {
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size() + 1;
  return apply(std::move(tokens), text_bound(bytes));
}

std::string Decoder::apply(std::vector<std::string> tokens, size_t max_bytes) const {
  if (steps_.empty()) {
    std::string out;
    for (size_t i = 0; i < tokens.size(); ++i) {
      out += (i > 0 ? " " : "") + tokens[i];
      if (out.size() > max_bytes) fail_long(max_bytes);
    }
    return out;
  }
  for (const Step& step : steps_) {
    run(step, tokens, max_bytes);
    size_t bytes = 0;
    for (const std::string& token : tokens) bytes += token.size();
    if (bytes > max_bytes) fail_long(max_bytes);
  }
  return joined(tokens);
}

}  // namespace snug
