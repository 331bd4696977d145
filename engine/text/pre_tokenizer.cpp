#include "engine/text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/text/unicode.h"
#include "engine/text/unicode_table.h"

namespace snug {

namespace {

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
  add({.kind = Kind::known, .known = KnownPattern::gpt2},
      "Isolated(0) " + std::string(pattern_of(KnownPattern::gpt2)));
}

void PreTokenizer::add_pattern(std::string_view pattern, SplitBehavior behavior, bool invert,
                               std::string_view where) {
  // A known pattern leaves no gaps, so that these two say the same.
  const bool plain = (behavior == SplitBehavior::isolated && !invert) ||
                     (behavior == SplitBehavior::removed && invert);
  Step step{.kind = Kind::known, .behavior = behavior, .invert = invert};
  if (plain) step.known = known_pattern(pattern);
  if (step.known == KnownPattern::none) {
    step.kind = Kind::regex;
    step.regex.emplace(pattern, where);
  }
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
  add({.kind = Kind::chars, .behavior = behavior, .test = CharTest::numeric},
      individual ? "digits(1)" : "digits(0)");
}

void PreTokenizer::add_whitespace_split() {
  add({.kind = Kind::chars, .behavior = SplitBehavior::removed, .test = CharTest::white},
      "whitespace_split");
}

void PreTokenizer::add_punctuation(SplitBehavior behavior) {
  add({.kind = Kind::chars, .behavior = behavior, .test = CharTest::punctuation},
      std::string("punctuation ") + behavior_name(behavior));
}

void PreTokenizer::add_whitespace() {
  add({.kind = Kind::words}, "whitespace");
}

void PreTokenizer::add_bert() {
  add_whitespace_split();
  add_punctuation(SplitBehavior::isolated);
}

void PreTokenizer::add_fixed_length(size_t characters) {
  require(characters > 0, "pieces of at least one character");
  add({.kind = Kind::fixed_length, .length = characters},
      "fixed_length " + std::to_string(characters));
}

void PreTokenizer::add_metaspace(std::string_view replacement, Prepend prepend, bool split) {
  Step step{.kind = Kind::metaspace, .prepend = prepend};
  step.literal = replacement;
  step.invert = !split;
  add(std::move(step), "metaspace " + std::to_string(static_cast<int>(prepend)) +
                           (split ? "(1)" : "(0)") + std::string(replacement));
}

bool PreTokenizer::find(const Step& step, std::string_view text, size_t position,
                        RegexScratch& scratch, size_t& begin, size_t& end) {
  switch (step.kind) {
    case Kind::regex:
      return step.regex->find(text, position, scratch, begin, end);
    case Kind::literal:
      if (step.literal.empty()) return false;
      begin = text.find(step.literal, position);
      if (begin == std::string_view::npos) return false;
      end = begin + step.literal.size();
      return true;
    case Kind::chars:
      while (position < text.size()) {
        const Utf8Char c = decode_utf8(text, position);
        const bool hit = step.test == CharTest::white
                             ? is_white_space(c.code)
                             : (char_kind(c.code) &
                                (step.test == CharTest::numeric ? kNumeric : kPunctuation)) != 0;
        if (hit) {
          begin = position;
          end = position + c.length;
          return true;
        }
        position += c.length;
      }
      return false;
    default:
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
    case SplitBehavior::removed:
      break;  // apply does these without a list
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

void PreTokenizer::apply_metaspace(size_t index, std::string_view text, bool at_start,
                                   RegexScratch& scratch, PieceSink& sink) const {
  const Step& step = steps_[index];
  const std::string& mark = step.literal;
  std::string changed;
  changed.reserve(text.size() + mark.size());
  const bool has = text[0] == ' ' || text.starts_with(mark);
  if (!has && (step.prepend == Prepend::always || (step.prepend == Prepend::first && at_start))) {
    changed = mark;
  }
  for (const char c : text) {
    if (c == ' ') {
      changed += mark;
    } else {
      changed += c;
    }
  }
  if (step.invert) return apply(index + 1, changed, at_start, scratch, sink);
  // Every mark begins a piece; several in a row are pieces of their own.
  const std::string_view all = changed;
  for (size_t begin = 0; begin < all.size();) {
    const size_t from = all.substr(begin).starts_with(mark) ? begin + mark.size() : begin;
    const size_t end = std::min(all.find(mark, from), all.size());
    apply(index + 1, all.substr(begin, end - begin), at_start && begin == 0, scratch, sink);
    begin = end;
  }
}

void PreTokenizer::apply(size_t index, std::string_view text, bool at_start, RegexScratch& scratch,
                         PieceSink& sink) const {
  if (text.empty()) return;
  if (index == steps_.size()) {
    sink.piece(text);
    return;
  }
  const Step& step = steps_[index];
  const auto next = [&](size_t begin, size_t end) {
    apply(index + 1, text.substr(begin, end - begin), at_start && begin == 0, scratch, sink);
  };
  switch (step.kind) {
    case Kind::prefix_space:
      if (text[0] == ' ') return next(0, text.size());
      return apply(index + 1, " " + std::string(text), at_start, scratch, sink);
    case Kind::metaspace:
      return apply_metaspace(index, text, at_start, scratch, sink);
    case Kind::known: {  // covers every character: nothing to collect
      const KnownSplitter splitter(step.known);
      const bool last = index + 1 == steps_.size();
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = splitter.end(text, begin);
        if (last) {
          sink.piece(text.substr(begin, end - begin));
        } else {
          next(begin, end);
        }
        begin = end;
      }
      return;
    }
    case Kind::words:
      for (size_t begin = 0; begin < text.size();) {
        Utf8Char c = decode_utf8(text, begin);
        size_t end = begin + c.length;
        if (!is_white_space(c.code)) {
          const bool word = is_word_char(c.code);
          for (; end < text.size(); end += c.length) {
            c = decode_utf8(text, end);
            if (is_word_char(c.code) != word || is_white_space(c.code)) break;
          }
          next(begin, end);
        }
        begin = end;
      }
      return;
    case Kind::fixed_length:
      for (size_t begin = 0; begin < text.size();) {
        size_t end = begin;
        for (size_t i = 0; i < step.length && end < text.size(); ++i) {
          end += decode_utf8(text, end).length;
        }
        next(begin, end);
        begin = end;
      }
      return;
    default:
      break;
  }
  if (step.behavior == SplitBehavior::isolated || step.behavior == SplitBehavior::removed) {
    const bool removed = step.behavior == SplitBehavior::removed;
    size_t done = 0, position = 0, begin = 0, end = 0;
    while (position <= text.size() && find(step, text, position, scratch, begin, end)) {
      if (!removed || !step.invert) next(done, begin);
      if (!removed || step.invert) next(begin, end);
      done = end;
      position = end;
      if (end == begin) position += end < text.size() ? decode_utf8(text, end).length : 1;
    }
    if (!removed || !step.invert) next(done, text.size());
    return;
  }
  for (const Range& r : ranges(step, text, scratch)) next(r.begin, r.end);
}

// A step is one of three kinds here. It cuts at the place itself: then the steps behind it see the
// same pieces. It leaves the piece over the place whole, or cuts it there as well, and does nothing
// else that the piece alone would not show: then a later step may cut. Or nothing is known.
bool PreTokenizer::splits_at(CutPlace place) const {
  if (place == CutPlace::lost) return false;
  bool cut = false;
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::known:
        // All of them begin a piece behind a lone line break and before a lone space.
        if (!cut && place != CutPlace::exact) return false;
        cut = true;
        break;
      case Kind::words:
        cut = true;  // white space vanishes, so it stands in no piece
        break;
      case Kind::chars:
        cut = cut || step.test == CharTest::white;
        break;
      case Kind::literal:
        if (!cut && step.literal.find_first_of(" \n") != std::string::npos) return false;
        break;
      case Kind::metaspace:
        // "first" looks at where the text begins, whatever was cut before.
        if (!cut || step.prepend == Prepend::first) return false;
        break;
      case Kind::prefix_space:
      case Kind::regex:
      case Kind::fixed_length:
        if (!cut) return false;
        break;
    }
  }
  return cut;
}

void PreTokenizer::split(std::string_view text, RegexScratch& scratch, PieceSink& sink,
                         bool at_start) const {
  apply(0, text, at_start, scratch, sink);
}

}  // namespace snug
