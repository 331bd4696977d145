// What a Tokenizer is made of. For tokenizer.cpp, which uses it, and tokenizer_build.cpp, which
// puts it together.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe_model.h"
#include "engine/text/decoder.h"
#include "engine/text/normalizer.h"
#include "engine/text/post_processor.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_spec.h"

namespace snug {

// What one thread needs while it encodes.
struct EncodeScratch {
  WordScratch words;
  RegexScratch regex;
  std::vector<AddedTokenMatcher::Part> parts, normalized_parts;
};

// Scratch of threads that encode now or did before. Its word cache outlives a call, which is what
// makes many short calls fast.
class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto scratch = std::move(free_.back());
        free_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<EncodeScratch>();
  }
  void give_back(std::unique_ptr<EncodeScratch> scratch) {
    if (scratch->words.large()) return;
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> free_;
};

struct Tokenizer::Impl {
  TokenizerSpec spec;
  std::vector<std::string> text, bytes;  // by id
  std::vector<bool> special;
  std::unordered_map<int32_t, std::string> late_texts;  // of added tokens that are normalised
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  bool byte_level = false;   // the pre-tokenizer ends with ByteLevel
  bool joins_bytes = false;  // decoding is joining the bytes of tokens
  PostProcessor post_processor;
  Decoder decoder;
  AddedTokenMatcher added, added_normalized;
  std::unique_ptr<WordModel> model;
  std::optional<int32_t> eos, bos, pad, unk;
  uint64_t fingerprint = 0;
  mutable ScratchPool pool;

  void index_tokens();
  void add_added_tokens();
  void build_model();
  void build_bpe(std::optional<int32_t> unk_id);
  void build_unigram(std::optional<int32_t> unk_id);
  void render_tokens();
  std::string_view decoded_text(int32_t id) const;
  void compute_fingerprint();
  bool safe_in_pieces() const;
  std::optional<int32_t> find(std::string_view token) const;
  std::optional<int32_t> role(const char* name, const std::optional<std::string>& token) const;
  void encode_words(std::string_view piece, bool at_start, EncodeScratch& scratch,
                    std::vector<int32_t>& out) const;
  void encode(std::string_view text, EncodeScratch& scratch, std::vector<int32_t>& out) const;
};

}  // namespace snug
