// Vector accesses. Included by engine/simt/simt.h.
#pragma once

namespace snug::simt {
inline namespace SIMT_SIDE {

// N neighbours in registers, moved by one access (or two of 16 bytes).
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  static_assert((N & (N - 1)) == 0 && sizeof(T) * N <= 32);

  T v[N];

  __device__ T& operator[](int i) { return v[i]; }
  __device__ const T& operator[](int i) const { return v[i]; }

  __device__ static Pack load(const T* p, SIMT_WHERE) { return load_vector<Pack>(p, where); }
  __device__ void store(T* p, SIMT_WHERE) const { store_vector(p, *this, where); }

  // Elements i to i + N - 1.
  __device__ static Pack load(const Shared<T>& s, Index i) { return load_vector<Pack>(s, i); }
  __device__ void store(const Shared<T>& s, Index i) const { store_vector(s, i, *this); }
};

// Elements of T that 16 bytes hold.
template <class T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

}  // namespace SIMT_SIDE
}  // namespace snug::simt
