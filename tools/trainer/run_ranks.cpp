#include "tools/trainer/run_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "engine/core/error.h"
#include "engine/device/processors.h"
#include "engine/device/worker_thread.h"
#include "engine/io/files.h"
#include "engine/io/fingerprint.h"
#include "engine/memory/context.h"
#include "parallel/launch.h"
#include "parallel/mpi_group.h"
#include "parallel/nccl_transport.h"
#include "parallel/rendezvous.h"
#include "tools/session/tell.h"
#include "tools/setup/rank_setup.h"

namespace snug {
namespace {

constexpr double kMeetingSeconds =
    60;  // between the first and the last that another launcher starts

}  // namespace

std::unique_ptr<RunRanks> RunRanks::here(const RunConfig& config) {
  std::unique_ptr<Group> group = launched_group();
  int local_rank = group ? group->rank() : 0, local_size = group ? group->size() : 1;
  if (!group)
    if (const auto place = foreign_place()) {
      local_rank = place->local_rank;
      local_size = place->local_size;
      if (through_mpi(config))
        group = std::make_unique<MpiGroup>(place->rank, place->size);
      else
        group =
            meet_ranks(*place, config.is_set("ddp_timeout") ? config.ddp_timeout : kMeetingSeconds);
    }
  if (!group) return nullptr;
  if (group->rank() > 0) {
    mute_tell();
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
  }
  group->set_timeout(config.ddp_timeout);
  return std::make_unique<RunRanks>(std::move(group), local_rank, local_size, through_nccl(config));
}

RunRanks::RunRanks(std::unique_ptr<Group> group, int local_rank, int local_size, bool nccl)
    : group_(std::move(group)), local_rank_(local_rank), local_size_(local_size), nccl_(nccl) {}

void RunRanks::open() {
  if (nccl_)
    transport_ = std::make_unique<NcclTransport>(*group_);
  else
    transport_ = group_->transport();
  comm_.emplace(*transport_);
}

RunRanks::~RunRanks() = default;

RunRanks::Alive::Alive(Group& group) : group_(group) {
  const std::error_code refused = start_worker(thread_, [this] {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      group_.go_on();
      for (int r = 0; r < group_.size(); ++r) group_.look_after(r);
      wake_.wait_for(lock, std::chrono::duration<double>(std::min(0.5, group_.timeout() / 8)));
    }
  });
  if (refused)
    fail(ErrorCode::device, "a thread that tells other ranks that this one goes on",
         refused.message(), "fewer processes of this user (ulimit -u)");
}

RunRanks::Alive::~Alive() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void RunRanks::check_devices(const std::string& device) {
  struct Own {
    uint64_t machine = 0;
    char host[64] = {}, device[64] = {};
  } mine;
  mine.machine = fingerprint(boot_id());
  if (gethostname(mine.host, sizeof mine.host - 1) != 0) std::strcpy(mine.host, "?");
  device.copy(mine.device, sizeof mine.device - 1);
  std::vector<Own> all(static_cast<size_t>(size()));
  group_->exchange("the devices", all.data(), &mine, sizeof mine);
  for (int r = 0; r < size(); ++r)
    for (int before = 0; before < r; ++before) {
      const Own &a = all[static_cast<size_t>(before)], &b = all[static_cast<size_t>(r)];
      if (b.device[0] == 0 || a.machine != b.machine || std::strcmp(a.device, b.device) != 0)
        continue;
      fail(ErrorCode::usage, "a GPU of its own for every rank",
           fmt::format("{} of {} for ranks {} and {}", b.device, b.host, before, r),
           "a launcher that numbers the ranks of a machine (LOCAL_RANK), or shows each another GPU "
           "(CUDA_VISIBLE_DEVICES); or fewer ranks");
    }
}

