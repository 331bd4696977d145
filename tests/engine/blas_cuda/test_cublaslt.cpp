// What matmul_cuda.cpp asks cuBLASLt for, on machines without a GPU: the library is a fake that
// does what its descriptors say, and the runtime's few functions are here.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "engine/blas/matmul_cuda.h"
#include "engine/core/error.h"
#include "tests/support/errors.h"
#include "tests/support/fake_cublaslt.h"

static int events = 0;  // that live
static bool events_fail = false, no_device = false;
static double library_clock();

extern "C" {
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return no_device ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "no error";
}
// Events: the library's own clock.
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new double(0));
  ++events;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<double*>(event);
  --events;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  *reinterpret_cast<double*>(event) = library_clock();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return events_fail ? cudaErrorLaunchFailure : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds =
      static_cast<float>(*reinterpret_cast<double*>(end) - *reinterpret_cast<double*>(begin));
  return cudaSuccess;
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

// A run's state of tuning, put back.
class Tuning {
 public:
  Tuning() { cublaslt_tune(true); }
  ~Tuning() {
    cublaslt_tune(false);
    notes().algorithms = 1;
    notes().broken = -1;
    for (int& s : notes().slow) s = 0;
  }
};

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
          matmul_by_cublaslt(kQueue, m.p, scratch, false);
          EXPECT_EQ(m.c, m.expected);
        }
}

TEST(CublasLt, ExtentsOfOneToo) {
  for (const auto [M, N, K] : {std::array{1, 7, 6}, std::array{5, 1, 6}, std::array{5, 7, 1}})
    for (const int layout : {0, 1, 2, 3}) {
      Made m({M, N, K, layout / 2 == 1, layout % 2 == 1});
      SCOPED_TRACE(testing::Message() << M << "," << N << "," << K << " layout " << layout);
      matmul_by_cublaslt(kQueue, m.p, scratch, false);
      EXPECT_EQ(m.c, m.expected);
    }
}

TEST(CublasLt, AsksForWhatIsPromised) {
  Made m({16, 24, 32, false, true, DType::bf16, DType::bf16, true});
  matmul_by_cublaslt(kQueue, m.p, scratch, false);
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
  matmul_by_cublaslt(kQueue, m.p, scratch, false);
  EXPECT_EQ(notes().product.compute, CUBLAS_COMPUTE_32F_PEDANTIC);
  matmul_by_cublaslt(kQueue, m.p, scratch, true);
  EXPECT_EQ(notes().product.compute, CUBLAS_COMPUTE_32F_FAST_TF32);
  matmul_by_cublaslt(kQueue, m.p, scratch, false);
  EXPECT_EQ(notes().product.compute, CUBLAS_COMPUTE_32F_PEDANTIC) << "the choices are apart";
  Made narrow({4, 8, 12, false, false, DType::bf16});
  matmul_by_cublaslt(kQueue, narrow.p, scratch, true);
  EXPECT_EQ(notes().product.compute, CUBLAS_COMPUTE_32F);
}

TEST(CublasLt, AShapeIsAskedForOnce) {
  Made m({9, 10, 11, true, false, DType::f32, DType::f32, true}), other({9, 10, 11, true, false});
  matmul_by_cublaslt(kQueue, m.p, scratch, false);
  const FakeNotes before = notes();
  for (int i = 0; i < 3; ++i) {
    m.bias[0] = std::byte{0};
    matmul_by_cublaslt(kQueue, m.p, scratch, false);
  }
  EXPECT_EQ(notes().questions, before.questions);
  EXPECT_EQ(notes().products, before.products);
  EXPECT_EQ(notes().matrices, before.matrices);
  EXPECT_EQ(notes().calls, before.calls + 3);
  matmul_by_cublaslt(kQueue, other.p, scratch, false);
  EXPECT_EQ(notes().questions, before.questions + 1) << "another epilogue";
}

TEST(CublasLt, LeavesTheRestToTheKernel) {
  const auto takes = [&](const auto& change) {
    Made m({3, 4, 5, false, false, DType::bf16, DType::bf16, true});
    change(m.p);
    return cublaslt_takes(m.p);
  };
  EXPECT_TRUE(takes([](MatmulProblem&) {}));
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.accumulate = true; })) << "another order than ours";
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.a.dtype = DType::f32; }));
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.bias_dtype = DType::f32; }));
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.a.col_stride = 2; }));
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.a.row_stride = 0; }));
  EXPECT_FALSE(takes([](MatmulProblem& p) { p.K = 0; }));
  EXPECT_FALSE(
      takes([](MatmulProblem& p) { p.finish.rows = [](const void*, int64_t, int64_t) {}; }));
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

