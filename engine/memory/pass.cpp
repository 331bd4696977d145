#include "engine/memory/pass.h"

#include <algorithm>

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
  const std::string_view name = slot.name.view();
  const size_t last = name.rfind('.') + 1;
  gradient_names_.emplace_back(std::string(name.substr(0, last)) + "d" +
                               std::string(name.substr(last)));
  slots_.push_back(std::move(slot));
  producer_.push_back(-1);
  last_reader_.push_back(-1);
  backward_reader_.push_back(-1);
  wanted_.push_back(1);
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
  has_backward_ |= static_cast<bool>(stage.backward);
  stages_.push_back(std::move(stage));
  fused_.emplace_back();
  fused_backward_.emplace_back();
  active_.push_back(1);
  for (const auto* read : {&stages_.back().for_params, &stages_.back().for_inputs})
    for (const int s : *read) {
      int& reader = backward_reader_[static_cast<size_t>(s)];
      if (reader < 0) reader = index;
    }
}

void Body::derive(const std::function<bool(int)>& trained, bool given_wanted) {
  std::fill(backward_reader_.begin(), backward_reader_.end(), -1);
  for (int s = 0; s < slots(); ++s) wanted_[static_cast<size_t>(s)] = given_wanted;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const Stage& stage = stages_[i];
    const auto wanted = [&](int s) { return wanted_[static_cast<size_t>(s)] != 0; };
    const bool inputs = std::any_of(stage.gradients.begin(), stage.gradients.end(), wanted);
    const bool own = std::any_of(stage.params.begin(), stage.params.end(), trained);
    active_[i] = inputs || own;
    for (const int s : stage.outputs) wanted_[static_cast<size_t>(s)] = active_[i];
    const auto reads = [&](const std::vector<int>& list) {
      for (const int s : list) {
        int& reader = backward_reader_[static_cast<size_t>(s)];
        if (reader < 0) reader = static_cast<int>(i);
      }
    };
    if (inputs) reads(stage.for_inputs);
    const auto end = stage.params.begin() +
                     std::min<std::ptrdiff_t>(stage.reading_params,
                                              static_cast<std::ptrdiff_t>(stage.params.size()));
    if (std::any_of(stage.params.begin(), end, trained)) reads(stage.for_params);
  }
}

void Body::fuse(int first, std::function<void(Context&, Pass&)> run,
                std::function<void(Context&, Pass&)> backward) {
  require(first >= 0 && first + 1 < static_cast<int>(stages_.size()), "two stages to fuse");
  // A stage in two pairs would leave open which of them runs.
  require(first == 0 || !fused(first - 1), "a stage to be fused with one neighbour");
  require(!fused(first) && !fused(first + 1), "a stage to be fused with one neighbour");
  fused_[static_cast<size_t>(first)] = std::move(run);
  fused_backward_[static_cast<size_t>(first)] = std::move(backward);
}

int Body::find_slot(std::string_view last) const {
  for (int i = 0; i < slots(); ++i) {
    const std::string_view name = slot(i).name.view();
    if (name.substr(name.rfind('.') + 1) == last) return i;
  }
  return -1;
}

