// A thread of ours beside the one that issues programs.
#pragma once

#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>

namespace snug {

// Starts `work` in `thread`, where no signal meets it: signals are the main thread's. What the
// system refused it with (limits on processes, no memory for its stack), or no error.
template <class F>
[[nodiscard]] std::error_code start_worker(std::thread& thread, F&& work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited
  std::error_code refused;
  try {
    thread = std::thread(std::forward<F>(work));
  } catch (const std::system_error& error) {
    refused = error.code();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return refused;
}

}  // namespace snug
