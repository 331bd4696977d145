// The library kernel: oneDNN's matmul primitive, 2.x and 3.x, to compare with. Primitives and their
// memory objects are built once per shape and kept; a call only sets pointers. The library's
// workspace is the caller's scratch, up to a fixed cap.

#include "engine/blas/matmul_tile.h"
#include "engine/core/error.h"

#ifdef SNUG_ONEDNN

#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>

#include "engine/core/openmp.h"

namespace snug::blas {
namespace {

using dnnl::memory;

constexpr int64_t kCapShared = 2 << 20, kCapPerThread = 2 << 20, kAlign = 64;

// Everything a primitive depends on.
using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                       DType, DType, DType, int, bool, int>;

Key key_of(const MatmulProblem& p, int threads) {
  const int bias = p.bias == nullptr ? -1 : static_cast<int>(p.bias_dtype);
  return {
      p.M,   p.N,       p.K,       p.a.row_stride, p.a.col_stride, p.b.row_stride, p.b.col_stride,
      p.ldc, p.a.dtype, p.b.dtype, p.c_dtype,      bias,           p.accumulate,   threads};
}

// oneDNN takes its threads from OpenMP's setting for the calling thread.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~ThreadLimit() { omp_set_num_threads(before_); }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int before_;
};

struct Library {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

Library& library() {
  static Library instance;
  return instance;
}

struct Entry {
  dnnl::matmul primitive;
  std::unordered_map<int, memory> args;
  std::mutex mutex;  // the memory objects hold one call's pointers at a time
};

memory::data_type type_of(DType t) {
  return t == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
}

memory::desc matrix(int64_t rows, int64_t cols, DType t, int64_t row_stride, int64_t col_stride) {
  return memory::desc({rows, cols}, type_of(t), memory::dims{row_stride, col_stride});
}

// Null if the library has no implementation, or only one whose workspace is above the cap.
std::unique_ptr<Entry> build(const MatmulProblem& p, int threads) {
  const ThreadLimit limit(threads);
  Library& lib = library();
  const memory::desc a = matrix(p.M, p.K, p.a.dtype, p.a.row_stride, p.a.col_stride);
  const memory::desc b = matrix(p.K, p.N, p.b.dtype, p.b.row_stride, p.b.col_stride);
  const memory::desc c = matrix(p.M, p.N, p.c_dtype, p.ldc, 1);
  const bool has_bias = p.bias != nullptr;
  const memory::desc bias = has_bias ? matrix(1, p.N, p.bias_dtype, p.N, 1) : memory::desc();
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  try {
#if DNNL_VERSION_MAJOR >= 3
    const auto desc = has_bias ? dnnl::matmul::primitive_desc(lib.engine, a, b, bias, c, attr)
                               : dnnl::matmul::primitive_desc(lib.engine, a, b, c, attr);
#else
    const auto shape = has_bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    const dnnl::matmul::primitive_desc desc(shape, attr, lib.engine);
#endif
    if (static_cast<int64_t>(desc.scratchpad_desc().get_size()) >
        library_scratch_bytes(threads) - kAlign)
      return nullptr;
    auto entry = std::make_unique<Entry>();
    entry->primitive = dnnl::matmul(desc);
    const auto add = [&](int arg, const memory::desc& d) {
      entry->args.emplace(arg, memory(d, lib.engine, DNNL_MEMORY_NONE));
    };
    add(DNNL_ARG_SRC, a);
    add(DNNL_ARG_WEIGHTS, b);
    add(DNNL_ARG_DST, c);
    if (has_bias) add(DNNL_ARG_BIAS, bias);
    add(DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc());
    return entry;
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

// Null entries are kept too: a shape that does not go is asked once.
Entry* find_or_build(const MatmulProblem& p, int threads) {
  static std::mutex mutex;
  static std::map<Key, std::unique_ptr<Entry>> entries;
  const Key key = key_of(p, threads);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = entries.find(key);
  if (found != entries.end()) return found->second.get();
  return entries.emplace(key, build(p, threads)).first->second.get();
}

// One stride is 1 and the other steps over whole rows or columns.
bool is_plain(const MatrixView& v, int64_t rows, int64_t cols) {
  return (v.col_stride == 1 && v.row_stride >= cols) || (v.row_stride == 1 && v.col_stride >= rows);
}

}  // namespace

int64_t library_scratch_bytes(int threads) {
  return kCapShared + kCapPerThread * threads + kAlign;
}

bool library_built() {
  return true;
}

bool library_supports(const MatmulProblem& p) {
  const bool bf16_operands = p.a.dtype == DType::bf16;
  if (p.a.dtype != p.b.dtype || (!bf16_operands && p.a.dtype != DType::f32)) return false;
  if (p.c_dtype != DType::f32 && !(bf16_operands && p.c_dtype == DType::bf16)) return false;
  if (bf16_operands && !__builtin_cpu_supports("avx512bw")) return false;
  if (p.bias != nullptr && p.bias_dtype != DType::f32 &&
      !(bf16_operands && p.bias_dtype == DType::bf16))
    return false;
  if (p.finish.tile != nullptr || p.finish.rows != nullptr || p.b_packed != nullptr) return false;
  return p.alpha == 1 && (!p.accumulate || p.c_dtype == DType::f32) && is_plain(p.a, p.M, p.K) &&
         is_plain(p.b, p.K, p.N) && p.ldc >= p.N;
}

bool library_prepare(const MatmulProblem& p, int threads) {
  if (p.M == 0 || p.N == 0 || p.K == 0) return true;
  return find_or_build(p, threads) != nullptr;
}

void matmul_library(const MatmulProblem& p, void* scratch, int threads) {
  Entry* entry = find_or_build(p, threads);
  if (entry == nullptr)
    fail(ErrorCode::unsupported,
         "a matrix product that oneDNN implements within " +
             std::to_string(library_scratch_bytes(threads)) + " bytes of workspace",
         "M=" + std::to_string(p.M) + " N=" + std::to_string(p.N) + " K=" + std::to_string(p.K),
         "use the kernel that matmul_best names");
  const auto address = (reinterpret_cast<uintptr_t>(scratch) + kAlign - 1) & ~uintptr_t{kAlign - 1};
  const std::lock_guard<std::mutex> lock(entry->mutex);
  const ThreadLimit limit(threads);
  try {
    for (auto& [arg, mem] : entry->args) {
      const void* data = arg == DNNL_ARG_SRC       ? p.a.data
                         : arg == DNNL_ARG_WEIGHTS ? p.b.data
                         : arg == DNNL_ARG_DST     ? p.c
                         : arg == DNNL_ARG_BIAS    ? p.bias
                                                   : reinterpret_cast<const void*>(address);
      mem.set_data_handle(const_cast<void*>(data));
    }
    entry->primitive.execute(library().stream, entry->args);
    library().stream.wait();
  } catch (const dnnl::error& e) {
    fail(ErrorCode::internal, "oneDNN to run a prepared matrix product", e.what(),
         "this is a defect: please report it with the shapes and the oneDNN version");
  }
}

}  // namespace snug::blas

#else  // a build without oneDNN: matmul_available says so, and no plan has it

namespace snug::blas {

bool library_built() {
  return false;
}
int64_t library_scratch_bytes(int) {
  return 0;
}
bool library_supports(const MatmulProblem&) {
  return false;
}
bool library_prepare(const MatmulProblem&, int) {
  return false;
}
void matmul_library(const MatmulProblem&, void*, int) {
  require(false, "nobody to come here without oneDNN: matmul_available says no");
}

}  // namespace snug::blas

#endif
