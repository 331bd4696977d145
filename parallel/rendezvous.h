// Ranks that another launcher started: torchrun, mpirun, mpiexec or srun, each of which says in variables
// of its own which of how many a process is. Those of one machine find each other by a socket that only
// they know the name of: rank 0 makes the shared memory and hands its files to the others.
//
//   launcher            rank, size, size on this machine
//   torchrun            RANK, WORLD_SIZE, LOCAL_WORLD_SIZE
//   Open MPI            OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE
//   MPICH, Intel MPI    PMI_RANK, PMI_SIZE, MPI_LOCALNRANKS
//   MVAPICH2            MV2_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE
//   srun                SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NUM_NODES (of one)
//
// The first that says more than one rank counts; another that says something else is refused.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "parallel/group.h"

namespace snug {

struct ForeignPlace {
  int rank = 0, size = 1;
  std::string said;  // "OMPI_COMM_WORLD_SIZE=4"
  std::string key;   // the same for all ranks of a start, and for no other's
};

// What a variable of the environment is; null: it is not set.
using Variables = std::function<const char*(const char* name)>;

// Of this process; nothing: it is one of one. Throws usage where the variables contradict each other, a
// size is no number, or ranks are on several machines.
std::optional<ForeignPlace> foreign_place();
std::optional<ForeignPlace> foreign_place(const Variables& variables);

// The group of such ranks; waits for all of them. Throws collective if one does not come in `seconds`.
std::unique_ptr<Group> meet_ranks(const ForeignPlace& place, double seconds);

}  // namespace snug
