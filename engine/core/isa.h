// Which instruction set our kernels choose at run time. Loops that exist for both give the same
// bits, unless their contract says otherwise.
#pragma once

namespace snug {

// AVX-512 F, BW, DQ and VL; the build's own floor is AVX2.
bool use_avx512();
// And its conversions to bf16.
bool use_avx512_bf16();
// And its permutations of bytes (VBMI).
bool use_avx512_vbmi();

// Tests and comparisons: while one lives, all are false everywhere. Not for use while ops
// run in other threads.
class WithoutAvx512 {
 public:
  WithoutAvx512();
  ~WithoutAvx512();
  WithoutAvx512(const WithoutAvx512&) = delete;
  WithoutAvx512& operator=(const WithoutAvx512&) = delete;

 private:
  bool before_;
};

// The same of use_avx512_bf16() and use_avx512_vbmi() alone: what a machine with AVX-512 and not
// these does.
class PlainAvx512 {
 public:
  PlainAvx512();
  ~PlainAvx512();
  PlainAvx512(const PlainAvx512&) = delete;
  PlainAvx512& operator=(const PlainAvx512&) = delete;

 private:
  bool bf16_before_, vbmi_before_;
};

}  // namespace snug
