// From the parts of a file to a tokenizer: checks, tables by id, the model.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/error.h"
#include "engine/io/fingerprint.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/components.h"
#include "engine/text/tokenizer_impl.h"
#include "engine/text/unicode.h"
#include "engine/text/word_models.h"

namespace snug {
namespace {

// Larger ids are a broken file, not a vocabulary; tables here have one entry an id, about 70 bytes.
// So that a small file takes little memory an id is also bounded by the number of tokens.
constexpr int64_t kMaxId = 1 << 24;
constexpr int64_t kIdsPerToken = 64, kIdsOfNone = 1024;
// What a normaliser or decoder may make of one token of n bytes at load: kTimes n + kMore.
constexpr size_t kTimes = 16, kMore = 256;

// Lengths are hashed too, so that no two lists of strings run together.
class Hasher {
 public:
  void add(std::string_view s) {
    add(static_cast<int64_t>(s.size()));
    hash_.add(s);
  }
  void add(int64_t value) { hash_.add(&value, sizeof value); }
  uint64_t value() const { return hash_.digest(); }

 private:
  Fingerprint hash_;
};

const char* const kRepair = "repair the file or export the tokenizer again";

std::string in_quotes(std::string_view token) {
  return "\"" + std::string(token) + "\"";
}

// True if the token can begin before the place of a cut and end behind it.
bool may_lie_across(std::string_view token) {
  const auto blank = [](char c) { return c == ' ' || c == '\n'; };
  for (size_t i = 1; i < token.size(); ++i) {
    if (blank(token[i - 1]) != blank(token[i])) return true;
  }
  return false;
}

}  // namespace

void Tokenizer::Impl::index_tokens() {
  int32_t largest = -1;
  const auto entries = static_cast<int64_t>(spec.vocab.size() + spec.added.size());
  const int64_t most = std::min(kMaxId, kIdsPerToken * (entries + kIdsOfNone));
  const auto check = [&](const std::string& token, int32_t id) {
    if (id < 0 || id > most) {
      fail(ErrorCode::data,
           "token ids from 0 to " + std::to_string(most) + " among " + std::to_string(entries) +
               " tokens",
           spec.origin + ": id " + std::to_string(id) + " of token " + in_quotes(token), kRepair);
    }
    if (token.empty() || !is_valid_utf8(token)) {
      fail(ErrorCode::data, "tokens that are non-empty UTF-8",
           spec.origin + ": token " + in_quotes(sanitize_utf8(token)) + " of id " +
               std::to_string(id),
           "correct or remove this token");
    }
    largest = std::max(largest, id);
  };
  for (const auto& [token, id] : spec.vocab) check(token, id);
  for (const AddedToken& token : spec.added) check(token.content, token.id);
  if (largest < 0) {
    fail(ErrorCode::data, "a vocabulary with at least one token", spec.origin + ": an empty one",
         kRepair);
  }
  text.resize(static_cast<size_t>(largest) + 1);
  bytes.resize(text.size());
  special.resize(text.size());
  for (const auto& [token, id] : spec.vocab) {
    std::string& slot = text[static_cast<size_t>(id)];
    if (!slot.empty()) {
      fail(ErrorCode::data, "a different id for every token",
           spec.origin + ": id " + std::to_string(id) + " of both " +
               in_quotes(std::min(slot, token)) + " and " + in_quotes(std::max(slot, token)),
           kRepair);
    }
    slot = token;
    // A token outside the alphabet can only be a special one; it stands for itself.
    bytes[static_cast<size_t>(id)] = joins_bytes ? alphabet_to_bytes(token).value_or(token) : token;
  }
}

void Tokenizer::Impl::add_added_tokens() {
  RegexScratch scratch;
  for (const AddedToken& token : spec.added) {
    const auto id = static_cast<size_t>(token.id);
    const auto known = spec.vocab.find(token.content);
    if ((known != spec.vocab.end() && known->second != token.id) ||
        (!text[id].empty() && text[id] != token.content)) {
      const bool two_ids = known != spec.vocab.end() && known->second != token.id;
      fail(ErrorCode::data, "added tokens that agree with the vocabulary",
           spec.origin + ": added token " + in_quotes(token.content) + " of id " +
               std::to_string(token.id) + ", which the vocabulary gives " +
               (two_ids ? "id " + std::to_string(known->second) : "to " + in_quotes(text[id])),
           kRepair);
    }
    if (token.content.size() > AddedTokenMatcher::kMaxBytes) {
      fail(ErrorCode::unsupported,
           "added tokens of at most " + std::to_string(AddedTokenMatcher::kMaxBytes) + " bytes",
           spec.origin + ": one of " + std::to_string(token.content.size()) + " bytes, id " +
               std::to_string(token.id),
           "shorten the token");
    }
    text[id] = bytes[id] = token.content;
    special[id] = special[id] || token.special;
    if (token.normalized) {
      // It is looked for in normalised text, so its content is normalised as well.
      AddedToken late = token;
      late.content = normalizer.apply(late.content, scratch, kTimes * late.content.size() + kMore);
      if (late.content != token.content) late_texts[token.id] = late.content;
      bytes[id] = late.content;  // which is also what `tokenizers` decodes it to
      added_normalized.add(late);
    } else {
      added.add(token);
    }
  }
}

void Tokenizer::Impl::build_bpe(std::optional<int32_t> unk_id) {
  std::array<int32_t, 256> byte_ids{};
  for (int b = 0; b < 256 && byte_level; ++b) {
    const char byte = static_cast<char>(b);
    const auto it = spec.vocab.find(bytes_to_alphabet({&byte, 1}));
    byte_ids[static_cast<size_t>(b)] = it == spec.vocab.end() ? -1 : it->second;
  }
  auto bpe = std::make_unique<BpeModel>(byte_ids, unk_id, spec.fuse_unk);
  if (!byte_level) {
    bpe->use_characters({.vocab = spec.vocab,
                         .prefix = spec.continuing_prefix,
                         .suffix = spec.end_suffix,
                         .byte_fallback = spec.byte_fallback,
                         .bytes = byte_token_ids(spec.vocab)});
  } else if (spec.byte_fallback || !spec.continuing_prefix.empty() || !spec.end_suffix.empty()) {
    fail(ErrorCode::unsupported,
         "a byte-level BPE model without byte_fallback, continuing_subword_prefix or "
         "end_of_word_suffix",
         spec.origin + ": byte_fallback " + (spec.byte_fallback ? "true" : "false") + ", prefix " +
             in_quotes(spec.continuing_prefix) + ", suffix " + in_quotes(spec.end_suffix),
         "remove them from the model, or ByteLevel from the pre_tokenizer");
  }
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto [left, right] = spec.merges[rank];
    const auto size = static_cast<int32_t>(text.size());
    require(left >= 0 && right >= 0 && left < size && right < size, "merge of unknown ids");
    const std::string& a = text[static_cast<size_t>(left)];
    const std::string& b = text[static_cast<size_t>(right)];
    const bool cut = !byte_level && b.starts_with(spec.continuing_prefix);
    const auto merged = spec.vocab.find(a + (cut ? b.substr(spec.continuing_prefix.size()) : b));
    if (merged == spec.vocab.end()) {
      fail(ErrorCode::data, "merges whose result is in the vocabulary",
           spec.origin + ": merge " + std::to_string(rank) + " of " + in_quotes(a) + " and " +
               in_quotes(b) + ", and no token " + in_quotes(a + b),
           "use the vocabulary and the merges of the same tokenizer");
    }
    bpe->add_merge(left, right, static_cast<uint32_t>(rank), merged->second);
  }
  if (spec.ignore_merges) {
    StringMap<int32_t> words;
    if (!byte_level) words = spec.vocab;
    for (const auto& [token, id] : spec.vocab) {
      if (!byte_level) break;
      if (auto raw = alphabet_to_bytes(token)) words.emplace(std::move(*raw), id);
    }
    bpe->use_whole_words(std::move(words));
  }
  model = std::move(bpe);
}

