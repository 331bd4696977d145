#include "engine/core/rng.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace snug {

bool channel_at_least(RandomKey key, uint64_t sample, uint32_t position, uint32_t channel,
                      uint32_t bound) {
  return channel_number(key, sample, position, channel) >= bound;
}

void normal_pair(uint32_t a, uint32_t b, double* z0, double* z1) {
  const double u = (static_cast<double>(a) + 1.0) * 0x1p-32;  // (0, 1]: the logarithm is finite
  const double v = static_cast<double>(b) * 0x1p-32;
  const double r = std::sqrt(-2.0 * std::log(u));
  *z0 = r * std::cos(2.0 * M_PI * v);
  *z1 = r * std::sin(2.0 * M_PI * v);
}

namespace {

using Doubles = __m256d;

Doubles all(double v) {
  return _mm256_set1_pd(v);
}
Doubles fma(Doubles a, Doubles b, Doubles c) {
  return _mm256_fmadd_pd(a, b, c);
}

// Unsigned 32-bit integers in 64-bit lanes, exactly.
Doubles from_words(__m256i words) {
  const Doubles shifted =
      _mm256_castsi256_pd(_mm256_or_si256(words, _mm256_set1_epi64x(0x4330000000000000)));
  return _mm256_sub_pd(shifted, all(0x1p52));
}

// log(x) for 2^-32 <= x <= 1, to within 1 ulp: the method and constants of fdlibm's e_log.c
// (Sun Microsystems, 1993). x = 2^k (1 + f), sqrt(1/2) < 1 + f < sqrt(2).
Doubles logarithm(Doubles x) {
  const __m256i bits = _mm256_castpd_si256(x);
  // Adding what lies between sqrt(1/2) and 1 carries into the exponent where 1 + f would be above
  // sqrt(2).
  const __m256i shifted =
      _mm256_add_epi64(bits, _mm256_set1_epi64x(0x3ff0000000000000 - 0x3fe6a09e667f3bcd));
  const __m256i exponent = _mm256_srli_epi64(shifted, 52);  // biased by 1023
  const Doubles k = _mm256_sub_pd(from_words(exponent), all(1023.0));
  const __m256i scale = _mm256_slli_epi64(_mm256_sub_epi64(exponent, _mm256_set1_epi64x(1023)), 52);
  const Doubles f = _mm256_sub_pd(_mm256_castsi256_pd(_mm256_sub_epi64(bits, scale)), all(1.0));
  const Doubles s = _mm256_div_pd(f, _mm256_add_pd(all(2.0), f));
  const Doubles z = _mm256_mul_pd(s, s), w = _mm256_mul_pd(z, z);
  const Doubles t1 =
      _mm256_mul_pd(w, fma(w, fma(w, all(1.531383769920937332e-01), all(2.222219843214978396e-01)),
                           all(3.999999999940941908e-01)));
  const Doubles t2 = _mm256_mul_pd(
      z, fma(w,
             fma(w, fma(w, all(1.479819860511658591e-01), all(1.818357216161805012e-01)),
                 all(2.857142874366239149e-01)),
             all(6.666666666666735130e-01)));
  const Doubles R = _mm256_add_pd(t2, t1);
  const Doubles half = _mm256_mul_pd(all(0.5), _mm256_mul_pd(f, f));
  const Doubles low =
      fma(s, _mm256_add_pd(half, R), _mm256_mul_pd(k, all(1.90821492927058770002e-10)));
  return _mm256_sub_pd(_mm256_mul_pd(k, all(6.93147180369123816490e-01)),
                       _mm256_sub_pd(_mm256_sub_pd(half, low), f));
}

// sin(x) and cos(x) for 0 <= x < 6.3, each to within 1 ulp: x = k pi/2 + r + tail, then fdlibm's
// k_sin.c and k_cos.c.
void sine_cosine(Doubles x, Doubles* sine, Doubles* cosine) {
  const Doubles k =
      _mm256_round_pd(_mm256_mul_pd(x, all(M_2_PI)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // The product is exact inside the fused step and so is the difference: it is below 1 and a
  // multiple of 2^-52. What pi/2 has beyond its double follows.
  const Doubles high = _mm256_fnmadd_pd(k, all(M_PI_2), x);
  const Doubles beyond = _mm256_mul_pd(k, all(6.123233995736766e-17));
  const Doubles r = _mm256_sub_pd(high, beyond);
  const Doubles tail = _mm256_sub_pd(_mm256_sub_pd(high, r), beyond);
  const Doubles z = _mm256_mul_pd(r, r), half = _mm256_mul_pd(all(0.5), z);

  const Doubles sp =
      fma(z,
          fma(z,
              fma(z, fma(z, all(1.58969099521155010221e-10), all(-2.50507602534068634195e-08)),
                  all(2.75573137070700676789e-06)),
              all(-1.98412698298579493134e-04)),
          all(8.33333333332248946124e-03));
  const Doubles v = _mm256_mul_pd(z, r);
  // r - ((z (tail / 2 - v sp) - tail) - v S1)
  const Doubles inner = _mm256_sub_pd(
      _mm256_mul_pd(z, _mm256_sub_pd(_mm256_mul_pd(all(0.5), tail), _mm256_mul_pd(v, sp))), tail);
  const Doubles s =
      _mm256_sub_pd(r, _mm256_sub_pd(inner, _mm256_mul_pd(v, all(-1.66666666666666324348e-01))));

  const Doubles cp = _mm256_mul_pd(
      z,
      fma(z,
          fma(z,
              fma(z,
                  fma(z, fma(z, all(-1.13596475577881948265e-11), all(2.08757232129817482790e-09)),
                      all(-2.75573143513906633035e-07)),
                  all(2.48015872894767294178e-05)),
              all(-1.38888888888741095749e-03)),
          all(4.16666666666666019037e-02)));
  const Doubles one = _mm256_sub_pd(all(1.0), half);
  const Doubles rest = _mm256_add_pd(_mm256_sub_pd(_mm256_sub_pd(all(1.0), one), half),
                                     _mm256_sub_pd(_mm256_mul_pd(z, cp), _mm256_mul_pd(r, tail)));
  const Doubles c = _mm256_add_pd(one, rest);

  // Odd quadrants swap the two; sine is negative in 2 and 3, cosine in 1 and 2.
  const __m256i quadrant = _mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(k));
  const Doubles swap = _mm256_castsi256_pd(_mm256_slli_epi64(quadrant, 63));
  const auto sign = [](__m256i q) {
    return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_srli_epi64(q, 1), 63));
  };
  *sine = _mm256_xor_pd(_mm256_blendv_pd(s, c, swap), sign(quadrant));
  *cosine = _mm256_xor_pd(_mm256_blendv_pd(c, s, swap),
                          sign(_mm256_add_epi64(quadrant, _mm256_set1_epi64x(1))));
}

