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
  refused(R"({"type": "llama", "head_dim": 512})", {"head_dim between 1 and 256"},
          ErrorCode::usage);
}

}  // namespace
}  // namespace snug