// A disk of another machine's may show what is new there seconds later.
void RunRanks::check_shared(const std::string& folder) {
  const double patience = group_->arena_file() >= 0 ? 1 : kSharedSeconds;
  const std::string path = folder + "/ranks";
  std::string word;
  if (leads()) {
    word = fmt::format("{} {}", getpid(), monotonic_seconds());
    write_atomic(path, word);
  }
  word = from_lead("a word in output_dir", word);
  struct Sight {
    bool seen = false;
    char host[64] = {}, path[400] = {};
  } mine;
  for (const double until = monotonic_seconds() + patience;
       !mine.seen && monotonic_seconds() < until;) {
    std::ifstream in(path);
    std::string found;
    mine.seen = std::getline(in, found) && found == word;
    if (!mine.seen) usleep(50'000);
    group_->go_on();
  }
  std::error_code none;
  const std::string whole = std::filesystem::absolute(folder, none).parent_path().string();
  whole.copy(mine.path, sizeof mine.path - 1);
  if (gethostname(mine.host, sizeof mine.host - 1) != 0) std::strcpy(mine.host, "?");
  std::vector<Sight> all(static_cast<size_t>(size()));
  group_->exchange("the folder of the run", all.data(), &mine, sizeof mine);
  if (leads()) std::filesystem::remove(path, none);
  for (int r = 0; r < size(); ++r)
    if (const Sight& p = all[static_cast<size_t>(r)]; !p.seen)
      fail(ErrorCode::usage, "output_dir in a folder that all ranks see",
           fmt::format("{} on {}, where rank {} does not find what rank 0 writes to {} on {}",
                       p.path, p.host, r, all[0].path, all[0].host),
           "output_dir on a disk that all of them have under the same name");
}

void RunRanks::same(const char* what, const std::string& text) {
  group_->barrier(what, fingerprint(text));
}

std::string RunRanks::from_lead(const char* what, const std::string& text) {
  constexpr size_t kMost = Group::kMostExchanged - 1;
  if (leads() && text.size() > kMost)
    fail(ErrorCode::usage, fmt::format("a path of at most {} bytes for several ranks", kMost), text,
         "a shorter output_dir");
  std::vector<char> mine(Group::kMostExchanged, '\0');
  if (leads()) std::memcpy(mine.data(), text.data(), text.size());
  std::vector<char> all(mine.size() * static_cast<size_t>(group_->size()));
  group_->exchange(what, all.data(), mine.data(), static_cast<int64_t>(mine.size()));
  return all.data();
}

RunRanks::Step RunRanks::agree(const Step& mine) {
  Step all[kMostRanks];
  group_->exchange("the end of a step", all, &mine, sizeof(Step));
  Step step = all[0];
  for (int r = 0; r < group_->size(); ++r) {
    step.stop = step.stop || all[r].stop;
    step.save = step.save || all[r].save;
  }
  return step;
}

PreferenceSums RunRanks::sum(const PreferenceSums& mine) {
  PreferenceSums all[kMostRanks], sums;
  group_->exchange("the pairs of a step", all, &mine, sizeof(PreferenceSums));
  for (int r = 0; r < group_->size(); ++r) sums.add(all[r]);
  return sums;
}

std::string RunRanks::broken(int awaited, const char* what, double began) {
  for (int r = 0; r < group_->size(); ++r) group_->look_after(r);
  group_->look_after(awaited, what, began);
  return group_->reason();
}

bool RunRanks::await_lead() {
  if (leads() || std::getenv(kRankVariable) != nullptr) return true;
  group_->look_after(0);
  const bool silent = group_->who_gave_up() == 0 && group_->who_told() != 0;
  // A launcher ends all with the first that ends badly.
  if (!silent) group_->await_end(0, kMercy);
  return !silent;
}

void RunRanks::fail_run(const std::string& why) {
  give_up(why);
  await_lead();
}

int RunRanks::end(const Error& error) {
  // What all ranks find wrong is rank 0's to say.
  for (int i = 0; !leads() && i < 300 && !group_->given_up(); ++i) {
    usleep(10'000);
    group_->look_after(0);
  }
  group_->give_up(error.what());
  if (leads()) throw error;
  // Nobody else is left to say that rank 0 is gone, or hangs.
  if (!await_lead() && group_->rank() == 1)
    std::fputs(fmt::format("{}\n", error.what()).c_str(), stderr);
  return error.exit_code();
}

}  // namespace snug
