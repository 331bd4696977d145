// A session that evaluates or generates with the weights of a model folder.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/text/tokenizer.h"
#include "layers/models/family.h"
#include "tools/planner/plan.h"

namespace snug {

struct InferenceOptions {
  std::string model;    // a folder with weights
  std::string adapter;  // a PEFT folder for it; empty: none
  // How linear weights of the blocks rest (base_form() of layers/models/peft.h); auto: as those that
  // the adapter was trained over, else full.
  std::string base_form = "auto";
  std::string task = "auto";  // or a head of the folder's family, see HeadKind
  std::string precision = "fp32";
  std::string device = "auto";  // device_choice.h
  int64_t memory = 0;           // bytes; 0: what is free less a reserve
  int64_t host_budget = 0;      // what that is of this machine's RAM; 0 on a GPU. Set for `sizes`
  int64_t threads = 0;          // 0: auto
  // Virtual tokens of the adapter, which T and kv_length do not count. Set for `sizes`, whose spec has so many
  // positions fewer.
  FrontTokens front = {};
  int64_t T = 0;  // evaluation: tokens of a sample; 0: none
  int64_t eval_batch = 0;
  bool packing_boundaries = false;
  int64_t rows_per_window = 0;  // of a head that reads rows
  PairDecision pairs;           // of a causal LM whose rows are pairs
  bool token_logits = false;    // of Decisions
  int64_t kv_length = 0;        // generation: 0: none
  int64_t kv_rows = 1;          // sequences decoded together
  // The smallest number of rows to do with if so many do not fit; 0: kv_rows and no fewer.
  int64_t kv_rows_least = 0;
};

struct Inference {
  std::optional<Tokenizer> tokenizer;
  std::unique_ptr<KernelTable> kernels;  // before the session, which points to it
  std::unique_ptr<Model> model;
  Plan plan;
  std::unique_ptr<Session> session;
};

// The spec that a folder's config.json and options.task say. Throws usage and data.
ModelSpec inference_spec(const InferenceOptions& options);

// Plans, refuses with out_of_memory, reserves and loads. Throws usage if the folder's tokenizer has
// more tokens than the model, and data if it has no weights for a head: it was not trained. `sizes`,
// when given, is called once the model is known and may set T, eval_batch, kv_length and the rows.
Inference open_inference(InferenceOptions options,
                         const std::function<void(const ModelSpec&, const std::optional<Tokenizer>&,
                                                  InferenceOptions&)>& sizes = nullptr);

}  // namespace snug