Pass::Pass(const Body& body, std::vector<SlotPolicy> policies, Offload* offload, int index)
    : body_(&body),
      policies_(std::move(policies)),
      tensors_(static_cast<size_t>(body.slots())),
      gradients_(static_cast<size_t>(body.slots())),
      ends_(static_cast<size_t>(body.slots()), kNone),
      offload_(offload),
      index_(index) {
  require(static_cast<int>(policies_.size()) == body.slots(), "one policy per slot");
  for (const SlotPolicy p : policies_)
    require(p != SlotPolicy::offload || offload, "a place for what is in flight, to offload slots");
  // A slot that is made again is read by what makes it: its inputs have to last as long.
  for (int s = 0; s < body.slots(); ++s) ends_[static_cast<size_t>(s)] = body.backward_reader(s);
  for (auto i = static_cast<int>(body.stages().size()) - 1; i >= 0; --i) {
    const Stage& stage = body.stages()[static_cast<size_t>(i)];
    for (const int out : stage.outputs) {
      const int end = ends_[static_cast<size_t>(out)];
      if (end == kNone || policies_[static_cast<size_t>(out)] != SlotPolicy::recompute) continue;
      for (const int in : stage.inputs) {
        int& last = ends_[static_cast<size_t>(in)];
        last = last == kNone ? end : std::min(last, end);
      }
    }
  }
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

void Pass::make_outputs(Context& ctx, int stage, Category category, bool between) {
  for (const int out : body_->stages()[static_cast<size_t>(stage)].outputs) {
    if (!between && body_->last_reader(out) == stage + 1 && !kept(out) && !offloaded(out)) continue;
    bring(ctx, out);  // what is on its way back is not written meanwhile
    Tensor& t = tensors_[static_cast<size_t>(out)];
    const Slot& slot = body_->slot(out);
    // A kept output of a stage that runs again is written again, with the same bits.
    if (!t.defined())
      t = ctx.tensor(slot.name, slot.shape(dims_), slot.dtype,
                     slot.category == Category::activations ? category : slot.category);
  }
}

bool Pass::read_again(int slot) const {
  return !body_->has_backward() || ends_[static_cast<size_t>(slot)] != kNone;
}

bool Pass::offloaded(int slot) const {
  return mode_ == PassMode::train && policies_[static_cast<size_t>(slot)] == SlotPolicy::offload &&
         read_again(slot);
}

bool Pass::kept(int slot) const {
  if (mode_ == PassMode::inference || offloaded(slot) || !read_again(slot)) return false;
  return body_->producer(slot) < 0 || policies_[static_cast<size_t>(slot)] == SlotPolicy::keep;
}

// After the last use in forward.
void Pass::leave(Context& ctx, int slot) {
  if (kept(slot)) return;
  if (offloaded(slot))
    offload_->send(ctx, index_, slot, take(slot));
  else
    drop(slot);
}

void Pass::drop_after(Context& ctx, int stage) {
  const Stage& s = body_->stages()[static_cast<size_t>(stage)];
  for (const int slot : s.inputs)
    if (body_->last_reader(slot) == stage) leave(ctx, slot);
  // An output without readers is for backward alone, but for the first of the last stage: it is what
  // the part computes, and the caller takes it.
  const bool last = stage + 1 == static_cast<int>(body_->stages().size());
  for (const int slot : s.outputs)
    if (body_->last_reader(slot) < 0 && !(last && slot == s.outputs.front())) leave(ctx, slot);
}

void Pass::forward(Context& ctx) {
  const int stages = static_cast<int>(body_->stages().size());
  for (int i = 0; i < stages; ++i) {
    const auto& fused = body_->fused(i);
    make_outputs(ctx, i, Category::activations, !fused);
    if (fused) {
      make_outputs(ctx, i + 1, Category::activations, true);
      fused(ctx, *this);
      drop_after(ctx, i++);
    } else {
      body_->stages()[static_cast<size_t>(i)].run(ctx, *this);
    }
    drop_after(ctx, i);
  }
  if (offload_) offload_->pass_done(index_);
}

const View& Pass::view(int slot) const {
  const Tensor& t = tensors_[static_cast<size_t>(slot)];
  if (!t.defined())
    fail(ErrorCode::internal, "a stage to list every slot it reads",
         "slot " + body_->slot(slot).name.str() + " absent",
         "this is a defect in Snug: please report it");
  return t.view();
}

bool Pass::bring(Context& ctx, int slot) {
  if (!offload_) return present(slot);
  if (away(slot))
    tensors_[static_cast<size_t>(slot)] =
        offload_->fetch(ctx, index_, slot, body_->slot(slot).category);
  offload_->arrive(index_, slot);
  return present(slot);
}

void Pass::fetch(Context& ctx) {
  // Backward goes through the slots from the last to the first.
  for (int slot = body_->slots() - 1; slot >= 0; --slot)
    if (away(slot))
      tensors_[static_cast<size_t>(slot)] =
          offload_->fetch(ctx, index_, slot, body_->slot(slot).category);
}

void Pass::drop(int slot) {
  if (offload_) offload_->drop(index_, slot);
  tensors_[static_cast<size_t>(slot)].reset();
}

const View& Pass::need(Context& ctx, int slot) {
  if (bring(ctx, slot)) return view(slot);
  const int stage = body_->producer(slot);
  require(stage >= 0, "a given slot to be present until it is no longer needed");
  const Stage& s = body_->stages()[static_cast<size_t>(stage)];
  // Both of a pair, if the first has to run for this slot anyway.
  const bool pair = stage > 0 && body_->fused(stage - 1) &&
                    std::any_of(s.inputs.begin(), s.inputs.end(), [&](int in) {
                      return body_->producer(in) == stage - 1 && !present(in) && !away(in);
                    });
  if (pair)
    for (const int in : body_->stages()[static_cast<size_t>(stage - 1)].inputs) need(ctx, in);
  for (const int in : s.inputs)
    if (!pair || body_->producer(in) != stage - 1) need(ctx, in);
  if (pair) make_outputs(ctx, stage - 1, Category::recomputed, true);
  make_outputs(ctx, stage, Category::recomputed, true);
  (pair ? body_->fused(stage - 1) : s.run)(ctx, *this);
  recomputed_ += pair ? 2 : 1;
  return view(slot);
}

const View& Pass::gradient(int slot) const {
  require(has_gradient(slot), "a gradient to be there before what is behind it reads it");
  return gradients_[static_cast<size_t>(slot)].view();
}

GradView Pass::open_gradient(Context& ctx, int slot) {
  Tensor& t = gradients_[static_cast<size_t>(slot)];
  if (t.defined()) return {t.view(), true};
  const Slot& s = body_->slot(slot);
  t = ctx.tensor(body_->gradient_name(slot), s.shape(dims_), s.dtype, Category::workspace);
  return {t.view(), false};
}

void Pass::hand_gradient(int from, int to) {
  require(!has_gradient(to), "a gradient to be handed on before anything is added to it");
  gradients_[static_cast<size_t>(to)] = take_gradient(from);
}

void Pass::done(int slot) {
  if (ends_[static_cast<size_t>(slot)] >= backward_stage_) drop(slot);
}

void Pass::end_stage(int stage) {
  for (const int slot : body_->stages()[static_cast<size_t>(stage)].outputs) {
    end_gradient(slot);
    drop(slot);  // whoever reads it comes behind the stage that writes it
  }
  for (int slot = 0; slot < body_->slots(); ++slot)
    if (ends_[static_cast<size_t>(slot)] == stage) drop(slot);
}

Tensor Pass::backward(Context& ctx, int out, Tensor dout, int in) {
  gradients_[static_cast<size_t>(out)] = std::move(dout);
  for (auto i = static_cast<int>(body_->stages().size()) - 1; i >= 0; --i) {
    if (!body_->runs_backward(i)) {
      end_stage(i);
      continue;
    }
    const bool pair = i > 0 && body_->fused_backward(i - 1) && body_->runs_backward(i - 1);
    backward_stage_ = pair ? i - 1 : i;
    (pair ? body_->fused_backward(i - 1) : body_->stages()[static_cast<size_t>(i)].backward)(ctx,
                                                                                             *this);
    end_stage(i);
    if (pair) end_stage(--i);
  }
  backward_stage_ = kNone;
  Tensor din;
  if (in >= 0 && body_->gradient_wanted(in)) din = take_gradient(in);
  clear();
  return din;
}

void Pass::clear() {
  for (int slot = 0; slot < body_->slots(); ++slot) {
    drop(slot);
    end_gradient(slot);
  }
}

}  // namespace snug
