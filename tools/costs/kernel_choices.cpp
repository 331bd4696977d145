#include "tools/costs/kernel_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/io/json.h"

namespace snug {

DType parse_float(std::string_view name, const std::string& where) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    if (name == to_string(t)) return t;
  fail(ErrorCode::data, fmt::format("a dtype f32, bf16 or f16 in {}", where),
       fmt::format("\"{}\"", name), "measure again with snug calibrate --force");
}

MatmulKernel parse_planned_kernel(const std::string& name, const std::string& where) {
  const auto kernel = parse_matmul_kernel(name);
  if (!kernel || *kernel == MatmulKernel::amx_bf16_emulated)
    fail(ErrorCode::data, fmt::format("a kernel of Snug in {}", where), fmt::format("\"{}\"", name),
         "use the version of Snug that wrote the file");
  return *kernel;
}

nlohmann::json choices_json(const std::vector<KernelChoice>& choices) {
  nlohmann::json list = nlohmann::json::array();
  for (const KernelChoice& c : choices)
    list.push_back({{"class", to_string(c.shapes)},
                    {"dtype", fmt::format("{} {}", to_string(c.a), to_string(c.b))},
                    {"kernel", to_string(c.kernel)}});
  return list;
}

std::vector<KernelChoice> parse_choices(const nlohmann::json& list, const std::string& where) {
  if (!list.is_array())
    fail(ErrorCode::data, fmt::format("a list of kernels in {}", where), json_brief(list),
         "use the version of Snug that wrote the file");
  std::vector<KernelChoice> choices;
  for (const nlohmann::json& item : list) {
    const std::string at = fmt::format("{} / {}", where, choices.size());
    require_object(item, at);
    const std::string name = get_string(item, "class", at), dtype = get_string(item, "dtype", at);
    const auto shapes = parse_product_class(name);
    if (!shapes)
      fail(ErrorCode::data, fmt::format("a class of products in {}", at),
           fmt::format("\"{}\"", name), "use the version of Snug that wrote the file");
    const size_t space = std::min(dtype.find(' '), dtype.size());
    choices.push_back({*shapes, parse_float(dtype.substr(0, space), at),
                       parse_float(dtype.substr(std::min(space + 1, dtype.size())), at),
                       parse_planned_kernel(get_string(item, "kernel", at), at)});
    const KernelChoice& c = choices.back();
    const bool pairs = std::string_view(to_string(c.kernel)).ends_with("bf16");
    if (pairs && (c.a != DType::bf16 || c.b != DType::bf16))
      fail(ErrorCode::data, fmt::format("a kernel for {} in {}", dtype, at), to_string(c.kernel),
           "use the version of Snug that wrote the file");
  }
  return choices;
}

}  // namespace snug