// Nobody else computes what was planned for the library; and what was made for a problem that has
// no algorithm, or whose description fails, is given back. It is asked again: nothing is kept.
TEST(CublasLt, RefusesWhatItCannotDoAndKeepsNothingOfIt) {
  const FakeNotes before = notes();
  Made m({6, 77, 5, false, false});
  notes().refuse = true;
  for (int i = 0; i < 2; ++i)
    expect_error(ErrorCode::unsupported,
                 {"cuBLASLt to multiply 6 x 77 x 5 (f32), as planned",
                  "a cuBLASLt 13.1.0 without an algorithm for it", "SNUG_CUBLASLT=none plan=null"},
                 [&] { matmul_by_cublaslt(kQueue, m.p, scratch, false); });
  notes().refuse = false;
  EXPECT_EQ(notes().products, before.products);
  EXPECT_EQ(notes().matrices, before.matrices);
  EXPECT_EQ(notes().preferences, 0);
  Made other({7, 77, 5, false, false});
  notes().refuse_layouts = true;
  expect_error(ErrorCode::unsupported, {"7 x 77 x 5", "13.1.0 that cannot describe it"},
               [&] { matmul_by_cublaslt(kQueue, other.p, scratch, false); });
  notes().refuse_layouts = false;
  EXPECT_EQ(notes().products, before.products);
  EXPECT_EQ(notes().matrices, before.matrices);
  EXPECT_EQ(notes().calls, before.calls);
}

TEST(CublasLt, NoDeviceIsAnError) {
  Made m({8, 77, 5, false, false});
  no_device = true;
  expect_error(ErrorCode::device, {"a GPU to multiply 8 x 77 x 5", "SNUG_SYNC_CHECK"},
               [&] { matmul_by_cublaslt(kQueue, m.p, scratch, false); });
  no_device = false;
}

// However many shapes a run has.
TEST(CublasLt, TakesAnyNumberOfProblems) {
  for (int64_t n = 1; n <= 700; ++n) {
    Made m({1, n, 2, false, false});
    matmul_by_cublaslt(kQueue, m.p, scratch, false);
    ASSERT_EQ(m.c, m.expected) << n;
  }
  const int questions = notes().questions;
  Made m({1, 699, 2, false, false});
  matmul_by_cublaslt(kQueue, m.p, scratch, false);
  EXPECT_EQ(notes().questions, questions) << "the last ones are kept too";
}

TEST(CublasLt, WithoutTuningTheFirstProposalIsTaken) {
  const Tuning back;
  cublaslt_tune(false);
  notes().algorithms = 4;
  notes().slow[0] = 9;
  Made m({21, 8, 4, false, false});
  const auto before = cublaslt_choices();
  matmul_by_cublaslt(kQueue, m.p, scratch, false);
  EXPECT_EQ(notes().wanted, 1);
  EXPECT_EQ(notes().last, 0);
  EXPECT_EQ(cublaslt_choices(), before) << "nothing was measured";
}

TEST(CublasLt, TuningKeepsTheFastestAndNamesIt) {
  const Tuning back;
  notes().algorithms = 4;
  for (const auto& [i, ms] : {std::pair{0, 9}, {1, 5}, {2, 3}, {3, 8}}) notes().slow[i] = ms;
  Made m({22, 8, 4, false, false});
  const size_t before = cublaslt_choices().size();
  matmul_by_cublaslt(kQueue, m.p, scratch, false);
  EXPECT_EQ(notes().last, 2);
  EXPECT_EQ(m.c, m.expected);
  EXPECT_EQ(events, 0) << "all were given back";
  const auto choices = cublaslt_choices();
  ASSERT_EQ(choices.size(), before + 1);
  const auto mine = std::find_if(choices.begin(), choices.end(), [](const CublasLtChoice& c) {
    return c.problem.starts_with("m=22 n=8 k=4 ");
  });
  ASSERT_NE(mine, choices.end());
  EXPECT_EQ(mine->algorithm, "0000000000000009" + std::string(7 * 16, '0'));
  const int calls = notes().calls;
  matmul_by_cublaslt(kQueue, m.p, scratch, false);
  EXPECT_EQ(notes().calls, calls + 1) << "measured once";
  EXPECT_EQ(notes().last, 2);
}

