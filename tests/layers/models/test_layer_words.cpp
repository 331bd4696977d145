// What keys say of layers, as a value: read, joined and said again.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "layers/models/layer_words.h"

namespace snug {
namespace {

using Runs = std::vector<std::tuple<int64_t, int64_t, std::vector<std::string>>>;

Runs runs_of(const LayerWords& words) {
  Runs runs;
  for (const LayerWords::Run& run : words.runs())
    runs.emplace_back(run.first, run.last,
                      std::vector<std::string>(run.words.begin(), run.words.end()));
  return runs;
}

TEST(LayerWords, AreReadOnceIntoRuns) {
  EXPECT_EQ(runs_of({}), (Runs{{0, -1, {"none"}}}));
  EXPECT_EQ(runs_of("norms+mlp"), (Runs{{0, -1, {"norms", "mlp"}}}));
  EXPECT_EQ(runs_of("{0-5: block, 7: norms + fc}"),
            (Runs{{0, 5, {"block"}}, {7, 7, {"norms", "fc"}}}));
  EXPECT_EQ(runs_of("x: block"), (Runs{{-1, -1, {"block"}}}));
  EXPECT_EQ(runs_of("0: block, mlp"), (Runs{{0, 0, {"block"}}, {0, -1, {}}}));
  EXPECT_TRUE(LayerWords().none());
  EXPECT_TRUE(LayerWords("auto").open());
}

// Every list of three words over five layers: joined they say what a reader of the text reads.
TEST(LayerWords, JoinedAreWhatTheirTextSays) {
  const std::vector<LayerWords> ways = {"none", "norms+fc", "block"};
  for (int code = 0; code < 243; ++code) {
    std::vector<LayerWords> layers;
    for (int l = 0, rest = code; l < 5; ++l, rest /= 3)
      layers.push_back(ways[static_cast<size_t>(rest % 3)]);
    const LayerWords all = LayerWords::of(layers);
    EXPECT_EQ(runs_of(all), runs_of(all.text())) << all.text();
    EXPECT_EQ(all, LayerWords(all.text()));
    std::vector<LayerWords> again(5);
    for (const LayerWords::Run& run : all.runs())
      for (int64_t l = run.map ? run.first : 0; l <= (run.map ? run.last : 4); ++l) {
        std::string words;
        for (const std::string_view word : run.words)
          words += (words.empty() ? "" : "+") + std::string(word);
        again[static_cast<size_t>(l)] = words;
      }
    EXPECT_EQ(again, layers) << all.text();
  }
  EXPECT_EQ(LayerWords::of({}), LayerWords());
}

// A copy is the same text behind its first owner's end.
TEST(LayerWords, CopiesOutliveWhatTheyWereCopiedFrom) {
  LayerWords copy;
  {
    const LayerWords first = LayerWords::of(std::vector<LayerWords>{"block", "block", "act"});
    copy = first;
  }
  EXPECT_EQ(copy, "0-1: block, 2: act");
  EXPECT_EQ(runs_of(copy), (Runs{{0, 1, {"block"}}, {2, 2, {"act"}}}));
  EXPECT_LT(LayerWords("a"), LayerWords("b"));
}

}  // namespace
}  // namespace snug
