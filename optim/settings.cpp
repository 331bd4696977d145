#include "optim/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/core/error.h"
#include "optim/checks.h"

namespace snug {
namespace {

struct Refused {
  std::string_view why;
  std::vector<std::string_view> names;
};

// What Hugging Face's optim may be (TrainingArguments, transformers 5.24), and names that people
// write for the same.
const std::vector<Refused>& refused() {
  static const std::vector<Refused> list = {
      {"which is PyTorch's for another kind of device",
       {"adamw_torch_xla", "adamw_torch_npu_fused"}},
      {"which looks at whole matrices and is not built",
       {"galore_adamw", "galore_adafactor", "galore_adamw_8bit", "galore_adamw_8bit_layerwise",
        "galore_adamw_layerwise", "galore_adafactor_layerwise", "apollo_adamw",
        "apollo_adamw_layerwise", "lomo", "adalomo", "stable_adamw"}},
      {"whose weights while it trains are not those that are kept, and is not built",
       {"schedule_free_radam"}},
      {"which is not built", {"adamw_anyprecision", "grokadamw"}},
  };
  return list;
}

}  // namespace

std::string_view why_refused(std::string_view name) {
  for (const Refused& r : refused())
    if (std::find(r.names.begin(), r.names.end(), name) != r.names.end()) return r.why;
  return {};
}

const std::vector<std::string>& refused_optimizers() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Refused& r : refused()) all.insert(all.end(), r.names.begin(), r.names.end());
    return all;
  }();
  return names;
}

OptimArgs parse_optim_args(std::string_view text) {
  OptimArgs args;
  const auto trimmed = [](std::string_view s) {
    while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
    while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
    return s;
  };
  for (std::string_view rest = text; !trimmed(rest).empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view item = trimmed(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const size_t equals = std::min(item.find('='), item.size());
    const std::string name(trimmed(item.substr(0, equals)));
    const std::string_view value =
        equals < item.size() ? trimmed(item.substr(equals + 1)) : std::string_view();
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (value == "true" || value == "True")
      number = 1;
    else if (value == "false" || value == "False")
      number = 0;
    else if (name.empty() || error != std::errc() || end != value.data() + value.size())
      refuse("optim_args as name=number, separated by commas", fmt::format("\"{}\"", item),
             "optim_args=alpha=0.95,momentum=0.9");
    for (const auto& [other, ignored] : args)
      if (other == name)
        refuse("each name once in optim_args", fmt::format("\"{}\" twice", name),
               "leave one of them out");
    args.emplace_back(name, number);
  }
  std::sort(args.begin(), args.end());
  return args;
}

std::string optim_args_text(const OptimArgs& args) {
  OptimArgs sorted = args;
  std::sort(sorted.begin(), sorted.end());
  std::string out;
  for (const auto& [name, value] : sorted)
    out += fmt::format("{}{}={}", out.empty() ? "" : ",", name, value);
  return out;
}

double optim_arg(const OptimizerConfig& c, const std::vector<OptimSetting>& settings,
                 std::string_view name) {
  for (const auto& [given, value] : c.args)
    if (given == name) return value;
  for (const OptimSetting& s : settings)
    if (name == s.name) return s.standard;
  require(false, "a setting that the optimizer names");
  return 0;
}

}  // namespace snug