void Tokenizer::Impl::build_unigram(std::optional<int32_t> unk_id) {
  std::vector<UnigramModel::Piece> pieces(spec.vocab.size());
  for (const auto& [token, id] : spec.vocab) {
    if (static_cast<size_t>(id) >= pieces.size() || static_cast<size_t>(id) >= spec.scores.size()) {
      fail(ErrorCode::data, "a Unigram vocabulary with a score for every id",
           spec.origin + ": id " + std::to_string(id) + " of " + in_quotes(token) + " among " +
               std::to_string(spec.scores.size()) + " scores",
           kRepair);
    }
    if (token.size() > UnigramModel::kMaxPiece) {
      fail(ErrorCode::unsupported,
           "pieces of at most " + std::to_string(UnigramModel::kMaxPiece) + " bytes",
           spec.origin + ": one of " + std::to_string(token.size()) + " bytes, id " +
               std::to_string(id),
           "remove the piece from the vocabulary");
    }
    pieces[static_cast<size_t>(id)] = {token, score_as_read(spec.scores[static_cast<size_t>(id)])};
  }
  model = std::make_unique<UnigramModel>(pieces, unk_id, spec.byte_fallback);
}

void Tokenizer::Impl::build_model() {
  std::optional<int32_t> unk_id;
  if (!spec.unk_token.empty()) {
    unk_id = find(spec.unk_token);
    if (!unk_id) {
      fail(ErrorCode::data, "an unk_token that is in the vocabulary",
           spec.origin + ": " + in_quotes(spec.unk_token), kRepair);
    }
  }
  if (byte_level && spec.model != ModelType::bpe) {
    fail(ErrorCode::unsupported, "ByteLevel only before a BPE model",
         spec.origin + ": ByteLevel before another model", "use another pre_tokenizer");
  }
  switch (spec.model) {
    case ModelType::bpe:
      return build_bpe(unk_id);
    case ModelType::unigram:
      return build_unigram(unk_id);
    case ModelType::word_level:
      model = std::make_unique<WordLevelModel>(spec.vocab, unk_id);
      return;
    case ModelType::word_piece:
      if (spec.max_word_chars < 0 || spec.max_word_chars > WordPieceModel::kMaxChars) {
        fail(ErrorCode::unsupported,
             "max_input_chars_per_word from 0 to " + std::to_string(WordPieceModel::kMaxChars),
             spec.origin + ": " + std::to_string(spec.max_word_chars), "use 100, as BERT does");
      }
      model = std::make_unique<WordPieceModel>(spec.vocab, spec.continuing_prefix,
                                               spec.max_word_chars, unk_id);
      return;
  }
  require(false, "an unknown model");
}

