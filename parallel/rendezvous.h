// Ranks that another launcher started: torchrun, mpirun, mpiexec or srun, each of which says in variables
// of its own which of how many a process is. Those of one machine find each other by a socket that only
// they know the name of: rank 0 makes the shared memory and hands its files to the others. Those of several
// are an MPI's (mpi_group.h).
//
//   launcher            rank, size, and both among those of this machine
//   torchrun            RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   Open MPI            OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   MPICH, Intel MPI    PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
//   MVAPICH2            MV2_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   srun                SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, and of SLURM_STEP_TASKS_PER_NODE
//                       ("8(x3),4") that of SLURM_NODEID, else SLURM_NTASKS_PER_NODE; SLURM_STEP_NUM_NODES
//
// The first that says more than one rank counts; another that says something else is refused.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "parallel/local_group.h"

namespace snug {

struct ForeignPlace {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this machine
  std::string said;                    // "OMPI_COMM_WORLD_SIZE=4"
  std::string key;                     // the same for all ranks of a start, and for no other's
  // Of ranks on several machines, what says so: "WORLD_SIZE=16, LOCAL_WORLD_SIZE=8".
  std::string apart;
};

// What a variable of the environment is; null: it is not set.
using Variables = std::function<const char*(const char* name)>;

// Of this process; nothing: it is one of one. Throws usage where the variables contradict each other or a
// size is no number, unsupported where there are more than kMostRanks.
std::optional<ForeignPlace> foreign_place();
std::optional<ForeignPlace> foreign_place(const Variables& variables);

// The group of such ranks, which share memory; waits for all of them. Throws collective if one does not come
// in `seconds`, unsupported if they are on several machines.
std::unique_ptr<LocalGroup> meet_ranks(const ForeignPlace& place, double seconds);

}  // namespace snug
