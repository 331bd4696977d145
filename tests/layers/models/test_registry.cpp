// From names, folders and maps to a spec: what is understood, and what is said about the rest.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "layers/models/families.h"
#include "layers/models/family.h"
#include "layers/models/fingerprint.h"
#include "layers/models/model.h"
#include "layers/models/recompute.h"
#include "layers/models/stop_tokens.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

ModelSpec map_of(const std::string& map) {
  return resolve_model("", map).spec;
}

// What published files hold beside the weights: masks, positions and frequencies that transformers once
// saved (EleutherAI/pythia-70m, meta-llama/Llama-2-7b, google-bert/bert-base-uncased, openai-community/gpt2).
TEST(Registry, BuffersOfPublishedFilesAreNoStrangers) {
  const auto ignored = [](const char* type, const char* tensor) {
    return find_family(type, "config.json").ignorable(tensor);
  };
  for (const char* name :
       {"attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"})
    EXPECT_TRUE(ignored("gpt_neox", (std::string("gpt_neox.layers.5.") + name).c_str())) << name;
  for (const char* name : {"attention.dense.bias", "attention.query_key_value.bias",
                           "input_layernorm.bias", "attention.rotary_emb.weight"})
    EXPECT_FALSE(ignored("gpt_neox", (std::string("gpt_neox.layers.5.") + name).c_str())) << name;
  EXPECT_TRUE(ignored("llama", "model.layers.31.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(ignored("llama", "model.layers.31.self_attn.q_proj.bias"));
  for (const char* type : {"bert", "roberta", "distilbert"})
    EXPECT_TRUE(ignored(type, "bert.embeddings.position_ids")) << type;
  EXPECT_TRUE(ignored("roberta", "roberta.embeddings.token_type_ids"));
  EXPECT_FALSE(ignored("bert", "bert.embeddings.token_type_embeddings.weight"));
  for (const char* name : {"h.0.attn.bias", "transformer.h.11.attn.masked_bias"})
    EXPECT_TRUE(ignored("gpt2", name)) << name;
  EXPECT_FALSE(ignored("gpt2", "h.0.attn.c_attn.bias"));
}

// generation_config.json before config.json; ids of [0,V), each once, in their order.
TEST(Registry, StopTokensAreThoseOfTheFolder) {
  const TempFolder folder;
  ModelSpec spec;
  spec.V = 10;
  const auto stops = [&] { return model_stop_tokens(folder.path(), spec); };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(stops(), std::nullopt);
  std::ofstream(folder / "config.json") << R"({"eos_token_id": 9})";
  EXPECT_EQ(stops(), Ids{9}) << "the last one of the vocabulary";
  std::ofstream(folder / "config.json") << R"({"eos_token_id": [9, 10, 0, -1, 9, 4294967297]})";
  EXPECT_EQ(stops(), (Ids{9, 0}));
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": null})";
  EXPECT_EQ(stops(), (Ids{9, 0})) << "it says nothing";
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": [3, 4]})";
  EXPECT_EQ(stops(), (Ids{3, 4}));
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": "</s>"})";
  EXPECT_ERROR(stops(), ErrorCode::data, "eos_token_id as an integer or a list of integers in",
               "</s>", "50256");
}

// Sizes as published; the counts are those of transformers' num_parameters().
TEST(Registry, NamedShapesHaveTheirPublishedSizes) {
  struct Named {
    const char* name;
    int64_t L, H, C, parameters;
  };
  for (const Named& n : {Named{"gpt2", 12, 12, 768, 124439808},
                         {"gpt2-medium", 24, 16, 1024, 354823168},
                         {"gpt2-large", 36, 20, 1280, 774030080},
                         {"gpt2-xl", 48, 25, 1600, 1557611200},
                         {"distilgpt2", 6, 12, 768, 81912576}}) {
    const ModelSource s = resolve_model(n.name, "");
    EXPECT_TRUE(s.folder.empty());
    EXPECT_EQ(s.spec.L, n.L) << n.name;
    EXPECT_EQ(s.spec.H, n.H);
    EXPECT_EQ(s.spec.C, n.C);
    EXPECT_EQ(s.spec.F, 4 * n.C);
    EXPECT_EQ(s.spec.V, 50257);
    EXPECT_EQ(s.spec.Vp(), 50304);
    EXPECT_EQ(s.spec.P, 1024);
    EXPECT_EQ(s.spec.eos_token, 50256);
    const Model model(s.spec, parse_precision("bf16"));
    EXPECT_EQ(model.params().real_elements(), n.parameters) << n.name;
  }
}

TEST(Registry, AMapReplacesKeysOfAShape) {
  const ModelSpec s = resolve_model("gpt2", R"({"n_layer": 2, "resid_pdrop": 0})").spec;
  EXPECT_EQ(s.L, 2);
  EXPECT_EQ(s.C, 768);
  EXPECT_EQ(s.residual_dropout, 0.0f);
  EXPECT_EQ(s.attention_dropout, 0.1f);
  EXPECT_ERROR(resolve_model("gpt2", R"({"type": "bert"})"), ErrorCode::usage, "type of gpt2, gpt2",
               "bert", "leave type out");
}

// transformers' general names are the family's own, wherever they stand.
TEST(Registry, GeneralNamesOfKeysReplaceThoseOfAShape) {
  const ModelSpec s = resolve_model("gpt2", R"({"num_hidden_layers": 2, "hidden_size": 192,
    "num_attention_heads": 3, "max_position_embeddings": 64})")
                          .spec;
  EXPECT_EQ(s.L, 2);
  EXPECT_EQ(s.C, 192);
  EXPECT_EQ(s.H, 3);
  EXPECT_EQ(s.P, 64);
  EXPECT_EQ(s.F, 768);
  EXPECT_EQ(map_of(R"({"type": "gpt2", "num_hidden_layers": 5, "n_layer": 5})").L, 5);
  EXPECT_ERROR(map_of(R"({"type": "gpt2", "num_hidden_layers": 5, "n_layer": 4})"),
               ErrorCode::usage, "one value of n_layer, which is num_hidden_layers too", "4 and 5",
               "leave num_hidden_layers out");
  const TempFolder folder;
  std::ofstream(folder / "config.json")
      << R"({"model_type": "gpt2", "hidden_size": 24, "num_attention_heads": 2, "n_layer": 3})";
  EXPECT_EQ(resolve_model(folder.path(), "").spec.C, 24);
  EXPECT_EQ(resolve_model(folder.path(), R"({"n_embd": 32})").spec.C, 32);
  // Beside a folder too a user's key must be one.
  EXPECT_ERROR(resolve_model(folder.path(), R"({"n_layr": 4})"), ErrorCode::usage,
               "keys of a GPT-2 config", "\"n_layr\" in model", "did you mean n_layer?");
}

TEST(Registry, KeysOfFilesThatWouldHaveNoEffectAreRefusedInAMap) {
  EXPECT_ERROR(map_of(R"({"type": "gpt2", "n_ctx": 128})"), ErrorCode::usage,
               "keys of model that have an effect", "n_ctx: 128", "n_positions");
  EXPECT_EQ(map_of(R"({"type": "gpt2", "n_ctx": 128, "n_positions": 128})").P, 128);
  EXPECT_ERROR(map_of(R"({"type": "gpt2", "gradient_checkpointing": true})"), ErrorCode::usage,
               "have an effect", "gradient_checkpointing: true", "recompute=block");
  EXPECT_EQ(map_of(R"({"type": "gpt2", "gradient_checkpointing": false})").L, 12);
  EXPECT_ERROR(map_of(R"({"type": "gpt2", "pruned_heads": {"0": [1]}})"), ErrorCode::unsupported,
               "pruned_heads: none", "in model", "all its heads");
  EXPECT_EQ(map_of(R"({"type": "gpt2", "pruned_heads": {}})").H, 12);
}

TEST(Registry, EveryKeyReachesTheSpec) {
  const ModelSpec s = map_of(R"({"type": "gpt2", "vocab_size": 300, "n_positions": 40, "n_embd": 24,
    "n_layer": 3, "n_head": 4, "n_inner": 50, "activation_function": "relu", "resid_pdrop": 0.2,
    "embd_pdrop": 0.3, "attn_pdrop": 0.4, "layer_norm_epsilon": 1e-3, "initializer_range": 0.5,
    "scale_attn_weights": false, "scale_attn_by_inverse_layer_idx": true,
    "tie_word_embeddings": false, "bos_token_id": 7, "eos_token_id": [8, 9]})");
  EXPECT_EQ(s.V, 300);
  EXPECT_EQ(s.Vp(), 384);
  EXPECT_EQ(s.P, 40);
  EXPECT_EQ(s.C, 24);
  EXPECT_EQ(s.L, 3);
  EXPECT_EQ(s.H, 4);
  EXPECT_EQ(s.G, 4);
  EXPECT_EQ(s.D, 6);
  EXPECT_EQ(s.F, 50);
  EXPECT_EQ(s.activation, Activation::relu);
  EXPECT_EQ(s.residual_dropout, 0.2f);
  EXPECT_EQ(s.embedding_dropout, 0.3f);
  EXPECT_EQ(s.attention_dropout, 0.4f);
  EXPECT_EQ(s.norm_epsilon, 1e-3f);
  EXPECT_EQ(s.init_std, 0.5f);
  EXPECT_EQ(s.attention_scale(0), 1.0f);
  EXPECT_EQ(s.attention_scale(3), 0.25f);
  EXPECT_FALSE(s.tied);
  EXPECT_EQ(s.bos_token, 7);
  EXPECT_EQ(s.eos_token, 8);
  // transformers' general names, and the vocabulary of a tokenizer where the map names none.
  const ModelSpec g = resolve_model("", R"({"type": "gpt2", "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16})",
                                    777)
                          .spec;
  EXPECT_EQ(g.C, 32);
  EXPECT_EQ(g.L, 2);
  EXPECT_EQ(g.H, 2);
  EXPECT_EQ(g.P, 16);
  EXPECT_EQ(g.V, 777);
  EXPECT_EQ(g.attention_scale(5), 0.25f);
}

