#include "parallel/mpi_group.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>

#include "engine/core/error.h"
#include "engine/device/processors.h"
#include "engine/memory/context.h"
#include "parallel/mpi_transport.h"

namespace snug {
namespace {

enum MessageTag { kNoteTag = 1, kSignalTag, kTensorTag };

// Of the machine and of its process numbers, which a container may have of its own.
std::array<char, 96> machine() {
  std::array<char, 96> text{};
  boot_id().copy(text.data(), 47);
  if (readlink("/proc/self/ns/pid", text.data() + 48, 47) < 0) text[48] = '?';
  return text;
}

// Between two looks. Others may want the processor, above all who is awaited; a process that sleeps gets
// its own sooner again than one that only yields it.
void rest(int64_t looks) {
  constexpr int64_t kBusy = 50, kBriefly = 1000;
  if (looks >= kBusy) usleep(looks < kBriefly ? 10 : 200);
}

}  // namespace

MpiGroup::MpiGroup(int rank, int size)
    : Group(rank, size), mpi_(MpiLibrary::start(rank, size)), peers_(static_cast<size_t>(size)) {
  require(size <= kMostRanks, "1 to 64 ranks");
  prctl(PR_SET_TIMERSLACK,
        1000);  // ns that a sleep of this thread may be longer; usually 50 times that
  for (int r = 0; r < size; ++r) {
    Peer& p = peers_[static_cast<size_t>(r)];
    p.note_in = p.note_out[0] = p.note_out[1] = mpi_.none();
    p.signal_in = p.beat_out = p.end_out = mpi_.none();
    if (r == rank) continue;
    p.note_in = mpi_.receive(&p.next, sizeof(Note), r, kNoteTag);
    p.signal_in = mpi_.receive(&p.signal, sizeof(Signal), r, kSignalTag);
  }
  struct Home {
    std::array<char, 96> machine;
    int64_t pid;
  } all[kMostRanks];
  const Home own{machine(), getpid()};
  exchange("the start", all, &own, sizeof own);
  for (int r = 0; r < size; ++r)
    if (r != rank && all[r].machine == own.machine)
      peers_[static_cast<size_t>(r)].pid = static_cast<int>(all[r].pid);
  go_on();  // once
  voice_ = std::thread([this] { speak(); });
}

MpiGroup::~MpiGroup() {
  {
    const Lock lock(mutex_);
    leaves_ = true;
  }
  wake_.notify_all();
  voice_.join();
  try {
    if (given_up()) return;
    barrier("the end");
    for (Peer& p : peers_) {
      mpi_.cancel(p.note_in);
      mpi_.cancel(p.signal_in);
    }
    mpi_.finish();
  } catch (const std::exception&) {  // the exit of the process ends the others
  }
}

std::unique_ptr<Transport> MpiGroup::transport() {
  return std::make_unique<MpiTransport>(*this);
}

// What has come out of turn; what it says of an end stays if it is the first.
void MpiGroup::read_signals() {
  for (Peer& p : peers_) {
    if (p.signal_in == mpi_.none()) continue;
    while (mpi_.test(p.signal_in)) {
      p.went_on = monotonic_seconds();
      const int from = static_cast<int>(&p - peers_.data());
      if (p.signal.kind == Signal::Kind::gave_up) settle(p.signal.rank, p.signal.why.data(), from);
      p.signal_in = mpi_.receive(&p.signal, sizeof(Signal), from, kSignalTag);
    }
  }
}

// Whether all have come to this turn.
bool MpiGroup::read_notes() {
  bool all = true;
  for (Peer& p : peers_) {
    const int from = static_cast<int>(&p - peers_.data());
    if (from == rank() || p.here) continue;
    if (mpi_.test(p.note_in)) {
      p.note = p.next;
      p.here = true;
      p.note_in = mpi_.receive(&p.next, sizeof(Note), from, kNoteTag);
    }
    all = all && p.here;
  }
  return all;
}

// What this rank tells of is for the others, who hear of it where they wait.
void MpiGroup::settle(int who, const std::string& why, int teller) noexcept {
  if (given_up_by_ >= 0) return;
  given_up_by_ = who;
  told_by_ = teller;
  reason_ = fmt::format("rank {}: {}", who, why);
  if (teller != rank()) return;
  end_.kind = Signal::Kind::gave_up;
  end_.rank = who;
  end_.why.fill('\0');
  std::memcpy(end_.why.data(), why.data(), std::min(why.size(), end_.why.size() - 1));
  try {
    for (int r = 0; r < size(); ++r)
      if (r != rank())
        peers_[static_cast<size_t>(r)].end_out = mpi_.send(&end_, sizeof end_, r, kSignalTag);
    // Small messages are on their way at once; one is done when somebody else has taken care of it.
    const double until = monotonic_seconds() + 1;
    for (bool done = false; !done && monotonic_seconds() < until;) {
      done = true;
      for (Peer& p : peers_) done = mpi_.test(p.end_out) && done;
    }
  } catch (const std::exception&) {  // they find this process gone
  }
}

void MpiGroup::give_up(const std::string& why) noexcept {
  const Lock lock(mutex_);
  settle(rank(), why, rank());
}

void MpiGroup::go_on() noexcept {
  went_on_.store(true, std::memory_order_relaxed);
}

// On a thread of its own, which is there from the start: what MPI takes for a thread is taken before the
// first step, and signals come while this rank computes.
void MpiGroup::speak() {
  double beat = 0;
  Lock lock(mutex_);
  while (!leaves_) {
    wake_.wait_for(lock, std::chrono::milliseconds(50));
    try {
      read_signals();
      if (monotonic_seconds() - beat < std::min(0.25, timeout_ / 8)) continue;
      if (!went_on_.exchange(false, std::memory_order_relaxed)) continue;
      beat = monotonic_seconds();
      for (int r = 0; r < size(); ++r) {
        Peer& p = peers_[static_cast<size_t>(r)];
        if (r != rank() && mpi_.test(p.beat_out))
          p.beat_out = mpi_.send(&beat_, offsetof(Signal, why), r, kSignalTag);
      }
    } catch (const Error& error) {
      settle(rank(), error.what(), rank());
    }
  }
}

bool MpiGroup::overdue(const Peer& peer, double began) const {
  return monotonic_seconds() - std::max(began, peer.went_on) > timeout_;
}

void MpiGroup::look_after(int rank) noexcept {
  const Lock lock(mutex_);
  const int pid = peers_[static_cast<size_t>(rank)].pid;
  if (pid > 0 && process_gone(pid))
    settle(rank, fmt::format("its process {} is gone", pid), this->rank());
}

void MpiGroup::look_after(int rank, const char* what, double began) noexcept {
  look_after(rank);
  const Lock lock(mutex_);
  if (overdue(peers_[static_cast<size_t>(rank)], began))
    settle(rank, fmt::format("it did not go on with {} within {:.0f} s", what, timeout()),
           this->rank());
}

void MpiGroup::await_end(int rank, double seconds) noexcept {
  const int pid = peers_[static_cast<size_t>(rank)].pid;
  const double until = monotonic_seconds() + seconds;
  while ((pid == 0 || !process_gone(pid)) && monotonic_seconds() < until) usleep(10'000);
}

int MpiGroup::who_gave_up() const {
  const Lock lock(mutex_);
  return given_up_by_;
}

int MpiGroup::who_told() const {
  const Lock lock(mutex_);
  return told_by_;
}

std::string MpiGroup::reason() const {
  const Lock lock(mutex_);
  return reason_;
}

template <class Done, class Late>
void MpiGroup::wait(const char* what, Done done, Late late) {
  double began = monotonic_seconds(), looked = began;
  for (int64_t looks = 0;; ++looks) {
    {
      Lock lock(mutex_);
      if (done()) return;
      read_signals();
      if (given_up_by_ >= 0) {
        lock.unlock();
        throw_given_up();
      }
      const double now = monotonic_seconds();
      if (now - looked > 0.02) {
        looked = now;
        for (int r = 0; r < size(); ++r) {
          const Peer& p = peers_[static_cast<size_t>(r)];
          if (r == rank() || !late(r)) continue;
          const char* const last = p.note.turn > 0 ? p.note.what.data() : "the start";
          if (p.pid > 0 && process_gone(p.pid)) settle(r, gone_text(p.pid, last), rank());
          if (overdue(p, began)) settle(r, late_text(what, last), rank());
        }
      }
    }
    rest(looks);
  }
}

void MpiGroup::barrier(const char* what, uint64_t tag) {
  exchange(what, nullptr, &tag, 0);
}

void MpiGroup::exchange(const char* what, void* out, const void* mine, int64_t bytes) {
  require(bytes <= kMostExchanged, "a note of few bytes");
  // A barrier has no bytes, and its tag where they would be.
  uint64_t tag = static_cast<uint64_t>(bytes);
  if (out == nullptr) std::memcpy(&tag, mine, sizeof tag);
  const int64_t turn = ++turn_;
  Note& own = mine_[static_cast<size_t>(turn & 1)];
  // Who has come to the turn before last has what was sent in it; MPI may not have noticed yet.
  wait(
      what,
      [&] {
        bool sent = true;
        for (Peer& p : peers_) sent = mpi_.test(p.note_out[turn & 1]) && sent;
        return sent;
      },
      [&](int r) { return peers_[static_cast<size_t>(r)].note_out[turn & 1] != mpi_.none(); });
  own.turn = turn;
  own.tag = tag;
  own.what.fill('\0');
  std::strncpy(own.what.data(), what, kMostWhat);
  if (out) std::memcpy(own.bytes.data(), mine, static_cast<size_t>(bytes));
  {
    const Lock lock(mutex_);
    const int64_t all = static_cast<int64_t>(offsetof(Note, bytes)) + (out ? bytes : 0);
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      peers_[static_cast<size_t>(r)].note_out[turn & 1] = mpi_.send(&own, all, r, kNoteTag);
    }
  }
  wait(
      what, [&] { return read_notes(); },
      [&](int r) { return !peers_[static_cast<size_t>(r)].here; });
  const Lock lock(mutex_);
  for (int r = 0; r < size(); ++r) {
    Peer& p = peers_[static_cast<size_t>(r)];
    const Note& note = r == rank() ? own : p.note;
    p.here = false;
    if (note.turn != turn || note.tag != tag || note.what != own.what) {
      const std::string found = apart_text(what, tag, r, note.what.data(), note.tag, turn);
      settle(rank(), found, rank());
      throw_apart(found);
    }
    if (out)
      std::memcpy(static_cast<char*>(out) + r * bytes, note.bytes.data(),
                  static_cast<size_t>(bytes));
  }
}

MpiGroup::Request MpiGroup::send(const void* data, int64_t bytes, int to) {
  const Lock lock(mutex_);
  return mpi_.send(data, bytes, to, kTensorTag);
}

MpiGroup::Request MpiGroup::receive(void* data, int64_t bytes, int from) {
  const Lock lock(mutex_);
  return mpi_.receive(data, bytes, from, kTensorTag);
}

void MpiGroup::await_all(const char* what, Request* requests, const int* peers, int count) {
  int left = 0;
  for (int i = 0; i < count; ++i) left += requests[i] != mpi_.none();
  wait(
      what,
      [&] {
        while (left > 0 && mpi_.test_any(requests, count) >= 0) --left;
        return left == 0;
      },
      [&](int r) {
        for (int i = 0; i < count; ++i)
          if (peers[i] == r && requests[i] != mpi_.none()) return true;
        return false;
      });
}

}  // namespace snug
