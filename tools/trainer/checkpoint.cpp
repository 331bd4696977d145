#include "tools/trainer/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "tools/trainer/calibration.h"
#include "tools/trainer/output_folder.h"

namespace snug {

namespace fs = std::filesystem;

namespace {
constexpr int64_t kVersion = 2;
constexpr const char* kState = "/snug_state.json";
constexpr const char* kPrefix = "checkpoint-";

std::vector<int64_t> shape_of(const ParamInfo& p) {
  std::vector<int64_t> shape;
  for (int i = 0; i < p.shape.rank(); ++i) shape.push_back(i == 0 ? p.rows : p.shape[i]);
  return shape;
}

std::string state_tensor(const Name& state, const ParamInfo& p) {
  return state.str() + "." + p.name.str();
}

SafetensorsLayout optimizer_layout(Session& session) {
  std::vector<SafeSpec> specs;
  for (const Name& state : session.optimizer().state_names())
    for (const StateSpan& span : session.optimizer_state().spans()) {
      const ParamInfo& p = session.model().params()[span.param];
      specs.push_back({state_tensor(state, p), SafeDType::F32, shape_of(p)});
    }
  return SafetensorsLayout({{"format", "pt"}}, std::move(specs));
}

// Steps of the folders named checkpoint-<digits>, ascending.
std::vector<int64_t> checkpoint_steps(const std::string& output_dir) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(output_dir, error))
    if (const auto step = checkpoint_step(entry.path().filename().string())) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

// Doubles as JSON writes them come back with the same bits.
nlohmann::json watch_json(const LossWatch::State& s) {
  return {
      {"seen", s.seen},           {"losses", s.losses},           {"norms", s.norms},
      {"lowest", s.lowest},       {"lowest_step", s.lowest_step}, {"norm_said", s.norm_said},
      {"loss_said", s.loss_said}, {"norm_unsaid", s.norm_unsaid}, {"loss_unsaid", s.loss_unsaid},
      {"diverged", s.diverged}};
}

LossWatch::State read_watch(const nlohmann::json& root, const std::string& path) {
  const std::string where = path + " / loss_watch";
  const nlohmann::json& j =
      root.contains("loss_watch") ? root["loss_watch"] : nlohmann::json::object();
  require_object(j, where);
  LossWatch::State s;
  s.seen = get_int_in(j, "seen", where, 0, INT64_MAX);
  for (auto& [key, ring] : {std::pair("losses", &s.losses), std::pair("norms", &s.norms)}) {
    const auto at = j.find(key);
    bool good = at != j.end() && at->is_array() && at->size() == ring->size();
    for (size_t i = 0; good && i < ring->size(); ++i) {
      good = (*at)[i].is_number();
      if (good) (*ring)[i] = (*at)[i].get<double>();
    }
    if (!good)
      fail(ErrorCode::data, fmt::format("{} numbers for {} in {}", ring->size(), key, where),
           at == j.end() ? "none" : json_brief(*at), "resume from another checkpoint");
  }
  s.lowest = get_number(j, "lowest", where);
  s.lowest_step = get_int_in(j, "lowest_step", where, -1, INT64_MAX);
  s.norm_said = get_int_in(j, "norm_said", where, -LossWatch::kQuiet, INT64_MAX);
  s.loss_said = get_int_in(j, "loss_said", where, -LossWatch::kQuiet, INT64_MAX);
  s.norm_unsaid = get_int_in(j, "norm_unsaid", where, 0, INT64_MAX);
  s.loss_unsaid = get_int_in(j, "loss_unsaid", where, 0, INT64_MAX);
  s.diverged = get_bool(j, "diverged", where);
  return s;
}

// The state file of an older version had the name that now holds the log.
int64_t old_version(const std::string& folder) {
  const std::string path = folder + "/trainer_state.json";
  if (!file_exists(path)) return 0;
  const nlohmann::json j = parse_json_file(path);
  return j.is_object() ? get_int(j, "snug_version", path, 0) : 0;
}

}  // namespace

