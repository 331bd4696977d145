#include "engine/core/isa.h"

namespace snug {
namespace {

bool& allowed() {
  static bool value = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return value;
}

}  // namespace

bool use_avx512() {
  return allowed();
}

bool use_avx512_bf16() {
  static const bool has = __builtin_cpu_supports("avx512bf16") != 0;
  return has && use_avx512();
}

WithoutAvx512::WithoutAvx512() : before_(allowed()) {
  allowed() = false;
}
WithoutAvx512::~WithoutAvx512() {
  allowed() = before_;
}

}  // namespace snug
