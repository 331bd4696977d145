#include "tools/setup/targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/io/files.h"
#include "engine/io/json.h"

namespace snug {
namespace {

constexpr int64_t kMostFileBytes = 1 << 20;

double rate_of(const nlohmann::json& j, const char* key, const std::string& where, double unit,
               bool needed) {
  const double value = needed ? get_number(j, key, where) : get_number(j, key, where, 0.0);
  if (!(value >= (needed ? 1e-9 : 0) && value < 1e9))
    fail(ErrorCode::data, fmt::format("a rate above 0 for {} in {}", key, where),
         fmt::format("{}", value), "the published figure of the device");
  return value * unit;
}

Target target_of(const nlohmann::json& j, const std::string& where) {
  require_object(j, where);
  static const std::vector<std::string_view> kKeys = {"name",
                                                      "title",
                                                      "source",
                                                      "memory_bytes",
                                                      "runtime_bytes",
                                                      "fp32_tflops",
                                                      "tf32_tflops",
                                                      "bf16_tflops",
                                                      "fp16_tflops",
                                                      "memory_gbytes_per_second",
                                                      "link_gbytes_per_second",
                                                      "shares_host",
                                                      "host_memory_bytes",
                                                      "host_gbytes_per_second"};
  for (const auto& item : j.items())
    if (std::find(kKeys.begin(), kKeys.end(), item.key()) == kKeys.end())
      fail(ErrorCode::data,
           fmt::format("keys of a target in {}: {}", where, fmt::join(kKeys, ", ")),
           fmt::format("\"{}\"", item.key()), suggestion(item.key(), kKeys, "remove it"));
  Target t;
  t.name = get_string(j, "name", where);
  t.title = get_string(j, "title", where, t.name);
  t.source = get_string(j, "source", where, "");
  t.memory_bytes = get_int_in(j, "memory_bytes", where, 1 << 20, int64_t{1} << 50);
  t.runtime_bytes = get_int_in(j, "runtime_bytes", where, 0, int64_t{1} << 50);
  t.shares_host = get_bool(j, "shares_host", where, false);
  t.host_bytes = get_int_in(j, "host_memory_bytes", where, 0, int64_t{1} << 50,
                            t.shares_host ? 0 : 2 * t.memory_bytes);
  t.fp32_flops = rate_of(j, "fp32_tflops", where, 1e12, true);
  t.tf32_flops = rate_of(j, "tf32_tflops", where, 1e12, false);
  t.bf16_flops = rate_of(j, "bf16_tflops", where, 1e12, false);
  t.fp16_flops = rate_of(j, "fp16_tflops", where, 1e12, false);
  t.memory_bandwidth = rate_of(j, "memory_gbytes_per_second", where, 1e9, true);
  t.link_bandwidth = rate_of(j, "link_gbytes_per_second", where, 1e9, true);
  t.host_bandwidth = rate_of(j, "host_gbytes_per_second", where, 1e9, false);
  return t;
}

}  // namespace

CostModel Target::host_cost() const {
  const double bytes = host_bandwidth > 0 ? host_bandwidth : kHostBandwidth;
  return CostModel::described(
      fmt::format("{} of its host", host_bandwidth > 0 ? "described" : "assumed"),
      {.fp32_matrix = 4 * bytes,
       .bf16_matrix = 4 * bytes,
       .fp32_attention = 4 * bytes,
       .bf16_attention = 4 * bytes,
       .vector = 4 * bytes,
       .memory = bytes,
       .link = bytes,
       .op = 5e-6});
}

// A product of 256 rows runs at half its rate, a rule of thumb for wide devices; a device without
// units for products does not need so many.
Rates Target::rates(DType compute, bool tf32) const {
  Rates r;
  // Products of f16 are recorded with the kernels of f32 (engine/blas/kernel_table.h).
  r.fp32_matrix =
      kMatrixShare * (compute == DType::f16 ? std::max(fp16_flops, fp32_flops) : fp32_flops);
  r.bf16_matrix = kMatrixShare * std::max(bf16_flops, fp32_flops);
  r.fp32_attention = r.fp32_matrix / 2;
  r.bf16_attention = r.bf16_matrix / 2;
  if (tf32) r.fp32_matrix = kMatrixShare * std::max(tf32_flops, fp32_flops);
  r.vector = fp32_flops / 4;
  r.memory = kMemoryShare * memory_bandwidth;
  r.link = kLinkShare * link_bandwidth;
  r.op = 5e-6;
  r.half_rate_rows = bf16_flops > 0 || fp16_flops > 0 ? 256 : 0;
  r.kernels_in_bf16 = compute == DType::bf16;
  return r;
}

Target parse_target(std::string_view json, const std::string& where) {
  return target_of(parse_json(json, where), where);
}

const std::vector<Target>& known_targets() {
  static const std::vector<Target> targets = [] {
    std::vector<Target> list;
    for (const nlohmann::json& j : nlohmann::json::parse(kTargetsJson))
      list.push_back(target_of(j, "targets_data.cpp"));
    return list;
  }();
  return targets;
}

Target find_target(const std::string& name) {
  if (name.ends_with(".json")) return target_of(parse_json_file(name, kMostFileBytes), name);
  std::vector<std::string_view> names;
  for (const Target& t : known_targets()) {
    if (t.name == name) return t;
    names.push_back(t.name);
  }
  fail(ErrorCode::usage,
       fmt::format("target as one of {}, or a file of one (FILE.json)", fmt::join(names, ", ")),
       fmt::format("\"{}\"", name), suggestion(name, names, "target=rtx4090"));
}

}  // namespace snug
