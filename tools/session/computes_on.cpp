#include "tools/session/computes_on.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "layers/ops/attention_cudnn.h"

namespace snug {
namespace {

constexpr const char* kKey = "computes_on";
constexpr const char* kNone = "none";

}  // namespace

ComputesOn computes_on([[maybe_unused]] const CudaFacts& facts,
                       [[maybe_unused]] const Settings& settings) {
  ComputesOn on;
  if constexpr (kCudaBuilt) {
    on.gpu = fmt::format("{}, compute capability {}.{}", facts.name, facts.major, facts.minor);
    const std::string cublaslt = settings.cublaslt ? cublaslt_version() : "";
    const std::string cudnn = settings.cudnn ? cudnn_version() : "";
    on.cublaslt = cublaslt.empty() ? kNone : cublaslt;
    on.cudnn = cudnn.empty() ? kNone : cudnn;
  }
  return on;
}

std::string describe(const ComputesOn& on) {
  std::string text = on.cublaslt == kNone ? std::string("products by the program's kernel")
                                          : "products by cuBLASLt " + on.cublaslt;
  if (on.cudnn != kNone) text += ", attention by cuDNN " + on.cudnn;
  if (!on.algorithms.empty())
    text += fmt::format(", {} algorithms that were measured", on.algorithms.size());
  return text;
}

std::optional<ComputesOnDifference> difference(const ComputesOn& before, const ComputesOn& now) {
  if (before.gpu != now.gpu) return ComputesOnDifference{"the GPU", before.gpu, now.gpu};
  if (before.cublaslt != now.cublaslt)
    return ComputesOnDifference{"cuBLASLt", before.cublaslt, now.cublaslt};
  if (before.cudnn != now.cudnn) return ComputesOnDifference{"cuDNN", before.cudnn, now.cudnn};
  return std::nullopt;
}

nlohmann::json computes_on_json(const ComputesOn& on) {
  if (!on.defined()) return nullptr;
  nlohmann::json algorithms = nlohmann::json::array();
  for (const CublasLtChoice& c : on.algorithms)
    algorithms.push_back({{"problem", c.problem}, {"algorithm", c.algorithm}});
  return {
      {"gpu", on.gpu}, {"cublaslt", on.cublaslt}, {"cudnn", on.cudnn}, {"algorithms", algorithms}};
}

ComputesOn parse_computes_on(const nlohmann::json& parent, const std::string& where) {
  ComputesOn on;
  if (!parent.contains(kKey) || parent[kKey].is_null()) return on;
  const nlohmann::json& j = parent[kKey];
  const std::string at = where + " / " + kKey;
  require_object(j, at);
  on.gpu = get_string(j, "gpu", at);
  on.cublaslt = get_string(j, "cublaslt", at);
  on.cudnn = get_string(j, "cudnn", at);
  const nlohmann::json list = j.value("algorithms", nlohmann::json::array());
  for (const nlohmann::json& item : list) {
    const std::string one = fmt::format("{} / algorithms / {}", at, on.algorithms.size());
    require_object(item, one);
    on.algorithms.push_back({get_string(item, "problem", one), get_string(item, "algorithm", one)});
  }
  return on;
}

}  // namespace snug
