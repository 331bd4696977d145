#include "tools/calibrate/roofs.h"

#include <fmt/format.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "engine/blas/amx_tiles.h"
#include "engine/blas/matmul_cpu.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/memory/context.h"

namespace snug {
namespace {

// A call of the loops below takes about a millisecond, so that a run fits between two
// interruptions.
constexpr int kRounds = 200000;

// Twelve independent accumulators hide the latency of the units; the sum keeps them alive.
float fma_avx2() {
  __m256 acc[12];
  for (int i = 0; i < 12; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int r = 0; r < kRounds; ++r)
    for (int i = 0; i < 12; ++i) acc[i] = _mm256_fmadd_ps(acc[i], a, b);
  __m256 sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = _mm256_add_ps(sum, acc[i]);
  return _mm256_cvtss_f32(sum);
}

__attribute__((target("avx512f"))) float fma_avx512() {
  __m512 acc[12];
  for (int i = 0; i < 12; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int r = 0; r < kRounds; ++r)
    for (int i = 0; i < 12; ++i) acc[i] = _mm512_fmadd_ps(acc[i], a, b);
  __m512 sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = _mm512_add_ps(sum, acc[i]);
  return _mm512_cvtss_f32(sum);
}

__attribute__((target("avx512f,avx512bf16"))) float dot_bf16() {
  __m512 acc[12];
  for (int i = 0; i < 12; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
  const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.001f), _mm512_set1_ps(0.001f));
  for (int r = 0; r < kRounds; ++r)
    for (int i = 0; i < 12; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], a, b);
  __m512 sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = _mm512_add_ps(sum, acc[i]);
  return _mm512_cvtss_f32(sum);
}

// Six independent sums of 16 x 16; 16 * 16 * 32 multiply-adds an instruction.
constexpr int kTileRounds = 10000;
float tiles_bf16() {
  using Tiles = blas::HardwareTiles;
  Tiles::configure();
  Tiles::zero<0>(), Tiles::zero<1>(), Tiles::zero<2>(), Tiles::zero<3>();
  Tiles::zero<4>(), Tiles::zero<5>(), Tiles::zero<6>(), Tiles::zero<7>();
  for (int r = 0; r < kTileRounds; ++r) {
    Tiles::multiply<0, 6, 7>(), Tiles::multiply<1, 6, 7>(), Tiles::multiply<2, 6, 7>();
    Tiles::multiply<3, 6, 7>(), Tiles::multiply<4, 6, 7>(), Tiles::multiply<5, 6, 7>();
  }
  Tiles::release();
  return 0;
}

// The best of runs of call(thread) on every thread, each `work` long, until `seconds` have passed;
// at least `least`.
template <class F>
double best_rate(int threads, double work, double seconds, F&& call, int least = 4) {
  double best = 0;
  const double end = monotonic_seconds() + seconds;
  for (int run = 0; run < least || monotonic_seconds() < end; ++run) {
    const double started = monotonic_seconds();
    parallel_for(threads, threads, call);
    best = std::max(best, work * threads / (monotonic_seconds() - started));
  }
  return best;
}

int64_t read_all(const char* from, int64_t bytes) {
  __m256i sum[4] = {};
  for (int64_t i = 0; i + 128 <= bytes; i += 128)
    for (int k = 0; k < 4; ++k)
      sum[k] = _mm256_xor_si256(
          sum[k], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32 * k)));
  const __m256i all =
      _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  return _mm256_extract_epi64(all, 0);
}

void copy_all(char* to, const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 32)
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + i),
                       _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i)));
}

void stream_all(char* to, const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i)));
  _mm_sfence();
}

// Pages of its own that leave nothing behind.
class Array {
 public:
  explicit Array(int64_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
      fail(ErrorCode::out_of_memory, std::to_string(bytes) + " B to measure the memory with",
           "the system refused them", "end other programs");
    data_ = static_cast<char*>(p);
    madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  }
  ~Array() { munmap(data_, static_cast<size_t>(bytes_)); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  char* data() { return data_; }

 private:
  char* data_;
  int64_t bytes_;
};

int64_t array_bytes() {
  const int64_t cache = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
  return std::clamp<int64_t>(2 * cache, int64_t{64} << 20, int64_t{256} << 20);
}

}  // namespace