TEST(Registry, ConfigSurvivesWritingAndReading) {
  const ModelSpec s = map_of(R"({"type": "gpt2", "vocab_size": 300, "n_positions": 40, "n_embd": 24,
    "n_layer": 3, "n_head": 4, "n_inner": 50, "activation_function": "gelu", "resid_pdrop": 0.25,
    "layer_norm_epsilon": 1e-6, "tie_word_embeddings": false, "eos_token_id": 8})");
  const nlohmann::json written = kGpt2Family.write(s, "float32");
  const ModelSpec t = kGpt2Family.parse(written, "config.json", true);
  EXPECT_EQ(kGpt2Family.write(t, "float32"), written);
  EXPECT_EQ(t.F, 50);
  EXPECT_EQ(t.eos_token, 8);
  EXPECT_EQ(t.bos_token, -1);
  EXPECT_EQ(written.at("architectures"), nlohmann::json::array({"GPT2LMHeadModel"}));
  EXPECT_EQ(written.at("model_type"), "gpt2");
}

TEST(Registry, AFolderIsReadWithAllThatTransformersWrites) {
  const TempFolder folder;
  // What older and newer versions put there: keys of other tasks, "dtype" for "torch_dtype", and
  // keys from after this was written.
  std::ofstream(folder / "config.json") << R"({"model_type": "gpt2", "architectures":
    ["GPT2LMHeadModel"], "n_embd": 24, "n_head": 2, "n_layer": 1, "n_positions": 16, "n_ctx": 16,
    "vocab_size": 50, "n_inner": null, "dtype": "float32", "summary_type": "cls_index",
    "rope_parameters": {"rope_theta": 10000.0}, "some_future_key": [1, 2], "eos_token_id": null,
    "transformers_version": "5.0.0"})";
  const ModelSource s = resolve_model(folder.path(), "");
  EXPECT_EQ(s.folder, folder.path());
  EXPECT_EQ(s.spec.F, 96);
  EXPECT_EQ(s.spec.V, 50);
  EXPECT_EQ(s.spec.eos_token, -1);
  // In a map nobody but the user wrote the key, so it is a mistake.
  EXPECT_ERROR(map_of(R"({"type": "gpt2", "n_layr": 4})"), ErrorCode::usage,
               "keys of a GPT-2 config", "\"n_layr\" in model", "did you mean n_layer?");
  EXPECT_ERROR(map_of(R"({"type": "gpt2", "zzzzzz": 4})"), ErrorCode::usage, "", "\"zzzzzz\"",
               "check its spelling");
}

