// DeviceCalls: collectives that a device was given and has not done yet, oldest first, and since when it is
// at that one. Its time counts from when the stream comes to it, behind all that was put there before:
// what a device still has to compute is no rank's delay. Who uses it locks it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/device/device.h"

namespace snug {

class DeviceCalls {
 public:
  // A host is no further ahead: more than the events that a stream has in turn tell nothing.
  static constexpr int64_t kMost = 16;
  struct Oldest {
    const char* what;  // null: none
    double began;      // 0: the stream has not come to it
  };

  bool full() const { return end_ - begin_ == kMost; }
  // `first`: an event before it on the stream; -1: the stream is there.
  void add(const char* what, EventId first, double now) {
    at(end_++) = {what, first, kOpen, first < 0 ? now : 0};
  }
  // The last that was added is on its way: `last` is the event behind it; -1: it is done.
  void issued(EventId last) { at(end_ - 1).last = last; }
  // done(event): whether it has happened.
  template <class Done>
  Oldest look(double now, Done&& done) {
    while (begin_ < end_ &&
           (at(begin_).last == kDone || (at(begin_).last >= 0 && done(at(begin_).last))))
      ++begin_;
    if (begin_ == end_) return {nullptr, 0};
    Call& c = at(begin_);
    if (c.began == 0 && done(c.first)) c.began = now;
    return {c.what, c.began};
  }
  void clear() { begin_ = end_; }

 private:
  static constexpr EventId kDone = -1, kOpen = -2;  // of `last`
  struct Call {
    const char* what = "";
    EventId first = kDone, last = kOpen;
    double began = 0;
  };
  Call& at(int64_t i) { return calls_[static_cast<size_t>(i % kMost)]; }

  std::array<Call, kMost> calls_;
  int64_t begin_ = 0, end_ = 0;
};

}  // namespace snug
