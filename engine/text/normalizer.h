// What is done to text before it is split, step by step, with the meaning Hugging Face `tokenizers`
// gives each step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/piece_cuts.h"
#include "engine/text/regex.h"
#include "engine/text/unicode.h"

namespace snug {

struct BertRules {
  bool clean_text = true;            // control characters go, white space becomes spaces
  bool handle_chinese_chars = true;  // spaces around ideographs
  bool strip_accents = true;
  bool lowercase = true;
};

// The normalisation map of a SentencePiece model: a trie of texts, each with its replacement.
class CharsMap {
 public:
  // `blob`: 4 bytes of size, the trie (Darts double array), the replacements. Throws Error (data).
  CharsMap(std::string blob, std::string_view where);
  // Stops once `out` holds more than max_bytes.
  void apply(std::string_view text, std::string& out, size_t max_bytes) const;

 private:
  // The replacement of the shortest entry that `text` starts with.
  std::optional<std::string_view> find(std::string_view text) const;
  uint32_t unit(size_t index) const;

  std::string blob_;
  size_t units_ = 0;
  std::string_view texts_;
};

class Normalizer {
 public:
  // At most this many steps.
  static constexpr size_t kMaxSteps = 64;

  void add_form(NormalForm form);
  void add_lowercase();
  void add_strip_accents();
  void add_nmt();
  void add_strip(bool left, bool right);
  void add_bert(const BertRules& rules);
  void add_prepend(std::string_view text);  // to a text that is not empty
  void add_replace(std::string_view literal, std::string_view content);
  void add_replace_pattern(std::string_view pattern, std::string_view content,
                           std::string_view where);
  void add_precompiled(std::string blob, std::string_view where);

  bool empty() const { return steps_.empty(); }
  // `text` is valid UTF-8, and so is the result. Throws Error (data) if the text cannot be
  // normalised: utf8proc or a pattern refuses it, or more than max_bytes come of it (text_bound.h).
  std::string apply(std::string_view text, RegexScratch& scratch, size_t max_bytes) const;
  std::string apply(std::string_view text, RegexScratch& scratch) const;

  // What becomes of the place where a text is cut (piece_cuts.h).
  CutPlace at_cuts() const;

  // The same for equal pipelines however a file spells them; for fingerprints.
  const std::string& canonical() const { return canonical_; }

 private:
  enum class Kind {
    form,
    lowercase,
    strip_accents,
    nmt,
    strip,
    bert,
    prepend,
    replace,
    pattern,
    map
  };
  struct Step {
    Kind kind;
    NormalForm form = NormalForm::nfc;
    bool left = false, right = false;
    BertRules bert = {};
    std::string text = {}, content = {};
    std::shared_ptr<const Regex> regex = {};
    std::shared_ptr<const CharsMap> map = {};
  };
  void add(Step step, const std::string& canonical);
  static std::string run(const Step& step, std::string_view text, RegexScratch& scratch,
                         size_t max_bytes);

  std::vector<Step> steps_;
  std::string canonical_;
};

}  // namespace snug