Roofs measure_roofs(int threads, double seconds) {
  Roofs roofs;
  roofs.threads = threads;
  const double each = seconds / 5;
  const double lanes = __builtin_cpu_supports("avx512f") ? 16 : 8;
  const double fma = 2.0 * 12 * kRounds * lanes;
  volatile float sink = 0;
  roofs.fp32_flops = best_rate(threads, fma, each, [&](int64_t) {
    const float sum = lanes > 8 ? fma_avx512() : fma_avx2();
    if (sum == -1.0f) sink = sum;  // never: keeps the loop
  });
  if (matmul_available(MatmulKernel::avx512_bf16))
    roofs.bf16_flops = best_rate(threads, 2 * fma, each, [&](int64_t) {
      const float sum = dot_bf16();
      if (sum == -1.0f) sink = sum;
    });
  if (blas::amx_bf16_available())
    roofs.bf16_flops =
        std::max(roofs.bf16_flops, best_rate(threads, 2.0 * 16 * 16 * 32 * 6 * kTileRounds, each,
                                             [](int64_t) { tiles_bf16(); }));

  const Roofs memory = MemoryRoofs(threads).measure(3 * each);
  roofs.read_bytes = memory.read_bytes;
  roofs.copy_bytes = memory.copy_bytes;
  roofs.stream_bytes = memory.stream_bytes;
  return roofs;
}

struct MemoryRoofs::State {
  explicit State(int count)
      : threads(count),
        part(array_bytes() / threads / 4096 * 4096),
        from(part * threads),
        to(part * threads) {}
  int threads;
  int64_t part;
  Array from, to;
};

MemoryRoofs::MemoryRoofs(int threads) : state_(std::make_unique<State>(threads)) {
  parallel_for(threads, threads, [this](int64_t t) {
    const State& s = *state_;
    std::memset(state_->from.data() + t * s.part, 1, static_cast<size_t>(s.part));
    std::memset(state_->to.data() + t * s.part, 1, static_cast<size_t>(s.part));
  });
}
MemoryRoofs::~MemoryRoofs() = default;

// Two runs of each are the least: an array of 64 MiB takes a millisecond or two.
Roofs MemoryRoofs::measure(double seconds) const {
  State& s = *state_;
  Roofs roofs;
  roofs.threads = s.threads;
  const double each = seconds / 3;
  const auto bytes = static_cast<double>(s.part);
  volatile int64_t seen = 0;
  roofs.read_bytes = best_rate(
      s.threads, bytes, each,
      [&](int64_t t) {
        const int64_t sum = read_all(s.from.data() + t * s.part, s.part);
        if (sum == -1) seen = sum;
      },
      2);
  roofs.copy_bytes = best_rate(
      s.threads, 2 * bytes, each,
      [&](int64_t t) { copy_all(s.to.data() + t * s.part, s.from.data() + t * s.part, s.part); },
      2);
  roofs.stream_bytes = best_rate(
      s.threads, 2 * bytes, each,
      [&](int64_t t) { stream_all(s.to.data() + t * s.part, s.from.data() + t * s.part, s.part); },
      2);
  return roofs;
}

Roofs larger(const Roofs& a, const Roofs& b) {
  Roofs r;
  r.device = a.device;
  r.threads = a.threads;
  r.tf32_flops = std::max(a.tf32_flops, b.tf32_flops);
  r.fp32_flops = std::max(a.fp32_flops, b.fp32_flops);
  r.bf16_flops = std::max(a.bf16_flops, b.bf16_flops);
  r.read_bytes = std::max(a.read_bytes, b.read_bytes);
  r.copy_bytes = std::max(a.copy_bytes, b.copy_bytes);
  r.stream_bytes = std::max(a.stream_bytes, b.stream_bytes);
  return r;
}

std::string to_string(const Roofs& r) {
  if (!r.device.empty())
    return fmt::format(
        "{}: products in fp32 {:.1f}, TF32 {:.1f}, bf16 {:.1f} TFLOP/s; memory read {:.0f}, copied "
        "by the driver {:.0f}, by a kernel {:.0f} GB/s",
        r.device, r.fp32_flops * 1e-12, r.tf32_flops * 1e-12, r.bf16_flops * 1e-12,
        r.read_bytes * 1e-9, r.copy_bytes * 1e-9, r.stream_bytes * 1e-9);
  const std::string bf16 =
      r.bf16_flops > 0 ? fmt::format(", bf16 {:.0f} GFLOP/s", r.bf16_flops * 1e-9)
                       : std::string(" GFLOP/s (bf16 as fp32: this CPU has no unit for it)");
  return fmt::format(
      "{} threads: fp32 {:.0f}{}; memory read {:.1f}, copied {:.1f}, past the caches {:.1f} GB/s",
      r.threads, r.fp32_flops * 1e-9, bf16, r.read_bytes * 1e-9, r.copy_bytes * 1e-9,
      r.stream_bytes * 1e-9);
}

}  // namespace snug
