// GPT-2 as GGUF: the names, keys and limits of ggml's architecture "gpt2".
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/io/gguf.h"
#include "layers/models/families.h"

namespace snug {
namespace {

// That architecture's graph is fixed: scores over the root of the head width, the tanh form of
// gelu.
void check(const ModelSpec& s, const std::string& origin) {
  const auto refuse = [&](const char* expected, const char* found) {
    fail(ErrorCode::unsupported, expected, fmt::format("{} in {}", found, origin),
         "programs that read GGUF compute GPT-2 one way only; keep the Hugging Face folder");
  };
  if (s.activation != Activation::gelu_tanh)
    refuse("activation_function: gelu_new, the one of GGUF's gpt2", "another one");
  if (!s.scale_attention) refuse("scale_attn_weights: true, as GGUF's gpt2 computes", "false");
  if (s.scale_by_inverse_layer)
    refuse("scale_attn_by_inverse_layer_idx: false, as GGUF's gpt2 computes", "true");
}

void metadata(const ModelSpec& s, GgufMetadata& out) {
  const auto count = [&](const char* key, int64_t value) {
    out.add(fmt::format("gpt2.{}", key), static_cast<uint32_t>(value));
  };
  count("block_count", s.L);
  count("context_length", s.P);
  count("embedding_length", s.C);
  count("feed_forward_length", s.F);
  count("attention.head_count", s.H);
  out.add("gpt2.attention.layer_norm_epsilon", s.norm_epsilon);
}

std::vector<std::string> names(const ParamInfo& p, const ModelSpec& spec) {
  const std::string name = p.name.str();
  // A tied head is written twice: programs exist that do not look for it in the embedding.
  if (name == "wte.weight" && spec.tied) return {"token_embd.weight", "output.weight"};
  if (name == "wte.weight") return {"token_embd.weight"};
  if (name == "lm_head.weight") return {"output.weight"};
  if (name == "wpe.weight") return {"position_embd.weight"};
  if (name.starts_with("ln_f.")) return {"output_norm" + name.substr(4)};
  static constexpr const char* kParts[][2] = {
      {"ln_1", "attn_norm"}, {"attn.c_attn", "attn_qkv"}, {"attn.c_proj", "attn_output"},
      {"ln_2", "ffn_norm"},  {"mlp.c_fc", "ffn_up"},      {"mlp.c_proj", "ffn_down"}};
  const size_t layer_end = name.find('.', 2), kind = name.rfind('.');  // h.3.attn.c_attn.weight
  for (const auto& [ours, theirs] : kParts)
    if (name.compare(layer_end + 1, kind - layer_end - 1, ours) == 0)
      return {"blk." + name.substr(2, layer_end - 2) + "." + theirs + name.substr(kind)};
  require(false, "a GGUF name for every parameter of gpt2");
  return {};
}

bool always_f32(std::string_view name) {
  return name == "position_embd.weight";
}

}  // namespace

const GgufFamily kGpt2Gguf = {"gpt2", check, metadata, names, always_f32};

}  // namespace snug
