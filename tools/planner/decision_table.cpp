#include "tools/planner/decision_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/json.h"

namespace snug {
namespace {

// Beside compute gradients wait for those of the next block, and what others send for its activations.
std::vector<std::string> tries_in_turn(const PlanRequest& r) {
  if (r.ranks == 1) return {};
  return {"in turn with it"};
}

std::vector<Decision> make_table() {
  std::vector<Decision> table = {
      {.name = "micro_batch",
       .key = "per_device_train_batch_size",
       .words = "micro-batches of {}",
       .decided = &Decisions::micro_batch,
       .asked = &PlanRequest::micro_batch,
       .given = &RunConfig::per_device_train_batch_size,
       .least = 1,
       .at_resume = AtResume::pinned},
      {.name = "head_rows",
       .key = "head_rows",
       .words = "head chunks of {} rows",
       .decided = &Decisions::head_rows,
       .asked = &Asked::head_rows,
       .given = &Asked::head_rows,
       .least = 1,
       .at_resume = AtResume::pinned,
       .at_most = true},
      {.name = "gradients",
       .key = nullptr,
       .words = "gradients in {}",
       .decided = &Decisions::gradients,
       .asked = &PlanRequest::gradients,
       .absent = "f32",
       .at_resume = AtResume::pinned,
       .permission = "bf16_gradients"},
      {.name = "update",
       .key = nullptr,
       .words = "updates {}",
       .decided = &Decisions::update_in_backward,
       .asked = &PlanRequest::update_in_backward,
       .values = {kUpdateBehind, kUpdateInBackward},
       .absent = kUpdateBehind},
      {.name = "update_delay",
       .key = nullptr,
       .words = "updates {}",
       .decided = &Decisions::delayed_update,
       .asked = &PlanRequest::delayed_update,
       .values = {"at once", "one step late"},
       .absent = "at once",
       .at_resume = AtResume::pinned,
       .permission = "stale_update"},
      {.name = "recompute",
       .key = "recompute",
       .words = "recompute {}",
       .decided = &Decisions::recompute,
       .asked = &PlanRequest::recompute,
       .given = &RunConfig::recompute,
       .at_resume = AtResume::told},
      {.name = "offload",
       .key = "offload",
       .words = "offload {}",
       .decided = &Decisions::offload,
       .asked = &PlanRequest::offload,
       .given = &RunConfig::offload,
       .absent = "none"},
      {.name = "packed_weights",
       .key = "packed_weights",
       .words = "packed weights {}",
       .decided = &Decisions::packed_weights,
       .asked = &PlanRequest::packed_weights,
       .given = &RunConfig::packed_weights,
       .absent = "none"},
      {.name = "eval_batch",
       .key = "per_device_eval_batch_size",
       .words = "evaluation batches of {}",
       .decided = &Decisions::eval_batch,
       .asked = &PlanRequest::eval_batch,
       .given = &RunConfig::per_device_eval_batch_size},
  };
  table.push_back({.name = "collectives",
                   .key = nullptr,
                   .words = "collectives {}",
                   .decided = &Decisions::in_turn,
                   .asked = &PlanRequest::in_turn,
                   .values = {"beside compute", "in turn with it"},
                   .absent = "beside compute",
                   .tries = tries_in_turn,
                   .of_blocks = false});
  for (const ResidenceKey& key : residence_keys())
    table.push_back({.name = key.name,
                     .key = key.name,
                     .words = "",
                     .decided = &key,
                     .asked = key.asked,
                     .given = key.asked,
                     .absent = key.device,
                     .beside = key.beside,
                     .check = key.check,
                     .tries = key.tries,
                     .of_blocks = key.of_blocks});
  return table;
}

// The values that a file may name, of what is a word of few.
std::vector<std::string> words_of(const Decision& row) {
  if (std::holds_alternative<DType Decisions::*>(row.decided))
    return {to_string(DType::f32), to_string(DType::bf16)};
  if (std::holds_alternative<WeightPacking Decisions::*>(row.decided))
    return {to_string(WeightPacking::none), to_string(WeightPacking::forward),
            to_string(WeightPacking::both)};
  if (const auto* key = std::get_if<const ResidenceKey*>(&row.decided))
    return (*key)->filed == nullptr ? std::vector<std::string>{(*key)->device, "cpu"}
                                    : std::vector<std::string>{(*key)->device, "cpu", "disk"};
  return {row.values[0], row.values[1]};
}

std::string one_of(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 < words.size() ? ", " : " or ") + words[i];
  return text;
}

void set_word(const Decision& row, const std::string& word, Decisions& d) {
  if (const auto* field = std::get_if<bool Decisions::*>(&row.decided))
    d.*(*field) = word == row.values[1];
  else if (const auto* dtype = std::get_if<DType Decisions::*>(&row.decided))
    d.*(*dtype) = word == to_string(DType::bf16) ? DType::bf16 : DType::f32;
  else if (const auto* packing = std::get_if<WeightPacking Decisions::*>(&row.decided))
    d.*(*packing) = parse_weight_packing(word).value();
  else
    std::get<const ResidenceKey*>(row.decided)->set(word, d);
}

}  // namespace