TEST(Registry, UnknownModelsAreNamedWithThoseThatExist) {
  EXPECT_ERROR(resolve_model("gpt5", ""), ErrorCode::usage,
               "gpt2, gpt2-medium, gpt2-large, gpt2-xl", "gpt5", "model=gpt2");
  EXPECT_ERROR(resolve_model("gpt2-meduim", ""), ErrorCode::usage, "gpt2-medium", "gpt2-meduim",
               "did you mean model=gpt2-medium?");
  EXPECT_ERROR(resolve_model("transformer", ""), ErrorCode::usage, "", "transformer", "model=gpt2");
  EXPECT_ERROR(resolve_model("runs/first", ""), ErrorCode::usage, "", "runs/first",
               "check the path");
  EXPECT_ERROR(resolve_model("", ""), ErrorCode::usage, "gpt2-xl", "none", "model=gpt2");
  EXPECT_ERROR(map_of(R"({"n_layer": 4})"), ErrorCode::usage, "type in the model map", "object",
               "type: gpt2");
  EXPECT_ERROR(map_of(R"({"type": "mamba"})"), ErrorCode::unsupported, "model_type among: gpt2",
               "\"mamba\"", "model=gpt2");
  const TempFolder folder;
  EXPECT_ERROR(resolve_model(folder.path(), ""), ErrorCode::data, folder.path() + "/config.json",
               "No such file", "");
  std::ofstream(folder / "config.json") << R"({"model_type": "mamba"})";
  EXPECT_ERROR(resolve_model(folder.path(), ""), ErrorCode::unsupported, "gpt2",
               "\"mamba\" in " + folder.path() + "/config.json", "model=gpt2");
  std::ofstream(folder / "config.json") << R"({"n_layer": 4})";
  EXPECT_ERROR(resolve_model(folder.path(), ""), ErrorCode::data, "model_type", "", "");
  std::ofstream(folder / "config.json") << "[1]";
  EXPECT_ERROR(resolve_model(folder.path(), ""), ErrorCode::data, "object", "", "");
}

