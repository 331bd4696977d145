// Configs and sizes of Llama and its kin.
#include <gtest/gtest.h>

#include "engine/io/json.h"
#include "engine/io/safetensors.h"
#include "layers/models/families.h"
#include "layers/models/model.h"
#include "tests/support/errors.h"
#include "tests/support/folders.h"

namespace snug {
namespace {

// The two spellings of a config, of transformers 5 and of published files, are one model; what is
// written is read as it was.
TEST(DecoderConfigs, BothSpellingsAreOneModel) {
  for (const char* name : {"a", "b", "c", "d", "f"}) {
    const std::string path = source_folder() + "/tests/golden/decoder_" + name + ".safetensors";
    const SafetensorsReader file(path);
    const nlohmann::json config = parse_json(file.metadata().at("config"), path),
                         published = parse_json(file.metadata().at("config_published"), path);
    const Family& family = find_family(config.at("model_type").get<std::string>(), path);
    const ModelSpec spec = family.parse(config, path, false);
    const nlohmann::json written = family.write(spec, "float32");
    EXPECT_EQ(family.write(family.parse(written, path, true), "float32"), written) << name;
    // It names no tokens.
    ModelSpec other = family.parse(published, path, false);
    other.bos_token = spec.bos_token;
    other.eos_token = spec.eos_token;
    EXPECT_EQ(family.write(other, "float32"), written) << name;
  }
}

// Parameters as `model.num_parameters()` of transformers counts them.
TEST(DecoderShapes, PublishedSizes) {
  const auto count = [](const char* name) {
    return Model(resolve_model(name, "").spec, parse_precision("fp32")).params().real_elements();
  };
  EXPECT_EQ(count("smollm2-135m"), 134'515'008);
  EXPECT_EQ(count("tinyllama-1.1b"), 1'100'048'384);
  EXPECT_EQ(count("qwen2.5-0.5b"), 494'032'768);
  EXPECT_EQ(count("gemma-2b"), 2'506'172'416);
  EXPECT_EQ(count("mistral-7b-v0.3"), 7'248'023'552);
  EXPECT_EQ(count("llama-3-8b"), 8'030'261'248);
}

// What a map leaves out is as transformers' configs have it.
TEST(DecoderConfigs, DefaultsAreThoseOfTransformers) {
  const auto extents = [](const char* type) {
    const ModelSpec s = resolve_model("", std::string(R"({"type": ")") + type + R"("})").spec;
    return std::vector<int64_t>{s.V, s.C, s.F, s.L, s.H, s.G, s.D, s.P, s.window, s.tied};
  };
  using List = std::vector<int64_t>;
  EXPECT_EQ(extents("llama"), (List{32000, 4096, 11008, 32, 32, 32, 128, 2048, 0, 0}));
  EXPECT_EQ(extents("mistral"), (List{32000, 4096, 14336, 32, 32, 8, 128, 131072, 4096, 0}));
  EXPECT_EQ(extents("qwen2"), (List{151936, 4096, 22016, 32, 32, 32, 128, 32768, 0, 0}));
  EXPECT_EQ(extents("gemma"), (List{256000, 3072, 24576, 28, 16, 16, 256, 8192, 0, 1}));
  EXPECT_EQ(extents("bert"), (List{30522, 768, 3072, 12, 12, 12, 64, 512, 0, 1}));
  EXPECT_EQ(extents("roberta"), (List{50265, 768, 3072, 12, 12, 12, 64, 510, 0, 1}));
  EXPECT_EQ(resolve_model("mistral-7b-v0.3", "").spec.window, 0);
  EXPECT_EQ(resolve_model("", R"({"type": "gemma", "hidden_act": "gelu"})").spec.activation,
            Activation::gelu_tanh);
  EXPECT_EQ(resolve_model("", R"({"type": "gemma", "hidden_activation": "relu"})").spec.activation,
            Activation::relu);
  const ModelSpec turned =
      resolve_model("", R"({"type": "llama", "partial_rotary_factor": 0.5})").spec;
  const Family& family = find_family("llama", "test");
  EXPECT_EQ(family.parse(family.write(turned, "float32"), "written", true).rope.partial, 0.5);
  EXPECT_EQ(turned.rope.inverse_frequencies(128).size(), 32u);
}

TEST(DecoderConfigs, Mistakes) {
  const auto refused = [](const char* map, std::initializer_list<const char*> parts,
                          ErrorCode code) {
    test::expect_error(code, parts, [&] { resolve_model("", map); });
  };
  refused(R"({"type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4}})",
          {"rope_type default, linear or llama3 in rope_scaling of model", "yarn",
           "leave it out to train at the original length"},
          ErrorCode::unsupported);
  refused(R"({"type": "llama", "rope_theta": 0.5})",
          {"rope_theta above 1, factor of at least 1, low_freq_factor below high_freq_factor",
           "the values of the published config.json"},
          ErrorCode::usage);
  refused(R"({"type": "mistral", "num_hidden_layers": 2, "sliding_window": 8,
              "layer_types": ["sliding_attention", "full_attention"]})",
          {"layer_types all alike in model", "1 of 2 sliding_attention",
           "a model whose layers all have the window, or none"},
          ErrorCode::unsupported);
  refused(R"({"type": "llama", "num_attention_heads": 6, "num_key_value_heads": 4,
              "hidden_size": 48})",
          {"num_attention_heads a multiple of num_key_value_heads", "6 and 4 in model",
           "num_key_value_heads=1"},
          ErrorCode::usage);
  refused(R"({"type": "qwen2", "hiden_size": 48})", {"keys of a Qwen2 config", "hiden_size"},
          ErrorCode::usage);
  refused(R"({"type": "qwen2", "use_sliding_window": true, "num_hidden_layers": 4,
              "max_window_layers": 2})",
          {"layer_types all alike in model", "2 of 4 sliding_attention"}, ErrorCode::unsupported);
  refused(R"({"type": "llama", "sliding_window": 8})", {"keys of a Llama config", "sliding_window"},
          ErrorCode::usage);
  refused(R"({"type": "llama", "pruned_heads": {"1": [0]}})",
          {"pruned_heads: none", "a model with all its heads"}, ErrorCode::unsupported);
  refused(R"({"type": "gemma", "use_bidirectional_attention": true})",
          {"use_bidirectional_attention: false", "true in model", "a model that looks back alone"},
          ErrorCode::unsupported);
  refused(R"({"type": "llama", "hidden_size": 50, "num_attention_heads": 4})",
          {"n_embd divisible by n_head", "n_embd = 50, n_head = 4 in model"}, ErrorCode::usage);
  refused(R"({"type": "distilbert", "sinusoidal_pos_embds": true})",
          {"sinusoidal_pos_embds: false", "true in model", "leave it out: positions are learned"},
          ErrorCode::unsupported);
  refused(R"({"type": "llama", "head_dim": 512})", {"head_dim between 1 and 256"},
          ErrorCode::usage);
}

}  // namespace
}  // namespace snug
