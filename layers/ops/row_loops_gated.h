// Gated activations over the sixteen floats V, of the formulas in row_loops_activation.h; see
// layers/ops/row_loops.h and gated_activation.h. Loops are flattened: what they call would else be
// left as calls, four times as slow in AVX2, by a compiler that has inlined enough in one file.
#pragma once

template <class A, bool kStream, class T>
__attribute__((flatten)) void gated_run(T* y, const T* gate, const T* up, int64_t n) {
  each16(n, [=](int64_t i, int64_t r) {
    put<kStream>(y + i, A::value(load_lanes(gate + i, r)) * load_lanes(up + i, r), r);
  });
}
template <class A, class T>
void gated_loop(T* y, const T* gate, const T* up, int64_t n, bool past_caches) {
  past_caches ? gated_run<A, true>(y, gate, up, n) : gated_run<A, false>(y, gate, up, n);
}

// What value and slope have in common, the power above all, the compiler makes once.
template <class A, bool kStream, class T>
__attribute__((flatten)) void gated_slope_run(T* dgate, T* dup, const T* dy, const T* gate,
                                              const T* up, int64_t n) {
  each16(n, [=](int64_t i, int64_t r) {
    const V x = load_lanes(gate + i, r), u = load_lanes(up + i, r), d = load_lanes(dy + i, r);
    const V dg = d * u * A::slope(x), du = d * A::value(x);
    put<kStream>(dgate + i, dg, r);
    put<kStream>(dup + i, du, r);
  });
}
template <class A, class T>
void gated_slope_loop(T* dgate, T* dup, const T* dy, const T* gate, const T* up, int64_t n,
                      bool past_caches) {
  past_caches ? gated_slope_run<A, true>(dgate, dup, dy, gate, up, n)
              : gated_slope_run<A, false>(dgate, dup, dy, gate, up, n);
}

template <class A, class T>
constexpr GatedLoops<T> kGatedOf = {gated_loop<A, T>, gated_slope_loop<A, T>};

// In the order of activation_dispatch.h.
template <class T>
constexpr GatedLoops<T> kGatedLoops[] = {kGatedOf<GeluTanhLoop, T>, kGatedOf<GeluErfLoop, T>,
                                         kGatedOf<ReluLoop, T>, kGatedOf<SiluLoop, T>,
                                         kGatedOf<TanhLoop, T>};
