// Which kernel computes a product, and that a run holds to it.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "engine/blas/kernel_table.h"
#include "engine/blas/matmul.h"
#include "engine/core/error.h"
#include "tests/support/case.h"

namespace snug {
namespace {

MatmulProblem problem(int64_t M, int64_t N, int64_t K, bool ta, bool tb, DType t) {
  MatmulProblem p;
  p.M = M;
  p.N = N;
  p.K = K;
  p.a = {nullptr, t, ta ? 1 : K, ta ? M : 1};
  p.b = {nullptr, t, tb ? 1 : N, tb ? K : 1};
  p.c_dtype = t;
  p.ldc = N;
  return p;
}

// A kernel that is not what matmul_best names.
MatmulKernel another(DType t) {
  return matmul_best(t, t) == MatmulKernel::avx2 ? MatmulKernel::reference : MatmulKernel::avx2;
}

TEST(ProductClass, ByLayoutColumnsAndDepth) {
  const auto text = [](int64_t N, int64_t K, bool ta, bool tb) {
    return to_string(product_class(problem(100, N, K, ta, tb, DType::f32)));
  };
  EXPECT_EQ(text(384, 384, false, true), "nt narrow short");
  EXPECT_EQ(text(511, 511, false, false), "nn narrow short");
  EXPECT_EQ(text(512, 512, false, false), "nn wide long");
  EXPECT_EQ(text(8191, 511, true, false), "tn wide short");
  EXPECT_EQ(text(8192, 512, true, true), "tt vocabulary long");
}

TEST(ProductClass, RowsDoNotEnter) {
  for (const int64_t M : {1, 28, 29, 4096})
    EXPECT_EQ(product_class(problem(M, 768, 768, false, true, DType::bf16)),
              product_class(problem(64, 768, 768, false, true, DType::bf16)));
}

// One packed copy serves every product with an A that is not transposed, whatever A's strides say.
TEST(ProductClass, APackedOperandKeepsItsClass) {
  MatmulProblem p = problem(1, 768, 768, true, true, DType::bf16);
  const float somewhere = 0;
  p.b_packed = &somewhere;
  EXPECT_EQ(to_string(product_class(p)), "nt wide long");
}

TEST(ProductClass, TextAndBack) {
  std::set<std::string> seen;
  for (const ProductClass& c : product_classes()) {
    EXPECT_TRUE(seen.insert(to_string(c)).second);
    const auto back = parse_product_class(to_string(c));
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, c);
  }
  EXPECT_EQ(seen.size(), 24u);
  for (const char* text : {"", "nt", "nt wide", "nt wide long ", "xx wide long"})
    EXPECT_FALSE(parse_product_class(text)) << text;
}

TEST(KernelChoice, TextAndBack) {
  for (const ProductClass& c : product_classes())
    for (const MatmulKernel k : kMatmulKernels) {
      const KernelChoice choice{c, DType::bf16, DType::f32, k};
      const auto back = parse_kernel_choice(to_string(choice));
      ASSERT_TRUE(back) << to_string(choice);
      EXPECT_EQ(*back, choice);
    }
  const KernelChoice narrow{product_classes()[5], DType::f16, DType::f16, MatmulKernel::avx2};
  EXPECT_EQ(parse_kernel_choice(to_string(narrow)), narrow);
  for (const char* text : {"", ", ", "nt wide long, bf16 bf16", "nt wide long, bf16, avx2",
                           "nt wide long, i32 i32, avx2", "nt wide long, f32 f32, avx3"})
    EXPECT_FALSE(parse_kernel_choice(text)) << text;
}

TEST(KernelChoice, ItsNameIsItsText) {
  std::vector<MatmulKernel> kernels(std::begin(kMatmulKernels), std::end(kMatmulKernels));
  kernels.push_back(MatmulKernel::cublaslt);
  for (int time = 0; time < 2; ++time)  // made, and found
    for (const ProductClass& c : product_classes())
      for (const DType a : {DType::f32, DType::bf16, DType::f16, DType::f64})
        for (const DType b : {DType::f32, DType::bf16, DType::f16})
          for (const MatmulKernel k : kernels) {
            const KernelChoice choice{c, a, b, k};
            EXPECT_EQ(kernel_choice_name(choice, false).view(), to_string(choice));
            EXPECT_EQ(kernel_choice_name(choice, true).view(), to_string(choice) + " packed");
          }
}

TEST(KernelTable, AnEmptyOneNamesTheUsualKernel) {
  const KernelTable table;
  EXPECT_TRUE(table.empty());
  EXPECT_TRUE(table.choices().empty());
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const MatmulProblem p = problem(64, 768, 768, false, true, t);
    EXPECT_EQ(table.choose(p), matmul_best(p));
  }
}

