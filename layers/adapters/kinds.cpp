#include "layers/adapters/kinds.h"

#include <algorithm>
#include <array>

#include "engine/core/error.h"
#include "layers/adapters/rows.h"

namespace snug {

std::span<const AdapterMethod* const> adapter_methods() {
  static const std::array rows = {
      &lora_method(),          &ia3_method(),           &vera_method(),
      &miss_method(),          &prompt_tuning_method(), &p_tuning_method(),
      &prefix_tuning_method(), &houlsby_method(),       &pfeiffer_method()};
  return rows;
}

std::string word_list(std::string_view list) {
  std::string text(list);
  for (size_t at = text.find(' '); at != std::string::npos; at = text.find(' ', at)) {
    const bool last = text.find(' ', at + 1) == std::string::npos;
    text.replace(at, 1, last ? " or " : ", ");
    at += last ? 4 : 2;
  }
  return text;
}

bool AdapterField::fits(std::string_view word) const {
  return has_word(words, word) || (also && also(word));
}

int64_t virtual_tokens(const PeftConfig& config) {
  return adapter_method(config.method).front ? config.num_virtual_tokens : 0;
}

bool AdapterMethod::has(std::string_view shared_field) const {
  return has_word(shared, shared_field);
}

bool AdapterMethod::takes(std::string_view run_key) const {
  // Modules that are excluded are of no folder, whose target_modules are those that have an adapter.
  return has(run_key) || run_key == "exclude_modules" ||
         std::any_of(fields.begin(), fields.end(),
                     [&](const AdapterField& field) { return field.run_key == run_key; });
}

const AdapterMethod& adapter_method(std::string_view name) {
  for (const AdapterMethod* row : adapter_methods())
    if (row->name == name) return *row;
  fail(ErrorCode::internal, "a method of the table", std::string(name), "report this");
}

const AdapterMethod* find_peft_type(std::string_view type) {
  for (const AdapterMethod* row : adapter_methods())
    if (row->type == type) return row;
  return nullptr;
}

const AdapterMethod* find_peft_word(std::string_view word) {
  for (const AdapterMethod* row : adapter_methods())
    if (has_word(row->words, word)) return row;
  return nullptr;
}

bool is_shared_adapter_name(std::string_view param) {
  return param.starts_with("adapter.");
}

bool is_adapter_name(std::string_view param) {
  for (const AdapterMethod* row : adapter_methods())
    for (const std::string_view marker : row->markers)
      if (param.find(marker) != std::string_view::npos) return true;
  return false;
}

}  // namespace snug
