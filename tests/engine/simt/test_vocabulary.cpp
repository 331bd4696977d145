// Right kernels: the same results under every schedule and for every size of block.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/core/units.h"
#include "engine/simt/simt.h"
#include "tests/engine/simt/vocabulary.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

using simt::emu::Queue;
using simt::emu::Schedule;

template <class F>
void in_all_schedules(F&& f) {
  for (const Schedule& schedule : simt::emu::test_schedules()) {
    SCOPED_TRACE(to_string(schedule));
    Queue queue{schedule, {}};
    f(queue);
  }
}

std::vector<float> floats(int64_t n, uint32_t seed) {
  const Values v = normal_values(n, seed);
  return {v.begin(), v.end()};
}

TEST(SimtVocabulary, BlockSums) {
  for (const int threads : {32, 64, 128, 1024})
    for (const int64_t piece : {1, 33, 257}) {
      if (threads == 1024 && piece != 257) continue;  // a second under AddressSanitizer
      const int64_t pieces = 5;
      const std::vector<float> x = floats(pieces * piece, 1);
      Values truth(pieces), largest(pieces);
      for (int64_t b = 0; b < pieces; ++b)
        truth[b] = std::accumulate(&x[b * piece], &x[b * piece] + piece, 0.0);
      std::vector<float> first;
      in_all_schedules([&](Queue& queue) {
        std::vector<float> sums(pieces, -1), tree(pieces, -1);
        block_sums(queue, sums.data(), x.data(), pieces, piece, threads);
        tree_sums(queue, tree.data(), x.data(), pieces, piece, threads);
        // Both sum `piece` random terms in float.
        const double allowed = tolerance(DType::f32, piece);
        EXPECT_TRUE(close({sums.begin(), sums.end()}, truth, allowed)) << threads << " " << piece;
        EXPECT_TRUE(close({tree.begin(), tree.end()}, truth, allowed)) << threads << " " << piece;
        if (first.empty()) first = sums;
        EXPECT_EQ(sums, first);
      });
    }
}

TEST(SimtVocabulary, Copies) {
  for (const simt::emu::Schedule& schedule : simt::emu::test_schedules())
    for (const int threads : {32, 64})
      for (const int64_t n : {4, 128, 300}) {
        std::vector<float> storage(static_cast<size_t>(n) + 4), y(static_cast<size_t>(n));
        // At 16 bytes, as copies of vectors want it.
        float* const x = reinterpret_cast<float*>(
            round_up(static_cast<int64_t>(reinterpret_cast<uintptr_t>(storage.data())), 16));
        for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(i + 1);
        simt::emu::Queue queue{schedule, {}};
        reverse_by_copies(queue, y.data(), x, n, threads);
        for (int64_t i = 0; i < n; ++i) {
          const int64_t tile = 4 * threads, from = i / tile * tile + tile - 1 - i % tile;
          ASSERT_EQ(y[static_cast<size_t>(i)],
                    static_cast<float>((from < n ? from + 1 : 0) + i + 1))
              << i << " of " << n;
        }
      }
}

TEST(SimtVocabulary, WarpScans) {
  const int64_t n = 100;
  std::vector<int> x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<int>(i * i % 17) - 5;
  in_all_schedules([&](Queue& queue) {
    std::vector<int> y(n, -999);
    warp_scans(queue, y.data(), x.data(), n, 64);
    int sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum = i % 32 == 0 ? x[i] : sum + x[i];
      ASSERT_EQ(y[i], sum) << i;
    }
  });
}

TEST(SimtVocabulary, Transpose) {
  for (const auto& [rows, columns] : {std::pair{1, 1}, {33, 31}, {64, 96}, {5, 70}})
    in_all_schedules([&, r = rows, c = columns](Queue& queue) {
      const std::vector<float> x = floats(int64_t{r} * c, 2);
      std::vector<float> y(x.size(), -1);
      transpose(queue, y.data(), x.data(), r, c, 128);
      for (int i = 0; i < r; ++i)
        for (int j = 0; j < c; ++j) ASSERT_EQ(y[j * r + i], x[i * c + j]) << i << " " << j;
    });
}

TEST(SimtVocabulary, AtomicsAndTheLastBlock) {
  std::vector<int> x(300);
  std::iota(x.begin(), x.end(), 7);
  const int sum = std::accumulate(x.begin(), x.end(), 0);
  in_all_schedules([&](Queue& queue) {
    std::vector<int> out{0, 1 << 30, -1}, histogram(8, 0), partial(3, -1);
    int64_t total = int64_t{1} << 40;
    unsigned counter = 0;
    count(queue, out.data(), histogram.data(), &total, partial.data(), &counter, x.data(), 300, 64);
    EXPECT_EQ(out, (std::vector<int>{sum, 7, 306}));
    EXPECT_EQ(histogram, (std::vector<int>{38, 38, 38, 37, 37, 37, 37, 38}));
    EXPECT_EQ(total, (int64_t{1} << 40) + sum);
    EXPECT_EQ(counter, 0u);
  });
}

