// The configuration: any YAML and any overrides are refused, or read; and what is printed of it
// reads back to the same.
#include "tests/fuzz/fuzz.h"
#include "tools/config/run_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug::fuzz;
  const auto parts = parts_of(text_of(data, size), 2);
  std::vector<std::string> overrides;
  for (std::string_view rest = parts[1]; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    // A command line ends its words with zero bytes: none holds one.
    if (rest.substr(0, end).find('\0') == std::string_view::npos)
      overrides.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(rest.size(), end + 1));
  }
  holds([&] {
    const snug::RunConfig config =
        snug::load_config_text(std::string(parts[0]), "fuzz.yaml", overrides);
    const std::string printed = snug::resolved_yaml(config);
    must("a resolved configuration loads and resolves to itself", [&] {
      const snug::RunConfig again = snug::load_config_text(printed, "resolved.yaml", {});
      check(snug::resolved_yaml(again) == printed, "the same values from a resolved file");
    });
    snug::resolve_sizes(config, 1024);
    for (const int64_t steps : {int64_t{0}, int64_t{1}, int64_t{1000}, INT64_MAX}) {
      check(snug::resolve_warmup(config, steps) >= 0, "a warm-up that is not negative");
      const int64_t decay = snug::resolve_decay(config, steps);
      check(decay >= 0 && decay <= steps, "a decay within the run");
    }
  });
  return 0;
}
