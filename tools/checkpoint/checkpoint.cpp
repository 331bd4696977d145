#include "tools/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "engine/io/safetensors_pieces.h"
#include "layers/models/adapter_files.h"
#include "layers/models/piece_weights.h"
#include "optim/kahan.h"
#include "optim/percentile.h"
#include "tools/checkpoint/checkpoint_seal.h"
#include "tools/checkpoint/saved_state.h"
#include "tools/costs/kernel_choices.h"
#include "tools/planner/decision_table.h"
#include "tools/session/tell.h"

namespace snug {

namespace fs = std::filesystem;

namespace {
constexpr const char* kState = "/snug_state.json";
// Steps and samples beyond any run, so that nothing that is computed from them overflows.
constexpr int64_t kMostSteps = int64_t{1} << 40, kMostTokens = int64_t{1} << 60;

// Doubles as JSON writes them come back with the same bits.
nlohmann::json watch_json(const LossWatch::State& s) {
  return {
      {"seen", s.seen},           {"losses", s.losses},           {"norms", s.norms},
      {"lowest", s.lowest},       {"lowest_step", s.lowest_step}, {"norm_said", s.norm_said},
      {"loss_said", s.loss_said}, {"norm_unsaid", s.norm_unsaid}, {"loss_unsaid", s.loss_unsaid},
      {"diverged", s.diverged}};
}

// Of a run at `step`: what counts steps is not above it.
LossWatch::State read_watch(const nlohmann::json& root, const std::string& path, int64_t step) {
  const std::string where = path + " / loss_watch";
  const nlohmann::json& j =
      root.contains("loss_watch") ? root["loss_watch"] : nlohmann::json::object();
  require_object(j, where);
  LossWatch::State s;
  s.seen = get_int_in(j, "seen", where, 0, step);
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
  s.lowest_step = get_int_in(j, "lowest_step", where, -1, step);
  s.norm_said = get_int_in(j, "norm_said", where, -LossWatch::kQuiet, s.seen);
  s.loss_said = get_int_in(j, "loss_said", where, -LossWatch::kQuiet, s.seen);
  s.norm_unsaid = get_int_in(j, "norm_unsaid", where, 0, s.seen);
  s.loss_unsaid = get_int_in(j, "loss_unsaid", where, 0, s.seen);
  s.diverged = get_bool(j, "diverged", where);
  return s;
}

// Of a run with loss scaling. Checkpoints of others, old ones too, have none of it.
void read_scaling(Checkpoint& c, const nlohmann::json& root, const std::string& path) {
  const std::string where = path + " / loss_scaling";
  const nlohmann::json& j =
      root.contains("loss_scaling") ? root["loss_scaling"] : nlohmann::json::object();
  require_object(j, where);
  const double scale = get_number(j, "loss_scale", where);
  c.position.loss_scale = static_cast<float>(scale);
  if (!(c.position.loss_scale > 0) || !std::isfinite(c.position.loss_scale))
    fail(ErrorCode::data, fmt::format("a loss_scale above 0 in {}", where),
         fmt::format("{}", scale), "resume from another checkpoint");
  c.position.growth_tracker = get_int_in(j, "growth_tracker", where, 0, INT32_MAX);
  c.pinned.init_scale = get_number(j, "init_scale", where);
}

// What an update reads of its step. Floats come back with the same bits.
nlohmann::json late_json(const std::optional<StepState>& late) {
  if (!late) return nullptr;
  return {{"pending", late->found_inf == 0},
          {"seed", late->seed},
          {"step", late->step},
          {"updates", late->updates},
          {"learning_rates", late->learning_rate},
          {"bias_correction1", late->bias_correction1},
          {"bias_correction2", late->bias_correction2},
          {"loss_scale", late->loss_scale},
          {"clip_factor", late->clip_factor}};
}

std::optional<StepState> read_late(const nlohmann::json& root, const std::string& path,
                                   int64_t most) {
  const auto at = root.find("late_update");
  if (at == root.end() || at->is_null()) return std::nullopt;
  const std::string where = path + " / late_update";
  require_object(*at, where);
  StepState s{};
  s.found_inf = get_bool(*at, "pending", where) ? 0 : 1;
  s.seed = static_cast<uint64_t>(get_int(*at, "seed", where));
  s.step = get_int_in(*at, "step", where, 0, most);
  s.updates = get_int_in(*at, "updates", where, 0, most);
  const auto rates = at->find("learning_rates");
  const bool all = rates != at->end() && rates->is_array() && rates->size() == kMaxGroups;
  for (size_t g = 0; g < kMaxGroups; ++g) {
    if (!all || !(*rates)[g].is_number())
      fail(ErrorCode::data, fmt::format("{} numbers for learning_rates in {}", kMaxGroups, where),
           rates == at->end() ? "none" : json_brief(*rates), "resume from another checkpoint");
    s.learning_rate[g] = (*rates)[g].get<float>();
  }
  for (const auto& [key, field] :
       {std::pair("bias_correction1", &s.bias_correction1),
        std::pair("bias_correction2", &s.bias_correction2), std::pair("loss_scale", &s.loss_scale),
        std::pair("clip_factor", &s.clip_factor)})
    *field = static_cast<float>(get_number(*at, key, where));
  if (!(s.loss_scale > 0))
    fail(ErrorCode::data, fmt::format("a loss_scale above 0 in {}", where),
         fmt::format("{}", s.loss_scale), "resume from another checkpoint");
  s.first_bad_element = -1;
  return s;
}

}  // namespace

std::optional<int64_t> checkpoint_step(const std::string& name) {
  if (!name.starts_with(kCheckpointPrefix)) return std::nullopt;
  const std::string digits = name.substr(std::strlen(kCheckpointPrefix));
  if (digits.empty() || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoll(digits);
}

std::vector<int64_t> checkpoint_steps(const std::string& output_dir) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(output_dir, error))
    if (const auto step = checkpoint_step(entry.path().filename().string())) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string checkpoint_state_name(const Name& state, const ParamInfo& param) {
  return state.str() + "." + param.name.str();
}

namespace {

// Checkpoints from before they were kept have none.
void read_preferences(const nlohmann::json& j, const std::string& path, PreferenceSums& to) {
  if (!j.contains("window_pairs")) return;
  to.pairs = get_int_in(j, "window_pairs", path, 0, int64_t{1} << 53);
  const auto read = [&](const char* name, std::span<double> numbers, size_t least) {
    const auto list = j.find(name);
    const auto number = [](const nlohmann::json& v) { return v.is_number(); };
    if (list == j.end() || !list->is_array() || list->size() < least ||
        list->size() > numbers.size() || !std::all_of(list->begin(), list->end(), number))
      fail(ErrorCode::data, fmt::format("{} numbers of {} in {}", numbers.size(), name, path),
           list == j.end() ? std::string("none") : json_brief(*list),
           "resume from another checkpoint");
    for (size_t i = 0; i < list->size(); ++i) numbers[i] = (*list)[i].get<double>();
  };
  constexpr size_t kLeast = 6;  // of checkpoints from before a loss had more
  read("window_preferences", to.sums, kLeast);
  if (j.contains("window_rewards")) read("window_rewards", to.range, to.range.size());
}

nlohmann::json pinned_json(const Pinned& pinned) {
  nlohmann::json j = {{"seed", pinned.seed},
                      {"data_seed", pinned.data_seed},
                      {"train_tokens", pinned.train_tokens},
                      {"train_samples", pinned.train_samples},
                      {"data", pinned.data},
                      {"global_batch", pinned.global_batch},
                      {"max_length", pinned.T},
                      {"packing_boundaries", pinned.packing_boundaries},
                      {"threads", pinned.threads},
                      {"precision", pinned.precision},
                      {"optimizer", pinned.optimizer},
                      {"instruction_set", pinned.instruction_set},
                      {"kernels", choices_json(pinned.kernels)},
                      {"attention", pinned.attention},
                      {"computes_on", computes_on_json(pinned.computes_on)},
                      {"matmul_autotune", pinned.matmul_autotune},
                      {"model", pinned.model},
                      {"frozen", pinned.frozen},
                      {"adapters", pinned.adapters},
                      {"base", pinned.base}};
  for (const Decision& row : decision_table())
    if (row.at_resume != AtResume::free) j[row.name] = row.json(pinned.decisions);
  return j;
}

}  // namespace

nlohmann::json checkpoint_state_json(const RunPosition& at, const Pinned& pinned,
                                     const Hyperparameters& hyperparameters) {
  nlohmann::json scaling;
  if (pinned.precision == "fp16")
    scaling = {{"loss_scale", at.loss_scale},
               {"growth_tracker", at.growth_tracker},
               {"init_scale", pinned.init_scale}};
  return {{"snug_version", kCheckpointVersion},
          {"loss_scaling", scaling},
          {"late_update", late_json(at.late)},
          {"global_step", at.step},
          {"updates", at.updates},
          {"untrained_steps", at.untrained},
          {"samples", at.samples},
          {"elapsed_seconds", at.elapsed},
          {"window_loss", at.window_loss},
          {"window_tokens", at.window_tokens},
          {"window_steps", at.window_steps},
          {"window_pairs", at.window_pairs.pairs},
          {"window_preferences", at.window_pairs.sums},
          {"window_rewards", at.window_pairs.range},
          {"start_eval_loss", at.start_eval_loss},
          {"best_eval_loss", at.best_eval_loss},
          {"best_eval_step", at.best_eval_step},
          {"evals_without_gain", at.evals_without_gain},
          {"best_saved_loss", at.best_saved_loss},
          {"best_saved_step", at.best_saved_step},
          {"metric_for_best_model", at.best_by},
          {"greater_is_better", at.greater_is_better},
          {"start_metric", at.start_metric},
          {"best_metric", at.best_metric},
          {"best_saved_metric", at.best_saved_metric},
          {"evaluation_due", at.evaluation_due},
          {"loss_watch", watch_json(at.watch)},
          {"hyperparameters", hyperparameters},
          {"pinned", pinned_json(pinned)}};
}

std::optional<std::string> latest_checkpoint(const std::string& output_dir) {
  const std::vector<int64_t> steps = checkpoint_steps(output_dir);
  for (size_t i = steps.size(); i-- > 0;) {
    std::string folder = fmt::format("{}/{}{}", output_dir, kCheckpointPrefix, steps[i]);
    if (checkpoint_complete(folder)) return folder;
  }
  return std::nullopt;
}

FoundCheckpoint find_intact_checkpoint(const std::string& output_dir) {
  FoundCheckpoint found;
  const std::vector<int64_t> steps = checkpoint_steps(output_dir);
  for (size_t i = steps.size(); i-- > 0;) {
    const std::string folder = fmt::format("{}/{}{}", output_dir, kCheckpointPrefix, steps[i]);
    if (!checkpoint_complete(folder)) {
      found.torn += (found.torn.empty() ? "" : ", ") + folder;
      continue;
    }
    const auto damage = find_checkpoint_damage(folder);
    if (!damage) {
      found.folder = folder;
      return found;
    }
    found.damaged_folders.push_back(folder);
    found.damaged +=
        fmt::format("{}{}: {}; {} when it was written", found.damaged.empty() ? "" : "\n",
                    damage->file, damage->found, damage->written);
  }
  return found;
}

namespace {

// What can be resumed in place of a checkpoint, whatever the output_dir: the newest whole one beside it.
std::string in_place_of(const std::string& folder) {
  std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string run = path.has_parent_path() ? path.parent_path().string() : ".";
  std::string whole;
  try {
    whole = find_intact_checkpoint(run).folder;
  } catch (const Error&) {  // the newest is of another program: none is advised
  }
  return whole.empty()
             ? "a copy of it from elsewhere, or another output_dir and no resume to start anew"
             : fmt::format("resume={}, the newest whole one of {}", whole, run);
}

}  // namespace

void check_checkpoint_bytes(const std::string& folder) {
  if (const auto damage = find_checkpoint_damage(folder))
    fail(ErrorCode::data, fmt::format("{} as it was written: {}", damage->file, damage->written),
         fmt::format("{}: it was changed, or the disk gives back other bytes", damage->found),
         in_place_of(folder));
}

Checkpoint read_checkpoint(const std::string& folder, bool checked) {
  if (!checkpoint_complete(folder))
    fail(ErrorCode::data, "a complete checkpoint (a folder with the file COMPLETE)", folder,
         in_place_of(folder));
  if (!checked) check_checkpoint_bytes(folder);
  const std::string path = folder + kState;
  const nlohmann::json j = parse_json_file(path);
  require_object(j, path);
  get_int_in(j, "snug_version", path, kCheckpointVersion, kCheckpointVersion);
  Checkpoint c;
  c.folder = folder;
  RunPosition& at = c.position;
  at.step = get_int_in(j, "global_step", path, 0, kMostSteps);
  at.updates = get_int_in(j, "updates", path, 0, at.step);
  at.late = read_late(j, path, at.step);
  at.samples = get_int_in(j, "samples", path, 0, kMostTokens);
  at.elapsed = get_number(j, "elapsed_seconds", path);
  at.window_loss = get_number(j, "window_loss", path);
  at.window_tokens = get_int_in(j, "window_tokens", path, 0, kMostTokens);
  at.window_steps = get_int_in(j, "window_steps", path, 0, at.step);
  read_preferences(j, path, at.window_pairs);
  at.best_eval_loss = get_number(j, "best_eval_loss", path);
  at.best_eval_step = get_int_in(j, "best_eval_step", path, 0, at.step);
  at.evals_without_gain = get_int_in(j, "evals_without_gain", path, 0, at.step + 1);
  at.best_saved_loss = get_number(j, "best_saved_loss", path);
  at.best_saved_step = get_int_in(j, "best_saved_step", path, -1, at.step);
  at.evaluation_due = get_bool(j, "evaluation_due", path);
  // Before they were kept, a step without a target ended a run, and the start counted as a step.
  if (j.contains("untrained_steps"))
    at.untrained = get_int_in(j, "untrained_steps", path, 0, at.step - at.updates);
  if (j.contains("start_eval_loss")) {
    at.start_eval_loss = get_number(j, "start_eval_loss", path);
  } else if (at.best_eval_step == 0) {
    at.start_eval_loss = std::exchange(at.best_eval_loss, at.best_saved_loss);
    at.best_eval_step = std::max<int64_t>(0, at.best_saved_step);
  }
  // Before there was a choice it was the loss.
  at.start_metric = at.start_eval_loss;
  at.best_metric = at.best_eval_loss;
  at.best_saved_metric = at.best_saved_loss;
  if (j.contains("metric_for_best_model")) {
    at.best_by = get_string(j, "metric_for_best_model", path);
    at.greater_is_better = get_bool(j, "greater_is_better", path);
    at.start_metric = get_number(j, "start_metric", path);
    at.best_metric = get_number(j, "best_metric", path);
    at.best_saved_metric = get_number(j, "best_saved_metric", path);
  }
  at.watch = read_watch(j, path, at.step);
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
  c.pinned.packing_boundaries = get_bool(p, "packing_boundaries", where);
  int64_t samples = 0, tokens = 0;
  if (__builtin_mul_overflow(at.step, c.pinned.global_batch, &samples) || samples != at.samples ||
      __builtin_mul_overflow(at.samples, c.pinned.T, &tokens) || tokens > kMostTokens)
    fail(ErrorCode::data,
         fmt::format("samples = global_step x global_batch in {}, below 2^60 tokens", path),
         fmt::format("{} samples at step {}, {} a step of {} tokens", at.samples, at.step,
                     c.pinned.global_batch, c.pinned.T),
         "resume from another checkpoint");
  get_int_in(p, "micro_batch", where, 1, c.pinned.global_batch);
  for (const Decision& row : decision_table())
    if (row.at_resume != AtResume::free)
      row.read(p, where, "resume from another checkpoint", c.pinned.decisions);
  c.pinned.threads = get_int_in(p, "threads", where, 1, INT64_MAX);
  c.pinned.precision = get_string(p, "precision", where);
  if (c.pinned.precision == "fp16") read_scaling(c, j, path);
  c.pinned.optimizer = get_string(p, "optimizer", where);
  c.pinned.instruction_set = get_string(p, "instruction_set", where);
  c.pinned.model = get_string(p, "model", where);
  if (p.contains("frozen")) c.pinned.frozen = get_string(p, "frozen", where);
  if (p.contains("adapters")) c.pinned.adapters = get_string(p, "adapters", where);
  if (p.contains("base")) c.pinned.base = get_string(p, "base", where);
  c.pinned.kernels =
      parse_choices(p.contains("kernels") ? p["kernels"] : nlohmann::json(), where + " / kernels");
  c.pinned.attention = get_string(p, "attention", where);
  c.pinned.computes_on = parse_computes_on(p, where);
  // Before the flag was pinned, what was measured said it.
  c.pinned.matmul_autotune = p.contains("matmul_autotune")
                                 ? get_bool(p, "matmul_autotune", where)
                                 : !c.pinned.computes_on.algorithms.empty();
  const std::string keys = path + " / hyperparameters";
  const nlohmann::json& h =
      j.contains("hyperparameters") ? j["hyperparameters"] : nlohmann::json::object();
  require_object(h, keys);
  for (const auto& item : h.items())
    c.hyperparameters[item.key()] = get_string(h, item.key().c_str(), keys);
  return c;
}

void load_checkpoint_weights(Session& session, const std::string& folder) {
  // The file by its name: what else may lie in the folder was not checked.
  const std::string file = folder + "/" + weights_file(session.model());
  if (safetensors_in_pieces(file))
    load_saved_weights(session.context(), session.model(), file, session.resting());
  else if (session.model().adapters().empty())
    load_weights(session.context(), session.model(), file, session.resting());
  else
    load_adapter(session.context(), session.model(), file, session.resting(), "");
}

void load_checkpoint(Session& session, const Checkpoint& checkpoint, const std::string& base) {
  if (!session.model().adapters().empty())
    load_weights(session.context(), session.model(), base, session.resting());
  load_checkpoint_weights(session, checkpoint.folder);
  session.load();
  const SafetensorsPieces file(checkpoint.folder + "/" + kStatesFile);
  StateStore& store = session.optimizer_state();
  const auto said = file.metadata().find(kStateFormKey);
  const std::string before = said == file.metadata().end() ? "fp32" : said->second;
  if (const std::string now = to_string(session.optimizer().config().state); before != now)
    fail(ErrorCode::data, fmt::format("optimizer states in {} in {}", now, file.path()),
         fmt::format("states in {}", before), "the optim that the checkpoint was made with");
  // Half of each weight would be left behind, or is not there; and so of the norms before.
  const OptimizerConfig& optimizer = session.optimizer().config();
  const struct {
    const char *state, *argument;
    bool kept;
  } extras[] = {{kCompensation, kKahanArgument, compensates(optimizer)},
                {kGradientNorms, kPercentileArgument, clips_by_percentile(optimizer)}};
  const auto made_with = checkpoint.hyperparameters.find("optim_args");
  for (const auto& extra : extras) {
    const auto is_one = [&](const PiecedTensor& t) { return t.name.starts_with(extra.state); };
    const auto found = std::find_if(file.tensors().begin(), file.tensors().end(), is_one);
    if (extra.kept == (found != file.tensors().end())) continue;
    if (extra.kept)
      fail(ErrorCode::data, fmt::format("optimizer states with {} in {}", extra.state, file.path()),
           fmt::format("none, of a run without {}", extra.argument),
           fmt::format("optim_args without {}, as the checkpoint was made", extra.argument));
    fail(ErrorCode::data,
         fmt::format("optimizer states without {} in {}", extra.state, file.path()),
         fmt::format("{}, of a run with {}", found->name, extra.argument),
         fmt::format(
             "optim_args={}, as the checkpoint was made with",
             made_with == checkpoint.hyperparameters.end() ? extra.argument : made_with->second));
  }
  // A run whose updates are no longer late leaves the last gradient out, and one that begins to has none.
  const bool late = checkpoint.position.late && store.saved() > store.states();
  if (late)
    session.late_step() = *checkpoint.position.late;
  else if (checkpoint.position.late && checkpoint.position.late->found_inf == 0)
    tell(
        stdout,
        "Note: the update of step {} that is pending in {} is left out: updates are at once now.\n",
        checkpoint.position.step, checkpoint.folder);
  for (int k = 0; k < (late ? store.saved() : store.states()); ++k)
    for (const StateSpan& span : whole_parameter_spans(session.model().params())) {
      const ParamInfo& p = session.model().params()[span.param];
      const Name state = k < store.states()
                             ? session.optimizer().state_names()[static_cast<size_t>(k)]
                             : Name(kLateGradient);
      const RestForm form = store.form(k, span);
      const int64_t numbers = store.numbers(k, span);
      for (const bool scales : {false, true}) {
        if (numbers == 0 || (scales && !form.coded())) continue;
        const SavedState want = saved_state(state, p, form, numbers, scales);
        const PiecedTensor& t = file.at(want.spec.name);
        if (t.dtype != want.spec.dtype || t.shape != want.spec.shape)
          fail(ErrorCode::data,
               fmt::format("{} as {} of shape ({})", t.name, to_string(want.spec.dtype),
                           fmt::join(want.spec.shape, ", ")),
               fmt::format("{} of shape ({}) in {}", to_string(t.dtype), fmt::join(t.shape, ", "),
                           file.path()),
               "resume with the config the checkpoint was made with");
        for (int64_t done = 0; done < want.units;) {
          const int64_t first = span.offset + done * want.each;
          const View at = scales ? store.stored_scales(k, first) : store.stored(k, first);
          const SafetensorsPieces::Span from = file.span(t, done);
          const int64_t n = std::min({at.elements(), from.elements, want.units - done});
          if (store.keeps(first))
            store.write_stored(session.context(), from.data, k, first, scales, n);
          done += n;
        }
      }
    }
  file.drop_pages();
  session.state().updates = checkpoint.position.updates;
  if (!session.model().precision().loss_scaling()) return;
  session.state().growth_tracker = static_cast<int32_t>(checkpoint.position.growth_tracker);
  if (session.decisions().loss_scaling.dynamic())
    session.state().loss_scale = checkpoint.position.loss_scale;
}

}  // namespace snug
