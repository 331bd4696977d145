#include "layers/models/recompute.h"

#include <fmt/format.h>

#include <charconv>
#include <functional>

#include "engine/core/error.h"

namespace snug {
namespace {

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '{')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '}')) s.remove_suffix(1);
  return s;
}

// Calls f with every piece of `s` between separators.
template <class F>
void split(std::string_view s, char separator, F&& f) {
  while (true) {
    const size_t at = s.find(separator);
    f(trim(s.substr(0, at)));
    if (at == std::string_view::npos) return;
    s.remove_prefix(at + 1);
  }
}

// One of the two keys.
struct Key {
  const char* name;
  SlotPolicy policy;
  std::string_view names;
};
constexpr Key kRecompute{"recompute", SlotPolicy::recompute, kRecomputeNames};
constexpr Key kOffload{"offload", SlotPolicy::offload, kOffloadNames};

// The slots of a name; `block` is what the key makes of it.
std::vector<std::string_view> slots_of(const Key& key, std::string_view name) {
  bool known = false;
  split(key.names, ' ', [&](std::string_view other) { known = known || name == other; });
  if (!known) {
    std::string list;
    split(key.names, ' ', [&](std::string_view other) {
      list += fmt::format("{}{}", list.empty() ? "" : ", ", other);
    });
    fail(ErrorCode::usage,
         fmt::format("{} as one of {}, joined with +, or a map of layers", key.name, list),
         fmt::format("{}: {}", key.name, name), fmt::format("{}=block", key.name));
  }
  if (name == "none") return {};
  if (name == "norms") return {"norm1", "norm2"};
  if (name == "inputs") return {"x"};
  if (name == "mlp") return {"norm2", "fc", "act"};
  if (name == "attention") return {"norm1", "heads", "qkv", "att", "lse"};
  if (name == "block") {
    std::vector<std::string_view> all = {"norm1", "mean1", "rstd1", "heads", "rstdq", "rstdk",
                                         "qkv",   "att",   "lse",   "mid",   "norm2", "mean2",
                                         "rstd2", "fc",    "act",   "down",  "proj",  "rstd3",
                                         "rstd4", "sum",   "rows"};
    for (const char* of :
         {"qkv_lora", "attention_proj_lora", "fc_lora", "mlp_proj_lora", "qkv_unscaled",
          "attention_proj_unscaled", "fc_unscaled", "mlp_proj_unscaled", "qkv_input",
          "attention_proj_input", "fc_input", "mlp_proj_input"})
      all.emplace_back(of);  // of adapters
    if (key.policy == SlotPolicy::offload) all.emplace_back("x");
    return all;
  }
  return {name};
}

int64_t layer_number(const Key& key, std::string_view text, int64_t L) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value >= L)
    fail(ErrorCode::usage, fmt::format("layers between 0 and {} in the {} map", L - 1, key.name),
         fmt::format("\"{}\"", text), fmt::format("{}=\"{{0-{}: block}}\"", key.name, L - 1));
  return value;
}

// Calls f with every layer and what the key says of it; layers that a map leaves out are passed
// over.
void for_layers(const Key& key, std::string_view text, int64_t L,
                const std::function<void(int64_t, std::string_view)>& f) {
  text = trim(text);
  if (text.find(':') == std::string_view::npos) {
    for (int64_t l = 0; l < L; ++l) f(l, text);
    return;
  }
  split(text, ',', [&](std::string_view entry) {
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos)
      fail(ErrorCode::usage, fmt::format("{} map entries of the form layers: policy", key.name),
           fmt::format("\"{}\"", entry),
           fmt::format("{}=\"{{0-5: block, 6-11: none}}\"", key.name));
    const std::string_view layers = trim(entry.substr(0, colon));
    const size_t dash = layers.find('-');
    const int64_t first = layer_number(key, trim(layers.substr(0, dash)), L);
    const int64_t last = dash == std::string_view::npos
                             ? first
                             : layer_number(key, trim(layers.substr(dash + 1)), L);
    if (last < first)
      fail(ErrorCode::usage, fmt::format("ranges of the {} map to go up", key.name),
           fmt::format("\"{}\"", layers), fmt::format("{}-{}", last, first));
    for (int64_t l = first; l <= last; ++l) f(l, trim(entry.substr(colon + 1)));
  });
}

bool is_slot(const Body& body, int i, std::string_view last) {
  if (i < 0 || i >= body.slots()) return false;
  const std::string_view name = body.slot(i).name.view();
  return name.ends_with(last) &&
         (name.size() == last.size() || name[name.size() - last.size() - 1] == '.');
}

