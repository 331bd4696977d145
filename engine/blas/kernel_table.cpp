#include "engine/blas/kernel_table.h"

#include <algorithm>
#include <atomic>

#include "engine/core/error.h"

namespace snug {
namespace {

constexpr const char* kLayouts[] = {"nn", "nt", "tn", "tt"};
constexpr const char* kColumns[] = {"narrow", "wide", "vocabulary"};
constexpr const char* kDepths[] = {"short", "long"};
constexpr DType kDTypes[] = {DType::f32, DType::bf16};  // of the table's pairs
constexpr DType kNamed[] = {DType::f32, DType::bf16, DType::f16};

int number_of(const ProductClass& c) {
  return ((c.a_transposed * 2 + c.b_transposed) * 3 + c.columns) * 2 + c.depth;
}

ProductClass class_of(int number) {
  return {number / 12 != 0, number / 6 % 2 != 0, number / 2 % 3, number % 2};
}

int pair_of(DType a, DType b) {
  // f16 is widened where it is packed: it is multiplied by the kernel of f32.
  const auto narrow = [](DType t) {
    return t == DType::bf16 ? 1 : t == DType::f32 || t == DType::f16 ? 0 : -4;
  };
  return narrow(a) * 2 + narrow(b);
}

bool transposed(const MatrixView& m) {
  return m.col_stride != 1 && m.row_stride == 1;
}

}  // namespace

ProductClass product_class(const MatmulProblem& p) {
  ProductClass c;
  c.a_transposed = p.b_packed == nullptr && transposed(p.a);
  c.b_transposed = transposed(p.b);
  c.columns = p.N < 512 ? 0 : p.N < 8192 ? 1 : 2;
  c.depth = p.K < kDeepProduct ? 0 : 1;
  return c;
}

std::string to_string(const ProductClass& c) {
  return std::string(kLayouts[c.a_transposed * 2 + c.b_transposed]) + " " + kColumns[c.columns] +
         " " + kDepths[c.depth];
}

std::optional<ProductClass> parse_product_class(std::string_view text) {
  for (const ProductClass& c : product_classes())
    if (text == to_string(c)) return c;
  return std::nullopt;
}

std::vector<ProductClass> product_classes() {
  std::vector<ProductClass> all;
  for (int i = 0; i < 24; ++i) all.push_back(class_of(i));
  return all;
}

bool same_bits(MatmulKernel a, MatmulKernel b) {
  const auto family = [](MatmulKernel k) {
    if (k == MatmulKernel::avx2 || k == MatmulKernel::avx512) return MatmulKernel::reference;
    return k == MatmulKernel::amx_bf16_emulated ? MatmulKernel::amx_bf16 : k;
  };
  return family(a) == family(b);
}

std::string to_string(const KernelChoice& c) {
  return to_string(c.shapes) + ", " + to_string(c.a) + " " + to_string(c.b) + ", " +
         to_string(c.kernel);
}

Name kernel_choice_name(const KernelChoice& c, bool packed) {
  constexpr size_t kDTypeCount = std::size(kNamed);
  constexpr auto kKernelCount = static_cast<size_t>(MatmulKernel::cublaslt) + 1;
  constexpr size_t kOperands = 24 * kDTypeCount * kDTypeCount;  // classes and dtypes
  using Packed = std::array<std::atomic<Name>, 2>;
  static std::array<std::array<Packed, kKernelCount>, kOperands> names;
  const auto make = [&] { return Name(to_string(c) + std::string(packed ? kPackedSuffix : "")); };
  const auto a = static_cast<size_t>(c.a), b = static_cast<size_t>(c.b),
             kernel = static_cast<size_t>(c.kernel);
  if (a >= kDTypeCount || b >= kDTypeCount || kernel >= kKernelCount) return make();
  const size_t operands =
      (static_cast<size_t>(number_of(c.shapes)) * kDTypeCount + a) * kDTypeCount + b;
  std::atomic<Name>& name = names[operands][kernel][packed ? 1 : 0];
  Name known = name.load();
  if (known.empty()) name.store(known = make());
  return known;
}

std::optional<KernelChoice> parse_kernel_choice(std::string_view text) {
  const size_t one = text.find(", "), two = text.find(", ", one == text.npos ? one : one + 2);
  if (two == text.npos) return std::nullopt;
  const auto shapes = parse_product_class(text.substr(0, one));
  const auto kernel = parse_matmul_kernel(text.substr(two + 2));
  const std::string_view dtypes = text.substr(one + 2, two - one - 2);
  if (shapes && kernel)
    for (const DType a : kNamed)
      for (const DType b : kNamed)
        if (dtypes == std::string(to_string(a)) + " " + to_string(b))
          return KernelChoice{*shapes, a, b, *kernel};
  return std::nullopt;
}

void KernelTable::set(const KernelChoice& choice) {
  const int pair = pair_of(choice.a, choice.b);
  require(pair >= 0 && choice.kernel != MatmulKernel::cublaslt,
          "a kernel of ours for operands of f32, bf16 or f16");
  kernels_[static_cast<size_t>(number_of(choice.shapes) * kPairs + pair)] =
      static_cast<int8_t>(static_cast<int>(choice.kernel) + 1);
}

MatmulKernel KernelTable::choose(const MatmulProblem& p) const {
  const int pair = pair_of(p.a.dtype, p.b.dtype);
  if (pair < 0) return matmul_best(p);
  const int8_t set = kernels_[static_cast<size_t>(number_of(product_class(p)) * kPairs + pair)];
  if (set == 0) return matmul_best(p);
  const auto kernel = static_cast<MatmulKernel>(set - 1);
  return matmul_supports(p, kernel) ? kernel : matmul_best(p);
}

std::vector<KernelChoice> KernelTable::choices() const {
  std::vector<KernelChoice> list;
  for (int c = 0; c < kClasses; ++c)
    for (int pair = 0; pair < kPairs; ++pair)
      if (const int8_t set = kernels_[static_cast<size_t>(c * kPairs + pair)]; set != 0)
        list.push_back({class_of(c), kDTypes[pair / 2], kDTypes[pair % 2],
                        static_cast<MatmulKernel>(set - 1)});
  return list;
}

bool KernelTable::empty() const {
  return std::all_of(kernels_.begin(), kernels_.end(), [](int8_t k) { return k == 0; });
}

}  // namespace snug
