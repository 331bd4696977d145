#include "tools/infer/inference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "layers/adapters/first_weights.h"
#include "layers/adapters/prompt_encoder.h"
#include "layers/models/adapted_base.h"
#include "layers/models/adapter_files.h"
#include "layers/models/weights.h"
#include "tools/infer/flag_words.h"
#include "tools/planner/batch_room.h"
#include "tools/session/device_choice.h"
#include "tools/session/tell.h"
#include "tools/setup/peft_setup.h"
#include "tools/setup/setup.h"

namespace snug {

namespace {

ModelSource inference_source(const InferenceOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(options.model, ignored))
    fail(ErrorCode::usage, "--model as a folder with config.json and model.safetensors",
         options.model.empty() ? std::string("none") : options.model, "--model run1/final");
  if (is_adapter_folder(options.model)) {
    const std::string base = read_adapter_config(options.model).base;
    fail(ErrorCode::usage, "--model as the base of an adapter, and the adapter as --adapter",
         fmt::format("{}, an adapter", options.model),
         fmt::format("--model {} --adapter {}", base.empty() ? "BASE" : base, options.model));
  }
  ModelSource source = resolve_model(options.model, "");
  // An adapter of an encoder has its head, and the config of the two.
  if (!options.adapter.empty() && file_exists(options.adapter + "/config.json"))
    source.spec = resolve_model(options.adapter, "").spec;
  if (options.task != "auto")
    with_flags([&] { set_head(source.spec, parse_head(options.task), "--task"); });
  return source;
}

// A head that was never trained says nothing.
void check_trained_head(const Model& model, const std::string& folder) {
  const std::vector<std::string> missing = missing_weights(model, folder);
  if (missing.empty()) return;
  const char* task = to_string(model.spec().head);
  fail(ErrorCode::data, fmt::format("the weights of the head for {} in {}", task, folder),
       fmt::format("no {}", fmt::join(missing, ", ")),
       fmt::format("train it first: snug train model={} task={} ..., then --model OUTPUT_DIR/final",
                   folder, task));
}

}  // namespace

ModelSpec inference_spec(const InferenceOptions& options) {
  return inference_source(options).spec;
}

namespace {

bool has_rows(const std::string& folder) {
  return SafetensorsReader(folder + "/" + kAdapterWeights).find(kPromptEmbeddings) != nullptr;
}

// The adapter, if there is one, and how what it is for rests.
PeftModel resolve_base(const InferenceOptions& options, const ModelSpec& spec) {
  const bool own = options.base_form != "auto";
  if (options.adapter.empty()) {
    PeftModel plain;
    PeftConfig form;
    if (own) set_base_form(form, options.base_form, "--base-form");
    if (const auto of_folder = folder_form(options.model, spec);
        !own && of_folder && of_folder->codec == "int8")
      tell(stderr,
           "Note: int8 weights of {} are decoded, and products round no inputs; --base-form {} "
           "computes as bitsandbytes does.\n",
           options.model, base_form(*of_folder));
    if (form.codec.empty()) return plain;
    plain.codes = block_codes(spec, form);
    plain.frozen = [](std::string_view) { return true; };
    return plain;
  }
  std::vector<std::string> notes;
  PeftConfig config = read_adapter_config(options.adapter, &notes);
  set_base_form(config, own ? options.base_form : trained_base_form(options.adapter),
                own ? "--base-form"
                    : fmt::format("{} of {}/{}", kBaseFormKey, options.adapter, kAdapterWeights));
  // Of a checkpoint, which has the encoder alone.
  config.encoded = has_encoder(options.adapter) && !has_rows(options.adapter);
  PeftModel peft = resolve_adapter(spec, config, options.adapter);
  if (!own && !config.codec.empty())
    notes.push_back(fmt::format(
        "linear weights of the blocks rest as {}, as those that the adapter was trained over; "
        "--base-form full has them whole",
        base_form(config)));
  for (const std::string& note : notes) tell(stderr, "Note: {}.\n", note);
  return peft;
}

// Each sequence is to begin with virtual tokens.
void check_front(const InferenceOptions& options) {
  const std::string what =
      options.task == "dpo" || options.task == "reward"            ? "--task " + options.task
      : options.packing_boundaries && options.rows_per_window == 0 ? "--packing-boundaries"
                                                                   : "";
  if (options.front.count > 0 && !what.empty())
    fail(ErrorCode::unsupported,
         fmt::format("windows of one sequence for {}, whose virtual tokens lie in front of each",
                     options.adapter),
         what, fmt::format("leave {} out", what));
}

// The reference of a preference loss is the model without its adapters, which is there unless they began
// as parts of its weights.
void check_reference(const InferenceOptions& options, const PeftModel& peft) {
  if (!options.pairs.reference()) return;
  for (const auto& [layer, adapter] : peft.adapters)
    if (adapter.first_way && adapter.first_way->residual)
      fail(ErrorCode::unsupported,
           fmt::format("an adapter beside a whole model for --loss-type {}, whose reference is the "
                       "model without it",
                       facts_of(options.pairs.loss.kind).name),
           fmt::format("{}, which began as parts of its weights", options.adapter),
           "--loss-type simpo, which has no reference");
}

}  // namespace

