// Statistics of what a file holds, of files made by hand.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/io/safetensors.h"
#include "tests/engine/io/temp_folder.h"
#include "tools/inspect/inspect.h"

namespace snug {
namespace {

// Tokens of nanoGPT's form, none of which is 0.
TEST(InspectStatistics, TheLeastTokenIsOneThatIsThere) {
  const TempFolder folder;
  const uint16_t tokens[] = {7, 5, 9, 5};
  std::ofstream(folder / "raw.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens), sizeof tokens);
  const auto facts = inspect(folder / "raw.bin", {.stats = true});
  EXPECT_EQ(facts["tokens"], 4);
  EXPECT_EQ(facts["min"], 5);
  EXPECT_EQ(facts["max"], 9);
}

// Tensors are read in pieces: the sum of 0 to n - 1 is n (n - 1) / 2.
TEST(InspectStatistics, LargeTensorsAreReadToTheirEnds) {
  const TempFolder folder;
  constexpr int64_t n = 200'000;
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i);
  const SafetensorsLayout layout({{"format", "pt"}}, {{"x", SafeDType::F32, {n}}});
  SafetensorsWriter writer(folder / "x.safetensors", layout);
  writer.write("x", values.data(), 4 * n);
  writer.commit();
  const auto facts = inspect(folder / "x.safetensors", {.stats = true});
  EXPECT_EQ(facts["tensors"][0]["min"], 0.0);
  EXPECT_EQ(facts["tensors"][0]["max"], n - 1.0);
  EXPECT_NEAR(facts["tensors"][0]["mean"].get<double>(), (n - 1) / 2.0, 1e-6);
}

}  // namespace
}  // namespace snug
