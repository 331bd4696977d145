// The class of a position that is not trained, as PyTorch's cross-entropy and transformers have it.
#pragma once

#include <cstdint>

namespace snug {

inline constexpr int32_t kIgnoredTarget = -100;

}  // namespace snug
