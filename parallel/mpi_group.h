// MpiGroup: ranks that Open MPI started, of one machine or of several, by messages alone.
//
//   note     what a rank says at a barrier, to each other one: call, tag, its own few bytes
//   signal   out of turn: it gave up and why; it goes on
//
// A thread of the group's own says that a rank goes on and hears what others say. No call of MPI's waits: everything is asked of again and again, by this process's own clock, with
// signals and the processes of this machine looked at in between. Of a process of another machine that
// has died its launcher says so, which ends all others.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/group.h"
#include "parallel/mpi_library.h"

namespace snug {

class MpiGroup final : public Group {
 public:
  // Of this process, as its launcher says; waits for all of them in MPI_Init_thread, as long as the
  // launcher lets it. Throws as MpiLibrary::start().
  MpiGroup(int rank, int size);
  // In order, with the others, unless somebody gave up.
  ~MpiGroup() override;

  std::unique_ptr<Transport> transport() override;
  int arena_file() const override { return -1; }
  void barrier(const char* what, uint64_t tag = 0) override;
  void exchange(const char* what, void* out, const void* mine, int64_t bytes) override;
  void give_up(const std::string& why) noexcept override;
  void go_on() noexcept override;
  void look_after(int rank) noexcept override;
  void look_after(int rank, const char* what, double began) noexcept override;
  void await_end(int rank, double seconds) noexcept override;
  int who_gave_up() const override;
  int who_told() const override;
  std::string reason() const override;

  // Of tensors: begun here, done when await_all() returns. To and from one rank in one order.
  using Request = MpiLibrary::Handle;
  Request none() const { return mpi_.none(); }
  Request send(const void* data, int64_t bytes, int to);
  Request receive(void* data, int64_t bytes, int from);
  // Until all of `count` are done, of which requests[i] is one with rank peers[i]. Throws collective as
  // barrier() does.
  void await_all(const char* what, Request* requests, const int* peers, int count);

 private:
  struct Note {
    int64_t turn = 0;
    uint64_t tag = 0;
    std::array<char, kMostWhat + 1> what{};
    std::array<char, kMostExchanged> bytes{};
  };
  struct Signal {
    enum class Kind : int32_t { goes_on, gave_up } kind = Kind::goes_on;
    int32_t rank = 0;  // who gave up
    std::array<char, 1024> why{};
  };
  // What is on its way from and to one other rank.
  struct Peer {
    Note note, next;  // of the turn that was awaited last, and what is being received
    Request note_in = nullptr, note_out[2] = {};
    Signal signal;  // likewise
    Request signal_in = nullptr, beat_out = nullptr, end_out = nullptr;
    bool here = false;   // its note of this turn has come
    double went_on = 0;  // by this process's clock
    int pid = 0;         // 0: of another machine
  };
  using Lock = std::unique_lock<std::mutex>;

  void speak();
  // Under a lock.
  void read_signals();
  bool read_notes();
  void settle(int rank, const std::string& why, int teller) noexcept;
  bool overdue(const Peer& peer, double began) const;
  // Until done(), looking after those for whom late(rank) is true.
  template <class Done, class Late>
  void wait(const char* what, Done done, Late late);

  MpiLibrary& mpi_;
  mutable std::mutex mutex_;
  std::vector<Peer> peers_;
  std::array<Note, 2> mine_;  // sent in a turn; the other one may be on its way still
  Signal beat_, end_;
  int64_t turn_ = 0;
  int given_up_by_ = -1, told_by_ = -1;
  std::string reason_;
  std::atomic<bool> went_on_{false};
  bool leaves_ = false;
  std::condition_variable wake_;
  std::thread voice_;
};

}  // namespace snug