TEST(KernelTable, NamesWhatWasSetForItsClassAndDTypesOnly) {
  KernelTable table;
  const MatmulProblem p = problem(64, 768, 768, false, true, DType::f32);
  table.set({product_class(p), DType::f32, DType::f32, another(DType::f32)});
  EXPECT_EQ(table.choose(p), another(DType::f32));
  EXPECT_EQ(table.choose(problem(1, 1024, 512, false, true, DType::f32)), another(DType::f32));
  EXPECT_EQ(table.choose(problem(64, 768, 768, false, true, DType::f16)), another(DType::f32))
      << "f16 is multiplied by the kernel of f32";
  for (const MatmulProblem& q : {problem(64, 768, 768, false, false, DType::f32),
                                 problem(64, 768, 511, false, true, DType::f32),
                                 problem(64, 384, 768, false, true, DType::f32),
                                 problem(64, 768, 768, true, true, DType::f32),
                                 problem(64, 768, 768, false, true, DType::bf16)})
    EXPECT_EQ(table.choose(q), matmul_best(q)) << to_string(product_class(q));
  ASSERT_EQ(table.choices().size(), 1u);
  EXPECT_EQ(to_string(table.choices()[0]),
            std::string("nt wide long, f32 f32, ") + to_string(another(DType::f32)));
}

TEST(KernelTable, KeepsEveryClassApart) {
  KernelTable table;
  std::vector<KernelChoice> all;
  for (const ProductClass& c : product_classes())
    for (const DType a : {DType::f32, DType::bf16})
      for (const DType b : {DType::f32, DType::bf16})
        all.push_back(
            {c, a, b, all.size() % 3 == 0 ? MatmulKernel::reference : MatmulKernel::avx512_bf16});
  for (const KernelChoice& c : all) table.set(c);
  EXPECT_EQ(table.choices(), all);
}

// What the table names but the product or the machine cannot do falls back.
TEST(KernelTable, FallsBackWhereTheKernelDoesNotTakeTheProduct) {
  KernelTable table;
  const MatmulProblem p = problem(64, 768, 768, false, true, DType::f32);
  table.set({product_class(p), DType::f32, DType::f32, MatmulKernel::avx512_bf16});
  EXPECT_EQ(table.choose(p), matmul_best(p));
}

TEST(KernelTable, RefusesTheLibraryAndOtherDTypes) {
  KernelTable table;
  EXPECT_THROW(table.set({{}, DType::f32, DType::f32, MatmulKernel::cublaslt}), Error);
  EXPECT_THROW(table.set({{}, DType::f32, DType::f32, MatmulKernel::cublaslt}), Error);
  EXPECT_THROW(table.set({{}, DType::i32, DType::f32, MatmulKernel::avx2}), Error);
  EXPECT_TRUE(table.empty());
}

