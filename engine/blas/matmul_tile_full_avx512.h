// The loop of a full fp32 tile of 14 x 32, written out: 28 sums, two registers of B, two of A.
//
// The compiler's loop takes 6 % longer: it moves registers about, and the instructions that decide
// which line to ask for next compete with the products for the two ports that multiply. Here a turn
// of two steps has one fetch ahead and five instructions besides the work.
#pragma once

#include <cstdint>

namespace snug::blas {

// What the loop asks for on its way: with every turn (two k) the line at `ahead`, which moves on by
// `ahead_step` bytes, into L2; and `parts` times, with every `turns` turns, a row of C's place (up
// to three lines) into L1. `rest` turns follow.
struct FullTileAsks {
  const char* ahead;
  int64_t ahead_step;
  const char* c;
  int64_t c_stride, parts, turns, rest;
};

// clang-format off
// One row of A's panel against both halves of a row of B's, for step `s` of the turn.
#define SNUG_ROW(s, r, x, lo, hi)                            \
  "vbroadcastss " #s "*56+" #r "*4(%[a]), %%zmm" #x "\n\t"   \
  "vfmadd231ps %%zmm28, %%zmm" #x ", %%zmm" #lo "\n\t"       \
  "vfmadd231ps %%zmm29, %%zmm" #x ", %%zmm" #hi "\n\t"
#define SNUG_STEP(s)                                                            \
  "vmovups " #s "*128(%[b]), %%zmm28\n\t"                                       \
  "vmovups " #s "*128+64(%[b]), %%zmm29\n\t"                                    \
  SNUG_ROW(s, 0, 30, 0, 1)    SNUG_ROW(s, 1, 31, 2, 3)                          \
  SNUG_ROW(s, 2, 30, 4, 5)    SNUG_ROW(s, 3, 31, 6, 7)                          \
  SNUG_ROW(s, 4, 30, 8, 9)    SNUG_ROW(s, 5, 31, 10, 11)                        \
  SNUG_ROW(s, 6, 30, 12, 13)  SNUG_ROW(s, 7, 31, 14, 15)                        \
  SNUG_ROW(s, 8, 30, 16, 17)  SNUG_ROW(s, 9, 31, 18, 19)                        \
  SNUG_ROW(s, 10, 30, 20, 21) SNUG_ROW(s, 11, 31, 22, 23)                       \
  SNUG_ROW(s, 12, 30, 24, 25) SNUG_ROW(s, 13, 31, 26, 27)
#define SNUG_LOAD(n) "vmovups " #n "*64(%[tile]), %%zmm" #n "\n\t"
#define SNUG_STORE(n) "vmovups %%zmm" #n ", " #n "*64(%[tile])\n\t"
#define SNUG_ZERO(n) "vpxord %%zmm" #n ", %%zmm" #n ", %%zmm" #n "\n\t"
#define SNUG_SUMS(X)                                                                \
  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)   \
  X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27)
// clang-format on

// tile (+)= A * B over 2 * (parts * turns + rest) units; parts and turns are at least one.
__attribute__((target("avx512f"))) inline void run_full_tile(const float* a, const float* b,
                                                             float* tile, bool start,
                                                             FullTileAsks asks) {
  int64_t left;
  asm volatile(
      "test %b[start], %b[start]\n\t"
      "jnz 1f\n\t"
      SNUG_SUMS(SNUG_LOAD)
      "jmp 2f\n"
      "1:\n\t"
      SNUG_SUMS(SNUG_ZERO)
      "2:\n\t"
      "prefetcht0 (%[c])\n\t"
      "prefetcht0 64(%[c])\n\t"
      "prefetcht0 127(%[c])\n\t"
      "add %[c_stride], %[c]\n\t"
      "mov %[turns], %[left]\n\t"
      ".p2align 6\n"
      "3:\n\t"
      "prefetcht1 (%[ahead])\n\t"
      SNUG_STEP(0)
      SNUG_STEP(1)
      "add $112, %[a]\n\t"
      "add $256, %[b]\n\t"
      "add %[ahead_step], %[ahead]\n\t"
      "dec %[left]\n\t"
      "jnz 3b\n\t"
      "dec %[parts]\n\t"
      "jg 2b\n\t"
      "jl 4f\n\t"
      "mov %[rest], %[left]\n\t"
      "test %[left], %[left]\n\t"
      "jnz 3b\n"
      "4:\n\t"
      SNUG_SUMS(SNUG_STORE)
      : [a] "+&r"(a), [b] "+&r"(b), [c] "+&r"(asks.c), [ahead] "+&r"(asks.ahead), [left] "=&r"(left),
        [parts] "+&r"(asks.parts)
      : [tile] "r"(tile), [c_stride] "r"(asks.c_stride), [turns] "r"(asks.turns),
        [rest] "m"(asks.rest), [ahead_step] "r"(asks.ahead_step), [start] "q"(start)
      : "memory", "cc", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8",
        "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17", "zmm18",
        "zmm19", "zmm20", "zmm21", "zmm22", "zmm23", "zmm24", "zmm25", "zmm26", "zmm27", "zmm28",
        "zmm29", "zmm30", "zmm31");
}

#undef SNUG_ROW
#undef SNUG_STEP
#undef SNUG_LOAD
#undef SNUG_STORE
#undef SNUG_ZERO
#undef SNUG_SUMS

}  // namespace snug::blas