// True unless a slot is in both; then false, or an error that names it.
bool apply(std::string_view recompute, std::string_view offload, const Model& model, bool refuse,
           LayerPolicies& policies) {
  const int64_t L = model.spec().L;
  policies.clear();
  for (int64_t l = 0; l < L; ++l)
    policies.emplace_back(static_cast<size_t>(model.block(l).body().slots()), SlotPolicy::keep);
  bool good = true;
  // Layers repeat what neighbours say: their words are read once, and slots looked for where they
  // were.
  struct Word {
    std::string_view name, slot;
    int at = -1;
  };
  for (const Key& key : {kRecompute, kOffload}) {
    std::string_view read;
    std::vector<Word> said;
    bool first = true;
    for_layers(key, key.policy == SlotPolicy::recompute ? recompute : offload, L,
               [&](int64_t l, std::string_view policy) {
                 const Body& body = model.block(l).body();
                 if (first || policy != read) {
                   said.clear();
                   split(policy, '+', [&](std::string_view name) {
                     for (const std::string_view slot : slots_of(key, name))
                       said.push_back({name, slot});
                   });
                   read = policy;
                   first = false;
                 }
                 for (Word& word : said) {
                   if (!is_slot(body, word.at, word.slot)) word.at = body.find_slot(word.slot);
                   const auto& [name, slot, i] = word;
                   if (i < 0 && name != slot) continue;  // of a preset, in blocks of another form
                   if (i < 0)
                     fail(ErrorCode::usage,
                          fmt::format("{} to name slots that the blocks of {} have", key.name,
                                      model.spec().family),
                          std::string(slot), fmt::format("{}=block", key.name));
                   SlotPolicy& p = policies[static_cast<size_t>(l)][static_cast<size_t>(i)];
                   if (key.policy == SlotPolicy::offload && p == SlotPolicy::recompute) {
                     if (name == "block") continue;  // what is not recomputed
                     good = false;
                     if (refuse)
                       fail(ErrorCode::usage,
                            "slots to be either recomputed or offloaded, not both",
                            fmt::format("{} of layer {} in recompute ({}) and in offload ({})",
                                        slot, l, recompute, offload),
                            "offload=inputs or offload=block, which leave out what is recomputed");
                   }
                   p = key.policy;
                 }
               });
  }
  return good;
}

}  // namespace

LayerPolicies parse_policies(std::string_view recompute, std::string_view offload,
                             const Model& model) {
  LayerPolicies policies;
  apply(recompute, offload, model, true, policies);
  return policies;
}

bool policies_combine(std::string_view recompute, std::string_view offload, const Model& model) {
  LayerPolicies policies;
  return apply(recompute, offload, model, false, policies);
}

std::string recompute_text(const std::vector<SlotPolicy>& policies, const Body& body) {
  std::vector<bool> left(policies.size());  // recomputed and in no word yet
  for (size_t i = 0; i < policies.size(); ++i) left[i] = policies[i] == SlotPolicy::recompute;
  std::vector<std::string> words;
  // A preset all of whose slots are recomputed and one of them is still without a word.
  const auto take = [&](std::string_view preset) {
    bool all = true, news = false;
    for (const std::string_view slot : slots_of(kRecompute, preset)) {
      if (body.find_slot(slot) < 0) continue;
      const auto i = static_cast<size_t>(body.find_slot(slot));
      all = all && policies[i] == SlotPolicy::recompute;
      news = news || left[i];
    }
    if (!all || !news) return;
    for (const std::string_view slot : slots_of(kRecompute, preset))
      if (const int i = body.find_slot(slot); i >= 0) left[static_cast<size_t>(i)] = false;
    words.emplace_back(preset);
  };
  for (const char* preset : {"block", "mlp", "attention", "norms"}) take(preset);
  for (size_t i = 0; i < left.size(); ++i)
    if (left[i]) {
      const std::string_view name = body.slot(static_cast<int>(i)).name.view();
      words.emplace_back(name.substr(name.rfind('.') + 1));
    }
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, "+"));
}

std::string recompute_text(const std::vector<std::string>& layers) {
  std::string text;
  for (size_t first = 0, end = 0; first < layers.size(); first = end) {
    while (end < layers.size() && layers[end] == layers[first]) ++end;
    if (first == 0 && end == layers.size()) return layers[0];
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : ", ",
                    end - first > 1 ? fmt::format("{}-{}", first, end - 1) : std::to_string(first),
                    layers[first]);
  }
  return text;
}

}  // namespace snug
