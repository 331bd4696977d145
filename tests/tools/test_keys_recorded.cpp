// The table of configuration keys, row by row, as it was when somebody last looked: what a key accepts, other
// names, what it refuses. The words of documentation are left out. SNUG_RECORD=1 writes recorded_keys.txt anew: read
// the difference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/support/folders.h"
#include "tools/config/keys.h"

namespace snug {
namespace {

std::vector<std::string> lines_of_keys() {
  std::vector<std::string> lines;
  for (const Key& key : config_keys()) {
    std::string line = fmt::format("{}.{} kind {} field {}", key.section, key.name,
                                   static_cast<int>(key.kind), key.field.index());
    const auto add = [&](const char* what, std::string_view text) {
      if (!text.empty()) line += fmt::format(" | {} {}", what, text);
    };
    add("unset", key.unset);
    add("none", key.none);
    add("idle", key.idle);
    add("also", key.aliases);
    add("choices", key.choices);
    add("refused", key.refused);
    if (!key.refused.empty()) {
      add("why", key.refused_reason == nullptr ? key.refused_why : "each its own");
      add("instead", key.refused_advice);
    }
    if (key.kind == KeyKind::integer || key.kind == KeyKind::number ||
        key.kind == KeyKind::patterns)
      line +=
          fmt::format(" | from {}{} to {}{}", key.range.min, key.range.open_min ? " (not it)" : "",
                      key.range.max, key.range.open_max ? " (not it)" : "");
    lines.push_back(line);
  }
  for (const Permission& p : permissions())
    lines.push_back(
        fmt::format("allow {}{}: {}", p.name, p.built ? "" : " (not built)", p.instead));
  return lines;
}

TEST(RecordedKeys, AreAsTheyWere) {
  const std::string path = source_folder() + "/tests/tools/recorded_keys.txt";
  const std::vector<std::string> lines = lines_of_keys();
  if (std::getenv("SNUG_RECORD") != nullptr) {
    std::ofstream out(path);
    for (const std::string& line : lines) out << line << "\n";
    return;
  }
  std::ifstream in(path);
  std::vector<std::string> recorded;
  for (std::string line; std::getline(in, line);) recorded.push_back(line);
  EXPECT_EQ(lines, recorded) << "SNUG_RECORD=1 records what they are";
}

}  // namespace
}  // namespace snug
