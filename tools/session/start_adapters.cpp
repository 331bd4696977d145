// What a session does about adapters: what a new one takes from its base, norms that stay, the model without them.
#include <cstring>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/kernels/kernels.h"
#include "layers/models/peft.h"
#include "tools/session/session.h"

namespace snug {
namespace {

// Values as `from` has them to a parameter where it rests.
void write_values(Context& ctx, const ParamInfo& p, const RestingWeights& weights,
                  const std::vector<float>& from) {
  weights.each(p.offset, p.elements(),
               [&](const RestingWeights::Piece& piece, int64_t first, const View& rows) {
                 if (!piece.own) return;
                 const float* const at = from.data() + (first - p.offset);
                 std::vector<std::byte> bytes(static_cast<size_t>(rows.bytes()));
                 if (rows.dtype == DType::f32)
                   std::memcpy(bytes.data(), at, bytes.size());
                 else if (rows.dtype == DType::bf16)
                   for (int64_t i = 0; i < rows.elements(); ++i)
                     reinterpret_cast<bf16*>(bytes.data())[i] = from_f32<bf16>(at[i]);
                 else
                   for (int64_t i = 0; i < rows.elements(); ++i)
                     reinterpret_cast<f16*>(bytes.data())[i] = from_f32<f16>(at[i]);
                 if (ctx.host_reads())
                   std::memcpy(rows.data, bytes.data(), bytes.size());
                 else
                   ctx.write(rows, bytes.data());
               });
}

std::vector<float> values_of(Context& ctx, const View& v) {
  std::vector<std::byte> bytes(static_cast<size_t>(v.bytes()));
  ctx.read(bytes.data(), v);
  std::vector<float> values(static_cast<size_t>(v.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = v.dtype == DType::f32    ? reinterpret_cast<const float*>(bytes.data())[i]
                : v.dtype == DType::bf16 ? to_f32(reinterpret_cast<const bf16*>(bytes.data())[i])
                                         : to_f32(reinterpret_cast<const f16*>(bytes.data())[i]);
  return values;
}

// Norms of a weight: of its rows; of a table's columns.
Shape norms_shape(const LinearAdapter& adapter, const ParamInfo& weight) {
  return {weight.shape[adapter.table ? 1 : 0]};
}

}  // namespace

bool Session::has_norms() const {
  const Decisions& d = decisions_;
  if (d.micro_batch == 0 && d.eval_batch == 0 && d.kv_length == 0) return false;
  for (const auto& [layer, adapter] : model_.adapters())
    if (adapter.kind->starts_from_weight()) return true;
  return false;
}

void Session::make_norms() {
  if (magnitudes_ < 0 || decisions_.micro_batch > 0) return;
  const ParamTable& table = model_.params();
  for (const auto& [layer, adapter] : model_.adapters()) {
    if (!adapter.kind->starts_from_weight()) continue;
    const int weight = table.find(layer + ".weight");
    norms_[weight] = ctx_.tensor(Name(layer + ".norms"), norms_shape(adapter, table[weight]),
                                 model_.precision().compute, Category::weights);
  }
}

void Session::start_adapters() {
  if (magnitudes_ < 0) return;
  const ParamTable& table = model_.params();
  std::vector<std::pair<int, std::vector<float>>> found;  // by parameter
  ctx_.program(schedule_, magnitudes_, [&] {
    for (int part = -1; part < model_.spec().L; ++part) {
      if (part >= 0) stores_->params().fetch_part(ctx_, part);
      for (const auto& [layer, adapter] : model_.adapters()) {
        const int weight = table.find(layer + ".weight");
        if (!adapter.kind->starts_from_weight() || table[weight].part != part) continue;
        const AdaptedLayer place = adapted_layer_of(model_, layer);
        const auto kept = norms_.find(weight);
        Tensor made;
        if (kept == norms_.end())
          made = ctx_.tensor(Name(layer + ".norms"), norms_shape(adapter, table[weight]),
                             model_.precision().compute, Category::workspace);
        const View values = kept == norms_.end() ? made.view() : kept->second.view();
        if (kept != norms_.end()) fill_zero(ctx_, values);  // rows of no adapter
        adapter.kind->start(ctx_, stores_->params(), place, stores_->params().acquire(ctx_, weight),
                            values);
        stores_->params().release(ctx_, weight);
        if (ctx_.planning() || kept != norms_.end()) continue;
        for (size_t k = 0; k < adapter.pieces.size(); ++k) {
          const AdapterPiece& piece = adapter.pieces[k];
          found.emplace_back(
              table.find(adapter.kind->start_name(place, k)),
              values_of(ctx_, adapter.table ? values : values.rows(piece.row, piece.rows)));
        }
      }
      if (part >= 0) stores_->params().drop_part(ctx_, part);
    }
    stores_->done_reading(ctx_);
  });
  if (ctx_.planning() || !norms_.empty()) return;
  const RestingWeights weights = resting();
  for (const auto& [param, values] : found) write_values(ctx_, table[param], weights, values);
  load();
}

void Session::reference(ModelPass& pass, int64_t B, const Extent& used) {
  Runtime rt = runtime(nullptr, batch_document_start(used));
  model_.reference(ctx_, rt, pass, batch(used), head_rows(B, used));
  stores_->done_reading(ctx_);
}

}  // namespace snug