// Lanes whose rounding to float two computations that differ by some units of the last place may
// not agree on: within 64 of half way between two floats, or near zero. The error of either side is
// below 8: one each for logarithm (halved by the root), root, sine or cosine, and the two products,
// where a unit can double on the way.
int open_lanes(Doubles v) {
  const __m256i dropped = _mm256_and_si256(_mm256_castpd_si256(v), _mm256_set1_epi64x(0x1fffffff));
  const __m256i distance = _mm256_sub_epi64(dropped, _mm256_set1_epi64x(0x10000000 - 64));
  // 0 <= distance <= 128, both as signed numbers.
  const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi64(_mm256_setzero_si256(), distance),
                                          _mm256_cmpgt_epi64(distance, _mm256_set1_epi64x(128)));
  const Doubles small = _mm256_cmp_pd(_mm256_andnot_pd(all(-0.0), v), all(0x1p-120), _CMP_LT_OQ);
  return (~_mm256_movemask_pd(_mm256_castsi256_pd(outside)) & 15) | _mm256_movemask_pd(small);
}

void decide(const uint32_t* u, int open, double std, float* out) {
  for (int i = 0; i < 4; ++i)
    if ((open >> i) & 1) {
      double z0 = 0, z1 = 0;
      normal_pair(u[2 * i], u[2 * i + 1], &z0, &z1);
      out[2 * i] = static_cast<float>(z0 * std);
      out[2 * i + 1] = static_cast<float>(z1 * std);
    }
}

}  // namespace

