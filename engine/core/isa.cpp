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

bool& vbmi_allowed() {
  static bool value = __builtin_cpu_supports("avx512vbmi") != 0;
  return value;
}

}  // namespace

bool use_avx512() {
  return allowed();
}

bool use_avx512_bf16() {
  return bf16_allowed() && use_avx512();
}

bool use_avx512_vbmi() {
  return vbmi_allowed() && use_avx512();
}

WithoutAvx512::WithoutAvx512() : before_(allowed()) {
  allowed() = false;
}
WithoutAvx512::~WithoutAvx512() {
  allowed() = before_;
}

PlainAvx512::PlainAvx512() : bf16_before_(bf16_allowed()), vbmi_before_(vbmi_allowed()) {
  bf16_allowed() = vbmi_allowed() = false;
}
PlainAvx512::~PlainAvx512() {
  bf16_allowed() = bf16_before_;
  vbmi_allowed() = vbmi_before_;
}

}  // namespace snug
