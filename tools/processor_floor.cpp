// A processor below the build's floor (x86-64-v3: AVX2, FMA, BMI) is told so instead of dying by an
// unknown instruction. This file is compiled for any x86-64 and runs before everything that is not;
// it calls only what the compiler or the system provides, for a function shared with other files
// could be linked in their version.
#include <unistd.h>

namespace {

constexpr char kMessage[] =
    "unsupported: expected a processor with AVX2, FMA and BMI (x86-64-v3)\n"
    "  found: one without\n"
    "  try:   a processor from 2015 or later; in a virtual machine, pass the host's processor on "
    "(-cpu host)\n";

[[gnu::constructor(101)]] void refuse_processors_below_the_floor() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
    return;
  [[maybe_unused]] const ssize_t written = write(2, kMessage, sizeof(kMessage) - 1);
  _exit(2);
}

}  // namespace
