// What records and words of text may take of a budget: what reading takes otherwise is taken off first.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/core/sanitizers.h"
#include "tools/planner/plan.h"
#include "tools/setup/token_cache.h"

namespace snug {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Pages that come and go between two readings of what the process has.
constexpr double kPages = 512 << 10;

// A budget that leaves `bytes` beside the process and the 10 MiB of buffers.
PrepareRoom room_of(int64_t bytes) {
#if SNUG_ADDRESS_SANITIZER || SNUG_THREAD_SANITIZER
  return {.budget = 10 * kMiB + bytes};
#else
  record_limits({.budget = 1}, false);  // which gives back what is free
  return {.budget = process_private_bytes() + 10 * kMiB + bytes};
#endif
}

double near(int64_t bytes) {
  return static_cast<double>(bytes);
}

// Of .zst files 1 MiB goes to the decompressor, and of the rest its window: the largest power of two in half.
TEST(RecordLimits, ADecompressorIsTakenOff) {
  const PrepareRoom room = room_of(37 * kMiB);
  const RecordLimits plain = record_limits(room, true), packed = record_limits(room, true, true);
  EXPECT_NEAR(near(plain.whole), near(37 * kMiB), kPages);
  EXPECT_EQ(packed.window, 16 * kMiB);
  EXPECT_NEAR(near(packed.whole), near(20 * kMiB), kPages);
  EXPECT_NEAR(near(record_limits(room_of(131 * kMiB), true, true).whole), near(66 * kMiB), kPages);
  EXPECT_EQ(record_limits(room_of(5 * kMiB), true, true).window, 2 * kMiB);
  EXPECT_EQ(record_limits(room_of(0), true, true).window, 1 << 10);
  EXPECT_EQ(record_limits(room_of(0), true, true).whole, 0);
}

// A record with its copies and the longest word together are what is left.
TEST(RecordLimits, RecordsAndWordsShareWhatIsLeft) {
  for (const bool zstd : {false, true})
    for (const int64_t left : {24, 37, 60}) {
      const RecordLimits limits = record_limits(room_of(left * kMiB), false, zstd);
      const double rest = near(left * kMiB) - (zstd ? near(kMiB) + near(limits.window) : 0.0);
      ASSERT_LT(limits.word, INT64_MAX);
      const double word = near(limits.word * Tokenizer::kWordBytes);
      EXPECT_NEAR(near(limits.record) * kRecordCopies + word, rest, kPages + 64) << left << zstd;
      EXPECT_GE(word, rest / 4 - kPages);
      EXPECT_EQ(limits.longest_word(1 << 10), limits.word);
    }
}

// From `enough` on there are none.
TEST(RecordLimits, EnoughIsEnough) {
  for (const bool whole : {false, true})
    for (const bool zstd : {false, true}) {
      const PrepareRoom room = room_of(64 * kMiB);
      const RecordLimits little = record_limits(room, whole, zstd);
      ASSERT_GT(little.enough, room.budget);
      const RecordLimits much = record_limits({.budget = little.enough + 2 * kMiB}, whole, zstd);
      EXPECT_EQ(much.record, kMaxRecordBytes);
      EXPECT_EQ(much.word, INT64_MAX);
      EXPECT_EQ(much.enough, 0);
      EXPECT_EQ(much.whole, 0);
      EXPECT_EQ(much.window, 128 * kMiB);
      EXPECT_GT(record_limits({.budget = little.enough - 2 * kMiB}, whole, zstd).enough, 0);
    }
  EXPECT_EQ(record_limits({}, false).enough, 0);
  const RecordLimits plain = record_limits(room_of(64 * kMiB), false),
                     packed = record_limits(room_of(64 * kMiB), false, true);
  EXPECT_NEAR(near(packed.enough - plain.enough), near(129 * kMiB), near(kMiB));
}

// Of a document read whole its copies come before its words, which have some always.
TEST(RecordLimits, WordsOfWholeDocuments) {
  RecordLimits limits;
  limits.whole = 40 * kMiB;
  const int64_t little = limits.longest_word(100 << 10), none = limits.longest_word(4 * kMiB);
  EXPECT_NEAR(near(little * Tokenizer::kWordBytes),
              near(40 * kMiB) - (kRecordCopies + 16) * near(100 << 10), Tokenizer::kWordBytes);
  EXPECT_EQ(none, 64 << 10);
}

}  // namespace
}  // namespace snug
