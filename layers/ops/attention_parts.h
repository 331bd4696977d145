// What the passes of attention share: entry checks and the geometry. Internal to the folder.
#pragma once

#include "engine/core/rng.h"
#include "engine/memory/context.h"
#include "layers/ops/attention.h"
#include "layers/ops/attention_blocks.h"
#include "layers/ops/softcap_value.h"

namespace snug {

// Throws unless the spec belongs to what is built; `T` is the number of tokens of a sequence.
void attention_check(const AttentionSpec& spec, int64_t B, int64_t T, const View& state);
// Throws unless every key length is in [1,T] and document starts and ends are such. Reads values:
// call it inside the op.
void attention_check_values(const AttentionSpec& spec, int64_t B, int64_t T);
void attention_check_dtype(const View& x);

// The ops with the arithmetic named: how tests reach the forms this machine would not choose.
// `blocks` with pairs needs bf16.
void attention_forward_by(const AttentionBlocks& blocks, Context& ctx, const View& out,
                          const View& lse, const View& qkv, int64_t B, int64_t T,
                          const AttentionSpec& spec, const View& state);
void attention_backward_by(const AttentionBlocks& blocks, Context& ctx, const View& dqkv,
                           const View& dout, const View& qkv, const View& out, const View& lse,
                           int64_t B, int64_t T, const AttentionSpec& spec, const View& state);
void attention_cached_forward_by(const AttentionBlocks& blocks, Context& ctx, const View& out,
                                 const View& cache_k, const View& cache_v, const View& qkv,
                                 int64_t B, int64_t Tq, const AttentionSpec& spec,
                                 const View& state);

// Scores are kept as q . k and become powers of two: p = 2^(factor2 s - ...). A negative scale is
// factor2 > 0 with the signs of q changed, so that the largest score is the largest power; a scale
// of zero is a factor that hides nothing, -infinity times zero being no number. With a softcap scores
// become tanh(inner s) on the way, and the factor is that of the cap.
struct ScoreScale {
  explicit ScoreScale(const AttentionSpec& spec)
      : flip(spec.scale < 0), positive(flip ? -spec.scale : spec.scale) {
    const double factor = static_cast<double>(spec.softcap > 0 ? spec.softcap : positive) * kLog2E;
    factor2 = factor < 1e-30 ? 1e-30f : static_cast<float>(factor);
    if (spec.softcap > 0) inner = positive / spec.softcap;
  }
  static constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;
  bool flip;
  float positive, factor2, inner = 0;
};

// The arithmetic that computes a spec where `asked` would: that of floats where scores are capped.
inline const AttentionBlocks& blocks_for(const AttentionBlocks& asked, const AttentionSpec& spec) {
  return spec.softcap > 0 && asked.pairs ? attention_blocks(DType::f32) : asked;
}

// s = tanh(inner s) of a tile; slope = 1 - s^2, unless it is null.
inline void cap_scores(float* s, float* slope, int64_t keys, int64_t lanes, float inner) {
  for (int64_t k = 0; k < keys; ++k) {
    float* const row = s + k * kAttentionBlock;
    for (int64_t i = 0; i < lanes; ++i) row[i] = softcap_tanh(row[i] * inner);
    if (!slope) continue;
    float* const to = slope + k * kAttentionBlock;
    for (int64_t i = 0; i < lanes; ++i) to[i] = 1.0f - row[i] * row[i];
  }
}

// How many blocks of queries (or keys) a piece of work takes together, so that what it packs is
// used by all of them: as many as leave every thread four pieces.
inline int64_t blocks_together(int64_t heads, int64_t blocks, int threads, int64_t most) {
  int64_t n = most;
  while (n > 1 && (n >= 2 * blocks || heads * ((blocks + n - 1) / n) < int64_t{4} * threads))
    n /= 2;
  return n;
}

// The room that windows of documents take: the most of f(b, t) over b windows of t tokens, b up to B
// and t up to T, since a micro-batch may have fewer and shorter ones than planned, and fewer are cut
// into more pieces. f may fall with b, and with t from one block to the next.
template <class F>
int64_t most_of_windows(const AttentionSpec& spec, int64_t B, int64_t T, F&& f) {
  if (!spec.document_start.defined()) return f(B, T);
  int64_t most = 0;
  for (int64_t b = 1; b <= B; ++b)
    for (int64_t t = std::min(kAttentionBlock, T);; t = std::min(t + kAttentionBlock, T)) {
      most = std::max(most, f(b, t));
      if (t == T) break;
    }
  return most;
}

// Query-key pairs that are computed, for one head of one sequence.
constexpr int64_t attention_pairs(int64_t T, const AttentionSpec& spec) {
  if (!spec.causal) return T * T;
  const int64_t most = spec.window > 0 && spec.window < T ? spec.window : T;  // of a query
  return most * (most + 1) / 2 + (T - most) * most;
}

// Keys that sequence b has.
inline int64_t attention_keys(const AttentionSpec& spec, int64_t b, int64_t T) {
  return spec.key_lengths.defined() ? spec.key_lengths.as<int32_t>()[b] : T;
}

// Where the documents of sequence b begin and end, by position; null: it is one document, or ends
// at its query.
inline const int32_t* attention_starts(const AttentionSpec& spec, int64_t b, int64_t T) {
  return spec.document_start.defined() ? spec.document_start.as<int32_t>() + b * T : nullptr;
}
inline const int32_t* attention_ends(const AttentionSpec& spec, int64_t b, int64_t T) {
  return spec.document_end.defined() ? spec.document_end.as<int32_t>() + b * T : nullptr;
}
// The keys that each query of a sequence sees: from `first` to before `end`. Neither ever descends,
// so the first query of a block says where the keys of the block begin, the last where they end.
struct SeenKeys {
  const int32_t *starts, *ends;  // of the queries' documents; null: as above
  int64_t window;                // 0: no limit
  int64_t first_pos;             // position of query 0
  int64_t keys;                  // how many exist
  bool causal;

