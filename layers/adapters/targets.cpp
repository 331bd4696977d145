#include "layers/adapters/targets.h"

namespace snug {
namespace {

// The last words of the modules of the first layer, which makes queries, keys and values.
std::vector<std::string> first_modules(std::span<const AdaptableModule> modules) {
  std::vector<std::string> names;
  for (const AdaptableModule& m : modules)
    if (m.layer == modules.front().layer) names.push_back(m.last());
  return names;
}

}  // namespace

std::vector<std::string> queries_and_values(const ModelSpec&,
                                            std::span<const AdaptableModule> modules) {
  const std::vector<std::string> names = first_modules(modules);
  if (names.size() == 3) return {names[0], names[2]};
  return {names.front()};
}

std::vector<std::string> behind_mlp(const ModelSpec&, std::span<const AdaptableModule> modules) {
  std::vector<std::string> paths;
  for (const AdaptableModule& m : modules)
    if (m.layer.ends_with("mlp.c_proj")) paths.push_back(m.path);
  return paths;
}

std::vector<std::string> keys_values_and_mlp(const ModelSpec& spec,
                                             std::span<const AdaptableModule> modules) {
  std::vector<std::string> names = first_modules(modules);
  if (names.size() == 3) names.erase(names.begin());
  for (std::string& path : behind_mlp(spec, modules)) names.push_back(std::move(path));
  return names;
}

std::vector<std::string> placed(std::string_view places, std::span<const AdaptableModule> modules) {
  std::vector<std::string> paths;
  for (const AdaptableModule& m : modules)
    if (m.number >= 0 && has_word(places, m.layer.substr(m.layer.find('.', 2) + 1)))
      paths.push_back(m.path);
  return paths;
}

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t space = list.find(' ');
    if (list.substr(0, space) == word) return true;
    list = space == std::string_view::npos ? "" : list.substr(space + 1);
  }
  return false;
}

}  // namespace snug
