#include "parallel/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/memory/context.h"

namespace snug {
namespace {

volatile std::sig_atomic_t lead = 0;    // its process
volatile std::sig_atomic_t passed = 0;  // the last signal that it was sent

// A terminal sends its signals to the ranks too; a process sends them here alone.
void pass_on(int signal, siginfo_t* from, void*) {
  if (signal == SIGINT && from->si_code != SI_USER && from->si_code != SI_QUEUE) return;
  if (signal != SIGUSR1) passed = signal;  // that one ends nothing
  if (lead > 0) kill(static_cast<pid_t>(lead), signal);
}

void handle(int signal) {
  struct sigaction before {
  }, now{};
  now.sa_sigaction = pass_on;
  now.sa_flags = SA_SIGINFO;
  sigaction(signal, &now, &before);
  if (signal != SIGUSR1 && (before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_IGN)
    sigaction(signal, &before, nullptr);  // as nohup has it
}

std::vector<std::string> own_arguments() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> list;
  for (std::string word; std::getline(in, word, '\0');) list.push_back(word);
  return list;
}

// Between fork and exec.
[[noreturn]] void become(int rank, const std::string& place, std::vector<char*>& arguments,
                         pid_t parent) {
  setenv(kRankVariable, place.c_str(), 1);
  // Who waits for them may be killed: then they stop as by a signal, with a checkpoint.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  if (rank > 0) {
    const int nowhere = open("/dev/null", O_WRONLY);
    if (nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
  }
  execv("/proc/self/exe", arguments.data());
  _exit(127);
}

struct Child {
  pid_t pid = 0;
  int code = -1;  // -1: it runs
};

std::string end_text(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("its process was ended by signal {} ({})", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  return fmt::format("its process ended with exit code {}", WEXITSTATUS(status));
}

}  // namespace

int launch_ranks(int ranks) {
  // Ranks ignore SIGUSR1 from their start on, until they handle it.
  std::signal(SIGUSR1, SIG_IGN);
  const LocalGroup::Files files = LocalGroup::make_files(ranks);
  GroupBlock& block = LocalGroup::map_block(files.block);
  std::vector<std::string> words = own_arguments();
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(stdout);
  std::fflush(stderr);
  const pid_t self = getpid();
  std::vector<Child> children(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    std::string place = fmt::format("{} {}", r, files.block);
    for (const int file : files.arenas) place += fmt::format(" {}", file);
    const pid_t pid = fork();
    if (pid == 0) become(r, place, arguments, self);
    if (pid < 0) {
      const int error = errno;
      for (const Child& c : children)
        if (c.pid > 0) kill(c.pid, SIGKILL);
      fail(ErrorCode::device, fmt::format("the system to start {} processes", ranks),
           std::strerror(error), "fewer ranks, or a higher limit on processes (ulimit -u)");
    }
    children[static_cast<size_t>(r)].pid = pid;
  }
  lead = children[0].pid;
  for (const int file : files.arenas) close(file);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) handle(signal);

  int left = ranks;
  int first_bad = -1;  // the rank that ended badly first
  double since = 0;
  while (left > 0) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, first_bad >= 0 ? WNOHANG : 0);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) {
      if (monotonic_seconds() - since > kMercy)
        for (const Child& c : children)
          if (c.code < 0) kill(c.pid, SIGKILL);
      usleep(20'000);
      continue;
    }
    const auto at = std::find_if(children.begin(), children.end(),
                                 [&](const Child& c) { return c.pid == pid; });
    if (at == children.end()) continue;
    const int rank = static_cast<int>(at - children.begin());
    at->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    --left;
    const bool well = at->code == 0 || at->code == 75;
    if (well || first_bad >= 0) continue;
    first_bad = rank;
    since = monotonic_seconds();
    // Of one that told why, that stays.
    LocalGroup::give_up(block, rank, end_text(status), rank);
    if (WIFSIGNALED(status) && rank == 0 && WTERMSIG(status) != passed)
      std::fputs(fmt::format("collective: expected all {} ranks to go on\n  found: rank 0: {}\n"
                             "  try:   resume=latest, once the reason is gone\n",
                             ranks, end_text(status))
                     .c_str(),
                 stderr);
  }
  const int code = children[0].code;
  if ((code != 0 && code < 128) || (passed != 0 && code == 128 + passed)) return code;
  if (code >= 128 || first_bad >= 0) return code == 130 ? 130 : 1;
  return 0;
}

std::unique_ptr<Group> launched_group() {
  const char* const place = std::getenv(kRankVariable);
  if (place == nullptr) return nullptr;
  std::istringstream in(place);
  int rank = -1;
  LocalGroup::Files files;
  in >> rank >> files.block;
  for (int file = -1; in >> file;) files.arenas.push_back(file);
  if (rank < 0 || files.block < 0 || rank >= static_cast<int>(files.arenas.size()) ||
      fcntl(files.block, F_GETFD) < 0)
    fail(ErrorCode::usage, fmt::format("no {} but that of the command's own ranks", kRankVariable),
         fmt::format("{}={}", kRankVariable, place), fmt::format("unset {}", kRankVariable));
  return LocalGroup::of_processes(rank, files);
}

}  // namespace snug
