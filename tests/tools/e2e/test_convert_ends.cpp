// What a GGUF file says of the tokens around a text; a Llama in one.
#include <gtest/gtest.h>

#include "engine/io/gguf.h"
#include "engine/io/safetensors.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

// What is put around a text: by the configuration, or by the post-processor of the tokenizer.
TEST(Convert, EndsOfATextAreNamed) {
  Workspace w;
  w.trained("run", {"max_steps=1", "eval_fraction=0"});
  const std::string folder = w.path("run/final");
  const auto ends = [&] {
    const Outcome o = run({"convert", "--model", folder, "--to", "gguf", "--output",
                           w.path("m.gguf"), "--overwrite"});
    EXPECT_EQ(o.code, 0) << o.err;
    const GgufReader file(w.path("m.gguf"));
    const auto eos = file.find_key("tokenizer.ggml.add_eos_token");
    return std::pair(file.boolean(*file.find_key("tokenizer.ggml.add_bos_token")),
                     eos && file.boolean(*eos));
  };
  Json tokenizer = w.json("run/final/tokenizer.json"),
       config = w.json("run/final/tokenizer_config.json");
  const Json eot = tokenizer["added_tokens"][0]["id"];
  const Json special = {{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
             text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const auto write = [&](const Json& single) {
    tokenizer["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", single},
        {"pair", single},
        {"special_tokens",
         {{"<|endoftext|>",
           {{"id", "<|endoftext|>"}, {"ids", {eot}}, {"tokens", {"<|endoftext|>"}}}}}}};
    spill(folder + "/tokenizer.json", tokenizer.dump());
  };
  EXPECT_EQ(ends(), std::pair(false, false));
  write(Json::array({special, text}));
  EXPECT_EQ(ends(), std::pair(true, false));
  write(Json::array({special, text, special}));
  EXPECT_EQ(ends(), std::pair(true, true));
  write(Json::array({text, special}));
  EXPECT_EQ(ends(), std::pair(false, true));
  // Nothing at all, not the text either: of no parts, and of a special token without ids.
  write(Json::array());
  EXPECT_EQ(ends(), std::pair(false, false));
  write(Json::array({special}));
  tokenizer["post_processor"]["special_tokens"]["<|endoftext|>"]["ids"] = Json::array();
  tokenizer["post_processor"]["special_tokens"]["<|endoftext|>"]["tokens"] = Json::array();
  spill(folder + "/tokenizer.json", tokenizer.dump());
  EXPECT_EQ(ends(), std::pair(false, false));
  write(Json::array({special, text, special}));
  config["add_bos_token"] = false;
  spill(folder + "/tokenizer_config.json", config.dump());
  EXPECT_EQ(ends(), std::pair(false, true));
}

// Rows of queries and keys lie as llama.cpp turns them, halves of a head made pairs; the name is the
// model's own where its config says one.
TEST(Convert, ALlamaInGguf) {
  Workspace w;
  w.trained("run",
            {"model={type: llama, num_hidden_layers: 1, hidden_size: 24, intermediate_size: 40, "
             "num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 64}",
             "max_steps=1", "eval_fraction=0"});
  const std::string folder = w.path("run/final");
  Json config = w.json("run/final/config.json");
  config["_name_or_path"] = "maker/Small-Llama";
  spill(folder + "/config.json", config.dump());
  const Outcome o = run({"convert", "--model", folder, "--to", "gguf", "--dtype", "f32", "--output",
                         w.path("m.gguf")});
  ASSERT_EQ(o.code, 0) << o.err;
  const GgufReader file(w.path("m.gguf"));
  EXPECT_EQ(file.string(*file.find_key("general.architecture")), "llama");
  EXPECT_EQ(file.string(*file.find_key("general.name")), "Small-Llama");
  EXPECT_EQ(file.integer(*file.find_key("llama.attention.head_count_kv")), 2);
  const SafetensorsFolder files(folder);
  for (const auto& [gguf, hf, heads] :
       {std::tuple("q", "q", 4), std::tuple("k", "k", 2), std::tuple("v", "v", 0)}) {
    const GgufTensor& t = *file.find(std::string("blk.0.attn_") + gguf + ".weight");
    const SafeTensor& from =
        files.at(std::string("model.layers.0.self_attn.") + hf + "_proj.weight");
    ASSERT_EQ(t.shape, from.shape);
    const auto* const a = reinterpret_cast<const float*>(t.data);
    const auto* const b = reinterpret_cast<const float*>(from.data);
    for (int64_t r = 0; r < t.shape[0]; ++r) {
      const int64_t head = r / 6, in = r % 6,
                    row = heads > 0 ? head * 6 + in % 2 * 3 + in / 2 : r;  // pairs from halves
      for (int64_t c = 0; c < 24; ++c) ASSERT_EQ(a[r * 24 + c], b[row * 24 + c]) << gguf << r;
    }
  }
}

}  // namespace
}  // namespace snug::e2e
