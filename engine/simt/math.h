// Functions of float, chosen in this one place. Included by engine/simt/simt.h.
#pragma once

namespace snug::simt {
inline namespace SIMT_SIDE {

__device__ inline float exp(float x) {
  return ::expf(x);
}
__device__ inline float exp2(float x) {
  return ::exp2f(x);
}
__device__ inline float log(float x) {
  return ::logf(x);
}
__device__ inline float tanh(float x) {
  return ::tanhf(x);
}
__device__ inline float erf(float x) {
  return ::erff(x);
}
__device__ inline float sqrt(float x) {
  return ::sqrtf(x);
}
// Two IEEE roundings, the same bits everywhere; it stands once a row.
__device__ inline float rsqrt(float x) {
  return 1.0f / ::sqrtf(x);
}
// x y + z with one rounding.
__device__ inline float fma(float x, float y, float z) {
  return ::fmaf(x, y, z);
}
// The number if the other is a NaN.
__device__ inline float min(float x, float y) {
  return ::fminf(x, y);
}
__device__ inline float max(float x, float y) {
  return ::fmaxf(x, y);
}
__device__ inline float abs(float x) {
  return ::fabsf(x);
}

}  // namespace SIMT_SIDE
}  // namespace snug::simt
