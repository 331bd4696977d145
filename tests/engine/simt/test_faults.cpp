// Wrong kernels: each fault is reported with its place, under every schedule.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/core/sanitizers.h"
#include "engine/simt/copies.h"
#include "engine/simt/mma.h"
#include "engine/simt/reduce.h"
#include "engine/simt/simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// Launches under every schedule; each must be refused with these words, and name the schedule.
template <class... P, class... A>
void expect_fault(std::initializer_list<const char*> words, Dims dims, void (*kernel)(P...),
                  A... values) {
  for (const emu::Schedule& schedule : emu::test_schedules()) {
    const std::string text = expect_error(ErrorCode::internal, words, [&] {
      Queue queue{schedule, {}};
      launch(queue, dims, "faulty", kernel, values...);
    });
    EXPECT_NE(text.find("faulty, block 0"), std::string::npos) << text;
    EXPECT_NE(text.find("schedule " + to_string(schedule)), std::string::npos) << text;
  }
}

// Each line of interest is remembered by the kernel that holds it.
int line_a = 0, line_b = 0;
std::string at(int line) {
  return fmt::format("test_faults.cpp:{}:", line);
}

void missing_barrier_kernel(float* out) {
  SHARED_ARRAY(float, values, 64);
  line_a = __LINE__ + 1;
  values[thread()] = static_cast<float>(thread());
  line_b = __LINE__ + 1;
  out[thread()] = values[63 - thread()];
}

TEST(SimtFaults, MissingBarrier) {
  std::vector<float> out(64);
  for (const emu::Schedule& schedule : emu::test_schedules()) {
    const std::string text = expect_error(ErrorCode::internal, {}, [&] {
      Queue queue{schedule, {}};
      launch(queue, {.blocks = 1, .threads = 64}, "faulty", missing_barrier_kernel, out.data());
    });
    // Which of the two comes first is the schedule's choice; or nobody has written yet.
    const bool race =
        text.find("a barrier between uses of one element of shared memory") != std::string::npos &&
        text.find("values[") != std::string::npos && text.find(at(line_a)) != std::string::npos &&
        text.find(at(line_b)) != std::string::npos &&
        text.find("put sync_threads() between the two") != std::string::npos;
    const bool unwritten = text.find("to be written before it is read") != std::string::npos &&
                           text.find(at(line_b)) != std::string::npos;
    EXPECT_TRUE(race || unwritten) << text;
  }
}

// All write, a barrier, then each reads its neighbour's and writes its own.
void write_after_read_kernel(bool one_warp) {
  SHARED_ARRAY(int, values, 64);
  values[thread()] = 1;
  sync_threads();
  const int neighbour = one_warp ? (thread() ^ 1) : (thread() + 32) % 64;
  const int v = values[neighbour];
  values[thread()] = v + 1;
}

// Thread 0 reads what thread 1 (or 32) writes.
void read_then_write_kernel(int writer) {
  SHARED_ARRAY(int, values, 1);
  if (thread() == 0) values[0] = 1;
  sync_threads();
  if (thread() == 0 && values[0] != 1) return;
  if (thread() == writer) values[0] = 2;
}

TEST(SimtFaults, WriteAfterRead) {
  const char* rule = "a barrier between uses of one element of shared memory by two threads";
  const Dims dims{.blocks = 1, .threads = 64};
  expect_fault({rule, "put sync_threads() between the two"}, dims, write_after_read_kernel, false);
  expect_fault({rule, "put sync_warp() or sync_threads()"}, dims, write_after_read_kernel, true);
  expect_fault({rule, "values[0]", " it at", "sync_warp()"}, dims, read_then_write_kernel, 1);
  expect_error(ErrorCode::internal,
               {"values[0]: thread 0 reads it at ", "then this thread writes it at ", "thread 32"},
               [&] {
                 Queue queue;  // forward
                 launch(queue, dims, "faulty", read_then_write_kernel, 32);
               });
}

void two_writers_kernel() {
  SHARED_ARRAY(int, values, 1);
  values[0] = 1;
}

void atomic_and_plain_kernel() {
  SHARED_ARRAY(int, values, 1);
  if (thread() == 0) values[0] = 0;
  sync_threads();
  atomic_add(values, 0, 1);
  if (thread() == 0) values[0] = 5;
}

