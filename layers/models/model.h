// Model: embedding, blocks, final norm and head, put together from a ModelSpec. Immutable; what a
// pass creates lives in a ModelPass that the caller owns.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/core/precision.h"
#include "engine/data/front_tokens.h"
#include "layers/ops/pair_loss.h"
#include "layers/parts/block.h"
#include "layers/parts/embedding.h"
#include "layers/parts/head.h"
#include "layers/parts/norm.h"
#include "layers/parts/spec.h"

namespace snug {

// What happens to the slots of each block between forward and backward; see recompute.h.
using LayerPolicies = std::vector<std::vector<SlotPolicy>>;

// The passes of one micro-batch.
struct ModelPass {
  std::unique_ptr<Offload>
      offload;  // what is in flight to the host and back; null: nothing ever is
  std::optional<Pass> embedding, head;  // the head's where it reads rows
  std::vector<Pass> blocks;
  Dims dims;
  Tensor document_end;  // of the batch, where attention looks forward
};

// Pairs of sequences of a micro-batch, whose preference is learned (layers/ops/pair_loss.h).
struct PairBatch {
  View pairs;      // (P,8) i32; undefined: none, every token is learned
  View reference;  // (P,2) f32, written by Model::reference; undefined: the loss has none
  View logps;      // (P,2) or (P,3) f32, written
  PairLoss loss;
};

// One micro-batch. Sequences lie back to back in B windows of T tokens; where they begin is in
// Runtime::document_start.
struct ModelBatch {
  View tokens;            // (B,T) i32
  View targets;           // (B*T) i32, -100 ignored: of a causal LM
  View token_types = {};  // (B,T) i32; undefined: all 0
  HeadBatch head = {};    // of a head that reads rows
  PairBatch pairs = {};   // of a causal LM
};

class Model {
 public:
  // Parameters of which `frozen` says so, by their name in the table, stay as they are (freeze.h):
  // nothing runs in backward below the first one that is trained. The linear layers that `adapters`
  // names have one (layers/parts/adapter.h). `ranks` that cut the table: ParamTable. Frozen weights for
  // which `codes` has rows rest in codes.
  Model(const ModelSpec& spec, const Precision& precision,
        std::function<bool(std::string_view)> frozen = {}, Adapters adapters = {}, int ranks = 1,
        std::shared_ptr<const WeightCodes> codes = nullptr);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelSpec& spec() const { return spec_; }
  const Precision& precision() const { return precision_; }
  const ParamTable& params() const { return params_; }
  const Adapters& adapters() const { return adapters_; }
  // Virtual tokens V, V+1, ..., which every sequence of a batch begins with; 0: none.
  FrontTokens front() const { return {front_tokens(adapters_), spec_.V, front_asked(adapters_)}; }
  // The head that reads rows; null for a causal LM.
  const RowsHead* rows_head() const { return rows_head_ ? &*rows_head_ : nullptr; }
  // The lowest layer that backward reaches; L if it reaches none.
  int64_t first_backward() const { return first_backward_; }
  int64_t backward_layers() const { return spec_.L - first_backward_; }
  const Block& block(int64_t layer) const { return *blocks_[static_cast<size_t>(layer)]; }

  // A pass with these policies, one vector of slot policies a layer; see recompute.h.
  ModelPass make_pass(const LayerPolicies& policies) const;
  // Slots of inference: nothing is kept whatever the policy says.
  ModelPass make_inference_pass() const;

