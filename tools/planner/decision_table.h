// The decisions of a plan as a table: of each its name, its key, its field in what is asked for and in
// what is decided, the words for it, and what becomes of it at a resume. Requests, plan files,
// checkpoints, ladders, comparisons and inspections walk the table and spell no decision. What a
// decision does stands in Session, which values of it are looked at in PlanSearch.
//
//   RunConfig -- ask --> PlanRequest -- search --> Decisions -- json --> plan.json, checkpoint
//                             ^--------------- fix ---------------- read ------'
//
// What follows from the configuration alone (max_length, kv_length, ranks ...) is no decision.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tools/config/run_config.h"
#include "tools/planner/plan.h"
#include "tools/planner/residence.h"

namespace snug {

// What a resumed run does about a decision of its checkpoint: decides anew; decides anew, and the
// checkpoint says what it was; or holds to it unless the permission of its name is given.
enum class AtResume { free, told, pinned };

struct Decision {
  const char* name;   // in plan.json, ladders and checkpoints
  const char* key;    // of the configuration; null: there is none
  const char* words;  // "micro-batches of {}"; of what is so or not: "updates {}"
  // A residence has its other fields in its own row (residence.h).
  std::variant<int64_t Decisions::*, bool Decisions::*, LayerWords Decisions::*, DType Decisions::*,
               WeightPacking Decisions::*, const ResidenceKey*>
      decided;
  std::variant<std::monostate, int64_t PlanRequest::*, std::string PlanRequest::*,
               LayerWords PlanRequest::*, std::optional<bool> PlanRequest::*,
               std::optional<DType> PlanRequest::*, std::optional<WeightPacking> PlanRequest::*>
      asked = {};
  // Where the configuration has another field than the request; both have those of Asked.
  std::variant<std::monostate, int64_t RunConfig::*, std::string RunConfig::*> given = {};
  const char* values[2] = {};    // words of what is not so, and of what is
  int64_t least = 0;             // of a number
  const char* absent = nullptr;  // value in files that do not name it; null: they have to
  AtResume at_resume = AtResume::free;
  // The permission without which the planner has its first value alone; null: it needs none.
  const char* permission = nullptr;
  bool at_most = false;  // the key says the most: all that there is may be less
  // In a line of a ladder, where it is not the first value: "embedding with the host"; null: nothing.
  const char* beside = nullptr;
  // Throws usage or unsupported where what is asked for cannot be; null: it always can.
  void (*check)(const RunConfig& config, const PlanRequest& r) = nullptr;
  // Of a decision that frees memory for time: what else than its first value is looked at in training
  // where it is left open, each in a search of its own (PlanSearch::with_tried). Null: the search has
  // ways of its own for it. And whether what blocks run depends on it.
  std::vector<std::string> (*tries)(const PlanRequest& r) = nullptr;
  bool of_blocks = true;

  std::string text(const Decisions& d) const;  // as files have it
  nlohmann::json json(const Decisions& d) const;
  // "micro-batches of 8", "the optimizer's state with the host".
  std::string in_words(const Decisions& d) const;
  bool same(const Decisions& a, const Decisions& b) const;
  // As a file says it. Throws data naming `where`.
  void read(const nlohmann::json& file, const std::string& where, const std::string& advice,
            Decisions& d) const;
  void set(const std::string& value, Decisions& d) const;  // as files have it
  void copy(const Decisions& from, Decisions& to) const;
  // What the configuration says, into the request; and what is decided already, so that nothing is
  // left to choose.
  void ask(const RunConfig& config, PlanRequest& r) const;
  void fix(const Decisions& d, PlanRequest& r) const;
  // What is asked for, or the first value.
  void decide(const PlanRequest& r, Decisions& d) const;
  // As text; empty: it is left open.
  std::string asked_for(const PlanRequest& r) const;
  std::string given_in(const RunConfig& config) const;  // 0 and auto: open
};

// In the order in which texts name them.
std::span<const Decision> decision_table();

// Each by name, as in plan.json.
void add_decisions(nlohmann::json& to, const Decisions& d);
bool same_decisions(const Decisions& a, const Decisions& b);
// "micro-batches of 8 instead of 4, updates in backward": what differs, as `to` has it.
std::string changed_decisions(const Decisions& from, const Decisions& to);

}  // namespace snug