TEST(SimtFaults, TwoWriters) {
  expect_fault({"values[0]", " writes it at", "then this thread writes it"},
               {.blocks = 1, .threads = 32}, two_writers_kernel);
  expect_fault({"values[0]", "atomically updates it", "writes it"}, {.blocks = 1, .threads = 64},
               atomic_and_plain_kernel);
}

void warp_barrier_kernel(int* out) {
  SHARED_ARRAY(int, values, 64);
  values[thread()] = thread();
  sync_warp();
  out[thread()] = values[thread() ^ 31];
}
void warp_barrier_is_not_enough_kernel(int* out) {
  SHARED_ARRAY(int, values, 64);
  values[thread()] = thread();
  sync_warp();
  out[thread()] = values[63 - thread()];
}

TEST(SimtFaults, WarpBarrierOrdersTheWarpOnly) {
  std::vector<int> out(64);
  for (const emu::Schedule& schedule : emu::test_schedules()) {
    Queue queue{schedule, {}};
    launch(queue, {.blocks = 1, .threads = 64}, "right", warp_barrier_kernel, out.data());
    for (int t = 0; t < 64; ++t) EXPECT_EQ(out[t], t ^ 31);
    expect_error(ErrorCode::internal, {"values["}, [&] {
      launch(queue, {.blocks = 1, .threads = 64}, "wrong", warp_barrier_is_not_enough_kernel,
             out.data());
    });
  }
}

void divergent_barrier_kernel() {
  if (thread() < 40) {
    line_a = __LINE__ + 1;
    sync_threads();
  } else {
    line_b = __LINE__ + 1;
    sync_threads();
  }
}
// clang-format off
void same_line_kernel() {
  thread() < 40 ? sync_threads() : sync_threads();
}
// clang-format on
void loop_barrier_kernel() {
  for (int i = 0; i < (warp() == 0 ? 1 : 2); ++i) sync_threads();
  sync_threads();
}

