// What a plan says to people and to programs.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/io/fingerprint.h"
#include "tools/costs/kernel_choices.h"
#include "tools/planner/decision_table.h"
#include "tools/planner/offers.h"
#include "tools/planner/plan.h"
#include "tools/planner/plan_search.h"
#include "tools/planner/rank_words.h"
#include "tools/planner/residence.h"
#include "tools/session/step_parts.h"

namespace snug {
namespace {

const char* proof_text(PackProof proof) {
  switch (proof) {
    case PackProof::lower_bound:
      return "height equals the lower bound";
    case PackProof::exhausted:
      return "proved optimal by exhaustive search";
    case PackProof::none:
      return "gap open";
  }
  return "?";
}

// The same plan found on two ways has sums of other order: less than this is no difference.
constexpr double kSameSeconds = 1e-9;

// A share of the step's time.
double slower_than_unlimited(const Plan& plan) {
  if (plan.unlimited_seconds <= 0) return 0.0;
  const double slower = plan.step_seconds / plan.unlimited_seconds - 1;
  return slower > kSameSeconds ? slower : 0.0;
}

// Of tokens/s, which words for people compare alone: a step 14.5 % longer is 12.6 % fewer.
double more_tokens(double seconds, double other) {
  return other > 0 ? std::max(0.0, seconds / other - 1) : 0.0;
}
double fewer_tokens(double seconds, double other) {
  return seconds > 0 && other > 0 ? std::max(0.0, 1 - other / seconds) : 0.0;
}
double fewer_than_unlimited(const Plan& plan) {
  return slower_than_unlimited(plan) > 0 ? fewer_tokens(plan.step_seconds, plan.unlimited_seconds)
                                         : 0.0;
}

double faster_with_more(const Plan& plan) {
  return more_tokens(plan.step_seconds, plan.more_seconds);
}
// "1.2 %"; what is below a twentieth of one is nothing.
std::string percent(double share) {
  return share < 0.0005 ? "nothing" : fmt::format("{:.1f} %", 100.0 * share);
}

nlohmann::json saving_json(const Plan& plan) {
  if (plan.save_seconds <= 0) return nullptr;
  return {{"background", plan.save_background},
          {"ring_bytes", plan.decisions.save_ring},
          {"disk_bytes_per_second", kSaveRate},
          {"predicted_seconds", plan.save_seconds},
          {"predicted_stall_seconds_at_most", plan.save_stall}};
}

nlohmann::json decisions_json(const Plan& plan) {
  const Decisions& d = plan.decisions;
  nlohmann::json j = {{"max_length", d.T},
                      {"gradient_accumulation_steps", plan.accumulation},
                      {"no_master", plan.no_master},
                      {"packing_boundaries", d.packing_boundaries},
                      {"rows_per_window", d.rows_per_window},
                      {"kv_length", d.kv_length},
                      {"kv_rows", d.kv_rows},
                      {"prefill", d.prefill},
                      {"threads", plan.threads},
                      {"device", to_string(plan.place)},
                      {"instruction_set", plan_instruction_set()},
                      {"attention", plan.attention},
                      {"kernels", choices_json(plan.kernels)}};
  add_decisions(j, d);
  if (d.ranks > 1) j["ranks"] = d.ranks, j["zero"] = d.zero;
  if (d.staged) j["transport"] = transport_word(plan.place);
  if (d.pairs.any()) j["pairs_per_window"] = d.pairs.per_window;
  if (d.pairs.cached) j["precompute_ref_log_probs"] = true;
  if (d.pairs.any() && !d.pairs.reward) j["loss_type"] = facts_of(d.pairs.loss.kind).name;
  return j;
}

// What memory costs and what more of it would buy.
nlohmann::json price_json(const Plan& plan) {
  if (plan.unlimited_seconds <= 0) return nullptr;
  return {{"slower_than_unlimited", slower_than_unlimited(plan)},
          {"fewer_tokens_than_unlimited", fewer_than_unlimited(plan)},
          {"more_bytes", Plan::kMoreBytes},
          {"faster_with_more", faster_with_more(plan)},
          {"decisions_with_more", plan.more_decisions}};
}

// What the fastest plan takes, where memory was not set and this one is as fast in less.
nlohmann::json fastest_json(const Plan& plan) {
  if (plan.fastest_bytes == 0) return nullptr;
  return {{"memory", plan.fastest_bytes},
          {"predicted_tokens_per_second", plan.step_tokens() / plan.fastest_seconds},
          {"as_fast_within", Plan::kAsFast}};
}

// What the planner took the host's memory for, and what it would be without.
nlohmann::json residence_json(const Plan& plan) {
  if (!plan.moved) return nullptr;
  return {{"host_bytes", plan.host_bytes},
          {"seconds_without", plan.unmoved_seconds > 0 ? nlohmann::json(plan.unmoved_seconds)
                                                       : nlohmann::json(nullptr)},
          {"margin", PlanSearch::kHostMargin}};
}

// Of the machine: what was free, of which `free_bytes` leaves out what the runtime takes.
int64_t free_ram(const Plan& plan) {
  return plan.free_bytes + (plan.place == Place::cuda ? 0 : plan.runtime_bytes);
}

bool short_of_ram(const Plan& plan) {
  return plan.free_bytes > 0 && host_ram_bytes(plan) > plan.free_bytes;
}

// The smallest plan, which is shown if none fits, takes more of the host than the user allows.
bool short_of_host(const Plan& plan) {
  return plan.host_budget > 0 && plan.host_bytes > plan.host_budget;
}

// So much is not free, whatever the budget.
bool frees_first(const Plan& plan) {
  if (plan.reserve == 0) return short_of_ram(plan);
  return plan.minimum_bytes + (plan.place == Place::cuda ? 0 : plan.host_bytes) > plan.free_before;
}

// "1048576 B (1.00 MiB)".
std::string exactly(int64_t bytes) {
  return fmt::format("{} B ({})", bytes, human_bytes(bytes));
}

// Bytes that cross in a step.
int64_t bytes_crossing(const Plan& plan, StreamId stream) {
  int64_t bytes = 0;
  for (const auto& [program, runs] : step_parts(plan.schedule, plan.accumulation))
    bytes += runs * plan.schedule.at(program).bytes_copied(stream);
  return bytes;
}

nlohmann::json offers_json(const Plan& plan) {
  nlohmann::json list = nlohmann::json::array();
  for (const Offer& o : plan.offers)
    list.push_back({{"keys", o.keys},
                    {"effect", o.effect},
                    {"minimum_bytes", o.minimum_bytes},
                    {"host_bytes", o.host_bytes},
                    {"enough", o.enough}});
  return list;
}

// The tensors that hold the peak, largest first, residents of ancestors included.
std::vector<const TensorRecord*> holders(const Plan& plan, size_t most) {
  const Schedule& s = plan.schedule;
  std::vector<const TensorRecord*> list;
  const int peak = s.peak_program();
  for (int i = peak; i >= 0; i = s.at(i).parent)
    for (const TensorRecord& t : s.at(i).tensors)
      if (t.residence == Residence::device && (i != peak || (t.born <= s.at(i).packing.peak_time &&
                                                             s.at(i).packing.peak_time < t.died)))
        list.push_back(&t);
  std::stable_sort(list.begin(), list.end(), [](const TensorRecord* a, const TensorRecord* b) {
    return a->bytes > b->bytes;
  });
  if (list.size() > most) list.resize(most);
  return list;
}

// When the peak is: "in micro_first at attention_backward of h.3".
std::string binding_instant(const Plan& plan) {
  const Program& p = plan.schedule.at(plan.schedule.peak_program());
  const OpRecord* at = nullptr;  // the one that what was born then is for
  for (const OpRecord& op : p.ops)
    if (at == nullptr || at->time <= p.packing.peak_time) at = &op;
  std::string text = fmt::format("in {}", p.name.view());
  if (at != nullptr) text += fmt::format(" at {}", at->name);
  if (at != nullptr && !at->scope.empty()) text += fmt::format(" of {}", at->scope.view());
  return text;
}

// What is with the host beside the optimizer's state, of which all that comes leaves again.
bool brings_more_than_states(const Decisions& d) {
  Homes homes = d;
  homes.offload_optimizer = false;
  return rests_away(homes);
}

// What is proved of the choice, by the same costs.
std::string gap_text(const Plan& plan) {
  if (plan.decisions.offload_params)
    return "of weights with the host the presets alone are looked at";
  if (plan.decisions.offload_gradients)
    return "of gradients with the host the presets alone are looked at";
  if (plan.gap() < 1e-6) return "proved that none of the plans it knows is faster";
  return fmt::format(
      "proved that none of the plans it knows has more than {:.2f} % more tokens/s ({})",
      100 * more_tokens(plan.step_seconds, plan.bound_seconds) + 0.005,
      human_seconds(plan.bound_seconds) + " a step at least");
}

}  // namespace

std::string plan_sentence(const Plan& plan) {
  const Decisions& d = plan.decisions;
  std::string s;
  if (!plan.fits && (plan.budget == 0 || plan.minimum_bytes <= plan.budget))
    return plan.host_bytes > 0
               ? fmt::format(
                     "Does not fit: the host's memory has no room for the {} that are offloaded.",
                     human_bytes(plan.host_bytes))
               : fmt::format("Does not fit: of the {} that it needs at least {} are free.",
                             human_bytes(plan.minimum_bytes), human_bytes(free_ram(plan)));
  if (!plan.fits)
    return short_of_host(plan)
               ? fmt::format("Does not fit: it takes {} of memory at least, and {} of host_memory.",
                             human_bytes(plan.minimum_bytes), human_bytes(plan.host_bytes))
               : fmt::format("Does not fit: {} is the smallest memory that works.",
                             human_bytes(plan.minimum_bytes));
  if (d.micro_batch > 0) {
    s = plan.rows > 0
            ? fmt::format("{} {} a step, in about {} windows of {} tokens", plan.rows,
                          d.pairs.any() ? d.pairs.nouns() : "rows", plan.global_batch, d.T)
            : fmt::format("{} sequences of {} tokens a step", plan.global_batch, d.T);
    if (d.ranks > 1) s += fmt::format(", shared by {} ranks", d.ranks);
    s += plan.accumulation > 1
             ? fmt::format(" in {} micro-batches of {}", plan.accumulation, d.micro_batch)
         : d.ranks > 1 ? fmt::format(" in one micro-batch of {} each", d.micro_batch)
                       : std::string(" at once");
    s += zero_words(d);
    s += d.recompute.none() ? ", everything kept for backward"
                            : fmt::format(", recomputing {}", d.recompute.brief());
    if (!d.offload.none()) s += fmt::format(", offloading {}", d.offload.brief());
    if (const std::string rests = rests_with_host(d); !rests.empty())
      s += ", " + rests + " with the host" + (d.update_on_host ? ", which updates them" : "") +
           (d.delayed_update ? " one step late, so that each step has weights one update older"
                             : "");
    if (d.states_on_disk) s += ", the optimizer's state on disk";
    s += fmt::format(", logits in chunks of {} rows", d.head_rows);
    if (d.gradients != DType::f32)
      s += fmt::format(", gradients held in {}", to_string(d.gradients));
    if (plan.no_master)
      s += plan.compensated ? ", bf16 weights without a master, with a compensation"
                            : ", bf16 weights without a master, rounded at random";
    if (!plan.resting_states.empty()) s += ", optimizer states in " + plan.resting_states;
    if (d.update_in_backward) s += ", layers updated as backward leaves them";
    if (d.packing_boundaries && plan.rows == 0) s += ", documents kept apart";
    if (plan.unlimited_seconds > 0)
      s += fewer_than_unlimited(plan) < 0.0005
               ? std::string(", as fast as without a budget")
               : fmt::format(", {} fewer tokens/s than without a budget",
                             percent(fewer_than_unlimited(plan)));
    if (d.packed_weights != WeightPacking::none)
      s += d.packed_weights == WeightPacking::both
               ? ", weights also packed for both directions"
               : ", weights also packed for the forward products";
  } else {
    s = "Inference";
    if (d.kv_length > 0)
      s += fmt::format(" with a cache of {}{} tokens",
                       d.kv_rows > 1 ? fmt::format("{} x ", d.kv_rows) : "", d.kv_length);
    if (d.packed_weights != WeightPacking::none) s += ", weights also packed for decoding";
    if (d.eval_batch > 0) s += fmt::format(" of {} sequences of {} tokens", d.eval_batch, d.T);
  }
  return s + ".";
}

std::string plan_hash(const Plan& plan) {
  Fingerprint h;
  const auto number = [&](int64_t v) { h.add(&v, sizeof v); };
  const auto text = [&](std::string_view v) {
    number(static_cast<int64_t>(v.size()));
    h.add(v);
  };
  text(decisions_json(plan).dump());
  for (int i = 0; i < plan.schedule.size(); ++i) {
    const Program& p = plan.schedule.at(i);
    text(p.name.view());
    number(p.base);
    for (size_t k = 0; k < p.tensors.size(); ++k) {
      text(p.tensors[k].name.view());
      number(p.tensors[k].bytes);
      number(p.tensors[k].born);
      number(p.packing.offsets[k]);
      number(static_cast<int64_t>(p.tensors[k].residence));
      number(p.host_packing.offsets[k]);
    }
    for (const OpRecord& op : p.ops) text(op.name);
    for (const SyncRecord& e : p.syncs) number(e.event * kStreams + e.stream);
  }
  return fmt::format("{:016x}", h.digest());
}

nlohmann::json plan_json(const Plan& plan) {
  const Schedule& s = plan.schedule;
  const Program& peak = s.at(s.peak_program());
  nlohmann::json categories = nlohmann::json::object();
  for (int i = 0; i < kCategories; ++i)
    categories[to_string(static_cast<Category>(i))] = plan.categories[static_cast<size_t>(i)];
  categories["padding"] = plan.padding;

  int64_t height = 0, bound = 0;
  nlohmann::json programs = nlohmann::json::array();
  for (int i = 0; i < s.size(); ++i) {
    const Program& p = s.at(i);
    if (&p == &peak) {
      height = p.end();
      bound = p.base + p.packing.lower_bound;
    }
    programs.push_back({{"name", p.name.str()},
                        {"base", p.base},
                        {"height", p.packing.height},
                        {"lower_bound", p.packing.lower_bound},
                        {"proof", proof_text(p.packing.proof)},
                        {"tensors", p.tensors.size()},
                        {"ops", p.ops.size()},
                        {"flops", p.flops()},
                        {"bytes_moved", p.bytes_moved()},
                        {"host_height", p.host_packing.height},
                        {"host_lower_bound", p.host_packing.lower_bound},
                        {"bytes_to_host", p.bytes_copied(kToHost)},
                        {"bytes_to_device", p.bytes_copied(kToDevice)}});
  }
  nlohmann::json top = nlohmann::json::array();
  for (const TensorRecord* t : holders(plan, 8))
    top.push_back(
        {{"name", t->name.str()}, {"bytes", t->bytes}, {"category", to_string(t->category)}});
  nlohmann::json j = {
      {"format_version", kPlanFormat},
      {"made_for", plan.made_for},
      {"fits", plan.fits},
      {"model", plan.model_text},
      {"parameters", plan.parameters},
      {"budget_bytes", plan.budget > 0 ? nlohmann::json(plan.budget) : nlohmann::json(nullptr)},
      {"engine_bytes", plan.engine_bytes},
      {"runtime_bytes", plan.runtime_bytes},
      {"host_bytes", plan.host_bytes},
      {"disk_bytes", plan.disk.bytes},
      {"checkpoint_bytes", plan.checkpoint_bytes},
      {"checkpoints", saving_json(plan)},
      {"host_budget_bytes",
       plan.host_budget > 0 ? nlohmann::json(plan.host_budget) : nlohmann::json(nullptr)},
      {"minimum_bytes", plan.minimum_bytes},
      {"free_bytes", plan.held_to_free || short_of_ram(plan) ? nlohmann::json(free_ram(plan))
                                                             : nlohmann::json(nullptr)},
      {"predicted_tokens_per_second",
       plan.step_seconds > 0 ? nlohmann::json(plan.tokens_per_second()) : nlohmann::json(nullptr)},
      {"empty_share",
       plan.empty_share() >= 0 ? nlohmann::json(plan.empty_share()) : nlohmann::json(nullptr)},
      {"predicted_step_seconds",
       plan.step_seconds > 0 ? nlohmann::json(plan.step_seconds) : nlohmann::json(nullptr)},
      {"prediction", plan.cost},
      {"graphs", plan.graphs},
      {"target", plan.target.empty() ? nlohmann::json(nullptr) : nlohmann::json(plan.target)},
      {"residence", residence_json(plan)},
      {"host_update", host_update_json(plan.host_update)},
      {"disk", disk_json(plan.disk)},
      {"offers", offers_json(plan)},
      {"solver",
       {{"result", plan.optimality},
        {"bound_seconds",
         plan.bound_seconds > 0 ? nlohmann::json(plan.bound_seconds) : nlohmann::json(nullptr)},
        {"gap", plan.bound_seconds > 0 ? nlohmann::json(plan.gap()) : nlohmann::json(nullptr)},
        {"repairs", plan.repairs}}},
      {"price", price_json(plan)},
      {"fastest", fastest_json(plan)},
      {"packing",
       {{"height", height}, {"lower_bound", bound}, {"proof", proof_text(peak.packing.proof)}}},
      {"categories", categories},
      {"decisions", decisions_json(plan)},
      {"computes_on", computes_on_json(plan.computes_on)},
      {"attention_note",
       plan.attention_note.empty() ? nlohmann::json() : nlohmann::json(plan.attention_note)},
      {"runtime_calibrated", plan.runtime_calibrated},
      {"sentence", plan_sentence(plan)},
      {"peak", {{"program", peak.name.str()}, {"holders", top}}},
      {"programs", programs},
      {"planning_seconds", plan.seconds},
      {"hash", plan_hash(plan)}};
  if (plan.decisions.ranks > 1) j["collectives"] = collectives_json(plan);
  j["seal"] = plan_seal(j);
  return j;
}

std::string plan_text(const Plan& plan) {
  const Schedule& s = plan.schedule;
  const Program& peak = s.at(s.peak_program());
  std::string out;
  out += fmt::format("Plan for {} ({})\n", plan.model_text, plan.parameters);
  out += fmt::format("  {}\n\n", plan_sentence(plan));
  const auto row = [&](std::string_view name, int64_t bytes, std::string_view note = "") {
    out += fmt::format("  {:<14}{:>16} B  {:>11}  {}\n", name, bytes, human_bytes(bytes), note);
  };
  for (int i = 0; i < kCategories; ++i)
    if (const int64_t bytes = plan.categories[static_cast<size_t>(i)];
        bytes > 0 && i != static_cast<int>(Category::offload))
      row(to_string(static_cast<Category>(i)), bytes);
  if (plan.padding > 0) row("padding", plan.padding, "rounding and gaps");
  out += "  " + std::string(44, '-') + "\n";
  row("engine", plan.engine_bytes, "exact: reserved once, flat to the end");
  row("runtime", plan.runtime_bytes,
      plan.runtime_calibrated     ? "measured by snug calibrate: context, libraries, graphs"
      : plan.place == Place::cuda ? "assumed of the device's driver and libraries"
      : plan.target.empty()       ? "allowance: program, libraries, stacks, tokenizer"
                                  : "assumed of the device's driver and libraries");
  row("total", plan.engine_bytes + plan.runtime_bytes);
  if (plan.budget > 0)
    row("budget", plan.budget,
        plan.reserve > 0 ? fmt::format("memory was not set: what is free now less a reserve of {}",
                                       human_bytes(plan.reserve))
                         : std::string());
  if (plan.held_to_free)
    row("free", free_ram(plan), "of this machine's RAM now: less than the budget, and what holds");
  if (plan.host_bytes > 0) {
    const std::string bound =
        plan.host_budget > 0 ? fmt::format(", host_memory allows {}", human_bytes(plan.host_budget))
                             : std::string();
    row("host", plan.host_bytes,
        (plan.place == Place::cpu ? "exact, in the host's memory: what is offloaded"
                                  : "exact, in the host's memory: batches, checkpoints on their "
                                    "way, what is offloaded") +
            bound);
  } else if (plan.host_budget > 0) {
    row("host", 0, "nothing is kept in host_memory");
  }
  if (plan.disk.bytes > 0)
    row("disk", plan.disk.bytes, "exact: a file of optimizer state, while the run lasts");
  row("minimum", plan.minimum_bytes, "the smallest memory= that works with these keys");
  const int64_t gap = peak.packing.height - peak.packing.lower_bound;
  out += fmt::format("\n  peak in program {}, packing: {}", peak.name.view(),
                     proof_text(peak.packing.proof));
  if (gap > 0) out += fmt::format(", gap {} B", gap);
  out += "\n  held at the peak:";
  for (const TensorRecord* t : holders(plan, 5))
    out += fmt::format(" {} {}{}", t->name.view(), human_bytes(t->bytes), ",");
  out.pop_back();
  if (!plan.followed.empty())
    out += fmt::format("\n  every decision is that of the plan {}", plan.followed);
  if (plan.place == Place::emu)
    out += "\n  on emu: the kernels for GPUs, run by one thread in the emulator";
  if (plan.place == Place::cuda)
    out += plan.computes_on.defined()
               ? fmt::format("\n  on cuda: memory= is that of {}; {}", plan.computes_on.gpu,
                             describe(plan.computes_on))
               : std::string("\n  on cuda: memory= is the GPU's; products by cuBLASLt");
  if (!plan.attention_note.empty()) out += "\n  attention: " + plan.attention_note;
  if (plan.tf32) out += "\n  precision tf32: products of fp32 round what they multiply to 10 bits";
  if (plan.graphs) out += "\n  the programs of a step are captured and run as graphs";
  if (!plan.target.empty())
    out += fmt::format(
        "\n  made for a described device, {}{}", plan.target,
        plan.place == Place::cuda ? "" : ": bytes of workspaces and kernels are this machine's");
  if (plan.step_seconds > 0)
    out += fmt::format("\n  predicted: {} a step, {:.{}f} tokens/s ({})",
                       human_seconds(plan.step_seconds), plan.tokens_per_second(),
                       plan.tokens_per_second() < 100 ? 2 : 0, plan.cost);
  if (plan.disk.bytes > 0) out += "\n  " + disk_text(plan.disk);
  if (plan.host_update.bytes > 0)
    out += "\n  " + host_update_text(plan.host_update, plan.decisions.delayed_update);
  out += rank_text(plan);
  if (plan.empty_share() >= 0)
    out += fmt::format(
        "\n  {} are {:.1f} tokens long on the mean: about {:.1f} % of the planned rows stay "
        "empty",
        plan.decisions.pairs.any() ? plan.decisions.pairs.nouns() : "rows", plan.row_tokens,
        100 * std::max(0.0, plan.empty_share()));
  if (plan.fastest_bytes > 0) {
    const double more = more_tokens(plan.step_seconds, plan.fastest_seconds);
    out += fmt::format(
        "\n  memory was not set: of the plans within {:.0f} % of the fastest this is the smallest; "
        "memory={} ({}) has {} more tokens/s",
        100 * Plan::kAsFast, plan.fastest_bytes, human_bytes(plan.fastest_bytes),
        more < 0.0005 ? std::string("no") : percent(more));
  }
  if (plan.unlimited_seconds > 0 && plan.fastest_bytes == 0) {
    const double fewer = fewer_than_unlimited(plan);
    out += fewer < 0.0005
               ? std::string("\n  the budget costs no tokens/s against unlimited memory")
               : fmt::format("\n  the budget costs {} of the tokens/s of unlimited memory",
                             percent(fewer));
    if (fewer >= 0.0005)
      out += faster_with_more(plan) < 0.0005
                 ? fmt::format("; {} more would buy nothing", human_bytes(Plan::kMoreBytes))
                 : fmt::format("; {} more would give {} more tokens/s ({})",
                               human_bytes(Plan::kMoreBytes), percent(faster_with_more(plan)),
                               plan.more_decisions);
  }
  if (plan.bound_seconds > 0 && plan.followed.empty())
    out += fmt::format("\n  solver: {}; {}", plan.optimality, gap_text(plan));
  if (plan.moved)
    out += fmt::format(
        "\n  the host's memory was the planner's choice: {} cross the link a step, {} come back; "
        "{}; it counts as {} slower than it is, so that less is no reason to take it",
        human_bytes(bytes_crossing(plan, kToHost)),
        brings_more_than_states(plan.decisions) ? human_bytes(bytes_crossing(plan, kToDevice))
                                                : "as many",
        plan.unmoved_seconds > 0
            ? fmt::format("without it tokens/s would be fewer by {}",
                          percent(fewer_tokens(plan.unmoved_seconds, plan.step_seconds)))
            : std::string("without it nothing fits"),
        percent(PlanSearch::kHostMargin));
  if (plan.checkpoint_bytes > 0)
    out += fmt::format("\n  a checkpoint takes {} of disk", human_bytes(plan.checkpoint_bytes));
  if (plan.save_seconds > 0)
    out += plan.save_background
               ? fmt::format(
                     "\n  it is written in the background through {}: at {:.0f} MB/s in {}, of "
                     "which training waits {} at most",
                     human_bytes(plan.decisions.save_ring), kSaveRate / 1e6,
                     human_seconds(plan.save_seconds), human_seconds(plan.save_stall))
               : fmt::format("\n  training waits while it is written: {} at {:.0f} MB/s",
                             human_seconds(plan.save_seconds), kSaveRate / 1e6);
  out += fmt::format("\n  planned in {:.3f} s, hash {}\n", plan.seconds, plan_hash(plan));
  return out;
}

namespace {

// The machine has not so much RAM free.
[[noreturn]] void refuse_ram(const Plan& plan, const std::string& pinned) {
  const bool ram = plan.place != Place::cuda;
  std::string needed = ram ? fmt::format("{} B of engine", plan.engine_bytes) : std::string();
  if (plan.host_bytes > 0)
    needed += fmt::format("{}{} B of the host's arena{}", ram ? ", " : "", plan.host_bytes,
                          ram ? ", which is RAM too," : "");
  if (ram) needed += fmt::format(" and {} B of runtime", plan.runtime_bytes);
  std::string found = exactly(free_ram(plan)) + " free now";
  if (plan.host_bytes > 0) found += ", " + offloaded_keys(plan.decisions);
  fail(ErrorCode::out_of_memory,
       fmt::format("{} of free memory{}: {}",
                   exactly(host_ram_bytes(plan) + (ram ? plan.runtime_bytes : 0)), pinned, needed),
       found, "to close other programs, or " + offers_text(plan));
}

[[noreturn]] void refuse_host(const Plan& plan, const std::string& pinned) {
  if (plan.host_budget == 0 || plan.host_bytes <= plan.host_budget) refuse_ram(plan, pinned);
  fail(ErrorCode::out_of_memory,
       fmt::format("host_memory of {}, which is enough, for what is offloaded{}",
                   exactly(plan.host_bytes), pinned),
       fmt::format("host_memory of {}, {}", exactly(plan.host_budget),
                   offloaded_keys(plan.decisions)),
       fmt::format("host_memory={} ({}), or {}", plan.host_bytes, human_bytes(plan.host_bytes),
                   offers_text(plan)));
}

}  // namespace

void refuse_plan(const Plan& plan, const std::string& pinned) {
  const std::string for_what = pinned.empty() ? "" : " for " + pinned;
  if (plan.minimum_bytes <= plan.budget || plan.budget == 0) refuse_host(plan, for_what);
  std::string held;
  for (const TensorRecord* t : holders(plan, 5))
    held += fmt::format("{}{} {}", held.empty() ? "" : ", ", t->name.view(), human_bytes(t->bytes));
  // What the device's minimum takes beside it, where the user allows less.
  const bool host = short_of_host(plan);
  const std::string budget =
      plan.reserve > 0 && plan.free_before <= plan.reserve
          ? fmt::format("{} free now, and memory was not set, of which {} are left to others",
                        exactly(plan.free_before), human_bytes(plan.reserve))
          : fmt::format("memory of {}", exactly(plan.budget)) +
                (plan.reserve > 0 ? fmt::format(", which is what is free now less a reserve of {}",
                                                human_bytes(plan.reserve))
                 : short_of_ram(plan) ? fmt::format(", and {} free now", exactly(free_ram(plan)))
                                      : std::string());
  fail(ErrorCode::out_of_memory,
       fmt::format("memory of at least {}{}{}: {} B of engine and {} B of runtime",
                   exactly(plan.minimum_bytes),
                   host ? fmt::format(" and host_memory of {}", exactly(plan.host_bytes)) : "",
                   for_what, plan.minimum_bytes - plan.runtime_bytes, plan.runtime_bytes),
       fmt::format("{}{}; the smallest plan holds at its peak: {} ({})", budget,
                   host ? fmt::format(", host_memory of {}", exactly(plan.host_budget)) : "", held,
                   binding_instant(plan)),
       fmt::format(
           "{}{} ({}){}{}, or {}", plan.global_batch > 0 ? "memory=" : "--memory ",
           plan.minimum_bytes, human_bytes(plan.minimum_bytes),
           host ? fmt::format(" host_memory={} ({})", plan.host_bytes, human_bytes(plan.host_bytes))
                : "",
           frees_first(plan)  ? " when other programs have freed it"
           : plan.reserve > 0 ? ", which is free if less is left to others"
                              : "",
           offers_text(plan)));
}

}  // namespace snug
