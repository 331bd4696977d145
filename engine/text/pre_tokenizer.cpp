#include "engine/text/pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/core/error.h"
#include "engine/text/unicode.h"

namespace snug {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

struct Classified {
  CharClass cls;
  size_t length;
};

Classified classify(std::string_view text, size_t position) {
  static const std::array<CharClass, 128> ascii = [] {
    std::array<CharClass, 128> t{};
    for (char32_t c = 0; c < 128; ++c) t[c] = char_class(c);
    return t;
  }();
  const auto byte = static_cast<uint8_t>(text[position]);
  if (byte < 0x80) return {ascii[byte], 1};
  const Utf8Char c = decode_utf8(text, position);
  return {char_class(c.code), c.length};
}

size_t run_end(std::string_view text, size_t position, CharClass cls) {
  while (position < text.size()) {
    const Classified c = classify(text, position);
    if (c.cls != cls) break;
    position += c.length;
  }
  return position;
}

// 's 't 'm 'd 're 've 'll, in lower case only; 0 if none starts at the apostrophe.
size_t contraction(std::string_view rest) {
  if (rest.size() < 2) return 0;
  switch (rest[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return rest.size() > 2 && rest[2] == 'e' ? 3 : 0;
    case 'l':
      return rest.size() > 2 && rest[2] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

const char* behavior_name(SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::isolated:
      return "Isolated";
    case SplitBehavior::removed:
      return "Removed";
    case SplitBehavior::merged_with_previous:
      return "MergedWithPrevious";
    case SplitBehavior::merged_with_next:
      return "MergedWithNext";
    case SplitBehavior::contiguous:
      return "Contiguous";
  }
  return "?";
}

}  // namespace

size_t split_gpt2(std::string_view text, size_t position) {
  const Classified first = classify(text, position);
  if (text[position] == '\'') {
    if (const size_t n = contraction(text.substr(position))) return position + n;
  }
  if (first.cls != CharClass::space) return run_end(text, position + first.length, first.cls);
  if (text[position] == ' ' && position + 1 < text.size()) {
    const Classified second = classify(text, position + 1);
    if (second.cls != CharClass::space) {
      return run_end(text, position + 1 + second.length, second.cls);
    }
  }
  // White space before a word leaves its last character to that word, unless it is the only one.
  size_t last = position, end = position;
  while (end < text.size()) {
    const Classified c = classify(text, end);
    if (c.cls != CharClass::space) return last > position ? last : end;
    last = end;
    end += c.length;
  }
  return end;
}

void PreTokenizer::add(Step step, const std::string& canonical) {
  if (steps_.size() >= kMaxSteps) {
    fail(ErrorCode::unsupported, "at most " + std::to_string(kMaxSteps) + " pre-tokenizer steps",
         "more of them in one Sequence", "join the patterns into fewer steps");
  }
  steps_.push_back(std::move(step));
  canonical_ += std::to_string(canonical.size()) + ":" + canonical;
}

void PreTokenizer::add_prefix_space() {
  add({.kind = Kind::prefix_space}, "prefix_space");
}

void PreTokenizer::add_gpt2() {
  add({.kind = Kind::gpt2}, std::string("Isolated(0) ") + kGpt2Pattern);
}

void PreTokenizer::add_pattern(std::string_view pattern, SplitBehavior behavior, bool invert,
                               std::string_view where) {
  if (pattern == kGpt2Pattern && behavior == SplitBehavior::isolated && !invert) {
    add_gpt2();
    return;
  }
  Step step{.kind = Kind::regex, .behavior = behavior, .invert = invert};
  step.regex.emplace(pattern, where);
  add(std::move(step),
      std::string(behavior_name(behavior)) + (invert ? "(1) " : "(0) ") + std::string(pattern));
}

void PreTokenizer::add_literal(std::string_view literal, SplitBehavior behavior, bool invert) {
  Step step{.kind = Kind::literal, .behavior = behavior, .invert = invert};
  step.literal = literal;
  add(std::move(step),
      std::string(behavior_name(behavior)) + (invert ? "(1)=" : "(0)=") + std::string(literal));
}

void PreTokenizer::add_digits(bool individual) {
  const auto behavior = individual ? SplitBehavior::isolated : SplitBehavior::contiguous;
  add({.kind = Kind::digits, .behavior = behavior}, individual ? "digits(1)" : "digits(0)");
}

bool PreTokenizer::find(const Step& step, std::string_view text, size_t position,
                        RegexScratch& scratch, size_t& begin, size_t& end) {
  switch (step.kind) {
    case Kind::gpt2:
      if (position >= text.size()) return false;
      begin = position;
      end = split_gpt2(text, position);
      return true;
    case Kind::regex:
      return step.regex->find(text, position, scratch, begin, end);
    case Kind::literal:
      if (step.literal.empty()) return false;
      begin = text.find(step.literal, position);
      if (begin == std::string_view::npos) return false;
      end = begin + step.literal.size();
      return true;
    case Kind::digits:
      while (position < text.size()) {
        const Classified c = classify(text, position);
        if (c.cls == CharClass::number) {
          begin = position;
          end = position + c.length;
          return true;
        }
        position += c.length;
      }
      return false;
    case Kind::prefix_space:
      break;  // handled by apply
  }
  require(false, "a pre-tokenizer step that finds nothing");
  return false;
}

std::vector<PreTokenizer::Range> PreTokenizer::ranges(const Step& step, std::string_view text,
                                                      RegexScratch& scratch) {
  std::vector<Range> out;
  size_t done = 0, position = 0, begin = 0, end = 0;
  while (position <= text.size() && find(step, text, position, scratch, begin, end)) {
    if (begin > done) out.push_back({done, begin, step.invert});
    if (end > begin) out.push_back({begin, end, !step.invert});
    done = end;
    position = end;
    // An empty match: look again one character further.
    if (end == begin) position += end < text.size() ? decode_utf8(text, end).length : 1;
  }
  if (done < text.size()) out.push_back({done, text.size(), step.invert});

  std::vector<Range> merged;
  bool previous = false;
  switch (step.behavior) {
    case SplitBehavior::isolated:
      return out;
    case SplitBehavior::removed:
      std::erase_if(out, [](const Range& r) { return r.match; });
      return out;
    case SplitBehavior::contiguous:
      for (const Range& r : out) {
        if (!merged.empty() && r.match == previous) {
          merged.back().end = r.end;
        } else {
          merged.push_back(r);
        }
        previous = r.match;
      }
      return merged;
    case SplitBehavior::merged_with_previous:
      for (const Range& r : out) {
        if (r.match && !previous && !merged.empty()) {
          merged.back().end = r.end;
        } else {
          merged.push_back(r);
        }
        previous = r.match;
      }
      return merged;
    case SplitBehavior::merged_with_next:
      for (auto r = out.rbegin(); r != out.rend(); ++r) {
        if (r->match && !previous && !merged.empty()) {
          merged.back().begin = r->begin;
        } else {
          merged.push_back(*r);
        }
        previous = r->match;
      }
      std::reverse(merged.begin(), merged.end());
      return merged;
  }
  require(false, "an unknown split behaviour");
  return merged;
}

void PreTokenizer::apply(size_t index, std::string_view text, RegexScratch& scratch,
                         PieceSink& sink) const {
  if (text.empty()) return;
  if (index == steps_.size()) {
    sink.piece(text);
    return;
  }
  const Step& step = steps_[index];
  if (step.kind == Kind::prefix_space) {
    if (text[0] == ' ') return apply(index + 1, text, scratch, sink);
    return apply(index + 1, " " + std::string(text), scratch, sink);
  }
  if (step.kind == Kind::gpt2) {  // covers every character: nothing to collect
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = split_gpt2(text, begin);
      apply(index + 1, text.substr(begin, end - begin), scratch, sink);
      begin = end;
    }
    return;
  }
  if (step.behavior == SplitBehavior::isolated) {
    size_t done = 0, position = 0, begin = 0, end = 0;
    while (position <= text.size() && find(step, text, position, scratch, begin, end)) {
      apply(index + 1, text.substr(done, begin - done), scratch, sink);
      apply(index + 1, text.substr(begin, end - begin), scratch, sink);
      done = end;
      position = end;
      if (end == begin) position += end < text.size() ? decode_utf8(text, end).length : 1;
    }
    return apply(index + 1, text.substr(done), scratch, sink);
  }
  for (const Range& r : ranges(step, text, scratch)) {
    apply(index + 1, text.substr(r.begin, r.end - r.begin), scratch, sink);
  }
}

void PreTokenizer::split(std::string_view text, RegexScratch& scratch, PieceSink& sink) const {
  apply(0, text, scratch, sink);
}

}  // namespace snug