std::optional<int64_t> checkpoint_step(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string digits = name.substr(std::strlen(kPrefix));
  if (digits.empty() || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoll(digits);
}

CheckpointWriter::CheckpointWriter(Session& session, std::string output_dir, int64_t keep)
    : session_(session),
      output_dir_(std::move(output_dir)),
      keep_(keep),
      model_layout_(weights_layout(session.model(), DType::f32)),
      optimizer_layout_(optimizer_layout(session)) {}

int64_t CheckpointWriter::bytes() const {
  return model_layout_.total_bytes() + optimizer_layout_.total_bytes();
}

std::string CheckpointWriter::write(const RunPosition& at, const Pinned& pinned,
                                    const Hyperparameters& hyperparameters,
                                    const std::function<void(const std::string&)>& extra) {
  const std::string final_name = fmt::format("{}/{}{}", output_dir_, kPrefix, at.step);
  const std::string folder = final_name + ".tmp";
  std::error_code error;
  fs::remove_all(folder, error);
  fs::create_directories(folder, error);
  if (error)
    fail(ErrorCode::device, fmt::format("to create {}", folder), error.message(),
         "free disk space, or another output_dir");
  session_.save_model(folder + "/model.safetensors", model_layout_);
  {
    SafetensorsWriter writer(folder + "/optimizer.safetensors", optimizer_layout_);
    StateStore& store = session_.optimizer_state();
    for (int k = 0; k < store.states(); ++k)
      for (const StateSpan& span : store.spans()) {
        const ParamInfo& p = session_.model().params()[span.param];
        writer.write(state_tensor(session_.optimizer().state_names()[static_cast<size_t>(k)], p),
                     store.flat(k).as<float>() + span.offset, p.real_elements() * 4);
      }
    writer.commit();
  }
  extra(folder);
  write_json_file(folder + kState, {{"snug_version", kVersion},
                                    {"global_step", at.step},
                                    {"updates", at.updates},
                                    {"samples", at.samples},
                                    {"elapsed_seconds", at.elapsed},
                                    {"window_loss", at.window_loss},
                                    {"window_tokens", at.window_tokens},
                                    {"window_steps", at.window_steps},
                                    {"best_eval_loss", at.best_eval_loss},
                                    {"best_eval_step", at.best_eval_step},
                                    {"evals_without_gain", at.evals_without_gain},
                                    {"loss_watch", watch_json(at.watch)},
                                    {"hyperparameters", hyperparameters},
                                    {"pinned",
                                     {{"seed", pinned.seed},
                                      {"data_seed", pinned.data_seed},
                                      {"train_tokens", pinned.train_tokens},
                                      {"train_samples", pinned.train_samples},
                                      {"data", pinned.data},
                                      {"global_batch", pinned.global_batch},
                                      {"max_length", pinned.T},
                                      {"micro_batch", pinned.micro_batch},
                                      {"head_rows", pinned.head_rows},
                                      {"threads", pinned.threads},
                                      {"precision", pinned.precision},
                                      {"optimizer", pinned.optimizer},
                                      {"instruction_set", pinned.instruction_set},
                                      {"recompute", pinned.recompute},
                                      {"kernels", choices_json(pinned.kernels)},
                                      {"attention", pinned.attention},
                                      {"model", pinned.model}}}});
  write_atomic(folder + "/COMPLETE", fmt::format("{}\n", at.step));
  sync_folder(folder);
  replace_folder(folder, final_name);
  sync_folder(output_dir_);
  if (keep_ > 0) {
    std::vector<std::string> complete;
    for (const int64_t step : checkpoint_steps(output_dir_)) {
      const std::string name = fmt::format("{}/{}{}", output_dir_, kPrefix, step);
      if (file_exists(name + "/COMPLETE")) complete.push_back(name);
    }
    for (size_t i = 0; i + static_cast<size_t>(keep_) < complete.size(); ++i)
      if (complete[i] != final_name) fs::remove_all(complete[i], error);
  }
  return final_name;
}

std::optional<std::string> latest_checkpoint(const std::string& output_dir, std::string* skipped) {
  const std::vector<int64_t> steps = checkpoint_steps(output_dir);
  for (size_t i = steps.size(); i-- > 0;) {
    const std::string folder = fmt::format("{}/{}{}", output_dir, kPrefix, steps[i]);
    if (file_exists(folder + "/COMPLETE")) return folder;
    *skipped += (skipped->empty() ? "" : ", ") + folder;
  }
  return std::nullopt;
}

Checkpoint read_checkpoint(const std::string& folder) {
  if (!file_exists(folder + "/COMPLETE"))
    fail(ErrorCode::data, "a complete checkpoint (a folder with the file COMPLETE)", folder,
         "resume=latest, which uses the newest complete one");
  const std::string path = folder + kState;
  const bool there = file_exists(path);
  const nlohmann::json j = there ? parse_json_file(path) : nlohmann::json::object();
  require_object(j, path);
  const int64_t version = there ? get_int(j, "snug_version", path, 0) : old_version(folder);
  if (version != kVersion)
    fail(ErrorCode::data, fmt::format("a checkpoint of version {} in {}", kVersion, path),
         version == 0 ? (there ? "a file that Snug did not write"
                               : "no such file: a checkpoint that Snug did not write")
                      : fmt::format("version {}", version),
         "resume with the program that wrote it; its model folder can still be used as model=");
  Checkpoint c;
  c.folder = folder;
  RunPosition& at = c.position;
  at.step = get_int_in(j, "global_step", path, 0, INT64_MAX);
  at.updates = get_int_in(j, "updates", path, 0, INT64_MAX);
  at.samples = get_int_in(j, "samples", path, 0, INT64_MAX);
  at.elapsed = get_number(j, "elapsed_seconds", path);
  at.window_loss = get_number(j, "window_loss", path);
  at.window_tokens = get_int_in(j, "window_tokens", path, 0, INT64_MAX);
  at.window_steps = get_int_in(j, "window_steps", path, 0, INT64_MAX);
  at.best_eval_loss = get_number(j, "best_eval_loss", path);
  at.best_eval_step = get_int_in(j, "best_eval_step", path, 0, INT64_MAX);
  at.evals_without_gain = get_int_in(j, "evals_without_gain", path, 0, INT64_MAX);
  at.watch = read_watch(j, path);
  const std::string where = path + " / pinned";
  const nlohmann::json& p = j.contains("pinned") ? j["pinned"] : nlohmann::json::object();
  require_object(p, where);
  c.pinned.seed = get_int(p, "seed", where);
  c.pinned.data_seed = get_int(p, "data_seed", where);
  c.pinned.train_tokens = get_int_in(p, "train_tokens", where, 0, INT64_MAX);
  c.pinned.train_samples = get_int_in(p, "train_samples", where, 0, INT64_MAX);
  c.pinned.data = get_string(p, "data", where);
  c.pinned.global_batch = get_int_in(p, "global_batch", where, 1, INT64_MAX);
  c.pinned.T = get_int_in(p, "max_length", where, 1, INT64_MAX);
  c.pinned.micro_batch = get_int_in(p, "micro_batch", where, 1, c.pinned.global_batch);
  c.pinned.head_rows = get_int_in(p, "head_rows", where, 1, INT64_MAX);
  c.pinned.threads = get_int_in(p, "threads", where, 1, INT64_MAX);
  c.pinned.precision = get_string(p, "precision", where);
  c.pinned.optimizer = get_string(p, "optimizer", where);
  c.pinned.instruction_set = get_string(p, "instruction_set", where);
  c.pinned.recompute = get_string(p, "recompute", where);
  c.pinned.model = get_string(p, "model", where);
  c.pinned.kernels =
      parse_choices(p.contains("kernels") ? p["kernels"] : nlohmann::json(), where + " / kernels");
  c.pinned.attention = get_string(p, "attention", where);
  const std::string keys = path + " / hyperparameters";
  const nlohmann::json& h =
      j.contains("hyperparameters") ? j["hyperparameters"] : nlohmann::json::object();
  require_object(h, keys);
  for (const auto& item : h.items())
    c.hyperparameters[item.key()] = get_string(h, item.key().c_str(), keys);
  return c;
}

void load_checkpoint(Session& session, const Checkpoint& checkpoint) {
  load_weights(session.model(), checkpoint.folder, session.master(), session.context().threads());
  session.load();
  const SafetensorsReader file(checkpoint.folder + "/optimizer.safetensors");
  StateStore& store = session.optimizer_state();
  for (int k = 0; k < store.states(); ++k)
    for (const StateSpan& span : store.spans()) {
      const ParamInfo& p = session.model().params()[span.param];
      const SafeTensor& t =
          file.at(state_tensor(session.optimizer().state_names()[static_cast<size_t>(k)], p));
      if (t.dtype != SafeDType::F32 || t.shape != shape_of(p))
        fail(ErrorCode::data, fmt::format("{} as F32 of the parameter's shape", t.name),
             fmt::format("{} in {}", to_string(t.dtype), file.path()),
             "resume with the config the checkpoint was made with");
      std::memcpy(store.flat(k).as<float>() + span.offset, t.data, static_cast<size_t>(t.bytes));
    }
  file.drop_pages();
  session.state().updates = checkpoint.position.updates;
}

}  // namespace snug
