#include "engine/text/normalizer.h"

#include <utf8proc.h>

#include <cstring>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/text/text_bound.h"
#include "engine/text/unicode_table.h"

namespace snug {
namespace {

[[noreturn]] void fail_long(size_t max_bytes, size_t bytes) {
  fail(ErrorCode::data,
       "text that normalisation keeps below " + human_bytes(static_cast<int64_t>(max_bytes)),
       "more than that of " + std::to_string(bytes) + " bytes",
       "break the text up, or correct the normalizer of the tokenizer");
}

template <class F>
void for_each_char(std::string_view text, F&& f) {
  for (size_t position = 0; position < text.size();) {
    const Utf8Char c = decode_utf8(text, position);
    f(c.code, text.substr(position, c.length));
    position += c.length;
  }
}

void append_lower(std::string& out, char32_t code) {
  if (code == 0x130) {
    out += "i\xCC\x87";
  } else {
    append_utf8(out, lower_char(code));
  }
}

std::string drop(std::string_view text, uint16_t flag) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t code, std::string_view bytes) {
    if (code < 0x80 || !(char_kind(code) & flag)) out += bytes;
  });
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t code, std::string_view) { append_lower(out, code); });
  return out;
}

bool is_ideograph(char32_t c) {
  constexpr char32_t ranges[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                    {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                    {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  if (c < 0x3400) return false;
  for (const auto& [first, last] : ranges) {
    if (c >= first && c <= last) return true;
  }
  return false;
}

std::string bert(std::string_view text, const BertRules& rules) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t code, std::string_view bytes) {
    if (rules.clean_text) {
      if (is_white_space(code) && code != 0x0B && code != 0x0C && code != 0x85) {
        out += ' ';
        return;
      }
      if (char_kind(code) & kControl) return;
    }
    if (rules.handle_chinese_chars && is_ideograph(code)) {
      out += ' ';
      out += bytes;
      out += ' ';
    } else {
      out += bytes;
    }
  });
  if (rules.strip_accents) out = drop(normalize_utf8(out, NormalForm::nfd), kAccent);
  return rules.lowercase ? lowercase(out) : out;
}

// Sockeye's cleaning: control characters go, odd spaces become spaces.
std::string nmt(std::string_view text) {
  std::string out;
  for_each_char(text, [&](char32_t c, std::string_view bytes) {
    const bool gone = (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) ||
                      c == 0x7F || c == 0x8F || c == 0x9F;
    const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                       (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                       c == 0xFEFF || c == 0xFFFD;
    if (gone) return;
    if (space) {
      out += ' ';
    } else {
      out += bytes;
    }
  });
  return out;
}

std::string strip(std::string_view text, bool left, bool right) {
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    const Utf8Char c = decode_utf8(text, begin);
    if (!is_white_space(c.code)) break;
    begin += c.length;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
    if (!is_white_space(decode_utf8(text, last).code)) break;
    end = last;
  }
  return std::string(text.substr(begin, end - begin));
}

}  // namespace

CharsMap::CharsMap(std::string blob, std::string_view where) : blob_(std::move(blob)) {
  uint32_t bytes = 0;
  if (blob_.size() >= 4) std::memcpy(&bytes, blob_.data(), 4);
  if (blob_.size() < 8 || bytes < 4 || bytes % 4 != 0 || bytes > blob_.size() - 4) {
    fail(ErrorCode::data, "a precompiled_charsmap with a trie and its texts",
         std::string(where) + ": " + std::to_string(blob_.size()) + " bytes, a trie of " +
             std::to_string(bytes),
         "export the tokenizer again");
  }
  units_ = bytes / 4;
  texts_ = std::string_view(blob_).substr(4 + bytes);
  if (!is_valid_utf8(texts_)) {
    fail(ErrorCode::data, "a precompiled_charsmap whose texts are UTF-8",
         std::string(where) + ": bytes that are not", "export the tokenizer again");
  }
}

uint32_t CharsMap::unit(size_t index) const {
  uint32_t value = 0;
  if (index < units_) std::memcpy(&value, blob_.data() + 4 + index * 4, 4);
  return value;
}

// A unit of the double array (Darts-clone): bit 31 a leaf with its value, bits 0-7 and 31 the
// label, bit 8 "has a leaf", the offset in bits 10-30, shifted by 8 more if bit 9 is set.
std::optional<std::string_view> CharsMap::find(std::string_view text) const {
  const auto offset = [](uint32_t u) -> size_t { return (u >> 10) << ((u & (1u << 9)) >> 6); };
  size_t node = offset(unit(0));
  for (const char c : text) {
    if (c == '\0') break;
    node ^= static_cast<uint8_t>(c);
    const uint32_t u = unit(node);
    if ((u & 0x800000FFu) != static_cast<uint8_t>(c)) break;
    node ^= offset(u);
    if ((u >> 8) & 1) {
      const size_t at = unit(node) & 0x7FFFFFFFu;
      // Inside a character there is no text.
      if (at >= texts_.size() || (static_cast<uint8_t>(texts_[at]) & 0xC0) == 0x80) {
        return std::nullopt;
      }
      return texts_.substr(at, std::min(texts_.find('\0', at), texts_.size()) - at);
    }
  }
  return std::nullopt;
}

void CharsMap::apply(std::string_view text, std::string& out, size_t max_bytes) const {
  const auto cluster = [&](std::string_view bytes) {
    if (out.size() > max_bytes) return;
    if (bytes.size() < 6) {
      if (const auto found = find(bytes)) {
        out += *found;
        return;
      }
    }
    for_each_char(bytes, [&](char32_t, std::string_view c) {
      if (out.size() > max_bytes) return;
      const auto found = find(c);
      out += found ? *found : c;
    });
  };
  size_t begin = 0, position = 0;
  utf8proc_int32_t previous = -1, state = 0;
  for_each_char(text, [&](char32_t code, std::string_view bytes) {
    const auto now = static_cast<utf8proc_int32_t>(code);
    if (previous >= 0 && utf8proc_grapheme_break_stateful(previous, now, &state)) {
      cluster(text.substr(begin, position - begin));
      begin = position;
    }
    previous = now;
    position += bytes.size();
  });
  if (begin < text.size()) cluster(text.substr(begin));
}

