#include "engine/blas/matmul_cuda.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/core/error.h"
#include "engine/device/cuda_library.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#else
#define SNUG_NO_CUBLASLT
#endif

namespace snug {

#ifdef SNUG_NO_CUBLASLT

bool matmul_by_cublaslt(const simt::cuda::Queue&, const MatmulProblem&, void*, bool) {
  return false;
}
std::string describe_cublaslt() {
  return "not in this build: cublasLt.h was not found";
}

#else

namespace {

// What is used of the library, by the names it has there. Its descriptors are made by itself, so
// that their sizes may change from version to version.
struct Library {
#define SNUG_CUBLASLT(name) decltype(&cublasLt##name) name = nullptr
  SNUG_CUBLASLT(GetVersion);
  SNUG_CUBLASLT(Create);
  SNUG_CUBLASLT(MatmulDescCreate);
  SNUG_CUBLASLT(MatmulDescSetAttribute);
  SNUG_CUBLASLT(MatrixLayoutCreate);
  SNUG_CUBLASLT(MatmulPreferenceCreate);
  SNUG_CUBLASLT(MatmulPreferenceSetAttribute);
  SNUG_CUBLASLT(MatmulPreferenceDestroy);
  SNUG_CUBLASLT(MatmulAlgoGetHeuristic);
  SNUG_CUBLASLT(Matmul);
#undef SNUG_CUBLASLT
  cublasLtHandle_t handle = nullptr;
  std::string why;  // not empty: there is none
  std::string path;
};

template <class F>
bool find(void* library, const char* name, F& f) {
  f = reinterpret_cast<F>(dlsym(library, name));
  return f != nullptr;
}

Library open_library() {
  Library l;
  std::string loader;
  void* so = open_cuda_library("SNUG_CUBLASLT", {"libcublasLt.so.13", "libcublasLt.so.12"}, l.path,
                               loader);
  if (so == nullptr) {
    l.why = "absent: " + loader;
    return l;
  }
  const bool all =
      find(so, "cublasLtGetVersion", l.GetVersion) && find(so, "cublasLtCreate", l.Create) &&
      find(so, "cublasLtMatmulDescCreate", l.MatmulDescCreate) &&
      find(so, "cublasLtMatmulDescSetAttribute", l.MatmulDescSetAttribute) &&
      find(so, "cublasLtMatrixLayoutCreate", l.MatrixLayoutCreate) &&
      find(so, "cublasLtMatmulPreferenceCreate", l.MatmulPreferenceCreate) &&
      find(so, "cublasLtMatmulPreferenceSetAttribute", l.MatmulPreferenceSetAttribute) &&
      find(so, "cublasLtMatmulPreferenceDestroy", l.MatmulPreferenceDestroy) &&
      find(so, "cublasLtMatmulAlgoGetHeuristic", l.MatmulAlgoGetHeuristic) &&
      find(so, "cublasLtMatmul", l.Matmul);
  if (!all)
    l.why = "of no use: a function is missing in it";
  else if (l.Create(&l.handle) != CUBLAS_STATUS_SUCCESS)
    l.why = "of no use: it gives no handle";
  return l;
}

const Library& library() {
  static const Library l = open_library();
  return l;
}

// What a choice of algorithm depends on. Compared as bytes: no padding.
struct Key {
  int64_t m, n, k, lda, ldb, ldc;
  int32_t type, c_type;
  int32_t transposed_a, transposed_b;
  int32_t accumulate, bias;
  int32_t alignment_ab, alignment_c;
  int32_t device, tf32;
};
static_assert(sizeof(Key) == 6 * 8 + 10 * 4);

struct Choice {
  Key key{};
  bool known = false, usable = false;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

cudaDataType_t type_of(DType t) {
  return t == DType::f32 ? CUDA_R_32F : t == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

// Up to 16, which every tensor has: where a plan puts it must not choose the algorithm.
int32_t alignment(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 16;
  for (const void* p : pointers) bits |= reinterpret_cast<uintptr_t>(p);
  return static_cast<int32_t>(bits & (~bits + 1));
}

// A row-major matrix is to the library its transpose, column by column. So C^T = B^T A^T is asked
// for, B first. A view whose rows lie together needs no word; one whose columns do, a transpose.
bool choose(const Library& l, Choice& c) {
  const Key& k = c.key;
  const auto type = static_cast<cudaDataType_t>(k.type);
  const auto c_type = static_cast<cudaDataType_t>(k.c_type);
  // Pedantic: what is f32 is not rounded to TF32 on the way, whatever the environment asks for.
  const cublasComputeType_t compute = type != CUDA_R_32F ? CUBLAS_COMPUTE_32F
                                      : k.tf32           ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                         : CUBLAS_COMPUTE_32F_PEDANTIC;
  bool ok = l.MatmulDescCreate(&c.product, compute, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    ok = ok && l.MatmulDescSetAttribute(c.product, attribute, &value, sizeof(value)) ==
                   CUBLAS_STATUS_SUCCESS;
  };
  const auto layout = [&](cublasLtMatrixLayout_t& to, cudaDataType_t t, int64_t rows, int64_t cols,
                          int64_t ld) {
    ok = ok && l.MatrixLayoutCreate(&to, t, static_cast<uint64_t>(rows),
                                    static_cast<uint64_t>(cols), ld) == CUBLAS_STATUS_SUCCESS;
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, k.transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, k.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (k.bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, c_type);
  }
  layout(c.b, type, k.transposed_b ? k.k : k.n, k.transposed_b ? k.n : k.k, k.ldb);
  layout(c.a, type, k.transposed_a ? k.m : k.k, k.transposed_a ? k.k : k.m, k.lda);
  layout(c.c, c_type, k.n, k.m, k.ldc);
  if (!ok) return false;

  cublasLtMatmulPreference_t preference = nullptr;
  if (l.MatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return false;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    ok = ok && l.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)) ==
                   CUBLAS_STATUS_SUCCESS;
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kCudaMatmulScratch));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  const auto ab = static_cast<uint32_t>(k.alignment_ab), cd = static_cast<uint32_t>(k.alignment_c);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, ab);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, ab);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, cd);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, cd);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  ok = ok &&
       l.MatmulAlgoGetHeuristic(l.handle, c.product, c.b, c.a, c.c, c.c, preference, 1, &best,
                                &found) == CUBLAS_STATUS_SUCCESS &&
       found == 1 && best.state == CUBLAS_STATUS_SUCCESS;
  l.MatmulPreferenceDestroy(preference);
  c.algorithm = best.algo;
  return ok;
}

