// What the passes of attention share: entry checks, the geometry, and moving blocks of q, k and v
// between the activations' dtype and fp32 scratch. Internal to the folder.
#pragma once

#include "engine/memory/context.h"
#include "layers/ops/attention.h"
#include "layers/ops/attention_blocks.h"

namespace snug {

// Throws unless the spec belongs to what is built; `T` is the number of tokens of a sequence.
void attention_check(const AttentionSpec& spec, int64_t B, int64_t T, const View& state);
// Throws unless every key length is in [1,T]. Reads values: call it inside the op.
void attention_check_key_lengths(const AttentionSpec& spec, int64_t B, int64_t T);
[[noreturn]] void attention_wrong_dtype(const View& x);

// Query-key pairs that are computed, for one head of one sequence.
constexpr int64_t attention_pairs(int64_t T, bool causal) {
  return causal ? T * (T + 1) / 2 : T * T;
}

// Keys that sequence b has.
inline int64_t attention_keys(const AttentionSpec& spec, int64_t b, int64_t T) {
  return spec.key_lengths.defined() ? spec.key_lengths.as<int32_t>()[b] : T;
}

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

// block(i,d) = scale * x(i,d), rows `ld` apart; columns D .. ld are zero.
template <class T>
void load_block(float* block, int64_t ld, const T* x, int64_t stride, int64_t rows, int64_t D,
                float scale) {
  for (int64_t i = 0; i < rows; ++i) {
    float* to = block + i * ld;
    const T* from = x + i * stride;
    for (int64_t d = 0; d < D; ++d) to[d] = to_f32(from[d]) * scale;
    for (int64_t d = D; d < ld; ++d) to[d] = 0;
  }
}

// Asks for rows that load_block will read next; they lie too far apart for the hardware to guess.
template <class T>
void prefetch_rows(const T* x, int64_t stride, int64_t rows, int64_t D) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < D + kLine - 1; d += kLine)
      __builtin_prefetch(x + i * stride + (d < D ? d : D - 1), 0, 2);
}

// turned(d,i) = block(i,d) for i < rows, zero for the lanes up to a multiple of kAttentionLanes.
inline void turn_block(float* turned, const float* block, int64_t ld, int64_t rows, int64_t D) {
  constexpr int64_t kStep = 8;
  const int64_t lanes = (rows + kAttentionLanes - 1) / kAttentionLanes * kAttentionLanes;
  for (int64_t i0 = 0; i0 < lanes; i0 += kStep)
    for (int64_t d = 0; d < D; ++d) {
      float* to = turned + d * kAttentionBlock + i0;
      for (int64_t i = 0; i < kStep; ++i) to[i] = i0 + i < rows ? block[(i0 + i) * ld + d] : 0.0f;
    }
}

// x(i,d) = turned(d,i) * factor(i).
template <class T>
void store_turned(T* x, int64_t stride, const float* turned, int64_t rows, int64_t D,
                  const float* factor) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < D; ++d)
      x[i * stride + d] = from_f32<T>(turned[d * kAttentionBlock + i] * factor[i]);
}

// Scores of keys that lie after their query become minus infinity.
inline void hide_future(float* s, int64_t keys, int64_t lanes, int64_t first_key,
                        int64_t first_query) {
  for (int64_t k = 0; k < keys; ++k) {
    const int64_t hidden = first_key + k - first_query;  // lanes below this one
    for (int64_t i = 0; i < (hidden < lanes ? hidden : lanes); ++i)
      s[k * kAttentionBlock + i] = -__builtin_inff();
  }
}

}  // namespace snug
