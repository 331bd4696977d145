#include "engine/data/token_masking.h"

#include <fmt/format.h>

#include <utility>

#include "engine/core/error.h"
#include "engine/data/row_file.h"
#include "engine/text/tokenizer_spec.h"

namespace snug {
namespace {

constexpr uint32_t kSite = 0x6d61736bu;  // of random_key: "mask"

}  // namespace

std::vector<bool> special_tokens(const Tokenizer& tokenizer) {
  std::vector<bool> special(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t id = 0; id < special.size(); ++id)
    special[id] = tokenizer.is_special(static_cast<int32_t>(id));
  return special;
}

std::vector<bool> word_continuations(const Tokenizer& tokenizer) {
  const TokenizerSpec& spec = tokenizer.spec();
  // A blank as vocabularies write it: of byte-level BPE, of SentencePiece, and itself.
  constexpr std::string_view kBlanks[] = {"\xc4\xa0", "\xe2\x96\x81", " "};
  std::vector<bool> continues(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t id = 0; id < continues.size(); ++id) {
    const std::string_view text = tokenizer.token_text(static_cast<int32_t>(id));
    if (text.empty() || tokenizer.is_special(static_cast<int32_t>(id))) continue;
    bool blank = false;
    for (const std::string_view b : kBlanks) blank = blank || text.starts_with(b);
    continues[id] =
        spec.continuing_prefix.empty() ? !blank : text.starts_with(spec.continuing_prefix);
  }
  return continues;
}

TokenMasking::TokenMasking(MaskingOptions options, uint64_t seed, bool evaluation)
    : options_(std::move(options)), key_(random_key(seed, evaluation ? 1 : 0, kSite)) {
  const MaskingOptions& o = options_;
  if (!(o.probability > 0.0 && o.probability <= 1.0))
    fail(ErrorCode::usage, "mlm_probability above 0 and at most 1",
         fmt::format("{}", o.probability), "set it to 0.15, for example");
  if (!(o.mask_share >= 0.0 && o.random_share >= 0.0 && o.mask_share + o.random_share <= 1.0))
    fail(ErrorCode::usage,
         "mask_replace_prob and random_replace_prob of 0 or more, together at most 1",
         fmt::format("{} and {}", o.mask_share, o.random_share), "leave them out: 0.8 and 0.1");
  if (o.vocab_size < 1 || o.mask_id < 0 || o.mask_id >= o.vocab_size)
    fail(ErrorCode::usage, fmt::format("a mask token among the {} of the vocabulary", o.vocab_size),
         o.mask_id < 0 ? std::string("none") : fmt::format("token {}", o.mask_id),
         "use a tokenizer with a mask_token, and the model that it belongs to");
}

int64_t TokenMasking::apply(int64_t k, int64_t length, int64_t most, int32_t* tokens,
                            int32_t* targets) const {
  const MaskingOptions& o = options_;
  const auto below = [](uint32_t word, double p) {
    return static_cast<double>(uniform_from(word)) < p;
  };
  int64_t count = 0;
  bool chosen = false, inside = false;  // the word of the token before; whether there is one
  for (int64_t t = 0; t < length; ++t) {
    const int32_t id = tokens[t];
    targets[t] = kIgnoredLabel;
    const bool special = is(o.special, id);
    const bool goes_on = inside && !special && is(o.continues, id);
    inside = !special;
    if (special) continue;
    const Philox4 u = random_block(key_, static_cast<uint64_t>(k), static_cast<uint32_t>(t), 0);
    if (!goes_on) chosen = below(u[0], o.probability);
    if (!chosen || count == most) continue;
    ++count;
    targets[t] = id;
    if (below(u[1], o.mask_share))
      tokens[t] = o.mask_id;
    else if (below(u[1], o.mask_share + o.random_share))
      tokens[t] = static_cast<int32_t>(
          static_cast<uint64_t>(u[2]) * static_cast<uint64_t>(o.vocab_size) >> 32);
  }
  return count;
}

}  // namespace snug