TEST(SimtVocabulary, WarpWords) {
  in_all_schedules([&](Queue& queue) {
    std::vector<int> out(16 * 32, -1);
    std::vector<double> doubles(32, -1);
    warp_words(queue, out.data(), doubles.data());
    for (int l = 0; l < 32; ++l) {
      const int odd_half = l < 16 ? 0xaaaa : static_cast<int>(0xaaaa0000u);
      const int want[16] = {5,
                            l ^ 3,
                            l < 2 ? l : l - 2,
                            l > 29 ? l : l + 2,
                            static_cast<int>(0xaaaaaaaau),
                            1,
                            0,
                            1,
                            0,
                            l < 16 ? 3 : 20,
                            odd_half,
                            l >= 16,
                            496,
                            31,
                            0,
                            l + 1};
      for (int i = 0; i < 16; ++i) EXPECT_EQ(out[i * 32 + l], want[i]) << i << " lane " << l;
      const int neighbour = ((l ^ 1) + 1) % 32;
      EXPECT_EQ(doubles[l], 2.5 * neighbour - 0.5) << l;
    }
  });
}

template <class T>
std::vector<T> narrow(const std::vector<float>& x) {
  std::vector<T> y;
  for (const float v : x) y.push_back(from_f32<T>(v));
  return y;
}

// Every element of c is 16 exact products and their sum, which rounds 16 times.
template <class T>
void expect_products() {
  const std::vector<T> a = narrow<T>(floats(256, 1)), b = narrow<T>(floats(128, 2)),
                       wide = narrow<T>(floats(256, 3));
  const std::vector<float> c0 = floats(128, 4);
  const auto check = [&](const std::vector<float>& c, const std::vector<T>& other, int columns,
                         bool adding) {
    for (int m = 0; m < 16; ++m)
      for (int n = 0; n < columns; ++n) {
        double sum = adding ? c0[m * 8 + n] : 0, sizes = std::fabs(sum);
        for (int k = 0; k < 16; ++k) {
          const double product =
              double{to_f32(a[m * 16 + k])} * double{to_f32(other[k * columns + n])};
          sum += product;
          sizes += std::fabs(product);
        }
        ASSERT_NEAR(c[m * columns + n], sum, 16 * 0x1p-24 * sizes) << m << " " << n;
      }
  };
  in_all_schedules([&](Queue& queue) {
    std::vector<float> c = c0;
    multiply(queue, c.data(), a.data(), b.data());
    check(c, b, 8, true);
    for (const bool transposed : {false, true}) {
      std::vector<float> both(256, -1);
      multiply_loaded(queue, both.data(), a.data(), wide.data(), transposed);
      check(both, wide, 16, false);
    }
  });
}

TEST(SimtVocabulary, ProductsOfAWarp) {
  expect_products<bf16>();
  expect_products<f16>();
}

// Which thread of which block runs, in the order it happens.
void order_kernel(std::vector<int>* order) {
  order->push_back(static_cast<int>(simt::block() * 1000 + simt::block_y() * 100) + simt::thread());
  simt::sync_threads();
  order->push_back(10000 + simt::thread());
}

std::vector<int> order_under(Schedule schedule) {
  std::vector<int> order;
  Queue queue{schedule, {}};
  simt::launch(queue, {.blocks = 2, .threads = 32, .shared_bytes = 0, .blocks_y = 2}, "order",
               order_kernel, &order);
  EXPECT_EQ(queue.counters.blocks, 4);
  EXPECT_EQ(queue.counters.switches, 4 * 32 * 2);
  return order;
}

TEST(SimtSchedule, OrdersOfThreadsAndBlocks) {
  using simt::emu::Order;
  const std::vector<int> forward = order_under({Order::forward, 0});
  ASSERT_EQ(forward.size(), 4u * 64);
  EXPECT_EQ(forward[0], 0);
  EXPECT_EQ(forward[31], 31);
  EXPECT_EQ(forward[32], 10000);
  EXPECT_EQ(forward[64], 1000);
  EXPECT_EQ(forward[128], 100);
  const std::vector<int> reversed = order_under({Order::reversed, 0});
  EXPECT_EQ(reversed[0], 1100 + 31);
  EXPECT_EQ(reversed[32], 10000 + 31);
  EXPECT_EQ(reversed[192], 31);
  const std::vector<int> one = order_under({Order::shuffled, 1});
  EXPECT_EQ(one, order_under({Order::shuffled, 1}));
  EXPECT_NE(one, order_under({Order::shuffled, 2}));
  EXPECT_NE(one, forward);
  for (std::vector<int> shuffled : {one, reversed}) {
    std::vector<int> all = forward;
    std::sort(all.begin(), all.end());
    std::sort(shuffled.begin(), shuffled.end());
    EXPECT_EQ(shuffled, all);
  }
}

