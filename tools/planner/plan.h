// Plan: what a run will do to memory, decided and known to the byte before anything is reserved.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/blas/kernel_table.h"
#include "engine/core/units.h"
#include "tools/config/asked.h"
#include "tools/costs/cost_model.h"
#include "tools/session/computes_on.h"
#include "tools/session/session.h"

namespace snug {

// What a plan was made for, that another plan may have been made without: key of the configuration
// -> value, as text.
using PlanFacts = std::map<std::string, std::string>;

// What the host takes for the update of a step, where it updates; no bytes: it does not.
struct HostUpdate {
  double seconds = 0;
  int64_t bytes = 0;  // that it reads and writes
  std::string cost;   // what the prediction rests on
};

// The file that optimizer states rest in, and what of it a step reads and writes; no bytes: there is none.
struct DiskTraffic {
  int64_t bytes = 0, moved = 0;
  double seconds = 0, rate = 0;
  std::string rate_from = "assumed";  // or calibrated, or disk_bandwidth, the key
};

// The plan that is to come out again (plan_file.h); its decisions are fixed in the request.
struct FollowedPlan {
  std::string path, hash, attention;
};

// The keys of the batch as they are set, which what is offered in their place has to unset or to
// follow; 0: not set.
struct BatchKeys {
  int64_t global_size = 0, global_tokens = 0;  // global_batch_size, global_batch_tokens
  int64_t micro = 0;                           // per_device_train_batch_size
  int64_t accumulation = 0;                    // gradient_accumulation_steps
  int64_t head_rows = 0;

