#include "tools/checkpoint/sign_thread.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "engine/core/error.h"
#include "engine/device/worker_thread.h"

namespace snug {

SignThread::SignThread(std::function<void()> go_on) : go_on_(std::move(go_on)) {
  if (const std::error_code refused = start_worker(thread_, [this] { work(); }))
    fail(ErrorCode::device, "a thread that tells other ranks that this one goes on",
         refused.message(), "fewer processes of this user (ulimit -u)");
}

SignThread::~SignThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void SignThread::set(int more) {
  {
    const std::lock_guard lock(mutex_);
    lasting_ += more;
  }
  wake_.notify_all();
}

void SignThread::work() {
  constexpr std::chrono::milliseconds kPause(100);
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (lasting_ == 0) {
      wake_.wait(lock);
      continue;
    }
    lock.unlock();
    go_on_();
    lock.lock();
    wake_.wait_for(lock, kPause, [&] { return ends_ || lasting_ == 0; });
  }
}

}  // namespace snug
