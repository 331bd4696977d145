#include "tools/costs/state_bytes.h"

#include <fmt/format.h>

#include "engine/core/units.h"

namespace snug {

int64_t checkpoint_state_bytes(const StateSet& states, const ParamTable& table) {
  int64_t bytes = 0;
  for (int i = 0; i < table.size(); ++i)
    for (int k = 0; table[i].trainable && k < static_cast<int>(states.names.size()); ++k) {
      const RestForm form = states.form_of(k, i);
      const int64_t n = states.numbers(k, i, table[i].real_elements());
      bytes +=
          (form.coded() ? saved_code_bytes(form, n) : form.value_bytes(n)) + 4 * form.scales(n);
    }
  return bytes;
}

StateWeight state_weight(const StateSet& states, const ParamTable& table) {
  StateWeight w;
  const auto count = static_cast<double>(states.names.size());
  w.form = count * states.form.bits / 8;
  if (states.form.coded()) w.form += count * 4 / static_cast<double>(states.form.block);
  int64_t bytes = 0;
  for (int i = 0; i < table.size(); ++i) {
    if (!table[i].trainable) continue;
    const int64_t n = table[i].real_elements();
    w.trained += n;
    bytes += states.bytes_of(i, n);
    if (states.form.coded() && !states.form_of(0, i).coded()) w.in_f32 += n;
  }
  w.mean = w.trained > 0 ? static_cast<double>(bytes) / static_cast<double>(w.trained) : w.form;
  // What differs from parameter to parameter is no share that all have.
  if (!states.rows.empty() || !states.counts.empty()) w.form = w.mean;
  return w;
}

std::vector<char> embeddings_of(const ParamTable& table) {
  constexpr std::string_view kNames[] = {"wte.weight", "wpe.weight", "wtt.weight"};
  std::vector<char> list(static_cast<size_t>(table.size()), 0);
  for (int i = 0; i < table.size(); ++i)
    for (const std::string_view name : kNames)
      if (table[i].name.view() == name) list[static_cast<size_t>(i)] = 1;
  return list;
}

std::string resting_text(const Optimizer& optimizer, const ParamTable& table) {
  if (optimizer.config().state == StateForm::f32 || optimizer.state_names().empty()) return "";
  const StateWeight w = state_weight(optimizer.states(table), table);
  std::string text =
      fmt::format("{}, {:.3g} B a parameter", to_string(optimizer.config().state), w.form);
  if (w.in_f32 > 0)
    text += fmt::format(", {} of {} in fp32", human_count(static_cast<double>(w.in_f32)),
                        human_count(static_cast<double>(w.trained)));
  return text;
}

}  // namespace snug