std::string_view Tokenizer::Impl::decoded_text(int32_t id) const {
  const auto it = late_texts.find(id);
  return it == late_texts.end() ? text[static_cast<size_t>(id)] : std::string_view(it->second);
}

// What each token adds to a text that has something before it. Decoders put a space where a token
// had a character; one that makes much more of a token is broken, and would of all of them.
void Tokenizer::Impl::render_tokens() {
  if (joins_bytes) return;
  for (size_t id = 0; id < text.size(); ++id) {
    const int byte = spec.byte_fallback ? byte_of_token(text[id]) : -1;
    if (byte >= 0) {
      bytes[id].assign(1, static_cast<char>(byte));
    } else if (!text[id].empty()) {
      const std::string token(decoded_text(static_cast<int32_t>(id)));
      try {
        const std::string shown = decoder.apply({"a", token}, kTimes * token.size() + kMore);
        bytes[id] = shown.starts_with('a') ? shown.substr(1) : token;
      } catch (Error& error) {
        error.add_note(spec.origin + ", token " + in_quotes(token));
        throw;
      }
    }
  }
}

void Tokenizer::Impl::compute_fingerprint() {
  Hasher hash;
  const char* const names[] = {"BPE 1", "WordPiece 1", "Unigram 1", "WordLevel 1"};
  hash.add(byte_level ? "byte-level BPE 1" : names[static_cast<size_t>(spec.model)]);
  for (size_t id = 0; id < text.size(); ++id) hash.add(text[id]);
  hash.add(static_cast<int64_t>(spec.merges.size()));
  for (const auto& [left, right] : spec.merges) {
    hash.add(int64_t{left});
    hash.add(int64_t{right});
  }
  std::vector<const AddedToken*> sorted;
  for (const AddedToken& token : spec.added) sorted.push_back(&token);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->id < b->id; });
  for (const AddedToken* token : sorted) {
    hash.add(int64_t{token->id});
    // Without a normaliser it makes no difference when the token is looked for.
    const bool late = token->normalized && !normalizer.empty();
    hash.add(int64_t{0} + token->single_word + 2 * token->lstrip + 4 * token->rstrip + 8 * late);
  }
  if (!normalizer.empty()) hash.add(normalizer.canonical());
  hash.add(pre_tokenizer.canonical());
  hash.add(spec.unk_token);
  hash.add(int64_t{0} + spec.fuse_unk + 2 * spec.ignore_merges);
  if (!byte_level) {
    hash.add(spec.continuing_prefix);
    hash.add(spec.end_suffix);
    hash.add(int64_t{spec.byte_fallback});
    if (spec.model == ModelType::word_piece) hash.add(spec.max_word_chars);
    for (const double score : spec.scores) {
      int64_t bits = 0;
      std::memcpy(&bits, &score, sizeof bits);
      hash.add(bits);
    }
  }
  fingerprint = hash.value();
}

