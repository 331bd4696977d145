#include "engine/stores/updating_gradients.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/stores/part_runs.h"

namespace snug {

UpdatingGradSink::UpdatingGradSink(Context& ctx, const ParamTable& table, const StateStore& store,
                                   DType dtype, Update update,
                                   const std::vector<WindowRange>& of_runs)
    : table_(table),
      dtype_(dtype),
      update_(std::move(update)),
      run_of_(run_of_params(table)),
      written_(static_cast<size_t>(table.size()), 0) {
  require(dtype == DType::f32 || dtype == DType::bf16, "gradients in f32 or bf16");
  expect_gradients_here(ctx, dtype);
  for (const PartRun& r : trained_runs(table)) {
    Run run{};
    run.part = r.part;
    run.name = run_name("gradients", table, r);
    run.first = r.first;
    run.elements = r.elements;
    run.spans = spans_of(store.spans(), r);
    const auto inside = [&](int64_t offset) {
      return offset >= run.first && offset < run.first + run.elements;
    };
    run.windows = {0, 0};
    if (!of_runs.empty()) run.windows = of_runs[runs_.size()];
    for (int w = 0; of_runs.empty() && w < store.windows(); ++w)
      if (const auto spans = store.window(w); !spans.empty() && inside(spans.front().offset)) {
        require(inside(spans.back().offset), "windows of a store that keep to the parts");
        if (run.windows.last == 0) run.windows.first = w;
        run.windows.last = w + 1;
      }
    if (run.part < 0)
      run.gradients = ctx.tensor(run.name, {run.elements}, dtype, Category::gradients);
    runs_.push_back(std::move(run));
  }
}

void UpdatingGradSink::begin() {
  std::fill(written_.begin(), written_.end(), char{0});
}

GradView UpdatingGradSink::open(Context& ctx, int param) {
  require(wants(param), "gradients of trainable parameters only");
  Run& run = runs_[static_cast<size_t>(run_of_[static_cast<size_t>(param)])];
  if (!run.gradients.defined())
    run.gradients = ctx.tensor(run.name, {run.elements}, dtype_, Category::gradients);
  char& written = written_[static_cast<size_t>(param)];
  const bool add = written != 0;
  written = 1;
  const ParamInfo& p = table_[param];
  View view = run.gradients.view().rows(p.offset - run.first, p.elements()).reshaped(p.shape);
  view.name = p.name;
  return {view, add};
}

void UpdatingGradSink::update(Context& ctx, Run& run) {
  if (run.windows.first < run.windows.last)
    update_(ctx, {run.gradients.view(), run.first, run.windows, run.spans});
}

void UpdatingGradSink::part_done(Context& ctx, int part) {
  for (Run& run : runs_)
    if (run.part == part && part >= 0 && run.gradients.defined()) {
      update(ctx, run);
      run.gradients.reset();
    }
}

void UpdatingGradSink::finish(Context& ctx) {
  for (Run& run : runs_)
    if (run.part < 0) update(ctx, run);
}

}  // namespace snug
