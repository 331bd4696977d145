// The tile-matrix unit of x86 (AMX) for bf16, behind an interface small enough to have two makers:
// the instructions, and plain code that computes what Intel's manual says they compute. A kernel is
// written once, as a template over the maker; where there is no such unit the tests run it on the
// second.
//
// A tile is 16 rows of 64 bytes; there are eight, named by number. Either maker offers
//   configure(), release()     before the first and after the last use, by each thread
//   zero<T>()
//   load<T>(from, stride)      rows `stride` bytes apart, any alignment
//   load_once<T>(from, stride) the same, for lines that are not wanted again soon: they come past
//                              L1 and leave what is there
//   store<T>(to, stride)
//   multiply<C, A, B>()        C += A B (TDPBF16PS). A row of A: 32 bf16 neighbours in k. B: row u
//                              holds k = 2u and 2u + 1 of 16 columns side by side. C: 16 x 16 fp32.
//
// Numerics of multiply (Intel SDM, TDPBF16PS): for every element two sums from zero, one over even
// k and one over odd k, each by fused multiply-add in order of k; then odd is added to even, then
// the result to C. Each step rounds to nearest even; subnormal operands and results are zero.
#pragma once

#include <cstdint>

namespace snug::blas {

// Whether the CPU has AMX with bf16 and the system lets this process use it; asked of the system
// once (Linux keeps the tile registers from processes that do not ask).
bool amx_bf16_available();

struct HardwareTiles {
  static void configure();
  static void release() { asm volatile("tilerelease"); }

  // Assembly, since the compiler's intrinsics take the number of a tile as a literal only.
  template <int T>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(T));
  }
  template <int T>
  static void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  static void load_once(const void* from, int64_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  static void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

struct SoftwareTiles {
  // Using a tile before configure() or after release() throws, as the instructions would fault.
  static void configure();
  static void release();

  template <int T>
  static void zero() {
    zero_tile(T);
  }
  template <int T>
  static void load(const void* from, int64_t stride) {
    load_tile(T, from, stride);
  }
  template <int T>
  static void load_once(const void* from, int64_t stride) {
    load_tile(T, from, stride);
  }
  template <int T>
  static void store(void* to, int64_t stride) {
    store_tile(T, to, stride);
  }
  template <int C, int A, int B>
  static void multiply() {
    multiply_tiles(C, A, B);
  }

 private:
  static void zero_tile(int t);
  static void load_tile(int t, const void* from, int64_t stride);
  static void store_tile(int t, void* to, int64_t stride);
  static void multiply_tiles(int c, int a, int b);
};

}  // namespace snug::blas