  // The global batch is the product of the two, and no key's.
  bool product() const {
    return global_size == 0 && global_tokens == 0 && micro > 0 && accumulation > 0;
  }
};

// What the user fixed and what is left to choose (0 or "auto"). Of Asked what is auto takes the host's
// memory if use_host; head_rows 0: the fastest of 1024, 256, 64.
struct PlanRequest : Asked {
  PlanRequest();  // residences and what a search would try are not open: their first values
  const Model* model = nullptr;
  OptimizerConfig optimizer;
  Settings settings;
  int64_t T = 0;
  int64_t global_batch = 0;  // windows of T tokens of an optimizer step; 0: no training
  // Where rows of unequal length share windows: rows of a step, of which global_batch windows are
  // expected, and of a window at most. 0: a sequence is a window.
  int64_t rows = 0, rows_per_window = 0;
  double row_tokens = 0;  // of a row on the mean, where data is known; 0: windows are full
  // Ranks that share a step, each with as many windows, and what each keeps its piece of alone
  // (Decisions::zero). Bytes are those of one rank.
  int ranks = 1, zero = 0;
  int ranks_on_machine = 1;  // of them, those that share its memory
  bool staged = false;       // ranks share no memory (Decisions::staged)
  // Decisions::in_turn; open: whichever is faster and fits.
  std::optional<bool> in_turn;
  PairDecision pairs;         // of a causal LM whose rows are pairs
  bool token_logits = false;  // of a masked LM's evaluation
  int64_t micro_batch = 0;    // 0: the divisor of global_batch that is fastest
  int64_t eval_batch = 0;     // 0: as many sequences as the micro-batch, if `evaluate`
  bool evaluate = false;
  BatchKeys keys;                 // that set these numbers
  LayerWords recompute = "auto";  // open: chosen for each layer
  LayerWords offload;             // open: chosen, if use_host
  // settings.graphs was asked for: nothing is planned that rules graphs out.
  bool graphs_required = false;
  // Whether what is `auto` may take the host's memory: the device has memory of its own, or the
  // user said how much of the host's there is.
  bool use_host = false;
  bool paged_states = false;  // the same of the optimizer's state alone: a paged_ optimizer
  // Packed copies of the weights; unset: for generation if they fit, in training if they are
  // predicted faster (PlanSearch::kPackingMargin).
  std::optional<WeightPacking> packed_weights;
  int64_t kv_length = 0;  // 0: no generation
  int64_t kv_rows = 1;    // sequences decoded together
  // What gradients are added up in: f32; if allowed bf16 too, whichever is faster; or what a
  // checkpoint pins.
  bool bf16_gradients = false;
  std::optional<DType> gradients;
  // Whether updates by the host may be one step late (Homes::delayed_update), or what a checkpoint or a
  // plan that is followed says.
  bool stale_update = false;
  std::optional<bool> delayed_update;
  std::vector<std::string> allow;  // permissions as given, for what is offered beside them
  // Whether backward consumes gradients, where it may; or what a plan that is followed says.
  std::optional<bool> update_in_backward;
  double max_grad_norm = 0;
  LossScaling loss_scaling;
  bool save = false;
  bool packing_boundaries = false;
  // Bytes of the ring of checkpoints; -1: see save_ring_bytes(). 0: the smallest, and the run waits
  // until a checkpoint is written.
  int64_t save_buffer = 0;
  double step_flops_rate = 0;       // FLOP/s of the machine at most; 0: not known
  const CostModel* cost = nullptr;  // what ops take; null: this machine's, uncalibrated
  std::string target;               // a described device: "rtx4090"; empty: this machine
  int64_t runtime_bytes = -1;       // assumed or measured of it; -1: declared_runtime_bytes()
  bool runtime_measured = false;    // by snug calibrate, on this device
  int64_t calibrated_runtime = -1;  // those, of a run without cuDNN; -1: not measured
  int64_t budget = 0;               // bytes: engine + runtime. 0: no limit
  // If the budget was not set, what was free when it was read, and what of that is left to others.
  int64_t free_before = 0, reserve = 0;
  bool whole_device = false;  // it was not set, and is all memory of a described device
  int64_t host_budget = 0;    // bytes of the host arena. 0: no bound of its own
  // Of the host's memory, that arenas may take of it: its own, and the engine's where that is RAM
  // too. What the runtime takes is not in it. 0: any.
  int64_t free_bytes = 0;
  bool pinned = false;  // micro_batch and head_rows are a checkpoint's, unless allow says so
  // Only choices that leave every bit as it is: memory then decides about recompute alone.
  bool bitwise = false;
  FollowedPlan follow;         // path empty: none
  ComputesOn computes_on;      // on this machine's GPU
  std::string attention_note;  // of cuDNN's, where it was measured faster and is not what computes
  // The same model as the permission no_master would have it, always the same one, made when it is first
  // asked for; empty: the permission is given, or nothing that could be. Of offers alone.
  std::function<const Model*()> without_master;
};

// Samples of an optimizer step: what global_batch_size counts.
inline int64_t samples_per_step(const PlanRequest& r) {
  return r.rows > 0 ? r.rows : r.global_batch;
}

// Windows of a step that a rank has, at most.
inline int64_t rank_batch(const PlanRequest& r) {
  return ceil_div(r.global_batch, int64_t{r.ranks});
}

// A change of keys under which less memory is enough, as planned (tools/planner/offers.h).
struct Offer {
  std::string keys;    // "offload_optimizer=cpu host_memory=1048576"
  std::string effect;  // on the numbers
  int64_t minimum_bytes = 0, host_bytes = 0;
  bool enough = false;  // for the budget that was given
};

struct Plan {
  bool fits = false;
  Place place = Place::cpu;  // that its programs run on
  Decisions decisions;
  int64_t global_batch = 0, rows = 0;  // as in the request
  double row_tokens = 0;
  int64_t accumulation = 0;  // micro-steps an optimizer step, of each rank
  Schedule schedule;         // packed
  int64_t host_budget = 0, free_before = 0, reserve = 0, free_bytes = 0;
  int64_t checkpoint_bytes = 0;  // of one checkpoint on disk; 0: none are written
  // What is predicted of one: written in the background at kSaveRate, training waits for it at most
  // so long.
  bool save_background = false;
  double save_seconds = 0, save_stall = 0;
  std::string advice;  // if it does not fit: what would help, beside more memory and the offers
  std::vector<Offer> offers;
  int64_t budget = 0, engine_bytes = 0, runtime_bytes = 0, minimum_bytes = 0;
  bool held_to_free = false;  // the budget allows a faster one, of more RAM than is free
  int64_t host_bytes = 0;     // of the host arena
  // At the device's peak, and with padding they make up engine_bytes; but offload is host_bytes.
  CategoryBytes categories{};
  int64_t padding = 0;      // rounding and unused bytes at the peak
  double seconds = 0;       // spent planning
  double step_seconds = 0;  // predicted of an optimizer step; 0: no training
  // Of several ranks, a step's collectives: bytes that each reads from others, and predicted seconds.
  int64_t collective_bytes = 0;
  double collective_seconds = 0;
  double collective_exposed = 0;  // of them, by which the step is longer
  HostUpdate host_update;
  DiskTraffic disk;
  std::string cost;          // what the prediction rests on
  std::string optimality;    // of the layers' choice, in words
  double bound_seconds = 0;  // of a step: proved that no plan that was looked for is faster
  int64_t repairs = 0;       // times that the choice was made again for fewer bytes
  std::string target;        // the described device that it was made for; empty: this machine
  // Predicted seconds of a step without a budget, and with kMoreBytes more of it; 0: not asked.
  static constexpr int64_t kMoreBytes = int64_t{1} << 30;
  double unlimited_seconds = 0, more_seconds = 0;
  std::string more_decisions;  // what those bytes would change, in words
  // Where memory was not set, the smallest of the plans whose step takes no more than this share
  // longer than the fastest one's; and, if that is another, what the fastest takes of memory, engine
  // and runtime, and predicted seconds of its step.
  static constexpr double kAsFast = 0.01;
  int64_t fastest_bytes = 0;  // 0: this is the fastest
  double fastest_seconds = 0;
  // Where the planner itself took the host's memory: predicted seconds of a step without it; 0 if
  // nothing fits without it.
  bool moved = false;
  double unmoved_seconds = 0;
  int threads = 1;
  bool tf32 = false, graphs = false;  // of Settings, as its programs run
  std::vector<KernelChoice> kernels;  // what computes the products of its programs, each class once
  std::string
      attention;  // what attention multiplies, and on what: "bf16 bf16 avx512_bf16"; empty: none
  std::string model_text;      // "gpt2 124.44M parameters"
  bool no_master = false;      // bf16 weights are all there is of parameters
  bool compensated = false;    // but for a compensation among the states (optim/kahan.h)
  std::string resting_states;  // how the optimizer's rest, unless all in fp32: resting_text()
  int64_t parameters = 0;      // those
  PlanFacts made_for;
  ComputesOn computes_on;
  std::string attention_note;
  bool runtime_calibrated = false;  // runtime_bytes are those that snug calibrate measured
  std::string followed;             // the plan whose decisions these are; empty: chosen here

