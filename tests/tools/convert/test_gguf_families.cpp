// Families as GGUF: the same tensors and keys as llama.cpp's own converter makes of the fixtures of
// transformers (tests/golden/make_gguf_golden.py), back to the weights by the reverse transforms, and what
// is refused.
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <map>
#include <set>

#include "engine/io/gguf.h"
#include "engine/io/json.h"
#include "layers/models/weights.h"
#include "tests/support/errors.h"
#include "tests/support/folders.h"
#include "tools/convert/weight_rows.h"

namespace snug {
namespace {

using nlohmann::json;

// A fixture: a config, and weights under the names of save_pretrained.
struct Fixture {
  explicit Fixture(const std::string& name)
      : path(source_folder() + "/tests/golden/decoder_" + name + ".safetensors"), file(path) {
    config = parse_json(file.metadata().at("config"), path);
    family = &find_family(config.at("model_type").get<std::string>(), path);
    spec = family->parse(config, path, false);
  }
  const SafeTensor* tensor(const FilePiece& piece) const {
    for (const std::string& name : piece.names)
      if (const SafeTensor* const t = file.find(name)) return t;
    return nullptr;
  }
  WeightRows rows(const ParamInfo& p) const {
    std::vector<const SafeTensor*> tensors;
    const std::vector<FilePiece> pieces = family->pieces(p, spec);
    for (const FilePiece& piece : pieces) tensors.push_back(tensor(piece));
    return {tensors, pieces, p};
  }

  std::string path;
  SafetensorsReader file;
  json config;
  const Family* family;
  ModelSpec spec;
};

std::vector<float> values(const WeightRows& rows, const GgufPiece& piece, int64_t step) {
  std::vector<float> out(static_cast<size_t>(piece.rows * rows.width()));
  for (int64_t first = 0; first < piece.rows; first += step)
    rows.read(piece, first, std::min(step, piece.rows - first), out.data() + first * rows.width());
  return out;
}

uint32_t crc(const std::vector<float>& x) {
  return static_cast<uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(x.data()), static_cast<uInt>(x.size() * 4)));
}

// The keys of an architecture, as numbers and text.
std::map<std::string, json> keys_of(const GgufArchitecture& a, const ModelSpec& spec) {
  GgufMetadata out;
  add_gguf_keys(a, spec, out);
  const GgufLayout layout(out, {});
  const std::string& header = layout.header();
  const GgufReader file("keys", {reinterpret_cast<const uint8_t*>(header.data()), header.size()});
  std::map<std::string, json> keys;
  for (const GgufKey& key : file.keys()) {
    const std::string name = key.name.substr(std::string(a.name).size() + 1);
    if (key.kind == GgufKind::string)
      keys[name] = file.string(key);
    else if (key.kind == GgufKind::boolean)
      keys[name] = file.boolean(key);
    else
      keys[name] = file.number(key);
  }
  return keys;
}

TEST(GgufFamilies, TensorsAndKeysAreThoseOfLlamaCppsConverter) {
  const json golden = parse_json_file(source_folder() + "/tests/golden/gguf_tensors.json", 1 << 20);
  std::set<std::string> architectures;
  for (const auto& [name, truth] : golden.items()) {
    SCOPED_TRACE(name);
    const Fixture f(name);
    const GgufArchitecture& a = *f.family->gguf;
    architectures.insert(a.name);
    EXPECT_EQ(a.name, truth["architecture"].get<std::string>());
    // Refused below: what the converter leaves out, settings of yarn (u), the order of layers (r) and scales
    // of scores.
    ModelSpec plain = f.spec;
    plain.attention_scalar = 0;
    if (name != "u" && name != "r") {
      EXPECT_NO_THROW(check_gguf(a, plain, name));
    }
    json left = truth["tensors"];
    const Model model(f.spec, parse_precision("fp32"));
    for (int i = 0; i < model.params().size(); ++i) {
      const ParamInfo& p = model.params()[i];
      const WeightRows rows = f.rows(p);
      for (const GgufPiece& piece : gguf_pieces(*f.family, p, f.spec)) {
        if (!left.contains(piece.name)) {  // a tied head that the architecture wants twice
          EXPECT_TRUE(piece.name == "output.weight" && f.spec.tied) << piece.name;
          continue;
        }
        const json shape = p.shape.rank() < 2 ? json{piece.rows} : json{piece.rows, rows.width()};
        EXPECT_EQ(left[piece.name][0], shape) << piece.name;
        for (const int64_t step : {piece.rows, int64_t{5}})
          EXPECT_EQ(left[piece.name][1], crc(values(rows, piece, step))) << piece.name;
        left.erase(piece.name);
      }
    }
    for (const GgufVector& v : gguf_vectors(f.spec)) {
      ASSERT_EQ(left[v.name].size(), v.values.size()) << v.name;
      for (size_t i = 0; i < v.values.size(); ++i)
        EXPECT_NEAR(v.values[i], left[v.name][i].get<double>(), 2e-7 * v.values[i]) << v.name;
      left.erase(v.name);
    }
    EXPECT_EQ(left, json::object());
    const std::map<std::string, json> keys = keys_of(a, f.spec);
    for (const auto& [key, value] : truth["keys"].items()) {
      if (key.starts_with("rope.scaling.yarn_beta")) continue;              // see u above
      if (key == "attention.sliding_window" && value == json(0)) continue;  // the same as none
      ASSERT_TRUE(keys.count(key)) << key;
      if (value.is_number())
        EXPECT_NEAR(keys.at(key).get<double>(), value.get<double>(),
                    1e-6 * std::fabs(value.get<double>()))
            << key;
      else
        EXPECT_EQ(keys.at(key), value) << key;
    }
  }
  EXPECT_EQ(architectures, (std::set<std::string>{"gemma", "gemma2", "gemma3", "gptneox", "llama",
                                                  "olmo2", "phi3", "qwen2", "qwen3"}));
}