std::span<const Decision> decision_table() {
  static const std::vector<Decision> table = make_table();
  return table;
}

PlanRequest::PlanRequest() {
  for (const Decision& row : decision_table())
    if (row.tries != nullptr || std::holds_alternative<const ResidenceKey*>(row.decided))
      row.fix(Decisions(), *this);
}

std::string Decision::text(const Decisions& d) const {
  return std::visit(
      [&](auto field) -> std::string {
        if constexpr (std::is_same_v<decltype(field), const ResidenceKey*>) {
          return field->value(d);
        } else {
          const auto& value = d.*field;
          using T = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<T, bool>)
            return values[value ? 1 : 0];
          else if constexpr (std::is_same_v<T, int64_t>)
            return std::to_string(value);
          else if constexpr (std::is_same_v<T, LayerWords>)
            return value.text();
          else
            return to_string(value);
        }
      },
      decided);
}

nlohmann::json Decision::json(const Decisions& d) const {
  if (const auto* number = std::get_if<int64_t Decisions::*>(&decided)) return d.**number;
  return text(d);
}

std::string Decision::in_words(const Decisions& d) const {
  if (const auto* home = std::get_if<const ResidenceKey*>(&decided)) return (*home)->words(d);
  const auto* layers = std::get_if<LayerWords Decisions::*>(&decided);
  return fmt::format(fmt::runtime(words), layers != nullptr ? (d.**layers).brief() : text(d));
}

bool Decision::same(const Decisions& a, const Decisions& b) const {
  return std::visit(
      [&](auto field) {
        if constexpr (std::is_same_v<decltype(field), const ResidenceKey*>)
          return std::string_view(field->value(a)) == field->value(b);
        else
          return a.*field == b.*field;
      },
      decided);
}

void Decision::read(const nlohmann::json& file, const std::string& where, const std::string& advice,
                    Decisions& d) const {
  constexpr int64_t kMost = int64_t{1} << 40;  // so that no product overflows
  if (const auto* number = std::get_if<int64_t Decisions::*>(&decided)) {
    d.*(*number) = get_int_in(file, name, where, least, kMost);
    return;
  }
  const std::string word =
      absent == nullptr ? get_string(file, name, where) : get_string(file, name, where, absent);
  if (const auto* layers = std::get_if<LayerWords Decisions::*>(&decided)) {
    d.*(*layers) = word;
    return;
  }
  const std::vector<std::string> known = words_of(*this);
  if (std::find(known.begin(), known.end(), word) == known.end())
    fail(ErrorCode::data, fmt::format("{} {} in {}", name, one_of(known), where),
         fmt::format("\"{}\"", word), advice);
  set_word(*this, word, d);
}

void Decision::set(const std::string& value, Decisions& d) const {
  if (const auto* number = std::get_if<int64_t Decisions::*>(&decided))
    d.*(*number) = std::stoll(value);
  else if (const auto* layers = std::get_if<LayerWords Decisions::*>(&decided))
    d.*(*layers) = value;
  else
    set_word(*this, value, d);
}

