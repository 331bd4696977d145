// When the ops of a program run: each stream runs its ops in order, an op starts when its stream is
// free and every event the stream waits for has happened.
//
//   compute   | a | b |       | d |       d waits for c
//   to host       | c ~~~~~~~ |           c waits for a
#pragma once

#include <vector>

#include "engine/memory/program.h"

namespace snug {

struct OpSpan {
  double begin = 0, end = 0;  // seconds from the program's start
};

// Of every op, which takes so many seconds; those that the list lacks take none.
std::vector<OpSpan> op_spans(const Program& program, const std::vector<double>& seconds);
// When the last one ends; 0 of no op.
double last_end(const std::vector<OpSpan>& spans);

}  // namespace snug