// Reads what the other warp writes much later, with no barrier in between: no access to shared
// memory tells, but a warp that runs ahead does.
void other_warp_kernel(int* x) {
  const int other = x[63 - simt::thread()];
  for (int i = 0; i < 20; ++i) simt::sync_warp();
  x[simt::thread()] = other + 100;
}

TEST(SimtSchedule, AWarpRunsAhead) {
  using simt::emu::Order;
  const auto under = [](Schedule schedule) {
    std::vector<int> x(64);
    std::iota(x.begin(), x.end(), 0);
    Queue queue{schedule, {}};
    simt::launch(queue, {.blocks = 1, .threads = 64}, "other_warp", other_warp_kernel, x.data());
    return x;
  };
  const std::vector<int> forward = under({Order::forward, 0});
  EXPECT_EQ(forward, under({Order::reversed, 0}));
  int seen = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) seen += under({Order::shuffled, seed}) != forward;
  EXPECT_GE(seen, 15);
}

TEST(SimtSchedule, SeedFromTheEnvironment) {
  EXPECT_EQ(to_string(simt::emu::test_schedules()[0]), "forward");
  EXPECT_EQ(to_string(simt::emu::test_schedules()[1]), "reversed");
  ASSERT_EQ(setenv("SNUG_SIMT_SEED", "77", 1), 0);
  EXPECT_EQ(to_string(simt::emu::test_schedules()[2]), "shuffled, SNUG_SIMT_SEED=77");
  for (const char* bad : {"", "7x", "-1", "99999999999999999999"}) {
    setenv("SNUG_SIMT_SEED", bad, 1);
    expect_error(ErrorCode::usage, {"a whole number in SNUG_SIMT_SEED", bad},
                 [] { simt::emu::test_schedules(); });
  }
  unsetenv("SNUG_SIMT_SEED");
  EXPECT_EQ(simt::emu::test_schedules()[2].seed, 1u);
}

void nothing_kernel(int) {}

TEST(SimtLaunch, EmptyGridsRunNothing) {
  Queue queue;
  for (const simt::Dims& dims :
       {simt::Dims{.blocks = 0, .threads = 32},
        simt::Dims{.blocks = 3, .threads = 32, .shared_bytes = 0, .blocks_y = 0}})
    simt::launch(queue, dims, "nothing", nothing_kernel, 1);
  EXPECT_EQ(queue.counters.launches, 0);
}

TEST(SimtLaunch, RefusesWhatNoDeviceRuns) {
  const auto refused = [](simt::Dims dims, const char* expected, const char* found) {
    expect_error(ErrorCode::device, {expected, found, "in a launch of nothing"}, [&] {
      Queue queue;
      simt::launch(queue, dims, "nothing", nothing_kernel, 1);
    });
  };
  const char* block = "a block of 32 to 1024 threads, a multiple of 32";
  refused({.blocks = 1, .threads = 0}, block, "0 threads");
  refused({.blocks = 1, .threads = 48}, block, "48 threads");
  refused({.blocks = 1, .threads = 1056}, block, "1056 threads");
  refused({.blocks = int64_t{1} << 31, .threads = 32}, "at most 2147483647 blocks along x",
          "2147483648 blocks");
  refused({.blocks = -1, .threads = 32}, "blocks along x", "-1 blocks");
  refused({.blocks = 1, .threads = 32, .shared_bytes = 0, .blocks_y = 65536},
          "at most 65535 blocks along y", "65536 blocks");
  refused({.blocks = 1, .threads = 32, .shared_bytes = 0, .blocks_y = 1, .blocks_z = 65536},
          "at most 65535 blocks along z", "65536 blocks");
  refused({.blocks = 1, .threads = 32, .shared_bytes = 99 * 1024 + 1},
          "at most 101376 bytes of dynamic shared memory", "101377 bytes");
  Queue queue;
  simt::launch(queue, {.blocks = 1, .threads = 1024, .shared_bytes = 99 * 1024}, "nothing",
               nothing_kernel, 1);
  EXPECT_EQ(queue.counters.switches, 1024);
}

}  // namespace
}  // namespace snug::test
