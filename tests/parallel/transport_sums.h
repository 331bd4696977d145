// Collectives of any transport against sums in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/rng.h"
#include "engine/memory/context.h"
#include "parallel/rank_comm.h"

namespace snug::test {

inline float value(int rank, int64_t i) {
  const auto key = static_cast<uint64_t>(rank) * 1000003u + static_cast<uint64_t>(i);
  return std::ldexp(uniform_from(static_cast<uint32_t>(mix64(key))) - 0.5f,
                    static_cast<int>(mix64(key) % 9));
}

inline View view_of(void* data, int64_t n, DType dtype) {
  return {data, {n}, dtype, Place::cpu, Name("x")};
}

template <class T>
struct Arena {
  explicit Arena(int64_t n) : values(static_cast<size_t>(n)) {}
  std::vector<T> values;
  View all() { return view_of(values.data(), static_cast<int64_t>(values.size()), type()); }
  View rows(int64_t begin, int64_t n) { return all().rows(begin, n); }
  static DType type() { return dtype_of<T>::value; }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(values.data()); }
  int64_t size() const { return static_cast<int64_t>(values.size() * sizeof(T)); }
};

inline void wait_somehow(int rank, int turn) {
  const auto ms = mix64(static_cast<uint64_t>(rank * 100 + turn)) % 3;
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// Every sum is fp32 from rank 0 on, so that it can be written down; and within rounding it is the sum.
template <class T>
void check_sums(Transport& t, int64_t piece, int threads, Place place = Place::cpu) {
  Context ctx(place, {.threads = threads});
  const int rank = t.rank(), size = t.size();
  const int64_t n = piece * size;
  const Staging room = staging_of(piece, sizeof(T), size);
  Arena<T> received(room.halves * (size - 1) * room.chunk);
  const View staging = t.shares_memory() ? View() : received.all();
  {
    Arena<T> arena(2 * n + piece);  // full, a second one, and a piece apart
    t.attach(ctx, arena.bytes(), arena.size());
    for (int turn = 0; turn < 3; ++turn) {
      for (int64_t i = 0; i < 2 * n; ++i)
        arena.values[static_cast<size_t>(i)] = from_f32<T>(value(rank, i + turn));
      for (int64_t i = 0; i < piece; ++i)
        arena.values[static_cast<size_t>(2 * n + i)] = from_f32<T>(value(99, i));
      const auto sum_of = [&](int64_t i) {
        float sum = to_f32(from_f32<T>(value(0, i + turn)));
        double exact = static_cast<double>(sum), size_sum = std::fabs(exact);
        for (int r = 1; r < size; ++r) {
          const float x = to_f32(from_f32<T>(value(r, i + turn)));
          sum += x;
          exact += static_cast<double>(x);
          size_sum += std::fabs(static_cast<double>(x));
        }
        EXPECT_NEAR(static_cast<double>(sum), exact, size_sum * size * 6e-8);
        return sum;
      };
      wait_somehow(rank, turn);
      t.reduce_scatter_sum(ctx, {arena.rows(2 * n, piece), true}, arena.rows(0, n), staging);
      for (int64_t i = 0; i < piece; ++i) {
        const float before = to_f32(from_f32<T>(value(99, i)));
        ASSERT_EQ(to_f32(arena.values[static_cast<size_t>(2 * n + i)]),
                  to_f32(from_f32<T>(before + sum_of(rank * piece + i))));
      }
      wait_somehow(rank, turn + 50);
      t.reduce_scatter_sum(ctx, {arena.rows(rank * piece, piece), false}, arena.rows(0, n),
                           staging);
      for (int64_t i = rank * piece; i < (rank + 1) * piece; ++i)
        ASSERT_EQ(to_f32(arena.values[static_cast<size_t>(i)]), to_f32(from_f32<T>(sum_of(i))));
      // From a piece apart, and from its place in the whole.
      std::copy_n(arena.values.begin() + rank * piece, piece, arena.values.begin() + 2 * n);
      t.all_gather(ctx, arena.rows(n, n), arena.rows(2 * n, piece));
      t.all_gather(ctx, arena.rows(0, n), arena.rows(rank * piece, piece));
      t.all_reduce_sum(ctx, arena.rows(n, n), staging);
      for (int64_t i = 0; i < n; ++i) {
        const float once = to_f32(from_f32<T>(sum_of(i)));
        ASSERT_EQ(to_f32(arena.values[static_cast<size_t>(i)]), once) << i;
        float again = once;
        for (int r = 1; r < size; ++r) again += once;
        ASSERT_EQ(to_f32(arena.values[static_cast<size_t>(n + i)]), to_f32(from_f32<T>(again)));
      }
    }
  }
}

}  // namespace snug::test
