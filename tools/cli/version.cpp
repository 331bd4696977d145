#include "tools/cli/version.h"

#include <cpuid.h>
#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include "engine/core/openmp.h"
#include "engine/device/device.h"

namespace snug {
namespace {

std::string compiler() {
#if defined(__clang__)
  return fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

// Bit 22 of edx in leaf 7 (Intel SDM, CPUID).
bool has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1u) != 0;
}

std::string instruction_sets() {
  std::string text;
  const auto note = [&](bool found, const char* name) {
    if (found) text += (text.empty() ? "" : " ") + std::string(name);
  };
  note(__builtin_cpu_supports("avx2"), "AVX2");
  note(__builtin_cpu_supports("fma"), "FMA");
  note(__builtin_cpu_supports("f16c"), "F16C");
  note(__builtin_cpu_supports("avx512f"), "AVX-512");
  note(__builtin_cpu_supports("avx512bf16"), "AVX-512-BF16");
  note(has_amx_bf16(), "AMX-BF16");
  return text.empty() ? "none of AVX2, AVX-512, AMX" : text;
}

}  // namespace

std::string version_text() {
  return fmt::format("snug {}\ncompiler: {}\ncpu: {}\nzlib: {}\nzstd: {}\nthreads: {}\ncuda: {}\n",
                     SNUG_VERSION, compiler(), instruction_sets(), zlibVersion(),
                     ZSTD_versionString(), omp_get_max_threads(),
                     kCudaBuilt ? "built" : "not built");
}

}  // namespace snug
