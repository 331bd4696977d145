// What a GGUF file says of the tokens around a text.
#include <gtest/gtest.h>

#include "engine/io/gguf.h"
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

}  // namespace
}  // namespace snug::e2e
