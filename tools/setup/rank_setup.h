// What several ranks ask of a configuration, and what each of them keeps.
#pragma once

#include "tools/config/run_config.h"
#include "tools/planner/plan.h"
#include "tools/setup/targets.h"

namespace snug {

class Group;

// What a rank has of the machine that it is on. Without a group all ranks are on one.
struct RankRoom {
  int local_rank = 0;  // among the ranks of its machine
  int on_machine = 0;  // ranks there, of the machine that has most; 0: all
  // Of the processors that this process may use: what is left where others may use them too; 0: as much as
  // for any other.
  double share = 0;
  int threads = 0;  // that all ranks have for themselves; 0: not known
};

// Of a group: its ranks say which processors they may use. The others: of ForeignPlace.
RankRoom share_machine(Group& group, int local_rank, int local_size);
// The GPU of a rank: that of its number on its machine, of those that it sees.
int rank_gpu(const RunConfig& config, const RankRoom& room);

// Ranks that share this one's memory.
int ranks_on_machine(const RunConfig& config, const RankRoom& room);

// Threads of a rank: what was set, else the cores that this process may use, shared by those who may too.
int rank_threads(const RunConfig& config, const RankRoom& room = {});

// Sets what of a request several ranks leave no choice: of what a rank has only states go to its host. Throws
// usage and unsupported where a key asks for what they cannot have.
void settle_ranks(const RunConfig& config, PlanRequest& request);

// What joins `ranks` of a described device, set in its rates; says so.
std::string join_ranks(const RunConfig& config, const Target& target, int ranks, Rates& rates);

// zero: auto. The states are shared in any case: it takes no more traffic than sums that all keep, and
// each updates its piece alone. Gradients and weights only where memory asks for it, the host after these;
// where nothing fits, what needs least, of which a refusal speaks.
void choose_zero(PlanRequest& request);

// Throws usage if more ranks are to run than share a machine.
void check_running_ranks(const RunConfig& config);

// Whether ranks have their tensors on devices, between which NCCL moves them.
bool through_nccl(const RunConfig& config);
// Whether ranks tell each other things, and without NCCL exchange tensors, by MPI's messages instead of memory
// that they share: transport, and where it is no other's what a launcher said of this process. Throws as
// foreign_place().
bool through_mpi(const RunConfig& config);

// Throws usage where `config` asks for MPI and this process was started by itself.
void check_launcher(const RunConfig& config);

// The ranks of another launcher, as it `said`, are those of the run. Throws usage if `config` says others.
void adopt_ranks(RunConfig& config, int ranks, const std::string& said);

// Throws usage if `config` asks for several ranks: snug `command` runs in one process.
void refuse_ranks(const RunConfig& config, const char* command);

}  // namespace snug
