// The facts as lines for people.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/core/units.h"
#include "tools/explain/explain.h"

namespace snug {
namespace {

constexpr size_t kOthers = 5;

std::string sized(int64_t bytes) {
  return fmt::format("{} B ({})", bytes, human_bytes(bytes));
}

std::string text_of(const ExplainFacts& value) {
  return value.get<std::string>();
}

std::string shape_text(const ExplainFacts& shape) {
  std::string out;
  for (const ExplainFacts& extent : shape)
    out += fmt::format("{}{}", out.empty() ? "" : ", ", extent.get<int64_t>());
  return "(" + out + ")";
}

std::string op_text(const ExplainFacts& op, const char* none) {
  if (op.is_null()) return none;
  return fmt::format("{} (op {} of {})", text_of(op["op"]), op["number"].get<int64_t>(),
                     op["of"].get<int64_t>());
}

std::string names_text(const ExplainFacts& list) {
  std::string out;
  for (size_t i = 0; i < std::min(kOthers, list.size()); ++i)
    out += (out.empty() ? "" : ", ") + text_of(list[i]);
  if (list.size() > kOthers) out += fmt::format(" and {} more", list.size() - kOthers);
  return out.empty() ? "nothing" : out;
}

// Each name of a program once.
std::string same_bytes_text(const ExplainFacts& list) {
  std::string out;
  std::set<std::string> seen;
  for (const ExplainFacts& other : list) {
    const std::string name = text_of(other["tensor"]) + " (" + text_of(other["program"]) + ")";
    if (!seen.insert(name).second || seen.size() > kOthers) continue;
    out += fmt::format("{}{} of {}", out.empty() ? "" : ", ",
                       human_bytes(other["shared_bytes"].get<int64_t>()), name);
  }
  if (seen.size() > kOthers) out += fmt::format(" and {} more", seen.size() - kOthers);
  return out.empty() ? "nothing" : out;
}

std::string life_text(const ExplainFacts& life, const ExplainFacts& peak) {
  const auto bytes = life["bytes"].get<int64_t>(), address = life["address"].get<int64_t>();
  const auto line = [](const char* label, const std::string& value) {
    return fmt::format("    {:<13}{}\n", label, value);
  };
  std::string out = fmt::format("  in {}\n", text_of(life["program"]));
  out += line("what", fmt::format("{} {}, {}, {}", shape_text(life["shape"]),
                                  text_of(life["dtype"]), sized(bytes), text_of(life["category"])));
  out += line("why", text_of(life["why"]));
  if (!life["resident"].get<bool>())
    out += line("lives", fmt::format("from {} to {}", op_text(life["born"], "no op"),
                                     op_text(life["ends"], "no op")));
  const bool host = life["arena"] == "host";
  out += line("address", fmt::format("{} to {}{}", address, address + bytes,
                                     host ? ", in the host's arena" : ""));
  if (host) return out;
  out +=
      line("at the peak",
           life["alive_at_peak"].get<bool>()
               ? fmt::format("alive, {:.2f} % of {}", 100 * life["share_of_peak"].get<double>(),
                             human_bytes(peak["bytes"].get<int64_t>()))
               : fmt::format("not alive ({}, {})", text_of(peak["program"]), text_of(peak["op"])));
  if (life["resident"].get<bool>())
    out += line("same bytes", "its own for the whole run");
  else
    out += line("same bytes", "at other times " + same_bytes_text(life["same_bytes"]));
  return out;
}

// Whether two lives differ in no more than the program.
bool alike(ExplainFacts a, ExplainFacts b) {
  for (ExplainFacts* life : {&a, &b})
    for (const char* key : {"program", "same_bytes", "alive_at_peak"}) life->erase(key);
  return a == b;
}

std::string tensor_text(const ExplainFacts& tensor, const ExplainFacts& peak) {
  std::string out = "tensor " + text_of(tensor["name"]) + "\n";
  if (const ExplainFacts& slot = tensor["slot"]; !slot.is_null()) {
    std::string around = slot["written_by"].is_null() ? "given to the block"
                                                      : "written by " + text_of(slot["written_by"]);
    around += slot["read_in_forward_by"].empty()
                  ? ", read by what follows the block or by backward"
                  : ", read in forward by " + names_text(slot["read_in_forward_by"]);
    out += fmt::format("  a slot of block {}, policy {}: {}\n", slot["block"].get<int64_t>(),
                       text_of(slot["policy"]), around);
  }
  const ExplainFacts* before = nullptr;
  for (const ExplainFacts& life : tensor["lives"]) {
    const bool again = before != nullptr && alike(*before, life);
    out += again ? fmt::format("  in {} as in {}\n", text_of(life["program"]),
                               text_of((*before)["program"]))
                 : life_text(life, peak);
    if (!again) before = &life;
  }
  return out;
}

std::string parameter_text(const ExplainFacts& p) {
  std::string out =
      fmt::format("parameter {}\n  {}, {} elements{}, {} in all", text_of(p["name"]),
                  shape_text(p["shape"]), p["elements"].get<int64_t>(),
                  p["trainable"].get<bool>() ? "" : ", frozen", sized(p["bytes"].get<int64_t>()));
  if (const auto host = p["host_bytes"].get<int64_t>(); host > 0)
    out += fmt::format(", {} of them with the host", sized(host));
  out += "\n";
  for (const ExplainFacts& h : p["held"]) {
    const auto bytes = h["bytes"].get<int64_t>();
    const ExplainFacts& address = h["address"];
    out += fmt::format(
        "    {:<14}{}, {}, {}\n", text_of(h["tensor"]), text_of(h["dtype"]), sized(bytes),
        address.is_null()
            ? "in the host's arena"
            : fmt::format("at {} to {}", address.get<int64_t>(), address.get<int64_t>() + bytes));
  }
  return out;
}

std::string operation_text(const ExplainFacts& op) {
  std::string out = fmt::format("operation {} in {} (op {} of {}, {})\n", text_of(op["op"]),
                                text_of(op["program"]), op["number"].get<int64_t>(),
                                op["of"].get<int64_t>(), text_of(op["stream"]));
  out += fmt::format("    work        {:.3f} GFLOP, {} moved{}\n",
                     static_cast<double>(op["flops"].get<int64_t>()) * 1e-9,
                     human_bytes(op["bytes"].get<int64_t>()),
                     text_of(op["variant"]).empty() ? "" : ", by " + text_of(op["variant"]));
  out += fmt::format("    alive       {}\n", sized(op["alive_bytes"].get<int64_t>()));
  out += fmt::format("    begins      {}\n", names_text(op["makes"]));
  return out + fmt::format("    ends        {}\n", names_text(op["ends"]));
}

}  // namespace

std::string explain_text(const ExplainFacts& facts, size_t most) {
  std::string out;
  const auto list = [&](const char* key, const char* kind, auto&& text) {
    const ExplainFacts& all = facts[key];
    for (size_t i = 0; i < std::min(most, all.size()); ++i)
      out += (out.empty() ? "" : "\n") + text(all[i]);
    if (all.size() > most)
      out += fmt::format("\nand {} more {}; --json has them all\n", all.size() - most, kind);
  };
  list("tensors", "tensors",
       [&](const ExplainFacts& tensor) { return tensor_text(tensor, facts["peak"]); });
  list("parameters", "parameters", parameter_text);
  list("ops", "operations", operation_text);
  return out;
}

std::string explain_peak_text(const ExplainFacts& facts) {
  std::string out = fmt::format(
      "peak in {}, at {}: {} alive, {} of padding, in an arena of {}\n", text_of(facts["program"]),
      text_of(facts["op"]), sized(facts["bytes"].get<int64_t>()),
      human_bytes(facts["padding"].get<int64_t>()), sized(facts["engine_bytes"].get<int64_t>()));
  for (const ExplainFacts& h : facts["holders"])
    out +=
        fmt::format("  {:>16} B {:>11} {:>5.1f} %  {:<20} {:<12} {}\n", h["bytes"].get<int64_t>(),
                    human_bytes(h["bytes"].get<int64_t>()), 100 * h["share"].get<double>(),
                    text_of(h["name"]), text_of(h["category"]), text_of(h["why"]));
  if (const auto count = facts["others"]["count"].get<int64_t>(); count > 0)
    out += fmt::format("  {:>16} B {:>11} {:>5.1f} %  {} others\n",
                       facts["others"]["bytes"].get<int64_t>(),
                       human_bytes(facts["others"]["bytes"].get<int64_t>()),
                       100 * static_cast<double>(facts["others"]["bytes"].get<int64_t>()) /
                           static_cast<double>(std::max<int64_t>(1, facts["bytes"].get<int64_t>())),
                       count);
  return out;
}

}  // namespace snug
