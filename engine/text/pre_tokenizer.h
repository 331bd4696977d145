// Cuts text into the pieces ("words") that merges never cross. A pre-tokenizer is a list of steps,
// each applied to the pieces of the one before, with the meaning Hugging Face `tokenizers` gives
// them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/piece_cuts.h"
#include "engine/text/regex.h"
#include "engine/text/splitters.h"

namespace snug {

// What becomes of a match, in the words of the file format.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

class PieceSink {
 public:
  virtual ~PieceSink() = default;
  // Valid only during the call; never empty.
  virtual void piece(std::string_view text) = 0;
};

class PreTokenizer {
 public:
  // At most this many steps.
  static constexpr size_t kMaxSteps = 64;

  // A leading space is added to every piece that does not start with one.
  void add_prefix_space();
  void add_gpt2();
  // `where` names the pattern's place in messages. Known patterns take their fast path.
  void add_pattern(std::string_view pattern, SplitBehavior behavior, bool invert,
                   std::string_view where);
  void add_literal(std::string_view literal, SplitBehavior behavior, bool invert);
  void add_digits(bool individual);
  void add_whitespace_split();                   // White_Space separates and vanishes
  void add_punctuation(SplitBehavior behavior);  // ASCII punctuation and categories P*
  void add_whitespace();                         // \w+|[^\w\s]+ , white space vanishes
  void add_bert();                               // white space vanishes, punctuation stands alone
  void add_fixed_length(size_t characters);
  // Spaces become `replacement`; a piece without one at its start gets one (always, or at the
  // start of the text only, or never); split: every piece then starts at a replacement.
  enum class Prepend { always, first, never };
  void add_metaspace(std::string_view replacement, Prepend prepend, bool split);

  // Hands the pieces of `text` (valid UTF-8) to the sink, in order. at_start: `text` is where the
  // whole text begins.
  void split(std::string_view text, RegexScratch& scratch, PieceSink& sink,
             bool at_start = true) const;

  // True if the pieces of a text that is cut at such a place (piece_cuts.h) are, one after the
  // other, those of the whole.
  bool splits_at(CutPlace place) const;

  // The same for equal pipelines however a file spells them; for fingerprints.
  const std::string& canonical() const { return canonical_; }

 private:
  enum class Kind { prefix_space, known, regex, literal, chars, words, fixed_length, metaspace };
  enum class CharTest { numeric, punctuation, white };
  struct Step {
    Kind kind;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
    std::optional<Regex> regex = {};
    std::string literal = {};  // metaspace: the replacement
    KnownPattern known = KnownPattern::none;
    CharTest test = CharTest::numeric;
    size_t length = 0;
    Prepend prepend = Prepend::never;
  };
  struct Range {
    size_t begin, end;
    bool match;
  };

  void add(Step step, const std::string& canonical);
  void apply(size_t step, std::string_view text, bool at_start, RegexScratch& scratch,
             PieceSink& sink) const;
  void apply_metaspace(size_t step, std::string_view text, bool at_start, RegexScratch& scratch,
                       PieceSink& sink) const;
  static bool find(const Step& step, std::string_view text, size_t position, RegexScratch& scratch,
                   size_t& begin, size_t& end);
  static std::vector<Range> ranges(const Step& step, std::string_view text, RegexScratch& scratch);

  std::vector<Step> steps_;
  std::string canonical_;
};

}  // namespace snug
