// Runs of a table: neighbours in the flat range of one part (a block), or of none, all trained or
// all frozen. What comes and goes by part does so in these.
#pragma once

#include <span>
#include <vector>

#include "engine/seams/state_store.h"

namespace snug {

struct PartRun {
  int part;   // -1: of none
  int param;  // its first one
  bool trained;
  int64_t first, elements;  // of the flat range, a multiple of 256
};

// In the order of the flat range: first all that are trained.
std::vector<PartRun> part_runs(const ParamTable& table);
std::vector<PartRun> trained_runs(const ParamTable& table);
// By parameter, which of them.
std::vector<int> run_of_params(const ParamTable& table);
// "weights.part3", "weights.part3.frozen", or "weights.wte.weight" of what is of no part.
Name run_name(const char* what, const ParamTable& table, const PartRun& run);
// Those of the spans, which go up, that are inside a run.
std::span<const StateSpan> spans_of(std::span<const StateSpan> spans, const PartRun& run);

// What rests with the host and is on the device for a while.
struct DeviceCopy {
  Name name;
  int64_t first = 0, elements = 0;  // of the flat range
  Tensor device;
  Event moved;  // the last copy that was begun and that compute has not waited for
};

// Compute, or who else is to use it, waits for it.
void arrive(Context& ctx, DeviceCopy& copy, StreamId stream = kCompute);

// Begins to bring it; `host`: a tensor, or pieces one behind the other.
template <class Host>
void fetch(Context& ctx, DeviceCopy& copy, Host& host, DType dtype, Category category) {
  copy.device = ctx.tensor(copy.name, {copy.elements}, dtype, category);
  ctx.wait_event(kToDevice, ctx.record_event(kCompute));  // what had these bytes before is done
  ctx.copy_to_device(copy.device, host);
  copy.moved = ctx.record_event(kToDevice);
}

}  // namespace snug
