// Described devices: what is published of them, and files of the same form.
#include <gtest/gtest.h>

#include <set>

#include "engine/io/files.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/errors.h"
#include "tools/setup/targets.h"

namespace snug {
namespace {

constexpr const char* kBox =
    "{\"name\": \"box\", \"memory_bytes\": 17179869184, \"runtime_bytes\": 1000000, "
    "\"fp32_tflops\": "
    "10, \"bf16_tflops\": 40, \"memory_gbytes_per_second\": 500, \"link_gbytes_per_second\": 16}";

TEST(Targets, AllHaveFiguresAndASource) {
  std::set<std::string> names;
  for (const Target& t : known_targets()) {
    EXPECT_TRUE(names.insert(t.name).second) << t.name;
    EXPECT_FALSE(t.source.empty()) << t.name;
    EXPECT_FALSE(t.title.empty()) << t.name;
    EXPECT_GE(t.memory_bytes, int64_t{11} << 30) << t.name;
    EXPECT_LT(t.runtime_bytes, t.memory_bytes / 4) << t.name;
    EXPECT_GT(t.memory_bandwidth, t.link_bandwidth) << t.name;
    const Rates r = t.rates(DType::bf16);
    EXPECT_GE(r.bf16_matrix, r.fp32_matrix) << t.name;
    for (const double rate : {r.fp32_matrix, r.vector, r.memory, r.link}) EXPECT_GT(rate, 0);
    EXPECT_EQ(find_target(t.name).title, t.title);
  }
  for (const char* name : {"rtx3060", "rtx3090", "rtx4090", "rtx5090", "a100-40", "a100-80", "h100",
                           "h200", "t4", "l4", "cpu-8"})
    EXPECT_TRUE(names.contains(name)) << name;
  // What drivers report, in MiB.
  for (const auto& [name, mib] : {std::pair{"rtx3090", 24576},
                                  {"rtx4090", 24564},
                                  {"rtx5090", 32607},
                                  {"h100", 81559},
                                  {"t4", 15360},
                                  {"l4", 23034}})
    EXPECT_EQ(find_target(name).memory_bytes, int64_t{mib} << 20) << name;
}

TEST(Targets, AFileDescribesAnother) {
  const TempFolder folder;
  const std::string path = folder / "box.json";
  write_atomic(path, kBox);
  const Target t = find_target(path);
  EXPECT_EQ(t.name, "box");
  EXPECT_EQ(t.title, "box");
  EXPECT_EQ(t.memory_bytes, int64_t{16} << 30);
  EXPECT_EQ(t.tf32_flops, 0);
  EXPECT_DOUBLE_EQ(t.rates(DType::bf16).memory, 500e9 * Target::kMemoryShare);
}

// kBox by the shares that the header names: a product of 256 rows has half its rate where there is a unit
// for products, f32 products that of tf32 only if they are asked for, and attention half of theirs.
TEST(Targets, RatesAreSharesOfThePeaks) {
  Target t = parse_target(kBox, "box.json");
  const Rates r = t.rates(DType::bf16);
  EXPECT_DOUBLE_EQ(r.fp32_matrix, 0.75 * 10e12);
  EXPECT_DOUBLE_EQ(r.bf16_matrix, 0.75 * 40e12);
  EXPECT_DOUBLE_EQ(r.fp32_attention, 0.375 * 10e12);
  EXPECT_DOUBLE_EQ(r.bf16_attention, 0.375 * 40e12);
  EXPECT_DOUBLE_EQ(r.vector, 2.5e12);
  EXPECT_DOUBLE_EQ(r.memory, 0.85 * 500e9);
  EXPECT_DOUBLE_EQ(r.link, 0.7 * 16e9);
  EXPECT_EQ(r.half_rate_rows, 256);
  EXPECT_TRUE(r.kernels_in_bf16);
  EXPECT_FALSE(t.rates(DType::f32).kernels_in_bf16);
  t.tf32_flops = 20e12;
  t.fp16_flops = 30e12;
  EXPECT_DOUBLE_EQ(t.rates(DType::f32).fp32_matrix, 0.75 * 10e12);
  const Rates tf32 = t.rates(DType::f32, true);
  EXPECT_DOUBLE_EQ(tf32.fp32_matrix, 0.75 * 20e12);
  EXPECT_DOUBLE_EQ(tf32.fp32_attention, 0.375 * 10e12);
  EXPECT_DOUBLE_EQ(t.rates(DType::f16).fp32_matrix, 0.75 * 30e12);
  // One of two units is a unit; a device without any gives all rows its rate.
  t.bf16_flops = 0;
  EXPECT_EQ(t.rates(DType::f16).half_rate_rows, 256);
  EXPECT_DOUBLE_EQ(t.rates(DType::bf16).bf16_matrix, 0.75 * 10e12);
  t.fp16_flops = 0;
  EXPECT_EQ(t.rates(DType::f32).half_rate_rows, 0);
}

TEST(Targets, WrongOnesAreRefused) {
  test::expect_error(ErrorCode::usage,
                     {"target as one of rtx3060", "\"rtx409\"", "did you mean rtx4090?"},
                     [] { find_target("rtx409"); });
  const auto wrong = [](const std::string& from, const std::string& to,
                        std::initializer_list<const char*> words) {
    std::string text = kBox;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    test::expect_error(ErrorCode::data, words, [&] { parse_target(text, "box.json"); });
  };
  wrong("\"fp32_tflops\": 10", "\"fp32_tflops\": 0",
        {"a rate above 0 for fp32_tflops in box.json", "the published figure"});
  wrong("500", "-3", {"memory_gbytes_per_second in box.json"});
  wrong("\"name\"", "\"nam\"", {"keys of a target in box.json", "\"nam\""});
  wrong("17179869184", "3", {"memory_bytes"});
  wrong("}", "", {"box.json"});
  test::expect_error(ErrorCode::data, {"box.json"}, [] { parse_target("[]", "box.json"); });
}

}  // namespace
}  // namespace snug
