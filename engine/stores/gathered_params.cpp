#include "engine/stores/gathered_params.h"

#include "engine/core/error.h"

namespace snug {

GatheredParamStore::GatheredParamStore(Context& ctx, const ParamTable& table, DType dtype,
                                       Comm& comm, StreamedParamStore* pieces)
    : table_(table),
      dtype_(dtype),
      comm_(comm),
      pieces_(pieces),
      shards_(table, Shards::Range::all),
      gathered_(shards_.runs().size()),
      coming_(shards_.runs().size()),
      run_of_(run_of_params(table)) {
  if (pieces == nullptr)
    kept_ = ctx.tensor(Name("weights.kept"), {shards_.elements()}, dtype, Category::weights);
  for (const ShardRun& run : shards_.runs()) names_.push_back(run_name("weights", table, run));
}

void GatheredParamStore::gather(Context& ctx, size_t run) {
  if (gathered_[run].defined()) return;
  const ShardRun& r = shards_.runs()[run];
  gathered_[run] = ctx.tensor(names_[run], {r.elements}, dtype_, Category::weights);
  const View mine =
      pieces_ ? pieces_->acquire_on(ctx, comm_.in_turn() ? kCompute : kRanks, static_cast<int>(run))
              : shards_.piece(kept_, run);
  coming_[run] = comm_.begin_all_gather(ctx, gathered_[run], mine, &gathered_[run]);
}

// And its piece is of no use any more.
void GatheredParamStore::arrive(Context& ctx, size_t run) {
  Comm::arrive(ctx, coming_[run]);
  if (pieces_) pieces_->drop_run(ctx, static_cast<int>(run));
}

void GatheredParamStore::drop(Context& ctx, size_t run) {
  if (!gathered_[run].defined()) return;
  arrive(ctx, run);
  gathered_[run].reset();
}

View GatheredParamStore::acquire(Context& ctx, int param) {
  const auto run = static_cast<size_t>(run_of_[static_cast<size_t>(param)]);
  const ShardRun& r = shards_.runs()[run];
  if (r.part < 0 || gathers_late()) gather(ctx, run);
  require(gathered_[run].defined(), "weights to be fetched before they are acquired");
  arrive(ctx, run);
  const ParamInfo& p = table_[param];
  View view = gathered_[run].view().rows(p.offset - r.first, p.elements()).reshaped(p.shape);
  view.name = p.name;
  return view;
}

void GatheredParamStore::fetch_part(Context& ctx, int part) {
  if (pieces_) pieces_->fetch_part(ctx, part);
  for (size_t i = 0; !gathers_late() && i < gathered_.size(); ++i)
    if (shards_.runs()[i].part == part && part >= 0) gather(ctx, i);
}

void GatheredParamStore::drop_part(Context& ctx, int part) {
  for (size_t i = 0; i < gathered_.size(); ++i)
    if (shards_.runs()[i].part == part && part >= 0) drop(ctx, i);
  if (pieces_) pieces_->drop_part(ctx, part);  // what was not gathered
}

void GatheredParamStore::drop_rest(Context& ctx) {
  for (size_t i = 0; i < gathered_.size(); ++i)
    if (shards_.runs()[i].part < 0) drop(ctx, i);
}

}  // namespace snug
