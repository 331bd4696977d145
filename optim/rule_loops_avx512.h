// A rule over states in codes, in AVX-512 with VBMI whatever the flags of the build: called only where
// the CPU has both. Included by one file, after its other headers.
//
// Why in one pass: alone, decoding and encoding wait for no memory, and the rule for its roots and
// for what it reads. 64 elements of a block go to floats, through the rule, and beside them 64 of the
// block before, whose scale is known by then, to codes: each has work while another waits.
#pragma once

#if !defined(__clang__)
#pragma GCC diagnostic push
// GCC 12's own intrinsics leave operands undefined on purpose and then warn about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "optim/rule_loops.h"
#include "quant/block.h"
#include "quant/map_lines.h"

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,prefer-vector-width=512")
#endif

namespace snug {
namespace {

#include "quant/map_avx512.h"

// Of the group two blocks on, before it is asked for: of what comes from memory that takes a fifth less
// time than without, and less than twice or half as far ahead.
inline void read_ahead(const ElementBlock& b, const CodedStates& states, int count, int64_t at) {
  constexpr int64_t kAhead = 512, kLine = 16;
  const auto ahead = [](const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); };
  for (int64_t i = at + kAhead; i < at + kAhead + 64; i += kLine) {
    ahead(b.parameter + i);
    ahead(b.gradient + i);
  }
  for (int k = 0; k < count; ++k) ahead(states[static_cast<size_t>(k)].codes + at + kAhead);
}

// n: whole blocks.
template <class Rule>
void run_rule_in_codes(const Rule& given, const ElementStep& numbers, const ElementBlock& b,
                       const CodedStates& states) {
  constexpr int kStates = Rule::kStates;
  constexpr int64_t kBlock = 256, kGroup = 64;
  const Rule rule = given;
  const float gradient_factor = numbers.gradient_factor;
  const typename Rule::Step step = rule.step(numbers);
  alignas(64) float room[2][kStates][kBlock];
  BlockScale scales[kStates];
  const auto lines = [&](int k) -> const MapLines& {
    return *states[static_cast<size_t>(k < kStates ? k : 0)].lines;
  };
  static_assert(kMaxStates == 4);
  // Of this function alone: a byte that is written might be any that is read through a pointer.
  uint8_t* codes[kStates];
  float* scales_of[kStates];
  for (int k = 0; k < kStates; ++k) {
    codes[k] = states[static_cast<size_t>(k)].codes;
    scales_of[k] = states[static_cast<size_t>(k)].scales;
  }
  const MapEncoder encoders[] = {MapEncoder(lines(0)), MapEncoder(lines(1)), MapEncoder(lines(2)),
                                 MapEncoder(lines(3))};
  const MapDecoder decoders[] = {MapDecoder(lines(0)), MapDecoder(lines(1)), MapDecoder(lines(2)),
                                 MapDecoder(lines(3))};
  const auto encode = [&](int64_t begin, int64_t at) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int k = 0; k < kStates; ++k)
      encoders[k].encode64(room[begin / kBlock % 2][k] + at, _mm512_set1_ps(scales[k].factor),
                           codes[k] + begin + at);
  };
  // A block that is not finite has no lines: its codes are made anew.
  const auto look_again = [&](int64_t begin) {
    for (int k = 0; k < kStates; ++k)
      if (!is_finite(scales[k].scale))
        encode_piece(*states[static_cast<size_t>(k)].codec, *lines(k).book, scales[k],
                     room[begin / kBlock % 2][k], kBlock, codes[k] + begin, nullptr);
  };
  for (int64_t begin = 0; begin < b.n; begin += kBlock) {
    auto& now = room[begin / kBlock % 2];
    __m512i largest[kStates];
    for (int k = 0; k < kStates; ++k) largest[k] = _mm512_setzero_si512();
    for (int64_t at = 0; at < kBlock; at += kGroup) {
      read_ahead(b, states, kStates, begin + at);
      ElementBlock group{kGroup, b.parameter + begin + at, b.gradient + begin + at, {}};
#pragma GCC unroll 4
      for (int k = 0; k < kStates; ++k) {
        decoders[k].decode64(codes[k] + begin + at, _mm512_set1_ps(scales_of[k][begin / kBlock]),
                             now[k] + at);
        group.states[static_cast<size_t>(k)] = now[k] + at;
      }
      run_rule(rule, step, gradient_factor, group);
#pragma GCC unroll 4
      for (int k = 0; k < kStates; ++k)
        for (int64_t i = at; i < at + kGroup; i += 16)
          largest[k] = larger_magnitude(largest[k], now[k] + i);
      if (begin > 0) encode(begin - kBlock, at);
    }
    if (begin > 0) look_again(begin - kBlock);
    for (int k = 0; k < kStates; ++k) {
      BlockExtremes extremes;
      extremes.largest = _mm512_reduce_max_epu32(largest[k]);
      scales[k] = scale_of(ScaleRule::absmax, 1, extremes);
      scales_of[k][begin / kBlock] = scales[k].scale;
    }
  }
  for (int64_t at = 0; at < kBlock; at += kGroup) encode(b.n - kBlock, at);
  look_again(b.n - kBlock);
}

}  // namespace
}  // namespace snug

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif
