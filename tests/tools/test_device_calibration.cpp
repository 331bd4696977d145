// What snug calibrate device=... measures and keeps, shown on the emulator: its rates mean nothing,
// that all of them are taken, kept, read and planned with is what is tested.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/core/units.h"
#include "engine/io/files.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/errors.h"
#include "tools/calibrate/calibrated_cost.h"
#include "tools/calibrate/device_calibration.h"
#include "tools/costs/cost_model.h"
#include "tools/setup/setup.h"

namespace snug {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Once, for it takes a second. What is free falls by 30 MiB in the first run, by 5 in that with
// graphs.
const DeviceCalibration& measured() {
  static const DeviceCalibration c = [] {
    int asked = 0;
    const int64_t free_bytes[] = {1000 * kMiB, 970 * kMiB, 900 * kMiB, 895 * kMiB};
    DeviceCalibration made =
        calibrate_device(Place::emu, 0, 0, 100 * kMiB, [&] { return free_bytes[asked++ % 4]; });
    EXPECT_EQ(asked, 4);
    return made;
  }();
  return c;
}

TEST(SlowDeviceCalibration, MeasuresAllThatAPlanWants) {
  const DeviceCalibration& c = measured();
  EXPECT_EQ(c.key, device_key(Place::emu, 0));
  EXPECT_EQ(c.key.device, "the emulator");
  EXPECT_EQ(c.roofs.device, "the emulator");
  for (const double rate :
       {c.roofs.fp32_flops, c.roofs.bf16_flops, c.roofs.read_bytes, c.roofs.copy_bytes,
        c.roofs.stream_bytes, c.to_host, c.to_device, c.seconds})
    EXPECT_GT(rate, 0);
  EXPECT_EQ(c.roofs.tf32_flops, 0) << "a mode of GPUs";
  EXPECT_GE(c.launch, 0);
  // The three products of training, of one size, in three dtypes.
  ASSERT_EQ(c.products.size(), 9u);
  for (const ProductRate& p : c.products) EXPECT_GT(p.flops, 0) << to_string(p.shapes);
  EXPECT_TRUE(c.tf32_ops.empty());
  for (const OpRates* ops : {&c.fp32_ops, &c.bf16_ops, &c.fp16_ops})
    for (const char* name : {"attention_forward", "layernorm_backward", "adamw"}) {
      bool found = false;
      for (const auto& [key, curve] : ops->curves()) found |= key.starts_with(name);
      EXPECT_TRUE(found) << name;
    }
}

TEST(SlowDeviceCalibration, RuntimeBytesAreTheDriversWithRoomForMoreGraphs) {
  const RuntimeParts& r = measured().runtime;
  EXPECT_EQ(r.context, 100 * kMiB);
  EXPECT_EQ(r.libraries, 30 * kMiB);
  EXPECT_EQ(r.graphs, 5 * kMiB);
  EXPECT_EQ(r.planned(), (100 + 30 + 2 * 5) * kMiB + RuntimeParts::kRoom);
  EXPECT_EQ(r.planned(12), r.planned()) << "never less than was measured twice";
  EXPECT_EQ(r.planned(25), (100 + 30 + 3 * 5) * kMiB + RuntimeParts::kRoom);
  EXPECT_EQ(r.planned(96), (100 + 30 + 8 * 5) * kMiB + RuntimeParts::kRoom);
  RuntimeParts unknown = r;
  unknown.context = -1;
  unknown.libraries = 1;
  EXPECT_EQ(unknown.planned(), RuntimeParts::kUnknownContext + RuntimeParts::kRoom + 11 * kMiB)
      << "whole MiB";
}

TEST(SlowDeviceCalibration, IsReadAsItWasWritten) {
  const TempFolder folder;
  const std::string path = folder / "cache/device.json";
  write_device_calibration(path, measured());
  std::string ignored;
  const auto back = read_device_calibration(path, measured().key, "emu", &ignored);
  ASSERT_TRUE(back) << ignored;
  EXPECT_EQ(device_calibration_json(*back), device_calibration_json(measured()));
  EXPECT_FALSE(read_device_calibration(folder / "none.json", measured().key, "emu", &ignored));
  EXPECT_EQ(ignored, "");
}

TEST(SlowDeviceCalibration, OfAnotherDeviceIsIgnoredWithAReason) {
  const TempFolder folder;
  const std::string path = folder / "device.json";
  write_device_calibration(path, measured());
  const auto reason = [&](const DeviceKey& key) {
    std::string ignored;
    EXPECT_FALSE(read_device_calibration(path, key, "cuda:1", &ignored));
    return ignored;
  };
  DeviceKey key = measured().key;
  key.device = "NVIDIA H200";
  EXPECT_NE(reason(key).find("is for the emulator; snug calibrate device=cuda:1 measures again"),
            std::string::npos);
  key = measured().key;
  key.libraries = "cuBLASLt 13.1.0";
  EXPECT_NE(reason(key).find("is for none"), std::string::npos);
  key = measured().key;
  key.build = "0";
  EXPECT_NE(reason(key).find("another build of Snug"), std::string::npos);
}

TEST(SlowDeviceCalibration, DamagedFilesAreIgnoredWithAReason) {
  const TempFolder folder;
  const std::string path = folder / "device.json";
  const nlohmann::json good = device_calibration_json(measured());
  const auto ignored_for = [&](const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
    std::string ignored;
    EXPECT_FALSE(read_device_calibration(path, measured().key, "emu", &ignored))
        << text.substr(0, 100);
    EXPECT_NE(ignored.find("cannot be used: "), std::string::npos) << ignored;
    EXPECT_EQ(ignored.find('\n'), std::string::npos) << "one line";
    return ignored;
  };
  const std::string whole = good.dump();
  for (const size_t length : {size_t{0}, whole.size() / 2, whole.size() - 1})
    ignored_for(whole.substr(0, length));
  for (const auto& item : good.items()) {
    nlohmann::json j = good;
    j.erase(item.key());
    ignored_for(j.dump());
    j[item.key()] = nlohmann::json::array({1});
    ignored_for(j.dump());
  }
  const auto with = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json j = good;
    j[nlohmann::json::json_pointer(pointer)] = value;
    return ignored_for(j.dump());
  };
  EXPECT_NE(with("/format_version", 99).find("a device calibration of version 2 in "),
            std::string::npos);
  const std::string link = with("/link/to_host", -1);
  EXPECT_NE(link.find("a number of 0 or more for to_host in "), std::string::npos);
  EXPECT_NE(link.find("measure again with snug calibrate device=emu --force"), std::string::npos)
      << link;
  EXPECT_NE(with("/products/0/class", "nt").find("a class of products in "), std::string::npos);
  EXPECT_NE(with("/products/0/dtype", "f64").find("a dtype f32, bf16 or f16 in "),
            std::string::npos);
  EXPECT_NE(with("/attention", 3).find("a list of attention in "), std::string::npos);
  with("/attention/0/own", -1);
  EXPECT_NE(with("/products", 3).find("a list of products in "), std::string::npos);
  with("/runtime/context", -2);
  with("/products/0/M", 0);
  for (const char* ops : {"/ops/f32", "/ops/tf32", "/ops/bf16", "/ops/f16"}) with(ops, 3);
}

TEST(SlowDeviceCalibration, SaysWhereCudnnWasFaster) {
  ASSERT_EQ(measured().attention.size(), 1u);
  EXPECT_GT(measured().attention[0].own, 0);
  EXPECT_EQ(measured().attention[0].cudnn, -1) << "not of the emulator";
  EXPECT_EQ(cudnn_note(measured(), 64, 1024), "");
  EXPECT_EQ(cudnn_note(std::nullopt, 64, 1024), "");
  DeviceCalibration c = measured();
  c.attention = {
      {64, 1024, 2.0, 1.0}, {64, 4096, 2.0, 2.5}, {128, 1024, 2.0, 1.96}, {128, 4096, 2.0, -1}};
  const std::string twice =
      "the program's kernel; cuDNN was measured 2.00 times as fast, and computes with "
      "attn_implementation=cudnn";
  EXPECT_EQ(cudnn_note(c, 64, 1024), twice);
  EXPECT_EQ(cudnn_note(c, 48, 512), twice) << "the nearest size";
  EXPECT_EQ(cudnn_note(c, 64, 8192), "") << "slower";
  EXPECT_EQ(cudnn_note(c, 128, 1024), "") << "by 2 % only";
  EXPECT_EQ(cudnn_note(c, 128, 4096), "") << "refused when it was measured";
}

TEST(SlowDeviceCalibration, PlansPredictByIt) {
  DeviceCalibration c = measured();
  const CostModel fp32 = calibrated_cost(c, DType::f32, false);
  EXPECT_EQ(fp32.source(), CostModel::Source::calibrated);
  EXPECT_EQ(fp32.text(), "calibrated on the emulator");
  EXPECT_EQ(fp32.rates().link, std::min(c.to_host, c.to_device));
  EXPECT_EQ(fp32.rates().memory, c.roofs.memory_bytes());
  EXPECT_EQ(fp32.rates().op, c.launch);
  const auto& [key, curve] = *c.fp32_ops.curves().begin();
  EXPECT_GT(curve.samples().size(), 0u) << key;
  // Every precision has the times of its own ops.
  OpRecord op{};
  op.name = "one op of each";
  op.flops = op.bytes = 1000;
  c.fp32_ops.add(op.name, {1000, 1000, 4});
  c.tf32_ops.add(op.name, {1000, 1000, 3});
  c.bf16_ops.add(op.name, {1000, 1000, 2});
  c.fp16_ops.add(op.name, {1000, 1000, 1});
  EXPECT_EQ(calibrated_cost(c, DType::f32, false).seconds(op, 1), 4);
  EXPECT_EQ(calibrated_cost(c, DType::f32, true).seconds(op, 1), 3);
  EXPECT_EQ(calibrated_cost(c, DType::bf16, false).seconds(op, 1), 2);
  EXPECT_EQ(calibrated_cost(c, DType::f16, false).seconds(op, 1), 1);
  const auto rate = [&](DType dtype, bool tf32, double flops) {
    ProductRate p = c.products[0];
    p.dtype = dtype;
    p.tf32 = tf32;
    p.flops = flops;
    c.products.push_back(p);
  };
  rate(DType::f32, true, 4e14);
  rate(DType::f16, false, 8e14);
  EXPECT_EQ(calibrated_cost(c, DType::f32, true).rates().fp32_matrix, 4e14);
  EXPECT_LT(calibrated_cost(c, DType::f32, false).rates().fp32_matrix, 4e14);
  EXPECT_EQ(calibrated_cost(c, DType::f16, false).rates().fp32_matrix, 8e14);
}

}  // namespace
}  // namespace snug
