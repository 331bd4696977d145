// The ladder: what each budget buys. The same request planned under a list of budgets.
//
//   tokens/s ^            ____________  rung: budget 12 GiB
//            |       ____|
//            |  ____|
//            | |   rung: budget 4 GiB; below it nothing fits
//            +-----------------------> budget
//
// Predicted throughput never falls as the budget grows.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/planner/plan.h"

namespace snug {

struct LadderRung {
  int64_t budget = 0;  // bytes: the smallest of the list that has this plan
  bool fits = false;
  int64_t engine_bytes = 0, runtime_bytes = 0;
  Decisions decisions;
  int64_t host_bytes = 0;
  double tokens_per_second = 0;  // predicted; 0: no training
  std::string sentence;          // plan_sentence()
};

struct Ladder {
  std::vector<LadderRung> rungs;   // by growing budget
  int64_t minimum_bytes = 0;       // the smallest budget that works
  int64_t minimum_host_bytes = 0;  // what it takes of the host, if host_memory allows less; else 0
  std::string cost;                // what the predictions rest on
  int64_t left_out = 0;            // budgets with the plan of the rung before
  int64_t least = 0, most = 0;     // of the budgets that were asked for
};

// Plans `request` under every budget (bytes, engine and runtime), in growing order and each once.
Ladder make_ladder(const PlanRequest& request, std::vector<int64_t> budgets);
// The same with a search that was made for `request`.
Ladder make_ladder(const PlanRequest& request, std::vector<int64_t> budgets, PlanSearch& search);
// Neighbours of the same engine bytes and decisions become the first of them: the steps of the
// stairs. Budgets that do not fit stay, each by itself: who asked for one sees that it does not.
Ladder staircase(const Ladder& ladder);

// So many budgets from `least` to `most`, both included, each `most/least` to an equal power above
// the one before, in whole MiB.
std::vector<int64_t> spread_budgets(int64_t least, int64_t most, int64_t count);
// "2GiB..24GiB" (33 of them), "2GiB..24GiB/9" or "2GiB,4GiB,8GiB". Throws usage.
std::vector<int64_t> parse_sweep(std::string_view text);

// ", with host_memory of 4096 B (4.00 KiB)": what the smallest budget needs of the host; or empty.
std::string with_host_memory(const Ladder& ladder);
// A table for people; an array of rungs.
std::string ladder_text(const Ladder& ladder);
nlohmann::json ladder_json(const Ladder& ladder);

}  // namespace snug