TEST(SimtFaults, DivergentBarrier) {
  expect_fault(
      {"every thread of the block at one barrier", "threads 0-39 have come to sync_threads at ",
       "threads 40-63 have come to sync_threads at ", "take the barrier out of the branch"},
      {.blocks = 1, .threads = 64}, divergent_barrier_kernel);
  const std::string text = expect_error(ErrorCode::internal, {}, [] {
    Queue queue;
    launch(queue, {.blocks = 1, .threads = 64}, "faulty", divergent_barrier_kernel);
  });
  EXPECT_NE(text.find("0-39 have come to sync_threads at " + std::string(__FILE__) + ":" +
                      std::to_string(line_a) + ":"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(at(line_b)), std::string::npos) << text;
  expect_fault({"every thread of the block at one barrier", "threads 0-39", "threads 40-63"},
               {.blocks = 1, .threads = 64}, same_line_kernel);
  expect_fault({"every thread of the block at one barrier", "threads 0-31", "threads 32-63"},
               {.blocks = 1, .threads = 64}, loop_barrier_kernel);
}

// One site of block_sum in two branches: only its caller's place tells them apart.
void reduce_in_branches_kernel(float* out) {
  if (warp() == 0) {
    out[0] = block_sum(1.0f);
  } else {
    out[1] = block_sum(1.0f);
  }
}

TEST(SimtFaults, ReductionInABranch) {
  float out[2];
  expect_fault({"every thread of the block at one barrier", "threads 0-31", "threads 32-63",
                "test_faults.cpp"},
               {.blocks = 1, .threads = 64}, reduce_in_branches_kernel, &out[0]);
}

void half_warp_kernel(int* out) {
  if (lane() < 16) out[thread()] = shuffle_xor(thread(), 1);
}

// What a product or a load of matrices asks for: the whole warp, written rows, rows at 16 bytes.
void half_warp_product_kernel(float* out) {
  float c[4] = {};
  if (lane() < 16) mma<bf16>(c, {0, 0, 0, 0}, {0, 0});
  out[thread()] = c[0];
}
void load_matrices_kernel(bool barrier, int shift) {
  SHARED_ARRAY(f16, tile, 8 * 32 + 8);
  for (int i = 0; i < 8; ++i) tile[lane() * 8 + i] = from_f32<f16>(1.0f);
  if (lane() < 8) tile[256 + lane()] = from_f32<f16>(1.0f);
  if (barrier) sync_warp();
  uint32_t r[4];
  load_matrices_transposed(r, tile, lane() * 8 + shift);
}

TEST(SimtFaults, ProductsOfAWarp) {
  float out[32];
  const Dims dims{.blocks = 1, .threads = 32};
  expect_fault({"every lane of the mask at one warp operation", "threads 0-15 have come to mma at",
                "threads 16-31 have left the kernel"},
               dims, half_warp_product_kernel, &out[0]);
  expect_fault({"a barrier between uses of one element of shared memory", "put sync_warp()"}, dims,
               load_matrices_kernel, false, 0);
  expect_fault({"a vector access at a multiple of 16 bytes", "one 2 bytes past"}, dims,
               load_matrices_kernel, true, 1);
  Queue queue;
  launch(queue, dims, "right", load_matrices_kernel, true, 8);
}

// Copies that go on beside a thread: not waited for at all, not before the barrier, too few groups.
void copies_kernel(float* out, const float* in, int wait, bool barrier, int shift) {
  SHARED_ARRAY(float, tile, 4 * 32 + 4);
  SHARED_ARRAY(float, last, 32);
  copy_vector(tile, 4 * thread() + shift, in + 4 * thread(), true);
  end_copies();
  copy_number(last, thread(), in + 4 * thread(), thread() != 5);
  end_copies();
  if (wait == 2) wait_copies<0>();
  if (wait == 1 || wait == 3) wait_copies<1>();
  if (barrier) sync_threads();
  out[thread()] = tile[4 * (31 - thread()) + 1] + last[31 - thread()];
  if (wait == 1) {
    sync_threads();  // all have looked
    wait_copies<0>();
  }
}

TEST(SimtFaults, Copies) {
  float in[128], out[32];
  for (int i = 0; i < 128; ++i) in[i] = static_cast<float>(i);
  const Dims dims{.blocks = 1, .threads = 32};
  const float* const from = in;
  expect_fault({"copies to shared memory to be waited for before the kernel ends",
                "test_faults.cpp", "wait_copies<0>()"},
               dims, copies_kernel, &out[0], from, 0, true, 0);
  // One group that nobody waited for is one too many.
  expect_fault({"copies to shared memory to be waited for before the kernel ends"}, dims,
               copies_kernel, &out[0], from, 3, true, 0);
  // A race, or nobody has written yet: the schedule's choice.
  expect_fault({"shared memory"}, dims, copies_kernel, &out[0], from, 2, false, 0);
  expect_fault({"a vector access at a multiple of 16 bytes", "one 4 bytes past"}, dims,
               copies_kernel, &out[0], from, 2, true, 1);
  Queue queue;
  launch(queue, dims, "one group", copies_kernel, &out[0], from, 1, true, 0);
  EXPECT_TRUE(std::isnan(out[0])) << "what has not come";
  launch(queue, dims, "right", copies_kernel, &out[0], from, 2, true, 0);
  for (int i = 0; i < 32; ++i) {
    const int other = 4 * (31 - i);
    EXPECT_EQ(out[i], static_cast<float>(other + 1 + (i == 31 - 5 ? 0 : other))) << i;
  }
}

void half_warp_then_barrier_kernel(int* out) {
  if (lane() < 16) out[thread()] = shuffle_xor(thread(), 1);
  sync_threads();
}
void both_halves_kernel(int* out) {
  if (lane() < 16) {
    out[thread()] = shuffle_xor(thread(), 1);
  } else {
    out[thread()] = shuffle_xor(thread(), 2);
  }
}

TEST(SimtFaults, WarpOperationInAHalfWarp) {
  std::vector<int> out(64);
  const Dims dims{.blocks = 1, .threads = 64};
  expect_fault(
      {"every lane of the mask at one warp operation",
       "threads 0-15, 32-47 have come to shuffle_xor at ",
       "threads 16-31, 48-63 have left the kernel", "take the operation out of the branch"},
      dims, half_warp_kernel, out.data());
  expect_fault({"threads 0-15, 32-47 have come to shuffle_xor at ",
                "threads 16-31, 48-63 have come to sync_threads at "},
               dims, half_warp_then_barrier_kernel, out.data());
  expect_fault({"threads 0-15, 32-47 have come to shuffle_xor at ",
                "threads 16-31, 48-63 have come to shuffle_xor at "},
               dims, both_halves_kernel, out.data());
}

void exited_lane_kernel() {
  if (thread() == 7) return;
  sync_warp();
}
void early_lane_kernel() {
  if (thread() == 7) return;
  sync_threads();
}
void late_warp_kernel() {
  sync_threads();
  if (warp() == 1) return;
  sync_threads();
}
void early_warp_kernel(int* out) {
  if (warp() == 1) return;
  sync_threads();
  out[thread()] = shuffle(thread(), 3);
  sync_threads();
}

TEST(SimtFaults, ExitedLanes) {
  const Dims dims{.blocks = 1, .threads = 64};
  expect_fault(
      {"every lane of the mask at one warp operation", "threads 7, 32-63 have left the kernel",
       "threads 0-6, 8-31 have come to sync_warp at "},
      dims, exited_lane_kernel);
  const char* rule = "threads to leave before a barrier in whole warps, and before the first one";
  expect_fault({rule, "thread 7 has left the kernel", "threads 0-6, 8-63 have come to sync_threads",
                "predicate the work instead"},
               dims, early_lane_kernel);
  expect_fault({rule, "threads 32-63 have left the kernel", "threads 0-31 have come to"}, dims,
               late_warp_kernel);
  std::vector<int> out(64, -1);
  Queue queue;
  launch(queue, dims, "right", early_warp_kernel, out.data());
  EXPECT_EQ(out[31], 3);
  EXPECT_EQ(out[32], -1);
}

void outside_mask_kernel() {
  shuffle(1, 0, 0x0000ffffu);
}
void from_outside_mask_kernel() {
  if (lane() < 16) shuffle_xor(1, 16, 0x0000ffffu);
}
void no_lane_kernel() {
  shuffle(1, thread() == 3 ? 32 : 0);
}

TEST(SimtFaults, LanesAndMasks) {
  const Dims dims{.blocks = 1, .threads = 32};
  expect_fault({"a warp operation by the lanes of its mask", "mask 0x0000ffff", "test_faults.cpp:"},
               dims, outside_mask_kernel);
  expect_fault({"shuffle_xor from a lane of the mask 0x0000ffff", "lane 0 asking with 16"}, dims,
               from_outside_mask_kernel);
  expect_fault({"shuffle from a lane of the mask 0xffffffff", "lane 3 asking with 32"}, dims,
               no_lane_kernel);
}

void past_dynamic_kernel(int which) {
  const auto values = dynamic_smem<float>();
  line_a = __LINE__ + 1;
  if (thread() == 9) values[which] = 1.0f;
}
void past_static_kernel() {
  SHARED_ARRAY(int, values, 5);
  if (thread() == 0) values[5] = 1;
}
void past_vector_kernel() {
  const auto values = dynamic_smem<float>();
  Pack<float, 4> zeros{};
  if (thread() == 0) zeros.store(values, 4);
}

TEST(SimtFaults, SharedMemoryBounds) {
  const Dims dims{.blocks = 1, .threads = 32, .shared_bytes = 28};
  expect_fault({"an access inside dynamic shared memory, 28 bytes", "bytes 28 to 32 at ",
                "thread 9 (lane 9 of warp 0)", "test_faults.cpp:", "shared_bytes of the launch"},
               dims, past_dynamic_kernel, 7);
  const std::string text = expect_error(ErrorCode::internal, {}, [&] {
    Queue queue;
    launch(queue, dims, "faulty", past_dynamic_kernel, 7);
  });
  EXPECT_NE(text.find(at(line_a)), std::string::npos) << text;
  expect_fault({"bytes -4 to 0 at "}, dims, past_dynamic_kernel, -1);
  Queue queue;
  launch(queue, dims, "right", past_dynamic_kernel, 6);
  expect_fault({"an access inside values, 20 bytes", "bytes 20 to 24", "it is declared with"},
               {.blocks = 1, .threads = 32}, past_static_kernel);
  expect_fault({"dynamic shared memory, 28 bytes", "bytes 16 to 32"}, dims, past_vector_kernel);
  expect_fault({"dynamic shared memory, 0 bytes"}, {.blocks = 1, .threads = 32},
               past_dynamic_kernel, 0);
}

void unwritten_kernel(float* out, bool dynamic) {
  SHARED_ARRAY(float, values, 32);
  const auto more = dynamic_smem<float>();
  if (block() == 0 || thread() != 3) {
    values[thread()] = 1.0f;
    more[thread()] = 1.0f;
  }
  sync_threads();
  out[thread()] = dynamic ? more[thread()] : values[thread()];
}

// The block before wrote it; it does not count. In the reversed order the faulty block comes first.
TEST(SimtFaults, UnwrittenSharedMemory) {
  std::vector<float> out(32);
  for (const bool dynamic : {false, true})
    for (const emu::Schedule& schedule : emu::test_schedules())
      expect_error(
          ErrorCode::internal,
          {"shared memory to be written before it is read",
           dynamic ? "byte 12 of dynamic shared memory" : "values[3]", "nobody wrote in this block",
           "faulty, block 1, thread 3", "test_faults.cpp:", "nothing stays from the block before"},
          [&] {
            Queue queue{schedule, {}};
            launch(queue, {.blocks = 2, .threads = 32, .shared_bytes = 128}, "faulty",
                   unwritten_kernel, out.data(), dynamic);
          });
}

void some_barrier_free_kernel() {}

// Floats first, then their halves: each thread has one of its own. Threads 0 and 1 share a float.
void halves_kernel(float* out, int neighbour) {
  const auto whole = dynamic_smem<float>();
  const auto half = dynamic_smem<uint16_t>();
  if (thread() < 16) whole[thread()] = 1.0f;
  sync_threads();
  half[thread()] = static_cast<uint16_t>(thread());
  out[thread()] = static_cast<float>(half[thread() ^ neighbour]);
}
// No barrier: what was touched whole is remembered of both halves.
void whole_and_half_kernel() {
  const auto whole = dynamic_smem<float>();
  const auto half = dynamic_smem<uint16_t>();
  if (thread() == 2) whole[0] = 1.0f;
  if (thread() == 5) half[1] = 1;
}

TEST(SimtFaults, HalvesOfDynamicMemory) {
  std::vector<float> out(32);
  for (const emu::Schedule& schedule : emu::test_schedules()) {
    Queue queue{schedule, {}};
    launch(queue, {.blocks = 2, .threads = 32, .shared_bytes = 64}, "right", halves_kernel,
           out.data(), 0);
    for (int i = 0; i < 32; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], i);
  }
  expect_fault({"a barrier between uses of one element", "of dynamic shared memory"},
               {.blocks = 1, .threads = 32, .shared_bytes = 64}, halves_kernel, out.data(), 1);
  expect_fault({"a barrier between uses of one element", "byte 2 of dynamic shared memory",
                "thread 2", "thread 5"},
               {.blocks = 1, .threads = 32, .shared_bytes = 4}, whole_and_half_kernel);
}