// A run has a few dozen products. The table has its size from the start, and is used by the thread
// that launches; once full, further problems are left to the kernel.
Choice* choice_of(const Library& l, const Key& key) {
  static std::array<Choice, 512> choices;
  for (Choice& c : choices) {
    if (!c.known) {
      c.known = true;
      c.key = key;
      c.usable = choose(l, c);
    }
    if (std::memcmp(&c.key, &key, sizeof(key)) == 0) return &c;
  }
  return nullptr;
}

}  // namespace

bool matmul_by_cublaslt(const simt::cuda::Queue& queue, const MatmulProblem& p, void* scratch,
                        bool tf32) {
  const auto flat = [](const MatrixView& m) { return m.col_stride == 1 || m.row_stride == 1; };
  if (p.a.dtype != p.b.dtype || (p.c_dtype != DType::f32 && p.c_dtype != p.a.dtype) ||
      (p.bias && (p.accumulate || p.bias_dtype != p.c_dtype)) || !flat(p.a) || !flat(p.b) ||
      p.b_packed || p.finish.tile || p.finish.rows || p.M == 0 || p.N == 0 || p.K == 0)
    return false;
  const Library& l = library();
  if (!l.why.empty()) return false;
  Key key{};
  key.m = p.M;
  key.n = p.N;
  key.k = p.K;
  key.transposed_a = p.a.col_stride != 1;
  key.transposed_b = p.b.col_stride != 1;
  // The step between `count` lines of `length` elements; a single one may have any.
  const auto leading = [](int64_t stride, int64_t count, int64_t length) {
    return count == 1 ? std::max(stride, length) : stride >= length ? stride : 0;
  };
  key.lda =
      key.transposed_a ? leading(p.a.col_stride, p.K, p.M) : leading(p.a.row_stride, p.M, p.K);
  key.ldb =
      key.transposed_b ? leading(p.b.col_stride, p.N, p.K) : leading(p.b.row_stride, p.K, p.N);
  if (key.lda == 0 || key.ldb == 0) return false;  // lines that lie in each other
  key.ldc = p.ldc;
  key.type = type_of(p.a.dtype);
  key.c_type = type_of(p.c_dtype);
  key.accumulate = p.accumulate;
  key.bias = p.bias != nullptr;
  key.tf32 = tf32 && p.a.dtype == DType::f32;
  key.alignment_ab = alignment({p.a.data, p.b.data});
  key.alignment_c = alignment({p.c, p.bias});
  if (cudaGetDevice(&key.device) != cudaSuccess) return false;
  Choice* c = choice_of(l, key);
  if (c == nullptr || !c->usable) return false;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (p.bias)
    status = l.MatmulDescSetAttribute(c->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias,
                                      sizeof(p.bias));
  const float beta = p.accumulate ? 1.0f : 0.0f;
  if (status == CUBLAS_STATUS_SUCCESS)
    status = l.Matmul(l.handle, c->product, &p.alpha, p.b.data, c->b, p.a.data, c->a, &beta, p.c,
                      c->c, p.c, c->c, &c->algorithm, scratch,
                      static_cast<size_t>(kCudaMatmulScratch), queue.stream);
  const cudaError_t error = status == CUBLAS_STATUS_SUCCESS && queue.sync_check
                                ? cudaStreamSynchronize(queue.stream)
                                : cudaSuccess;
  if (status != CUBLAS_STATUS_SUCCESS || error != cudaSuccess)
    fail(ErrorCode::device, fmt::format("cuBLASLt to multiply {} x {} x {}", p.M, p.N, p.K),
         fmt::format("its status {}, {}", static_cast<int>(status), cudaGetErrorString(error)),
         "an earlier kernel may have failed: run with SNUG_SYNC_CHECK=1");
  return true;
}

std::string describe_cublaslt() {
  const Library& l = library();
  if (!l.why.empty()) return l.why;
  const auto v = static_cast<int>(l.GetVersion());
  return fmt::format("cuBLASLt {}.{}.{} ({})", v / 10000, v / 100 % 100, v % 100, l.path);
}

#endif

}  // namespace snug
