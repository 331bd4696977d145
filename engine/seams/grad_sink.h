// GradSink: where a layer puts parameter gradients. `open` gives the view to write and whether to
// assign or to add; `close` comes after the last contribution of the pass, tied ones included. A
// parameter the sink does not want (frozen) is never opened, and then neither its gradient nor the
// input saved for it exists.
#pragma once

#include "engine/memory/context.h"
#include "engine/seams/parameter.h"

namespace snug {

// Throws unless kernels for gradients of this dtype exist where the context will run.
void expect_gradients_here(const Context& ctx, DType dtype);

class GradSink {
 public:
  virtual ~GradSink() = default;
  virtual bool wants(int param) const = 0;
  virtual GradView open(Context& ctx, int param) = 0;
  virtual void close(Context& ctx, int param) = 0;
  // The gradients of a part of the table (ParamInfo::part) are opened next: a sink that has sums of
  // them elsewhere begins to bring them.
  virtual void fetch_part(Context&, int /*part*/) {}
  // They are complete, and the weights of the part are not read again in this pass.
  virtual void part_done(Context&, int /*part*/) {}
};

}  // namespace snug
