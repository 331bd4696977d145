#include "engine/stores/gathered_params.h"

#include "engine/core/error.h"

namespace snug {

GatheredParamStore::GatheredParamStore(Context& ctx, const ParamTable& table, DType dtype,
                                       Comm& comm)
    : table_(table),
      dtype_(dtype),
      comm_(comm),
      shards_(table, Shards::Range::all),
      kept_(ctx.tensor(Name("weights.kept"), {shards_.elements()}, dtype, Category::weights)),
      gathered_(shards_.runs().size()),
      coming_(shards_.runs().size()),
      run_of_(run_of_params(table)) {
  for (const ShardRun& run : shards_.runs()) names_.push_back(run_name("weights", table, run));
}

void GatheredParamStore::gather(Context& ctx, size_t run) {
  if (gathered_[run].defined()) return;
  const ShardRun& r = shards_.runs()[run];
  gathered_[run] = ctx.tensor(names_[run], {r.elements}, dtype_, Category::weights);
  coming_[run] =
      comm_.begin_all_gather(ctx, gathered_[run], shards_.piece(kept_, run), &gathered_[run]);
}

void GatheredParamStore::drop(Context& ctx, size_t run) {
  if (!gathered_[run].defined()) return;
  Comm::arrive(ctx, coming_[run]);
  gathered_[run].reset();
}

View GatheredParamStore::acquire(Context& ctx, int param) {
  const auto run = static_cast<size_t>(run_of_[static_cast<size_t>(param)]);
  const ShardRun& r = shards_.runs()[run];
  if (r.part < 0) gather(ctx, run);
  require(gathered_[run].defined(), "weights to be fetched before they are acquired");
  Comm::arrive(ctx, coming_[run]);
  const ParamInfo& p = table_[param];
  View view = gathered_[run].view().rows(p.offset - r.first, p.elements()).reshaped(p.shape);
  view.name = p.name;
  return view;
}

void GatheredParamStore::fetch_part(Context& ctx, int part) {
  for (size_t i = 0; i < gathered_.size(); ++i)
    if (shards_.runs()[i].part == part && part >= 0) gather(ctx, i);
}

void GatheredParamStore::drop_part(Context& ctx, int part) {
  for (size_t i = 0; i < gathered_.size(); ++i)
    if (shards_.runs()[i].part == part && part >= 0) drop(ctx, i);
}

void GatheredParamStore::drop_rest(Context& ctx) {
  for (size_t i = 0; i < gathered_.size(); ++i)
    if (shards_.runs()[i].part < 0) drop(ctx, i);
}

}  // namespace snug
