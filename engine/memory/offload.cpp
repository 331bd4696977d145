#include "engine/memory/offload.h"

#include "engine/core/error.h"

namespace snug {

Offload::Offload(int passes, int slots)
    : slots_(slots),
      away_(static_cast<size_t>(passes) * static_cast<size_t>(slots)),
      outgoing_(static_cast<size_t>(slots)) {}

// Compute waits, then the bytes are free. What an abandoned run left has neither events nor bytes.
void Offload::finish(Outgoing& out) {
  if (!out.tensor.defined()) return;
  if (ctx_->current(out.sent)) ctx_->wait_event(kCompute, out.sent);
  out.tensor.reset();
}

void Offload::send(Context& ctx, int pass, int slot, Tensor tensor) {
  ctx_ = &ctx;
  Outgoing& out = outgoing_[static_cast<size_t>(slot)];
  finish(out);
  Away& away = at(pass, slot);
  require(away.state == State::none, "a slot to be sent once");
  const View& view = tensor.view();
  away.tensor = ctx.host_tensor(view.name, view.shape, view.dtype);
  away.state = State::host;
  ctx.wait_event(kToHost, ctx.record_event(kCompute));
  ctx.copy_to_host(away.tensor, tensor);
  out.pass = pass;
  out.sent = ctx.record_event(kToHost);
  out.tensor = std::move(tensor);
}

void Offload::pass_done(int pass) {
  for (Outgoing& out : outgoing_)
    if (out.pass < pass) finish(out);
}

void Offload::settle() {
  for (Outgoing& out : outgoing_) finish(out);
}

Tensor Offload::fetch(Context& ctx, int pass, int slot, Category category) {
  Away& away = at(pass, slot);
  require(away.state == State::host, "a slot that is with the host to be fetched");
  ctx_ = &ctx;
  // A slot that is needed while its copy is still on its way out: where it was is then free.
  if (outgoing_[static_cast<size_t>(slot)].pass == pass)
    finish(outgoing_[static_cast<size_t>(slot)]);
  const View& view = away.tensor.view();
  Tensor tensor = ctx.tensor(view.name, view.shape, view.dtype, category);
  ctx.wait_event(kToDevice, ctx.record_event(kCompute));
  ctx.copy_to_device(tensor, away.tensor);
  away.arrived = ctx.record_event(kToDevice);
  away.state = State::coming;
  return tensor;
}

void Offload::arrive(int pass, int slot) {
  Away& away = at(pass, slot);
  if (away.state != State::coming) return;
  away.state = State::none;
  if (ctx_->current(away.arrived)) ctx_->wait_event(kCompute, away.arrived);
  away.tensor.reset();
}

void Offload::drop(int pass, int slot) {
  arrive(pass, slot);
  at(pass, slot).state = State::none;
  Outgoing& out = outgoing_[static_cast<size_t>(slot)];
  if (out.pass == pass) finish(out);
  at(pass, slot).tensor.reset();
}

}  // namespace snug
