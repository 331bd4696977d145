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
