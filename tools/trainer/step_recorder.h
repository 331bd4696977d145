// The times of one optimizer step's ops, measured while it trains, for the report and the trace.
// Its buffers are made before training starts; recording allocates nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/memory/context.h"
#include "tools/report/trace.h"

namespace snug {

class StepRecorder final : public OpListener {
 public:
  // With `trace`, every op of a step is kept, up to kMostOps: micro-steps beyond that are left out.
  // Else the mean times of each op alone.
  StepRecorder(const Plan& plan, bool trace);

  // Around a step that is to be recorded; the last one recorded counts.
  void begin_step(Context& ctx, int64_t step);
  void end_step(Context& ctx);
  void op_span(const Program& program, int32_t op, double begin, double end) override;
  void op_done(const Program&, int32_t, double) override {}  // spans say it

  bool recorded() const { return recorded_; }
  StepTimes times() const;                           // of the step; nothing if none was recorded
  const StepTrace& trace() const { return trace_; }  // no ops unless asked for

  static constexpr int64_t kMostOps = 32768;

 private:
  int program_of(const Program& program) const;  // -1: not one of a step

  const Schedule& schedule_;
  std::vector<std::pair<int, std::vector<double>>> seconds_;  // sums over the runs of a program
  std::vector<int64_t> runs_;                                 // of each of them, in the step
  bool keep_ = false, recorded_ = false;
  int64_t reserved_ = 0;  // ops of the update, for which room is kept
  int update_ = -1;
  double started_ = 0;
  StepTrace trace_;
  bool leaving_out_ = false;
};

}  // namespace snug