bool Tokenizer::Impl::safe_in_pieces() const {
  // Raw text has one blank at most beside a cut; a normaliser can make a second one there.
  const bool exact = normalizer.at_cuts() == CutPlace::exact;
  const auto blank = [](const std::string& s) { return s.find_first_of(" \n") != s.npos; };
  for (const AddedToken& token : spec.added) {
    const auto late = late_texts.find(token.id);
    if (!exact && token.normalized &&
        (blank(token.content) || (late != late_texts.end() && blank(late->second)))) {
      return false;
    }
    if (token.lstrip || token.rstrip || may_lie_across(token.content) ||
        (late != late_texts.end() && may_lie_across(late->second))) {
      return false;
    }
  }
  return pre_tokenizer.splits_at(normalizer.at_cuts());
}

std::optional<int32_t> Tokenizer::Impl::find(std::string_view token) const {
  for (const AddedToken& t : spec.added) {
    if (t.content == token) return t.id;
  }
  const auto it = spec.vocab.find(token);
  if (it == spec.vocab.end()) return std::nullopt;
  return it->second;
}

std::optional<int32_t> Tokenizer::Impl::role(const char* name,
                                             const std::optional<std::string>& token) const {
  if (!token) return std::nullopt;
  const auto id = find(*token);
  if (!id) {
    fail(ErrorCode::data, std::string(name) + "_token in the vocabulary",
         spec.origin + ": " + in_quotes(*token) + " is not",
         "add the token to added_tokens in tokenizer.json, or remove it from "
         "tokenizer_config.json and special_tokens_map.json");
  }
  return id;
}

Tokenizer Tokenizer::build(TokenizerSpec spec) {
  auto impl = std::make_shared<Impl>();
  impl->spec = std::move(spec);
  const TokenizerSpec& s = impl->spec;
  impl->normalizer = parse_normalizer(s.normalizer, s.origin);
  impl->pre_tokenizer = parse_pre_tokenizer(s.pre_tokenizer, s.origin, impl->byte_level);
  impl->post_processor = parse_post_processor(s.post_processor, s.origin);
  impl->decoder = parse_decoder(s.decoder, s.origin);
  impl->joins_bytes = impl->byte_level && impl->decoder.bytes_only();
  impl->index_tokens();
  impl->add_added_tokens();
  impl->build_model();
  impl->render_tokens();
  impl->eos = impl->role("eos", s.eos_token);
  impl->bos = impl->role("bos", s.bos_token);
  impl->pad = impl->role("pad", s.pad_token);
  impl->unk = impl->role("unk", s.unk_role);
  if (!impl->unk && !s.unk_token.empty()) impl->unk = impl->find(s.unk_token);
  impl->compute_fingerprint();
  return Tokenizer(std::move(impl));
}

}  // namespace snug
