// Using a tokenizer. Putting one together is tokenizer_build.cpp.
#include "engine/text/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

#include "engine/core/threads.h"
#include "engine/text/text_bound.h"
#include "engine/text/tokenizer_impl.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

class ScratchLease {
 public:
  explicit ScratchLease(ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {
    scratch_->parts.clear();
    scratch_->normalized_parts.clear();
  }
  ~ScratchLease() { pool_.give_back(std::move(scratch_)); }
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;
  EncodeScratch& operator*() { return *scratch_; }

 private:
  ScratchPool& pool_;
  std::unique_ptr<EncodeScratch> scratch_;
};

struct LongWord {
  int64_t bytes = 0;
};

class WordEncoder : public PieceSink {
 public:
  WordEncoder(const WordModel& model, WordScratch& scratch, std::vector<int32_t>& out)
      : model_(model), scratch_(scratch), out_(out) {}
  void piece(std::string_view text) override {
    if (static_cast<int64_t>(text.size()) > scratch_.max_word)
      throw LongWord{static_cast<int64_t>(text.size())};
    model_.encode_word(text, scratch_, out_);
  }

 private:
  const WordModel& model_;
  WordScratch& scratch_;
  std::vector<int32_t>& out_;
};

}  // namespace

void Tokenizer::Impl::encode_words(std::string_view piece, bool at_start, EncodeScratch& scratch,
                                   std::vector<int32_t>& out) const {
  WordEncoder sink(*model, scratch.words, out);
  pre_tokenizer.split(piece, scratch.regex, sink, at_start);
}

void Tokenizer::Impl::encode(std::string_view all, EncodeScratch& scratch,
                             std::vector<int32_t>& out) const {
  added.cut(all, scratch.parts);
  size_t room = text_bound(all.size());  // of all parts together
  for (const auto& part : scratch.parts) {
    if (part.id >= 0) {
      out.push_back(part.id);
      continue;
    }
    const bool at_start = part.text.data() == all.data();
    std::string normal;
    std::string_view piece = part.text;
    if (!normalizer.empty()) {
      normal = normalizer.apply(piece, scratch.regex, room);
      room -= std::min(room, normal.size());
      piece = normal;
    }
    if (added_normalized.empty()) {
      encode_words(piece, at_start, scratch, out);
      continue;
    }
    scratch.normalized_parts.clear();
    added_normalized.cut(piece, scratch.normalized_parts);
    for (const auto& inner : scratch.normalized_parts) {
      if (inner.id >= 0) {
        out.push_back(inner.id);
      } else {
        encode_words(inner.text, at_start && inner.text.data() == piece.data(), scratch, out);
      }
    }
  }
}

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

void Tokenizer::encode_words(std::string_view text, std::vector<int32_t>& out,
                             int64_t max_word) const {
  const Impl& impl = *impl_;
  std::string valid;
  if (!is_valid_utf8(text)) {
    valid = sanitize_utf8(text);
    text = valid;
  }
  const size_t before = out.size();
  ScratchLease lease(impl.pool);
  (*lease).words.max_word = max_word;
  try {
    impl.encode(text, *lease, out);
  } catch (...) {
    out.resize(before);
    throw;
  }
}

int64_t Tokenizer::encode(std::string_view text, std::vector<int32_t>& out,
                          int64_t max_word) const {
  try {
    encode_words(text, out, max_word);
  } catch (const LongWord& word) {
    return word.bytes;
  }
  return 0;
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& out) const {
  encode_words(text, out, INT64_MAX);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> out;
  encode(text, out);
  return out;
}

std::vector<std::vector<int32_t>> Tokenizer::encode_batch(
    std::span<const std::string_view> documents, int threads) const {
  std::vector<std::vector<int32_t>> out(documents.size());
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    try {
      // Documents are handed out one by one: they may differ in length by orders of magnitude.
      for (size_t i; (i = next.fetch_add(1)) < documents.size();) encode(documents[i], out[i]);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = documents.size();
    }
  };
  run_on_threads(std::min(static_cast<size_t>(std::max(threads, 1)), documents.size()),
                 [&](size_t) { work(); });
  if (error) std::rethrow_exception(error);
  return out;
}

TokenSequence Tokenizer::with_special_tokens(std::span<const int32_t> a) const {
  return impl_->post_processor.single(a);
}

TokenSequence Tokenizer::with_special_tokens(std::span<const int32_t> a,
                                             std::span<const int32_t> b) const {
  return impl_->post_processor.pair(a, b);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    if (impl_->joins_bytes) {
      out += token_bytes(id);
    } else if (!token_text(id).empty()) {
      tokens.emplace_back(impl_->decoded_text(id));
    }
  }
  return impl_->joins_bytes ? out : impl_->decoder.apply(std::move(tokens));
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return impl_->bytes[static_cast<size_t>(id)];
}

std::string_view Tokenizer::token_text(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return impl_->text[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token_text) const {
  return impl_->find(token_text);
}

bool Tokenizer::safe_in_pieces() const {
  return impl_->safe_in_pieces();
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->special[static_cast<size_t>(id)];
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(impl_->text.size());
}
int64_t Tokenizer::merge_count() const {
  return static_cast<int64_t>(impl_->spec.merges.size());
}
std::optional<int32_t> Tokenizer::eos_id() const {
  return impl_->eos;
}
std::optional<int32_t> Tokenizer::bos_id() const {
  return impl_->bos;
}
std::optional<int32_t> Tokenizer::pad_id() const {
  return impl_->pad;
}
std::optional<int32_t> Tokenizer::unk_id() const {
  return impl_->unk;
}
uint64_t Tokenizer::fingerprint() const {
  return impl_->fingerprint;
}
const TokenizerSpec& Tokenizer::spec() const {
  return impl_->spec;
}

}  // namespace snug
