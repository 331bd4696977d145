#include "tools/setup/rank_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/error.h"
#include "engine/device/processors.h"
#include "engine/io/fingerprint.h"
#include "optim/percentile.h"
#include "optim/settings.h"
#include "parallel/group.h"
#include "parallel/launch.h"
#include "parallel/nccl_library.h"
#include "parallel/rendezvous.h"
#include "tools/costs/links.h"
#include "tools/planner/plan_search.h"
#include "tools/planner/residence.h"
#include "tools/session/device_choice.h"
#include "tools/session/tell.h"
#include "tools/setup/setup.h"

namespace snug {

namespace {

// Of the cores, as much as of the processors; of granted time what all ranks of a machine have.
int threads_of_share(const Processors& p, double share, int on_machine) {
  double most = p.cores * share;
  if (p.quota > 0) most = std::min(most, std::ceil(p.quota - 1e-9) / on_machine);
  return std::max(1, static_cast<int>(most + 1e-9));
}

}  // namespace

RankRoom share_machine(Group& group, int local_rank, int local_size) {
  struct Mine {
    uint64_t machine = 0;
    int64_t local_size = 0;
    std::array<uint64_t, 56> cpus{};  // as far as numbers of them go
  } mine;
  static_assert(sizeof(Mine) <= Group::kMostExchanged);
  mine.machine = fingerprint(boot_id());
  mine.local_size = local_size;
  const Processors p = find_processors();
  const auto bit = [](const Mine& m, int cpu) {
    return m.cpus[static_cast<size_t>(cpu) / 64] >> (cpu % 64) & 1;
  };
  std::vector<int> counted;
  for (const int cpu : p.cpus)
    if (static_cast<size_t>(cpu) < 64 * mine.cpus.size()) {
      mine.cpus[static_cast<size_t>(cpu) / 64] |= uint64_t{1} << (cpu % 64);
      counted.push_back(cpu);
    }
  std::vector<Mine> all(static_cast<size_t>(group.size()));
  group.exchange("the machines", all.data(), &mine, sizeof mine);
  RankRoom room;
  room.local_rank = local_rank;
  for (const Mine& m : all)
    room.on_machine = std::max(room.on_machine, static_cast<int>(m.local_size));
  for (const int cpu : counted) {
    int users = 0;
    for (const Mine& m : all) users += m.machine == mine.machine && bit(m, cpu);
    room.share += 1.0 / users / static_cast<double>(counted.size());
  }
  if (counted.empty()) room.share = 1.0 / room.on_machine;
  const int own = threads_of_share(p, room.share, room.on_machine);
  std::vector<int> threads(all.size());
  group.exchange("the threads", threads.data(), &own, sizeof own);
  room.threads = *std::min_element(threads.begin(), threads.end());
  return room;
}

int ranks_on_machine(const RunConfig& config, const RankRoom& room) {
  return room.on_machine > 0 ? room.on_machine : static_cast<int>(config.ranks);
}

int rank_threads(const RunConfig& config, const RankRoom& room) {
  if (config.ranks <= 1) return resolve_threads(config.threads);
  const double share = room.share > 0 ? room.share : 1.0 / static_cast<double>(config.ranks);
  if (config.threads > 0) {
    const int64_t together = std::llround(static_cast<double>(config.threads) / share);
    const std::string warning = threads_warning(together, find_processors());
    if (!warning.empty() && config.target.empty())
      tell(stderr, "Warning: of {} ranks {}.\n", config.ranks, warning);
    return static_cast<int>(config.threads);
  }
  return room.threads > 0
             ? room.threads
             : threads_of_share(find_processors(), share, static_cast<int>(config.ranks));
}

namespace {

// Of devices NCCL moves what is on them; emulated ones are for tests, which have a NCCL of their own.
void check_transport(const RunConfig& config, Place place) {
  const std::string asked =
      fmt::format("transport: {} ({})", config.transport, config.where("transport"));
  if (place == Place::cpu && config.transport == "nccl")
    fail(ErrorCode::usage, "device: cuda for transport: nccl",
         fmt::format("{}, device: {}", asked, config.device), "transport=auto, or device=cuda");
  if (place == Place::cpu) return;
  if (!through_nccl(config))
    fail(ErrorCode::usage, "transport: auto or nccl for ranks on devices", asked, "transport=auto");
  if (place == Place::emu && config.target.empty() && std::getenv(kNcclLibraryVariable) == nullptr)
    fail(ErrorCode::unsupported,
         fmt::format("a NCCL of the host's memory ({}) for ranks on kernels that are emulated",
                     kNcclLibraryVariable),
         fmt::format("ranks: {} ({}) and none", config.ranks, config.where("ranks")),
         "device=cpu, or ranks=1");
}

// Of keys and values in front every layer adds to gradients that a block, done by itself, does not end.
bool keeps_gradients(const PlanRequest& r) {
  const FrontTokens front = r.model->front();
  return front.count > 0 && !front.asked;
}

}  // namespace

void settle_ranks(const RunConfig& config, PlanRequest& r) {
  const auto refuse = [&](const char* key, const std::string& value, const std::string& instead) {
    fail(ErrorCode::unsupported,
         fmt::format("what ranks have on their devices, with ranks: {} ({})", config.ranks,
                     config.where("ranks")),
         fmt::format("{}: {} ({})", key, value, config.where(key)),
         fmt::format("{}={}", key, instead));
  };
  check_transport(config, r.settings.target);
  if (config.target.empty()) check_running_ranks(config);
  if (r.offload.open()) r.offload = {};
  if (!r.offload.none()) refuse("offload", r.offload.text(), "none, or ranks=1");
  if (config.zero == "3" && r.offload_embedding == "cpu")
    refuse("offload_embedding", r.offload_embedding, "none, or zero=2");
  // Norms and means over a parameter are of all of it.
  const bool clips = clips_by_percentile(r.optimizer);
  const bool whole = clips || find_optimizer(config.optim)->reach != OptimReach::element;
  if (clips && config.zero != "auto" && config.zero != "0")
    fail(ErrorCode::unsupported,
         fmt::format("zero: 0 beside {}, which looks at whole gradients", kPercentileArgument),
         fmt::format("zero: {} ({}), optim_args: {} ({})", config.zero, config.where("zero"),
                     config.optim_args, config.where("optim_args")),
         fmt::format("zero=0, or optim_args without {}", kPercentileArgument));
  if (whole && config.zero != "auto" && config.zero != "0")
    fail(ErrorCode::unsupported,
         "zero: 0 beside an optimizer that looks at whole parameters, which ranks would share",
         fmt::format("zero: {} ({}), optim: {} ({})", config.zero, config.where("zero"),
                     config.optim, config.where("optim")),
         "zero=0, or optim=adamw");
  if (config.zero == "2" && keeps_gradients(r))
    fail(ErrorCode::unsupported,
         "zero: 0, 1 or 3 beside an adapter of keys in front, whose gradients end with the first "
         "layer",
         fmt::format("zero: 2 ({}), peft: prefix_tuning", config.where("zero")), "zero=1");
  r.zero = whole ? 0 : config.zero == "auto" ? 1 : config.zero[0] - '0';
  // Processors that compute exchange too: beside each other neither is faster.
  r.in_turn.reset();
  if (r.settings.target == Place::cpu || keeps_gradients(r)) r.in_turn = true;
  if (r.zero < 3) return;
  if (r.packed_weights.value_or(WeightPacking::none) != WeightPacking::none)
    refuse("packed_weights", config.packed_weights, "none, or ranks=1");
  r.packed_weights = WeightPacking::none;
}

std::string join_ranks(const RunConfig& config, const Target& target, int ranks, Rates& rates) {
  if (target.shares_host && config.link.empty()) return ", ranks that share its memory";
  const RankLink& link =
      find_link(config.link.empty() ? "pcie4" : config.link, config.where("link"));
  if (link.most > 0 && ranks > link.most)
    fail(ErrorCode::usage, fmt::format("at most {} ranks joined by {}", link.most, link.name),
         fmt::format("ranks: {} ({})", ranks, config.where("ranks")),
         "link=400GbE, or another network, which then all of them are joined by");
  rates.ranks = ranks;
  rates.rank_link = RankLink::kShare * link.bytes_per_second;
  rates.rank_latency = link.latency;
  return fmt::format(", {} of them joined by {} ({:.4g} GB/s x {}, {:.0f} us)", ranks, link.name,
                     link.bytes_per_second / 1e9, RankLink::kShare, link.latency * 1e6);
}

void check_running_ranks(const RunConfig& config) {
  if (config.ranks <= kMostRanks) return;
  fail(ErrorCode::usage, fmt::format("at most {} ranks", kMostRanks),
       fmt::format("ranks: {} ({})", config.ranks, config.where("ranks")),
       fmt::format("ranks={}; snug plan with a target takes more", kMostRanks));
}

int rank_gpu(const RunConfig& config, const RankRoom& room) {
  if (config.device != "cuda" && config.device != "auto")
    fail(ErrorCode::usage, "device: cuda for ranks, each of which takes the GPU of its number",
         fmt::format("device: {} ({}), ranks: {} ({})", config.device, config.where("device"),
                     config.ranks, config.where("ranks")),
         "device=cuda, with CUDA_VISIBLE_DEVICES for others");
  // A launcher may show each rank its own alone.
  const char* const seen = std::getenv("CUDA_VISIBLE_DEVICES");
  return seen && std::string_view(seen).find(',') == std::string_view::npos ? 0 : room.local_rank;
}

bool through_nccl(const RunConfig& config) {
  if (config.ranks <= 1) return false;
  return config.transport == "nccl" ||
         (config.transport == "auto" && place_of(config.device) != Place::cpu);
}

bool through_mpi(const RunConfig& config) {
  if (config.ranks <= 1 || config.transport == "local") return false;
  if (config.transport == "mpi") return true;
  if (!config.target.empty() || std::getenv(kRankVariable) != nullptr) return false;
  const std::optional<ForeignPlace> place = foreign_place();
  return place && !place->apart.empty();
}

void check_launcher(const RunConfig& config) {
  if (config.ranks <= 1 || config.transport != "mpi") return;
  fail(ErrorCode::usage,
       fmt::format("ranks that mpirun started, for transport: mpi ({})", config.where("transport")),
       fmt::format("ranks: {} ({}), without a launcher of MPI's", config.ranks,
                   config.where("ranks")),
       fmt::format("transport=auto, or mpirun -n {} snug train ...", config.ranks));
}

void choose_zero(PlanRequest& r) {
  if (r.global_batch <= 0 || r.zero == 0) return;
  const auto packing = r.packed_weights;
  const bool pieces = packing.value_or(WeightPacking::none) == WeightPacking::none &&
                      r.offload_embedding != "cpu";  // of weights
  const int last = pieces ? 3 : 2;
  int least = 1;
  int64_t bytes = 0;
  const auto take = [&](int zero) {
    r.zero = zero;
    r.packed_weights = zero == 3 ? WeightPacking::none : packing;
  };
  // What is left to the planner goes to the host only where no stage fits without.
  const std::string states = r.offload_optimizer;
  const bool use_host = r.use_host, may = states == "auto" && (use_host || r.paged_states);
  const bool asked = r.offload_params == "cpu" || r.offload_gradients == "cpu";
  for (const bool host : {false, true}) {
    if (host ? !(may || use_host || asked) : asked) continue;
    if (may) r.offload_optimizer = host ? states : "none";
    r.use_host = host && use_host;
    for (int zero = 1; zero <= last; ++zero) {
      if (zero == 2 && keeps_gradients(r)) continue;
      take(zero);
      PlanSearch search(r);
      const Plan plan = make_plan(r, search);
      if (plan.fits) return;
      if (bytes == 0 || plan.minimum_bytes < bytes) least = zero, bytes = plan.minimum_bytes;
    }
  }
  take(least);
}

void adopt_ranks(RunConfig& config, int ranks, const std::string& said) {
  if (config.is_set("ranks") && config.ranks != ranks)
    fail(ErrorCode::usage, fmt::format("as many ranks as the launcher started: {}", said),
         fmt::format("ranks: {} ({})", config.ranks, config.where("ranks")),
         fmt::format("ranks={}, or leave it out", ranks));
  config.ranks = ranks;
}

void refuse_ranks(const RunConfig& config, const char* command) {
  if (config.ranks <= 1) return;
  fail(ErrorCode::usage, fmt::format("one rank for snug {}", command),
       fmt::format("ranks: {} ({})", config.ranks, config.where("ranks")),
       "ranks=1; snug train and snug plan take several");
}

}  // namespace snug
