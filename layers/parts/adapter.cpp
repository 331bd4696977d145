#include "layers/parts/adapter.h"

#include <algorithm>

#include "engine/core/error.h"
#include "layers/parts/wiring.h"

namespace snug {

int64_t LinearAdapter::rank() const {
  int64_t sum = 0;
  for (const AdapterPiece& piece : pieces) sum += piece.rank;
  return sum;
}

AdaptedLayer adapted_layer(const Wiring& w, const std::string& stage, const char* name, int64_t in,
                           int64_t out) {
  AdaptedLayer layer{w.param_name(name, "").str(), stage, nullptr, in, out};
  if (!w.adapters) return layer;
  const auto found = w.adapters->find(layer.name);
  if (found == w.adapters->end()) return layer;
  layer.adapter = &found->second;
  require(!layer.adapter->pieces.empty() && layer.adapter->kind, "a kind, and at least one module");
  for (const AdapterPiece& piece : layer.adapter->pieces)
    require(piece.row + piece.rows <= out, "rows of the layer");
  return layer;
}

bool adapter_reads_whole(const Adapters& adapters, std::string_view table) {
  const auto found = adapters.find(table);
  return found != adapters.end() && found->second.table && found->second.kind->starts_from_weight();
}

std::vector<AdaptedLayer> layers_of(const Adapters& adapters, const AdapterKind& kind) {
  std::vector<AdaptedLayer> layers;
  for (const auto& [name, adapter] : adapters)
    if (adapter.kind == &kind) layers.push_back({name, "", &adapter, adapter.in, 0});
  return layers;
}

std::vector<const AdapterKind*> kinds_of(const Adapters& adapters) {
  std::vector<const AdapterKind*> kinds;
  for (const auto& [name, adapter] : adapters)
    if (std::find(kinds.begin(), kinds.end(), adapter.kind) == kinds.end())
      kinds.push_back(adapter.kind);
  return kinds;
}

int64_t front_tokens(const Adapters& adapters) {
  int64_t most = 0;
  for (const auto& [layer, adapter] : adapters) most = std::max(most, adapter.front);
  return most;
}

bool front_asked(const Adapters& adapters) {
  return std::none_of(adapters.begin(), adapters.end(),
                      [](const auto& of) { return of.second.front_keys; });
}

InPlace keys_in_front(Wiring& w, const InPlace& behind) {
  if (!w.adapters) return behind;
  for (const auto& [name, adapter] : *w.adapters)
    if (adapter.front > 0)
      return adapter.kind->keys_in_front(w, {name, "", &adapter, adapter.in, 0}, behind);
  return behind;
}

int add_adapter_param(Wiring& w, const AdapterParam& param) {
  return w.param({.name = Name(param.name),
                  .shape = param.shape,
                  .group = param.group,
                  .init = param.init,
                  .init_std = param.init_std,
                  .transposed_in_file = param.transposed});
}

int AdapterKind::input(Wiring&, const AdaptedLayer&, int x) const {
  return x;
}

std::shared_ptr<const AdapterSum> AdapterKind::sum(Wiring&, const AdaptedLayer&, int) const {
  return nullptr;
}

std::shared_ptr<const AdapterSum> AdapterKind::table_sum(Wiring&, const AdaptedLayer&) const {
  fail(ErrorCode::internal, "a kind that tables have", "another one", "report this");
}

TokensInFront AdapterKind::in_front(Wiring&, const AdaptedLayer&) const {
  return {};
}

InPlace AdapterKind::keys_in_front(Wiring&, const AdaptedLayer&, const InPlace& behind) const {
  return behind;
}

int AdapterKind::in_place_of(Wiring&, const AdaptedLayer&, const LinearParams&, const char*, int,
                             const BehindProduct&) const {
  return -1;
}

void AdapterKind::start(Context&, ParamStore&, const AdaptedLayer&, const View&,
                        const View&) const {
  fail(ErrorCode::internal, "a kind that takes values from the weight", "another one",
       "report this");
}

}  // namespace snug
