// The table of decisions: what any row promises, whichever decision it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "engine/core/error.h"
#include "tests/support/errors.h"
#include "tools/config/keys.h"
#include "tools/planner/decision_table.h"

namespace snug {
namespace {

// Values of a decision other than one another, as a plan.json may have them.
std::vector<nlohmann::json> values_of(const Decision& row) {
  if (std::holds_alternative<int64_t Decisions::*>(row.decided)) return {3, 64};
  if (std::holds_alternative<LayerWords Decisions::*>(row.decided))
    return {"none", "0-1: mlp, 2: none"};
  if (std::holds_alternative<DType Decisions::*>(row.decided)) return {"f32", "bf16"};
  if (std::holds_alternative<WeightPacking Decisions::*>(row.decided))
    return {"none", "forward", "both"};
  if (const auto* home = std::get_if<const ResidenceKey*>(&row.decided)) {
    if ((*home)->filed != nullptr) return {(*home)->device, "cpu", "disk"};
    return {(*home)->device, "cpu"};
  }
  return {row.values[0], row.values[1]};
}

Decisions reads(const Decision& row, const nlohmann::json& value) {
  Decisions d;
  row.read({{row.name, value}}, "plan.json / decisions", "another file", d);
  return d;
}

TEST(DecisionTable, ADecisionGoesThroughFilesAndRequestsUnchanged) {
  for (const Decision& row : decision_table()) {
    std::set<std::string> words;
    for (const nlohmann::json& value : values_of(row)) {
      SCOPED_TRACE(std::string(row.name) + " " + value.dump());
      const Decisions d = reads(row, value);
      EXPECT_EQ(row.json(d), value);
      EXPECT_TRUE(row.same(d, reads(row, value)));
      nlohmann::json all;
      add_decisions(all, d);
      EXPECT_EQ(all.at(row.name), value);
      PlanRequest r;
      row.fix(d, r);
      EXPECT_EQ(row.asked_for(r), value.is_number() ? value.dump() : value.get<std::string>());
      EXPECT_TRUE(words.insert(row.in_words(d)).second) << row.in_words(d);
      Decisions copied, decided, set;
      row.copy(d, copied);
      row.decide(r, decided);
      row.set(row.text(d), set);
      for (const Decisions* same : {&copied, &decided, &set})
        EXPECT_TRUE(same_decisions(*same, d)) << row.text(*same);
      for (const nlohmann::json& other : values_of(row))
        EXPECT_EQ(same_decisions(d, reads(row, other)), value == other) << other;
    }
  }
}

TEST(DecisionTable, EachHasANameAndAKeyThatIsThere) {
  std::set<std::string> names;
  for (const Decision& row : decision_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    if (row.key == nullptr) continue;
    ASSERT_NE(find_key(row.key), nullptr) << row.key;
    RunConfig config;
    PlanRequest r;
    row.ask(config, r);
    EXPECT_EQ(row.asked_for(r), "") << row.name << ": left open unless it is set";
  }
}

TEST(DecisionTable, ARequestOfNoConfigurationAsksForNothingOfTheHostAndTriesNothing) {
  const PlanRequest r;
  int tried = 0;
  for (const Decision& row : decision_table()) {
    const bool host = std::holds_alternative<const ResidenceKey*>(row.decided);
    tried += row.tries != nullptr ? 1 : 0;
    if (host || row.tries != nullptr) {
      EXPECT_EQ(row.asked_for(r), row.text(Decisions())) << row.name;
    }
  }
  EXPECT_GE(tried, 1);
}

TEST(DecisionTable, FilesThatLackOneHaveItsFirstValueOrAreRefused) {
  for (const Decision& row : decision_table()) {
    SCOPED_TRACE(row.name);
    Decisions d;
    const auto lacking = [&] { row.read({{"else", 1}}, "plan.json", "another file", d); };
    if (row.absent == nullptr) {
      EXPECT_THROW(lacking(), Error);
    } else {
      lacking();
      EXPECT_EQ(row.text(d), row.absent);
    }
    if (!std::holds_alternative<LayerWords Decisions::*>(row.decided)) {
      EXPECT_THROW(reads(row, "some"), Error);
      EXPECT_THROW(reads(row, -1), Error);
    }
  }
}

TEST(DecisionTable, ChangesAreSaidInItsOrder) {
  Decisions a, b;
  a.micro_batch = 4;
  b.micro_batch = 8;
  b.update_in_backward = true;
  b.recompute = "norms";
  b.offload_optimizer = true;
  EXPECT_EQ(
      changed_decisions(a, b),
      "micro-batches of 8 instead of 4, updates in backward, recompute norms, the optimizer's "
      "state with the host");
  EXPECT_EQ(changed_decisions(b, b), "");
  // A word or a number says what it was, in either direction; a state of its own does not.
  for (const Decision& row : decision_table()) {
    Decisions other;
    bool says = true;
    if (const auto* of = std::get_if<int64_t Decisions::*>(&row.decided))
      other.*(*of) += 3;
    else if (const auto* type = std::get_if<DType Decisions::*>(&row.decided))
      other.*(*type) = other.*(*type) == DType::bf16 ? DType::f32 : DType::bf16;
    else if (const auto* packing = std::get_if<WeightPacking Decisions::*>(&row.decided))
      other.*(*packing) = WeightPacking::both;
    else if (const auto* flag = std::get_if<bool Decisions::*>(&row.decided))
      other.*(*flag) = !(other.*(*flag)), says = false;
    else
      continue;
    const Decisions first;
    const std::string text = changed_decisions(first, other), was = " instead of ";
    EXPECT_EQ(text, row.in_words(other) + (says ? was + row.text(first) : "")) << row.name;
  }
}

}  // namespace
}  // namespace snug