TEST(SimtFaults, LaunchesAreCounted) {
  Queue one, other;
  const int64_t before = emu::launches_so_far();
  for (Queue* queue : {&one, &other, &other})
    launch(*queue, {.blocks = 2, .threads = 32}, "right", some_barrier_free_kernel);
  launch(one, {.blocks = 0, .threads = 32}, "empty", some_barrier_free_kernel);
  EXPECT_EQ(emu::launches_so_far(), before + 3);
  EXPECT_EQ(one.counters.launches, 1);
}

void much_shared_kernel() {
  SHARED_ARRAY(double, first, 6144);
  if (thread() == 0) first[0] = 0.0;
  SHARED_ARRAY(float, second, 1);
  if (thread() == 0) second[0] = 0.0f;
}
void some_shared_kernel() {
  SHARED_ARRAY(double, first, 6144);
  if (thread() == 0) first[6143] = 0.0;
}

TEST(SimtFaults, SharedMemoryLimits) {
  expect_fault({"at most 49152 bytes of declared shared memory", "49156 bytes", "second"},
               {.blocks = 1, .threads = 32}, much_shared_kernel);
  expect_fault({"101376 with the dynamic part", "49152 bytes, 101377 with the dynamic part"},
               {.blocks = 1, .threads = 32, .shared_bytes = 99 * 1024 - 49152 + 1},
               some_shared_kernel);
  Queue queue;
  launch(queue, {.blocks = 1, .threads = 32, .shared_bytes = 99 * 1024 - 49152}, "right",
         some_shared_kernel);
}

