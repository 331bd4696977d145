#include "tools/planner/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <set>

#include "engine/blas/matmul_cpu.h"
#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/device.h"
#include "engine/memory/simulate.h"
#include "engine/seams/weight_codes.h"
#include "engine/simt/emu.h"
#include "optim/kahan.h"
#include "parallel/nccl_transport.h"
#include "parallel/rank_comm.h"
#include "tools/costs/save_ring_size.h"
#include "tools/costs/state_bytes.h"
#include "tools/planner/decision_table.h"
#include "tools/planner/offers.h"
#include "tools/planner/plan_search.h"
#include "tools/planner/residence.h"
#include "tools/session/step_parts.h"

namespace snug {
namespace {

constexpr int kRepairs = 24, kLastRepairs = 8;

// What would lower the minimum and has no size before it is chosen.
std::string advice(const PlanRequest& r) {
  if (!r.follow.path.empty()) return "plan=null to plan anew";
  std::string text;
  if (r.global_batch <= 0 && r.T > 1) text += "a smaller --max-length, or ";
  if (r.global_batch <= 0 && r.eval_batch > 1) text += "a smaller --batch-size, or ";
  if (r.kv_rows > 1) text += "fewer sequences at a time (--batch-size, --num-beams), or ";
  return text + "a smaller model";
}

// Each once, in order.
std::vector<KernelChoice> kernels_of(const Schedule& schedule) {
  std::set<std::string_view> seen;
  for (int i = 0; i < schedule.size(); ++i)
    for (const OpRecord& op : schedule.at(i).ops)
      if (!op.variant.empty()) seen.insert(without_packed(op.variant.view()));
  std::vector<KernelChoice> list;
  for (const std::string_view text : seen)
    if (const auto choice = parse_kernel_choice(text)) list.push_back(*choice);
  return list;
}

std::string attention_of(const Schedule& schedule) {
  for (int i = 0; i < schedule.size(); ++i)
    for (const OpRecord& op : schedule.at(i).ops)
      if (op.variant.view().starts_with("attention ")) return op.variant.str().substr(10);
  return "";
}

// Packs what was recorded.
void finish(Plan& plan, Session& session, const PlanSearch& search, int64_t budget) {
  plan.schedule = session.schedule();
  search.pack(plan.schedule, session.decisions());
  plan.decisions = session.decisions();
  plan.graphs = session.context().settings().graphs;
  plan.kernels = kernels_of(plan.schedule);
  plan.attention = attention_of(plan.schedule);
  plan.engine_bytes = plan.schedule.arena_bytes();
  plan.host_bytes = plan.schedule.host_bytes();
  plan.categories = plan.schedule.at_peak(&plan.padding);
  plan.categories[static_cast<size_t>(Category::offload)] = plan.host_bytes;
  plan.step_seconds = search.step_seconds(plan.schedule, plan.decisions);
  const char* const has_it = plan.decisions.delayed_update ? "micro_first" : "update";
  if (const int update = plan.schedule.find(has_it); update >= 0)
    plan.host_update = host_update(plan.schedule.at(update), search.cost());
  if (const int update = plan.schedule.find("update"); update >= 0)
    plan.disk = disk_traffic(plan.schedule.at(update), plan.schedule.disk_bytes(), search.cost());
  plan.fits = (budget == 0 || plan.engine_bytes + plan.runtime_bytes <= budget) && host_fits(plan);
}

}  // namespace

int64_t declared_runtime_bytes(int threads, int64_t vocabulary, Place place) {
  // Of a GPU it is memory there: context, code, handles of libraries. Assumed; memory.json says
  // what a run found.
  if (place == Place::cuda) return int64_t{768} << 20;
  // Measured on x86-64 Linux, glibc: 6 MiB of program and library data, 0.2 MiB a thread, up to 0.6
  // KiB a token for a byte-level tokenizer's tables. Declared with room, since a run stops if
  // exceeded.
  return (int64_t{16} << 20) + threads * (int64_t{1} << 20) + vocabulary * 1024 +
         (place == Place::emu ? simt::emu::kPreparedBytes : 0);
}

int64_t process_private_bytes() {
  std::ifstream in("/proc/self/status");
  std::string word;
  while (in >> word)
    if (word == "RssAnon:") {
      int64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  return 0;
}

// Of Open MPI 4.1 2.8 MiB, and 0.1 MiB for each other rank, were measured.
int64_t runtime_bytes_of(const PlanRequest& r) {
  const Place place = r.settings.target;
  int64_t more = 0;
  if (r.staged && place == Place::cpu) more = (int64_t{4} << 20) + r.ranks * (int64_t{192} << 10);
  if (r.staged && place == Place::cuda) more = nccl_bytes(r.ranks);
  if (r.runtime_bytes >= 0) return r.runtime_bytes + (place == Place::cuda ? more : 0);
  return declared_runtime_bytes(r.settings.threads, r.model->spec().V, place) + more;
}

int64_t free_bytes_now(const PlanRequest& r) {
  const bool ram = r.settings.target != Place::cuda;
  // A budget that was not set is what was free when it was read: asked again that is another
  // number.
  const int64_t bytes =
      ram && r.reserve > 0 ? r.budget : make_device(Place::cpu)->memory_info().available_bytes;
  // Ranks share RAM; a budget that was not set is a rank's already.
  const int64_t share = ram && r.reserve > 0 ? bytes : bytes / r.ranks_on_machine;
  return std::max<int64_t>(1, share - (ram ? runtime_bytes_of(r) : 0));
}

int64_t forget_free_bytes(PlanRequest& r, bool other_budgets) {
  bool away = r.use_host || r.paged_states || (!r.offload.none() && !r.offload.open());
  for (const ResidenceKey& key : residence_keys()) away = away || r.*key.asked == "cpu";
  if (away || r.settings.target == Place::cuda || (r.reserve > 0 && !other_budgets)) return 0;
  return std::exchange(r.free_bytes, 0);
}

int64_t host_ram_bytes(const Plan& p) {
  return (p.place == Place::cuda ? 0 : p.engine_bytes) + p.host_bytes;
}

bool host_fits(const Plan& p) {
  return (p.host_budget == 0 || p.host_bytes <= p.host_budget) &&
         (p.free_bytes == 0 || host_ram_bytes(p) <= p.free_bytes);
}

namespace {

int64_t checkpoint_data_bytes(const PlanRequest& r) {
  const ParamTable& table = r.model->params();
  const int64_t weights =
      r.model->adapters().empty() ? table.real_elements() : table.real_trained_elements();
  return size_of(r.model->precision().master) * weights +
         checkpoint_state_bytes(make_optimizer(r.optimizer)->states(table), table);
}

}  // namespace

int64_t save_ring_bytes(const PlanRequest& r) {
  constexpr int64_t kUsual = 4 << 20;
  int64_t bytes = r.save_buffer;
  if (bytes < 0) bytes = kUsual;
  if (bytes == 0) bytes = kSaveSlotBytes;
  bytes = std::min(bytes, checkpoint_data_bytes(r));
  return round_up(std::max(bytes, kLeastSaveRingBytes), kLeastSaveRingBytes);
}

namespace {

// Up to the first op that waits until what it changes is saved.
int64_t flops_before_update(const Program& p) {
  int64_t flops = 0;
  for (const OpRecord& op : p.ops) {
    if (std::string_view(op.name).ends_with("_update")) break;
    flops += op.flops;
  }
  return flops;
}

// What a checkpoint costs: the time of a step's forward and backward is known from below, by its
// arithmetic at the machine's best rate, so the stall is known from above.
void predict_saving(const PlanRequest& r, Plan& plan) {
  const bool late =
      plan.decisions.delayed_update;  // an update that comes behind the first micro-step
  if (late && plan.checkpoint_bytes > 0)
    plan.checkpoint_bytes +=
        r.model->params().real_trained_elements() * size_of(plan.decisions.gradients);
  if (plan.checkpoint_bytes <= 0 || plan.decisions.save_ring <= 0) return;
  plan.save_background = r.save_buffer != 0;
  plan.save_seconds = static_cast<double>(plan.checkpoint_bytes) / kSaveRate;
  plan.save_stall = plan.save_seconds;
  if (!plan.save_background) return;
  double flops = 0;
  const Schedule& s = plan.schedule;
  for (const StepPart& part : step_parts(s, plan.accumulation))
    if (const Program& p = s.at(part.program); is_micro_step(p) && (flops == 0 || !late))
      flops += static_cast<double>(flops == 0 ? flops_before_update(p) : p.flops()) *
               static_cast<double>(part.runs);
  const double meanwhile = r.step_flops_rate > 0 ? flops / r.step_flops_rate : 0.0;
  const auto beyond = static_cast<double>(plan.checkpoint_bytes - plan.decisions.save_ring);
  plan.save_stall = std::max(0.0, beyond / kSaveRate - meanwhile);
}

}  // namespace

namespace {

void note_collectives(const PlanRequest& r, Plan& plan) {
  if (r.cost == nullptr) return;
  const int ranks = plan.decisions.ranks;
  const int64_t rows = plan.decisions.micro_batch * plan.decisions.T;
  for (const auto& [program, runs] : step_parts(plan.schedule, plan.accumulation)) {
    const Program& p = plan.schedule.at(program);
    std::vector<double> with, without;
    for (const OpRecord& op : p.ops) {
      with.push_back(r.cost->seconds(op, rows));
      without.push_back(with.back());
      const int64_t bytes = received_bytes(op, ranks);
      if (bytes < 0) continue;
      without.back() = 0;
      plan.collective_bytes += runs * bytes;
      plan.collective_seconds += static_cast<double>(runs) * with.back();
    }
    plan.collective_exposed +=
        static_cast<double>(runs) * (last_end(op_spans(p, with)) - last_end(op_spans(p, without)));
  }
}

}  // namespace

Plan make_plan(const PlanRequest& request) {
  PlanSearch search(request);
  Plan plan = make_plan(request, search);
  if (!plan.fits) plan.offers = plan_offers(request, plan, search.recordings());
  return plan;
}

bool packed_copies_pay(int64_t weights, int64_t copies) {
  return copies > 0 && copies < weights + weights / 2 + (1 << 20);
}

Plan make_plan(const PlanRequest& r, PlanSearch& search) {
  const double started = monotonic_seconds();
  Plan plan;
  plan.place = r.settings.target;
  plan.threads = r.settings.threads;
  plan.tf32 = r.settings.tf32;
  plan.budget = r.budget;
  plan.host_budget = r.host_budget;
  plan.free_bytes = r.free_bytes;
  plan.free_before = r.free_before;
  plan.reserve = r.reserve;
  plan.advice = advice(r);
  if (r.global_batch > 0) {
    plan.checkpoint_bytes = checkpoint_data_bytes(r);
  }
  plan.global_batch = r.global_batch;
  plan.rows = r.rows;
  plan.row_tokens = r.row_tokens;
  plan.target = r.target;
  plan.runtime_bytes = runtime_bytes_of(r);
  plan.parameters = r.model->params().real_elements();
  plan.no_master = no_master(r.model->precision());
  plan.compensated = plan.no_master && compensates(r.optimizer);
  if (r.global_batch > 0)
    plan.resting_states = resting_text(*make_optimizer(r.optimizer), r.model->params());
  plan.model_text =
      fmt::format("{} {} parameters", r.model->spec().family,
                  human_count(static_cast<double>(r.model->params().real_elements())));
  if (const ParamTable& table = r.model->params();
      table.real_trained_elements() < table.real_elements())
    plan.model_text += fmt::format(", {} ({:.2f} %) of them trained",
                                   human_count(static_cast<double>(table.real_trained_elements())),
                                   100.0 * static_cast<double>(table.real_trained_elements()) /
                                       static_cast<double>(table.real_elements()));
  if (const ParamTable& table = r.model->params(); !r.model->adapters().empty())
    plan.model_text += fmt::format(" in adapters; the frozen rest takes {}",
                                   human_bytes((table.flat_elements() - table.trained_elements()) *
                                                   size_of(r.model->precision().compute) +
                                               table.coded_bytes()));
  if (const ParamTable& table = r.model->params(); !table.coded().empty()) {
    int64_t coded = 0;
    for (const int i : table.coded()) coded += table[i].elements();
    plan.model_text +=
        fmt::format(", {} of it as {} in {:.4f} bytes a parameter",
                    human_count(static_cast<double>(coded)), table.codes()->text(),
                    static_cast<double>(table.coded_bytes()) / static_cast<double>(coded));
    if (const std::string products = table.codes()->of_products(); !products.empty())
      plan.model_text += fmt::format(" ({})", products);
  }
  plan.made_for = plan_facts(r);
  plan.computes_on = r.computes_on;
  plan.attention_note = r.attention_note;
  plan.runtime_calibrated = r.runtime_measured;

  int64_t room = r.budget > 0 ? r.budget - plan.runtime_bytes : kNoLimit;
  plan.cost = search.cost().text();

  // The smallest engine: what minimum_bytes promises.
  if (!search.smallest) {
    search.smallest = std::make_unique<Plan>();
    // One whose offloaded part the host has room for, if there is one; `fits` says that here.
    for (const PlanSearch::Choice& c : search.least()) {
      Plan& least = *search.smallest;
      if (least.fits && c.engine_bytes >= least.engine_bytes) break;
      if (least.fits && search.packed_at_least(c.decisions) >= least.engine_bytes) continue;
      Plan packed = plan;
      finish(packed, *search.record(c.decisions), search, 0);
      packed.optimality = c.optimality;
      if (least.engine_bytes == 0 || (packed.fits && !least.fits) ||
          (packed.fits == least.fits && packed.engine_bytes < least.engine_bytes))
        least = std::move(packed);
    }
  }
  Plan smallest = *search.smallest;
  smallest.budget = r.budget;
  smallest.free_before = r.free_before;
  smallest.reserve = r.reserve;
  const bool possible = r.budget == 0 || smallest.engine_bytes + plan.runtime_bytes <= r.budget;
  smallest.fits = possible && host_fits(smallest);
  plan.minimum_bytes = smallest.minimum_bytes = smallest.engine_bytes + plan.runtime_bytes;

  // Repair: where packing misses the bound, the fastest choice of fewer bytes. Of no fewer than it
  // must be: a smaller budget may have what lies between, and more memory is never slower. Only
  // where that leads nowhere, so many less as were missing.
  const auto choose = [&] {
    int64_t less = 0;
    for (int round = 0; round < kRepairs + kLastRepairs && !plan.fits; ++round) {
      const PlanSearch::Choice c = search.best(room - less);
      if (!c.feasible) break;
      finish(plan, *search.record(c.decisions), search, r.budget);
      plan.optimality = c.optimality;
      plan.moved = c.moved;
      if (round == 0) {
        plan.unmoved_seconds = c.unmoved_seconds;
        plan.bound_seconds = c.bound_seconds;
      }
      plan.repairs = round;
      if (plan.engine_bytes <= room) break;  // it is the host that has no room
      const int64_t missing = round < kRepairs ? 0 : less + plan.engine_bytes - room;
      less = std::max(missing, room - c.engine_bytes + 1);
    }
  };
  // Memory that was not set need not all be taken. The fastest of less and less room, each a geometric
  // mean, until that is too slow.
  const auto take_less = [&] {
    const double fastest = plan.step_seconds, enough = fastest * (1 + Plan::kAsFast);
    int64_t low = smallest.engine_bytes, high = plan.engine_bytes;
    PlanSearch::Choice small;
    const auto try_room = [&](int64_t bytes) {
      const PlanSearch::Choice c = search.best(bytes, false);
      const bool good = c.feasible && c.step_seconds <= enough;
      if (good) small = c;
      return good;
    };
    if (try_room(low)) high = low;
    while (high > low + std::max(high / 64, kArenaUnit)) {
      const auto middle =
          static_cast<int64_t>(std::sqrt(static_cast<double>(low) * static_cast<double>(high)));
      if (try_room(middle))
        high = std::min(middle, small.engine_bytes);
      else
        low = middle;
    }
    if (!small.feasible) return;
    Plan less = plan;
    finish(less, *search.record(small.decisions), search, r.budget);
    if (!less.fits || less.engine_bytes >= plan.engine_bytes || less.step_seconds > enough) return;
    less.optimality = small.optimality;
    less.moved = small.moved;
    less.unmoved_seconds = small.unmoved_seconds;
    less.fastest_bytes = plan.engine_bytes + plan.runtime_bytes;
    less.fastest_seconds = fastest;
    plan = std::move(less);
  };
  bool held = false;
  if (possible) {
    choose();
    // Only where that does not fit what is free is asked for less: so what is free decides nothing
    // where there is enough of it.
    const bool ram = plan.place != Place::cuda && r.free_bytes > 0 && r.free_bytes < room;
    if (!plan.fits && ram && smallest.fits) {
      held = true;
      room = r.free_bytes;
      choose();
    }
    const bool unset = r.reserve > 0 || r.whole_device;
    if (plan.fits && unset && plan.decisions.micro_batch > 0 && r.follow.path.empty()) take_less();
  }
  if (!plan.fits) {
    plan = std::move(smallest);
    // Where the device suffices it is the host that does not: what needs the least of it?
    const auto missing = [](const Plan& p) {
      return (p.host_budget > 0 ? std::max<int64_t>(0, p.host_bytes - p.host_budget) : 0) +
             (p.free_bytes > 0 ? std::max<int64_t>(0, host_ram_bytes(p) - p.free_bytes) : 0);
    };
    if (!plan.fits && possible)
      for (const PlanSearch::Choice& c : search.least()) {
        if (c.engine_bytes > room) continue;
        Plan packed = plan;
        finish(packed, *search.record(c.decisions), search, r.budget);
        if (packed.engine_bytes <= room && missing(packed) < missing(plan))
          plan = std::move(packed);
      }
  }
  plan.held_to_free = held;
  // Decoding reads every weight for one row: from packed copies it does so at the speed of memory,
  // twice as fast, as long as the copies are no larger than the weights: where bf16 is multiplied
  // in fp32 they are twice the size, and nothing is won. In training the search decides.
  if (plan.fits && !r.packed_weights && r.global_batch == 0 && r.kv_length > 0) {
    Decisions d = plan.decisions;
    d.packed_weights = WeightPacking::forward;
    const std::unique_ptr<Session> session = search.record(d);
    Plan richer = plan;
    const Schedule& s = session->schedule();
    int64_t weights = 0, copies = 0;
    for (const TensorRecord& t : s.at(s.find("root")).tensors) {
      if (t.category == Category::weights) weights += t.bytes;
      if (t.category == Category::packed_weights) copies += t.bytes;
    }
    if (packed_copies_pay(weights, copies) && s.lower_bound() <= room)
      finish(richer, *session, search, r.budget);
    if (richer.fits && richer.decisions.packed_weights == d.packed_weights)
      plan = std::move(richer);
  }
  if (plan.decisions.micro_batch > 0)
    plan.accumulation = ceil_div(rank_batch(r), plan.decisions.micro_batch);
  if (plan.decisions.ranks > 1 && plan.accumulation > 0) note_collectives(r, plan);
  if (!r.follow.path.empty()) {
    check_followed(r, plan);
    plan.followed = r.follow.path;
    plan.optimality = "as " + r.follow.path + " says";
  }
  predict_saving(r, plan);
  // What a followed plan costs is not asked: there is no other to compare it with.
  if (plan.fits && r.budget > 0 && plan.decisions.micro_batch > 0 && r.follow.path.empty()) {
    plan.unlimited_seconds = search.best(kNoLimit, false).step_seconds;
    const PlanSearch::Choice more = search.best(room + Plan::kMoreBytes, false);
    plan.more_seconds = more.step_seconds;
    plan.more_decisions = changed_decisions(plan.decisions, more.decisions);
  }
  plan.seconds = monotonic_seconds() - started;
  return plan;
}

}  // namespace snug
