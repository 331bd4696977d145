#include "tools/setup/setup.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "layers/models/adapter_files.h"
#include "layers/models/freeze.h"
#include "layers/models/recompute.h"
#include "layers/models/weights.h"
#include "layers/ops/attention_cudnn.h"
#include "optim/settings.h"
#include "tools/calibrate/calibrated_cost.h"
#include "tools/calibrate/calibration.h"
#include "tools/config/check_config.h"
#include "tools/config/keys.h"
#include "tools/planner/attention_choice.h"
#include "tools/planner/batch_room.h"
#include "tools/planner/decision_table.h"
#include "tools/planner/plan_search.h"
#include "tools/planner/residence.h"
#include "tools/session/device_choice.h"
#include "tools/session/tell.h"
#include "tools/setup/disk_setup.h"
#include "tools/setup/optimizer_setup.h"
#include "tools/setup/peft_setup.h"
#include "tools/setup/plan_file.h"
#include "tools/setup/rank_setup.h"
#include "tools/setup/targets.h"
#include "tools/setup/task_keys.h"
#include "tools/setup/update_place.h"

namespace snug {

std::string threads_warning(int64_t configured, const Processors& p) {
  int64_t most = static_cast<int64_t>(p.cpus.size());
  if (p.quota > 0) most = std::min(most, static_cast<int64_t>(std::ceil(p.quota - 1e-9)));
  if (configured <= std::max<int64_t>(1, most)) return "";
  return fmt::format(
      "threads={} is more than this process may use at once ({}): they will take turns", configured,
      p.text());
}

int resolve_threads(int64_t configured) {
  const Processors p = find_processors();
  if (configured <= 0) return p.threads();
  if (configured > 1024)
    fail(ErrorCode::usage, "threads of at most 1024", std::to_string(configured),
         fmt::format("threads={}", p.threads()));
  if (const std::string warning = threads_warning(configured, p); !warning.empty())
    tell(stderr, "Warning: {}.\n", warning);
  return static_cast<int>(configured);
}

std::optional<Calibration> resolve_calibration(int threads) {
  const MachineKey key = machine_key(threads);
  std::string ignored;
  auto calibration = read_calibration(calibration_path(key), key, &ignored);
  if (!ignored.empty()) tell(stderr, "Note: {}.\n", ignored);
  return calibration;
}

std::unique_ptr<KernelTable> resolve_kernels(int threads) {
  std::string ignored;
  auto table = std::make_unique<KernelTable>(calibrated_kernels(threads, &ignored));
  if (!ignored.empty()) tell(stderr, "Note: {}.\n", ignored);
  return table;
}

int64_t resolve_memory(int64_t configured, int64_t* reserve, int64_t* free) {
  *reserve = *free = 0;
  if (configured > 0) return configured;
  const MemoryInfo info = make_device(Place::cpu)->memory_info();
  *free = info.available_bytes;
  *reserve = std::max<int64_t>(int64_t{256} << 20, info.total_bytes / 20);
  return budget_of(*free, *reserve);
}

namespace {

// What is wrong with a name or with a map's keys is said of "model"; where it was set stands behind
// that.
ModelSource resolve_source(const RunConfig& config, int64_t vocabulary) {
  if (is_adapter_folder(config.model)) {
    const std::string base = read_adapter_config(config.model).base;
    fail(ErrorCode::usage, "model as the base of an adapter, and the adapter as adapter",
         fmt::format("{}, an adapter ({})", config.model, config.where("model")),
         fmt::format("model={} adapter={}", base.empty() ? "BASE" : base, config.model));
  }
  try {
    return resolve_model(config.model, config.model_config_json, vocabulary);
  } catch (const Error& e) {
    const auto placed = [&](const std::string& text) {
      const bool of_key = text.ends_with(" in model") || text == "model: " + config.model;
      return of_key ? fmt::format("{} ({})", text, config.where("model")) : text;
    };
    fail(e.code(), placed(e.expected()), placed(e.found()), e.advice());
  }
}

bool cudnn_takes(const RunConfig& config, const Model& model, bool rows) {
  AttentionSpec attention;
  const ModelSpec& spec = model.spec();
  attention.D = spec.D;
  attention.softcap = spec.attention_softcap;
  attention.dropout = spec.attention_dropout;
  for (const int64_t layer : spec.distinct_layers())
    attention.window = std::max(attention.window, spec.kind(layer).window);
  return attention_cudnn_takes(model.precision().compute, attention) &&
         !config.packing_boundaries && !rows;
}

// cudnn was asked for, so nothing else computes attention.
void check_cudnn(const RunConfig& config, const Model& model, bool rows, bool gpu) {
  const ModelSpec& spec = model.spec();
  if (!cudnn_takes(config, model, rows))
    fail(ErrorCode::unsupported,
         "precision bf16 or fp16, heads of a multiple of 8 up to 128, no attention dropout and no "
         "packing_boundaries for attn_implementation: cudnn",
         fmt::format("precision: {}, heads of {}, attention dropout {}, packing_boundaries: {}",
                     config.precision, spec.D, spec.attention_dropout,
                     rows                        ? "true, as rows always are"
                     : config.packing_boundaries ? "true"
                                                 : "false"),
         spec.attention_dropout > 0 ? "attn_implementation=own, which drops too"
                                    : "attn_implementation=own, or precision=bf16");
  if constexpr (kCudaBuilt) {
    if (!gpu) return;
    if (const std::string found = describe_cudnn(); !found.starts_with("cuDNN "))
      fail(ErrorCode::unsupported, "cuDNN for attn_implementation: cudnn", found,
           "attn_implementation=own");
  }
}

// What is left to the planner it decides so that graphs can be.
void stay_on_device(PlanRequest& r) {
  r.graphs_required = true;
  if (r.offload.open()) r.offload = {};
  for (const ResidenceKey& key : residence_keys())
    if (r.*key.asked == "auto") r.*key.asked = key.device;
  r.update_in_backward = false;
}

// Of what was set, or is in a plan that is followed.
void check_graphs(const RunConfig& config, const PlanRequest& r) {
  std::string away = r.offload.none() ? "" : "offload: " + r.offload.text();
  if (r.ranks > 1) away += fmt::format("{}ranks: {}", away.empty() ? "" : ", ", r.ranks);
  for (const ResidenceKey& key : residence_keys())
    if (r.*key.asked != key.device)
      away += fmt::format("{}{}: {}", away.empty() ? "" : ", ", key.name, r.*key.asked);
  if (away.empty() && !r.update_in_backward.value_or(false)) return;
  fail(ErrorCode::unsupported,
       "nothing with the host, no update in backward and one rank for cuda_graphs: on",
       away.empty() ? fmt::format("a plan with updates in backward ({})", config.plan) : away,
       "cuda_graphs=auto");
}

// What was measured of the device, if it was; says why a file is not used.
std::optional<DeviceCalibration> resolve_device_calibration(Place place, int gpu) {
  const DeviceKey key = device_key(place, gpu);
  std::string ignored;
  auto calibration =
      read_device_calibration(device_calibration_path(key), key, device_text(place, gpu), &ignored);
  if (!ignored.empty()) tell(stderr, "Note: {}.\n", ignored);
  return calibration;
}

// The device that a target is: a GPU, or a processor, whose memory is the host's.
void follow_target(RunConfig& config, const Target& target) {
  const char* const word = target.shares_host ? "cpu" : "cuda";
  if (config.device == "auto") {
    config.device = word;
    config.origins["device"] = "target";
  } else if (place_of(config.device) != place_of(word)) {
    fail(ErrorCode::usage,
         fmt::format("device: auto or {} for target: {}, whose memory is {}", word, config.target,
                     target.shares_host ? "the host's" : "its own"),
         fmt::format("device: {} ({})", config.device, config.where("device")), "device=auto");
  }
  check_device(config);
}

// Rows that a head reads of a window where there is no data: rows as long as windows.
int64_t default_rows(const RunConfig& config, const ModelSpec& spec, int64_t T) {
  if (spec.head == HeadKind::causal_lm) return 0;
  if (spec.head == HeadKind::masked_lm) return masked_rows(T, config.mlm_probability);
  if (config.task == "reward") return 2;
  return spec.head == HeadKind::token_classification ? T : 1;
}

// The spec of a model whose head gives one number of a text, its reward. A new head takes the tokenizer's
// padding for what is behind a text, as TRL does: of several tokens at the end the last that is none is read.
void make_rewarding(ModelSpec& spec, HeadKind of_folder, const std::optional<Tokenizer>& tokenizer,
                    const RunConfig& config) {
  if (spec.encoder())
    fail(ErrorCode::unsupported, "a causal model for task: reward",
         fmt::format("type {} ({})", spec.family, config.where("model")),
         "a chat model of one of the other families");
  if (of_folder == HeadKind::sequence_classification && spec.label_count() != 1)
    fail(ErrorCode::usage, "a model of one label for task: reward, the reward",
         fmt::format("{} in {}", spec.label_count(), config.model),
         "the model that this head was trained on, which gets a new one");
  if (of_folder != HeadKind::sequence_classification) {
    spec.labels = {"LABEL_0"};
    if (tokenizer && tokenizer->pad_id()) spec.pad_token = *tokenizer->pad_id();
  }
  spec.problem = Problem::regression;
}

CostModel gpu_cost(const std::optional<GpuRoom>& room, DType compute) {
  return room ? CostModel::uncalibrated_gpu(room->facts.name, room->facts.multiprocessors,
                                            10 * room->facts.major + room->facts.minor, compute)
              : CostModel::uncalibrated_gpu("a GPU", 100, 80, compute);
}

// What names mean in recompute and offload is the model's to say; the place of the key is said here.
void check_policies(const RunConfig& config, const Model& model) {
  for (const char* key : {"recompute", "offload"}) {
    const bool again = key[0] == 'r';
    const LayerWords words = again ? config.recompute : config.offload;
    if (words.open()) continue;
    try {
      parse_policies(again ? words : LayerWords(), again ? LayerWords() : words, model);
    } catch (const Error& error) {
      fail(error.code(), error.expected(), fmt::format("{} ({})", error.found(), config.where(key)),
           error.advice());
    }
  }
}

}  // namespace

CostModel host_cost(int threads, DType compute) {
  const std::optional<Calibration> known = resolve_calibration(threads);
  return known ? calibrated_cost(*known, compute)
               : CostModel::uncalibrated(plan_instruction_set(), threads);
}

std::string cudnn_note(const std::optional<DeviceCalibration>& device, int64_t D, int64_t T) {
  const double times = device ? device->cudnn_speedup(D, T) : 0;
  if (times < kCudnnMargin) return "";
  return fmt::format(
      "the program's kernel; cuDNN was measured {:.2f} times as fast, and computes with "
      "attn_implementation=cudnn",
      times);
}

void refuse_target(const RunConfig& config, const char* command) {
  if (config.target.empty()) return;
  fail(ErrorCode::usage, fmt::format("no target for snug {}, which runs on this machine", command),
       fmt::format("target: {} ({})", config.target, config.where("target")),
       "snug plan, or leave target out");
}

void refuse_emulator(const RunConfig& config, const char* command) {
  if (resolve_place(config) != Place::emu) return;
  fail(
      ErrorCode::usage,
      fmt::format(
          "device: auto, cpu or cuda for snug {}: what the emulator takes says nothing of a device",
          command),
      fmt::format("device: {} ({})", config.device, config.where("device")), "device=cpu");
}

Place resolve_place(const RunConfig& config) {
  return place_of(config.device);
}

RunSetup make_setup(RunConfig config, bool looks, const RankRoom& ranks) {
  RunSetup s;
  std::optional<Target> target;
  if (!config.target.empty()) target = find_target(config.target);
  if (target) follow_target(config, *target);
  // A folder brings its own tokenizer; a map of sizes takes its vocabulary from the tokenizer.
  const std::string folder = config.model;
  if (!config.tokenizer.empty())
    s.tokenizer = Tokenizer::load(config.tokenizer);
  else if (!folder.empty() && holds_tokenizer(folder))
    s.tokenizer = Tokenizer::load(folder);
  const int64_t vocabulary = s.tokenizer ? s.tokenizer->vocab_size() : 0;
  ModelSource source = resolve_source(config, vocabulary);
  ModelSpec& spec = source.spec;
  if (vocabulary > spec.V)
    fail(ErrorCode::usage,
         fmt::format("a tokenizer of at most {} tokens, the model's vocab_size", spec.V),
         fmt::format("{} with {} tokens", config.tokenizer, vocabulary),
         fmt::format("model.vocab_size={}", vocabulary));
  if (config.init == "pretrained" && source.folder.empty())
    fail(ErrorCode::usage, "a model folder with weights for init: pretrained",
         fmt::format("model: {}", config.model.empty() ? "a map" : config.model),
         "model=FOLDER, or init=scratch");
  s.model_folder = config.init == "scratch" ? "" : source.folder;
  const HeadKind of_folder = spec.head;
  const bool chats = config.task == "sft" || learns_pairs(config.task);
  if (config.task != "auto")
    set_head(spec, parse_head(config.task),
             chats ? fmt::format("which task: {} is, {}", config.task, config.where("task"))
                   : config.where("task"));
  if (config.task == "reward") make_rewarding(spec, of_folder, s.tokenizer, config);
  if (learns_pairs(config.task))
    spec.embedding_dropout = spec.attention_dropout = spec.residual_dropout = 0;
  const bool token_rows = chats || (spec.head == HeadKind::causal_lm && gives_token_rows(config));
  for (const std::string& note : check_task_keys(config, spec, token_rows, looks))
    tell(stderr, "Note: {}.\n", note);
  if (!s.model_folder.empty())
    for (const std::string& note : settle_head(source)) tell(stderr, "Note: {}.\n", note);
  if (s.tokenizer && s.model_folder.empty()) {
    if (const auto id = s.tokenizer->eos_id()) spec.eos_token = *id;
    if (const auto id = s.tokenizer->bos_id()) spec.bos_token = *id;
    if (spec.bos_token < 0) spec.bos_token = spec.eos_token;
  }
  s.peft = resolve_peft_keys(config, spec, s.model_folder);
  if (!config.adapter.empty()) take_adapter_fields(*s.peft, config);
  const FrontTokens front = front_of(s.peft, spec);
  if (s.peft) check_front(config, *s.peft, spec);
  if (s.peft) settle_first_text(s.tokenizer, s.model_folder, *s.peft);
  s.sizes = resolve_sizes(config, std::max<int64_t>(1, spec.P - front.count));
  const bool given = !(config.train_data.empty() && config.eval_data.empty());
  const bool rows = spec.head != HeadKind::causal_lm || token_rows;
  if (rows && given) {
    // The names of labels are the folder's if its head has that task.
    const bool known = !source.folder.empty() && of_folder == spec.head;
    const bool of_ram = !config.device.starts_with("cuda") && config.target.empty();
    s.rows = std::make_shared<RowData>(
        config, s.tokenizer, spec, known, s.sizes.max_length, s.sizes.global_batch_size,
        RowUse{.front = front, .room = {.budget = of_ram ? config.memory : 0}});
  }
  check_metric(config, spec);
  const bool tf32 = config.precision == "tf32";  // whose dtypes are those of fp32
  Frozen frozen;
  if (!config.freeze.empty() || !config.unfreeze.empty() || spec.zero_biases)
    frozen = resolve_freeze(spec, {config.freeze, config.unfreeze});
  PeftModel peft;
  if (s.peft) peft = resolve_adapter(spec, *s.peft, config.adapter);
  Precision precision = parse_precision(tf32 ? "fp32" : config.precision);
  if (allows(config, "no_master")) precision.master = precision.compute;
  const auto frozen_by = s.peft ? peft.frozen : frozen.says;
  s.model = std::make_unique<Model>(spec, precision, s.peft ? peft.frozen : std::move(frozen.says),
                                    peft.adapters, static_cast<int>(config.ranks), peft.codes);

  check_policies(config, *s.model);

  PlanRequest& r = s.request;
  r.model = s.model.get();
  if (precision.compute == DType::bf16 && precision.separate_master() &&
      !find_optimizer(config.optim)->keeps_others)
    r.without_master = [=, adapters = peft.adapters, codes = peft.codes,
                        made = std::make_shared<std::unique_ptr<Model>>()] {
      Precision other = precision;
      other.master = other.compute;
      if (!*made) *made = std::make_unique<Model>(spec, other, frozen_by, adapters, 1, codes);
      return made->get();
    };
  r.optimizer = optimizer_setup(config, *s.model, s.model_folder.empty());
  r.paged_states = pages_states(config);
  r.ranks = static_cast<int>(config.ranks);
  r.staged = through_nccl(config) || through_mpi(config);
  r.settings.threads = rank_threads(config, ranks);
  choose_device(r.settings, config.device, "device");
  if (r.ranks > 1 && r.settings.target == Place::cuda) r.settings.gpu = rank_gpu(config, ranks);
  const bool emulated = r.settings.target == Place::emu, gpu = r.settings.target == Place::cuda;
  r.settings.tf32 = tf32;
  // First of all what may not be there. A described device need not.
  std::optional<GpuRoom> room;
  if (gpu && !target) room = gpu_room(r.settings.gpu);
  std::optional<DeviceCalibration> device;
  if (emulated || room) device = resolve_device_calibration(r.settings.target, r.settings.gpu);
  std::optional<Calibration> calibration;
  if (!emulated && !gpu) calibration = resolve_calibration(r.settings.threads);
  s.kernels = std::make_unique<KernelTable>(calibration ? calibration->table() : KernelTable());
  r.settings.kernels = s.kernels.get();
  const DType compute = s.model->precision().compute;
  s.cost = std::make_unique<CostModel>(
      device        ? calibrated_cost(*device, compute, tf32)
      : emulated    ? CostModel::emulated()
      : gpu         ? gpu_cost(room, compute)
      : calibration ? calibrated_cost(*calibration, compute)
                    : CostModel::uncalibrated(plan_instruction_set(), r.settings.threads));
  r.cost = s.cost.get();
  if (gpu) s.cost->set_host(host_cost(r.settings.threads, compute));
  r.settings.cudnn = config.attn_implementation == "cudnn";
  if (r.settings.cudnn) check_cudnn(config, *s.model, rows, room.has_value());
  if (room) {
    r.computes_on = computes_on(room->facts, r.settings);
    r.settings.cublaslt = r.computes_on.cublaslt != "none";
    if (device) r.calibrated_runtime = device->runtime.planned(spec.L);
    choose_attention(r, r.settings.cudnn);
    if (config.attn_implementation == "auto" && cudnn_takes(config, *s.model, rows))
      r.attention_note = cudnn_note(device, spec.D, s.sizes.max_length);
  }
  r.T = front.count + s.sizes.max_length;
  r.pairs = s.rows ? s.rows->pairs() : pair_decision(config);
  if (r.pairs.any() && !r.pairs.single()) {
    r.T *= 2;  // of both answers
    check_pair_length(spec, s.sizes.max_length, config);
  }
  r.global_batch = s.sizes.global_batch_size;
  if (rows) {
    r.rows = s.sizes.global_batch_size;
    r.global_batch = s.rows ? s.rows->windows_per_step() : r.rows;
    r.row_tokens = s.rows && s.rows->train_rows() > 0 ? s.rows->mean_length() : 0;
    r.rows_per_window = s.rows ? s.rows->rows_per_window() : default_rows(config, spec, r.T);
  }
  for (const Decision& row : decision_table()) row.ask(config, r);
  r.micro_batch = s.sizes.micro_batch_size;  // or what other keys make it
  // A reference is what an evaluation says before the first step, a divergence before each.
  r.evaluate =
      config.eval_fraction > 0 || !config.eval_data.empty() || r.pairs.cached || r.pairs.compared();
  r.keys = {.global_size = config.global_batch_size,
            .global_tokens = config.global_batch_tokens,
            .micro = config.per_device_train_batch_size,
            .accumulation = config.gradient_accumulation_steps,
            .head_rows = config.head_rows};
  r.bf16_gradients = allows(config, "bf16_gradients");
  r.stale_update = allows(config, "stale_update");
  r.allow = config.allow;
  r.max_grad_norm = config.max_grad_norm;
  r.loss_scaling = {.fixed_scale = config.loss_scale,
                    .init_scale = config.init_scale,
                    .growth_factor = config.growth_factor,
                    .backoff_factor = config.backoff_factor,
                    .growth_interval = config.growth_interval,
                    .min_scale = config.min_loss_scale};
  r.packing_boundaries = config.packing_boundaries || rows;
  r.save = true;
  r.save_buffer = config.save_buffer;
  r.step_flops_rate = calibration ? calibration->roofs.flops(compute == DType::bf16) : 0.0;
  bool own_memory = false;  // of the device
  if (!target) {
    own_memory = gpu;
    if (room && config.memory == 0)
      r.budget = gpu_budget(*room, &r.reserve, &r.free_before);
    else
      r.budget = resolve_memory(config.memory, &r.reserve, &r.free_before);
  } else {
    Rates rates = target->rates(compute, tf32);
    std::string text = fmt::format("{}, published peaks x {}", target->title, Target::kMatrixShare);
    if (r.ranks > 1) text += join_ranks(config, *target, r.ranks, rates);
    s.cost = std::make_unique<CostModel>(CostModel::described(text, rates));
    s.cost->set_host(target->host_cost());
    r.cost = s.cost.get();
    const bool assumed = target->host_bytes > 0 && config.host_memory == 0;
    r.target = fmt::format(
        "{} ({}{})", target->name, target->title,
        assumed ? fmt::format("; beside it {} of the host's are assumed, host_memory= says another",
                              human_bytes(target->host_bytes))
                : std::string());
    r.runtime_bytes = target->runtime_bytes;
    own_memory = !target->shares_host;
    r.budget = config.memory > 0 ? config.memory : target->memory_bytes;
    r.whole_device = config.memory == 0;
  }
  r.ranks_on_machine = ranks_on_machine(config, ranks);
  // Ranks share the host's memory, and have a device's each.
  if (r.ranks > 1 && r.reserve > 0 && !own_memory)
    r.budget = std::max<int64_t>(1, r.budget / r.ranks_on_machine);
  r.host_budget = config.host_memory;
  // Ranks share the host.
  if (target && config.host_memory == 0) r.host_budget = target->host_bytes / r.ranks;
  // On this machine both arenas are RAM, and the user says that there is some for a second one.
  r.use_host = own_memory || config.host_memory > 0;
  r.settings.graphs = config.cuda_graphs == "on" || (gpu && config.cuda_graphs == "auto");
  if (config.cuda_graphs == "on") stay_on_device(r);
  check_disk(config, r);
  settle_disk(config, r, *s.cost);
  for (const Decision& row : decision_table())
    if (row.check != nullptr) row.check(config, r);
  if (r.ranks > 1)
    settle_ranks(config, r);
  else if (config.transport == "mpi" || config.transport == "nccl")
    tell(stderr, "Note: transport: {} ({}) carries nothing: there is one rank.\n", config.transport,
         config.where("transport"));
  if (r.ranks == 1 && config.zero != "auto" && config.zero != "0")
    tell(stderr, "Note: zero: {} ({}) shares nothing: there is one rank.\n", config.zero,
         config.where("zero"));
  settle_update(config, r);
  if (r.offload_optimizer == "cpu" && r.offload_update != "cpu" && r.offload_params != "cpu" &&
      make_optimizer(r.optimizer)->state_names().empty() && !s.model->precision().separate_master())
    fail(ErrorCode::usage, "an optimizer with states, or a 16-bit precision, for offload_optimizer",
         fmt::format("optim: {}, precision: {}", config.optim, config.precision),
         "offload_optimizer=none, or sgd_momentum=0.9");
  r.bitwise = config.bitwise;
  config.max_length = s.sizes.max_length;
  // What another number of ranks goes on with.
  if (r.ranks > 1 && config.global_batch_tokens == 0) {
    config.global_batch_size = s.sizes.global_batch_size;
    config.gradient_accumulation_steps = 0;
  }
  if (!config.sample_prompt.empty()) {
    if (!s.tokenizer)
      fail(ErrorCode::usage, "tokenizer for sample_prompt", "none", "tokenizer=tok.json");
    const auto prompt = static_cast<int64_t>(s.tokenizer->encode(config.sample_prompt).size());
    const int64_t most = spec.P - front.count;
    if (prompt > most || prompt < 1)
      fail(ErrorCode::usage, fmt::format("a sample_prompt of 1 to {} tokens", most),
           fmt::format("{} tokens", prompt), "a shorter sample_prompt");
    r.kv_length = front.count + prompt + std::min(most - prompt, config.sample_tokens);
  }
  s.config = std::move(config);
  if (!s.config.plan.empty()) {
    follow_plan(read_plan_file(s.config.plan), s);
    if (r.offload_optimizer == "disk") check_disk(s.config, r);
  }
  if (s.config.cuda_graphs == "on") check_graphs(s.config, r);
  // A described device has a host of its own, of which nothing is known.
  if (s.config.target.empty()) r.free_bytes = free_bytes_now(r);
  if (r.ranks > 1 && s.config.zero == "auto") choose_zero(r);
  return s;
}

}  // namespace snug