Inference open_inference(InferenceOptions options,
                         const std::function<void(const ModelSpec&, const std::optional<Tokenizer>&,
                                                  InferenceOptions&)>& sizes) {
  // What is wrong with the folder is said before what is wrong with the device.
  ModelSource source = inference_source(options);
  Inference in;
  PlanRequest r;
  choose_device(r.settings, options.device, "--device");
  std::optional<GpuRoom> room;
  if (r.settings.target == Place::cuda) {
    room = gpu_room(r.settings.gpu);
    r.computes_on = computes_on(room->facts, r.settings);
    r.settings.cublaslt = r.computes_on.cublaslt != "none";
  }
  for (const std::string& note : settle_head(source)) tell(stderr, "Note: {}.\n", note);
  if (holds_tokenizer(options.model)) in.tokenizer = Tokenizer::load(options.model);
  if (in.tokenizer && in.tokenizer->vocab_size() > source.spec.V)
    fail(ErrorCode::usage,
         fmt::format("a tokenizer of at most {} tokens, the vocab_size of {}/config.json",
                     source.spec.V, options.model),
         fmt::format("{} tokens in {}", in.tokenizer->vocab_size(), options.model),
         "put the tokenizer that the model was trained with into the folder");
  r.settings.tf32 = options.precision == "tf32" && r.settings.target == Place::cuda;
  PeftModel peft = resolve_base(options, source.spec);
  Precision precision;
  with_flags([&] { precision = parse_precision(r.settings.tf32 ? "fp32" : options.precision); });
  in.model =
      std::make_unique<Model>(source.spec, precision, peft.frozen, peft.adapters, 1, peft.codes);
  if (options.adapter.empty()) check_trained_head(*in.model, options.model);
  // Read once: a budget that was not set is what is free now, which is another number later.
  r.budget = room && options.memory == 0
                 ? gpu_budget(*room, &r.reserve, &r.free_before)
                 : resolve_memory(options.memory, &r.reserve, &r.free_before);
  if (!room) options.host_budget = r.budget;
  options.front = in.model->front();
  check_front(options);
  ModelSpec text = source.spec;
  text.P -= options.front.count;
  if (sizes) sizes(text, in.tokenizer, options);
  for (int64_t* length : {&options.T, &options.kv_length})
    if (*length > 0) *length += options.front.count;
  check_reference(options, peft);

  r.model = in.model.get();
  r.settings.threads = resolve_threads(options.threads);
  in.kernels = resolve_kernels(r.settings.threads);
  r.settings.kernels = in.kernels.get();
  r.T = options.T;
  r.evaluate = options.T > 0;
  r.eval_batch = options.eval_batch;
  r.packing_boundaries = options.packing_boundaries;
  r.rows_per_window = options.rows_per_window;
  r.pairs = options.pairs;
  r.token_logits = options.token_logits;
  r.kv_length = options.kv_length;
  r.kv_rows = options.kv_rows;
  r.free_bytes = free_bytes_now(r);
  check_batch_room(r);
  in.plan = make_plan(r);
  const int64_t least = options.kv_rows_least;
  while (!in.plan.fits && least > 0 && r.kv_rows > least) {
    r.kv_rows = std::max(least, r.kv_rows / 2 / least * least);
    in.plan = make_plan(r);
  }
  if (!in.plan.fits) refuse_plan(in.plan);
  check_gpu_room(r.settings, in.plan.engine_bytes);
  const FactorsOfBase factors(*in.model, options.model, r.settings.threads);
  in.session = std::make_unique<Session>(in.plan.place, *in.model, in.plan.decisions, r.optimizer,
                                         r.settings, &in.plan.schedule);
  in.session->open();
  for (const std::string& warning : load_weights(in.session->context(), *in.model, options.model,
                                                 in.session->resting(), 0, &factors))
    tell(stderr, "Warning: {}\n", warning);
  if (!options.adapter.empty())
    for (const std::string& warning :
         load_adapter(in.session->context(), *in.model, options.adapter, in.session->resting(),
                      weights_fingerprint(options.model)))
      tell(stderr, "Warning: {}\n", warning);
  in.session->load();
  return in;
}

}  // namespace snug
