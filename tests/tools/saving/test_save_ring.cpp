// The ring through which checkpoints are written: what reaches the files is what was there when the
// job began, whatever updates do meanwhile; waiting, helping, errors, the end.
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/error.h"
#include "tools/checkpoint/save_ring.h"

namespace snug {
namespace {

using std::chrono::milliseconds;

// Parameters of some numbers each; parameter i goes to file i % 2.
class Numbers final : public SaveJob {
 public:
  explicit Numbers(const std::vector<int64_t>& sizes) {
    for (const int64_t n : sizes) {
      values_.emplace_back(static_cast<size_t>(n));
      for (int32_t& v : values_.back()) v = next_++;
    }
  }

  Piece gather(char* out, int64_t room) override {
    EXPECT_FALSE(gathering_.exchange(true)) << "one thread at a time";
    EXPECT_FALSE(thrown_) << "not again after an error";
    if (param_ >= throw_at_) {
      thrown_ = true;
      gathering_ = false;
      fail(ErrorCode::device, "to copy", "the device is lost", "another device");
    }
    Piece piece;
    while (param_ < params() && at_ == size(param_)) next_param();
    if (param_ < params()) {
      const int64_t n = std::min(room / 4, size(param_) - at_);
      std::memcpy(out, values_[static_cast<size_t>(param_)].data() + at_,
                  static_cast<size_t>(n * 4));
      at_ += n;
      piece = {static_cast<int>(param_ % 2), n * 4};
      if (at_ == size(param_)) next_param();
    }
    gathering_ = false;
    return piece;
  }
  int64_t gathered() const override { return param_; }
  void write(int file, const char* data, int64_t bytes) override {
    if (slow_ > milliseconds(0)) std::this_thread::sleep_for(slow_);
    while (held_) std::this_thread::sleep_for(milliseconds(1));
    files_[file].append(data, static_cast<size_t>(bytes));
    if (fail_after_ >= 0 && static_cast<int64_t>(files_[0].size() + files_[1].size()) > fail_after_)
      fail(ErrorCode::device, "to write", "No space left on device", "free some");
  }
  void finish() override {
    if (fail_at_end_) fail(ErrorCode::device, "to sync", "Input/output error", "another disk");
    finished_ = true;
  }

  // As an update: every parameter is changed, in this order, as soon as the gate lets it.
  void change(UpdateGate& gate, int64_t first, int64_t step, int add) {
    for (int64_t p = first; p < params(); p += step) {
      gate.pass(p);
      for (int32_t& v : values_[static_cast<size_t>(p)]) v += add;
    }
  }
  // What the files hold of a job that began when the numbers were `add` above their first.
  std::string wanted(int file, int add) const {
    std::string bytes;
    int32_t value = 1;
    for (int64_t p = 0; p < params(); ++p)
      for (int64_t i = 0; i < size(p); ++i, ++value) {
        const int32_t v = value + add;
        if (p % 2 == file) bytes.append(reinterpret_cast<const char*>(&v), 4);
      }
    return bytes;
  }
  void again() {
    param_ = at_ = 0;
    files_[0].clear();
    files_[1].clear();
    finished_ = thrown_ = false;
  }
  int64_t params() const { return static_cast<int64_t>(values_.size()); }
  int64_t size(int64_t p) const {
    return static_cast<int64_t>(values_[static_cast<size_t>(p)].size());
  }

  std::string files_[2];
  std::atomic<bool> finished_{false}, held_{false};
  milliseconds slow_{0};
  int64_t fail_after_ = -1;
  bool fail_at_end_ = false;
  int64_t throw_at_ = INT64_MAX;  // a parameter that cannot be gathered

