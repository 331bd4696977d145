// The sum that every transport makes of what ranks have: in fp32, rank 0 first, rounded once.
#pragma once

#include <cstddef>

#include "engine/seams/comm.h"

namespace snug {

// mine = (or +=) the sum over `ranks` of from[r], each as many elements as `mine`; f32 or bf16. from[r]
// may be where `mine` is.
void sum_ranks(const GradView& mine, const std::byte* const* from, int ranks, int threads);

}  // namespace snug
