#include "parallel/nccl_transport.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/device/beside.h"
#include "engine/device/worker_thread.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/memory/context.h"
#include "parallel/rank_sum_simt.h"

namespace snug {

int64_t nccl_bytes(int ranks) {
  constexpr int64_t kMiB = 1 << 20, kChannels = 16, kRing = kMiB * 46 / 5, kPeer = kMiB * 9 / 2;
  const int64_t peers = std::min(ranks, kMostRanks) - 1;
  return 96 * kMiB + kChannels * kRing + std::max(kChannels, 2 * peers) * kPeer;
}

NcclTransport::NcclTransport(Group& group, Events events)
    : group_(group), nccl_(NcclLibrary::load()), events_(std::move(events)) {
  group_.barrier("the version of NCCL", static_cast<uint64_t>(nccl_.version()));
}

void NcclTransport::detach() noexcept {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  if (watch_.joinable()) watch_.join();
  if (comm_ == nullptr) return;
  if (group_.given_up()) return end_device();
  // In order where all come here; it waits for nobody that does not.
  int state = nccl_.finish(comm_) == NcclLibrary::kSuccess ? NcclLibrary::kInProgress : -1;
  constexpr double kSeconds = 5;
  for (const double until = monotonic_seconds() + kSeconds;
       state == NcclLibrary::kInProgress && monotonic_seconds() < until;) {
    if (nccl_.state(comm_, state) != NcclLibrary::kSuccess) state = -1;
    if (state == NcclLibrary::kInProgress) usleep(100);
  }
  if (state == NcclLibrary::kSuccess)
    nccl_.destroy(comm_);
  else
    nccl_.abort(comm_);
  comm_ = nullptr;
}

void NcclTransport::broken(const char* what, int result) {
  group_.give_up(fmt::format("NCCL at {}: {}", what, nccl_.words(result)));
  group_.check();
  std::abort();  // it throws
}

template <class F>
void NcclTransport::call(Context& ctx, const char* what, F&& f) {
  const Context::AtWork work(ctx);
  int result = NcclLibrary::kSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) result = f(ctx.device().native_stream(stream_));
  }
  if (result != NcclLibrary::kSuccess && result != NcclLibrary::kInProgress) broken(what, result);
  settle(what);
}

void NcclTransport::settle(const char* what) {
  for (int64_t looks = 0;; ++looks) {
    int state = NcclLibrary::kSuccess, result = NcclLibrary::kSuccess;
    bool there = false;
    {
      const std::lock_guard lock(mutex_);
      there = comm_ != nullptr;
      if (there) result = nccl_.state(comm_, state);
    }
    if (!there) group_.check();  // it was ended by the watch
    if (result != NcclLibrary::kSuccess) broken(what, result);
    if (state == NcclLibrary::kSuccess) return;
    if (state != NcclLibrary::kInProgress) broken(what, state);
    constexpr int64_t kBusy = 200;
    if (looks > kBusy) usleep(20);
  }
}

// The hosts issue what all issue.
void NcclTransport::meet(const char* what, int64_t bytes) {
  group_.barrier(what, static_cast<uint64_t>(bytes));
  const EventId first = record();
  const auto take = [&] {
    const std::lock_guard lock(mutex_);
    calls_.look(monotonic_seconds(), events_.done);
    if (calls_.full()) return false;
    calls_.add(what, first, monotonic_seconds());
    return true;
  };
  while (!take()) {
    group_.check();
    usleep(100);
  }
}

void NcclTransport::attach(Context& ctx, std::byte* arena, int64_t bytes) {
  NcclLibrary::Id id{};
  if (rank() == 0)
    if (const int result = nccl_.make_id(id); result != NcclLibrary::kSuccess)
      broken("a name for its ranks", result);
  std::vector<NcclLibrary::Id> ids(static_cast<size_t>(size()));
  group_.exchange("the name of NCCL's ranks", ids.data(), id.data(),
                  static_cast<int64_t>(id.size()));
  if (!events_.done) events_.done = [](EventId) { return true; };
  if (Device* device = &ctx.device(); !events_.record && ctx.place() == Place::cuda)
    events_ = {[this, device] { return device->record_event(stream_); },
               [device](EventId event) { return event_done(*device, event); }};
  calls_.clear();
  meet("attach", bytes);
  ends_ = false;
  const std::error_code refused = start_worker(watch_, [this] { watch(); });
  if (refused)
    fail(ErrorCode::device, "a thread that watches ranks", refused.message(),
         "fewer processes of this user (ulimit -u)");
  int result;
  {
    const std::lock_guard lock(mutex_);
    result = nccl_.begin(comm_, size(), ids[0], rank());
  }
  if (result != NcclLibrary::kSuccess && result != NcclLibrary::kInProgress)
    broken("attach", result);
  settle("attach");
  // Its buffers are made when ranks first exchange something: before the first step, in memory that
  // nothing is in yet.
  constexpr int64_t kMost = 1 << 20;
  const int64_t n = std::min(kMost, bytes / (2 * size()));
  if (n > 0) {
    call(ctx, "attach", [&](void* stream) {
      return nccl_.all_gather(arena + size() * n, arena, n, comm_, stream);
    });
    swap(ctx, "attach", arena, n, arena + size() * n, n, n);
  }
  issued();
  ctx.device().wait_event(kCompute, ctx.device().record_event(stream_));  // who writes there next
}

