// The activations and their derivatives over the sixteen floats V; see layers/ops/row_loops.h and
// activation.h. Written by hand because what the compiler makes of the plain formulas, minima and
// maxima with every rule for NaN among them, takes 100 cycles for sixteen values, this a third.
#pragma once

// 1 / (1 + e^-x) for x from -88 on.
inline V sigmoid_of(V minus_x) {
  const V one = set1(1.0f);
  return one / (one + exp_of(minus_x));
}

// (1 + tanh(u)) / 2 is sigmoid(2 u), which takes one division less and keeps small values exact.
struct GeluTanhLoop {
  static constexpr float kTwice = 2.0f * 0.7978845608028654f, kCube = 0.044715f;
  // e^(-2 u) of z in [-10, 10]: at either end the sigmoid is 0 or 1 to the last bit of any result,
  // and the power is of 87.32 at most, so that it needs no bounds of its own.
  static V power(V z, V square) {
    return exp_within(z * fma(square, set1(-kTwice * kCube), set1(-kTwice)));
  }
  static V value(V x) {
    const V low = max_of(set1(-10.0f), x), z = min_of(set1(10.0f), low), one = set1(1.0f);
    return low * (one / (one + power(z, z * z)));
  }
  // s (1 - s) as e s^2: where s is nearly 1, 1 - s has lost the digits that x^3 then magnifies.
  static V slope(V x) {
    const V z = min_of(set1(10.0f), max_of(set1(-10.0f), x)), square = z * z;
    const V one = set1(1.0f), e = power(z, square), s = one / (one + e);
    return fma(z * (e * s * s), fma(square, set1(3.0f * kTwice * kCube), set1(kTwice)), s);
  }
};

struct GeluErfLoop {
  // Abramowitz and Stegun 7.1.26 (erf to 1.5e-7): (1 + erf(x / sqrt(2))) / 2 is g below zero and
  // 1 - g above, with e = e^(-x^2 / 2).
  static V half(V x, V e) {
    const V zero = set1(0.0f), a = max_of(zero - x, x) * set1(0.7071067811865476f);
    const V t = set1(1.0f) / fma(set1(0.3275911f), a, set1(1.0f));
    V p = fma(set1(0.5f * 1.061405429f), t, set1(0.5f * -1.453152027f));
    p = fma(p, t, set1(0.5f * 1.421413741f));
    p = fma(p, t, set1(0.5f * -0.284496736f));
    p = fma(p, t, set1(0.5f * 0.254829592f));
    const V g = p * t * e;
    return g + zero_below(x, zero, fnma(set1(2.0f), g, set1(1.0f)));
  }
  static V power(V x) { return exp_of(x * x * set1(-0.5f)); }
  static V value(V x) {
    const V z = max_of(set1(-30.0f), x);
    return z * half(z, power(z));
  }
  static V slope(V x) {
    const V z = min_of(set1(30.0f), max_of(set1(-30.0f), x)), e = power(z);
    return fma(z * set1(0.3989422804014327f), e, half(z, e));
  }
};

struct ReluLoop {
  static V value(V x) { return max_of(set1(0.0f), x); }
  static V slope(V x) {
    const V zero = set1(0.0f), nan = max_of(zero, min_of(zero, x));  // or zero
    return zero_below(x, set1(1e-45f), set1(1.0f)) + nan;            // the least float above 0
  }
};

struct SiluLoop {
  static V value(V x) {
    const V z = max_of(set1(-88.0f), x);
    return z * sigmoid_of(set1(0.0f) - z);
  }
  static V slope(V x) {
    const V z = max_of(set1(-88.0f), x), s = sigmoid_of(set1(0.0f) - z);
    // s is 1 long before z is so large that nothing times it would be no number.
    const V rest = min_of(set1(88.0f), z) * (set1(1.0f) - s);
    return fma(s, rest, s);
  }
};

struct TanhLoop {
  // q / (q + 2) with q = e^(2x) - 1, which keeps the digits of small x: as in exp_within, of which
  // the polynomial less its 1 is e^r - 1, so q = 2^n (e^r - 1) + (2^n - 1). From 10 on it is 1.
  static V value(V x) {
    const V shift = set1(12583039.0f), one = set1(1.0f);
    const V z = min_of(set1(10.0f), max_of(set1(-10.0f), x)), u = z + z;
    const V biased = fma(u, set1(1.44269504088896341f), shift);
    const V n = biased - shift, power = exponent_bits(biased);
    const V r = fnma(n, set1(-2.12194440e-4f), fnma(n, set1(0.693359375f), u));
    const V q = fma(power, exp_less_one(r), power - one);
    return q / (q + set1(2.0f));
  }
  static V slope(V x) {
    const V one = set1(1.0f), t = value(x);
    return (one - t) * (one + t);
  }
};

template <class A, class T>
void value_loop(T* y, const T* x, int64_t n) {
  each16(n, [=](int64_t i, int64_t r) { store_lanes(y + i, A::value(load_lanes(x + i, r)), r); });
}

template <class A, class T>
void slope_loop(T* dx, const T* dy, const T* x, int64_t n) {
  each16(n, [=](int64_t i, int64_t r) {
    store_lanes(dx + i, load_lanes(dy + i, r) * A::slope(load_lanes(x + i, r)), r);
  });
}

// y of x as the type of `pre` would keep it.
template <class A, class T>
void rounded_value_loop(T* y, T* pre, const float* x, int64_t n) {
  each16(n, [=](int64_t i, int64_t r) {
    store_lanes(pre + i, load_lanes(x + i, r), r);
    store_lanes(y + i, A::value(load_lanes(pre + i, r)), r);
  });
}

template <class A, class T>
constexpr ActivationLoops<T> kLoopsOf = {value_loop<A, T>, slope_loop<A, T>,
                                         rounded_value_loop<A, T>};

// In the order of activation_dispatch.h.
template <class T>
constexpr ActivationLoops<T> kActivationLoops[] = {kLoopsOf<GeluTanhLoop, T>,
                                                   kLoopsOf<GeluErfLoop, T>, kLoopsOf<ReluLoop, T>,
                                                   kLoopsOf<SiluLoop, T>, kLoopsOf<TanhLoop, T>};
