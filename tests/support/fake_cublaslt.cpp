#include "tests/support/fake_cublaslt.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

using namespace snug::test;  // NOLINT: its functions have the library's names, outside of all
                             // spaces

namespace {

FakeNotes notes;
std::vector<std::unique_ptr<FakeProduct>> products;
std::vector<std::unique_ptr<FakeMatrix>> matrices;
std::vector<std::unique_ptr<FakePreference>> preferences;

// f32 and bf16 are what the tests multiply.
float value(const void* data, cudaDataType_t type, int64_t at) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(data)[at]} << 16);
}
void store(void* data, cudaDataType_t type, int64_t at, float v) {
  if (type == CUDA_R_32F)
    static_cast<float*>(data)[at] = v;
  else  // values of the tests are exact in bf16
    static_cast<uint16_t*>(data)[at] = static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16);
}

template <class T>
void take(T& to, const void* from, size_t bytes) {
  if (bytes == sizeof(to)) std::memcpy(&to, from, bytes);
}

}  // namespace

extern "C" {

FakeNotes* fake_cublaslt_notes() {
  return &notes;
}

size_t cublasLtGetVersion() {
  return 130100;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  ++notes.handles;
  *handle = reinterpret_cast<cublasLtHandle_t>(&notes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  ++notes.products;
  products.push_back(std::make_unique<FakeProduct>());
  products.back()->compute = compute;
  products.back()->scale = scale;
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(products.back().get());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) {
  --notes.products;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) {
  --notes.matrices;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* from, size_t bytes) {
  auto& p = *reinterpret_cast<FakeProduct*>(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      take(p.trans_a, from, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      take(p.trans_b, from, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      take(p.epilogue, from, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      take(p.bias_type, from, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      take(p.bias, from, bytes);
      break;
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  if (notes.refuse_layouts && rows == 77) return CUBLAS_STATUS_ALLOC_FAILED;
  ++notes.matrices;
  matrices.push_back(std::make_unique<FakeMatrix>(FakeMatrix{type, rows, cols, ld}));
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(matrices.back().get());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  ++notes.preferences;
  preferences.push_back(std::make_unique<FakePreference>());
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(preferences.back().get());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* from, size_t bytes) {
  auto& p = *reinterpret_cast<FakePreference*>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      take(p.workspace, from, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      take(p.reduction, from, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      take(p.alignment[0], from, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      take(p.alignment[1], from, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      take(p.alignment[2], from, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      take(p.alignment[3], from, bytes);
      break;
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) {
  --notes.preferences;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  ++notes.questions;
  notes.asked = *reinterpret_cast<FakePreference*>(preference);
  *found = 0;
  if (notes.refuse) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  notes.wanted = wanted;
  for (int i = 0; i < std::min(wanted, notes.algorithms); ++i) {
    results[i] = {};
    results[i].algo.data[0] = kFirstAlgorithm + static_cast<uint64_t>(i);
    results[i].state = CUBLAS_STATUS_SUCCESS;
    ++*found;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  ++notes.checks;
  *result = {};
  const uint64_t number = algorithm->data[0] - kFirstAlgorithm;
  return number < 4 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t bytes,
                              cudaStream_t stream) {
  ++notes.calls;
  if (notes.fail != 0) return static_cast<cublasStatus_t>(notes.fail);
  const auto& p = *reinterpret_cast<FakeProduct*>(desc);
  const auto& A = *reinterpret_cast<FakeMatrix*>(a_layout);
  const auto& B = *reinterpret_cast<FakeMatrix*>(b_layout);
  const auto& D = *reinterpret_cast<FakeMatrix*>(d_layout);
  notes.product = p;
  notes.a = A;
  notes.b = B;
  notes.d = D;
  notes.alpha = *static_cast<const float*>(alpha);
  notes.beta = *static_cast<const float*>(beta);
  notes.workspace = workspace;
  notes.workspace_bytes = bytes;
  notes.stream = stream;
  const bool ta = p.trans_a == CUBLAS_OP_T, tb = p.trans_b == CUBLAS_OP_T;
  const uint64_t k = ta ? A.rows : A.cols;
  const uint64_t number = algorithm->data[0] - kFirstAlgorithm;
  if (number >= 4 || static_cast<int>(number) == notes.broken) return CUBLAS_STATUS_INTERNAL_ERROR;
  notes.last = static_cast<int>(number);
  notes.clock += notes.slow[number];
  if ((ta ? A.cols : A.rows) != D.rows || (tb ? B.cols : B.rows) != k ||
      (tb ? B.rows : B.cols) != D.cols)
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto at = [](const FakeMatrix& m, bool t, uint64_t i, uint64_t j) {
    return t ? static_cast<int64_t>(j) + static_cast<int64_t>(i) * m.ld
             : static_cast<int64_t>(i) + static_cast<int64_t>(j) * m.ld;
  };
  for (uint64_t j = 0; j < D.cols; ++j)
    for (uint64_t i = 0; i < D.rows; ++i) {
      float sum = 0;
      for (uint64_t l = 0; l < k; ++l)
        sum = std::fma(value(a, A.type, at(A, ta, i, l)), value(b, B.type, at(B, tb, l, j)), sum);
      float v = notes.alpha * sum;
      if (notes.beta != 0) v += notes.beta * value(c, D.type, at(D, false, i, j));
      if (p.epilogue == CUBLASLT_EPILOGUE_BIAS)
        v += value(p.bias, p.bias_type, static_cast<int64_t>(i));
      store(d, D.type, at(D, false, i, j), v);
    }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
