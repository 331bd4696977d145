#include "layers/models/recompute.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "layers/parts/wiring.h"

namespace snug {
namespace {

// One of the two keys.
struct Key {
  const char* name;
  SlotPolicy policy;
};
constexpr Key kRecompute{"recompute", SlotPolicy::recompute};
constexpr Key kOffload{"offload", SlotPolicy::offload};

// Presets are names of several slots, which the parts say belong to them.
struct PresetName {
  std::string_view name;
  unsigned bits;  // 0: of none or of what block_slots says
  bool recompute, offload;
};
constexpr PresetName kPresetNames[] = {
    {"none", 0, true, true},   {"norms", kNorms, true, false},        {"inputs", 0, false, true},
    {"mlp", kMlp, true, true}, {"attention", kAttention, true, true}, {"block", 0, true, true}};

// Of a block: what a stage makes, its result aside, which is the next one's input.
bool droppable(const Body& body, int slot) {
  return body.producer(slot) >= 0 && slot != body.stages().back().outputs.front();
}

std::string_view short_name(const Slot& slot) {
  const std::string_view name = slot.name.view();
  return name.substr(name.rfind('.') + 1);
}

// The slots of a block that a name means; none: it means nothing there.
std::optional<std::vector<int>> slots_of(const Key& key, std::string_view name, const Body& body) {
  const bool away = key.policy == SlotPolicy::offload;
  const auto* const preset = std::find_if(
      std::begin(kPresetNames), std::end(kPresetNames),
      [&](const PresetName& p) { return p.name == name && (away ? p.offload : p.recompute); });
  if (preset == std::end(kPresetNames)) {
    const int slot = body.find_slot(name);
    if (slot < 0 || !droppable(body, slot)) return std::nullopt;
    return std::vector<int>{slot};
  }
  const bool all = name == "block", given = name == "inputs" || (all && away);
  std::vector<int> slots;
  for (int i = 0; i < body.slots(); ++i)
    if (droppable(body, i) ? all || (body.slot(i).presets & preset->bits) != 0
                           : given && body.producer(i) < 0)
      slots.push_back(i);
  return slots;
}

[[noreturn]] void fail_unknown(const Key& key, std::string_view name, const Model& model) {
  std::vector<std::string_view> known;
  for (const PresetName& p : kPresetNames)
    if (key.policy == SlotPolicy::offload ? p.offload : p.recompute) known.push_back(p.name);
  for (int64_t l = 0; l < model.spec().L; ++l) {
    const Body& body = model.block(l).body();
    for (int i = 0; i < body.slots(); ++i)
      if (const std::string_view slot = short_name(body.slot(i));
          droppable(body, i) && std::find(known.begin(), known.end(), slot) == known.end())
        known.push_back(slot);
  }
  std::string advice = suggestion(name, known, fmt::format("{}=block", key.name));
  if (std::string joined(name); joined.find(',') != std::string::npos) {
    std::replace(joined.begin(), joined.end(), ',', '+');
    advice = fmt::format("{}={}", key.name, joined);
  }
  if (name == "cpu")  // as others name where the rest goes
    advice = fmt::format(
        "{}=block, for what backward needs; offload_optimizer=cpu for the optimizer's state",
        key.name);
  fail(ErrorCode::usage,
       fmt::format("{} as auto, one of {}, names joined with +, or a map of layers to them",
                   key.name, fmt::join(known, ", ")),
       name.empty() ? "a name that is empty" : fmt::format("\"{}\"", name), advice);
}

// Throws usage on what is no layer of the model.
void check_layer(const Key& key, std::string_view text, int64_t layer, int64_t L) {
  if (layer >= 0 && layer < L) return;
  fail(ErrorCode::usage, fmt::format("layers between 0 and {} in the {} map", L - 1, key.name),
       fmt::format("\"{}\"", text), fmt::format("{}=\"{{0-{}: block}}\"", key.name, L - 1));
}

std::string_view trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

void check_run(const Key& key, const LayerWords::Run& run, int64_t L) {
  if (run.words.empty())
    fail(ErrorCode::usage, fmt::format("{} map entries of the form layers: policy", key.name),
         fmt::format("\"{}\"", run.entry),
         fmt::format("{}=\"{{0-5: block, 6-11: none}}\"", key.name));
  const size_t dash = run.layers.find('-');
  check_layer(key, trim(run.layers.substr(0, dash)), run.first, L);
  if (dash != std::string_view::npos)
    check_layer(key, trim(run.layers.substr(dash + 1)), run.last, L);
  if (run.last < run.first)
    fail(ErrorCode::usage, fmt::format("ranges of the {} map to go up", key.name),
         fmt::format("\"{}\"", run.layers), fmt::format("{}-{}", run.last, run.first));
}

// Calls f with every layer and the words that the key says of it; layers that a map leaves out are
// passed over.
void for_layers(const Key& key, const LayerWords& words, int64_t L,
                const std::function<void(int64_t, const std::vector<std::string_view>&)>& f) {
  for (const LayerWords::Run& run : words.runs()) {
    if (run.map) check_run(key, run, L);
    const int64_t first = run.map ? run.first : 0, last = run.map ? run.last : L - 1;
    for (int64_t l = first; l <= last; ++l) f(l, run.words);
  }
}

// What some layers have alone is nothing in the others.
bool known_elsewhere(const Key& key, std::string_view name, const Model& model) {
  for (int64_t l = 0; l < model.spec().L; ++l)
    if (slots_of(key, name, model.block(l).body())) return true;
  return false;
}

// True unless a slot is in both; then false, or an error that names it.
bool apply(const LayerWords& recompute, const LayerWords& offload, const Model& model, bool refuse,
           LayerPolicies& policies) {
  const int64_t L = model.spec().L;
  policies.clear();
  for (int64_t l = 0; l < L; ++l)
    policies.emplace_back(static_cast<size_t>(model.block(l).body().slots()), SlotPolicy::keep);
  bool good = true;
  const auto set = [&](const Key& key, int64_t l, std::string_view name) {
    const Body& body = model.block(l).body();
    const std::optional<std::vector<int>> slots = slots_of(key, name, body);
    if (!slots && !known_elsewhere(key, name, model)) fail_unknown(key, name, model);
    if (!slots) return;
    for (const int slot : *slots) {
      SlotPolicy& p = policies[static_cast<size_t>(l)][static_cast<size_t>(slot)];
      if (key.policy == SlotPolicy::offload && p == SlotPolicy::recompute) {
        if (name == "block") continue;  // what is not recomputed
        good = false;
        if (refuse)
          fail(ErrorCode::usage, "slots to be either recomputed or offloaded, not both",
               fmt::format("{} of layer {} in recompute ({}) and in offload ({})",
                           short_name(body.slot(slot)), l, recompute.text(), offload.text()),
               "offload=inputs or offload=block, which leave out what is recomputed");
      }
      p = key.policy;
    }
  };
  for (const Key& key : {kRecompute, kOffload})
    for_layers(key, key.policy == SlotPolicy::recompute ? recompute : offload, L,
               [&](int64_t l, const std::vector<std::string_view>& names) {
                 for (const std::string_view name : names) set(key, l, name);
               });
  return good;
}

}  // namespace

LayerPolicies parse_policies(const LayerWords& recompute, const LayerWords& offload,
                             const Model& model) {
  LayerPolicies policies;
  apply(recompute, offload, model, true, policies);
  return policies;
}

bool policies_combine(const LayerWords& recompute, const LayerWords& offload, const Model& model) {
  LayerPolicies policies;
  return apply(recompute, offload, model, false, policies);
}

std::string recompute_text(const std::vector<SlotPolicy>& policies, const Body& body) {
  std::vector<bool> left(policies.size());  // recomputed and in no word yet
  for (size_t i = 0; i < policies.size(); ++i) left[i] = policies[i] == SlotPolicy::recompute;
  std::vector<std::string> words;
  // A preset all of whose slots are recomputed and one of them is still without a word.
  const auto take = [&](std::string_view preset) {
    const std::vector<int> slots = slots_of(kRecompute, preset, body).value();
    bool all = true, news = false;
    for (const int i : slots) {
      all = all && policies[static_cast<size_t>(i)] == SlotPolicy::recompute;
      news = news || left[static_cast<size_t>(i)];
    }
    if (!all || !news) return;
    for (const int i : slots) left[static_cast<size_t>(i)] = false;
    words.emplace_back(preset);
  };
  for (const char* preset : {"block", "mlp", "attention", "norms"}) take(preset);
  for (size_t i = 0; i < left.size(); ++i)
    if (left[i]) words.push_back(std::string(short_name(body.slot(static_cast<int>(i)))));
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, "+"));
}

}  // namespace snug
