// What ranks settle with each other before a run.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "parallel/local_group.h"
#include "tests/support/errors.h"
#include "tools/trainer/run_ranks.h"

namespace snug {
namespace {

void on_run_ranks(int size, const std::function<void(RunRanks&)>& f) {
  std::vector<std::unique_ptr<LocalGroup>> groups = LocalGroup::of_threads(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      groups[static_cast<size_t>(r)]->set_timeout(20);
      RunRanks ranks(std::move(groups[static_cast<size_t>(r)]), r, size, false);
      f(ranks);
      ranks.meet("the end");
    });
  for (std::thread& t : threads) t.join();
}

// As where a launcher says nothing of numbers on a machine: all say so, whoever finds it.
TEST(RunRanks, TwoOfOneDeviceAreRefused) {
  for (const bool same : {false, true}) {
    std::atomic<int> refused{0};
    on_run_ranks(3, [&](RunRanks& ranks) {
      const std::string device =
          "GPU 0000:99:00." + std::to_string(same && ranks.rank() == 2 ? 0 : ranks.rank());
      const auto check = [&] { ranks.check_devices(device); };
      if (!same) return check();
      ++refused;
      test::expect_error(ErrorCode::usage,
                         {"a GPU of its own for every rank", "GPU 0000:99:00.0 of ",
                          " for ranks 0 and 2", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"},
                         check);
    });
    EXPECT_EQ(refused, same ? 3 : 0);
  }
  // Those that have none of their own.
  on_run_ranks(2, [](RunRanks& ranks) { ranks.check_devices(""); });
}

}  // namespace
}  // namespace snug