void Decision::copy(const Decisions& from, Decisions& to) const {
  std::visit(
      [&](auto field) {
        if constexpr (std::is_same_v<decltype(field), const ResidenceKey*>)
          field->set(field->value(from), to);
        else
          to.*field = from.*field;
      },
      decided);
}

void Decision::decide(const PlanRequest& r, Decisions& d) const {
  if (const std::string value = asked_for(r); !value.empty()) set(value, d);
}

void Decision::ask(const RunConfig& config, PlanRequest& r) const {
  if (const auto* number = std::get_if<int64_t RunConfig::*>(&given)) {
    r.*std::get<int64_t PlanRequest::*>(asked) = config.**number;
  } else if (const auto* text = std::get_if<std::string RunConfig::*>(&given)) {
    const std::string& value = config.**text;
    if (const auto* word = std::get_if<std::string PlanRequest::*>(&asked))
      r.*(*word) = value;
    else if (const auto* layers = std::get_if<LayerWords PlanRequest::*>(&asked))
      r.*(*layers) = value;
    else if (value != "auto")
      r.*std::get<std::optional<WeightPacking> PlanRequest::*>(asked) = parse_weight_packing(value);
  }
}

void Decision::fix(const Decisions& d, PlanRequest& r) const {
  if (const auto* word = std::get_if<std::string PlanRequest::*>(&asked)) {
    r.*(*word) = text(d);
    return;
  }
  std::visit(
      [&](auto field, auto to) {
        if constexpr (std::is_member_object_pointer_v<decltype(field)> &&
                      std::is_member_object_pointer_v<decltype(to)>) {
          using From = std::decay_t<decltype(d.*field)>;
          using To = std::decay_t<decltype(r.*to)>;
          if constexpr (std::is_same_v<To, From> || std::is_same_v<To, std::optional<From>>)
            r.*to = d.*field;
        }
      },
      decided, asked);
}

std::string Decision::asked_for(const PlanRequest& r) const {
  if (const auto* number = std::get_if<int64_t PlanRequest::*>(&asked))
    return r.**number > 0 ? std::to_string(r.**number) : "";
  if (const auto* word = std::get_if<std::string PlanRequest::*>(&asked))
    return r.**word == "auto" ? "" : r.**word;
  if (const auto* layers = std::get_if<LayerWords PlanRequest::*>(&asked))
    return (r.**layers).open() ? "" : (r.**layers).text();
  if (const auto* dtype = std::get_if<std::optional<DType> PlanRequest::*>(&asked))
    return r.**dtype ? to_string(*(r.**dtype)) : "";
  if (const auto* packing = std::get_if<std::optional<WeightPacking> PlanRequest::*>(&asked))
    return r.**packing ? to_string(*(r.**packing)) : "";
  const std::optional<bool>& is = r.*std::get<std::optional<bool> PlanRequest::*>(asked);
  return is ? values[*is ? 1 : 0] : "";
}

std::string Decision::given_in(const RunConfig& config) const {
  if (const auto* number = std::get_if<int64_t RunConfig::*>(&given))
    return std::to_string(config.**number);
  return config.*std::get<std::string RunConfig::*>(given);
}

void add_decisions(nlohmann::json& to, const Decisions& d) {
  for (const Decision& row : decision_table()) to[row.name] = row.json(d);
}

bool same_decisions(const Decisions& a, const Decisions& b) {
  for (const Decision& row : decision_table())
    if (!row.same(a, b)) return false;
  return true;
}

std::string changed_decisions(const Decisions& from, const Decisions& to) {
  std::string text;
  for (const Decision& row : decision_table()) {
    if (row.same(from, to)) continue;
    text += (text.empty() ? "" : ", ") + row.in_words(to);
    // A word or a number says what it was too.
    const bool short_text = std::holds_alternative<int64_t Decisions::*>(row.decided) ||
                            std::holds_alternative<DType Decisions::*>(row.decided) ||
                            std::holds_alternative<WeightPacking Decisions::*>(row.decided);
    if (short_text) text += " instead of " + row.text(from);
  }
  return text;
}

}  // namespace snug
