#include <immintrin.h>

#include "layers/ops/row_loops.h"

namespace snug {
namespace {

// In this order: each uses what the ones before define.
#include "engine/kernels/wide_avx2.h"
//
#include "engine/kernels/wide.h"

// Eight 64-bit lanes, and what the generator does with them.
struct U {
  __m256i lo, hi;
};
constexpr int kCounterVectors = 2;
inline U uset(uint64_t x) {
  const __m256i v = _mm256_set1_epi64x(static_cast<int64_t>(x));
  return {v, v};
}
inline U uadd(U a, U b) {
  return {_mm256_add_epi64(a.lo, b.lo), _mm256_add_epi64(a.hi, b.hi)};
}
inline U umul(U a, U b) {
  return {_mm256_mul_epu32(a.lo, b.lo), _mm256_mul_epu32(a.hi, b.hi)};
}
inline U ushr32(U a) {
  return {_mm256_srli_epi64(a.lo, 32), _mm256_srli_epi64(a.hi, 32)};
}
inline U ushl32(U a) {
  return {_mm256_slli_epi64(a.lo, 32), _mm256_slli_epi64(a.hi, 32)};
}
inline U uxor3(U a, U b, U c) {
  return {_mm256_xor_si256(_mm256_xor_si256(a.lo, b.lo), c.lo),
          _mm256_xor_si256(_mm256_xor_si256(a.hi, b.hi), c.hi)};
}
// The number of each lane's counter, so that unpacking leaves them in order.
inline U counter_steps() {
  return {_mm256_set_epi64x(3, 1, 2, 0), _mm256_set_epi64x(7, 5, 6, 4)};
}
// Words 0 and 2 in the low halves, 1 and 3 in the high ones, of eight counters: 64 channels, those
// whose half is at least `upper` in bits, those where it is equal in open.
inline void keep_bits(uint32_t* bits, uint32_t* open, U w0, U w1, U w2, U w3, uint32_t upper) {
  const __m256i t = _mm256_set1_epi16(static_cast<int16_t>(upper));
  const auto half = [&](int k, __m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i ab = _mm256_blend_epi32(a, b, 0xAA), cd = _mm256_blend_epi32(c, d, 0xAA);
    const __m256i first = _mm256_unpacklo_epi64(ab, cd), second = _mm256_unpackhi_epi64(ab, cd);
    // A bit for each of 16 masks of 16 bits, twice.
    const auto flags = [](__m256i x, __m256i y) {
      const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(x, y), 0xD8);
      return static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
    };
    const auto at_least = [t](__m256i u) { return _mm256_cmpeq_epi16(_mm256_max_epu16(u, t), u); };
    bits[k] = flags(at_least(first), at_least(second));
    open[k] = flags(_mm256_cmpeq_epi16(first, t), _mm256_cmpeq_epi16(second, t));
  };
  half(0, w0.lo, w1.lo, w2.lo, w3.lo);
  half(1, w0.hi, w1.hi, w2.hi, w3.hi);
}

#include "layers/ops/row_loops_activation.h"
#include "layers/ops/row_loops_drop.h"
#include "layers/ops/row_loops_norm.h"
#include "layers/ops/row_loops_softmax.h"

}  // namespace

template <class T>
ActivationLoops<T> activation_loops_avx2(int place) {
  return kActivationLoops<T>[place];
}
template ActivationLoops<float> activation_loops_avx2(int);
template ActivationLoops<bf16> activation_loops_avx2(int);
template ActivationLoops<f16> activation_loops_avx2(int);

template <class T, class W>
NormLoops<T, W> norm_loops_avx2() {
  return {norm_forward<T, W>, norm_backward<T, W>};
}
template NormLoops<float, float> norm_loops_avx2();
template NormLoops<bf16, bf16> norm_loops_avx2();
template NormLoops<bf16, float> norm_loops_avx2();
template NormLoops<f16, f16> norm_loops_avx2();
template NormLoops<f16, float> norm_loops_avx2();

template <class T>
DropLoops<T> drop_loops_avx2() {
  return {drop_row_loop<T>, add_dropped_loop<T>};
}
template DropLoops<float> drop_loops_avx2();
template DropLoops<bf16> drop_loops_avx2();
template DropLoops<f16> drop_loops_avx2();

SoftmaxLoops softmax_loops_avx2() {
  return {max_loop, exp_sum_loop};
}
template <class T>
SoftmaxGradient<T> softmax_gradient_avx2() {
  return softmax_gradient_loop<T>;
}
template SoftmaxGradient<float> softmax_gradient_avx2();
template SoftmaxGradient<bf16> softmax_gradient_avx2();
template SoftmaxGradient<f16> softmax_gradient_avx2();

}  // namespace snug
