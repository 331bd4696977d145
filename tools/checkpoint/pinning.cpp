#include "tools/checkpoint/pinning.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/fingerprint.h"
#include "layers/models/fingerprint.h"
#include "optim/settings.h"
#include "tools/config/keys.h"
#include "tools/config/make_schedule.h"
#include "tools/config/optimizer_name.h"
#include "tools/planner/attention_choice.h"
#include "tools/planner/decision_table.h"
#include "tools/session/device_choice.h"
#include "tools/session/tell.h"
#include "tools/setup/pinned_kernels.h"
#include "tools/setup/update_place.h"

namespace snug {

namespace {

std::string frozen_fingerprint(const ParamTable& table) {
  if (table.trained_elements() == table.flat_elements()) return "";
  Fingerprint digest;
  for (int i = 0; i < table.size(); ++i)
    if (!table[i].trainable) digest.add(table[i].name.str() + "\n");
  return fingerprint_text(digest.digest());
}

std::string config_text(const std::string& value) {
  return value.empty() ? "null" : value;
}

// Behind the precision of a run whose weights have no master.
constexpr const char* kWithoutMaster = " without a master";

}  // namespace

Pinned make_pinned(const RunSetup& setup, const Decisions& decisions, const RunData& data,
                   const std::string& data_digest) {
  const RunConfig& config = setup.config;
  Pinned p;
  p.seed = config.seed;
  p.data_seed = config.data_seed >= 0 ? config.data_seed : config.seed;
  p.train_tokens = data.train_tokens;
  p.train_samples = data.train_samples;
  p.data = data_digest;
  p.global_batch = samples_per_step(setup.request);
  p.T = setup.request.T;
  p.packing_boundaries = setup.request.packing_boundaries;
  p.decisions = decisions;
  p.threads = setup.request.settings.threads;
  p.precision = config.precision;
  if (no_master(setup.model->precision())) p.precision += kWithoutMaster;
  if (config.precision == "fp16" && config.loss_scale == 0) p.init_scale = config.init_scale;
  p.optimizer = optimizer_name(config).text();  // wherever its states rest
  p.instruction_set = plan_instruction_set();
  p.computes_on = setup.request.computes_on;
  p.matmul_autotune = config.matmul_autotune;
  p.model = model_fingerprint(setup.model->spec());
  p.frozen = frozen_fingerprint(setup.model->params());
  if (setup.peft) p.adapters = peft_text(*setup.peft);
  p.base = setup.base;
  return p;
}

std::string data_fingerprint(const WindowDataset& data, bool documents) {
  constexpr int64_t kWhole = int64_t{1} << 24, kPiece = int64_t{1} << 18, kPieces = 64,
                    kChunk = int64_t{1} << 14;
  Fingerprint digest;
  int64_t total = 0;
  for (int64_t f = 0; f < data.files(); ++f) {
    const TokenFile& file = data.file(f);
    digest.add(fmt::format("{} ", file.size()));
    total += file.size();
  }
  std::vector<int32_t> chunk(static_cast<size_t>(kChunk));
  const auto add = [&](int64_t begin, int64_t end) {  // of all files, one after the other
    int64_t first = 0;
    for (int64_t f = 0; f < data.files(); ++f) {
      const TokenFile& file = data.file(f);
      const int64_t to = std::min(end, first + file.size());
      for (int64_t at = std::max(begin, first); at < to; at += kChunk) {
        const int64_t count = std::min(kChunk, to - at);
        file.copy(at - first, count, chunk.data());
        digest.add(chunk.data(), count * 4);
      }
      first += file.size();
    }
  };
  if (total <= kWhole) {
    add(0, total);
  } else {
    for (int64_t i = 0; i < kPieces; ++i) {
      // In two steps, which cannot overflow: the last piece ends with the last token.
      const int64_t room = total - kPiece, last = kPieces - 1;
      const int64_t begin = room / last * i + room % last * i / last;
      add(begin, begin + kPiece);
    }
  }
  for (int64_t f = 0; documents && f < data.files(); ++f) {
    const TokenFile& file = data.file(f);
    std::array<int64_t, 512> ends;
    for (int64_t at = 0; at < file.documents(); at += 512) {
      const int64_t count = std::min<int64_t>(512, file.documents() - at);
      file.document_ends(at, count, ends.data());
      digest.add(ends.data(), count * 8);
    }
  }
  return fingerprint_text(digest.digest());
}

Place ran_on(const Pinned& pinned) {
  if (pinned.attention.starts_with("emulated")) return Place::emu;
  const bool gpu = pinned.attention.starts_with("cuda") || pinned.attention == "cudnn";
  return gpu ? Place::cuda : Place::cpu;
}

namespace {

// What a new run begins with: a checkpoint of adapters is no model.
std::string new_run_from(const Checkpoint& c) {
  return (c.pinned.adapters.empty() ? "model=" : "adapter=") + c.folder;
}

// Takes over a decision of the checkpoint. Throws usage where the request has another, or lacks the
// permission that the planner needs to make it.
void pin(const Checkpoint& c, const Decision& row, RunSetup& setup) {
  const auto& allow = setup.config.allow;
  const Decisions& pinned = c.pinned.decisions;
  const std::string before = row.text(pinned), asked = row.asked_for(setup.request);
  // Where the key is what there is at most, pinned is that, or all the rows there were, which
  // evaluation may have made more of than a micro-batch has.
  const bool all = row.at_most && !asked.empty() && std::stoll(before) < std::stoll(asked) &&
                   std::stoll(before) >= pinned.micro_batch * c.pinned.T;
  if (!asked.empty() && asked != before && !all) {
    if (row.key != nullptr)
      fail(ErrorCode::usage, fmt::format("{} as in {}: {}", row.key, c.folder, before), asked,
           fmt::format("{}={}, or a new run from {}", row.key, before, new_run_from(c)));
    fail(ErrorCode::usage, fmt::format("{} as in {}", row.in_words(pinned), c.folder),
         fmt::format("{} as in the plan {}", fmt::format(fmt::runtime(row.words), asked),
                     setup.config.plan),
         fmt::format("another plan, or {} to go on with those of the plan",
                     allow_text(allow, {row.name})));
  }
  row.fix(pinned, setup.request);
  const auto given = [&](const char* word) {
    return std::find(allow.begin(), allow.end(), word) != allow.end();
  };
  if (row.permission == nullptr || row.same(pinned, {}) || given(row.permission)) return;
  const bool word = std::holds_alternative<bool Decisions::*>(row.decided);
  fail(ErrorCode::usage,
       fmt::format("the permission of {}, whose {}: {}", c.folder,
                   word ? row.in_words(pinned) : fmt::format("{} are in {}", row.name, before),
                   row.permission),
       fmt::format("allow: [{}]", fmt::join(allow, ", ")),
       fmt::format("{}, or {} to go on with them {}{}", allow_text(allow, {row.permission}),
                   allow_text(allow, {row.name}), word ? "" : "in ", row.text({})));
}

}  // namespace

void apply_pins(const Checkpoint& c, RunSetup& setup) {
  PlanRequest& r = setup.request;
  const std::string begin = new_run_from(c);
  const auto same = [&](bool equal, const char* key, const std::string& before,
                        const std::string& now) {
    if (!equal)
      fail(ErrorCode::usage, fmt::format("{} as in {}: {}", key, c.folder, before), now,
           fmt::format("{}={}, or a new run from {}", key, before, begin));
  };
  const auto same_number = [&](int64_t before, const char* key, int64_t now) {
    same(before == now, key, std::to_string(before), std::to_string(now));
  };
  const Pinned now = make_pinned(setup, {}, {}, "");
  if (c.pinned.model != now.model)
    fail(ErrorCode::usage, fmt::format("model as in {}: the same shapes and numerics", c.folder),
         "another model",
         fmt::format("the model keys it was made with, or a new run from {}", begin));
  if (c.pinned.adapters != now.adapters)
    fail(ErrorCode::usage,
         fmt::format("adapters as in {}: {}", c.folder,
                     c.pinned.adapters.empty() ? "none" : c.pinned.adapters),
         now.adapters.empty() ? "none" : now.adapters,
         c.pinned.adapters.empty()
             ? fmt::format("leave peft and adapter out, or a new run from {}", begin)
             : fmt::format("the keys of its config.resolved.yaml, or a new run with {}", begin));
  if (c.pinned.frozen != now.frozen)
    fail(ErrorCode::usage,
         fmt::format("freeze and unfreeze as in {}, which has the states of what was trained there",
                     c.folder),
         fmt::format("freeze: {}, unfreeze: {}", config_text(setup.config.freeze),
                     config_text(setup.config.unfreeze)),
         fmt::format("the keys of its config.resolved.yaml, or a new run from {}", begin));
  const bool without = c.pinned.precision.ends_with(kWithoutMaster);
  if (without != no_master(setup.model->precision()))
    fail(ErrorCode::usage,
         without ? fmt::format("the permission of {}, whose weights have no master: no_master",
                               c.folder)
                 : fmt::format("weights with an fp32 master as in {}", c.folder),
         fmt::format("precision: {}, allow: [{}]", setup.config.precision,
                     fmt::join(setup.config.allow, ", ")),
         without ? fmt::format("precision=bf16 {}, or a new run from {}",
                               allow_text(setup.config.allow, {"no_master"}), begin)
                 : fmt::format("leave no_master out of allow, or a new run from {}", begin));
  same(c.pinned.precision == now.precision, "precision", c.pinned.precision, now.precision);
  // A run goes on from the scale it had: another first one would do nothing.
  if (c.pinned.init_scale > 0 && now.init_scale > 0)
    same(c.pinned.init_scale == now.init_scale, "init_scale",
         fmt::format("{}", c.pinned.init_scale), fmt::format("{}", now.init_scale));
  const bool of_key = setup.config.optim_state != "auto";
  same(c.pinned.optimizer == now.optimizer, of_key ? "optim_state=auto optim" : "optim",
       c.pinned.optimizer, now.optimizer);
  same_number(c.pinned.seed, "seed", now.seed);
  same_number(c.pinned.data_seed, "data_seed", now.data_seed);
  const int64_t front = setup.model->front().count;
  same_number(c.pinned.T - front, "max_length", r.T - front);
  same(c.pinned.packing_boundaries == now.packing_boundaries, "packing_boundaries",
       fmt::format("{}", c.pinned.packing_boundaries), fmt::format("{}", now.packing_boundaries));
  same_number(c.pinned.global_batch, "global_batch_size", samples_per_step(r));
  const auto allowed = [&](const char* permission) {
    const auto& list = setup.config.allow;
    return std::find(list.begin(), list.end(), permission) != list.end();
  };
  // A permission unpins: the key, if set, or the planner then decides.
  r.pinned = !allowed("micro_batch") || !allowed("head_rows");
  for (const Decision& row : decision_table())
    if (row.at_resume == AtResume::pinned && !allowed(row.name)) pin(c, row, setup);
  settle_update(setup.config, r);
  // The kernels of the two places differ in the last bits, so the place is pinned with them.
  const char* const before = device_word(ran_on(c.pinned));
  if (r.settings.target != ran_on(c.pinned)) {
    if (!allowed("kernels"))
      fail(ErrorCode::usage,
           fmt::format("device: {} as in {}, which pins the kernels", before, c.folder),
           fmt::format("device: {} ({})", setup.config.device, setup.config.where("device")),
           fmt::format("device={}, or {} to go on with those of the other, which changes the last "
                       "bits",
                       before, allow_text(setup.config.allow, {"kernels"})));
    tell(stdout, "Note: resuming on {} instead of {}: its kernels differ in the last bits.\n",
         device_word(r.settings.target), before);
  }
  if (!allowed("kernels") && r.settings.target == Place::cpu)
    *setup.kernels = pinned_kernels(c.pinned.kernels, c.folder, setup.config.allow);
  if (r.settings.target == Place::cuda && ran_on(c.pinned) == Place::cuda &&
      setup.config.attn_implementation == "auto" && !allowed("kernels"))
    choose_attention(r, c.pinned.attention == "cudnn");
  if (r.settings.target == Place::cuda && ran_on(c.pinned) == Place::cuda)
    check_computes_on(c, r.computes_on, setup.config);
  // Of a GPU and of the emulator the threads read and write files alone.
  if (c.pinned.threads != now.threads && r.settings.target == Place::cpu)
    tell(stdout,
         "Note: resuming with {} threads instead of {}: sums may differ in the last bits.\n",
         now.threads, c.pinned.threads);
  if (c.pinned.instruction_set != now.instruction_set)
    tell(stdout,
         "Note: resuming with instructions {} instead of {}: sums may differ in the last bits.\n",
         now.instruction_set, c.pinned.instruction_set);
}

std::string pinned_text(const Checkpoint& c, const std::vector<std::string>& allow) {
  const auto fixed = [&](const char* permission) {
    return std::find(allow.begin(), allow.end(), permission) == allow.end();
  };
  std::string text;
  for (const Decision& row : decision_table())
    if (row.at_resume == AtResume::pinned && row.key != nullptr && fixed(row.name))
      text += (text.empty() ? "" : " and ") + row.in_words(c.pinned.decisions);
  return text.empty() ? text : fmt::format("{}, which {} pins", text, c.folder);
}

namespace {

bool allows_kernels(const RunConfig& config) {
  return std::find(config.allow.begin(), config.allow.end(), "kernels") != config.allow.end();
}

}  // namespace

bool may_tune(const Checkpoint& c, const RunConfig& config) {
  return !c.pinned.computes_on.defined() || allows_kernels(config);
}

// Algorithms that were measured go on; those that would be measured now may be others.
void check_computes_on(const Checkpoint& c, ComputesOn& now, const RunConfig& config) {
  const ComputesOn& before = c.pinned.computes_on;
  if (!before.defined()) return;  // from before they were pinned
  const bool allowed = allows_kernels(config);
  const auto other = difference(before, now);
  // Left to itself attn_implementation follows the checkpoint, so that it was asked for.
  const bool by_cudnn = before.cudnn != "none";
  if (!allowed && other && other->what == "cuDNN" && by_cudnn != (now.cudnn != "none") &&
      config.attn_implementation != "auto") {
    const char* const implementation = by_cudnn ? "cudnn" : "own";
    fail(ErrorCode::usage,
         fmt::format("attn_implementation as in {}: {}", c.folder, implementation),
         fmt::format("{} ({})", config.attn_implementation, config.where("attn_implementation")),
         fmt::format("attn_implementation={}, or {} to go on with the other, which changes the "
                     "last bits",
                     implementation, allow_text(config.allow, {"kernels"})));
  }
  if (!allowed && other)
    fail(ErrorCode::usage,
         fmt::format("{} as {} pins it: {}", other->what, c.folder, other->before), other->now,
         allow_text(config.allow, {"kernels"}) +
             " to go on with this machine's own, which changes the last bits, or resume on a "
             "machine like the one before");
  if (!allowed && !c.pinned.matmul_autotune && config.matmul_autotune)
    fail(ErrorCode::usage, fmt::format("matmul_autotune as in {}: false", c.folder),
         fmt::format("true ({})", config.where("matmul_autotune")),
         "matmul_autotune=false, or " + allow_text(config.allow, {"kernels"}) +
             " to go on with what is measured now, which changes the last bits");
  if (!allowed) now.algorithms = before.algorithms;
  if (other)
    tell(stdout, "Note: resuming with {} {} instead of {}: the last bits may differ.\n",
         other->what, other->now, other->before);
}

void check_data(const Checkpoint& c, const Pinned& now) {
  const auto text = [](const Pinned& p) {
    return fmt::format("{} tokens (fingerprint {}), {} samples to train on", p.train_tokens, p.data,
                       p.train_samples);
  };
  if (c.pinned.train_tokens != now.train_tokens || c.pinned.train_samples != now.train_samples ||
      c.pinned.data != now.data)
    fail(
        ErrorCode::usage, fmt::format("the training data of {}: {}", c.folder, text(c.pinned)),
        text(now),
        fmt::format("the train_data and eval_fraction it was made with, or a new run from model={}",
                    c.folder));
}

namespace {

// Names of hyperparameters: the first two say what the schedule goes over, one of them is there.
constexpr const char* kSteps = "steps";
constexpr const char* kTime = "max_time";
constexpr const char* kType = "lr_scheduler_type";

}  // namespace

Hyperparameters hyperparameters(const RunConfig& config, int64_t total_steps) {
  const auto number = [](double value) { return fmt::format("{}", value); };
  Hyperparameters h = {{"learning_rate", number(config.learning_rate)},
                       {"min_lr", number(resolve_min_lr(config))},
                       {kType, config.lr_scheduler_type},
                       {"weight_decay", number(config.weight_decay)},
                       {"max_grad_norm", number(config.max_grad_norm)}};
  if (config.ranks > 1) h["ranks"] = std::to_string(config.ranks);
  if (config.task == "dpo") {
    h["loss_type"] = config.loss_type;
    h["beta"] = number(config.beta);
    h["label_smoothing"] = number(config.label_smoothing);
    if (config.reference_of_start() && facts_of(*find_pair_loss(config.loss_type)).reference)
      h["precompute_ref_log_probs"] = "true";
    if (config.loss_type == "simpo") h["simpo_gamma"] = number(config.simpo_gamma);
    if (facts_of(*find_pair_loss(config.loss_type)).single) {
      h["desirable_weight"] = number(config.desirable_weight);
      h["undesirable_weight"] = number(config.undesirable_weight);
    }
  }
  if (config.task == "reward")
    h["center_rewards_coefficient"] = number(config.center_rewards_coefficient);
  const int uses = find_optimizer(config.optim)->uses;
  if (uses & kUsesMomentum) {
    h["sgd_momentum"] = number(config.sgd_momentum);
    h["sgd_dampening"] = number(config.sgd_dampening);
    h["sgd_nesterov"] = config.sgd_nesterov ? "true" : "false";
  }
  if (uses & kUsesBetas) {
    h["adam_beta1"] = number(config.adam_beta1);
    h["adam_beta2"] = number(config.adam_beta2);
  }
  if (uses & kUsesEpsilon) h["adam_epsilon"] = number(config.adam_epsilon);
  if (!find_optimizer(config.optim)->settings.empty() || !config.optim_args.empty())
    h["optim_args"] =
        config.optim_args.empty() ? "null" : optim_args_text(parse_optim_args(config.optim_args));
  h["param_groups"] = config.param_groups.empty() ? "null" : config.param_groups;
  if (config.precision == "fp16") {
    h["loss_scale"] = number(config.loss_scale);
    h["growth_factor"] = number(config.growth_factor);
    h["backoff_factor"] = number(config.backoff_factor);
    h["growth_interval"] = std::to_string(config.growth_interval);
    h["min_loss_scale"] = number(config.min_loss_scale);
  }
  // By the clock alone what counts steps is a share of the time.
  const bool clock = total_steps <= 0;
  const auto steps = [&](int64_t (*resolve)(const RunConfig&, int64_t)) {
    return clock ? number(static_cast<double>(resolve(config, kClockSteps)) / kClockSteps)
                 : std::to_string(resolve(config, total_steps));
  };
  if (clock)
    h[kTime] = number(config.max_time);
  else
    h[kSteps] = std::to_string(total_steps);
  h["warmup_steps"] = find_optimizer(config.optim)->keeps_others
                          ? number(std::max(0.0, config.warmup_steps))
                          : steps(resolve_warmup);
  const std::string& type = config.lr_scheduler_type;
  const bool wsd = type == "warmup_stable_decay";
  if (wsd) {
    h["lr_decay_steps"] = steps(resolve_decay);
    h["lr_decay_type"] = config.lr_decay_type;
  }
  if (type == "cosine" || type == "cosine_with_restarts" ||
      (wsd && config.lr_decay_type == "cosine"))
    h["lr_num_cycles"] = config.lr_num_cycles > 0 ? number(config.lr_num_cycles) : "auto";
  if (type == "polynomial") h["lr_power"] = number(config.lr_power);
  if (type == "inverse_sqrt")
    h["lr_timescale"] = config.lr_timescale > 0 ? std::to_string(config.lr_timescale) : "auto";
  return h;
}

std::vector<std::string> changes(const Hyperparameters& before, const Hyperparameters& now) {
  std::vector<std::string> out;
  const auto length = [](const Hyperparameters& h) {
    if (const auto steps = h.find(kSteps); steps != h.end()) return steps->second + " steps";
    const auto time = h.find(kTime);
    return time == h.end() ? std::string("another length") : "max_time " + time->second + " s";
  };
  const bool clock = now.count(kTime) > 0, same_clock = clock == (before.count(kTime) > 0);
  if (!same_clock)
    out.push_back(
        fmt::format("with a schedule over {} instead of {}", length(now), length(before)));
  const auto type = before.find(kType);
  const bool same_schedule = same_clock && type != before.end() && type->second == now.at(kType);
  for (const auto& [key, value] : now) {
    const auto old = before.find(key);
    if (old != before.end()) {
      if (old->second != value)
        out.push_back(fmt::format("with {} {} instead of {}", key, value, old->second));
    } else if (!same_schedule && key != kSteps && key != kTime) {
      // Of the same schedule older checkpoints name less.
      out.push_back(fmt::format("with {} {}, which had no meaning before", key, value));
    }
  }
  for (const auto& [key, value] : before)
    if (now.count(key) == 0 && key != kSteps && key != kTime)
      out.push_back(fmt::format("without {}, which was {}", key, value));
  return out;
}

namespace {

// The keys of the schedule as they were; nothing: an older checkpoint, which lacks some.
std::optional<RunConfig> config_before(const Hyperparameters& h) {
  RunConfig config;
  if (h.count(kType) == 0 || h.count("learning_rate") == 0 || h.count("warmup_steps") == 0)
    return std::nullopt;
  const auto time = h.find(kTime);
  for (const auto& [name, text] : h) {
    const bool share = time != h.end() && name == "warmup_steps";
    if (const Key* key = find_key(share ? "warmup_ratio" : name); key && name != kTime)
      set_key(config, *key, name, parse_config_node(text, "checkpoint", false));
  }
  if (time != h.end()) config.max_time = std::stod(time->second);
  return config;
}

double rate_at(const RunConfig& c, int64_t total_steps, int64_t updates, double elapsed) {
  const LearningRateSchedule schedule(
      schedule_config(c, total_steps > 0 ? total_steps : kClockSteps));
  return c.learning_rate * schedule.factor(schedule_step(c, total_steps, updates, elapsed));
}

}  // namespace

std::string rate_change(const Checkpoint& checkpoint, const RunConfig& now, int64_t total_steps) {
  constexpr double kJump = 0.01;
  const RunPosition& at = checkpoint.position;
  const std::optional<RunConfig> before = config_before(checkpoint.hyperparameters);
  if (!before || at.updates == 0 || (total_steps > 0 && at.step >= total_steps)) return {};
  const auto steps = checkpoint.hyperparameters.find(kSteps);
  const int64_t old_total =
      steps == checkpoint.hyperparameters.end() ? 0 : std::stoll(steps->second);
  const double last = rate_at(*before, old_total, at.updates - 1, at.elapsed);
  const double same = rate_at(now, total_steps, at.updates - 1, at.elapsed);
  const double next = rate_at(now, total_steps, at.updates, at.elapsed);
  const auto near = [&](double a) { return std::fabs(a - last) <= kJump * std::max(a, last); };
  if (near(same) || near(next)) return {};
  return fmt::format("the learning rate jumps from {:.4g} at step {} to {:.4g} at step {}", last,
                     at.step, next, at.step + 1);
}

void note_changes(const Checkpoint& checkpoint, const Hyperparameters& now) {
  for (const std::string& change : changes(checkpoint.hyperparameters, now))
    tell(stdout, "Note: resuming {}.\n", change);
}

void check_attention(const Checkpoint& c, const std::string& now, const RunConfig& config) {
  const auto& allow = config.allow;
  if (c.pinned.attention == now || std::find(allow.begin(), allow.end(), "kernels") != allow.end())
    return;
  fail(ErrorCode::usage,
       fmt::format("a device that computes attention as {} pins it: {}", c.folder,
                   c.pinned.attention),
       now,
       allow_text(allow, {"kernels"}) +
           " to go on with this machine's own, which changes the last bits, or resume on a machine "
           "like the one before");
}

}  // namespace snug
