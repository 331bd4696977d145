// What matmul_cuda.cpp asks cuBLASLt for, on machines without a GPU: the library is a fake that
// does what its descriptors say, and the runtime's few functions are here.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "engine/blas/matmul_cuda.h"
#include "engine/core/error.h"
#include "tests/support/fake_cublaslt.h"

extern "C" {
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "no error";
}
}

namespace snug::test {
namespace {

FakeNotes& notes() {
  static FakeNotes* const n = [] {
    setenv("SNUG_CUBLASLT", SNUG_FAKE_CUBLASLT, 1);
    void* library = dlopen(SNUG_FAKE_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<FakeNotes* (*)()>(dlsym(library, "fake_cublaslt_notes"))();
  }();
  return *n;
}

// Before the first product: the library is looked for once.
[[maybe_unused]] const FakeNotes& kLoaded = notes();

// Whole numbers of few bits: every order of sums is exact, in bf16 too.
std::vector<float> numbers(int64_t count, int seed) {
  std::vector<float> v(static_cast<size_t>(count));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(static_cast<int>((i * 7 + static_cast<size_t>(seed) * 5) % 5) - 2);
  return v;
}
std::vector<std::byte> stored(const std::vector<float>& v, DType t) {
  std::vector<std::byte> bytes(v.size() * static_cast<size_t>(size_of(t)));
  for (size_t i = 0; i < v.size(); ++i)
    if (t == DType::f32)
      reinterpret_cast<float*>(bytes.data())[i] = v[i];
    else
      reinterpret_cast<bf16*>(bytes.data())[i] = from_f32<bf16>(v[i]);
  return bytes;
}

struct Problem {
  int64_t M, N, K;
  bool ta, tb;
  DType ab = DType::f32, c = DType::f32;
  bool bias = false, add = false;
};

struct Made {
  std::vector<std::byte> a, b, bias, c, expected;
  MatmulProblem p;
  explicit Made(const Problem& q) {
    a = stored(numbers(q.M * q.K, 1), q.ab);
    b = stored(numbers(q.K * q.N, 2), q.ab);
    bias = stored(numbers(q.N, 3), q.c);
    c = expected = stored(numbers(q.M * (q.N + 3), 4), q.c);
    p.M = q.M;
    p.N = q.N;
    p.K = q.K;
    p.a = {a.data(), q.ab, q.ta ? 1 : q.K, q.ta ? q.M : 1};
    p.b = {b.data(), q.ab, q.tb ? 1 : q.N, q.tb ? q.K : 1};
    p.c_dtype = q.c;
    p.ldc = q.N + 3;
    p.accumulate = q.add;
    p.bias_dtype = q.c;
    if (q.bias) p.bias = bias.data();
    p.c = expected.data();
    matmul_cpu(p, MatmulKernel::reference, nullptr, 1);
    p.c = c.data();
  }
};

const simt::cuda::Queue kQueue{reinterpret_cast<CUstream_st*>(0x40), false};
std::byte scratch[16];

TEST(CublasLt, EveryLayoutIsTheProductOfTheReference) {
  for (const DType ab : {DType::f32, DType::bf16})
    for (const DType c : {DType::f32, DType::bf16})
      for (const int layout : {0, 1, 2, 3})
        for (const int also : {0, 1, 2}) {
          if (ab == DType::f32 && c == DType::bf16) continue;
          Made m({5, 7, 6, layout / 2 == 1, layout % 2 == 1, ab, c, also == 1, also == 2});
          SCOPED_TRACE(testing::Message() << to_string(ab) << " " << to_string(c) << " layout "
                                          << layout << " also " << also);
          ASSERT_TRUE(matmul_by_cublaslt(kQueue, m.p, scratch, false));
          EXPECT_EQ(m.c, m.expected);
        }
}

TEST(CublasLt, ExtentsOfOneToo) {
  for (const auto [M, N, K] : {std::array{1, 7, 6}, std::array{5, 1, 6}, std::array{5, 7, 1}})
    for (const int layout : {0, 1, 2, 3}) {
      Made m({M, N, K, layout / 2 == 1, layout % 2 == 1});
      SCOPED_TRACE(testing::Message() << M << "," << N << "," << K << " layout " << layout);
      ASSERT_TRUE(matmul_by_cublaslt(kQueue, m.p, scratch, false));
      EXPECT_EQ(m.c, m.expected);
    }
}

TEST(CublasLt, AsksForWhatIsPromised) {
  Made m({16, 24, 32, false, true, DType::bf16, DType::bf16, true});
  ASSERT_TRUE(matmul_by_cublaslt(kQueue, m.p, scratch, false));
  const FakeNotes& n = notes();
  EXPECT_EQ(n.handles, 1);
  EXPECT_EQ(n.preferences, 0) << "each is given back";
  EXPECT_EQ(n.product.compute, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(n.product.scale, CUDA_R_32F);
  EXPECT_EQ(n.product.epilogue, CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(n.product.bias, m.p.bias);
  EXPECT_EQ(n.workspace, static_cast<void*>(scratch));
  EXPECT_EQ(n.workspace_bytes, static_cast<size_t>(kCudaMatmulScratch));
  EXPECT_EQ(n.asked.workspace, static_cast<uint64_t>(kCudaMatmulScratch));
  EXPECT_EQ(n.asked.reduction, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  for (const uint32_t a : n.asked.alignment) EXPECT_LE(a, 16u);
  EXPECT_EQ(n.stream, static_cast<void*>(kQueue.stream));
}

// Shapes of this test alone, for choices are kept.
TEST(CublasLt, F32IsRoundedToTf32OnlyWhereItIsAskedFor) {
  Made m({4, 8, 12, false, false});
  ASSERT_TRUE(matmul_by_cublaslt(kQueue, m.p, scratch, false));
  EXPECT_EQ(notes().product.compute, CUBLAS_COMPUTE_32F_PEDANTIC);
  ASSERT_TRUE(matmul_by_cublaslt(kQueue, m.p, scratch, true));
  EXPECT_EQ(notes().product.compute, CUBLAS_COMPUTE_32F_FAST_TF32);
  ASSERT_TRUE(matmul_by_cublaslt(kQueue, m.p, scratch, false));
  EXPECT_EQ(notes().product.compute, CUBLAS_COMPUTE_32F_PEDANTIC) << "the choices are apart";
  Made narrow({4, 8, 12, false, false, DType::bf16});
  ASSERT_TRUE(matmul_by_cublaslt(kQueue, narrow.p, scratch, true));
  EXPECT_EQ(notes().product.compute, CUBLAS_COMPUTE_32F);
}

TEST(CublasLt, AShapeIsAskedForOnce) {
  Made m({9, 10, 11, true, false, DType::f32, DType::f32, true}), other({9, 10, 11, true, false});
  ASSERT_TRUE(matmul_by_cublaslt(kQueue, m.p, scratch, false));
  const FakeNotes before = notes();
  for (int i = 0; i < 3; ++i) {
    m.bias[0] = std::byte{0};
    ASSERT_TRUE(matmul_by_cublaslt(kQueue, m.p, scratch, false));
  }
  EXPECT_EQ(notes().questions, before.questions);
  EXPECT_EQ(notes().products, before.products);
  EXPECT_EQ(notes().matrices, before.matrices);
  EXPECT_EQ(notes().calls, before.calls + 3);
  ASSERT_TRUE(matmul_by_cublaslt(kQueue, other.p, scratch, false));
  EXPECT_EQ(notes().questions, before.questions + 1) << "another epilogue";
}

TEST(CublasLt, LeavesTheRestToTheKernel) {
  const int calls = notes().calls;
  const auto takes = [&](const auto& change) {
    Made m({3, 4, 5, false, false, DType::bf16, DType::bf16, true});
    change(m.p);
    return matmul_by_cublaslt(kQueue, m.p, scratch, false);
  };
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.accumulate = true; })) << "another order than ours";
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.a.dtype = DType::f32; }));
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.bias_dtype = DType::f32; }));
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.a.col_stride = 2; }));
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.a.row_stride = 0; }));
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.K = 0; }));
  EXPECT_FALSE(
      takes([](MatmulProblem& p) { p.finish.rows = [](const void*, int64_t, int64_t) {}; }));
  notes().refuse = true;
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.M = 2; })) << "no algorithm";
  notes().refuse = false;
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.M = 2; })) << "asked once";
  EXPECT_EQ(notes().calls, calls);
}

TEST(CublasLt, AFailureIsAnErrorOfThreeParts) {
  Made m({3, 5, 4, false, false});
  notes().fail = 13;
  try {
    matmul_by_cublaslt(kQueue, m.p, scratch, false);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::device);
    const std::string text = e.what();
    for (const char* part : {"cuBLASLt to multiply 3 x 5 x 4", "its status 13", "SNUG_SYNC_CHECK"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  notes().fail = 0;
}

TEST(CublasLt, SaysWhichLibraryItIs) {
  EXPECT_EQ(describe_cublaslt(), std::string("cuBLASLt 13.1.0 (") + SNUG_FAKE_CUBLASLT + ")");
}

}  // namespace
}  // namespace snug::test
