// Which instruction set our kernels choose at run time. Loops that exist for both give the same
// bits, unless their contract says otherwise.
#pragma once

namespace snug {

// AVX-512 F, BW, DQ and VL; the build's own floor is AVX2.
bool use_avx512();
// And its conversions to bf16.
bool use_avx512_bf16();

// Tests and comparisons: while one lives, both are false everywhere. Not for use while ops
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

// The same of use_avx512_bf16() alone: what a machine with the one and not the other does.
class WithoutAvx512Bf16 {
 public:
  WithoutAvx512Bf16();
  ~WithoutAvx512Bf16();
  WithoutAvx512Bf16(const WithoutAvx512Bf16&) = delete;
  WithoutAvx512Bf16& operator=(const WithoutAvx512Bf16&) = delete;

 private:
  bool before_;
};

}  // namespace snug
