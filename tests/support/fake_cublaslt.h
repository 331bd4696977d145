// What the fake cuBLASLt (fake_cublaslt.cpp) was asked for. It has the functions that
// matmul_cuda.cpp loads, computes what the descriptors say by the library's documentation, column
// by column, and keeps notes.
#pragma once

#include <cublasLt.h>

#include <cstdint>

namespace snug::test {

struct FakeMatrix {
  cudaDataType_t type{};
  uint64_t rows = 0, cols = 0;
  int64_t ld = 0;
};

struct FakeProduct {
  cublasComputeType_t compute{};
  cudaDataType_t scale{};
  cublasOperation_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cudaDataType_t bias_type{};
  const void* bias = nullptr;
};

struct FakePreference {
  uint64_t workspace = ~uint64_t{0};
  uint32_t reduction = ~uint32_t{0};
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D, as by default
};

inline constexpr uint64_t kFirstAlgorithm = 7;

struct FakeNotes {
  int handles = 0, questions = 0, calls = 0, checks = 0;
  int products = 0, matrices = 0, preferences = 0;  // made and not given back
  bool refuse = false;                              // the next questions get no algorithm
  bool refuse_layouts = false;
  int fail = 0;        // status of the next calls
  int wanted = 0;      // algorithms that the last question asked for
  int algorithms = 1;  // that the next questions are answered with: kFirstAlgorithm and on
  int slow[4] = {};    // milliseconds of a call of each
  int broken = -1;     // the one whose calls fail
  int last = -1;       // the one of the last call
  double clock = 0;    // milliseconds
  FakePreference asked;
  FakeProduct product;
  FakeMatrix a, b, d;
  float alpha = 0, beta = 0;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  void* stream = nullptr;
};

}  // namespace snug::test

extern "C" snug::test::FakeNotes* fake_cublaslt_notes();