TEST(Registry, WrongValuesAreRefusedByName) {
  const auto with = [](const std::string& rest) {
    return R"({"type": "gpt2", "vocab_size": 64, "n_positions": 8, "n_embd": 16, "n_head": 2, )" +
           rest + "}";
  };
  EXPECT_ERROR(map_of(with(R"("n_layer": "4")")), ErrorCode::data, "an integer for n_layer",
               "\"4\"", "");
  EXPECT_ERROR(map_of(with(R"("n_layer": 4.5)")), ErrorCode::data, "n_layer", "4.5", "");
  EXPECT_ERROR(map_of(with(R"("tie_word_embeddings": 1)")), ErrorCode::data, "tie_word_embeddings",
               "1", "");
  EXPECT_ERROR(map_of(with(R"("activation_function": 3)")), ErrorCode::data, "activation_function",
               "3", "");
  EXPECT_ERROR(map_of(with(R"("activation_function": "gelu_9")")), ErrorCode::unsupported,
               "gelu_new", "\"gelu_9\"", "");
  EXPECT_ERROR(map_of(with(R"("add_cross_attention": true)")), ErrorCode::unsupported,
               "add_cross_attention: false", "true in model", "decoder");
  EXPECT_ERROR(map_of(with(R"("n_layer": 0)")), ErrorCode::usage, "n_layer between 1 and",
               "n_layer = 0", "model='{");
  EXPECT_ERROR(map_of(with(R"("n_layer": -3)")), ErrorCode::usage, "n_layer", "-3", "model='{");
  EXPECT_ERROR(map_of(with(R"("n_layer": 9000000000000000000)")), ErrorCode::usage, "n_layer",
               "9000000000000000000", "");
  EXPECT_ERROR(map_of(with(R"("n_inner": 0)")), ErrorCode::usage, "n_inner", "0", "");
  EXPECT_ERROR(map_of(with(R"("resid_pdrop": 1.0)")), ErrorCode::usage, "resid_pdrop in [0, 1)",
               "resid_pdrop = 1", "model.resid_pdrop=0.1");
  EXPECT_ERROR(map_of(with(R"("attn_pdrop": -0.5)")), ErrorCode::usage, "attn_pdrop in [0, 1)",
               "-0.5", "");
  EXPECT_ERROR(map_of(with(R"("layer_norm_epsilon": 0)")), ErrorCode::usage,
               "layer_norm_epsilon above 0", "0", "1.0e-5");
  EXPECT_ERROR(map_of(R"({"type": "gpt2", "vocab_size": -5})"), ErrorCode::usage,
               "vocab_size between 1", "-5", "");
  EXPECT_ERROR(map_of(R"({"type": "gpt2", "n_embd": 100, "n_head": 3})"), ErrorCode::usage,
               "n_embd divisible by n_head", "n_embd = 100, n_head = 3", "model.n_embd=102");
  EXPECT_ERROR(map_of(R"({"type": "gpt2", "n_embd": 100, "n_head": 0})"), ErrorCode::usage,
               "n_head between 1", "n_head = 0", "");
  EXPECT_ERROR(map_of(R"({"type": "gpt2", "n_embd": 514, "n_head": 2})"), ErrorCode::unsupported,
               "at most 256", "257", "more heads");
  EXPECT_EQ(map_of(R"({"type": "gpt2", "n_embd": 512, "n_head": 2})").D, 256);
}

// What this model family cannot be is refused, not built wrongly.
TEST(Registry, AxesThatAreNotBuiltAreRefused) {
  const ModelSpec good = map_of(R"({"type": "gpt2"})");
  validate(good, "test");
  const auto refused = [&](auto&& change) {
    ModelSpec s = good;
    change(s);
    EXPECT_ERROR(
        validate(s, "here"), ErrorCode::unsupported,
        "a decoder with a head of causal_lm or sequence_classification whose norms are not behind ",
        "gpt2 in here", "model=gpt2");
  };
  refused([](ModelSpec& s) { s.placement = NormPlacement::post; });
  refused([](ModelSpec& s) { s.positions = Positions::none; });
  refused([](ModelSpec& s) { s.causal = false; });
  refused([](ModelSpec& s) { s.head = HeadKind::masked_lm; });
  refused([](ModelSpec& s) { s.types = 2; });
  const ModelSpec bert = map_of(R"({"type": "bert"})");
  validate(bert, "test");
  const auto refused_of_bert = [&](auto&& change) {
    ModelSpec s = bert;
    change(s);
    EXPECT_ERROR(validate(s, "here"), ErrorCode::unsupported,
                 "layernorms behind them, learned positions and a plain MLP", "bert in here",
                 "model=bert-base");
  };
  refused_of_bert([](ModelSpec& s) { s.norm = NormKind::rmsnorm; });
  refused_of_bert([](ModelSpec& s) { s.gated_mlp = true; });
  refused_of_bert([](ModelSpec& s) { s.window = 4; });
  refused_of_bert([](ModelSpec& s) { s.positions = Positions::rope; });
  // Heads that do not share keys evenly are a mistake.
  ModelSpec uneven = good;
  uneven.G = 5;
  EXPECT_ERROR(validate(uneven, "here"), ErrorCode::usage,
               "num_attention_heads a multiple of num_key_value_heads", "12 and 5 in here",
               "num_key_value_heads=1");
}

// The defaults of transformers' classes (BertConfig, RobertaConfig, DistilBertConfig).
TEST(Registry, EncodersWithoutOptionalKeysAreThoseOfTransformers) {
  for (const char* type : {"bert", "roberta", "distilbert"}) {
    const ModelSpec s = map_of(std::string(R"({"type": ")") + type + "\"}");
    EXPECT_EQ(s.activation, Activation::gelu_erf) << type;
    EXPECT_EQ(s.C, 768) << type;
    EXPECT_EQ(s.H, 12) << type;
    EXPECT_EQ(s.F, 3072) << type;
    EXPECT_FLOAT_EQ(s.norm_epsilon, 1e-12f) << type;
  }
}

TEST(RecomputeText, PresetsMapsAndBracesAreRead) {
  const Model model(map_of(R"({"type": "gpt2", "vocab_size": 64, "n_positions": 8, "n_embd": 16,
                              "n_head": 2, "n_layer": 3})"),
                    parse_precision("fp32"));
  const auto dropped = [&](const std::string& text) {
    std::vector<int> counts;
    for (const auto& layer : parse_policies(text, "none", model))
      counts.push_back(
          static_cast<int>(std::count(layer.begin(), layer.end(), SlotPolicy::recompute)));
    return counts;
  };
  using V = std::vector<int>;
  EXPECT_EQ(dropped("none"), (V{0, 0, 0}));
  EXPECT_EQ(dropped("norms"), (V{2, 2, 2}));
  EXPECT_EQ(dropped("mlp"), (V{3, 3, 3}));
  EXPECT_EQ(dropped("attention"), (V{4, 4, 4}));
  EXPECT_EQ(dropped("block"), (V{12, 12, 12}));
  EXPECT_EQ(dropped("norms+mlp"), (V{4, 4, 4}));
  EXPECT_EQ(dropped(" norms + mlp "), (V{4, 4, 4}));
  EXPECT_EQ(dropped("0-1: block"), (V{12, 12, 0}));
  EXPECT_EQ(dropped("{0-1: block, 2: mlp}"), (V{12, 12, 3}));
  EXPECT_EQ(dropped("{2: norms+attention}"), (V{0, 0, 5}));
  EXPECT_EQ(dropped("0:norms,1:mlp,2:none"), (V{2, 3, 0}));
  // A layer named twice has both.
  EXPECT_EQ(dropped("{0-2: norms, 1: mlp}"), (V{2, 4, 2}));
  // Slots by their own names, beside presets and in maps.
  EXPECT_EQ(dropped("norm1+fc"), (V{2, 2, 2}));
  EXPECT_EQ(dropped("{0: mid+lse+mlp, 2: rstd2}"), (V{5, 0, 1}));
  EXPECT_EQ(dropped("norm1+mean1+rstd1+qkv+att+lse+mid+norm2+mean2+rstd2+fc+act"),
            dropped("block"));
}

TEST(OffloadText, PresetsMapsAndSlotsAreRead) {
  const Model model(map_of(R"({"type": "gpt2", "vocab_size": 64, "n_positions": 8, "n_embd": 16,
                              "n_head": 2, "n_layer": 3})"),
                    parse_precision("fp32"));
  // The names of the slots that go to the host, layer by layer.
  const auto sent = [&](const std::string& recompute, const std::string& offload) {
    std::string text;
    const LayerPolicies policies = parse_policies(recompute, offload, model);
    for (size_t l = 0; l < policies.size(); ++l) {
      text += l == 0 ? "" : " |";
      for (size_t s = 0; s < policies[l].size(); ++s)
        if (policies[l][s] == SlotPolicy::offload) {
          const std::string name =
              model.block(static_cast<int64_t>(l)).body().slot(static_cast<int>(s)).name.str();
          text += " " + name.substr(name.rfind('.') + 1);
        }
    }
    return text;
  };
  EXPECT_EQ(sent("none", "none"), " | |");
  EXPECT_EQ(sent("block", "inputs"), " x | x | x");
  EXPECT_EQ(sent("none", "{0: attention, 2: mlp}"), " norm1 qkv att lse | | norm2 fc act");
  EXPECT_EQ(sent("norms+attention", "1: block"), " | x mean1 rstd1 mid mean2 rstd2 fc act |");
  EXPECT_EQ(sent("block", "block"), " x | x | x");
  EXPECT_EQ(sent("{0-1: block}", "{0: inputs, 2: mid+qkv}"), " x | | qkv mid");
  EXPECT_TRUE(policies_combine("{0-1: block}", "{0: inputs, 2: mid+qkv}", model));
  EXPECT_TRUE(policies_combine("norms", "block", model));
  EXPECT_FALSE(policies_combine("norms", "attention", model));
  EXPECT_FALSE(policies_combine("norms", "block+norm2", model));
  EXPECT_TRUE(policies_combine("{0: norms}", "{1-2: attention}", model));
}

