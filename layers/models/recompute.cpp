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

std::vector<std::string_view> slots_of(std::string_view name) {
  if (name == "none") return {};
  if (name == "norms") return {"norm1", "norm2"};
  if (name == "mlp") return {"norm2", "fc", "act"};
  if (name == "attention") return {"norm1", "qkv", "att", "lse"};
  if (name == "block")
    return {"norm1", "mean1", "rstd1", "qkv",   "att", "lse",
            "mid",   "norm2", "mean2", "rstd2", "fc",  "act"};
  fail(ErrorCode::usage,
       fmt::format("recompute as one of {}, joined with +, or a map of layers", kNames),
       fmt::format("recompute: {}", name), "recompute=block");
}

void apply(std::string_view policy, const Body& body, std::vector<SlotPolicy>& slots) {
  split(policy, '+', [&](std::string_view name) {
    for (const std::string_view slot : slots_of(name)) {
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

}  // namespace snug