  int64_t first(int64_t i) const {
    const int64_t document = starts ? starts[i] : 0, far = first_pos + i - window + 1;
    return window > 0 && far > document ? far : document;
  }
  int64_t end(int64_t i) const {
    if (causal) return first_pos + i + 1 < keys ? first_pos + i + 1 : keys;
    return ends ? ends[i] : keys;
  }
  // Of the block that holds the first key.
  int64_t first_block(int64_t i) const { return first(i) / kAttentionBlock * kAttentionBlock; }
};

// Where the keys and values of one sequence and head are, and how the queries lie among them.
template <class T>
struct ForwardHead {
  const T *q, *k, *v;
  int64_t q_stride, kv_stride;
  int64_t ring;                  // rows in which keys lie by position mod ring; 0: by position
  int64_t queries;               // how many
  int64_t keys;                  // how many exist
  int64_t first_pos;             // position of query 0
  const int32_t *starts, *ends;  // of the queries' documents, as SeenKeys has them
  T* out;
  int64_t out_stride;
  float* lse;  // may be null
  RandomKey key;
  uint64_t sample;
  int64_t head;

  SeenKeys seen(const AttentionSpec& spec) const {
    return {starts, ends, spec.window, first_pos, keys, spec.causal};
  }
  // The first element of the block of keys, or values, from position j on.
  const T* keys_at(int64_t j) const { return k + row(j) * kv_stride; }
  const T* values_at(int64_t j) const { return v + row(j) * kv_stride; }
  int64_t row(int64_t j) const { return ring > 0 ? j % ring : j; }
};

// Hands out pieces of one thread's scratch, each a whole number of cache lines.
class ScratchPieces {
 public:
  explicit ScratchPieces(float* data) : data_(data) {}
  float* take(int64_t floats) {
    float* p = data_ ? data_ + used_ : nullptr;
    used_ += (floats + 15) / 16 * 16;
    return p;
  }
  int64_t used() const { return used_; }

 private:
  float* data_;
  int64_t used_ = 0;
};

// Scores of keys that lie after their query become minus infinity.
inline void hide_future(float* s, int64_t keys, int64_t lanes, int64_t first_key,
                        int64_t first_query) {
  for (int64_t k = 0; k < keys; ++k) {
    const int64_t hidden = first_key + k - first_query;  // lanes below this one
    for (int64_t i = 0; i < (hidden < lanes ? hidden : lanes); ++i)
      s[k * kAttentionBlock + i] = -__builtin_inff();
  }
}

// Scores of keys before the first that their query sees become minus infinity: of the lanes from
// the first query on whose keys begin after this one. `i0` is the first query.
inline void hide_earlier_keys(float* s, int64_t keys, int64_t rows, int64_t first_key,
                              const SeenKeys& seen, int64_t i0) {
  if (seen.first(i0 + rows - 1) <= first_key) return;
  int64_t seeing = 0;
  for (int64_t k = 0; k < keys && seeing < rows; ++k) {
    while (seeing < rows && seen.first(i0 + seeing) <= first_key + k) ++seeing;
    for (int64_t i = seeing; i < rows; ++i) s[k * kAttentionBlock + i] = -__builtin_inff();
  }
}

// Scores of keys behind the document of their query become minus infinity: of the lanes up to the
// last query whose keys end at or before this one. `i0` is the first query.
inline void hide_later_keys(float* s, int64_t keys, int64_t rows, int64_t first_key,
                            const SeenKeys& seen, int64_t i0) {
  if (seen.end(i0) >= first_key + keys) return;
  int64_t done = 0;
  for (int64_t k = 0; k < keys; ++k) {
    while (done < rows && seen.end(i0 + done) <= first_key + k) ++done;
    for (int64_t i = 0; i < done; ++i) s[k * kAttentionBlock + i] = -__builtin_inff();
  }
}

// Keys of a tile as products take them. Those beyond `keys` are zeros that no query sees, so that
// their p and ds are zero.
inline int64_t keys_in_steps(const AttentionBlocks& blocks, int64_t keys) {
  const int64_t step = 2 * blocks.step;
  return blocks.step == 1 ? keys : (keys + step - 1) / step * step;
}

}  // namespace snug
