// SignThread: tells others that this rank goes on while something lasts that tells nothing itself: a disk
// that makes a file durable is one step, of whatever length. Its thread is made with it and takes no memory
// later.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace snug {

class SignThread {
 public:
  // Throws device where the system gives no thread.
  explicit SignThread(std::function<void()> go_on);
  ~SignThread();
  SignThread(const SignThread&) = delete;
  SignThread& operator=(const SignThread&) = delete;

  // While one lives, on any thread; null: nobody is told.
  class During {
   public:
    explicit During(SignThread* signs) : signs_(signs) {
      if (signs_) signs_->set(1);
    }
    ~During() {
      if (signs_) signs_->set(-1);
    }
    During(const During&) = delete;
    During& operator=(const During&) = delete;

   private:
    SignThread* signs_;
  };

 private:
  void set(int more);
  void work();

  std::function<void()> go_on_;
  std::mutex mutex_;
  std::condition_variable wake_;
  int lasting_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace snug