TEST(KernelTable, Families) {
  EXPECT_TRUE(same_bits(MatmulKernel::reference, MatmulKernel::avx512));
  EXPECT_TRUE(same_bits(MatmulKernel::avx2, MatmulKernel::avx512));
  EXPECT_TRUE(same_bits(MatmulKernel::amx_bf16, MatmulKernel::amx_bf16_emulated));
  EXPECT_FALSE(same_bits(MatmulKernel::avx512, MatmulKernel::avx512_bf16));
  EXPECT_FALSE(same_bits(MatmulKernel::amx_bf16, MatmulKernel::avx512_bf16));
  EXPECT_FALSE(same_bits(MatmulKernel::cublaslt, MatmulKernel::avx512));
}

// The recorded product: on plan it says which kernel it will use, and that is the one it uses.
struct Recorded {
  std::string variant;
  std::vector<float> sums;
};
Recorded run_product(const KernelTable* kernels, bool packed) {
  constexpr int64_t M = 5, N = 96, K = 64;
  Recorded out;
  Schedule schedule;
  Settings settings;
  settings.kernels = kernels;
  const auto body = [&](Context& ctx) {
    const Tensor a = ctx.tensor(Name("a"), {M, K}, DType::bf16, Category::activations);
    const Tensor b = ctx.tensor(Name("b"), {N, K}, DType::bf16, Category::weights);
    const Tensor c = ctx.tensor(Name("c"), {M, N}, DType::f32, Category::activations);
    const int64_t bytes = matmul_packed_bytes(b, true, DType::bf16, kernels);
    Tensor copy;
    if (packed && bytes > 0) copy = ctx.tensor(Name("copy"), {bytes}, DType::u8, Category::weights);
    if (!ctx.planning()) {
      uint32_t state = 1;
      for (const Tensor* t : {&a, &b})
        for (int64_t i = 0; i < t->view().elements(); ++i) {
          state = state * 1664525u + 1013904223u;
          t->view().as<bf16>()[i] =
              from_f32<bf16>(static_cast<float>(state >> 8) * 0x1p-24f - 0.3f);
        }
    }
    MatmulOptions options{.transpose_b = true};
    if (copy.defined()) {
      matmul_pack(ctx, copy, b, true, DType::bf16);
      options.b_packed = copy;
    }
    matmul(ctx, c, a, b, options);
    if (!ctx.planning()) out.sums.assign(c.view().as<float>(), c.view().as<float>() + M * N);
  };
  const int program = schedule.add(Name("product"), -1, false);
  {
    Context plan(Place::plan, settings);
    plan.program(schedule, program, [&] { body(plan); });
  }
  schedule.pack();
  Context ctx(Place::cpu, settings);
  ctx.reserve(schedule);
  ctx.program(schedule, program, [&] { body(ctx); });
  for (const OpRecord& op : schedule.at(program).ops)
    if (!op.variant.empty()) out.variant = op.variant.str();
  return out;
}

TEST(KernelTable, TheRecordedProductUsesIt) {
  const ProductClass c = product_class(problem(5, 96, 64, false, true, DType::bf16));
  KernelTable chained;  // fp32 sums, where a bf16 kernel's are in another order
  chained.set({c, DType::bf16, DType::bf16, MatmulKernel::avx2});
  const Recorded usual = run_product(nullptr, false), own = run_product(&chained, false),
                 packed = run_product(&chained, true), usual_packed = run_product(nullptr, true);
  EXPECT_EQ(own.variant, "nt narrow short, bf16 bf16, avx2");
  EXPECT_EQ(packed.variant, own.variant + " packed");
  EXPECT_EQ(without_packed(packed.variant), own.variant);
  EXPECT_EQ(own.sums, packed.sums);
  EXPECT_EQ(usual.sums, usual_packed.sums);
  if (same_bits(matmul_best(DType::bf16, DType::bf16), MatmulKernel::avx2))
    EXPECT_EQ(own.sums, usual.sums);
  else
    EXPECT_NE(own.sums, usual.sums);
  const KernelTable empty;
  EXPECT_EQ(run_product(&empty, false).sums, usual.sums);
}

}  // namespace
}  // namespace snug
