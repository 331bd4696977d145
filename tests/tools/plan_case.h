// What the tests of plans that may take the host's memory share.
#pragma once

#include <stdexcept>
#include <string>

#include "tools/planner/plan.h"

namespace snug::test {

// Layers of two kinds, a sandwich of norms: what recompute has of every slot that a block may have.
inline constexpr const char* kTwoKinds =
    R"({"type": "gemma3_text", "vocab_size": 130, "max_position_embeddings": 64, "hidden_size": 48,
        "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 4, "sliding_window_pattern": 3})";

// A device that computes so many FLOPs a second, beside a link of so many bytes.
inline CostModel described_device(double flops, double link) {
  return CostModel::described("a device", {.fp32_matrix = flops,
                                           .bf16_matrix = flops,
                                           .fp32_attention = flops / 2,
                                           .bf16_attention = flops / 2,
                                           .vector = flops / 4,
                                           .memory = 1e12,
                                           .link = link,
                                           .op = 1e-8});
}

// One whose memory and vectors are a tenth of its matrices', so that what is fused or read twice
// shows.
inline CostModel even_device(double flops, double link) {
  return CostModel::described("a device", {.fp32_matrix = flops,
                                           .bf16_matrix = flops,
                                           .fp32_attention = flops,
                                           .bf16_attention = flops,
                                           .vector = flops / 10,
                                           .memory = flops / 10,
                                           .link = link,
                                           .op = 1e-8});
}

// The same beside a host that computes, by one rate of all it does.
inline CostModel device_with_host(double link, double host) {
  CostModel cost = even_device(1e11, link);
  cost.set_host(CostModel::described("its host", {.fp32_matrix = host,
                                                  .bf16_matrix = host,
                                                  .fp32_attention = host,
                                                  .bf16_attention = host,
                                                  .vector = 4 * host,
                                                  .memory = host,
                                                  .link = host,
                                                  .op = 1e-8}));
  return cost;
}

// Slots and the optimizer's state may go to the host; all else is as it is unless set.
inline PlanRequest host_request(const Model& model, const CostModel& cost, int64_t T,
                                int64_t batch) {
  PlanRequest r;
  r.model = &model;
  r.T = T;
  r.global_batch = batch;
  r.max_grad_norm = 1.0;
  r.offload = r.offload_optimizer = "auto";
  r.use_host = true;
  r.cost = &cost;
  return r;
}

// The request with the keys of an offer, as the command line would set them.
inline PlanRequest with_keys(PlanRequest r, const Offer& offer) {
  for (size_t at = 0; at < offer.keys.size();) {
    const size_t end = std::min(offer.keys.find(' ', at), offer.keys.size());
    const size_t equals = offer.keys.find('=', at);
    const std::string key = offer.keys.substr(at, equals - at);
    const std::string value = offer.keys.substr(equals + 1, end - equals - 1);
    const int64_t number =
        value.find_first_not_of("0123456789") != std::string::npos ? 0 : std::stoll(value);
    if (key == "recompute")
      r.recompute = value;
    else if (key == "save_buffer")
      r.save_buffer = number;
    else if (key == "per_device_train_batch_size")
      r.micro_batch = number;
    else if (key == "per_device_eval_batch_size")
      r.eval_batch = number;
    else if (key == "head_rows")
      r.head_rows = number;
    else if (key == "max_length")
      r.T = number;
    else if (key == "offload")
      r.offload = value;
    else if (key == "offload_optimizer")
      r.offload_optimizer = value;
    else if (key == "offload_params")
      r.offload_params = value;
    else if (key == "offload_gradients")
      r.offload_gradients = value;
    else if (key == "max_grad_norm")
      r.max_grad_norm = static_cast<double>(number);
    else if (key == "allow") {
      r.bf16_gradients = value.find("bf16_gradients") != std::string::npos;
      if (value.find("no_master") != std::string::npos) r.model = r.without_master();
    } else if (key == "host_memory") {
      r.use_host = true;
      r.host_budget = number;
    } else {
      throw std::invalid_argument(offer.keys);
    }
    at = end + 1;
  }
  return r;
}

}  // namespace snug::test