// Every piece moved back, the number taken off: the parameter, each of its rows once.
TEST(GgufFamilies, TransformsAreInvertible) {
  for (const char* name : {"a", "b", "d", "e", "f", "g", "h", "k", "n", "o", "q", "s"}) {
    const Fixture f(name);
    const Model model(f.spec, parse_precision("fp32"));
    for (int i = 0; i < model.params().size(); ++i) {
      const ParamInfo& p = model.params()[i];
      const WeightRows rows = f.rows(p);
      const auto width = static_cast<size_t>(rows.width());
      const std::vector<float> whole = values(rows, {"", 0, rows.rows()}, rows.rows());
      std::vector<int> seen(static_cast<size_t>(rows.rows()), 0);
      for (const GgufPiece& piece : gguf_pieces(*f.family, p, f.spec)) {
        if (piece.name == "output.weight" && f.spec.tied) continue;
        const std::vector<float> got = values(rows, piece, piece.rows);
        for (int64_t r = 0; r < piece.rows; ++r) {
          const int64_t ours = piece.groups.any() ? piece.groups.ours(r) : r;
          EXPECT_EQ(piece.groups.any() ? piece.groups.file(ours) : ours, r);
          const auto at = static_cast<size_t>(piece.first + ours);
          ++seen[at];
          for (size_t c = 0; c < width; ++c)
            ASSERT_EQ(got[static_cast<size_t>(r) * width + c], whole[at * width + c] + piece.plus)
                << name << " " << piece.name;
        }
      }
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << name << " " << p.name.view();
    }
  }
}

// What llama.cpp computes in another way. The config is the fixture's with the keys of a patch.
struct Refusal {
  const char* fixture;
  const char* patch;
  const char *expected, *found;
};
constexpr Refusal kRefusals[] = {
    {"a", R"({"hidden_act": "gelu"})", "silu, as GGUF's llama computes", "gelu in"},
    {"c", "{}", "no sliding_window below the 24 positions, as GGUF's llama computes", "5 in"},
    {"c", "{}", "texts of at most 5 tokens", "5 in"},
    {"w", "{}", "rope_type default, linear, yarn or one with factors a pair", "rope_type dynamic"},
    {"u", "{}", "beta_fast: 32 and beta_slow: 1 for rope_type yarn", "2 and 0.2"},
    {"v", R"({"rope_parameters": null})",
     "no sliding_window below the 64 positions, as GGUF's qwen2 computes", "in"},
    {"d", R"({"rope_parameters": {"rope_type": "llama3", "factor": 8, "rope_theta": 10000}})",
     "rope_type default, linear or yarn, as GGUF's qwen2 computes", "rope_type llama3"},
    {"d", R"({"rope_parameters": {"rope_type": "yarn", "factor": 2, "truncate": false}})",
     "truncate: true for rope_type yarn", "truncate: false"},
    {"i", "{}", "attention_bias: false, as GGUF's qwen3 computes", "attention_bias: true"},
    {"a", R"({"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.5}})",
     "partial_rotary_factor: 1, as GGUF's llama computes", "below 1"},
    {"f", R"({"tie_word_embeddings": false})",
     "tie_word_embeddings: true, as GGUF's gemma computes", "tie_word_embeddings: false"},
    {"f", R"({"hidden_activation": "silu"})", "gelu_new, as GGUF's gemma computes", "silu"},
    {"j", "{}", "attention_bias: true, as GGUF's gptneox computes", "attention_bias: false"},
    {"l", "{}", "attention_bias: false, as GGUF's olmo2 computes", "attention_bias: true"},
    {"m", "{}", "no sliding_window below the 64 positions, as GGUF's phi3 computes", "in"},
    {"o", "{}", "no_rope_layers: every 4th that does not turn, as GGUF's smollm3 computes",
     "does not turn"},
    {"p", "{}", "attention_bias: false, as GGUF's smollm3 computes", "attention_bias: true"},
    {"t", "{}", "final_logit_softcapping, as GGUF's gemma2 computes", "no final_logit_softcapping"},
    {"s", R"({"attn_logit_softcapping": 0, "query_pre_attn_scalar": 10})",
     "attn_logit_softcapping, as GGUF's gemma2 computes", "no attn_logit_softcapping"},
    {"s", R"({"query_pre_attn_scalar": 7})", "query_pre_attn_scalar: 10, as GGUF's gemma2 computes",
     "7 in"},
    {"q", R"({"attn_logit_softcapping": 4.0})",
     "no attn_logit_softcapping, as GGUF's gemma3 computes", "attn_logit_softcapping"},
    {"q",
     R"({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2}},
         "query_pre_attn_scalar": 10})",
     "rope_type default or linear, as GGUF's gemma3 computes", "rope_type yarn"},
    {"r", R"({"query_pre_attn_scalar": 8})", "layer_types that repeat", "another order"},
    {"q",
     R"({"layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
         "query_pre_attn_scalar": 10})",
     "layer_types that repeat", "another order"},
    {"d",
     R"({"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 4})",
     "heads as wide together as the model, as GGUF's qwen2 computes", "3 heads of width 4"},
};