void Normalizer::add(Step step, const std::string& canonical) {
  if (steps_.size() >= kMaxSteps) {
    fail(ErrorCode::unsupported, "at most " + std::to_string(kMaxSteps) + " normalizer steps",
         "more of them in one Sequence", "join them into fewer steps");
  }
  steps_.push_back(std::move(step));
  canonical_ += std::to_string(canonical.size()) + ":" + canonical;
}

void Normalizer::add_form(NormalForm form) {
  add({.kind = Kind::form, .form = form}, "form " + std::to_string(static_cast<int>(form)));
}
void Normalizer::add_lowercase() {
  add({.kind = Kind::lowercase}, "lowercase");
}
void Normalizer::add_strip_accents() {
  add({.kind = Kind::strip_accents}, "strip_accents");
}
void Normalizer::add_nmt() {
  add({.kind = Kind::nmt}, "nmt");
}
void Normalizer::add_strip(bool left, bool right) {
  add({.kind = Kind::strip, .left = left, .right = right},
      std::string("strip ") + (left ? "l" : "") + (right ? "r" : ""));
}
void Normalizer::add_bert(const BertRules& r) {
  add({.kind = Kind::bert, .bert = r},
      "bert " + std::to_string(r.clean_text + 2 * r.handle_chinese_chars + 4 * r.strip_accents +
                               8 * r.lowercase));
}
void Normalizer::add_prepend(std::string_view text) {
  add({.kind = Kind::prepend, .text = std::string(text)}, "prepend " + std::string(text));
}
void Normalizer::add_replace(std::string_view literal, std::string_view content) {
  add({.kind = Kind::replace, .text = std::string(literal), .content = std::string(content)},
      "replace " + std::to_string(literal.size()) + " " + std::string(literal) +
          std::string(content));
}
void Normalizer::add_replace_pattern(std::string_view pattern, std::string_view content,
                                     std::string_view where) {
  add({.kind = Kind::pattern,
       .content = std::string(content),
       .regex = std::make_shared<const Regex>(pattern, where)},
      "pattern " + std::to_string(pattern.size()) + " " + std::string(pattern) +
          std::string(content));
}
void Normalizer::add_precompiled(std::string blob, std::string_view where) {
  const std::string canonical = "precompiled " + blob;
  add({.kind = Kind::map, .map = std::make_shared<const CharsMap>(std::move(blob), where)},
      canonical);
}

std::string Normalizer::run(const Step& step, std::string_view text, RegexScratch& scratch,
                            size_t max_bytes) {
  std::string out;
  switch (step.kind) {
    case Kind::form:
      return normalize_utf8(text, step.form);
    case Kind::lowercase:
      return lowercase(text);
    case Kind::strip_accents:
      return drop(text, kMark);
    case Kind::nmt:
      return nmt(text);
    case Kind::strip:
      return strip(text, step.left, step.right);
    case Kind::bert:
      return bert(text, step.bert);
    case Kind::prepend:
      return text.empty() ? std::string() : step.text + std::string(text);
    case Kind::replace: {
      size_t done = 0;
      for (size_t at = 0; !step.text.empty() && (at = text.find(step.text, done)) != text.npos;) {
        out += text.substr(done, at - done);
        out += step.content;
        done = at + step.text.size();
        if (out.size() > max_bytes) fail_long(max_bytes, text.size());
      }
      out += text.substr(done);
      return out;
    }
    case Kind::pattern:
      if (!step.regex->replace_all(text, step.content, scratch, max_bytes, out))
        fail_long(max_bytes, text.size());
      return out;
    case Kind::map:
      step.map->apply(text, out, max_bytes);
      return out;
  }
  require(false, "an unknown normalizer step");
  return out;
}

std::string Normalizer::apply(std::string_view text, RegexScratch& scratch,
                              size_t max_bytes) const {
  std::string out(text);
  for (const Step& step : steps_) {
    const size_t before = out.size();
    out = run(step, out, scratch, max_bytes);
    if (out.size() > max_bytes) fail_long(max_bytes, before);
  }
  return out;
}

std::string Normalizer::apply(std::string_view text, RegexScratch& scratch) const {
  return apply(text, scratch, text_bound(text.size()));
}

CutPlace Normalizer::at_cuts() const {
  CutPlace place = CutPlace::exact;
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::form:
        // Nothing composes with a space or a line break, and neither moves. The compatibility forms
        // make a space and a mark of some visible characters.
        if (step.form == NormalForm::nfkc || step.form == NormalForm::nfkd) place = CutPlace::white;
        break;
      case Kind::lowercase:
        break;
      case Kind::strip_accents:
      case Kind::nmt:
      case Kind::bert:
        // The visible characters beside the cut may go; a line break may become a space.
        place = CutPlace::white;
        break;
      case Kind::replace:
        if (step.text.find_first_of(" \n") != std::string::npos) return CutPlace::lost;
        if (!step.text.empty()) place = CutPlace::white;
        break;
      case Kind::strip:
        if (step.left || step.right) return CutPlace::lost;
        break;
      case Kind::prepend:
        if (!step.text.empty()) return CutPlace::lost;
        break;
      case Kind::pattern:
      case Kind::map:
        return CutPlace::lost;
    }
  }
  return place;
}

}  // namespace snug