TEST(OffloadText, MistakesAreNamed) {
  const Model model(map_of(R"({"type": "gpt2", "vocab_size": 64, "n_positions": 8, "n_embd": 16,
                              "n_head": 2, "n_layer": 3})"),
                    parse_precision("fp32"));
  const auto refused = [&](const std::string& recompute, const std::string& offload,
                           const std::string& expected, const std::string& found,
                           const std::string& advice) {
    EXPECT_ERROR(parse_policies(recompute, offload, model), ErrorCode::usage, expected, found,
                 advice);
  };
  const std::string names =
      "offload as auto, one of none, inputs, mlp, attention, block, norm1, mean1, rstd1, qkv, att, "
      "lse, mid, "
      "norm2, mean2, rstd2, fc, act, names joined with +, or a map of layers to them";
  for (const char* name : {"x", "out", "auto", "heads"})
    refused("none", name, names, "\"" + std::string(name) + "\"", "offload=block");
  refused("none", "norms", names, "\"norms\"", "did you mean norm1?");
  refused("none", "input", names, "\"input\"", "did you mean inputs?");
  refused("none", "3: inputs", "layers between 0 and 2 in the offload map", "\"3\"",
          "offload=\"{0-2: block}\"");
  refused("none", "2-1: inputs", "ranges of the offload map to go up", "\"2-1\"", "1-2");
  refused("none", "{0: inputs, 1}", "offload map entries of the form layers: policy", "\"1\"",
          "6-11: none");
  refused("{1: mlp}", "fc", "either recomputed or offloaded, not both",
          "fc of layer 1 in recompute ({1: mlp}) and in offload (fc)",
          "offload=inputs or offload=block");
}

TEST(RecomputeText, MistakesAreNamed) {
  const Model model(map_of(R"({"type": "gpt2", "vocab_size": 64, "n_positions": 8, "n_embd": 16,
                              "n_head": 2, "n_layer": 3})"),
                    parse_precision("fp32"));
  const auto refused = [&](const std::string& text, const std::string& expected,
                           const std::string& found, const std::string& advice) {
    EXPECT_ERROR(parse_policies(text, "none", model), ErrorCode::usage, expected, found, advice);
  };
  const std::string presets =
      "recompute as auto, one of none, norms, mlp, attention, block, norm1, mean1, rstd1, qkv, "
      "att, lse, mid, "
      "norm2, mean2, rstd2, fc, act, names joined with +, or a map of layers to them";
  refused("blocks", presets, "\"blocks\"", "did you mean block?");
  refused("norm1,act", presets, "\"norm1,act\"", "recompute=norm1+act");
  refused("", presets, "a name that is empty", "recompute=block");
  refused("norms+", presets, "a name that is empty", "recompute=block");
  refused("norms+all", presets, "\"all\"", "recompute=block");
  refused("{0-1: everything}", presets, "\"everything\"", "recompute=block");
  refused("3: block", "layers between 0 and 2", "\"3\"", "{0-2: block}");
  refused("{0-3: block}", "layers between 0 and 2", "\"3\"", "{0-2: block}");
  refused("-1: block", "layers between 0 and 2", "\"\"", "{0-2: block}");
  refused("a: block", "layers between 0 and 2", "\"a\"", "{0-2: block}");
  refused("1x: block", "layers between 0 and 2", "\"1x\"", "{0-2: block}");
  refused("99999999999999999999: block", "layers between 0 and 2", "99999999999999999999",
          "{0-2: block}");
  refused("2-1: block", "ranges of the recompute map to go up", "\"2-1\"", "1-2");
  refused("{0: block, 1}", "layers: policy", "\"1\"", "6-11: none");
}