// On a GPU a call is over when its stream says so.
void NcclTransport::issued() {
  const EventId last = record();
  const std::lock_guard lock(mutex_);
  calls_.issued(last);
}

// Of each other rank n bytes into `room`, i behind this one in place i - 1; and to each what is its own of
// spans that are `each` bytes apart.
void NcclTransport::swap(Context& ctx, const char* what, std::byte* room, int64_t chunk,
                         const std::byte* spans, int64_t each, int64_t n) {
  call(ctx, what, [&](void* stream) {
    int result = nccl_.group_begin();
    const auto also = [&](int one) {
      if (result == NcclLibrary::kSuccess || result == NcclLibrary::kInProgress) result = one;
    };
    for (int i = 1; i < size(); ++i) {
      const int from = (rank() + i) % size(), to = (rank() + size() - i) % size();
      also(nccl_.receive(room + (i - 1) * chunk, n, from, comm_, stream));
      also(nccl_.send(spans + to * each, n, to, comm_, stream));
    }
    also(nccl_.group_end());
    return result;
  });
}

void NcclTransport::all_gather(Context& ctx, const View& full, const View& mine) {
  meet("all_gather", full.bytes());
  if (mine.bytes() > 0)
    call(ctx, "all_gather", [&](void* stream) {
      return nccl_.all_gather(mine.data, full.data, mine.bytes(), comm_, stream);
    });
  issued();
}

void NcclTransport::reduce_scatter_sum(Context& ctx, const GradView& mine, const View& full,
                                       const View& staging) {
  meet("reduce_scatter", full.bytes());
  const int64_t piece = mine.view.elements(), element = size_of(full.dtype);
  const auto [chunk, halves] = staging_of(piece, element, size());
  require(size() == 1 || staging.elements() >= halves * (size() - 1) * chunk,
          "room for what others send");
  const auto* const from = static_cast<const std::byte*>(full.data);
  auto* const room = static_cast<std::byte*>(staging.data);
  const View own = mine.view.reshaped({piece});
  for (int64_t k = 0; k * chunk < piece; ++k) {
    const int64_t begin = k * chunk, n = std::min(chunk, piece - begin);
    std::byte* const half = room + (k % halves) * (size() - 1) * chunk * element;
    if (size() > 1)
      swap(ctx, "reduce_scatter", half, chunk * element, from + begin * element, piece * element,
           n * element);
    const std::byte* parts[kMostRanks];
    parts[rank()] = from + (rank() * piece + begin) * element;
    for (int i = 1; i < size(); ++i)
      parts[(rank() + i) % size()] = half + (i - 1) * chunk * element;
    on_queue(
        ctx,
        [&, n = n](auto& queue) {
          sum_ranks_on(queue, {own.rows(begin, n), mine.add}, parts, size());
        },
        stream_);
  }
  issued();
}

// On a thread of its own: while something is awaited, who is gone, who stands still, and what NCCL says.
void NcclTransport::watch() {
  double beat = 0;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    wake_.wait_for(lock, std::chrono::milliseconds(50));
    if (ends_) continue;
    const auto [what, began] = calls_.look(monotonic_seconds(), events_.done);
    if (what == nullptr) continue;
    int state = NcclLibrary::kSuccess;
    if (comm_ != nullptr)
      if (const int asked = nccl_.state(comm_, state); asked != NcclLibrary::kSuccess)
        state = asked;
    const double now = monotonic_seconds(), timeout = group_.timeout();
    lock.unlock();
    if (state != NcclLibrary::kSuccess && state != NcclLibrary::kInProgress)
      group_.give_up(fmt::format("NCCL at {}: {}", what, nccl_.words(state)));
    for (int r = 0; r < size(); ++r)
      if (r != rank()) group_.look_after(r);
    if (now - beat > std::min(0.25, timeout / 8)) {
      beat = now;
      group_.go_on();
    }
    if (began > 0) {
      for (int r = 0; now - began > timeout && r < size(); ++r)
        if (r != rank()) group_.look_after(r, what, began);
      // All processes go on, and one of the devices does not: which, none of the others can see.
      if (now - began > 1.25 * timeout + 1)
        group_.give_up(
            fmt::format("{} did not end on the devices within {:.3g} s, while all processes go on",
                        what, timeout));
    }
    if (group_.given_up()) return end_device();
    lock.lock();
  }
}

// What waits on the device for others ends too.
void NcclTransport::end_device() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) nccl_.abort(comm_);
  comm_ = nullptr;
}

}  // namespace snug
