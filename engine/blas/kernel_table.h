// Which kernel computes which matrix products: what a calibration measured on this machine, or what
// a checkpoint pins. A product it says nothing about goes to matmul_best.
//
// The class of a product is made of its layouts, of N and of K. M does not enter, nor what follows
// the product or whether B comes packed: so rows keep their bits however many there are, fused or
// not, packed or not, and one packed copy of a weight serves every batch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/blas/matmul_cpu.h"
#include "engine/core/name.h"

namespace snug {

inline constexpr int64_t kDeepProduct = 512;  // K of a long product

struct ProductClass {
  bool a_transposed = false, b_transposed = false;
  int columns = 0;  // N: 0 narrow (below 512), 1 wide (below 8192), 2 vocabulary
  int depth = 0;    // K: 0 short (below kDeepProduct), 1 long

  friend bool operator==(const ProductClass&, const ProductClass&) = default;
};

// By the strides of A and B; a packed B is met by an A that is not transposed.
ProductClass product_class(const MatmulProblem& p);
// "nt wide long": A as it is, B transposed, ...
std::string to_string(const ProductClass& c);
std::optional<ProductClass> parse_product_class(std::string_view text);
std::vector<ProductClass> product_classes();  // all of them

// Kernels whose sums have the same bits: reference, avx2 and avx512 are one family.
bool same_bits(MatmulKernel a, MatmulKernel b);

struct KernelChoice {
  ProductClass shapes;
  DType a = DType::f32, b = DType::f32;
  MatmulKernel kernel = MatmulKernel::reference;

  friend bool operator==(const KernelChoice&, const KernelChoice&) = default;
};

// What records of a product (OpRecord::variant) say behind its choice where B comes packed. The
// kernel and the bits are those without.
inline constexpr std::string_view kPackedSuffix = " packed";
constexpr bool is_packed(std::string_view variant) {
  return variant.ends_with(kPackedSuffix);
}
constexpr std::string_view without_packed(std::string_view variant) {
  if (is_packed(variant)) variant.remove_suffix(kPackedSuffix.size());
  return variant;
}

// "nt wide long, bf16 bf16, avx512_bf16", and back.
std::string to_string(const KernelChoice& choice);
std::optional<KernelChoice> parse_kernel_choice(std::string_view text);
// The same as a name, kPackedSuffix behind it where B comes packed. The text is made once for each:
// a planner records thousands of products.
Name kernel_choice_name(const KernelChoice& choice, bool packed);

class KernelTable {
 public:
  // For a and b of f32, bf16 or f16, and any kernel of a CPU; f16 shares the place of f32.
  // Throws internal.
  void set(const KernelChoice& choice);
  // The kernel set for the product's class and dtypes if it takes the product here, else
  // matmul_best. Does not allocate.
  MatmulKernel choose(const MatmulProblem& p) const;
  std::vector<KernelChoice> choices() const;  // in a fixed order
  bool empty() const;

 private:
  static constexpr int kClasses = 24, kPairs = 4;
  std::array<int8_t, kClasses * kPairs> kernels_{};  // 0: not set; else the enumerator + 1
};

}  // namespace snug
