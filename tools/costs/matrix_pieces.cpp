#include "tools/costs/matrix_pieces.h"

#include "engine/core/error.h"
#include "layers/adapters/kinds.h"
#include "layers/models/peft.h"
#include "optim/settings.h"

namespace snug {
namespace {

std::vector<OptimPiece> pieces_of_weight(const ParamInfo& p, const Model& model) {
  const ModelSpec& s = model.spec();
  const std::string_view name = p.name.view();
  const int64_t queries = s.H * s.D, keys = s.G * s.D;
  if (name.ends_with(".attn.c_attn.weight") && p.rows == queries + 2 * keys)
    return {{queries, s.D}, {keys, s.D}, {keys}};
  if (s.gated_mlp && name.ends_with(".mlp.c_fc.weight") && p.rows == 2 * s.F) return {{s.F}, {s.F}};
  if (is_adapter_name(name)) {
    const PlacedParam placed = adapter_param_of(model, p.name.str());
    if (placed.param.piece >= 0) return {{p.rows}};
    std::vector<OptimPiece> modules;
    for (const AdapterPiece& piece : placed.layer.adapter->pieces) modules.push_back({piece.rank});
    return modules;
  }
  return {{p.rows}};
}

// A scale of each row, or of each column, of two extents as files have it, and no matrix.
bool is_scale(const ParamInfo& p, const Model& model) {
  return is_adapter_name(p.name.view()) && !adapter_param_of(model, p.name.str()).param.matrix;
}

}  // namespace

std::vector<std::vector<OptimPiece>> matrix_pieces(const Model& model) {
  const ParamTable& table = model.params();
  std::vector<std::vector<OptimPiece>> all(static_cast<size_t>(table.size()));
  for (int i = 0; i < table.size(); ++i) {
    const ParamInfo& p = table[i];
    const bool layers = p.part >= 0 && (p.linear || is_adapter_name(p.name.view()));
    if (!p.trainable || p.shape.rank() != 2 || !layers || is_scale(p, model)) continue;
    std::vector<OptimPiece>& own = all[static_cast<size_t>(i)];
    own = pieces_of_weight(p, model);
    int64_t rows = 0;
    for (const OptimPiece& piece : own) rows += piece.rows;
    require(rows == p.rows, "pieces that are all rows of a weight");
  }
  return all;
}

void add_pieces(OptimizerConfig& optimizer, const Model& model) {
  const OptimReach reach = find_optimizer(optimizer.name)->reach;
  if (reach == OptimReach::matrix || reach == OptimReach::blocks)
    optimizer.pieces = matrix_pieces(model);
}

}  // namespace snug