void misaligned_kernel(const float* x, float* y) {
  Pack<float, 4>::load(x + thread()).store(y + 4 * thread());
}
void misaligned_shared_kernel() {
  const auto values = dynamic_smem<float>(4);
  Pack<float, 2> zeros{};
  if (thread() == 0) zeros.store(values, 0);
}
void misaligned_offset_kernel() {
  dynamic_smem<float>(2);
}

TEST(SimtFaults, MisalignedVectors) {
  const GuardedBytes x(256, 0), y(512, 0);
  expect_fault({"a vector access at a multiple of 16 bytes", "bytes past at ",
                "test_faults.cpp:", "take single elements"},
               {.blocks = 1, .threads = 32}, misaligned_kernel,
               reinterpret_cast<const float*>(x.data()), reinterpret_cast<float*>(y.data()));
  expect_fault({"a multiple of 8 bytes", "one 4 bytes past"},
               {.blocks = 1, .threads = 32, .shared_bytes = 64}, misaligned_shared_kernel);
  expect_fault({"a multiple of the element's size", "2 at "},
               {.blocks = 1, .threads = 32, .shared_bytes = 64}, misaligned_offset_kernel);
}

#if !SNUG_ADDRESS_SANITIZER
void past_the_end_kernel(float* x, int64_t n) {
  const int64_t i = block() * threads() + thread();
  if (i <= n) x[i] = 1.0f;  // one too many
}
int deep(int n) {
  volatile char frame[1024];
  frame[0] = static_cast<char>(n);
  return n == 0 ? frame[0] : deep(n - 1) + frame[0];
}
void deep_kernel(int* out, int depth) {
  out[thread()] = deep(depth);
}

