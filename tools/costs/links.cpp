#include "tools/costs/links.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/suggest.h"

namespace snug {

const std::vector<RankLink>& known_links() {
  static const std::vector<RankLink> links = {
      {"nvlink", 450e9, 4e-6, 8},   // NVLink 4, of eight H100
      {"nvlink3", 300e9, 4e-6, 8},  // of eight A100
      {"pcie5", 63e9, 6e-6, 16},    // 16 lanes, of one machine
      {"pcie4", 31.5e9, 6e-6, 16}, {"400GbE", 50e9, 15e-6},   {"200GbE", 25e9, 15e-6},
      {"100GbE", 12.5e9, 15e-6},   {"25GbE", 3.125e9, 20e-6}, {"10GbE", 1.25e9, 30e-6}};
  return links;
}

const RankLink& find_link(std::string_view name, const std::string& where) {
  std::vector<std::string_view> names;
  std::string list;
  for (const RankLink& link : known_links()) {
    if (link.name == name) return link;
    names.push_back(link.name);
    list += fmt::format("{}{}", list.empty() ? "" : ", ", link.name);
  }
  fail(ErrorCode::usage, fmt::format("link as one of {}", list),
       fmt::format("\"{}\" ({})", name, where), suggestion(name, names, "link=pcie4"));
}

}  // namespace snug
