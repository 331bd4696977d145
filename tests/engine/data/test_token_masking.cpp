#include <gtest/gtest.h>

#include <cmath>

#include "engine/data/token_masking.h"
#include "tests/engine/data/row_case.h"

namespace snug {
namespace {

using test::Ints;

constexpr int64_t kV = 1000;

MaskingOptions options(double p = 0.15) {
  return {.probability = p, .mask_id = 4, .vocab_size = kV};
}

// n trials of chance p: within five standard deviations.
void expect_share(int64_t count, int64_t n, double p, const char* what) {
  const auto trials = static_cast<double>(n);
  EXPECT_NEAR(static_cast<double>(count), trials * p, 5 * std::sqrt(trials * p * (1 - p)) + 1e-9)
      << what << " of " << n;
}

TEST(TokenMasking, HasTheSharesOfThePaper) {
  const TokenMasking masking(options(), 3, false);
  int64_t tokens = 0, targets = 0, masks = 0, kept = 0, random = 0;
  std::vector<int64_t> drawn(kV), at_place(64);
  for (int64_t k = 0; k < 20000; ++k) {
    Ints row(64, 500), target(64);
    const int64_t n = masking.apply(k, 64, 64, row.data(), target.data());
    int64_t found = 0;
    for (size_t t = 0; t < row.size(); ++t) {
      ++tokens;
      if (target[t] == kIgnoredLabel) {
        EXPECT_EQ(row[t], 500);
        continue;
      }
      ++found, ++at_place[t];
      EXPECT_EQ(target[t], 500);
      if (row[t] == 4) {
        ++masks;
      } else if (row[t] == 500) {
        ++kept;
      } else {
        ++random;
        ASSERT_TRUE(row[t] >= 0 && row[t] < kV);
        ++drawn[static_cast<size_t>(row[t])];
      }
    }
    EXPECT_EQ(n, found);
    targets += n;
  }
  expect_share(targets, tokens, 0.15, "targets");
  for (const int64_t n : at_place) expect_share(n, 20000, 0.15, "targets of a place");
  // A random id is the mask or the token itself once in kV.
  expect_share(masks, targets, 0.8 + 0.1 / kV, "masks");
  expect_share(kept, targets, 0.1 + 0.1 / kV, "kept");
  expect_share(random, targets, 0.1 * (kV - 2) / kV, "random");
  // Chi-square of the ids drawn: kV - 3 degrees of freedom, standard deviation sqrt(2 (kV - 3)).
  const double expected = static_cast<double>(random) / (kV - 2);
  double chi = 0;
  for (int64_t id = 0; id < kV; ++id) {
    if (id == 4 || id == 500) continue;
    const double d = static_cast<double>(drawn[static_cast<size_t>(id)]) - expected;
    chi += d * d / expected;
  }
  EXPECT_NEAR(chi, kV - 3, 5 * std::sqrt(2.0 * (kV - 3)));
}

TEST(TokenMasking, OtherSharesAreTaken) {
  MaskingOptions o = options(1.0);
  o.mask_share = 0.5, o.random_share = 0.5;
  int64_t masks = 0;
  const TokenMasking masking(o, 1, false);
  for (int64_t k = 0; k < 1000; ++k) {
    Ints row(10, 900), target(10);
    EXPECT_EQ(masking.apply(k, 10, 10, row.data(), target.data()), 10);
    EXPECT_EQ(target, Ints(10, 900));
    masks += std::count(row.begin(), row.end(), 4);
  }
  expect_share(masks, 10000, 0.5 + 0.5 / kV, "masks");
}

TEST(TokenMasking, IsAFunctionOfSeedSampleAndPlace) {
  const TokenMasking a(options(0.5), 3, false), b(options(0.5), 4, false), e(options(0.5), 3, true);
  const auto of = [](const TokenMasking& m, int64_t k, size_t n) {
    Ints row(n, 500), target(n);
    m.apply(k, static_cast<int64_t>(n), 1000, row.data(), target.data());
    row.insert(row.end(), target.begin(), target.end());
    return row;
  };
  EXPECT_EQ(of(a, 7, 200), of(a, 7, 200));
  EXPECT_NE(of(a, 7, 200), of(a, 8, 200));
  EXPECT_NE(of(a, 7, 200), of(b, 7, 200));
  EXPECT_NE(of(a, 7, 200), of(e, 7, 200));
  EXPECT_NE(of(a, 7, 200), of(a, 7 + (int64_t{1} << 40), 200));
  const Ints longer = of(a, 7, 200), shorter = of(a, 7, 50);
  for (size_t t = 0; t < 50; ++t) {
    EXPECT_EQ(longer[t], shorter[t]);
    EXPECT_EQ(longer[200 + t], shorter[50 + t]);
  }
}

// The draws are part of a checkpoint's meaning. (Checked against a second implementation of Philox
// and these rules.)
TEST(TokenMasking, IsPinned) {
  const TokenMasking masking(options(0.5), 42, false);
  Ints row, target(24);
  for (int32_t t = 0; t < 24; ++t) row.push_back(100 + t);
  masking.apply(5, 24, 24, row.data(), target.data());
  std::map<int32_t, int32_t> got;
  for (int32_t t = 0; t < 24; ++t)
    if (target[static_cast<size_t>(t)] != kIgnoredLabel) got[t] = row[static_cast<size_t>(t)];
  EXPECT_EQ(got, (std::map<int32_t, int32_t>{{2, 4},
                                             {3, 4},
                                             {4, 4},
                                             {8, 4},
                                             {11, 4},
                                             {12, 4},
                                             {14, 139},
                                             {16, 116},
                                             {17, 117},
                                             {18, 118},
                                             {20, 4},
                                             {21, 4}}));
}

TEST(TokenMasking, SpecialTokensStay) {
  MaskingOptions o = options(1.0);
  o.special = {true, false, true};
  const TokenMasking masking(o, 1, false);
  Ints row = {0, 1, 2, 999, 2}, target(5);
  EXPECT_EQ(masking.apply(0, 5, 5, row.data(), target.data()), 2);
  EXPECT_EQ(row[0], 0);
  EXPECT_EQ(row[2], 2);
  EXPECT_EQ(row[4], 2);
  EXPECT_EQ(target, (Ints{-100, 1, -100, 999, -100}));
}

TEST(TokenMasking, WordsAreHiddenWhole) {
  MaskingOptions o = options(0.3);
  o.special = {true};
  o.continues.assign(kV, false);
  for (size_t id = 100; id < 200; ++id) o.continues[id] = true;
  const TokenMasking masking(o, 9, false);
  // Words: 1 100 101; 2; 3 102; then, behind a special token, 103 begins one; 104 goes on.
  const Ints original = {1, 100, 101, 2, 3, 102, 0, 103, 104};
  const int words[] = {0, 0, 0, 1, 2, 2, -1, 3, 3};
  int64_t chosen[4] = {};
  for (int64_t k = 0; k < 20000; ++k) {
    Ints row = original, target(9);
    masking.apply(k, 9, 9, row.data(), target.data());
    for (size_t t = 0; t < 9; ++t) {
      if (words[t] < 0) {
        EXPECT_EQ(target[t], kIgnoredLabel);
      } else if (t == 0 || words[t] != words[t - 1]) {
        chosen[words[t]] += target[t] != kIgnoredLabel;
      } else {
        EXPECT_EQ(target[t] != kIgnoredLabel, target[t - 1] != kIgnoredLabel);
      }
    }
  }
  for (const int64_t n : chosen) expect_share(n, 20000, 0.3, "words");
  // What goes on at the row's start goes on with nothing.
  int64_t first = 0;
  for (int64_t k = 0; k < 20000; ++k) {
    Ints row = {103, 104, 2}, target(3);
    masking.apply(k, 3, 3, row.data(), target.data());
    first += target[0] != kIgnoredLabel;
    EXPECT_EQ(target[0] != kIgnoredLabel, target[1] != kIgnoredLabel);
  }
  expect_share(first, 20000, 0.3, "words that were begun before");
}

TEST(TokenMasking, TablesOfATokenizer) {
  TempFolder tmp;
  const Tokenizer bert = test::small_bert(tmp);
  std::vector<bool> special(test::N), continues(test::N);
  for (const int id : {test::PAD, test::UNK, test::CLS, test::SEP, test::MASK})
    special[static_cast<size_t>(id)] = true;
  continues[test::ING] = continues[test::ED] = true;
  EXPECT_EQ(special_tokens(bert), special);
  EXPECT_EQ(word_continuations(bert), continues);
}

TEST(TokenMasking, RefusesWhatCannotBe) {
  const auto make = [](MaskingOptions o) { TokenMasking(std::move(o), 1, false); };
  for (const double p : {0.0, -0.1, 1.1, std::nan("")})
    EXPECT_ERROR(make(options(p)), ErrorCode::usage, "mlm_probability above 0 and at most 1", "",
                 "0.15");
  MaskingOptions o = options();
  o.mask_share = 0.95;
  EXPECT_ERROR(make(o), ErrorCode::usage, "mask_replace_prob and random_replace_prob of 0 or more",
               "0.95 and 0.1", "leave them out");
  o = options();
  o.mask_id = -1;
  EXPECT_ERROR(make(o), ErrorCode::usage, "a mask token among the 1000 of the vocabulary", "none",
               "a tokenizer with a mask_token");
  o.mask_id = 1000;
  EXPECT_ERROR(make(o), ErrorCode::usage, "a mask token among", "token 1000", "the model");
}

}  // namespace
}  // namespace snug