void normal_floats(const uint32_t* u, int64_t pairs, double std, float* out) {
  int64_t i = 0;
  for (; i + 4 <= pairs; i += 4) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(u + 2 * i));
    const Doubles a = from_words(_mm256_and_si256(both, _mm256_set1_epi64x(0xffffffff)));
    const Doubles b = from_words(_mm256_srli_epi64(both, 32));
    const Doubles log = logarithm(_mm256_mul_pd(_mm256_add_pd(a, all(1.0)), all(0x1p-32)));
    const Doubles r = _mm256_sqrt_pd(_mm256_mul_pd(all(-2.0), log));
    Doubles sine, cosine;
    sine_cosine(_mm256_mul_pd(all(2.0 * M_PI), _mm256_mul_pd(b, all(0x1p-32))), &sine, &cosine);
    const Doubles z0 = _mm256_mul_pd(_mm256_mul_pd(r, cosine), all(std));
    const Doubles z1 = _mm256_mul_pd(_mm256_mul_pd(r, sine), all(std));
    const __m128 f0 = _mm256_cvtpd_ps(z0), f1 = _mm256_cvtpd_ps(z1);
    _mm_storeu_ps(out + 2 * i, _mm_unpacklo_ps(f0, f1));
    _mm_storeu_ps(out + 2 * i + 4, _mm_unpackhi_ps(f0, f1));
    if (const int open = open_lanes(z0) | open_lanes(z1); open != 0)
      decide(u + 2 * i, open, std, out + 2 * i);
  }
  for (; i < pairs; ++i) {
    double z0 = 0, z1 = 0;
    normal_pair(u[2 * i], u[2 * i + 1], &z0, &z1);
    out[2 * i] = static_cast<float>(z0 * std);
    out[2 * i + 1] = static_cast<float>(z1 * std);
  }
}

void normal_fill(RandomKey key, int64_t first_block, int64_t elements, double std, float* out) {
  constexpr int64_t kBlocks = 64;  // at a time, on the stack
  uint32_t words[4 * kBlocks];
  float values[4 * kBlocks];
  for (int64_t done = 0; done < elements; done += 4 * kBlocks) {
    const int64_t count = std::min(4 * kBlocks, elements - done), blocks = (count + 3) / 4;
    int64_t k = 0;
    // Philox on four neighbouring blocks, a word of each in a 64-bit lane.
    for (; k + 4 <= blocks; k += 4) {
      const int64_t first = first_block + done / 4 + k;
      const __m256i sample = _mm256_setr_epi64x(first, first + 1, first + 2, first + 3);
      const __m256i low = _mm256_set1_epi64x(0xffffffff);
      __m256i c0 = _mm256_setzero_si256(), c1 = c0, c2 = _mm256_and_si256(sample, low),
              c3 = _mm256_srli_epi64(sample, 32);
      uint32_t k0 = key.k0, k1 = key.k1;
      for (int round = 0; round < 10; ++round) {
        const __m256i p0 = _mm256_mul_epu32(c0, _mm256_set1_epi64x(0xD2511F53));
        const __m256i p1 = _mm256_mul_epu32(c2, _mm256_set1_epi64x(0xCD9E8D57));
        c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1),
                              _mm256_set1_epi64x(k0));
        c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3),
                              _mm256_set1_epi64x(k1));
        c1 = _mm256_and_si256(p1, low);
        c3 = _mm256_and_si256(p0, low);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
      }
      // Blocks side by side again: (c0, c1) and (c2, c3) of each in 64 bits.
      const __m256i first_half = _mm256_or_si256(c0, _mm256_slli_epi64(c1, 32));
      const __m256i second_half = _mm256_or_si256(c2, _mm256_slli_epi64(c3, 32));
      const __m256i even = _mm256_unpacklo_epi64(first_half, second_half);  // blocks 0 and 2
      const __m256i odd = _mm256_unpackhi_epi64(first_half, second_half);   // blocks 1 and 3
      auto* to = reinterpret_cast<__m256i*>(words + 4 * k);
      _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
    for (; k < blocks; ++k) {
      const Philox4 u = random_block(key, static_cast<uint64_t>(first_block + done / 4 + k), 0, 0);
      std::memcpy(words + 4 * k, u.data(), sizeof u);
    }
    normal_floats(words, 2 * blocks, std, values);
    std::memcpy(out + done, values, static_cast<size_t>(count) * 4);
  }
}

}  // namespace snug
