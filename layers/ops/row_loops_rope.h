// Rows of rotary position embedding over the sixteen floats V; see layers/ops/row_loops.h.
// Flattened, as in row_loops_gated.h.
#pragma once

// factor times cosine and sine of x, for x from 0 to 4.2e6: x = k pi + r with |r| <= pi/2 (k pi in
// two parts; the first difference is exact), polynomials that err by 2e-8 there, and the sign of
// an odd k. layers/ops/rope.cu has the same for one float.
struct CosSin {
  V cos, sin;
};
inline CosSin cos_sin_of(V x, V cos_factor, V sin_factor) {
  const V shift = set1(12582912.0f), one = set1(1.0f), two = set1(2.0f);
  const V k = fma(x, set1(0.318309873f), shift) - shift;
  const V r = fnma(k, set1(-8.74227766e-8f), fnma(k, set1(3.14159274f), x)), z = r * r;
  V s = fma(set1(-2.40782789e-8f), z, set1(2.75363800e-6f));
  s = fma(s, z, set1(-1.98410853e-4f));
  s = fma(s, z, set1(8.33333284e-3f));
  s = fma(s, z, set1(-1.66666672e-1f));
  V c = fma(set1(2.01795047e-9f), z, set1(-2.75423162e-7f));
  c = fma(c, z, set1(2.48014549e-5f));
  c = fma(c, z, set1(-1.38888881e-3f));
  c = fma(c, z, set1(4.16666679e-2f));
  c = fma(c, z, set1(-0.5f));
  const V odd = fnma(fma(k, set1(0.5f), shift) - shift, two, k);
  const V sign = fnma(odd * odd, two, one);
  return {fma(c, z, one) * sign * cos_factor, fma(s * z, r, r) * sign * sin_factor};
}

__attribute__((flatten)) inline void rope_angles(float* cos, float* sin,
                                                 const float* inverse_frequencies, float position,
                                                 float cos_factor, float sin_factor, int64_t half) {
  each16(half, [=](int64_t i, int64_t r) {
    const CosSin a = cos_sin_of(set1(position) * load_lanes(inverse_frequencies + i, r),
                                set1(cos_factor), set1(sin_factor));
    store_lanes(cos + i, a.cos, r);
    store_lanes(sin + i, a.sin, r);
  });
}

template <class T>
__attribute__((flatten)) void rope_rotate(T* y, const T* x, const float* cos, const float* sin,
                                          int64_t heads, int64_t d, int64_t half) {
  for (int64_t h = 0; h < heads; ++h, x += d, y += d)
    each16(half, [=](int64_t i, int64_t r) {
      const V a = load_lanes(x + i, r), b = load_lanes(x + half + i, r);
      const V c = load_lanes(cos + i, r), s = load_lanes(sin + i, r);
      store_lanes(y + i, fnma(b, s, a * c), r);
      store_lanes(y + half + i, fma(a, s, b * c), r);
    });
}
