// The time of one op on any place: recorded on plan, run in an arena of its own, a median over
// runs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/memory/context.h"

namespace snug {

// Makes tensors, which end behind it, the last one first, and calls ops.
using OpBody = std::function<void(Context&, std::vector<Tensor>& keep)>;

struct OpBench {
  double median = 0, least = 0;  // seconds of a call
  int64_t flops = 0, bytes = 0;  // as the op says them
};

// Of the op of the name `op`, the last one where `body` calls several. Two runs come before those
// that count: code is loaded, algorithms are chosen. On a GPU the times are the device's own.
OpBench bench_op(Place place, const Settings& settings, const std::string& op, int repeats,
                 const OpBody& body);

// The host's seconds of a whole program, its work waited for; as a graph where settings ask for it.
double bench_program(Place place, const Settings& settings, int repeats, const OpBody& body);

// A tensor of random numbers of size 1 to 2 that ends with `keep`; dtype f32, bf16 or f16. An H200 multiplies zeros
// 13 % faster: its clock follows its power.
View noise(Context& ctx, std::vector<Tensor>& keep, const char* name, Shape shape, DType dtype);
// A tensor of zeros that ends with `keep`.
View zeros(Context& ctx, std::vector<Tensor>& keep, const char* name, Shape shape, DType dtype);

}  // namespace snug
