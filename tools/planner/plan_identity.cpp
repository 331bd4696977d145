// What makes a plan this plan: the facts that it was made for, its seal, the hash that must come
// out again; and the machine's instruction set.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/blas/matmul_cpu.h"
#include "engine/core/error.h"
#include "engine/io/fingerprint.h"
#include "layers/models/fingerprint.h"
#include "optim/settings.h"
#include "tools/planner/plan.h"
#include "tools/planner/rank_words.h"
#include "tools/session/device_choice.h"

namespace snug {

const char* plan_instruction_set() {
  if (matmul_available(MatmulKernel::amx_bf16)) return "amx_bf16";
  if (matmul_available(MatmulKernel::avx512_bf16)) return "avx512_bf16";
  if (matmul_available(MatmulKernel::avx512)) return "avx512";
  if (matmul_available(MatmulKernel::avx2)) return "avx2";
  return "generic";
}

PlanFacts plan_facts(const PlanRequest& r) {
  PlanFacts facts = {
      {"model", model_fingerprint(r.model->spec())},
      {"device", device_word(r.settings.target)},
      {"precision", r.settings.tf32 ? "tf32" : to_string(r.model->precision())},
      {"optim", optimizer_text(r.optimizer)},
      {"max_length", std::to_string(r.T - r.model->front().count)},
      {"global_batch_size", std::to_string(r.global_batch)},
      {"packing_boundaries", fmt::format("{}", r.packing_boundaries)},
      {"rows_per_window", fmt::format("{}", r.rows_per_window)},
      {"eval_data or eval_fraction", r.evaluate ? "some" : "none"},
      {"allow=[bf16_gradients]", r.bf16_gradients ? "given" : "not given"},
      {"allow=[stale_update]", r.stale_update ? "given" : "not given"},
      {"allow=[no_master]", no_master(r.model->precision()) ? "given" : "not given"},
      {"max_grad_norm", r.max_grad_norm > 0 ? "above 0" : "0"},
      {"save_buffer", fmt::format("{} B", r.save && r.global_batch > 0 ? save_ring_bytes(r) : 0)},
      {"sample_prompt and sample_tokens",
       r.kv_length > 0 ? fmt::format("{} tokens", r.kv_length) : "none"}};
  if (r.ranks > 1) facts["ranks"] = std::to_string(r.ranks);
  if (r.ranks > 1) facts["zero"] = std::to_string(r.zero);
  if (r.staged) facts["transport"] = transport_word(r.settings.target);
  if (r.pairs.any())
    facts["loss_type"] =
        fmt::format("{}, {} {} in a window",
                    r.pairs.reward ? std::string_view("rewards") : facts_of(r.pairs.loss.kind).name,
                    r.pairs.per_window, r.pairs.nouns());
  // Some settings bring states of their own.
  if (!r.optimizer.args.empty()) facts["optim_args"] = optim_args_text(r.optimizer.args);
  return facts;
}

std::string plan_seal(const nlohmann::json& plan) {
  nlohmann::json sealed = plan;
  sealed.erase("seal");
  sealed.erase("planning_seconds");
  return fingerprint_text(
      fingerprint(sealed.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
}

void check_followed(const PlanRequest& r, const Plan& plan) {
  const FollowedPlan& f = r.follow;
  if (plan.attention != f.attention)
    fail(ErrorCode::usage, fmt::format("attention as in the plan {}: {}", f.path, f.attention),
         plan.attention, "the machine it was made on, or plan=null to plan anew");
  const std::string hash = plan_hash(plan);
  if (hash != f.hash)
    fail(ErrorCode::usage, fmt::format("the programs of the plan {}: hash {}", f.path, f.hash),
         fmt::format("hash {}: this configuration, or this version of Snug, records others", hash),
         "the configuration it was made with, or plan=null to plan anew");
}

}  // namespace snug
