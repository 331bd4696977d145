// Prompt tuning (Lester et al., arXiv:2104.08691): n rows of C numbers in front of every sequence, read as the
// rows of tokens are, which are all that is trained. Sequences are n longer, positions begin with the first of
// them, and nothing is asked of them; the last of them is asked for the first token, as PEFT has it.
#include <fmt/format.h>

#include "engine/core/error.h"
#include "layers/adapters/rows.h"
#include "layers/parts/wiring.h"

namespace snug {
namespace {

class PromptTuning : public AdapterKind {
 public:
  std::vector<AdapterParam> params(const AdaptedLayer& layer) const override {
    return {{.name = layer.name + ".prompt_embeddings",
             .end = "prompt_embeddings",
             .shape = {layer.adapter->front, layer.in},
             .init = Init::normal,
             .init_std = 1,
             .piece = 0,
             .whole_name = true}};
  }
  TokensInFront in_front(Wiring& w, const AdaptedLayer& layer) const override {
    return {layer.adapter->front, add_adapter_param(w, params(layer).front())};
  }
  MergedModule merged(const AdaptedLayer&, size_t, const TensorValues&) const override {
    fail(ErrorCode::internal, "an adapter that comes to a weight", "virtual tokens", "report this");
  }
};

const PromptTuning kPromptTuning;

}  // namespace

const AdapterMethod& prompt_tuning_method() {
  using C = PeftConfig;
  static const AdapterMethod row{
      .name = "prompt_tuning",
      .words = "prompt_tuning",
      .type = "PROMPT_TUNING",
      .title = "prompt-tuning",
      .doc = "prompt_tuning, num_virtual_tokens rows in front of every sequence, of causal models",
      .fields = {{"num_virtual_tokens", "num_virtual_tokens", &C::num_virtual_tokens, 1, 1 << 20},
                 {"prompt_tuning_init", "prompt_tuning_init", &C::prompt_init, 0, 0,
                  "RANDOM TEXT SAMPLE_VOCAB", "", nullptr, "the config that PEFT wrote"},
                 {"prompt_tuning_init_text", "prompt_tuning_init_text", &C::prompt_init_text, 0, 0,
                  "", "", [](std::string_view) { return true; }}},
      .shared = "",
      // Of the model, which says them too.
      .indifferent =
          "token_dim num_transformer_submodules num_attention_heads num_layers "
          "tokenizer_name_or_path tokenizer_kwargs",
      .refused = "modules_to_save",
      .markers = {".prompt_embeddings"},
      .ranked = false,
      .apart = "whose virtual tokens lie in front of every sequence",
      .front = true,
      .kind = [](const C&) -> const AdapterKind& { return kPromptTuning; },
      .settle = [](const C&, double, AdapterPiece&, LinearAdapter&) {},
      .text =
          [](const C& c) {
            return fmt::format("prompt_tuning of {} tokens", c.num_virtual_tokens);
          }};
  return row;
}

}  // namespace snug
