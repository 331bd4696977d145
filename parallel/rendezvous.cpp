#include "parallel/rendezvous.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/core/error.h"
#include "engine/memory/context.h"

namespace snug {
namespace {

// Set in the script of a batch job too, which is one process: a step has numbers of its own.
constexpr const char* kSlurmRank = "SLURM_PROCID";

struct Launcher {
  const char *rank, *size, *local_rank, *local_size;
  const char* keys[2];  // that name the start
};
constexpr Launcher kLaunchers[] = {
    {"RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"MASTER_PORT", "TORCHELASTIC_RUN_ID"}},
    {"OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {"PMI_JOBID", "HYDRA_JOBID"}},
    {"MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE",
     {"MPIRUN_ID", "PMI_JOBID"}},
    {kSlurmRank,
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     "SLURM_NTASKS_PER_NODE",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}}};

int number_of(const Variables& variables, const char* name) {
  const char* const text = variables(name);
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0 || value < 0 || value > 1 << 20)
    fail(ErrorCode::usage, fmt::format("a number of ranks for {}", name),
         fmt::format("{}={}", name, text),
         fmt::format("unset {}, or a launcher that sets it", name));
  return static_cast<int>(value);
}

// The number that a list like "8(x3),4" has for machine `index`; 0: none.
int number_of_list(const std::string& list, int index) {
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string entry = list.substr(at, end - at);
    const size_t times = entry.find("(x");
    const int count =
        times == std::string::npos ? 1 : std::max(1, std::atoi(entry.c_str() + times + 2));
    if (index < count) return std::max(0, std::atoi(entry.c_str()));
    index -= count;
    at = end + 1;
  }
  return 0;
}

// How many ranks are on this machine and which of them this is. Where nothing says it ranks of several
// machines are taken to be spread alike, in the order of machines.
void place_here(const Variables& variables, const Launcher& l, int nodes, ForeignPlace& p) {
  const bool apart = !p.apart.empty();
  p.local_size = 0;
  const char* const list = variables("SLURM_STEP_TASKS_PER_NODE");
  if (!apart)
    p.local_size = p.size;
  else if (l.rank == kSlurmRank && list && variables("SLURM_NODEID"))
    p.local_size = number_of_list(list, number_of(variables, "SLURM_NODEID"));
  if (p.local_size == 0 && variables(l.local_size))
    p.local_size = number_of(variables, l.local_size);
  if (p.local_size <= 0 || p.local_size > p.size)
    p.local_size = (p.size + std::max(1, nodes) - 1) / std::max(1, nodes);
  p.local_rank =
      variables(l.local_rank) ? number_of(variables, l.local_rank) : p.rank % p.local_size;
}

[[noreturn]] void system_refused(const char* what) {
  fail(ErrorCode::device, fmt::format("the system to let ranks {}", what), std::strerror(errno),
       "ranks=N without another launcher");
}

// A name that is no file: it goes with the socket.
sockaddr_un address_of(const std::string& key, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("snug-{}-{}", geteuid(), key).substr(0, 100);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// Whoever is at the other end is this user too.
bool of_this_user(int socket) {
  ucred who{};
  socklen_t length = sizeof who;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.uid == geteuid();
}

// Closed with it.
struct Socket {
  const int file;
  Socket() : file(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    if (file < 0) system_refused("meet");
  }
  ~Socket() { close(file); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
};

struct Message {
  std::vector<char> control;
  int32_t rank = 0;
  iovec bytes{};
  msghdr header{};
  explicit Message(int files)
      : control(CMSG_SPACE(static_cast<size_t>(files) * sizeof(int)), '\0') {
    bytes = {&rank, sizeof rank};
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
};

bool send_files(int socket, const LocalGroup::Files& files) {
  std::vector<int> list = {files.block};
  list.insert(list.end(), files.arenas.begin(), files.arenas.end());
  Message m(static_cast<int>(list.size()));
  cmsghdr* const c = CMSG_FIRSTHDR(&m.header);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(list.size() * sizeof(int));
  std::memcpy(CMSG_DATA(c), list.data(), list.size() * sizeof(int));
  return sendmsg(socket, &m.header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof m.rank);
}

bool receive_files(int socket, int size, LocalGroup::Files& files) {
  Message m(size + 1);
  if (recvmsg(socket, &m.header, 0) != static_cast<ssize_t>(sizeof m.rank)) return false;
  const cmsghdr* const c = CMSG_FIRSTHDR(&m.header);
  if (c == nullptr || c->cmsg_type != SCM_RIGHTS ||
      c->cmsg_len != CMSG_LEN(static_cast<size_t>(size + 1) * sizeof(int)))
    return false;
  std::vector<int> list(static_cast<size_t>(size) + 1);
  std::memcpy(list.data(), CMSG_DATA(c), list.size() * sizeof(int));
  files.block = list.front();
  files.arenas.assign(list.begin() + 1, list.end());
  return true;
}

[[noreturn]] void late(const ForeignPlace& place, const std::string& who, double seconds) {
  fail(ErrorCode::collective,
       fmt::format("{} ranks, as {} says, on this machine", place.size, place.said),
       fmt::format("{} did not come within {:.0f} s", who, seconds),
       "all ranks on one machine under one launcher, or a longer ddp_timeout");
}

LocalGroup::Files hand_out(const ForeignPlace& place, double seconds) {
  socklen_t length = 0;
  const sockaddr_un address = address_of(place.key, length);
  const Socket door;
  if (bind(door.file, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(door.file, place.size) != 0)
    system_refused("meet");
  const LocalGroup::Files files = LocalGroup::make_files(place.size);
  const double until = monotonic_seconds() + seconds;
  for (int left = place.size - 1; left > 0;) {
    pollfd at = {door.file, POLLIN, 0};
    const double wait = until - monotonic_seconds();
    if (wait <= 0) late(place, fmt::format("{} of them", left), seconds);
    if (poll(&at, 1, static_cast<int>(wait * 1000) + 1) <= 0) continue;
    const int one = accept4(door.file, nullptr, nullptr, SOCK_CLOEXEC);
    if (one < 0) continue;
    if (of_this_user(one) && send_files(one, files)) --left;
    close(one);
  }
  return files;
}

LocalGroup::Files fetch(const ForeignPlace& place, double seconds) {
  socklen_t length = 0;
  const sockaddr_un address = address_of(place.key, length);
  const double until = monotonic_seconds() + seconds;
  LocalGroup::Files files;
  while (monotonic_seconds() < until) {
    const Socket one;
    const timeval patience = {.tv_sec = 1, .tv_usec = 0};
    setsockopt(one.file, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(one.file, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
        of_this_user(one.file) && receive_files(one.file, place.size, files))
      return files;
    usleep(20'000);
  }
  late(place, "rank 0", seconds);
}

}  // namespace

std::optional<ForeignPlace> foreign_place(const Variables& variables) {
  std::optional<ForeignPlace> found;
  for (const Launcher& l : kLaunchers) {
    if (!variables(l.rank) || !variables(l.size)) continue;
    // Other launchers are started by steps of Slurm's.
    if (l.rank == kSlurmRank && (found || !variables("SLURM_STEP_ID"))) continue;
    const int size = number_of(variables, l.size), rank = number_of(variables, l.rank);
    if (size <= 1) continue;
    const std::string said = fmt::format("{}={}", l.size, size);
    if (found) {
      if (found->size != size || found->rank != rank)
        fail(ErrorCode::usage, "one launcher's word on ranks",
             fmt::format("{} with rank {}, and {} with rank {}", found->said, found->rank, said,
                         rank),
             fmt::format("unset {} and {}", l.rank, l.size));
      continue;
    }
    if (rank >= size)
      fail(ErrorCode::usage, fmt::format("a rank below {}", said),
           fmt::format("{}={}", l.rank, rank), fmt::format("unset {} and {}", l.rank, l.size));
    const bool step = l.rank == kSlurmRank && variables("SLURM_STEP_NUM_NODES");
    const int nodes = step ? number_of(variables, "SLURM_STEP_NUM_NODES") : 1;
    if (size > kMostRanks)
      fail(ErrorCode::unsupported, fmt::format("at most {} ranks", kMostRanks), said,
           "fewer ranks");
    found.emplace();
    found->rank = rank;
    found->size = size;
    found->said = said;
    if (nodes > 1)
      found->apart = fmt::format("{}, SLURM_STEP_NUM_NODES={}", said, nodes);
    else if (l.rank != kSlurmRank && variables(l.local_size) &&
             number_of(variables, l.local_size) != size)
      found->apart = fmt::format("{}, {}={}", said, l.local_size, variables(l.local_size));
    place_here(variables, l, nodes, *found);
    for (const char* const key : l.keys)
      if (const char* const value = variables(key))
        found->key += fmt::format("{}{}", found->key.empty() ? "" : "-", value);
  }
  // Without a name all have the process that started them in common.
  if (found && found->key.empty()) found->key = fmt::format("of-{}", getppid());
  return found;
}

std::optional<ForeignPlace> foreign_place() {
  return foreign_place([](const char* name) { return std::getenv(name); });
}

std::unique_ptr<LocalGroup> meet_ranks(const ForeignPlace& place, double seconds) {
  if (!place.apart.empty())
    fail(ErrorCode::unsupported, "ranks of one machine for transport: local", place.apart,
         "transport=mpi under mpirun, or all ranks on one machine");
  return LocalGroup::of_processes(
      place.rank, place.rank == 0 ? hand_out(place, seconds) : fetch(place, seconds));
}

}  // namespace snug
