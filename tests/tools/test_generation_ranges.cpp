// Both ends of every range of `snug generate`, and what lies next to them outside.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/support/errors.h"
#include "tools/infer/generation.h"

namespace snug {
namespace {

struct Range {
  const char* said;  // of a refusal
  std::function<void(GenerationRequest&, double)> set;
  std::vector<double> good, bad;
};

TEST(GenerationRanges, HoldTheirEndsAndNothingBeyond) {
  using R = GenerationRequest;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  constexpr double kMost = std::numeric_limits<double>::max();
  const double nan = std::nan(""), above_one = std::nextafter(1.0, 2.0);
  const auto whole = [](double x) { return static_cast<int64_t>(x); };
  const std::vector<Range> ranges = {
      {"temperature of at least 0",
       [](R& r, double x) { r.options.sampling.temperature = x; },
       {0, kLeast, kMost},
       {-kLeast, kInfinity, nan}},
      {"top_k of at least 0",
       [&](R& r, double x) { r.options.sampling.top_k = whole(x); },
       {0, 1, 1e15},
       {-1}},
      {"top_p in (0, 1]",
       [](R& r, double x) { r.options.sampling.top_p = x; },
       {kLeast, 1},
       {0, above_one, nan}},
      {"min_p in [0, 1]",
       [](R& r, double x) { r.options.sampling.min_p = x; },
       {0, 1},
       {-kLeast, above_one, nan}},
      {"repetition_penalty above 0",
       [](R& r, double x) { r.options.rules.repetition_penalty = x; },
       {kLeast, kMost},
       {0, -kLeast, kInfinity, nan}},
      {"no_repeat_ngram_size of at least 0",
       [&](R& r, double x) { r.options.rules.no_repeat_ngram_size = whole(x); },
       {0, 1, 1e15},
       {-1}},
      {"--max-new-tokens of at least 1",
       [&](R& r, double x) { r.options.max_new_tokens = whole(x); },
       {1, 1e15},
       {0, -1}},
      {"min_new_tokens of at least 0",
       [&](R& r, double x) { r.options.rules.min_new_tokens = whole(x); },
       {0, 64},
       {-1}},
      {"--min-new-tokens of at most --max-new-tokens, 64",
       [&](R& r, double x) { r.options.rules.min_new_tokens = whole(x); },
       {63, 64},
       {65}},
      {"--num-beams of 1 to 256",
       [&](R& r, double x) { r.beams.beams = whole(x); },
       {1, 2, 256},
       {0, 257}},
      {"--num-return-sequences of 1 to 256",
       [&](R& r, double x) { r.sequences = whole(x); },
       {1, 2, 256},
       {0, 257}},
      {"--num-return-sequences of at most --num-beams, 3",
       [&](R& r, double x) {
         r.beams.beams = 3;
         r.sequences = whole(x);
       },
       {1, 3},
       {4}},
      {"--batch-size of 1 to 1024",
       [&](R& r, double x) { r.batch_size = whole(x); },
       {0, 1, 1024},  // 0: not given
       {-1, 1025}},
      {"--logprobs of 0 to 100",
       [&](R& r, double x) { r.options.logprobs = whole(x); },
       {-1, 0, 100},  // -1: not given
       {-2, 101}},
      {"--length-penalty of -50 to 50",
       [](R& r, double x) { r.beams.length_penalty = x; },
       {-50, 0, 50},
       {std::nextafter(-50.0, -51.0), std::nextafter(50.0, 51.0), nan}},
  };
  for (const Range& range : ranges) {
    SCOPED_TRACE(range.said);
    const auto check = [&](double x) {
      GenerationRequest r;
      range.set(r, x);
      check_generation(r);
    };
    for (const double x : range.good) EXPECT_NO_THROW(check(x)) << x;
    for (const double x : range.bad) {
      SCOPED_TRACE(x);
      test::expect_error(ErrorCode::usage, {range.said}, [&] { check(x); });
    }
  }
}

}  // namespace
}  // namespace snug
