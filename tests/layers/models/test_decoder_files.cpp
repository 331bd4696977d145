// Configs and sizes of the decoders.
#include <fmt/format.h>
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
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l",
                           "m", "n", "o", "p", "q", "r", "s", "t", "u", "v", "w", "x"}) {
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

// Heads need not be a share of the width.
TEST(DecoderConfigs, HeadsOfTheirOwnWidthStay) {
  for (const char* type : {"llama", "mistral", "qwen3", "gemma", "gemma2"}) {
    const Family& family = find_family(type, "model");
    const nlohmann::json config = {
        {"model_type", type},       {"vocab_size", 32},       {"hidden_size", 48},
        {"intermediate_size", 64},  {"num_hidden_layers", 1}, {"num_attention_heads", 4},
        {"num_key_value_heads", 2}, {"head_dim", 16},         {"max_position_embeddings", 8}};
    const ModelSpec spec = family.parse(config, type, false);
    EXPECT_EQ(spec.D, 16) << type;
    const nlohmann::json written = family.write(spec, "float32");
    EXPECT_EQ(written["head_dim"], 16) << type;
    EXPECT_EQ(family.parse(written, type, true).D, 16) << type;
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
  EXPECT_EQ(count("qwen3-0.6b"), 596'049'920);
  EXPECT_EQ(count("llama-3.1-8b"), 8'030'261'248);
  EXPECT_EQ(count("llama-3.2-1b"), 1'235'814'400);
  EXPECT_EQ(count("llama-3.2-3b"), 3'212'749'824);
  EXPECT_EQ(count("yi-6b"), 6'061'035'520);
  EXPECT_EQ(count("smollm2-1.7b"), 1'711'376'384);
  EXPECT_EQ(count("qwen2.5-7b"), 7'615'616'512);
  EXPECT_EQ(count("qwen3-8b"), 8'190'735'360);
  EXPECT_EQ(count("polyglot-ko-1.3b"), 1'331'810'304);
  EXPECT_EQ(count("pythia-1.4b"), 1'414'647'808);
  EXPECT_EQ(count("pythia-160m"), 162'322'944);
  EXPECT_EQ(count("olmo2-1b"), 1'484'916'736);
  EXPECT_EQ(count("olmo2-7b"), 7'298'617'344);
  EXPECT_EQ(count("gemma-2-2b"), 2'614'341'888);
  EXPECT_EQ(count("gemma-2-9b"), 9'241'705'984);
  EXPECT_EQ(count("gemma-3-1b"), 999'885'952);
  EXPECT_EQ(count("gemma-3-4b-text"), 3'880'263'168);
  EXPECT_EQ(count("phi-3-mini"), 3'821'079'552);
  EXPECT_EQ(count("smollm3-3b"), 3'075'098'624);
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
  EXPECT_EQ(extents("qwen3"), (List{151936, 4096, 22016, 32, 32, 32, 128, 32768, 0, 0}));
  EXPECT_EQ(extents("gpt_neox"), (List{50432, 6144, 24576, 44, 64, 64, 96, 2048, 0, 0}));
  EXPECT_EQ(extents("olmo2"), (List{50304, 4096, 11008, 32, 32, 32, 128, 2048, 0, 0}));
  EXPECT_EQ(extents("phi3"), (List{32064, 3072, 8192, 32, 32, 32, 96, 4096, 0, 0}));
  EXPECT_EQ(extents("smollm3"), (List{128256, 2048, 11008, 36, 16, 4, 128, 32768, 0, 1}));
  EXPECT_EQ(extents("gemma2"), (List{256000, 2304, 9216, 26, 8, 4, 256, 8192, 0, 1}));
  EXPECT_EQ(extents("gemma3_text"), (List{262208, 2304, 9216, 26, 8, 4, 256, 131072, 0, 1}));
  EXPECT_EQ(extents("gemma"), (List{256000, 3072, 24576, 28, 16, 16, 256, 8192, 0, 1}));
  EXPECT_EQ(extents("bert"), (List{30522, 768, 3072, 12, 12, 12, 64, 512, 0, 1}));
  EXPECT_EQ(extents("roberta"), (List{50265, 768, 3072, 12, 12, 12, 64, 510, 0, 1}));
  EXPECT_EQ(resolve_model("mistral-7b-v0.3", "").spec.window, 0);
  // Published files say 1e-5 where the families' default is 1e-6.
  for (const char* name : {"smollm2-135m", "llama-3.1-8b", "mistral-7b-v0.1"})
    EXPECT_EQ(resolve_model(name, "").spec.norm_epsilon, 1e-5f) << name;
  EXPECT_EQ(resolve_model("qwen2.5-0.5b", "").spec.norm_epsilon, 1e-6f);
  // Without its own the length that angles are stretched from is the model's.
  EXPECT_EQ(resolve_model("", R"({"type": "llama", "max_position_embeddings": 4096,
      "rope_scaling": {"rope_type": "llama3", "factor": 8}})")
                .spec.rope.original_positions,
            4096);
  const auto kinds = [](const char* type) {
    std::string text;
    const ModelSpec s = resolve_model("", std::string(R"({"type": ")") + type + R"("})").spec;
    for (int64_t l = 0; l < 7; ++l)
      text += fmt::format("{}.{} ", s.kind(l).window, static_cast<int>(s.kind(l).rope));
    return text + fmt::format("{}", s.distinct_layers().size());
  };
  EXPECT_EQ(kinds("gemma2"), "4096.1 0.1 4096.1 0.1 4096.1 0.1 4096.1 2");
  EXPECT_EQ(kinds("gemma3_text"), "4096.2 4096.2 4096.2 4096.2 4096.2 0.1 4096.2 2");
  EXPECT_EQ(kinds("smollm3"), "0.1 0.1 0.1 0.0 0.1 0.1 0.1 2");
  EXPECT_EQ(kinds("qwen3"), "0.1 0.1 0.1 0.1 0.1 0.1 0.1 1");
  const ModelSpec gemma = resolve_model("gemma-3-4b-text", "").spec;
  EXPECT_EQ(gemma.rope.theta, 1000000);
  EXPECT_EQ(gemma.rope.factor, 8);
  EXPECT_EQ(gemma.local_rope.theta, 10000);
  EXPECT_EQ(gemma.local_rope.type, "default");
  EXPECT_EQ(gemma.attention_scale(0), 1.0f / 16);
  EXPECT_EQ(resolve_model("gemma-2-27b", "").spec.attention_scale(0), 1.0f / 12);
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

// Every setting of a rotation is in what is written, whether or not these numbers need it; the scale of
// sine and cosine is that of transformers (tests/golden/rotations_and_beams.py).
TEST(DecoderConfigs, RotationsAreWrittenWhole) {
  struct Row {
    const char* settings;
    double scale;
  };
  for (const Row& row : {
           Row{R"({"rope_type": "linear", "factor": 2.5})", 1},
           {R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.5,
                "high_freq_factor": 5.0, "original_max_position_embeddings": 512})",
            1},
           {R"({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 512,
                "beta_fast": 24.0, "beta_slow": 2.0, "truncate": false})",
            1.3688879454113936},
           {R"({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 512,
                "mscale": 1.0, "mscale_all_dim": 0.707})",
            1.0857263992561355},
           {R"({"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 512,
                "attention_factor": 1.25})",
            1.25},
           {R"({"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 512,
                "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]})",
            1.1055415967851334},
       }) {
    SCOPED_TRACE(row.settings);
    const nlohmann::json given = parse_json(row.settings, "row");
    nlohmann::json config = {{"type", "llama"},
                             {"hidden_size", 8},
                             {"num_attention_heads", 2},
                             {"max_position_embeddings", 2048},
                             {"rope_scaling", given}};
    const ModelSpec spec = resolve_model("", config.dump()).spec;
    const Family& family = find_family("llama", "test");
    const nlohmann::json written = family.write(spec, "float32");
    for (const auto& [key, value] : given.items())
      EXPECT_EQ(written.at("rope_scaling").at(key), value) << key;
    EXPECT_NEAR(static_cast<double>(spec.rope.attention_scale()), row.scale, 1e-6);
    EXPECT_EQ(family.parse(written, "written", true).rope.attention_scale(),
              spec.rope.attention_scale());
  }
}

TEST(DecoderConfigs, Mistakes) {
  const auto refused = [](const char* map, std::initializer_list<const char*> parts,
                          ErrorCode code) {
    test::expect_error(code, parts, [&] { resolve_model("", map); });
  };
  refused(R"({"type": "llama", "rope_scaling": {"rope_type": "spiral", "factor": 4}})",
          {"rope_type default, linear, dynamic, llama3, yarn or longrope in rope_scaling of model",
           "spiral", "leave it out to train at the original length"},
          ErrorCode::unsupported);
  refused(R"({"type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4,
              "low_freq_factor": 1}})",
          {"settings of rope_type linear in rope_scaling of model", "low_freq_factor: 1",
           "leave it out"},
          ErrorCode::unsupported);
  refused(R"({"type": "llama", "rope_theta": 0.5})",
          {"rope_theta above 1, factor of at least 1, low_freq_factor below high_freq_factor",
           "the values of the published config.json"},
          ErrorCode::usage);
  refused(R"({"type": "mistral", "num_hidden_layers": 3, "sliding_window": 8,
              "layer_types": ["sliding_attention", "full_attention"]})",
          {"3 layer_types, one a layer, in model", "2", "leave layer_types out"}, ErrorCode::usage);
  refused(R"({"type": "qwen3", "num_hidden_layers": 1, "use_sliding_window": true,
              "layer_types": ["chunked_attention"]})",
          {"layer_types of sliding_attention and full_attention in model", "chunked_attention",
           "a model of these layers"},
          ErrorCode::unsupported);
  refused(R"({"type": "llama", "num_attention_heads": 6, "num_key_value_heads": 4,
              "hidden_size": 48})",
          {"num_attention_heads a multiple of num_key_value_heads", "6 and 4 in model",
           "num_key_value_heads=1"},
          ErrorCode::usage);
  refused(R"({"type": "qwen2", "hiden_size": 48})", {"keys of a Qwen2 config", "hiden_size"},
          ErrorCode::usage);
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
  refused(R"({"type": "llama", "partial_rotary_factor": 0.001})",
          {"a head that turns in part at least in model", "0.001 of a width of 128",
           "partial_rotary_factor=1"},
          ErrorCode::usage);
  refused(R"({"type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1, 2],
              "long_factor": [1, 2]}})",
          {"48 numbers in short_factor and long_factor, one a pair that turns, in model", "2",
           "the values of the published config.json"},
          ErrorCode::usage);
  refused(R"({"type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1, 2]}})",
          {"long_factor, a list of numbers, in rope_scaling of model", "none"}, ErrorCode::data);
  refused(R"({"type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1, -2],
              "long_factor": [1, 2]}})",
          {"numbers above 0 in short_factor of rope_scaling of model", "-2"}, ErrorCode::data);
  refused(R"({"type": "phi3", "original_max_position_embeddings": 1, "rope_scaling": {
              "type": "longrope", "short_factor": [1], "long_factor": [1]}})",
          {"original_max_position_embeddings above 1 in rope_scaling of model", "1",
           "the values of the published config.json"},
          ErrorCode::usage);
  refused(R"({"type": "phi3", "embd_pdrop": 0.1})",
          {"embd_pdrop: 0 in model", "0.1", "resid_pdrop or attention_dropout"},
          ErrorCode::unsupported);
  refused(
      R"({"type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 1}})",
      {"beta_fast above beta_slow in rope_scaling of model", "1 and 1", "32 and 1"},
      ErrorCode::usage);
  refused(R"({"type": "smollm3", "no_rope_layers": [1, 0]})",
          {"36 no_rope_layers, one a layer, in model", "leave no_rope_layers out"},
          ErrorCode::usage);
  refused(R"({"type": "smollm3", "num_hidden_layers": 2, "no_rope_layers": [1, 2]})",
          {"no_rope_layers of 0 and 1 in model", "2",
           "1 for a layer that turns, 0 for one that does not"},
          ErrorCode::usage);
  refused(R"({"type": "gemma2", "query_pre_attn_scalar": 0})",
          {"query_pre_attn_scalar above 0 in model", "0", "the width of a head"}, ErrorCode::usage);
  refused(R"({"type": "gemma2", "final_logit_softcapping": -3})",
          {"final_logit_softcapping above 0, or null for none, in model", "-3",
           "final_logit_softcapping: null"},
          ErrorCode::usage);
  refused(R"({"type": "gemma3_text", "rope_parameters": {
              "full_attention": {"rope_type": "default"},
              "sliding_attention": {"rope_type": "linear", "factor": 2}}})",
          {"rope_type default for sliding_attention in model", "linear",
           "a scaling of full_attention alone"},
          ErrorCode::unsupported);
  refused(R"({"type": "gpt_neox", "hidden_size": 50, "num_attention_heads": 4})",
          {"n_embd divisible by n_head", "n_embd = 50, n_head = 4 in model"}, ErrorCode::usage);
  refused(R"({"type": "gpt_neox", "num_key_value_heads": 2})",
          {"keys of a GPT-NeoX config", "num_key_value_heads"}, ErrorCode::usage);
  refused(R"({"type": "llama", "head_dim": 512})", {"head_dim between 1 and 256"},
          ErrorCode::usage);
}

}  // namespace
}  // namespace snug
