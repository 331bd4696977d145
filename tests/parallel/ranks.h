// Ranks as threads of the test, each with its group.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "parallel/local_group.h"

namespace snug::test {

// f(rank, group) on a thread of its own for every rank.
inline void on_ranks(int size, const std::function<void(int, LocalGroup&)>& f,
                     double timeout = 60) {
  const std::vector<std::unique_ptr<LocalGroup>> groups = LocalGroup::of_threads(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    groups[static_cast<size_t>(r)]->set_timeout(timeout);
    threads.emplace_back([&, r] { f(r, *groups[static_cast<size_t>(r)]); });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace snug::test
