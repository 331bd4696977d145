#include "tools/calibrate/device_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/io/files.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"
#include "tools/calibrate/calibration.h"

namespace snug {
namespace {

constexpr int64_t kDeviceFormat = 2;
constexpr int64_t kMostDeviceFileBytes = 1 << 20;
constexpr const char* kName = "snug device calibration";

// `again`: what to do about a file that is wrong.
double positive_number(const nlohmann::json& j, const char* key, const std::string& where,
                       const std::string& again) {
  const double value = get_number(j, key, where);
  if (!(value >= 0 && value < 1e18))
    fail(ErrorCode::data, fmt::format("a number of 0 or more for {} in {}", key, where),
         fmt::format("{}", value), again);
  return value;
}

nlohmann::json part(const nlohmann::json& j, const char* name, const std::string& where) {
  const nlohmann::json found = j.contains(name) ? j[name] : nlohmann::json();
  require_object(found, where + " / " + name);
  return found;
}

DType float_named(const std::string& name, const std::string& where, const std::string& again) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    if (name == to_string(t)) return t;
  fail(ErrorCode::data, "a dtype f32, bf16 or f16 in " + where, fmt::format("\"{}\"", name), again);
}

ProductRate product_of(const nlohmann::json& j, const std::string& where,
                       const std::string& again) {
  require_object(j, where);
  ProductRate p;
  const std::string name = get_string(j, "class", where);
  const auto shapes = parse_product_class(name);
  if (!shapes)
    fail(ErrorCode::data, "a class of products in " + where, fmt::format("\"{}\"", name), again);
  p.shapes = *shapes;
  p.dtype = float_named(get_string(j, "dtype", where), where, again);
  p.tf32 = get_bool(j, "tf32", where);
  p.M = get_int_in(j, "M", where, 1, 1 << 30);
  p.N = get_int_in(j, "N", where, 1, 1 << 30);
  p.K = get_int_in(j, "K", where, 1, 1 << 30);
  p.flops = positive_number(j, "flops", where, again);
  return p;
}

DeviceCalibration parse(const nlohmann::json& j, const std::string& where,
                        const std::string& again) {
  require_object(j, where);
  const auto positive = [&](const nlohmann::json& from, const char* name, const std::string& at) {
    return positive_number(from, name, at, again);
  };
  if (get_string(j, "format", where, "") != kName ||
      get_int(j, "format_version", where, 0) != kDeviceFormat)
    fail(ErrorCode::data,
         fmt::format("a device calibration of version {} in {}", kDeviceFormat, where),
         "another file", again);
  DeviceCalibration c;
  const nlohmann::json key = part(j, "key", where), roofs = part(j, "roofs", where),
                       link = part(j, "link", where), launch = part(j, "launch", where),
                       runtime = part(j, "runtime", where), ops = part(j, "ops", where);
  const auto in = [&](const char* name) { return where + " / " + name; };
  c.key = {get_string(key, "device", in("key")), get_string(key, "libraries", in("key")),
           get_string(key, "version", in("key")), get_string(key, "build", in("key"))};
  c.roofs.device = c.key.device;
  c.roofs.fp32_flops = positive(roofs, "fp32_flops", in("roofs"));
  c.roofs.tf32_flops = positive(roofs, "tf32_flops", in("roofs"));
  c.roofs.bf16_flops = positive(roofs, "bf16_flops", in("roofs"));
  c.roofs.read_bytes = positive(roofs, "read_bytes", in("roofs"));
  c.roofs.copy_bytes = positive(roofs, "copy_bytes", in("roofs"));
  c.roofs.stream_bytes = positive(roofs, "stream_bytes", in("roofs"));
  c.to_host = positive(link, "to_host", in("link"));
  c.to_device = positive(link, "to_device", in("link"));
  c.launch = positive(launch, "seconds", in("launch"));
  c.graph_launch = positive(launch, "graph_seconds", in("launch"));
  c.runtime.context = get_int_in(runtime, "context", in("runtime"), -1, int64_t{1} << 40);
  c.runtime.libraries = get_int_in(runtime, "libraries", in("runtime"), 0, int64_t{1} << 40);
  c.runtime.graphs = get_int_in(runtime, "graphs", in("runtime"), 0, int64_t{1} << 40);
  const nlohmann::json list = j.value("products", nlohmann::json());
  if (!list.is_array())
    fail(ErrorCode::data, "a list of products in " + where, json_brief(list), again);
  for (const nlohmann::json& item : list)
    c.products.push_back(
        product_of(item, fmt::format("{} / products / {}", where, c.products.size()), again));
  const nlohmann::json attention = j.value("attention", nlohmann::json());
  if (!attention.is_array())
    fail(ErrorCode::data, "a list of attention in " + where, json_brief(attention), again);
  for (const nlohmann::json& item : attention) {
    const std::string at = fmt::format("{} / attention / {}", where, c.attention.size());
    require_object(item, at);
    AttentionRate a;
    a.D = get_int_in(item, "D", at, 1, 1 << 20);
    a.T = get_int_in(item, "T", at, 1, 1 << 30);
    a.own = positive(item, "own", at);
    a.cudnn = item.contains("cudnn") && item["cudnn"].is_null() ? -1 : positive(item, "cudnn", at);
    c.attention.push_back(a);
  }
  for (const auto& [name, rates] : {std::pair("f32", &c.fp32_ops),
                                    {"tf32", &c.tf32_ops},
                                    {"bf16", &c.bf16_ops},
                                    {"f16", &c.fp16_ops}})
    *rates = OpRates::parse(ops.value(name, nlohmann::json()), in("ops") + " / " + name);
  c.seconds = positive(j, "seconds", where);
  return c;
}

}  // namespace

