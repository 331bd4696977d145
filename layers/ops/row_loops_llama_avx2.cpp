// What gated activation, RMS normalisation and rotary positions add to row_loops_avx2.cpp. In a
// file of its own: one that holds too much is no longer inlined.
#include <immintrin.h>

#include "layers/ops/row_loops.h"

namespace snug {
namespace {

// In this order: each uses what the ones before define.
#include "engine/kernels/wide_avx2.h"
//
#include "engine/kernels/wide.h"
//
#include "layers/ops/row_loops_activation.h"
#include "layers/ops/row_loops_norm.h"
//
#include "layers/ops/row_loops_gated.h"
#include "layers/ops/row_loops_rms.h"
#include "layers/ops/row_loops_rope.h"

}  // namespace

template <class T>
GatedLoops<T> gated_loops_avx2(int place) {
  return kGatedLoops<T>[place];
}
template GatedLoops<float> gated_loops_avx2(int);
template GatedLoops<bf16> gated_loops_avx2(int);
template GatedLoops<f16> gated_loops_avx2(int);

template <class T, class W>
RmsLoops<T, W> rms_loops_avx2() {
  return {rms_forward<T, W>, rms_backward<T, W>};
}
template RmsLoops<float, float> rms_loops_avx2();
template RmsLoops<bf16, bf16> rms_loops_avx2();
template RmsLoops<bf16, float> rms_loops_avx2();
template RmsLoops<f16, f16> rms_loops_avx2();
template RmsLoops<f16, float> rms_loops_avx2();

template <class T>
RopeLoops<T> rope_loops_avx2() {
  return {rope_angles, rope_rotate<T>};
}
template RopeLoops<float> rope_loops_avx2();
template RopeLoops<bf16> rope_loops_avx2();
template RopeLoops<f16> rope_loops_avx2();

}  // namespace snug
