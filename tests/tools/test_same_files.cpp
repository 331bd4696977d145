// Files of data that are given twice, what is said of them, and of answers that have no balance.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/engine/io/temp_folder.h"
#include "tools/setup/row_data.h"
#include "tools/setup/same_files.h"

namespace snug {
namespace {

// Of kto's answers: said is what the paper's balance of 1 to 4/3 has not, with a hundredth to spare.
TEST(RowNotes, TheBalanceOfAnswersIsSaidWhereThereIsNone) {
  EXPECT_EQ(balance_note(4, 4, 1, 1), "all answers of train_data are desirable");
  EXPECT_EQ(balance_note(0, 4, 1, 1), "all answers of train_data are undesirable");
  const std::string note = balance_note(200, 300, 1, 1);
  EXPECT_EQ(
      note,
      "200 desirable answers of 300 are given, each of weight 1: a desirable_weight of 0.5 to "
      "0.667 lets both kinds weigh about the same");
  struct Row {
    double desirable, undesirable;
    bool said;
  };
  for (const Row& row : {Row{0.5, 1, false},
                         {0.667, 1, false},
                         {0.4951, 1, false},
                         {0.4949, 1, true},
                         {0.6699, 1, false},
                         {0.6701, 1, true},
                         {1, 2, false},
                         {1, 1.9, false},
                         {1, 1.4, true},
                         {0, 1, false},
                         {1, 0, false}})
    EXPECT_EQ(!balance_note(200, 300, row.desirable, row.undesirable).empty(), row.said)
        << row.desirable << " " << row.undesirable;
  EXPECT_EQ(balance_note(150, 300, 1, 2), "") << "as many of each are left as they are weighed";
}

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
