#include "tools/planner/rank_words.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/core/units.h"
#include "parallel/nccl_transport.h"
#include "parallel/rank_comm.h"

namespace snug {
namespace {

// What a stage asks for.
const char* zero_cost(int zero) {
  if (zero == 0) return "sums of gradients that all keep, and every rank updates all";
  if (zero == 1) return "as much as sums that all keep, and every rank updates its piece";
  if (zero == 2) return "gradients are summed in every micro-step";
  return "gradients are summed and weights gathered, twice, in every micro-step";
}

}  // namespace

const char* transport_word(Place place) {
  return place == Place::cpu ? "mpi" : "nccl";
}

const char* zero_words(const Decisions& d) {
  if (d.ranks <= 1) return "";
  if (d.zero == 0) return ", each with all states";
  if (d.zero == 1) return ", each with its piece of the optimizer's states";
  if (d.zero == 2) return ", each with its piece of the optimizer's states and gradients";
  return ", each with its piece of the optimizer's states, gradients and weights";
}

nlohmann::json collectives_json(const Plan& plan) {
  return {{"bytes_a_step_and_rank", plan.collective_bytes},
          {"predicted_seconds", plan.collective_seconds},
          {"predicted_seconds_exposed", plan.collective_exposed}};
}

std::string rank_text(const Plan& plan) {
  if (plan.decisions.ranks <= 1 || plan.step_seconds <= 0) return "";
  return fmt::format(
             "\n  of a step each rank reads {} from others, predicted {:.1f} ms{}, {:.1f} % of it; "
             "zero {}: "
             "{}",
             human_bytes(plan.collective_bytes), 1e3 * plan.collective_seconds,
             plan.decisions.in_turn ? std::string()
                                    : fmt::format("; what compute does not hide is {:.1f} ms",
                                                  1e3 * plan.collective_exposed),
             100 * plan.collective_exposed / plan.step_seconds, plan.decisions.zero,
             zero_cost(plan.decisions.zero)) +
         (plan.decisions.staged
              ? fmt::format("\n  ranks exchange {}: sums wait in buffers of {} at most, which are "
                            "workspace{}",
                            plan.place == Place::cpu ? "messages by Open MPI" : "by NCCL",
                            human_bytes(kStagingBytes),
                            plan.place == Place::cuda
                                ? fmt::format("; of the runtime {} are NCCL's, an estimate",
                                              human_bytes(nccl_bytes(plan.decisions.ranks)))
                                : std::string())
              : std::string());
}

}  // namespace snug
