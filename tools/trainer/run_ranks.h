// RunRanks: this process among the ranks of a run: what they settle with each other between programs.
// Rank 0 leads: it speaks, writes the run's files and decides what the clock and signals decide. The
// others follow: each keeps its own plan, log and memory.json in output_dir/ranks/N.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "engine/core/error.h"
#include "layers/tasks/preference.h"
#include "parallel/group.h"
#include "parallel/rank_comm.h"
#include "tools/config/run_config.h"
#include "tools/setup/rank_setup.h"

namespace snug {

// Below output_dir.
inline constexpr const char* kRanksFolder = "ranks";

class RunRanks {
 public:
  // Of a process that launch_ranks() or another launcher started; null: there is one rank.
  static std::unique_ptr<RunRanks> here(const RunConfig& config);
  // Which of how many ranks of this machine it is; nccl: tensors are on devices.
  RunRanks(std::unique_ptr<Group> group, int local_rank, int local_size, bool nccl);
  ~RunRanks();

  bool leads() const { return group_->rank() == 0; }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  // First of all: what moves tensors is there. Throws usage as its library does.
  void open();
  Comm* comm() { return &*comm_; }
  int arena_file() const { return nccl_ ? -1 : group_->arena_file(); }

  // All ranks are here.
  void meet(const char* what) { group_->barrier(what); }
  // While one lives the others know that this rank goes on with what they wait for, however long that takes,
  // and whoever is gone meanwhile is named to them. Before programs: its thread takes memory.
  class Alive {
   public:
    explicit Alive(Group& group);
    ~Alive();
    Alive(const Alive&) = delete;
    Alive& operator=(const Alive&) = delete;

   private:
    Group& group_;
    std::mutex mutex_;
    std::condition_variable wake_;
    bool ends_ = false;
    std::thread thread_;
  };
  // All ranks have the same text, such as the hash of a plan. Throws collective.
  void same(const char* what, const std::string& text);
  Group& group() { return *group_; }
  // What this rank has of its machine.
  RankRoom share_machine() { return snug::share_machine(*group_, local_rank_, local_size_); }
  // No two ranks have one device: `device` says which it is on its machine; empty: none of its own. Throws
  // usage.
  void check_devices(const std::string& device);
  // All ranks see what rank 0, which made it, writes to `folder` of output_dir, within kSharedSeconds. Throws
  // usage.
  static constexpr double kSharedSeconds =
      60;  // as long as NFS may show what was there before (acregmax)
  void check_shared(const std::string& folder);
  // The leading rank's text, of 500 bytes at most.
  std::string from_lead(const char* what, const std::string& text);
  // What a step ends with: whether a signal came to anybody, to stop or for a checkpoint; by rank 0
  // whether it is the last, and the seconds that the schedule counts.
  struct Step {
    bool stop = false, last = false, save = false;
    double elapsed = 0;
  };
  Step agree(const Step& mine);
  // What all ranks have seen of a step's pairs, added in their order.
  PreferenceSums sum(const PreferenceSums& mine);

  // Throws collective if a rank has given up: what was computed since may be nothing.
  void check() { group_->check(); }
  // This rank goes on with what others wait for. From any thread.
  void go_on() { group_->go_on(); }
  // Which rank is gone or has given up, or did not go on with `what`, for which `awaited` is waited since
  // `began`, within ddp_timeout; and why; empty: none. From any thread.
  std::string broken(int awaited, const char* what, double began);

  // This rank ends with `error`: the others are told, unless one of them was first. Returns the exit code
  // of a rank that follows; rank 0 throws it.
  int end(const Error& error);
  void give_up(const std::string& why) { group_->give_up(why); }
  // The same, at the end of this process.
  void fail_run(const std::string& why);

 private:
  // Of ranks that another launcher started, behind a bad end: rank 0 has ended too, with what it has to say,
  // or this takes no longer than kMercy. False: it cannot say it.
  bool await_lead();

  std::unique_ptr<Group> group_;
  int local_rank_, local_size_;
  bool nccl_;
  std::unique_ptr<Transport> transport_;
  std::optional<RankComm> comm_;
};

}  // namespace snug
