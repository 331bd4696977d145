#include "layers/ops/row_loops.h"

#include <type_traits>

#include "engine/core/isa.h"
#include "layers/ops/activation_dispatch.h"

namespace snug {

template <class T, class W>
NormLoops<T, W> norm_loops() {
  if constexpr (std::is_same_v<T, bf16>)
    if (use_avx512_bf16()) return norm_loops_avx512_bf16<W>();
  return use_avx512() ? norm_loops_avx512<T, W>() : norm_loops_avx2<T, W>();
}
template NormLoops<float, float> norm_loops();
template NormLoops<bf16, bf16> norm_loops();
template NormLoops<bf16, float> norm_loops();
template NormLoops<f16, f16> norm_loops();
template NormLoops<f16, float> norm_loops();

template <class T, class W>
RmsLoops<T, W> rms_loops() {
  if constexpr (std::is_same_v<T, bf16>)
    if (use_avx512_bf16()) return rms_loops_avx512_bf16<W>();
  return use_avx512() ? rms_loops_avx512<T, W>() : rms_loops_avx2<T, W>();
}
template RmsLoops<float, float> rms_loops();
template RmsLoops<bf16, bf16> rms_loops();
template RmsLoops<bf16, float> rms_loops();
template RmsLoops<f16, f16> rms_loops();
template RmsLoops<f16, float> rms_loops();

template <class T>
RopeLoops<T> rope_loops() {
  if constexpr (std::is_same_v<T, bf16>)
    if (use_avx512_bf16()) return rope_loops_avx512_bf16();
  return use_avx512() ? rope_loops_avx512<T>() : rope_loops_avx2<T>();
}
template RopeLoops<float> rope_loops();
template RopeLoops<bf16> rope_loops();
template RopeLoops<f16> rope_loops();

template <class T>
DropLoops<T> drop_loops() {
  if constexpr (std::is_same_v<T, bf16>)
    if (use_avx512_bf16()) return drop_loops_avx512_bf16();
  return use_avx512() ? drop_loops_avx512<T>() : drop_loops_avx2<T>();
}
template DropLoops<float> drop_loops();
template DropLoops<bf16> drop_loops();
template DropLoops<f16> drop_loops();

SoftmaxLoops softmax_loops() {
  return use_avx512() ? softmax_loops_avx512() : softmax_loops_avx2();
}
template <class T>
SoftmaxGradient<T> softmax_gradient() {
  return use_avx512() ? softmax_gradient_avx512<T>() : softmax_gradient_avx2<T>();
}
template SoftmaxGradient<float> softmax_gradient();
template SoftmaxGradient<bf16> softmax_gradient();
template SoftmaxGradient<f16> softmax_gradient();

// The number of an activation in activation_dispatch.h.
static int place_of(Activation kind) {
  int place = 0;
  dispatch_activation<std::integral_constant<int, 0>, std::integral_constant<int, 1>,
                      std::integral_constant<int, 2>, std::integral_constant<int, 3>,
                      std::integral_constant<int, 4>>(kind, [&](auto i) { place = i; });
  return place;
}

template <class T>
ActivationLoops<T> activation_loops(Activation kind) {
  const int place = place_of(kind);
  if constexpr (std::is_same_v<T, bf16>)
    if (use_avx512_bf16()) return activation_loops_avx512_bf16(place);
  return use_avx512() ? activation_loops_avx512<T>(place) : activation_loops_avx2<T>(place);
}
template ActivationLoops<float> activation_loops(Activation);
template ActivationLoops<bf16> activation_loops(Activation);
template ActivationLoops<f16> activation_loops(Activation);

template <class T>
GatedLoops<T> gated_loops(Activation kind) {
  const int place = place_of(kind);
  if constexpr (std::is_same_v<T, bf16>)
    if (use_avx512_bf16()) return gated_loops_avx512_bf16(place);
  return use_avx512() ? gated_loops_avx512<T>(place) : gated_loops_avx2<T>(place);
}
template GatedLoops<float> gated_loops(Activation);
template GatedLoops<bf16> gated_loops(Activation);
template GatedLoops<f16> gated_loops(Activation);

}  // namespace snug
