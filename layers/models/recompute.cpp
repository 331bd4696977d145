#include "layers/models/recompute.h"

#include <fmt/format.h>

#include <charconv>

#include "engine/core/error.h"

namespace snug {
namespace {

constexpr std::string_view kNames = "none, norms, mlp, attention, block";

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

// A preset, or one slot of the block that a stage writes and another reads or backward needs.
std::vector<std::string_view> slots_of(std::string_view name, const Body& body) {
  if (name == "none") return {};
  if (name == "norms") return {"norm1", "norm2"};
  if (name == "mlp") return {"norm2", "fc", "act"};
  if (name == "attention") return {"norm1", "qkv", "att", "lse"};
  if (name == "block")
    return {"norm1", "mean1", "rstd1", "qkv",   "att", "lse",
            "mid",   "norm2", "mean2", "rstd2", "fc",  "act"};
  const int slot = body.find_slot(name);
  if (slot >= 0 && body.producer(slot) >= 0 &&
      body.producer(slot) + 1 < static_cast<int>(body.stages().size()))
    return {name};
  fail(ErrorCode::usage,
       fmt::format("recompute as one of {}, or slots of the block, joined with +, or a map of "
                   "layers",
                   kNames),
       fmt::format("recompute: {}", name), "recompute=block");
}

void apply(std::string_view policy, const Body& body, std::vector<SlotPolicy>& slots) {
  split(policy, '+', [&](std::string_view name) {
    for (const std::string_view slot : slots_of(name, body)) {
      const int i = body.find_slot(slot);
      require(i >= 0, "a recompute preset to name slots of the block");
      slots[static_cast<size_t>(i)] = SlotPolicy::recompute;
    }
  });
}

int64_t layer_number(std::string_view text, int64_t L) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value >= L)
    fail(ErrorCode::usage, fmt::format("layers between 0 and {} in the recompute map", L - 1),
         fmt::format("\"{}\"", text), fmt::format("recompute=\"{{0-{}: block}}\"", L - 1));
  return value;
}

}  // namespace

LayerPolicies parse_recompute(std::string_view text, const Model& model) {
  const int64_t L = model.spec().L;
  LayerPolicies policies;
  for (int64_t l = 0; l < L; ++l)
    policies.emplace_back(static_cast<size_t>(model.block(l).body().slots()), SlotPolicy::keep);
  text = trim(text);
  if (text.find(':') == std::string_view::npos) {
    for (int64_t l = 0; l < L; ++l)
      apply(text, model.block(l).body(), policies[static_cast<size_t>(l)]);
    return policies;
  }
  split(text, ',', [&](std::string_view entry) {
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos)
      fail(ErrorCode::usage, "recompute map entries of the form layers: policy",
           fmt::format("\"{}\"", entry), "recompute=\"{0-5: block, 6-11: none}\"");
    const std::string_view layers = trim(entry.substr(0, colon));
    const size_t dash = layers.find('-');
    const int64_t first = layer_number(trim(layers.substr(0, dash)), L);
    const int64_t last =
        dash == std::string_view::npos ? first : layer_number(trim(layers.substr(dash + 1)), L);
    if (last < first)
      fail(ErrorCode::usage, "a recompute map whose ranges go up", fmt::format("\"{}\"", layers),
           fmt::format("{}-{}", last, first));
    for (int64_t l = first; l <= last; ++l)
      apply(trim(entry.substr(colon + 1)), model.block(l).body(), policies[static_cast<size_t>(l)]);
  });
  return policies;
}

std::string recompute_text(const std::vector<SlotPolicy>& policies, const Body& body) {
  std::vector<bool> left(policies.size());  // recomputed and in no word yet
  for (size_t i = 0; i < policies.size(); ++i) left[i] = policies[i] == SlotPolicy::recompute;
  std::vector<std::string> words;
  // A preset all of whose slots are recomputed and one of them is still without a word.
  const auto take = [&](std::string_view preset) {
    bool all = true, news = false;
    for (const std::string_view slot : slots_of(preset, body)) {
      const auto i = static_cast<size_t>(body.find_slot(slot));
      all = all && policies[i] == SlotPolicy::recompute;
      news = news || left[i];
    }
    if (!all || !news) return;
    for (const std::string_view slot : slots_of(preset, body))
      left[static_cast<size_t>(body.find_slot(slot))] = false;
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
