// What the record of a program knows of a tensor beyond its bytes: the ops between which it lives,
// and why it is there. Read from the schedule alone, so that pictures and `snug explain` agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/memory/program.h"

namespace snug {

// The first and the last op that run while a tensor lives; -1: none does. Code makes a tensor
// before the op that writes it, so as a rule the first is that op; the record does not name
// operands.
struct TensorOps {
  int32_t first = -1, last = -1;
};
TensorOps ops_of(const Program& program, const TensorRecord& tensor);

// Where backward begins: the first op with _backward in its name; the number of ops where none has.
int32_t first_backward_op(const Program& program);

// The record of the same name that the program makes after tensor k, as a recompute does, or a slot
// that comes back from the host; -1: none. And the one before it.
int64_t made_again(const Program& program, size_t k);
int64_t made_before(const Program& program, size_t k);

// One sentence without a full stop: "kept for backward, which ends with h.3 gelu_backward".
std::string why_there(const Program& program, size_t k);

// "h.3 matmul (op 41 of 213)", or what stands for no op.
std::string op_text(const Program& program, int32_t op, const char* none);

// The tensors of a program and its ancestors alive in state `state` (see step_view.h), as pairs of
// program and index, largest first.
struct LiveTensor {
  int program = 0;
  size_t index = 0;
};
std::vector<LiveTensor> live_tensors(const Schedule& schedule, int program, int64_t state);
// The state that sets the height of a program.
int64_t peak_state(const Program& program);

}  // namespace snug