TEST(CublasLt, TuningLeavesOutWhatFailsAndWhatIsHardlyFaster) {
  const Tuning back;
  notes().algorithms = 4;
  for (const auto& [i, ms] : {std::pair{0, 100}, {1, 99}, {2, 1}, {3, 200}}) notes().slow[i] = ms;
  notes().broken = 2;
  Made m({23, 8, 4, false, false});
  matmul_by_cublaslt(kQueue, m.p, scratch, false);
  EXPECT_EQ(notes().last, 0) << "1 % is not worth another order of sums";
}

TEST(CublasLt, AnErrorWhileTuningIsSaid) {
  const Tuning back;
  notes().algorithms = 2;
  Made m({26, 8, 4, false, false});
  events_fail = true;
  const FakeNotes before = notes();
  try {
    matmul_by_cublaslt(kQueue, m.p, scratch, false);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("to time products of 26 x 8 x 4"), std::string::npos);
  }
  events_fail = false;
  EXPECT_EQ(events, 0);
  EXPECT_EQ(notes().products, before.products);
}

// As a followed plan and a resume do.
TEST(CublasLt, TakesTheAlgorithmThatAPlanNames) {
  const auto problem = [](int m) {
    return "m=" + std::to_string(m) +
           " n=8 k=4 lda=4 ldb=8 ldc=11 type=0 c_type=0 ta=0 tb=0 add=0 bias=0 align=16,16 tf32=0";
  };
  const std::string rest(7 * 16, '0');
  cublaslt_use(
      {{problem(24), "0000000000000008" + rest}, {problem(25), "00000000000000ff" + rest}});
  Made m({24, 8, 4, false, false});
  const int questions = notes().questions, checks = notes().checks;
  matmul_by_cublaslt(kQueue, m.p, scratch, false);
  EXPECT_EQ(notes().last, 1);
  EXPECT_EQ(m.c, m.expected);
  EXPECT_EQ(notes().questions, questions) << "nobody is asked";
  EXPECT_EQ(notes().checks, checks + 1);

  const auto refused = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const FakeNotes before = notes();
  Made none({25, 8, 4, false, false});
  const std::string text = refused([&] { matmul_by_cublaslt(kQueue, none.p, scratch, false); });
  for (const char* part :
       {"the algorithm that was chosen for products of 25 x 8 x 4",
        "a cuBLASLt 13.1.0 that does not take it", "matmul_autotune=true plan=null"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(notes().products, before.products);
  EXPECT_EQ(notes().matrices, before.matrices);
  for (const char* wrong : {"", "12", "x"}) {
    const std::string said = refused([&] { cublaslt_use({{"m=1", wrong}}); });
    EXPECT_NE(said.find("an algorithm of cuBLASLt, 128 hexadecimal digits, for m=1"),
              std::string::npos)
        << said;
  }
  EXPECT_NE(refused([&] {
              cublaslt_use({{"m=1", std::string(127, '0') + "g"}});
            }).find("hexadecimal"),
            std::string::npos);
}

// The plan knows without the library what will be asked of it.
TEST(CublasLt, WhatItTakesIsKnownWithoutIt) {
  Made m({3, 4, 5, true, false, DType::bf16, DType::bf16, true});
  EXPECT_TRUE(cublaslt_takes(m.p));
  m.p.c = nullptr;
  m.p.a.data = m.p.b.data = nullptr;
  EXPECT_TRUE(cublaslt_takes(m.p));
  m.p.a.col_stride = 2;
  EXPECT_FALSE(cublaslt_takes(m.p)) << "lines that lie in each other";
}

TEST(CublasLt, SaysWhichLibraryItIs) {
  EXPECT_EQ(cublaslt_version(), "13.1.0");
  EXPECT_EQ(describe_cublaslt(), std::string("cuBLASLt 13.1.0 (") + SNUG_FAKE_CUBLASLT + ")");
}

}  // namespace
}  // namespace snug::test

static double library_clock() {
  return snug::test::notes().clock;
}