TEST(GgufFamilies, WhatLlamaCppComputesOtherwiseIsRefused) {
  for (const Refusal& row : kRefusals) {
    SCOPED_TRACE(std::string(row.fixture) + " " + row.patch);
    Fixture f(row.fixture);
    f.config.merge_patch(json::parse(row.patch));
    const ModelSpec spec = f.family->parse(f.config, "m/config.json", false);
    const std::string text =
        test::expect_error(ErrorCode::unsupported, {row.expected, row.found, "m/config.json"},
                           [&] { check_gguf(*f.family->gguf, spec, "m/config.json"); });
    EXPECT_NE(text, "");
  }
}

// What is told and not refused.
TEST(GgufFamilies, Notes) {
  const auto notes = [](const char* fixture) {
    const Fixture f(fixture);
    std::string all;
    for (const std::string& note : check_gguf(*f.family->gguf, f.spec, "m")) all += note + "\n";
    return all;
  };
  EXPECT_NE(notes("g").find("llama.cpp computes gelu by tanh for every gptneox"),
            std::string::npos);
  EXPECT_NE(notes("n").find("where its context has more than 8 tokens"), std::string::npos);
  EXPECT_EQ(notes("a"), "");
}

// The windows of layers: a period that is not the architecture's own is said.
TEST(GgufFamilies, WindowsAndPublishedShapes) {
  const auto keys = [](const std::string& name) {
    const ModelSpec spec = resolve_model(name, "").spec;
    const Family& family = find_family(spec.family, name);
    check_gguf(*family.gguf, spec, name);
    return keys_of(*family.gguf, spec);
  };
  for (const char* name :
       {"smollm2-135m", "tinyllama-1.1b",   "llama-3.1-8b", "mistral-7b-v0.3",  "mistral-nemo-12b",
        "qwen2.5-0.5b", "qwen2.5-7b",       "qwen3-0.6b",   "qwen3-8b",         "gemma-2b",
        "gemma-2-2b",   "gemma-2-27b",      "gemma-3-1b",   "gemma-3-12b-text", "gemma-3-27b-text",
        "pythia-1.4b",  "polyglot-ko-1.3b", "phi-4",        "olmo2-1b",         "smollm3-3b",
        "gpt2"})
    EXPECT_NO_THROW(keys(name)) << name;
  EXPECT_EQ(keys("gemma-2-2b").at("attention.sliding_window"), json(4096.0));
  EXPECT_EQ(keys("gemma-2-2b").count("attention.sliding_window_pattern"), 0u);
  EXPECT_EQ(keys("gemma-3-1b").at("attention.sliding_window"), json(512.0));
  EXPECT_EQ(keys("gemma-3-1b").count("attention.sliding_window_pattern"), 0u);
  EXPECT_EQ(keys("gemma-3-1b").at("rope.freq_base_swa"), json(10000.0));
  const Fixture thirds("q");
  EXPECT_EQ(keys_of(*thirds.family->gguf, thirds.spec).at("attention.sliding_window_pattern"),
            json(3.0));
  // Where all layers have the window the period is one that no layer ends: of llama.cpp's rule, il % n <
  // n - 1, the least is a layer more than there are.
  Fixture all("q");
  all.config["query_pre_attn_scalar"] = 10;
  all.config["layer_types"] = std::vector<std::string>(3, "sliding_attention");
  const ModelSpec sliding = all.family->parse(all.config, "m", false);
  EXPECT_NO_THROW(check_gguf(*all.family->gguf, sliding, "m"));
  EXPECT_EQ(keys_of(*all.family->gguf, sliding).at("attention.sliding_window_pattern"), json(4.0));
  Fixture none("s");  // Gemma 2 without windows: one as long as the positions
  none.config["sliding_window"] = nullptr;
  const ModelSpec spec = none.family->parse(none.config, "m", false);
  EXPECT_EQ(keys_of(*none.family->gguf, spec).at("attention.sliding_window"), json(16.0));
  test::expect_error(ErrorCode::unsupported, {"texts of at most 2047 tokens"},
                     [&] { keys("phi-3-mini"); });
}

}  // namespace
}  // namespace snug