double DeviceCalibration::cudnn_speedup(int64_t D, int64_t T) const {
  const auto apart = [](int64_t a, int64_t b) {
    return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
  };
  const AttentionRate* best = nullptr;
  for (const AttentionRate& a : attention)
    if (best == nullptr || apart(a.D, D) < apart(best->D, D) ||
        (apart(a.D, D) == apart(best->D, D) && apart(a.T, T) < apart(best->T, T)))
      best = &a;
  return best == nullptr || best->cudnn <= 0 ? 0.0 : best->own / best->cudnn;
}

const OpRates& DeviceCalibration::ops(DType compute, bool tf32) const {
  if (compute == DType::f32) return tf32 ? tf32_ops : fp32_ops;
  if (compute == DType::bf16) return bf16_ops;
  if (compute == DType::f16) return fp16_ops;
  fail(ErrorCode::internal, "a dtype that models compute in", to_string(compute), "measure it");
}

int64_t RuntimeParts::planned(int64_t layers) const {
  const int64_t times = std::max<int64_t>(2, ceil_div(2 * layers, kGraphLayers));
  return round_up((context < 0 ? kUnknownContext : context) + libraries + times * graphs + kRoom,
                  int64_t{1} << 20);
}

std::string device_calibration_path(const DeviceKey& key) {
  return calibration_file("device-calibration-" + fingerprint_text(fingerprint(key.device)));
}

nlohmann::json device_calibration_json(const DeviceCalibration& c) {
  nlohmann::json products = nlohmann::json::array();
  for (const ProductRate& p : c.products)
    products.push_back({{"class", to_string(p.shapes)},
                        {"dtype", to_string(p.dtype)},
                        {"tf32", p.tf32},
                        {"M", p.M},
                        {"N", p.N},
                        {"K", p.K},
                        {"flops", p.flops}});
  nlohmann::json attention = nlohmann::json::array();
  for (const AttentionRate& a : c.attention)
    attention.push_back({{"D", a.D},
                         {"T", a.T},
                         {"own", a.own},
                         {"cudnn", a.cudnn < 0 ? nlohmann::json() : nlohmann::json(a.cudnn)}});
  return {{"format", kName},
          {"format_version", kDeviceFormat},
          {"key",
           {{"device", c.key.device},
            {"libraries", c.key.libraries},
            {"version", c.key.version},
            {"build", c.key.build}}},
          {"roofs",
           {{"fp32_flops", c.roofs.fp32_flops},
            {"tf32_flops", c.roofs.tf32_flops},
            {"bf16_flops", c.roofs.bf16_flops},
            {"read_bytes", c.roofs.read_bytes},
            {"copy_bytes", c.roofs.copy_bytes},
            {"stream_bytes", c.roofs.stream_bytes}}},
          {"products", products},
          {"attention", attention},
          {"link", {{"to_host", c.to_host}, {"to_device", c.to_device}}},
          {"launch", {{"seconds", c.launch}, {"graph_seconds", c.graph_launch}}},
          {"runtime",
           {{"context", c.runtime.context},
            {"libraries", c.runtime.libraries},
            {"graphs", c.runtime.graphs},
            {"planned", c.runtime.planned()}}},
          {"ops",
           {{"f32", c.fp32_ops.json()},
            {"tf32", c.tf32_ops.json()},
            {"bf16", c.bf16_ops.json()},
            {"f16", c.fp16_ops.json()}}},
          {"seconds", c.seconds}};
}

void write_device_calibration(const std::string& path, const DeviceCalibration& c) {
  write_calibration_file(path, device_calibration_json(c));
}

std::optional<DeviceCalibration> read_device_calibration(const std::string& path,
                                                         const DeviceKey& key,
                                                         const std::string& device,
                                                         std::string* ignored) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return std::nullopt;
  try {
    DeviceCalibration c =
        parse(parse_json_file(path, kMostDeviceFileBytes), path,
              fmt::format("measure again with snug calibrate device={} --force", device));
    if (c.key == key) return c;
    const std::string other = c.key.device != key.device         ? c.key.device
                              : c.key.libraries != key.libraries ? c.key.libraries
                                                                 : "another build of Snug";
    *ignored =
        fmt::format("{} is for {}; snug calibrate device={} measures again", path, other, device);
  } catch (const std::exception& e) {
    std::string what = e.what();
    std::replace(what.begin(), what.end(), '\n', ' ');
    *ignored = fmt::format("{} cannot be used: {}", path, what);
  }
  return std::nullopt;
}

}  // namespace snug
