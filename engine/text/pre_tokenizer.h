// Cuts text into the pieces ("words") that byte-pair merges never cross. A pre-tokenizer is a list
// of steps, each applied to the pieces of the one before, with the meaning Hugging Face
// `tokenizers` gives them: ByteLevel (GPT-2 pattern, optional leading space), Split (any pattern)
// and Digits.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/regex.h"

namespace snug {

// The pattern of GPT-2, as its authors published it; split_gpt2 is its hand-written twin.
extern const char* const kGpt2Pattern;

// End of the piece that starts at `position` under the GPT-2 pattern. `text` is valid UTF-8 and
// position < text.size().
size_t split_gpt2(std::string_view text, size_t position);

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
  // `where` names the pattern's place in messages. The GPT-2 pattern takes the fast path.
  void add_pattern(std::string_view pattern, SplitBehavior behavior, bool invert,
                   std::string_view where);
  void add_literal(std::string_view literal, SplitBehavior behavior, bool invert);
  void add_digits(bool individual);

  // Hands the pieces of `text` (valid UTF-8) to the sink, in order.
  void split(std::string_view text, RegexScratch& scratch, PieceSink& sink) const;

  // The same for equal pipelines however a file spells them; for fingerprints.
  const std::string& canonical() const { return canonical_; }

 private:
  enum class Kind { prefix_space, gpt2, regex, literal, digits };
  struct Step {
    Kind kind;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
    std::optional<Regex> regex = {};
    std::string literal = {};
  };
  struct Range {
    size_t begin, end;
    bool match;
  };

  void add(Step step, const std::string& canonical);
  void apply(size_t step, std::string_view text, RegexScratch& scratch, PieceSink& sink) const;
  static bool find(const Step& step, std::string_view text, size_t position, RegexScratch& scratch,
                   size_t& begin, size_t& end);
  static std::vector<Range> ranges(const Step& step, std::string_view text, RegexScratch& scratch);

  std::vector<Step> steps_;
  std::string canonical_;
};

}  // namespace snug
