#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "engine/core/threads.h"

namespace snug {
namespace {

TEST(Threads, EveryCallHasItsNumber) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{5}}) {
    std::mutex mutex;
    std::set<size_t> seen;
    run_on_threads(count, [&](size_t i) {
      const std::lock_guard lock(mutex);
      seen.insert(i);
    });
    EXPECT_EQ(seen.size(), count < 1 ? 1 : count);
    EXPECT_EQ(*seen.rbegin(), count < 1 ? 0 : count - 1);
  }
}

// Threads whose stacks find no room are what a limit on processes looks like as well: EAGAIN.
TEST(Threads, ThoseThatCannotBeHadAreDoneWithout) {
  pthread_attr_t before, huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 46), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  std::atomic<int> pieces{10}, done{0}, calls{0};
  run_on_threads(4, [&](size_t) {
    ++calls;
    while (pieces.fetch_sub(1) > 0) ++done;
  });
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  pthread_attr_destroy(&huge);
  pthread_attr_destroy(&before);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(done, 10);
}

}  // namespace
}  // namespace snug
