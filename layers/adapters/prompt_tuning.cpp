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

std::vector<AdapterField> prompt_fields() {
  using C = PeftConfig;
  // clang-format off
  return {
      {.key = "num_virtual_tokens", .run_key = "num_virtual_tokens", .value = &C::num_virtual_tokens,
       .least = 1, .below = 1 << 20,
       .said = {.doc = "how many tokens of their own every sequence begins with, beside the max_length that it has",
                .example = "8", .least = 1, .most = (1 << 20) - 1}},
      {.key = "prompt_tuning_init", .run_key = "prompt_tuning_init", .value = &C::prompt_tuning_init,
       .words = "RANDOM TEXT SAMPLE_VOCAB", .advice = "the config that PEFT wrote",
       .said = {.doc = "what these rows begin as: RANDOM, numbers of deviation 1; TEXT, the rows of the tokens of "
                       "prompt_tuning_init_text, from its beginning again where it is shorter",
                .example = "TEXT", .choices = "RANDOM TEXT", .refused = "SAMPLE_VOCAB"}},
      {.key = "prompt_tuning_init_text", .run_key = "prompt_tuning_init_text",
       .value = &C::prompt_tuning_init_text, .also = [](std::string_view) { return true; },
       .said = {.doc = "a text as the model's tokenizer encodes it, special tokens too",
                .example = "Answer the question.", .unset = "null"}}};
  // clang-format on
}

std::vector<AdapterComplaint> check_first_text(const AdapterFields& c) {
  std::vector<AdapterComplaint> list;
  const bool text = c.prompt_tuning_init == "TEXT";
  if (text && c.prompt_tuning_init_text.empty())
    list.push_back({"prompt_tuning_init_text beside prompt_tuning_init: TEXT", "prompt_tuning_init",
                    ", and none",
                    "prompt_tuning_init_text=\"Answer the question:\", or "
                    "prompt_tuning_init=RANDOM"});
  if (!text && !c.prompt_tuning_init_text.empty())
    list.push_back({"prompt_tuning_init: TEXT beside prompt_tuning_init_text",
                    "prompt_tuning_init_text", "", "prompt_tuning_init=TEXT"});
  return list;
}

}  // namespace

const AdapterMethod& prompt_tuning_method() {
  using C = PeftConfig;
  static const AdapterMethod row{
      .name = "prompt_tuning",
      .words = "prompt_tuning",
      .type = "PROMPT_TUNING",
      .title = "prompt-tuning",
      .doc = "prompt_tuning, num_virtual_tokens rows in front of every sequence, of causal models",
      .fields = prompt_fields(),
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
          },
      .check = check_first_text};
  return row;
}

}  // namespace snug