  // By which share of the step's time a faster plan is not excluded.
  double gap() const {
    return bound_seconds > 0 && bound_seconds < step_seconds ? 1 - bound_seconds / step_seconds : 0;
  }
  double tokens_per_second() const {  // predicted; 0: no training
    return step_seconds > 0 ? step_tokens() / step_seconds : 0.0;
  }
  // Of a step, on the mean where rows are of unequal length.
  double step_tokens() const {
    return row_tokens > 0 ? static_cast<double>(rows) * row_tokens
                          : static_cast<double>(global_batch * decisions.T);
  }
  // The share of a step's planned rows of tokens that is expected to stay empty; -1: not known.
  double empty_share() const {
    if (row_tokens <= 0 || decisions.micro_batch <= 0) return -1;
    return 1 -
           step_tokens() / static_cast<double>(accumulation * decisions.micro_batch * decisions.T);
  }
};

// Bytes of the process that are not the arena: program data, libraries' private pages, thread
// stacks, tables of the tokenizer; on emu also the emulator's own. Declared here, checked when the
// arena is reserved.
int64_t declared_runtime_bytes(int threads, int64_t vocabulary, Place place = Place::cpu);
// Those of a plan of the request: what was measured or described, else what is declared.
int64_t runtime_bytes_of(const PlanRequest& request);
// PlanRequest::free_bytes of a run of this machine, whose budget is known. At least 1.
int64_t free_bytes_now(const PlanRequest& request);
// For a plan that is only looked at, which takes no memory and may be asked for a machine with more
// than this one has free: sets free_bytes to any and returns what it was. Not, and 0, where the
// host's memory is part of the question, nor where the budget itself is what is free, unless there
// are `other_budgets`.
int64_t forget_free_bytes(PlanRequest& request, bool other_budgets = false);
// What the operating system counts as private memory of this process now (RssAnon), the arena
// included.
int64_t process_private_bytes();

// Bytes a second that a disk is supposed to take, of which what is said of checkpoints is made.
inline constexpr double kSaveRate = kDiskRate;
// The ring: what was asked for, else 4 MiB; never more than the checkpoint has, nor less than
// kLeastSaveRingBytes.
int64_t save_ring_bytes(const PlanRequest& request);

// The words of plans for Decisions::update_in_backward.
inline constexpr const char* kUpdateBehind = "behind backward";
inline constexpr const char* kUpdateInBackward = "in backward";

PlanFacts plan_facts(const PlanRequest& request);
// XXH64 of a plan's JSON but for the seal itself and the time planning took.
std::string plan_seal(const nlohmann::json& plan);
// Throws usage if `plan` is not the one that the request is to follow.
void check_followed(const PlanRequest& request, const Plan& plan);

// Chooses and packs. Throws usage if a plan is to be followed and another comes out. If nothing
// fits, `fits` is false and the plan is that of the smallest engine, so that what holds the memory
// can be shown; what would help is in `offers` then.
Plan make_plan(const PlanRequest& request);
// The same, without offers, with a search over requests that differ in `budget` and `reserve`
// alone.
class PlanSearch;
Plan make_plan(const PlanRequest& request, PlanSearch& search);

// The contract of `snug plan --json` and plan.json. Their form: a file of another is not followed.
inline constexpr int64_t kPlanFormat = 1;
nlohmann::json plan_json(const Plan& plan);
std::string plan_hash(const Plan& plan);
// The widest instruction set the kernels use here; kernels are chosen by it.
const char* plan_instruction_set();
// One sentence: what was chosen and what it means.
std::string plan_sentence(const Plan& plan);
// The table a person reads.
std::string plan_text(const Plan& plan);

// Of the host's memory: what both arenas take of it, the engine's only where that is RAM too.
int64_t host_ram_bytes(const Plan& plan);
// Whether the host arena fits host_memory, and host_ram_bytes() what is free.
bool host_fits(const Plan& plan);
// Throws out_of_memory with the smallest budget that works, what holds the memory and what would
// help. Where it is the host's memory that does not suffice, it says so.
// `pinned` is what a checkpoint holds fast: "micro-batches of 4, which run/checkpoint-8 pins".
[[noreturn]] void refuse_plan(const Plan& plan, const std::string& pinned = "");

}  // namespace snug
