#include "engine/core/threads.h"

#include <system_error>
#include <thread>
#include <vector>

namespace snug {

void run_on_threads(size_t count, const std::function<void(size_t)>& work) {
  std::vector<std::thread> threads;
  if (count > 1) threads.reserve(count - 1);
  for (size_t i = 1; i < count; ++i) {
    try {
      threads.emplace_back([&work, i] { work(i); });
    } catch (const std::exception&) {  // refused, or no memory for its state
      break;                           // what one was refused, the next would be as well
    }
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace snug