 private:
  void next_param() {
    ++param_;
    at_ = 0;
  }
  std::vector<std::vector<int32_t>> values_;
  int32_t next_ = 1;
  int64_t param_ = 0, at_ = 0;
  std::atomic<bool> gathering_{false}, thrown_{false};
};

const std::vector<int64_t> kSizes = {3000, 7,  0,  250000, 1,  1024, 1025, 90000,
                                     40,   40, 40, 40,     40, 40,   40,   40,
                                     40,   40, 40, 40,     40, 40,   40,   65536};

struct Memory {
  explicit Memory(int64_t bytes) : data(new char[static_cast<size_t>(bytes)]), size(bytes) {}
  std::unique_ptr<char[]> data;
  int64_t size;
};

TEST(SaveRing, WritesWhatWasThereWhenItBegan) {
  for (const int64_t bytes :
       {int64_t{4096}, int64_t{5000}, int64_t{300000}, int64_t{1} << 20, int64_t{1} << 24})
    for (const bool background : {true, false}) {
      const Memory memory(bytes);
      Numbers job(kSizes);
      SaveRing ring(memory.data.get(), memory.size, background);
      for (int round = 0; round < 4; ++round) {
        job.slow_ = milliseconds(round == 2 && bytes >= 300000 ? 1 : 0);
        job.again();
        ring.start(job);
        EXPECT_EQ(ring.busy() || job.finished_, true);
        // Two threads of an update, one from the front and one that begins in the middle.
        std::thread other([&] { job.change(ring, 1, 2, 1); });
        job.change(ring, 0, 2, 1);
        other.join();
        ring.wait();
        EXPECT_FALSE(ring.busy());
        ring.rethrow();
        EXPECT_TRUE(job.finished_);
        for (const int file : {0, 1})
          EXPECT_TRUE(job.files_[file] == job.wanted(file, round))
              << bytes << " background " << background << " round " << round;
      }
      if (!background) {
        EXPECT_EQ(ring.update_stall(), 0.0);
      }
    }
}

// A ring as large as the job: an update takes all of it while the disk stands still.
TEST(SaveRing, AnUpdateWaitsForTheDiskOnlyBeyondTheRing) {
  Numbers job(kSizes);
  const Memory large(int64_t{1} << 22);
  {
    SaveRing ring(large.data.get(), large.size, true);
    job.held_ = true;
    ring.start(job);
    job.change(ring, 0, 1, 1);  // ends although nothing was written
    EXPECT_TRUE(ring.busy());
    EXPECT_TRUE(job.files_[1].empty());
    job.held_ = false;
    ring.wait();
    ring.rethrow();
    EXPECT_TRUE(job.files_[1] == job.wanted(1, 0));
  }
  // A small one: it waits, and says how long.
  const Memory small(8192);
  SaveRing ring(small.data.get(), small.size, true);
  job.again();
  job.held_ = true;
  ring.start(job);
  std::atomic<bool> changed{false};
  std::thread update([&] {
    job.change(ring, 0, 1, 1);
    changed = true;
  });
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_FALSE(changed);
  job.held_ = false;
  update.join();
  ring.wait();
  EXPECT_GT(ring.update_stall(), 0.02);
  EXPECT_TRUE(job.files_[0] == job.wanted(0, 1));
  // Idle: nothing waits.
  const double before = ring.update_stall();
  job.change(ring, 0, 1, 1);
  EXPECT_EQ(ring.update_stall(), before);
}

TEST(SaveRing, AnErrorEndsTheJobAndHoldsNobodyUp) {
  for (const bool background : {true, false})
    for (const bool at_end : {true, false}) {
      const Memory memory(8192);
      Numbers job(kSizes);
      SaveRing ring(memory.data.get(), memory.size, background);
      job.fail_at_end_ = at_end;
      job.fail_after_ = at_end ? -1 : 100000;
      ring.start(job);
      std::thread other([&] { job.change(ring, 1, 2, 1); });
      job.change(ring, 0, 2, 1);
      other.join();
      ring.wait();
      try {
        ring.rethrow();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.found(), at_end ? "Input/output error" : "No space left on device");
      }
      ring.rethrow();  // once
      // And the next one is as good as the first.
      job.again();
      job.fail_after_ = -1;
      job.fail_at_end_ = false;
      ring.start(job);
      ring.wait();
      ring.rethrow();
      EXPECT_TRUE(job.files_[0] == job.wanted(0, 1));
    }
}

// What a device refuses is met by whoever gathers: the ring's thread, or an update that helps.
TEST(SaveRing, AnErrorOfGatherEndsTheJobToo) {
  for (const bool background : {true, false})
    for (const bool update : {true, false}) {
      if (update && !background) continue;  // there is nothing to help with
      const Memory memory(int64_t{1} << 22);
      Numbers job(kSizes);
      SaveRing ring(memory.data.get(), memory.size, background);
      job.throw_at_ = 5;
      job.held_ = update;  // the thread writes what it gathered first, and stands still
      ring.start(job);
      if (update) {
        job.change(ring, 0, 1, 1);
      } else {
        ring.wait();
      }
      job.held_ = false;
      ring.wait();
      EXPECT_FALSE(job.finished_);
      try {
        ring.rethrow();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.found(), "the device is lost");
      }
      job.again();
      job.throw_at_ = INT64_MAX;
      ring.start(job);
      ring.wait();
      ring.rethrow();
      EXPECT_TRUE(job.files_[0] == job.wanted(0, update ? 1 : 0));
    }
}

TEST(SaveRing, ItsEndDoesNotWaitForTheJob) {
  const Memory memory(8192);
  Numbers job(kSizes);
  job.slow_ = milliseconds(2);
  {
    SaveRing ring(memory.data.get(), memory.size, true);
    ring.start(job);
  }
  EXPECT_FALSE(job.finished_);
  { const SaveRing idle(memory.data.get(), memory.size, true); }
}

// A stack larger than the address space stands for a system that gives no thread.
TEST(SaveRing, WithoutAThreadItSaysSoAndSignalsComeAsBefore) {
  pthread_attr_t usual, huge;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 60), 0);
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const Memory memory(8192);
  try {
    const SaveRing ring(memory.data.get(), memory.size, true);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
    EXPECT_EQ(error.expected(), "a thread that writes checkpoints");
    EXPECT_NE(error.found(), "");
    EXPECT_NE(error.advice().find("save_buffer=0"), std::string::npos);
  }
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal)
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
  // Without a background none is asked for.
  { const SaveRing waits(memory.data.get(), memory.size, false); }
}

}  // namespace
}  // namespace snug
