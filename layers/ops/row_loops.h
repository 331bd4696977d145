// The rows of activations, normalisations, dropout and the head's softmax, once per instruction
// set: AVX2 and AVX-512 give the same bits. They take pointers and run in the caller's thread.
// Internal to the ops, whose headers have the mathematics.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"
#include "engine/core/rng.h"
#include "layers/ops/activation.h"

namespace snug {

// T of x, y, dx, dy: float, bf16, f16; W of the weight: T or float.
template <class T, class W>
struct NormLoops {
  // Rows behind one another, each with the bits it has alone. past_caches: rows are whole lines of
  // 64 bytes, and y or dx is written past the caches; who is told of it is told after a store
  // fence. bias may be null; y may be x.
  void (*forward)(T* y, float* mean, float* rstd, const T* x, const W* weight, const W* bias,
                  int64_t rows, int64_t c, float eps, bool past_caches);
  // dx = or += ..., dweight += and dbias += in float, row after row; either of them may be null. dx
  // may be dy unless it is added to.
  void (*backward)(T* dx, bool add_dx, float* dweight, float* dbias, const T* dy, const T* x,
                   const W* weight, const float* mean, const float* rstd, int64_t rows, int64_t c,
                   bool past_caches);
};
template <class T, class W>
NormLoops<T, W> norm_loops();

// The same of layers/ops/rmsnorm.h.
template <class T, class W>
struct RmsLoops {
  void (*forward)(T* y, float* rstd, const T* x, const W* weight, bool unit_offset, int64_t rows,
                  int64_t c, float eps, bool past_caches);
  void (*backward)(T* dx, bool add_dx, float* dweight, const T* dy, const T* x, const W* weight,
                   bool unit_offset, const float* rstd, int64_t rows, int64_t c, bool past_caches);
};
template <class T, class W>
RmsLoops<T, W> rms_loops();

// What is drawn for one row: the key and counter of engine/core/rng.h, where the block of channels
// is the word that runs. A channel is kept if its channel_number() is at least `threshold`.
struct MaskRow {
  uint32_t k0, k1;
  uint64_t sample;
  uint32_t position;
  uint32_t threshold;
  float kept;  // factor of the kept channels
};
template <class T>
struct DropLoops {
  void (*drop)(T* y, const T* x, const MaskRow& mask, int64_t c);                  // y = dropout(x)
  void (*add)(T* y, const T* x, const T* branch, const MaskRow& mask, int64_t c);  // x + dropout
};
template <class T>
DropLoops<T> drop_loops();

// Columns whose sum of exponentials is kept in 16 fp32 lanes before it goes to fp64.
inline constexpr int64_t kSumColumns = 1024;

struct SoftmaxLoops {
  float (*max)(const float* z, int64_t n);
  // Sum of e^(z - shift). `next`, if not null, is a row of as many columns that will be read after
  // this one: it is called near meanwhile.
  double (*exp_sum)(const float* z, int64_t n, float shift, const float* next);
};
SoftmaxLoops softmax_loops();

// dz[v] = e^(z[v] - shift) factor for v < V, less `gradient` at the target; 0 for V <= v < Vp. dz
// may be z if T is float.
template <class T>
using SoftmaxGradient = void (*)(T* dz, const float* z, int64_t V, int64_t Vp, float shift,
                                 float factor, int64_t target, float gradient);
template <class T>
SoftmaxGradient<T> softmax_gradient();

// n values; y may be x, dx may be dy or x.
template <class T>
struct ActivationLoops {
  void (*values)(T* y, const T* x, int64_t n);
  void (*slopes)(T* dx, const T* dy, const T* x, int64_t n);  // dx = dy f'(x)
  // pre = x rounded, y = f(pre): what a product does that ends in an activation.
  void (*rounded)(T* y, T* pre, const float* x, int64_t n);
};
template <class T>
ActivationLoops<T> activation_loops(Activation kind);

template <class T>
struct GatedLoops {
  // y = f(gate) up. past_caches: as for NormLoops, here and below.
  void (*values)(T* y, const T* gate, const T* up, int64_t n, bool past_caches);
  // dgate = dy up f'(gate), dup = dy f(gate); they may be gate and up, or either dy.
  void (*slopes)(T* dgate, T* dup, const T* dy, const T* gate, const T* up, int64_t n,
                 bool past_caches);
};
template <class T>
GatedLoops<T> gated_loops(Activation kind);

// Of layers/ops/rope.h. angles: f cos and f sin of position times the inverse frequencies, of half
// a rotary width; the factor of the sine has the direction. rotate: of `heads` heads of width d the
// first 2 half channels; y may be x.
template <class T>
struct RopeLoops {
  void (*angles)(float* cos, float* sin, const float* inverse_frequencies, float position,
                 float cos_factor, float sin_factor, int64_t half);
  void (*rotate)(T* y, const T* x, const float* cos, const float* sin, int64_t heads, int64_t d,
                 int64_t half);
};
template <class T>
RopeLoops<T> rope_loops();

// The versions, for the choices above; activations by their place in activation_dispatch.h.
template <class T>
ActivationLoops<T> activation_loops_avx2(int place);
template <class T>
ActivationLoops<T> activation_loops_avx512(int place);
template <class T>
GatedLoops<T> gated_loops_avx2(int place);
template <class T>
GatedLoops<T> gated_loops_avx512(int place);
template <class T, class W>
NormLoops<T, W> norm_loops_avx2();
template <class T, class W>
NormLoops<T, W> norm_loops_avx512();
template <class T, class W>
RmsLoops<T, W> rms_loops_avx2();
template <class T, class W>
RmsLoops<T, W> rms_loops_avx512();
template <class T>
RopeLoops<T> rope_loops_avx2();
template <class T>
RopeLoops<T> rope_loops_avx512();
template <class T>
DropLoops<T> drop_loops_avx2();
template <class T>
DropLoops<T> drop_loops_avx512();
// bf16 where the CPU rounds to it; use_avx512_bf16() of engine/core/isa.h.
ActivationLoops<bf16> activation_loops_avx512_bf16(int place);
GatedLoops<bf16> gated_loops_avx512_bf16(int place);
template <class W>
NormLoops<bf16, W> norm_loops_avx512_bf16();
template <class W>
RmsLoops<bf16, W> rms_loops_avx512_bf16();
RopeLoops<bf16> rope_loops_avx512_bf16();
DropLoops<bf16> drop_loops_avx512_bf16();
SoftmaxLoops softmax_loops_avx2();
SoftmaxLoops softmax_loops_avx512();
template <class T>
SoftmaxGradient<T> softmax_gradient_avx2();
template <class T>
SoftmaxGradient<T> softmax_gradient_avx512();

}  // namespace snug
