// Files of data that are given twice, and what is said of them.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/engine/io/temp_folder.h"
#include "tools/setup/same_files.h"

namespace snug {
namespace {

class SameFiles : public testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  TempFolder folder_;
};

// Nothing is learned twice from files that say nothing.
TEST_F(SameFiles, EmptyFilesAreNoCopies) {
  RunConfig config;
  config.train_data = {put("a.txt", ""), put("b.txt", ""), put("c.txt", "text")};
  EXPECT_TRUE(same_files(config).empty());
}

// The first is named, and all others are counted.
TEST_F(SameFiles, OfManyTheFirstIsNamed) {
  const std::string a = put("a.txt", "one"), b = put("b.txt", "two"), c = put("c.txt", "six");
  RunConfig config;
  config.train_data = {a, b, c, a};
  EXPECT_EQ(same_files(config),
            std::vector<std::string>{"train_data names " + a + " twice; a file is read once"});
  config.train_data = {a, b, c, b, a, c};
  EXPECT_EQ(same_files(config),
            std::vector<std::string>{"train_data names " + b +
                                     " twice, and 2 more; a file is read once"});
  put("b.txt", "one");
  put("c.txt", "one");
  config.train_data = {a, b, c};
  EXPECT_EQ(same_files(config),
            std::vector<std::string>{b + " has the bytes of " + a +
                                     ", and 1 more: what they say is learned twice as often"});
}

}  // namespace
}  // namespace snug
