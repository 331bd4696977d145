#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tools/trainer/allocation_watch.h"

namespace snug {
namespace {

// What happens between start() and stop() is counted; counts are read as differences.
class AllocationWatch : public testing::Test {
 protected:
  void SetUp() override {
    if (!allocation_watch::available()) GTEST_SKIP() << "sanitizers bring their own malloc";
    breaches_ = allocation_watch::breaches();
    transient_ = allocation_watch::transient();
    allocation_watch::start();
  }
  void TearDown() override { allocation_watch::stop(); }
  int64_t breaches() const { return allocation_watch::breaches() - breaches_; }
  int64_t transient() const { return allocation_watch::transient() - transient_; }

  int64_t breaches_ = 0, transient_ = 0;
};

// The compiler may not remove a block that nobody uses.
template <class T>
T* kept(T* p) {
  asm volatile("" : : "r"(p) : "memory");
  return p;
}

TEST_F(AllocationWatch, QuietStepsCountNothing) {
  for (int i = 0; i < 3; ++i) allocation_watch::step_done();
  EXPECT_EQ(breaches(), 0);
  EXPECT_EQ(transient(), 0);
}

TEST_F(AllocationWatch, ABlockThatOutlivesItsStepIsOneBreach) {
  void* p = kept(std::malloc(100));
  EXPECT_EQ(breaches(), 0) << "the step is not over";
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), 1);
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), 1) << "counted once, at the end of the step that made it";
  std::free(p);
  EXPECT_EQ(transient(), 0) << "it was not transient";
}

TEST_F(AllocationWatch, ABlockOfOneStepIsTransient) {
  std::free(kept(std::malloc(1 << 20)));
  {
    std::vector<int> v(1000, 1);
    kept(v.data());
  }
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), 0);
  EXPECT_EQ(transient(), 2);
}

TEST_F(AllocationWatch, EveryWayToAllocateIsSeen) {
  void* aligned = nullptr;
  ASSERT_EQ(posix_memalign(&aligned, 64, 100), 0);
  std::vector<void*> blocks;  // its own growth counts too, so it is reserved inside the step
  blocks.reserve(8);
  blocks.push_back(aligned);
  blocks.push_back(kept(std::malloc(10)));
  blocks.push_back(kept(std::calloc(10, 10)));
  blocks.push_back(kept(std::aligned_alloc(256, 512)));
  auto* object = kept(new int(3));
  auto* array = kept(new std::string[2]);
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), 7);
  for (void* p : blocks) std::free(p);
  delete object;
  delete[] array;
}

TEST_F(AllocationWatch, ReallocIsANewBlock) {
  void* p = kept(std::malloc(16));
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), 1);
  p = kept(std::realloc(p, 1 << 16));
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), 2) << "growth in a later step is a breach of that step";
  std::free(p);
  // Grown and freed within one step: the same bytes, let go of.
  p = kept(std::malloc(16));
  p = kept(std::realloc(p, 1 << 16));
  std::free(p);
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), 2);
  EXPECT_EQ(transient(), 2);
}

TEST_F(AllocationWatch, MappedBlocksCount) {
  void* p = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(p, MAP_FAILED);
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), 1);
  munmap(p, 8192);
  p = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(p, 8192);
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), 1);
  EXPECT_EQ(transient(), 1);
}

TEST_F(AllocationWatch, BlocksFromBeforeTheStartAreNobodysBreach) {
  allocation_watch::stop();
  void* old = kept(std::malloc(64));
  allocation_watch::start();
  std::free(old);
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), 0);
  EXPECT_EQ(transient(), 0);
}

// A second watch begins afresh: blocks freed while nobody watched are not remembered, although
// their addresses come again; and the first, which filled the table, leaves it empty.
TEST_F(AllocationWatch, ASecondWatchForgetsTheFirst) {
  constexpr int kBlocks = 20000;
  static void* blocks[kBlocks];
  for (void*& p : blocks) p = kept(std::malloc(200));
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), kBlocks);
  allocation_watch::stop();
  for (void* p : blocks) std::free(p);
  allocation_watch::start();
  const int64_t before = breaches();
  for (int i = 0; i < 100; ++i) blocks[i] = kept(std::malloc(200));
  for (int i = 0; i < 100; ++i) std::free(blocks[i]);
  allocation_watch::step_done();
  EXPECT_EQ(breaches() - before, 0);
}

TEST_F(AllocationWatch, ManyBlocksInAnyOrder) {
  constexpr int kBlocks = 16000;  // removal from a crowded table must not lose one
  static void* blocks[kBlocks];
  for (int i = 0; i < kBlocks; ++i)
    blocks[i] = kept(std::malloc(static_cast<size_t>(24 + i * 37 % 500)));
  for (int i = 0; i < kBlocks; i += 2) std::free(blocks[i]);
  for (int i = kBlocks - 1; i > 0; i -= 4) std::free(blocks[i]);
  EXPECT_EQ(transient(), kBlocks / 2 + kBlocks / 4);
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), kBlocks / 4);
  for (int i = 1; i < kBlocks; i += 2)
    if ((kBlocks - 1 - i) % 4 != 0) std::free(blocks[i]);
}

// More than the table can hold is counted at once rather than lost.
TEST_F(AllocationWatch, AFloodIsCounted) {
  constexpr int kBlocks = 40000;
  static void* blocks[kBlocks];
  for (void*& p : blocks) p = kept(std::malloc(24));
  allocation_watch::step_done();
  EXPECT_EQ(breaches(), kBlocks);
  for (void* p : blocks) std::free(p);
}

TEST_F(AllocationWatch, OtherThreadsAreSeen) {
  static void* blocks[100];
  std::thread other([] {
    for (void*& p : blocks) p = kept(std::malloc(48));
  });
  other.join();
  const int64_t before = breaches();
  allocation_watch::step_done();
  EXPECT_GE(breaches() - before, 100);
  for (void* p : blocks) std::free(p);
}

}  // namespace
}  // namespace snug
