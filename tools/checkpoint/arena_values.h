// What a checkpoint reads of the arena while training goes on, on the ring's thread too.
#pragma once

#include <algorithm>
#include <cstring>

#include "engine/core/dtype.h"
#include "engine/device/beside.h"
#include "engine/memory/context.h"
#include "layers/models/weight_values.h"

namespace snug {

inline void read_beside(Context& ctx, void* to, const View& from) {
  const Context::AtWork work(ctx);
  copy_beside(ctx.device(), to, from.data, from.bytes());
}

// The same as f32.
inline void read_values(Context& ctx, float* to, View from) {
  void* const behind = values_behind(to, from);
  read_beside(ctx, behind, from);
  from.data = behind;
  values_to_f32(to, from);
}

// n floats that are bf16 as such, in place; gives the bytes of one.
inline int64_t narrow_values(char* values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float value;
    std::memcpy(&value, values + 4 * i, sizeof(value));
    const bf16 half = from_f32<bf16>(value);
    std::memcpy(values + 2 * i, &half, sizeof(half));
  }
  return sizeof(bf16);
}

}  // namespace snug
