#include "engine/memory/pass.h"

#include "engine/core/error.h"

namespace snug {

const char* to_string(SlotPolicy policy) {
  switch (policy) {
    case SlotPolicy::keep:
      return "keep";
    case SlotPolicy::recompute:
      return "recompute";
    case SlotPolicy::offload:
      return "offload";
  }
  return "?";
}

int Body::add_slot(Slot slot) {
  slots_.push_back(std::move(slot));
  producer_.push_back(-1);
  last_reader_.push_back(-1);
  return slots() - 1;
}

void Body::add_stage(Stage stage) {
  const int index = static_cast<int>(stages_.size());
  for (const int s : stage.inputs) last_reader_[static_cast<size_t>(s)] = index;
  for (const int s : stage.outputs) {
    require(producer_[static_cast<size_t>(s)] == -1, "one stage to write each slot");
    require(last_reader_[static_cast<size_t>(s)] == -1, "slots to be written before they are read");
    producer_[static_cast<size_t>(s)] = index;
  }
  stages_.push_back(std::move(stage));
}

int Body::find_slot(std::string_view last) const {
  for (int i = 0; i < slots(); ++i) {
    const std::string_view name = slot(i).name.view();
    if (name.substr(name.rfind('.') + 1) == last) return i;
  }
  return -1;
}

Pass::Pass(const Body& body, std::vector<SlotPolicy> policies)
    : body_(&body), policies_(std::move(policies)), tensors_(static_cast<size_t>(body.slots())) {
  require(static_cast<int>(policies_.size()) == body.slots(), "one policy per slot");
  for (const SlotPolicy p : policies_)
    if (p == SlotPolicy::offload)
      fail(ErrorCode::unsupported, "slots kept or recomputed", "the policy offload",
           "recompute=block, which needs less memory still");
}

void Pass::begin(Dims dims, PassMode mode) {
  clear();
  dims_ = dims;
  mode_ = mode;
  recomputed_ = 0;
}

void Pass::give(int slot, Tensor tensor) {
  tensors_[static_cast<size_t>(slot)] = std::move(tensor);
}

Tensor Pass::take(int slot) {
  return std::move(tensors_[static_cast<size_t>(slot)]);
}

void Pass::run_stage(Context& ctx, int stage, Category category) {
  const Stage& s = body_->stages()[static_cast<size_t>(stage)];
  for (const int out : s.outputs) {
    Tensor& t = tensors_[static_cast<size_t>(out)];
    const Slot& slot = body_->slot(out);
    // A kept output of a stage that runs again is written again, with the same bits.
    if (!t.defined())
      t = ctx.tensor(slot.name, slot.shape(dims_), slot.dtype,
                     slot.category == Category::activations ? category : slot.category);
  }
  s.run(ctx, *this);
}

bool Pass::kept(int slot) const {
  if (mode_ == PassMode::inference) return false;
  return body_->producer(slot) < 0 || policies_[static_cast<size_t>(slot)] == SlotPolicy::keep;
}

void Pass::forward(Context& ctx) {
  const int stages = static_cast<int>(body_->stages().size());
  for (int i = 0; i < stages; ++i) {
    run_stage(ctx, i, Category::activations);
    const Stage& s = body_->stages()[static_cast<size_t>(i)];
    for (const int slot : s.inputs)
      if (body_->last_reader(slot) == i && !kept(slot)) drop(slot);
    // An output without readers is for backward alone, except in the last stage, where it is what
    // the part computes and the caller takes it.
    if (i + 1 < stages)
      for (const int slot : s.outputs)
        if (body_->last_reader(slot) < 0 && !kept(slot)) drop(slot);
  }
}

const View& Pass::view(int slot) const {
  const Tensor& t = tensors_[static_cast<size_t>(slot)];
  if (!t.defined())
    fail(ErrorCode::internal, "a stage to list every slot it reads",
         "slot " + body_->slot(slot).name.str() + " absent",
         "this is a defect in Snug: please report it");
  return t.view();
}

const View& Pass::need(Context& ctx, int slot) {
  if (present(slot)) return view(slot);
  const int stage = body_->producer(slot);
  require(stage >= 0, "a given slot to be present until it is no longer needed");
  for (const int in : body_->stages()[static_cast<size_t>(stage)].inputs) need(ctx, in);
  run_stage(ctx, stage, Category::recomputed);
  ++recomputed_;
  return view(slot);
}

void Pass::clear() {
  for (Tensor& t : tensors_) t.reset();
}

}  // namespace snug