// What a checkpoint pins of a model: whatever changes a number of it changes the word.
TEST(Fingerprint, EveryNumberOfAModelIsInIt) {
  using S = ModelSpec;
  ModelSpec s = map_of(R"({"type": "llama"})");
  s.rope.type = "yarn";
  s.layer_kinds.assign(static_cast<size_t>(s.L), {});
  s.layer_kinds[0].rope = LayerRope::local;
  s.unit_offset = true;
  const std::pair<const char*, std::function<void(S&)>> changes[] = {
      {"V", [](S& m) { ++m.V; }},
      {"P", [](S& m) { ++m.P; }},
      {"C", [](S& m) { ++m.C; }},
      {"F", [](S& m) { ++m.F; }},
      {"L", [](S& m) { ++m.L; }},
      {"H", [](S& m) { ++m.H; }},
      {"G", [](S& m) { ++m.G; }},
      {"D", [](S& m) { ++m.D; }},
      {"norm", [](S& m) { m.norm = NormKind::layernorm; }},
      {"placement", [](S& m) { m.placement = NormPlacement::post; }},
      {"activation", [](S& m) { m.activation = Activation::relu; }},
      {"head", [](S& m) { m.head = HeadKind::sequence_classification; }},
      {"gated", [](S& m) { m.gated_mlp = !m.gated_mlp; }},
      {"causal", [](S& m) { m.causal = !m.causal; }},
      {"tied", [](S& m) { m.tied = !m.tied; }},
      {"scale", [](S& m) { m.scale_attention = !m.scale_attention; }},
      {"inverse layer", [](S& m) { m.scale_by_inverse_layer = true; }},
      {"epsilon", [](S& m) { m.norm_epsilon *= 2; }},
      {"embedding dropout", [](S& m) { m.embedding_dropout = 0.25f; }},
      {"attention dropout", [](S& m) { m.attention_dropout = 0.25f; }},
      {"residual dropout", [](S& m) { m.residual_dropout = 0.25f; }},
      {"window", [](S& m) { m.window = 7; }},
      {"window of a layer", [](S& m) { m.layer_kinds[1].window = 7; }},
      {"rope of a layer", [](S& m) { m.layer_kinds[1].rope = LayerRope::none; }},
      {"theta", [](S& m) { m.rope.theta = 7; }},
      {"partial", [](S& m) { m.rope.partial = 0.5; }},
      {"type", [](S& m) { m.rope.type = "longrope"; }},
      {"factor", [](S& m) { m.rope.factor = 7; }},
      {"low", [](S& m) { m.rope.low_frequency_factor = 7; }},
      {"high", [](S& m) { m.rope.high_frequency_factor = 7; }},
      {"original", [](S& m) { m.rope.original_positions = 7; }},
      {"beta fast", [](S& m) { m.rope.beta_fast = 7; }},
      {"beta slow", [](S& m) { m.rope.beta_slow = 7; }},
      {"truncate", [](S& m) { m.rope.truncate = false; }},
      {"attention factor", [](S& m) { m.rope.attention_factor = 7; }},
      {"mscale", [](S& m) { m.rope.mscale = 7; }},
      {"mscale all", [](S& m) { m.rope.mscale_all = 7; }},
      {"short", [](S& m) { m.rope.short_factors = {7}; }},
      {"long", [](S& m) { m.rope.long_factors = {7}; }},
      {"local theta", [](S& m) { m.local_rope.theta = 7; }},
      {"local partial", [](S& m) { m.local_rope.partial = 0.5; }},
      {"local type", [](S& m) { m.local_rope.type = "linear"; }},
      {"local factor", [](S& m) { m.local_rope.factor = 7; }},
      {"qk norm",
       [](S& m) { m.qk_norm = m.qk_norm == QkNorm::none ? QkNorm::head : QkNorm::none; }},
      {"scalar", [](S& m) { m.attention_scalar = 7; }},
      {"softcap", [](S& m) { m.attention_softcap = 7; }},
      {"softcap of the head", [](S& m) { m.head_softcap = 7; }},
      {"offset", [](S& m) { m.unit_offset = false; }},
      {"embedding scale", [](S& m) { m.embedding_scale = 7; }}};
  std::map<std::string, std::string> seen = {{model_fingerprint(s), "nothing"}};
  for (const auto& [name, change] : changes) {
    ModelSpec other = s;
    change(other);
    const auto [at, own] = seen.emplace(model_fingerprint(other), name);
    EXPECT_TRUE(own) << name << " is as " << at->second;
  }
  EXPECT_EQ(model_fingerprint(s), model_fingerprint(ModelSpec(s)));
}

}  // namespace
}  // namespace snug
