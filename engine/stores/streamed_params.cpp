#include "engine/stores/streamed_params.h"

#include <algorithm>

#include "engine/core/error.h"

namespace snug {

StreamedParamStore::StreamedParamStore(Context& ctx, const ParamTable& table, DType dtype,
                                       OffloadedStateStore* host, bool tables_with_host)
    : table_(table), dtype_(dtype), host_(host), run_of_(run_of_params(table)) {
  for (const PartRun& r : part_runs(table)) {
    Run run{};
    run.part = r.part;
    run.name = run_name("weights", table, r);
    run.first = r.first;
    run.elements = r.elements;
    run.trained = r.trained;
    runs_.push_back(std::move(run));
  }
  for (Run& run : runs_) {
    run.table = tables_with_host && run.first >= table.tables_first();
    if (run.trained && host) {
      run.host = host->weight_pieces(run.first, run.elements);
    } else if (run.part >= 0 || run.table) {
      run.own = ctx.host_tensor(run.name, {run.elements}, dtype);
      run.host = {&run.own};
    }
    if (run.part < 0 && !run.table)
      run.device = ctx.tensor(run.name, {run.elements}, dtype, Category::weights);
  }
  if (host == nullptr) return;
  if (host->on_host())
    for (const Run& run : runs_)
      if (run.part < 0 && run.trained) host->set_device_weights(ctx, run.device, run.first);
  host->set_on_device([this](int64_t offset, int64_t n) { return on_device(offset, n); });
}

View StreamedParamStore::on_device(int64_t offset, int64_t elements) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), offset,
                                      [](int64_t o, const Run& r) { return o < r.first; });
  require(after != runs_.begin(), "an element of a run");
  const Run& run = *(after - 1);
  require(run.part < 0 && offset + elements <= run.first + run.elements,
          "weights that stay on the device");
  return run.device.view().rows(offset - run.first, elements);
}

void StreamedParamStore::fetch_part(Context& ctx, int part) {
  for (Run& run : runs_) {
    if (run.part != part || part < 0) continue;
    run.device.reset();  // of an abandoned program
    fetch(ctx, run, run.host, dtype_, Category::weights);
  }
}

void StreamedParamStore::drop_part(Context& ctx, int part) {
  for (Run& run : runs_)
    if (run.part == part) drop(ctx, run);
}

void StreamedParamStore::drop_run(Context& ctx, int param) {
  drop(ctx, runs_[static_cast<size_t>(run_of_[static_cast<size_t>(param)])]);
}

void StreamedParamStore::drop(Context& ctx, Run& run) {
  if (run.part < 0) return;
  arrive(ctx, run);
  run.device.reset();
}

View StreamedParamStore::acquire(Context& ctx, int param) {
  return acquire_on(ctx, kCompute, param);
}

View StreamedParamStore::acquire_on(Context& ctx, StreamId stream, int param) {
  Run& run = runs_[static_cast<size_t>(run_of_[static_cast<size_t>(param)])];
  const Tensor& at = run.table ? run.own : run.device;
  require(at.defined(), "weights to be fetched before they are acquired");
  if (run.part >= 0) arrive(ctx, run, stream);
  const ParamInfo& p = table_[param];
  View view = at.view().rows(p.offset - run.first, p.elements()).reshaped(p.shape);
  view.name = p.name;
  return view;
}

void StreamedParamStore::load(Context& ctx) {
  if (host_->on_host()) return host_->load_weights(ctx);
  if (host_->rounds_weights()) {
    host_->round_weights(ctx);
    return;
  }
  for (Run& run : runs_)
    if (run.part < 0 && run.trained) {
      ctx.wait_event(kToDevice, ctx.record_event(kCompute));
      ctx.copy_to_device(run.device, run.host);
      run.moved = ctx.record_event(kToDevice);
    }
  for (Run& run : runs_)
    if (run.part < 0 && !run.table) arrive(ctx, run);
}

void StreamedParamStore::take(Context& ctx, size_t run, Tensor& from) {
  Run& to = runs_[run];
  ctx.wait_event(kToHost, ctx.record_event(kCompute));
  ctx.copy_to_host(to.own, from);
  to.moved = ctx.record_event(kToHost);
}

std::vector<RestingWeights::Piece> StreamedParamStore::frozen() const {
  std::vector<RestingWeights::Piece> pieces;
  for (const Run& run : runs_)
    if (!run.trained)
      pieces.push_back({run.first, run.own.defined() ? run.own.view() : run.device.view()});
  return pieces;
}

}  // namespace snug
