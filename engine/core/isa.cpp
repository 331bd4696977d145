#include "engine/core/isa.h"

namespace snug {
namespace {

bool& allowed() {
  static bool value = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return value;
}

bool& bf16_allowed() {
  static bool value = __builtin_cpu_supports("avx512bf16") != 0;
  return value;
}

}  // namespace

bool use_avx512() {
  return allowed();
}

bool use_avx512_bf16() {
  return bf16_allowed() && use_avx512();
}

WithoutAvx512::WithoutAvx512() : before_(allowed()) {
  allowed() = false;
}
WithoutAvx512::~WithoutAvx512() {
  allowed() = before_;
}

WithoutAvx512Bf16::WithoutAvx512Bf16() : before_(bf16_allowed()) {
  bf16_allowed() = false;
}
WithoutAvx512Bf16::~WithoutAvx512Bf16() {
  bf16_allowed() = before_;
}

}  // namespace snug