  // A micro-batch in three calls. forward: the last block's output x (N,C). loss: adds to
  // StepState.loss_sum and loss_tokens, with the gradient of sum(loss) * inverse_tokens * loss_scale
  // of the head's parameters, and gives that of x; undefined: nothing before the head is trained.
  // backward: of all else, dx as loss gave it, undefined too: it ends what the pass holds. Gradients of
  // parameters go to rt.grads. loss and backward follow a forward in PassMode::train, each once.
  Tensor forward(Context& ctx, Runtime& rt, ModelPass& pass, const ModelBatch& batch,
                 PassMode mode) const;
  Tensor loss(Context& ctx, Runtime& rt, ModelPass& pass, const ModelBatch& batch,
              int64_t head_rows, Tensor x) const;
  void backward(Context& ctx, Runtime& rt, ModelPass& pass, Tensor dx) const;
  // Adds the losses of one batch to StepState.loss_sum and loss_tokens.
  void evaluate(Context& ctx, Runtime& rt, ModelPass& pass, const ModelBatch& batch,
                int64_t head_rows) const;
  // Log probabilities of the batch's sequences as the model without its adapters has them, to
  // pairs.reference.
  void reference(Context& ctx, Runtime& rt, ModelPass& pass, const ModelBatch& batch,
                 int64_t head_rows) const;
  // Normed hidden states (N,C) of the last block; with rt.cache, of tokens at StepState.position
  // on.
  Tensor hidden(Context& ctx, Runtime& rt, ModelPass& pass, const View& tokens,
                PassMode mode) const;
  // logits (rows,Vp) f32 of hidden states (rows,C); columns V..Vp are not probabilities.
  void logits(Context& ctx, Runtime& rt, const View& logits, const View& hidden) const;

  // Keys and values for B sequences of up to P tokens, at most `chunk` fed at once. Call inside a
  // resident program.
  KvCache make_cache(Context& ctx, int64_t B, int64_t P, int64_t chunk) const;

  // 6 FLOPs a matmul parameter and token, plus attention's 6 L H D T a token: of the T x T pairs
  // the half that causal queries see. Counts for MFU that take all of them say 12 L H D T.
  double flops_per_token(int64_t T) const;

 private:
  ModelPass make_pass_of_ends() const;
  // Begin to bring what the host has of a layer, if there is such a layer: its weights; and for
  // backward its gradients' sums and the slots of its pass.
  void fetch_weights(Context& ctx, Runtime& rt, int64_t layer) const;
  void fetch(Context& ctx, Runtime& rt, ModelPass& pass, int64_t layer) const;
  Tensor run_blocks(Context& ctx, Runtime& rt, ModelPass& pass, const View& tokens,
                    PassMode mode) const;
  // Of hidden states behind the last norm: losses of tokens, and the log sums that go with them.
  void token_losses(Context& ctx, Runtime& rt, const View& nll, const View& lse, const View& norm,
                    const ModelBatch& batch, int64_t head_rows, const View& state) const;
  // Loss of pairs and backward of the head, to the gradient of `norm`.
  void train_pairs(Context& ctx, Runtime& rt, const ModelBatch& batch, int64_t head_rows,
                   const View& norm, const View& dnorm, const GradView& dweight) const;
  // Loss and backward of a causal LM, to the gradient of the last block's output x.
  Tensor train_causal(Context& ctx, Runtime& rt, ModelPass& pass, const ModelBatch& batch,
                      int64_t head_rows, const Tensor& x) const;

  ModelSpec spec_;
  Precision precision_;
  Adapters adapters_;
  ParamTable params_;
  int64_t first_backward_ = 0;  // the lowest layer with a backward; L: none has one
  std::optional<Embedding> embedding_;
  std::optional<RowsHead> rows_head_;
  int lm_head_ = -1;
  std::vector<std::unique_ptr<Block>> blocks_;
  NormParams final_norm_;
  Name n_pair_loss_, n_dnll_;
  Name n_document_end_, n_final_, n_normf_, n_meanf_, n_rstdf_, n_dnormf_, n_dx_, n_nll_, n_lse_;
  Name scope_embedding_, scope_head_;
  std::vector<Name> n_cache_k_, n_cache_v_;
};

// Draws every parameter as its ParamInfo says into a flat f32 view; a value depends on (seed,
// parameter, element) alone. Padded rows are zero.
void init_parameters(const ParamTable& table, const View& flat, uint64_t seed, int threads);
// One of them into the elements that it has, zeros before.
void init_parameter(const ParamTable& table, int param, float* values, uint64_t seed,
                    int threads = 1);
// The same on any place, to where they rest (f32, or the dtype that layers read: rounded once),
// written through the context, a parameter at a time.
void init_parameters(Context& ctx, const ParamTable& table, const RestingWeights& weights,
                     uint64_t seed);

}  // namespace snug
