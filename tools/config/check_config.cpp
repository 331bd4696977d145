#include "tools/config/check_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "engine/core/error.h"
#include "optim/kahan.h"
#include "optim/settings.h"
#include "tools/config/adapter_keys.h"
#include "tools/config/complaints.h"
#include "tools/config/keys.h"
#include "tools/config/make_schedule.h"
#include "tools/config/optimizer_name.h"

namespace snug {
namespace {

constexpr int64_t kDefaultLength = 1024;
constexpr int64_t kDefaultBatch = 32;
constexpr int64_t kDefaultWarmup = 100;
constexpr int64_t kMaxBatch = int64_t{1} << 40;
constexpr double kMostSteps = 1e15;  // what a schedule counts to

// "max_length: 256 (run.yaml:7)" of each key, joined.
std::string quote(const RunConfig& config, std::initializer_list<std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) {
    text += fmt::format("{}{}: {} ({})", text.empty() ? "" : ", ", name,
                        print_value(config, *find_key(name)), config.where(name));
  }
  return text;
}

// "optim: adam, adamw or lion": those with a use for these keys, by name.
std::string optimizers_with(int uses) {
  std::vector<std::string> names;
  for (const OptimFacts& f : optimizer_facts())
    if (f.uses & uses) names.emplace_back(f.name);
  std::sort(names.begin(), names.end());
  std::string text = "optim: ";
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

bool own_beta2(double value) {
  for (const OptimFacts& f : optimizer_facts())
    if (f.defaults.adam_beta2 > 0 && f.defaults.adam_beta2 == value) return true;
  return false;
}

// The compensation is a state, also of an optimizer that has no other.
bool asks_compensation(const RunConfig& c) {
  OptimizerConfig o;
  try {
    o.args = parse_optim_args(c.optim_args);
  } catch (const Error&) {  // check_optim_args says so
    return false;
  }
  return compensates(o);
}

// Names and values of optim_args, with the place where they stand.
void check_optim_args(const RunConfig& c) {
  try {
    OptimizerConfig o;
    o.name = optimizer_name(c).text();
    o.args = parse_optim_args(c.optim_args);
    make_optimizer(o);
    if (compensates(o) && !allows(c, "no_master"))
      fail(ErrorCode::usage,
           "the permission no_master for use_kahan_summation, which takes a master's place",
           fmt::format("allow: [{}], optim_args: {}", fmt::join(c.allow, ", "), c.optim_args),
           allow_text(c.allow, {"no_master"}) + " precision=bf16");
  } catch (const Error& e) {
    fail(e.code(), e.expected(), fmt::format("{} ({})", e.found(), c.where("optim_args")),
         e.advice());
  }
}

// Two keys that say the same.
void not_both(const RunConfig& config, Complaints& complaints, std::string_view a,
              std::string_view b) {
  if (config.is_set(a) && config.is_set(b))
    complaints.add(ErrorCode::usage, fmt::format("{} or {}, not both", a, b), quote(config, {a, b}),
                   fmt::format("leave {} out", b));
}

// Keys that mean something only under `condition`. With values that ask for nothing they may stand
// in the file, so that a resolved configuration can be edited, and one of another trainer be read.
void only_if(const RunConfig& config, Complaints& complaints, bool condition, std::string_view what,
             std::initializer_list<std::string_view> names) {
  if (condition) return;
  for (const std::string_view name : names) {
    if (!is_idle(config, *find_key(name)))
      complaints.add(ErrorCode::usage, fmt::format("{} only with {}", name, what),
                     quote(config, {name}), fmt::format("leave {} out", name));
  }
}

// Before the schedule is made, which knows what was resolved, not what was written.
void check_steps(const RunConfig& config, Complaints& complaints, std::string_view name,
                 double value) {
  if (value > kMostSteps)
    complaints.add(ErrorCode::usage, fmt::format("{} of at most 1e15", name), quote(config, {name}),
                   fmt::format("{}={}", name, find_key(name)->example));
}

void check_whole_or_share(const RunConfig& config, Complaints& complaints, std::string_view name,
                          double value) {
  if (value >= 1 && value != std::floor(value))
    complaints.add(ErrorCode::usage, fmt::format("{} as whole steps, or below 1 as a share", name),
                   quote(config, {name}), fmt::format("{}={}", name, std::floor(value)));
}

// A run that the clock alone bounds has a number of steps that nobody knows.
void no_count_of_steps(const RunConfig& config, Complaints& complaints, std::string_view name,
                       double value) {
  if (value >= 1)
    complaints.add(
        ErrorCode::usage,
        fmt::format("{} below 1, a share of the time, where max_time alone bounds the run", name),
        quote(config, {name, "max_time"}), fmt::format("{}=0.1, or set max_steps", name));
}

// Of optimizers whose weights to keep are an average over the run: what takes the place of a schedule.
void check_schedule_free(const RunConfig& c, Complaints& complaints) {
  if (c.lr_scheduler_type != "constant")
    complaints.add(
        ErrorCode::usage,
        "lr_scheduler_type: constant for an optimizer that averages in place of a schedule",
        quote(c, {"optim", "lr_scheduler_type"}),
        "leave lr_scheduler_type out; warmup_steps is the optimizer's");
  const bool share = c.warmup_steps > 0 && c.warmup_steps < 1;
  if (share || c.warmup_ratio > 0)
    complaints.add(ErrorCode::usage, "warmup_steps as a number of steps for this optimizer",
                   quote(c, {"optim", share ? "warmup_steps" : "warmup_ratio"}),
                   "warmup_steps=100, or leave it out");
  if (c.warmup_steps > 1e9)
    complaints.add(ErrorCode::usage, "warmup_steps of at most 1000000000 for this optimizer",
                   quote(c, {"optim", "warmup_steps"}), "warmup_steps=100, or leave it out");
  if (c.warmup_steps > 0 && c.optim_args.find("warmup_steps") != std::string::npos)
    complaints.add(ErrorCode::usage, "warmup_steps once, as a key or in optim_args",
                   quote(c, {"warmup_steps", "optim_args"}), "leave it out of optim_args");
  if (allows(c, "no_master"))
    complaints.add(ErrorCode::usage,
                   "parameters in fp32 for an optimizer that goes to its average and back",
                   quote(c, {"optim", "allow"}), "no_master out of allow, or optim=adamw");
}

// Of warmup_stable_decay: the warm-up and the last phase have room in the run.
void check_phases(const RunConfig& c, int64_t total_steps) {
  const int64_t warmup = resolve_warmup(c, total_steps), decay = resolve_decay(c, total_steps);
  if (warmup + decay <= total_steps) return;
  // What is left, as a share where shares are given.
  const double share = c.lr_decay_steps < 1 ? 1.0 / static_cast<double>(total_steps) : 1.0;
  const double left = std::floor(static_cast<double>(total_steps - warmup) * share * 1e4) / 1e4;
  const bool ratio = c.warmup_ratio >= 0;
  fail(ErrorCode::usage,
       fmt::format("warmup_steps + lr_decay_steps of at most {}",
                   clock_alone(c) ? "all of max_time" : fmt::format("{} steps", total_steps)),
       fmt::format("{} + {}{}: {}", warmup, decay,
                   clock_alone(c) ? fmt::format(" of {} parts", total_steps) : "",
                   quote(c, {ratio ? "warmup_ratio" : "warmup_steps", "lr_decay_steps"})),
       left > 0 ? fmt::format("lr_decay_steps={}, or a shorter warm-up", left)
                : "a shorter warm-up");
}

int64_t steps_of(double value, int64_t total_steps) {
  if (value >= 1) return static_cast<int64_t>(value);
  // A share such as 0.1 of 30 steps is 3, though 0.1 * 30 is a little more.
  const double steps = value * static_cast<double>(total_steps);
  return static_cast<int64_t>(std::ceil(steps - 1e-9 * std::max(1.0, steps)));
}

}  // namespace

bool allows(const RunConfig& config, std::string_view permission) {
  return std::find(config.allow.begin(), config.allow.end(), permission) != config.allow.end();
}

std::string allow_text(const std::vector<std::string>& given,
                       std::initializer_list<const char*> more) {
  std::vector<std::string> list = given;
  for (const char* word : more)
    if (std::find(list.begin(), list.end(), word) == list.end()) list.emplace_back(word);
  return fmt::format("allow=[{}]", fmt::join(list, ","));
}

void check_device(const RunConfig& c) {
  const bool cuda = c.device.starts_with("cuda"), kernels = cuda || c.device == "emu";
  if (kernels && (c.packed_weights == "forward" || c.packed_weights == "both"))
    fail(ErrorCode::usage,
         "packed_weights: auto or none for device: emu or cuda, whose kernels read weights "
         "as they are",
         quote(c, {"packed_weights", "device"}), "packed_weights=none");
  if (c.precision == "tf32" && !cuda)
    fail(ErrorCode::unsupported, "precision fp32, bf16 or fp16 for a device that is not cuda",
         fmt::format("precision: tf32, a mode of the matrix units of GPUs ({}), and {}",
                     c.where("precision"), quote(c, {"device"})),
         "device=cuda or precision=fp32");
  if (c.attn_implementation == "cudnn" && !cuda)
    fail(ErrorCode::unsupported, "attn_implementation auto or own for a device that is not cuda",
         quote(c, {"attn_implementation", "device"}), "device=cuda or attn_implementation=auto");
  if (c.matmul_autotune && !cuda)
    fail(ErrorCode::unsupported, "matmul_autotune: false for a device that is not cuda",
         quote(c, {"matmul_autotune", "device"}), "device=cuda or matmul_autotune=false");
  if (c.cuda_graphs == "on" && !kernels)
    fail(ErrorCode::unsupported, "cuda_graphs auto or off for a device that is not cuda or emu",
         quote(c, {"cuda_graphs", "device"}), "device=cuda or cuda_graphs=auto");
}

std::string RunConfig::where(std::string_view key) const {
  const auto at = origins.find(key);
  return at == origins.end() ? "default" : at->second;
}

void check_config(const RunConfig& c, Complaints& complaints) {
  if (!c.eval_data.empty() && c.eval_fraction > 0)
    complaints.add(ErrorCode::usage, "eval_data or eval_fraction, not both",
                   quote(c, {"eval_data", "eval_fraction"}), "leave eval_fraction out");
  if (!c.resume.empty() && c.overwrite)
    complaints.add(ErrorCode::usage, "resume or overwrite, not both",
                   quote(c, {"resume", "overwrite"}), "leave overwrite out");
  if (c.bitwise && !c.allow.empty())
    complaints.add(ErrorCode::usage, "no permissions beside bitwise: true",
                   quote(c, {"allow", "bitwise"}), "allow=[]");

  if (allows(c, "no_master") && c.precision != "bf16")
    complaints.add(ErrorCode::usage, "precision: bf16 for the permission no_master",
                   quote(c, {"allow", "precision"}), "precision=bf16, or no_master out of allow");

  not_both(c, complaints, "plan", "target");
  only_if(c, complaints, c.ranks > 1 && !c.target.empty(), "ranks above 1 and a target", {"link"});
  not_both(c, complaints, "warmup_steps", "warmup_ratio");
  not_both(c, complaints, "min_lr", "min_lr_ratio");
  check_steps(c, complaints, "max_steps", static_cast<double>(c.max_steps));
  check_steps(c, complaints, "warmup_steps", c.warmup_steps);
  check_steps(c, complaints, "lr_decay_steps", c.lr_decay_steps);
  check_steps(c, complaints, "lr_timescale", static_cast<double>(c.lr_timescale));
  check_whole_or_share(c, complaints, "warmup_steps", c.warmup_steps);
  check_whole_or_share(c, complaints, "lr_decay_steps", c.lr_decay_steps);
  if (c.min_lr > c.learning_rate)
    complaints.add(ErrorCode::usage, "min_lr at most learning_rate",
                   quote(c, {"min_lr", "learning_rate"}), "leave min_lr out");
  const std::string& schedule = c.lr_scheduler_type;
  const bool wsd = schedule == "warmup_stable_decay";
  const bool cosine = schedule == "cosine" || schedule == "cosine_with_restarts";
  const OptimFacts* optimizer = find_optimizer(c.optim);
  require(optimizer != nullptr, "an optimizer that the key took");
  only_if(c, complaints, schedule != "constant" || optimizer->keeps_others,
          "a lr_scheduler_type that has a warm-up", {"warmup_steps", "warmup_ratio"});
  only_if(c, complaints, schedule == "cosine" || schedule == "polynomial" || wsd,
          "lr_scheduler_type cosine, polynomial or warmup_stable_decay",
          {"min_lr", "min_lr_ratio"});
  only_if(c, complaints, wsd, "lr_scheduler_type: warmup_stable_decay",
          {"lr_decay_steps", "lr_decay_type"});
  only_if(c, complaints, cosine || (wsd && c.lr_decay_type == "cosine"), "a cosine",
          {"lr_num_cycles"});
  only_if(c, complaints, schedule == "polynomial", "lr_scheduler_type: polynomial", {"lr_power"});
  only_if(c, complaints, schedule == "inverse_sqrt", "lr_scheduler_type: inverse_sqrt",
          {"lr_timescale"});

  if (clock_alone(c)) {
    no_count_of_steps(c, complaints, "warmup_steps", c.warmup_steps);
    no_count_of_steps(c, complaints, "lr_decay_steps", c.lr_decay_steps);
    if (c.lr_timescale > 0)
      complaints.add(
          ErrorCode::usage, "max_steps or num_train_epochs for lr_timescale, a count of steps",
          quote(c, {"lr_timescale", "max_time"}), "leave lr_timescale out, or set max_steps");
  }
  // With num_train_epochs the steps are known when the data is.
  if (wsd && c.num_train_epochs == 0)
    complaints.of([&] { check_phases(c, clock_alone(c) ? kClockSteps : c.max_steps); });

  if (optimizer->keeps_others) check_schedule_free(c, complaints);
  const auto uses = [&](int what) { return (optimizer->uses & what) != 0; };
  only_if(c, complaints, uses(kUsesBetas), optimizers_with(kUsesBetas), {"adam_beta1"});
  // As adam_beta1, and an optimizer's own default, which a resolved file has.
  only_if(c, complaints, uses(kUsesBetas) || own_beta2(c.adam_beta2), optimizers_with(kUsesBetas),
          {"adam_beta2"});
  only_if(c, complaints, uses(kUsesEpsilon), optimizers_with(kUsesEpsilon), {"adam_epsilon"});
  only_if(c, complaints, uses(kUsesMomentum), optimizers_with(kUsesMomentum),
          {"sgd_momentum", "sgd_dampening", "sgd_nesterov"});
  if (c.sgd_nesterov && (c.sgd_momentum == 0 || c.sgd_dampening != 0))
    complaints.add(ErrorCode::usage, "sgd_nesterov with a momentum and without dampening",
                   quote(c, {"sgd_nesterov", "sgd_momentum", "sgd_dampening"}),
                   c.sgd_dampening == 0  ? "sgd_momentum=0.9"
                   : c.sgd_momentum == 0 ? "sgd_momentum=0.9 sgd_dampening=0"
                                         : "sgd_dampening=0");
  only_if(c, complaints, c.sgd_momentum > 0 || !uses(kUsesMomentum), "sgd_momentum above 0",
          {"sgd_dampening"});
  complaints.of([&] {
    if (!c.optim_args.empty()) check_optim_args(c);
  });
  const OptimName named = optimizer_name(c);
  if (named.says_state && c.optim_state != "auto" && c.optim_state != to_string(named.state))
    complaints.add(ErrorCode::usage,
                   fmt::format("optim_state as the name of optim says: {}", to_string(named.state)),
                   quote(c, {"optim_state", "optim"}),
                   fmt::format("optim={} optim_state={}", named.facts->name, c.optim_state));
  if (named.state != StateForm::f32 && uses(kUsesMomentum) && c.sgd_momentum == 0 &&
      !asks_compensation(c))
    complaints.add(ErrorCode::usage,
                   fmt::format("sgd_momentum above 0 for states in {}", to_string(named.state)),
                   named.says_state ? quote(c, {"optim", "sgd_momentum"})
                                    : quote(c, {"optim_state", "sgd_momentum"}),
                   named.says_state ? "sgd_momentum=0.9, or optim=sgd"
                                    : "sgd_momentum=0.9, or optim_state=fp32");
  if (named.paged && c.offload_optimizer == "none")
    complaints.add(ErrorCode::usage,
                   "offload_optimizer: auto or cpu for an optimizer whose states may be paged",
                   quote(c, {"optim", "offload_optimizer"}),
                   fmt::format("optim={}, or leave offload_optimizer out", named.text()));

  check_adapter_keys(c, complaints);
  only_if(c, complaints, c.load_in_4bit, "peft: qlora or load_in_4bit: true",
          {"bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype"});
  only_if(c, complaints, c.load_in_8bit, "load_in_8bit: true", {"llm_int8_threshold"});
  only_if(c, complaints, c.load_in_8bit || c.load_in_4bit,
          "load_in_8bit: true, load_in_4bit: true or peft: qlora", {"llm_int8_skip_modules"});
  if (c.load_in_4bit && c.load_in_8bit)
    complaints.add(ErrorCode::usage, "weights in 4 bits, or in 8",
                   quote(c, {"load_in_4bit", "load_in_8bit"}), "leave one of the two out");
  only_if(c, complaints, c.precision == "fp16", "precision: fp16", {"loss_scale"});
  only_if(c, complaints, c.precision == "fp16" && c.loss_scale == 0,
          "precision: fp16 and loss_scale: 0",
          {"init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_loss_scale"});
  if (c.min_loss_scale > c.init_scale)
    complaints.add(ErrorCode::usage, "min_loss_scale at most init_scale",
                   quote(c, {"min_loss_scale", "init_scale"}), "leave min_loss_scale out");

  if (c.target.empty() || c.device != "auto") complaints.of([&] { check_device(c); });

  only_if(c, complaints, !c.sample_prompt.empty(), "sample_prompt",
          {"sample_tokens", "sample_temperature", "sample_top_k", "sample_top_p"});
  only_if(c, complaints, c.sample_temperature > 0, "sample_temperature above 0",
          {"sample_top_k", "sample_top_p"});
  const bool evaluates = !c.eval_data.empty() || c.eval_fraction > 0;
  only_if(c, complaints, evaluates, "eval_data or eval_fraction",
          {"max_eval_samples", "per_device_eval_batch_size", "early_stopping_patience",
           "load_best_model_at_end", "metric_for_best_model", "greater_is_better"});
  only_if(c, complaints, c.early_stopping_patience > 0, "early_stopping_patience",
          {"early_stopping_threshold"});
  only_if(c, complaints, evaluates || !c.sample_prompt.empty(),
          "eval_data, eval_fraction or sample_prompt", {"eval_steps"});

  // The batch sizes alone; resolve_sizes says it again when the model's positions are known.
  if (c.global_batch_tokens == 0 || c.max_length > 0)
    complaints.of([&] { resolve_sizes(c, std::numeric_limits<int64_t>::max()); });
}

RunSizes resolve_sizes(const RunConfig& c, int64_t positions) {
  RunSizes sizes;
  if (c.max_length > positions)
    fail(ErrorCode::usage,
         fmt::format("max_length of at most {}, the model's positions", positions),
         quote(c, {"max_length"}), fmt::format("max_length={}", positions));
  sizes.max_length = c.max_length > 0 ? c.max_length : std::min(kDefaultLength, positions);

  const int64_t micro = c.per_device_train_batch_size;
  const int64_t accumulation = c.gradient_accumulation_steps;
  // Bounds first, so that no product overflows.
  for (const std::string_view name :
       {"global_batch_size", "per_device_train_batch_size", "per_device_eval_batch_size",
        "gradient_accumulation_steps", "global_batch_tokens"}) {
    const int64_t value = c.*std::get<int64_t RunConfig::*>(find_key(name)->field);
    const bool factor = name[0] != 'g' || name == "gradient_accumulation_steps";
    const int64_t most = factor ? int64_t{1} << 20 : kMaxBatch;
    if (value > most)
      fail(ErrorCode::usage, fmt::format("{} of at most {}", name, most), quote(c, {name}),
           fmt::format("{}=32", name));
  }

  sizes.global_batch_size = c.global_batch_size;
  if (c.global_batch_tokens > 0) {
    if (c.global_batch_tokens % sizes.max_length != 0)
      fail(ErrorCode::usage,
           fmt::format("global_batch_tokens as a multiple of max_length {}", sizes.max_length),
           quote(c, {"global_batch_tokens", "max_length"}),
           fmt::format("global_batch_tokens={}",
                       (c.global_batch_tokens / sizes.max_length + 1) * sizes.max_length));
    const int64_t samples = c.global_batch_tokens / sizes.max_length;
    if (c.global_batch_size > 0 && c.global_batch_size != samples)
      fail(ErrorCode::usage, "global_batch_tokens = global_batch_size x max_length",
           quote(c, {"global_batch_tokens", "global_batch_size", "max_length"}),
           "leave global_batch_size out");
    sizes.global_batch_size = samples;
  }
  const bool derived = sizes.global_batch_size == 0;
  if (derived)
    sizes.global_batch_size =
        micro > 0 && accumulation > 0 ? micro * accumulation * c.ranks : kDefaultBatch;

  const int64_t G = sizes.global_batch_size;
  const std::string batch =
      c.global_batch_size > 0 ? quote(c, {"global_batch_size"})
      : c.global_batch_tokens > 0
          ? fmt::format("a batch of {} samples from {}", G, quote(c, {"global_batch_tokens"}))
          : fmt::format("global_batch_size: {} (default)", G);
  if (micro > 0 && accumulation > 0 && c.ranks > 1 && micro * accumulation * c.ranks != G)
    fail(ErrorCode::usage,
         "global_batch_size = per_device_train_batch_size x gradient_accumulation_steps x ranks",
         fmt::format(
             "{}, {}", batch,
             quote(c, {"per_device_train_batch_size", "gradient_accumulation_steps", "ranks"})),
         "leave gradient_accumulation_steps out");
  if (micro > 0 && accumulation > 0 && c.ranks == 1 && micro * accumulation != G)
    fail(ErrorCode::usage,
         "global_batch_size = per_device_train_batch_size x gradient_accumulation_steps",
         fmt::format("{}, {}", batch,
                     quote(c, {"per_device_train_batch_size", "gradient_accumulation_steps"})),
         G % micro == 0 ? fmt::format("gradient_accumulation_steps={}", G / micro)
                        : "leave one of them out");
  if (micro > 0 && G % micro != 0)
    fail(ErrorCode::usage, "global_batch_size as a multiple of per_device_train_batch_size",
         fmt::format("{}, {}", batch, quote(c, {"per_device_train_batch_size"})),
         fmt::format("global_batch_size={}", (G / micro + 1) * micro));
  if (accumulation > 0 && G % accumulation != 0)
    fail(ErrorCode::usage, "global_batch_size as a multiple of gradient_accumulation_steps",
         fmt::format("{}, {}", batch, quote(c, {"gradient_accumulation_steps"})),
         fmt::format("global_batch_size={}", (G / accumulation + 1) * accumulation));
  const int64_t steps = accumulation * c.ranks;
  if (accumulation > 0 && G % steps != 0)
    fail(ErrorCode::usage, "global_batch_size as a multiple of gradient_accumulation_steps x ranks",
         fmt::format("{}, {}", batch, quote(c, {"gradient_accumulation_steps", "ranks"})),
         fmt::format("global_batch_size={}", (G / steps + 1) * steps));
  sizes.micro_batch_size = micro > 0 ? micro : accumulation > 0 ? G / steps : 0;
  return sizes;
}

bool clock_alone(const RunConfig& c) {
  return c.max_steps == 0 && c.num_train_epochs == 0 && c.max_time > 0;
}

int64_t total_steps(const RunConfig& c, int64_t samples, int64_t global_batch) {
  if (c.num_train_epochs == 0) return c.max_steps;
  const double steps = std::ceil(static_cast<double>(samples) * c.num_train_epochs /
                                 static_cast<double>(global_batch));
  const auto by_epochs = static_cast<int64_t>(std::clamp(steps, 1.0, kMostSteps));
  return c.max_steps > 0 ? std::min(c.max_steps, by_epochs) : by_epochs;
}

int64_t resolve_warmup(const RunConfig& c, int64_t total_steps) {
  if (c.lr_scheduler_type == "constant") return 0;
  if (c.warmup_ratio >= 0)
    return c.warmup_ratio == 1 ? total_steps : steps_of(c.warmup_ratio, total_steps);
  if (c.warmup_steps >= 0) return steps_of(c.warmup_steps, total_steps);
  return std::min(kDefaultWarmup, total_steps / 10);
}

int64_t resolve_decay(const RunConfig& c, int64_t total_steps) {
  const int64_t decay = std::min(steps_of(c.lr_decay_steps, total_steps), total_steps);
  const double warmup = c.warmup_ratio >= 0 ? c.warmup_ratio : c.warmup_steps;
  const bool shares = warmup >= 0 && (warmup < 1 || c.warmup_ratio == 1) && c.lr_decay_steps < 1;
  // Two shares of a whole have room in it: of a step that both round up to, the warm-up has it.
  if (shares && warmup + c.lr_decay_steps < 1 + 1e-9)
    return std::min(decay, total_steps - resolve_warmup(c, total_steps));
  return decay;
}

double resolve_min_lr(const RunConfig& c) {
  if (c.min_lr >= 0) return c.min_lr;
  return c.min_lr_ratio >= 0 ? c.min_lr_ratio * c.learning_rate : 0.0;
}

int64_t schedule_step(const RunConfig& c, int64_t total_steps, int64_t updates, double elapsed) {
  if (total_steps > 0) return updates;
  return static_cast<int64_t>(std::min(1.0, elapsed / c.max_time) *
                              static_cast<double>(kClockSteps));
}

std::string idle_rates(const RunConfig& c, int64_t total_steps) {
  const auto none = [](double rate) { return static_cast<float>(rate) == 0.0f; };
  if (none(c.learning_rate))
    return fmt::format("nothing will be learned: the learning rate is 0 ({})",
                       quote(c, {"learning_rate"}));
  const int64_t steps = total_steps > 0 ? total_steps : kClockSteps;
  if (find_optimizer(c.optim)->keeps_others && total_steps > 0 &&
      c.warmup_steps > static_cast<double>(total_steps))
    return fmt::format(
        "the warm-up takes all of the run's {} steps ({}): the learning rate rises "
        "to {:.4g} and not to {:.4g}",
        total_steps, quote(c, {"warmup_steps"}),
        c.learning_rate * static_cast<double>(total_steps) / c.warmup_steps, c.learning_rate);
  if (resolve_warmup(c, steps) < steps) return {};
  const double top =
      c.learning_rate * LearningRateSchedule(schedule_config(c, steps)).factor(steps - 1);
  const std::string warmup =
      fmt::format("the warm-up takes all of the run's {} ({})",
                  total_steps > 0 ? fmt::format("{} steps", steps) : "time",
                  quote(c, {c.warmup_ratio >= 0 ? "warmup_ratio" : "warmup_steps"}));
  if (none(top)) return fmt::format("nothing will be learned: {}, and begins at 0", warmup);
  return fmt::format("{}: the learning rate rises to {:.4g} and not to {:.4g}", warmup, top,
                     c.learning_rate);
}

ScheduleConfig schedule_config(const RunConfig& c, int64_t total_steps) {
  ScheduleConfig schedule;
  schedule.type = c.lr_scheduler_type;
  schedule.warmup_steps = resolve_warmup(c, total_steps);
  schedule.total_steps = total_steps;
  schedule.learning_rate = c.learning_rate;
  const bool wsd = schedule.type == "warmup_stable_decay";
  const double least = resolve_min_lr(c);
  if (least > 0 || schedule.type == "polynomial" || wsd)
    schedule.min_lr_ratio = c.learning_rate > 0 ? least / c.learning_rate : 0.0;
  if (schedule.type == "cosine" && least > 0) schedule.type = "cosine_with_min_lr";
  if (wsd) {
    check_phases(c, total_steps);
    schedule.decay_steps = resolve_decay(c, total_steps);
    schedule.decay_type = c.lr_decay_type;
  }
  if (c.lr_num_cycles > 0) schedule.num_cycles = c.lr_num_cycles;
  if (schedule.type == "polynomial") schedule.power = c.lr_power;
  if (c.lr_timescale > 0) schedule.timescale = c.lr_timescale;
  return schedule;
}

OptimName optimizer_name(const RunConfig& config) {
  OptimName name = optim_name(config.optim);
  if (name.says_state) return name;
  for (const StateFormFacts& form : state_forms())
    if (config.optim_state == form.word) name.state = form.form;
  return name;
}

}  // namespace snug
