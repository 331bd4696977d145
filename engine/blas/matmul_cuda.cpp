#include "engine/blas/matmul_cuda.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>

#include "engine/core/error.h"
#include "engine/device/cuda_library.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#else
#define SNUG_NO_CUBLASLT
#endif

namespace snug {
namespace {

// What a plan says cuBLASLt multiplies, nothing else does: other kernels have other last bits.
[[noreturn]] void refuse(const MatmulProblem& p, const std::string& found) {
  fail(ErrorCode::unsupported,
       fmt::format("cuBLASLt to multiply {} x {} x {} ({}), as planned", p.M, p.N, p.K,
                   to_string(p.a.dtype)),
       found, "SNUG_CUBLASLT=none plan=null to plan all products by the program's own kernel");
}

}  // namespace

#ifdef SNUG_NO_CUBLASLT

void matmul_by_cublaslt(const simt::cuda::Queue&, const MatmulProblem& p, void*, bool) {
  refuse(p, describe_cublaslt());
}
void cublaslt_tune(bool) {}
std::vector<CublasLtChoice> cublaslt_choices() {
  return {};
}
void cublaslt_use(const std::vector<CublasLtChoice>&) {}
std::string cublaslt_version() {
  return "";
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
  SNUG_CUBLASLT(MatmulDescDestroy);
  SNUG_CUBLASLT(MatmulDescSetAttribute);
  SNUG_CUBLASLT(MatrixLayoutCreate);
  SNUG_CUBLASLT(MatrixLayoutDestroy);
  SNUG_CUBLASLT(MatmulPreferenceCreate);
  SNUG_CUBLASLT(MatmulPreferenceSetAttribute);
  SNUG_CUBLASLT(MatmulPreferenceDestroy);
  SNUG_CUBLASLT(MatmulAlgoGetHeuristic);
  SNUG_CUBLASLT(MatmulAlgoCheck);
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
      find(so, "cublasLtMatmulDescDestroy", l.MatmulDescDestroy) &&
      find(so, "cublasLtMatmulDescSetAttribute", l.MatmulDescSetAttribute) &&
      find(so, "cublasLtMatrixLayoutCreate", l.MatrixLayoutCreate) &&
      find(so, "cublasLtMatrixLayoutDestroy", l.MatrixLayoutDestroy) &&
      find(so, "cublasLtMatmulPreferenceCreate", l.MatmulPreferenceCreate) &&
      find(so, "cublasLtMatmulPreferenceSetAttribute", l.MatmulPreferenceSetAttribute) &&
      find(so, "cublasLtMatmulPreferenceDestroy", l.MatmulPreferenceDestroy) &&
      find(so, "cublasLtMatmulAlgoGetHeuristic", l.MatmulAlgoGetHeuristic) &&
      find(so, "cublasLtMatmulAlgoCheck", l.MatmulAlgoCheck) &&
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

// Which GPU of several it is does not matter: a choice holds for a model of GPUs.
std::string problem_of(const Key& k) {
  return fmt::format(
      "m={} n={} k={} lda={} ldb={} ldc={} type={} c_type={} ta={} tb={} add={} bias={} "
      "align={},{} "
      "tf32={}",
      k.m, k.n, k.k, k.lda, k.ldb, k.ldc, k.type, k.c_type, k.transposed_a, k.transposed_b,
      k.accumulate, k.bias, k.alignment_ab, k.alignment_c, k.tf32);
}

struct Choice {
  Key key{};
  bool tuned = false;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

// Of the thread that launches. A run has a few dozen products; each is chosen when it first comes.
struct Choices {
  std::vector<Choice> made;
  std::map<std::string, cublasLtMatmulAlgo_t> given;
  bool tune = false;
};
Choices& choices() {
  static Choices c;
  return c;
}

std::string hex_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}

std::optional<cublasLtMatmulAlgo_t> algorithm_of(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm{};
  constexpr size_t kDigits = 16;
  if (text.size() != std::size(algorithm.data) * kDigits) return std::nullopt;
  for (size_t i = 0; i < std::size(algorithm.data); ++i) {
    const char *begin = text.data() + i * kDigits, *end = begin + kDigits;
    const auto [at, error] = std::from_chars(begin, end, algorithm.data[i], 16);
    if (error != std::errc() || at != end) return std::nullopt;
  }
  return algorithm;
}

cudaDataType_t type_of(DType t) {
  return t == DType::f32 ? CUDA_R_32F : t == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

// Up to 16, which every tensor has: where a plan puts it must not choose the algorithm.
int32_t alignment(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 16;
  for (const void* p : pointers) bits |= reinterpret_cast<uintptr_t>(p);
  return static_cast<int32_t>(bits & (~bits + 1));
}

void give_back(const Library& l, Choice& c) {
  if (c.product != nullptr) l.MatmulDescDestroy(c.product);
  for (cublasLtMatrixLayout_t layout : {c.a, c.b, c.c})
    if (layout != nullptr) l.MatrixLayoutDestroy(layout);
  c.product = nullptr;
  c.a = c.b = c.c = nullptr;
}

// A row-major matrix is to the library its transpose, column by column. So C^T = B^T A^T is asked
// for, B first. A view whose rows lie together needs no word; one whose columns do, a transpose.
bool describe(const Library& l, Choice& c) {
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
  return ok;
}

// The library's first algorithms, best first by its own guess.
std::vector<cublasLtMatmulAlgo_t> propose(const Library& l, const Choice& c, int most) {
  const Key& k = c.key;
  cublasLtMatmulPreference_t preference = nullptr;
  if (l.MatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return {};
  bool ok = true;
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
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  ok = ok && l.MatmulAlgoGetHeuristic(l.handle, c.product, c.b, c.a, c.c, c.c, preference, most,
                                      results.data(), &found) == CUBLAS_STATUS_SUCCESS;
  l.MatmulPreferenceDestroy(preference);
  std::vector<cublasLtMatmulAlgo_t> list;
  for (int i = 0; ok && i < std::min(found, most); ++i)
    if (results[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      list.push_back(results[static_cast<size_t>(i)].algo);
  return list;
}

// The one that the plan names, which must still be one.
cublasLtMatmulAlgo_t given_algorithm(const Library& l, const Choice& c,
                                     const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      l.MatmulAlgoCheck(l.handle, c.product, c.b, c.a, c.c, c.c, &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > static_cast<size_t>(kCudaMatmulScratch))
    fail(
        ErrorCode::unsupported,
        fmt::format("the algorithm that was chosen for products of {} x {} x {}", c.key.m, c.key.n,
                    c.key.k),
        fmt::format("a cuBLASLt {} that does not take it (status {})", cublaslt_version(),
                    static_cast<int>(status)),
        "the GPU and the version of cuBLASLt it was chosen with; matmul_autotune=true plan=null to "
        "choose anew");
  return algorithm;
}

cublasStatus_t multiply(const Library& l, const Choice& c, const cublasLtMatmulAlgo_t& algorithm,
                        const simt::cuda::Queue& queue, const MatmulProblem& p, void* scratch) {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (p.bias)
    status = l.MatmulDescSetAttribute(c.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias,
                                      sizeof(p.bias));
  const float beta = p.accumulate ? 1.0f : 0.0f;
  if (status == CUBLAS_STATUS_SUCCESS)
    status =
        l.Matmul(l.handle, c.product, &p.alpha, p.b.data, c.b, p.a.data, c.a, &beta, p.c, c.c, p.c,
                 c.c, &algorithm, scratch, static_cast<size_t>(kCudaMatmulScratch), queue.stream);
  return status;
}

constexpr int kCandidates = 8, kRuns = 5;

// The candidate of the least time, once run before it counts. One that is not faster than the
// first by 2 % is not worth another order of sums.
cublasLtMatmulAlgo_t fastest(const Library& l, const Choice& c,
                             const std::vector<cublasLtMatmulAlgo_t>& list,
                             const simt::cuda::Queue& queue, const MatmulProblem& p,
                             void* scratch) {
  cudaEvent_t begin = nullptr, end = nullptr;
  bool ok = cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess;
  size_t best = 0;
  float least = 0;
  for (size_t i = 0; i < list.size() && ok; ++i) {
    float one = -1;  // of its runs the fastest
    for (int run = 0; run <= kRuns && ok; ++run) {
      ok = cudaEventRecord(begin, queue.stream) == cudaSuccess;
      if (multiply(l, c, list[i], queue, p, scratch) != CUBLAS_STATUS_SUCCESS) {
        one = -1;
        break;
      }
      float milliseconds = 0;
      ok = ok && cudaEventRecord(end, queue.stream) == cudaSuccess &&
           cudaEventSynchronize(end) == cudaSuccess &&
           cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess;
      if (run > 0) one = one < 0 ? milliseconds : std::min(one, milliseconds);
    }
    if (one < 0) continue;
    if (i == 0 || least <= 0 || one < 0.98f * least) {
      best = i;
      least = one;
    }
  }
  if (begin != nullptr) cudaEventDestroy(begin);
  if (end != nullptr) cudaEventDestroy(end);
  if (!ok)
    fail(ErrorCode::device, fmt::format("to time products of {} x {} x {}", p.M, p.N, p.K),
         "an error of the device", "run with SNUG_SYNC_CHECK=1 to see which kernel made it");
  return list[best];
}

void choose(const Library& l, Choice& c, const simt::cuda::Queue& queue, const MatmulProblem& p,
            void* scratch) {
  if (!describe(l, c)) refuse(p, "a cuBLASLt " + cublaslt_version() + " that cannot describe it");
  const auto& given = choices().given;
  if (const auto at = given.find(problem_of(c.key)); at != given.end()) {
    c.algorithm = given_algorithm(l, c, at->second);
    return;
  }
  c.tuned = choices().tune;
  const auto list = propose(l, c, c.tuned ? kCandidates : 1);
  if (list.empty()) refuse(p, "a cuBLASLt " + cublaslt_version() + " without an algorithm for it");
  c.algorithm = list.size() > 1 ? fastest(l, c, list, queue, p, scratch) : list.front();
}

const Choice& choice_of(const Library& l, const Key& key, const simt::cuda::Queue& queue,
                        const MatmulProblem& p, void* scratch) {
  std::vector<Choice>& made = choices().made;
  for (const Choice& c : made)
    if (std::memcmp(&c.key, &key, sizeof(key)) == 0) return c;
  Choice c;
  c.key = key;
  try {
    choose(l, c, queue, p, scratch);
  } catch (...) {
    give_back(l, c);
    throw;
  }
  return made.emplace_back(c);
}

}  // namespace

void matmul_by_cublaslt(const simt::cuda::Queue& queue, const MatmulProblem& p, void* scratch,
                        bool tf32) {
  require(cublaslt_takes(p), "a product that cuBLASLt takes");
  const Library& l = library();
  if (!l.why.empty()) refuse(p, describe_cublaslt());
  Key key{};
  key.m = p.M;
  key.n = p.N;
  key.k = p.K;
  key.transposed_a = p.a.col_stride != 1;
  key.transposed_b = p.b.col_stride != 1;
  // The step between lines of `length` elements; a single one may have any.
  key.lda = key.transposed_a ? std::max(p.a.col_stride, p.M) : std::max(p.a.row_stride, p.K);
  key.ldb = key.transposed_b ? std::max(p.b.col_stride, p.K) : std::max(p.b.row_stride, p.N);
  key.ldc = p.ldc;
  key.type = type_of(p.a.dtype);
  key.c_type = type_of(p.c_dtype);
  key.accumulate = p.accumulate;
  key.bias = p.bias != nullptr;
  key.tf32 = tf32 && p.a.dtype == DType::f32;
  key.alignment_ab = alignment({p.a.data, p.b.data});
  key.alignment_c = alignment({p.c, p.bias});
  if (const cudaError_t error = cudaGetDevice(&key.device); error != cudaSuccess)
    fail(ErrorCode::device, fmt::format("a GPU to multiply {} x {} x {}", p.M, p.N, p.K),
         cudaGetErrorString(error),
         "an earlier kernel may have failed: run with SNUG_SYNC_CHECK=1");
  const Choice& c = choice_of(l, key, queue, p, scratch);
  const cublasStatus_t status = multiply(l, c, c.algorithm, queue, p, scratch);
  const cudaError_t error = status == CUBLAS_STATUS_SUCCESS && queue.sync_check
                                ? cudaStreamSynchronize(queue.stream)
                                : cudaSuccess;
  if (status != CUBLAS_STATUS_SUCCESS || error != cudaSuccess)
    fail(ErrorCode::device, fmt::format("cuBLASLt to multiply {} x {} x {}", p.M, p.N, p.K),
         fmt::format("its status {}, {}", static_cast<int>(status), cudaGetErrorString(error)),
         "an earlier kernel may have failed: run with SNUG_SYNC_CHECK=1");
}

void cublaslt_tune(bool on) {
  choices().tune = on;
}

std::vector<CublasLtChoice> cublaslt_choices() {
  std::map<std::string, std::string> all;
  for (const auto& [problem, algorithm] : choices().given) all[problem] = hex_of(algorithm);
  for (const Choice& c : choices().made)
    if (c.tuned) all[problem_of(c.key)] = hex_of(c.algorithm);
  std::vector<CublasLtChoice> list;
  for (const auto& [problem, algorithm] : all) list.push_back({problem, algorithm});
  return list;
}

void cublaslt_use(const std::vector<CublasLtChoice>& list) {
  for (const CublasLtChoice& c : list) {
    const auto algorithm = algorithm_of(c.algorithm);
    if (!algorithm)
      fail(ErrorCode::data, "an algorithm of cuBLASLt, 128 hexadecimal digits, for " + c.problem,
           fmt::format("\"{}\"", c.algorithm), "the plan or the checkpoint as Snug wrote it");
    choices().given[c.problem] = *algorithm;
  }
}

std::string cublaslt_version() {
  const Library& l = library();
  if (!l.why.empty()) return "";
  const auto v = static_cast<int>(l.GetVersion());
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

std::string describe_cublaslt() {
  const Library& l = library();
  return l.why.empty() ? fmt::format("cuBLASLt {} ({})", cublaslt_version(), l.path) : l.why;
}

#endif

}  // namespace snug
