// One optimizer step as data for pictures: its programs side by side, what lives at every moment.
//
// A program has ticks + 1 states: state 0 is before its first event, state s after event s - 1. A
// tensor lives in states born + 1 .. died, an op with time c runs in state c. On the x axis a state
// is as wide as the time its ops of the compute stream take (op_time.h), with a floor so that every
// state and every program can be seen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/planner/plan.h"
#include "tools/report/op_time.h"

namespace snug {

// A layer of the stack: a category, resident (from an ancestor program) or not; activations are
// split into groups of neighbouring layers.
struct StepBand {
  Category category = Category::weights;
  bool resident = false;
  int group = 0;      // number among the bands of this category
  std::string label;  // "weights", "activations h.0 to h.3"
};

struct StepSegment {
  int program = 0;
  std::string label;        // "micro_next, 7 times"
  std::vector<double> x;    // x[s]: where state s begins, in [0, 1]; x.back(): where the last ends
  std::vector<int32_t> op;  // op[s]: the last op begun by state s; -1 if none
  std::vector<double>
      start;  // start[s]: seconds of the compute stream before state s; as long as x
  std::vector<OpSpan> spans;  // of all its ops, from its start
  int64_t states() const { return static_cast<int64_t>(x.size()) - 1; }
  double x_at(double seconds) const;  // where a moment of the program lies
};

struct StepMoment {
  int segment = 0;
  int64_t state = 0;
};

// What a column of the picture shows: the fullest moment within it.
struct StepColumn {
  StepMoment moment;
  std::vector<int64_t> bytes;  // by band
  int64_t total = 0;
};

struct HeldTensor {
  const TensorRecord* tensor = nullptr;
  int program = 0;
  size_t index = 0;     // in its program
  int64_t address = 0;  // in the arena; 0 where the schedule is not packed
};

struct StepView {
  const Schedule* schedule = nullptr;  // of the plan it was made from, which must live as long
  std::vector<StepSegment> segments;   // empty for a schedule without programs
  std::vector<StepBand> bands;         // from the bottom
  std::vector<StepColumn> columns;     // of equal width
  StepMoment peak;                     // the moment that sets the height of the arena
  StepTimes::Source source = StepTimes::Source::weights;  // what the times are
  std::string times_text;

  double x_of(const StepMoment& m) const;  // its middle
  const Program& program_of(const StepMoment& m) const;
  std::string op_of(const StepMoment& m) const;  // "h.3 attention_forward"; "start" before any op
  // Everything alive then, ancestors included, largest first.
  std::vector<HeldTensor> held(const StepMoment& m) const;
  CategoryBytes bytes_at(const StepMoment& m) const;
  // Bytes of residents, the least over the columns; 0 unless they are so large a part that a
  // picture from 0 would flatten the rest.
  int64_t crowding_residents() const;
};

StepView make_step_view(const Plan& plan, int columns, const StepTimes& times = {});

// The programs of a step, each once, in order. Where nothing trains, those that are there; and
// always the one that sets the height of the arena.
std::vector<int> step_programs(const Plan& plan);

// Whether `ancestor` is `program` or above it.
bool is_ancestor(const Schedule& schedule, int ancestor, int program);
// Offset of tensor k in the arena; base of the program where it is not packed.
int64_t address_of(const Program& program, size_t k);

}  // namespace snug
