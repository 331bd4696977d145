#include "tools/checkpoint/save_ring.h"

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/worker_thread.h"
#include "engine/memory/context.h"

namespace snug {

SaveRing::SaveRing(char* memory, int64_t bytes, bool background) : memory_(memory) {
  require(bytes >= kLeastBytes, "a ring of at least kLeastBytes");
  slot_bytes_ = std::min(bytes, std::max(kSlotBytes, ceil_div(bytes, kMostSlots)));
  slots_.resize(static_cast<size_t>(bytes / slot_bytes_));
  if (!background) return;
  if (const std::error_code refused = start_worker(thread_, [this] { work(); }))
    fail(ErrorCode::device, "a thread that writes checkpoints", refused.message(),
         "raise the limits of the process (ulimit -u, ulimit -v), or save_buffer=0: training then "
         "waits while a checkpoint is written");
}

SaveRing::~SaveRing() {
  if (!thread_.joinable()) return;
  {
    const Lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SaveRing::start(SaveJob& job) {
  Lock lock(mutex_);
  require(!busy(), "one job at a time");
  job_ = &job;
  filled_ = emptied_ = 0;
  filling_ = ended_ = false;
  error_ = nullptr;
  passed_.store(job.gathered(), std::memory_order_release);
  busy_.store(true, std::memory_order_release);
  if (thread_.joinable()) {
    changed_.notify_all();
    return;
  }
  try {
    drain(lock);
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    error_ = std::current_exception();
  }
  end_job();
}

void SaveRing::wait() {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return !busy(); });
}

void SaveRing::rethrow() {
  std::exception_ptr error;
  {
    const Lock lock(mutex_);
    require(!busy(), "rethrow() after the job's end");
    std::swap(error, error_);
  }
  if (error) std::rethrow_exception(error);
}

void SaveRing::pass(int64_t param) {
  if (passed_.load(std::memory_order_acquire) > param) return;
  Lock lock(mutex_);
  if (waiting_++ == 0) stall_began_ = monotonic_seconds();
  while (passed_.load(std::memory_order_acquire) <= param) {
    const bool room = filled_ - emptied_ < static_cast<int64_t>(slots_.size());
    // After an error nothing more is gathered: what is on its way comes to an end.
    if (!room || filling_ || ended_ || error_) {
      changed_.wait(lock);
      continue;
    }
    try {
      fill_slot(lock);
    } catch (...) {
      error_ = std::current_exception();
      passed_.store(INT64_MAX, std::memory_order_release);
      changed_.notify_all();
    }
  }
  // Of several threads that wait at once the time counts once.
  if (--waiting_ == 0) stall_ += monotonic_seconds() - stall_began_;
}

double SaveRing::update_stall() const {
  const Lock lock(mutex_);
  return stall_;
}

void SaveRing::work() {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || busy(); });
    if (stop_) return;
    try {
      drain(lock);
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      if (!error_) error_ = std::current_exception();
    }
    changed_.wait(lock, [&] { return !filling_; });
    if (stop_) return;
    end_job();
  }
}

void SaveRing::end_job() {
  ended_ = true;
  passed_.store(INT64_MAX, std::memory_order_release);
  busy_.store(false, std::memory_order_release);
  changed_.notify_all();
}

// What is full is written before more is gathered: free slots are for updates that wait.
void SaveRing::drain(Lock& lock) {
  while (!stop_ && !error_) {  // an update that gathers itself may meet one
    if (emptied_ < filled_) {
      empty_slot(lock);
    } else if (filling_) {
      changed_.wait(lock);
    } else if (!ended_) {
      fill_slot(lock);
    } else {
      lock.unlock();
      job_->finish();
      lock.lock();
      return;
    }
  }
}

void SaveRing::fill_slot(Lock& lock) {
  filling_ = true;
  const auto number = static_cast<size_t>(filled_) % slots_.size();
  lock.unlock();
  Slot& slot = slots_[number];
  char* const begin = memory_ + static_cast<int64_t>(number) * slot_bytes_;
  int64_t used = 0;
  bool more = true;
  slot.count = 0;
  // Small parameters share a slot.
  try {
    while (more && slot.count < kMostPieces &&
           (slot.count == 0 || slot_bytes_ - used >= kLeastBytes)) {
      const SaveJob::Piece piece = job_->gather(begin + used, slot_bytes_ - used);
      more = piece.bytes > 0;
      if (more) slot.pieces[slot.count++] = piece;
      used += round_up(piece.bytes, kPieceAlignment);
    }
  } catch (...) {
    lock.lock();
    filling_ = false;
    changed_.notify_all();
    throw;
  }
  lock.lock();
  filling_ = false;
  ended_ = !more;
  if (slot.count > 0) ++filled_;
  passed_.store(ended_ ? INT64_MAX : job_->gathered(), std::memory_order_release);
  changed_.notify_all();
}

void SaveRing::empty_slot(Lock& lock) {
  const auto number = static_cast<size_t>(emptied_) % slots_.size();
  lock.unlock();
  const char* data = memory_ + static_cast<int64_t>(number) * slot_bytes_;
  for (int i = 0; i < slots_[number].count; ++i) {
    const SaveJob::Piece& piece = slots_[number].pieces[i];
    job_->write(piece.file, data, piece.bytes);
    data += round_up(piece.bytes, kPieceAlignment);
  }
  lock.lock();
  ++emptied_;
  changed_.notify_all();
}

}  // namespace snug
