// A state of a parameter as optimizer.safetensors has it: F32 or BF16 of the parameter's shape; of
// codes U8 in one row, filled with zeros to whole words of four bytes, and their scales beside them
// as <state>.<parameter>.absmax, F32, one a block.
#pragma once

#include "engine/io/safetensors.h"
#include "engine/seams/parameter.h"
#include "engine/seams/rest_form.h"

namespace snug {

// In the metadata of that file; left out of fp32.
inline constexpr const char* kStateFormKey = "optimizer_state";

struct SavedState {
  SafeSpec spec;
  int64_t units = 0;  // numbers that rest: floats, or bytes of codes
  int64_t each = 1;   // elements of one
};
// Of a gradient that an update one step late is still to apply: behind the states (StateStore::saved).
inline constexpr const char* kLateGradient = "late_gradient";

SavedState saved_state(const Name& state, const ParamInfo& param, const RestForm& form,
                       int64_t numbers, bool scales);

// As files have it: rows of padding left out.
std::vector<int64_t> saved_shape(const ParamInfo& param);

}  // namespace snug
