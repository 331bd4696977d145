// The search for the fastest plan: micro-batch, head chunks and what each layer keeps are chosen
// together, by predicted time of the optimizer step that was asked for.
//
//   for each micro-batch x head chunk   one whole session is recorded: what is outside the layers
//     for each way to run a block         one block is recorded: bytes and seconds
//     planner.h                           the fastest choice a layer under the budget
//
// A configuration whose bound is slower than the best so far is not solved. Records are kept, so
// that other budgets cost a solve each.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/memory/planner.h"
#include "tools/trainer/block_options.h"
#include "tools/trainer/plan.h"

namespace snug {

class PlanSearch {
 public:
  // The request and what it points to outlive the search.
  explicit PlanSearch(const PlanRequest& request);

  struct Choice {
    bool feasible = false;
    Decisions decisions;
    double step_seconds = 0;   // predicted of an optimizer step; 0 without training
    int64_t engine_bytes = 0;  // lower bound of the arena, which packing nearly always meets
    int64_t host_bytes = 0;    // the same of the host's
    std::string optimality;    // of the layers' choice
    double gap = 0;
  };
  // The fastest whose arena's lower bound is at most `room` bytes.
  Choice best(int64_t room);
  // Choices among which one has the smallest arena there is, lowest bound first.
  const std::vector<Choice>& least();
  // make_plan keeps its answer to `least` here, which is the same for every budget.
  std::unique_ptr<Plan> smallest;
  // And what its refusal offers: a key and what the smallest plan with it needs.
  struct Offered {
    const char* key;
    int64_t minimum_bytes, both;  // of memory; of both arenas
  };
  std::optional<std::vector<Offered>> offered;
  // Micro-batch x head chunk x what becomes of gradients, as far as looked at.
  int64_t configurations() const { return static_cast<int64_t>(configs_.size()); }
  const CostModel& cost() const { return *cost_; }

  // Recorded with these decisions, not packed.
  std::unique_ptr<Session> record(const Decisions& decisions) const;
  // Of a recorded schedule.
  double step_seconds(const Schedule& schedule, const Decisions& decisions) const;

 private:
  // One micro-batch and head chunk, recorded with every layer's input alone kept (or as the user
  // fixed it).
  struct Config {
    Decisions decisions;
    int64_t bound = 0;       // of the arena as recorded
    int64_t host = 0;        // of the host's arena
    double seconds = 0;      // of a step as recorded
    int64_t base = 0;        // residents
    int64_t others = 0;      // the arena that other programs, and this one outside the layers, need
    int64_t tail = 0;        // between the passes, beyond what layers keep
    double outside = 0;      // seconds of a step outside the layers
    double micro_steps = 1;  // of a step
  };
  // What becomes of gradients: their dtype, and whether backward consumes them.
  using Gradients = std::pair<DType, bool>;
  Decisions decide(int64_t micro, int64_t head_rows, Gradients gradients,
                   const std::string& recompute) const;
  std::vector<Gradients> gradients(int64_t micro) const;
  std::vector<int64_t> micros() const;
  std::vector<int64_t> head_chunks(int64_t micro) const;
  Config* config(int64_t micro, int64_t head_rows, Gradients gradients,
                 const std::string& recompute);
  const BlockOptions& block_options(const Decisions& decisions);
  Choice solve(const Config& config, int64_t room, double tolerance, double* bound);

  const PlanRequest& request_;
  std::unique_ptr<CostModel> own_cost_;
  const CostModel* cost_;
  bool layers_ = false;  // they are chosen here
  // What all layers recompute as recorded: one, or where the user offloads what may be combined
  // with that.
  std::vector<std::string> presets_;
  std::vector<Choice> least_;
  std::map<std::tuple<int64_t, int64_t, Gradients, std::string>, std::unique_ptr<Config>> configs_;
  std::map<std::pair<int64_t, Gradients>, BlockOptions> blocks_;  // by micro-batch and gradients
};

}  // namespace snug