// A tensor that ends where its pages do, so one element too many is nobody's.
TEST(SimtFaults, AddressesOutsideOfTensors) {
  const GuardedBytes x(64 * sizeof(float), 0);
  expect_fault({"addresses inside the tensors of the launch", "which nothing owns",
                "thread 0 (lane 0 of warp 0)", "SNUG_SANITIZE=ON"},
               {.blocks = 1, .threads = 32}, past_the_end_kernel,
               reinterpret_cast<float*>(x.data()) + 64, int64_t{0});
  std::vector<int> out(32);
  expect_fault({"a stack of at most 131072 bytes", "a stack overflow"},
               {.blocks = 1, .threads = 32}, deep_kernel, out.data(), 400);
  Queue queue;
  launch(queue, {.blocks = 1, .threads = 32}, "right", deep_kernel, out.data(), 40);
}

// What is not an emulated thread's fault is left to whoever would have had it.
TEST(SimtFaultsDeathTest, OtherFaultsStayWhatTheyAre) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        Queue queue;
        std::vector<int> out(32);
        launch(queue, {.blocks = 1, .threads = 32}, "right", deep_kernel, out.data(), 1);
        const GuardedBytes x(16, 0);
        *reinterpret_cast<volatile int*>(x.data() + 16) = 1;
      },
      testing::KilledBySignal(SIGSEGV), "");
}
#endif

void throwing_kernel(int who) {
  sync_threads();
  if (thread() == who) fail(ErrorCode::data, "words", "of a kernel", "nothing");
  sync_threads();
}

// An error of a thread comes out of the launch, and the machine works on after all of these.
TEST(SimtFaults, ErrorsPassThrough) {
  for (const emu::Schedule& schedule : emu::test_schedules()) {
    Queue queue{schedule, {}};
    for (const int who : {0, 40, 63})
      expect_error(ErrorCode::data, {"words", "of a kernel"}, [&] {
        launch(queue, {.blocks = 2, .threads = 64}, "throwing", throwing_kernel, who);
      });
    launch(queue, {.blocks = 2, .threads = 64}, "throwing", throwing_kernel, -1);
  }
}

TEST(SimtFaults, WordsOfKernelsOutsideOfOne) {
  expect_error(ErrorCode::internal, {"a thread index inside a kernel", "a call outside of one"},
               [] { thread(); });
  expect_error(ErrorCode::internal, {"sync_threads inside a kernel"}, [] { sync_threads(); });
  expect_error(ErrorCode::internal, {"shuffle_xor inside a kernel"}, [] { shuffle_xor(1, 1); });
  expect_error(ErrorCode::internal, {"SHARED_ARRAY inside a kernel"}, [] { two_writers_kernel(); });
}

}  // namespace
}  // namespace snug::test
