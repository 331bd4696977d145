// snug convert: what it writes is what the folder holds, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>

#include "engine/io/gguf.h"
#include "engine/io/safetensors.h"
#include "tests/support/folders.h"
#include "tests/tools/e2e/model_files.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

// One trained model for all tests of this file's process.
const Workspace& trained() {
  static const Workspace w;
  static const Outcome once = w.trained("run", {"max_steps=4", "eval_fraction=0"});
  return w;
}

Outcome convert(const std::string& model, const std::string& to, const std::string& output,
                const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"convert", "--model", model, "--to", to, "--output", output};
  words.insert(words.end(), more.begin(), more.end());
  return run(words);
}

void expect_refused(const Outcome& o, int code, const std::vector<std::string>& words) {
  EXPECT_EQ(o.code, code) << o.out << o.err;
  for (const std::string& word : words)
    EXPECT_NE(o.err.find(word), std::string::npos) << "no \"" << word << "\" in:\n" << o.err;
}

// A copy of the trained folder in a place of its own, to be damaged.
std::string copy_of_final(const Workspace& w, const std::string& name) {
  fs::copy(trained().path("run/final"), w.path(name), fs::copy_options::recursive);
  return w.path(name);
}

std::vector<float> floats(const SafeTensor& t) {
  std::vector<float> out(static_cast<size_t>(t.elements()));
  convert(t.dtype, t.data, t.elements(), out.data());
  return out;
}

struct Pair {
  const char* gguf;
  const char* hf;
  bool transposed;
};
constexpr Pair kPairs[] = {{"token_embd.weight", "transformer.wte.weight", false},
                           {"output.weight", "transformer.wte.weight", false},
                           {"position_embd.weight", "transformer.wpe.weight", false},
                           {"blk.1.attn_qkv.weight", "transformer.h.1.attn.c_attn.weight", true},
                           {"blk.1.attn_qkv.bias", "transformer.h.1.attn.c_attn.bias", false},
                           {"blk.0.attn_output.weight", "transformer.h.0.attn.c_proj.weight", true},
                           {"blk.0.ffn_up.weight", "transformer.h.0.mlp.c_fc.weight", true},
                           {"blk.1.ffn_down.weight", "transformer.h.1.mlp.c_proj.weight", true},
                           {"blk.1.ffn_down.bias", "transformer.h.1.mlp.c_proj.bias", false},
                           {"blk.0.attn_norm.weight", "transformer.h.0.ln_1.weight", false},
                           {"blk.0.ffn_norm.bias", "transformer.h.0.ln_2.bias", false},
                           {"output_norm.bias", "transformer.ln_f.bias", false}};

TEST(Convert, GgufHoldsTheFoldersValuesAndTokenizer) {
  const Workspace& w = trained();
  const SafetensorsFolder folder(w.path("run/final"));
  for (const char* type : {"f32", "f16", "bf16", "q8_0"}) {
    const std::string path = w.path(std::string("m-") + type + ".gguf");
    const Outcome o = convert(w.path("run/final"), "gguf", path, {"--dtype", type});
    ASSERT_EQ(o.code, 0) << o.err;
    EXPECT_NE(o.out.find("29 tensors"), std::string::npos) << o.out;
    const GgufReader file(path);
    EXPECT_EQ(file.tensors().size(), 29u);
    for (const Pair& pair : kPairs) {
      const GgufTensor* t = file.find(pair.gguf);
      ASSERT_NE(t, nullptr) << pair.gguf;
      std::vector<float> want = floats(folder.at(pair.hf));
      std::vector<int64_t> shape = folder.at(pair.hf).shape;
      if (pair.transposed) {
        const std::vector<float> from = want;
        const auto rows = static_cast<size_t>(shape[0]), cols = static_cast<size_t>(shape[1]);
        for (size_t r = 0; r < rows; ++r)
          for (size_t c = 0; c < cols; ++c) want[c * rows + r] = from[r * cols + c];
        std::swap(shape[0], shape[1]);
      }
      EXPECT_EQ(t->shape, shape) << pair.gguf;
      const bool exact = shape.size() == 1 || std::string(pair.gguf) == "position_embd.weight";
      EXPECT_EQ(gguf_type_info(t->type)->name, exact                         ? std::string("F32")
                                               : type == std::string("f32")  ? "F32"
                                               : type == std::string("f16")  ? "F16"
                                               : type == std::string("bf16") ? "BF16"
                                                                             : "Q8_0")
          << pair.gguf;
      std::vector<float> got(want.size());
      ASSERT_TRUE(gguf_decode(t->type, t->data, t->elements(), got.data()));
      float most = 0;
      for (const float x : want) most = std::max(most, std::fabs(x));
      // Half a unit: f16 2^-11 relative (or 2^-25), bf16 2^-8, q8_0 half of 1/127 of the block's
      // largest and the rounding of its scale.
      const float bound = exact || type == std::string("f32") ? 0.0f
                          : type == std::string("f16")        ? most * 0x1p-11f + 0x1p-25f
                          : type == std::string("bf16")       ? most * 0x1p-8f
                                                              : most * (0.5f / 127 + 0x1p-10f);
      float worst = 0;
      for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::fabs(got[i] - want[i]));
      EXPECT_LE(worst, bound) << type << " " << pair.gguf;
    }
    EXPECT_EQ(file.string(*file.find_key("general.architecture")), "gpt2");
    EXPECT_EQ(file.string(*file.find_key("general.name")), "run");
    const auto number = [&](const char* key) { return file.integer(*file.find_key(key)); };
    EXPECT_EQ(number("gpt2.block_count"), 2);
    EXPECT_EQ(number("gpt2.context_length"), 64);
    EXPECT_EQ(number("gpt2.embedding_length"), 32);
    EXPECT_EQ(number("gpt2.feed_forward_length"), 128);
    EXPECT_EQ(number("gpt2.attention.head_count"), 4);
    EXPECT_EQ(number("general.file_type"), type == std::string("f32")    ? 0
                                           : type == std::string("f16")  ? 1
                                           : type == std::string("bf16") ? 32
                                                                         : 7);
    EXPECT_FLOAT_EQ(
        static_cast<float>(file.number(*file.find_key("gpt2.attention.layer_norm_epsilon"))),
        1e-5f);
    EXPECT_EQ(file.string(*file.find_key("tokenizer.ggml.model")), "gpt2");
    EXPECT_EQ(file.string(*file.find_key("tokenizer.ggml.pre")), "gpt-2");
    EXPECT_FALSE(file.boolean(*file.find_key("tokenizer.ggml.add_bos_token")));
    const Json tokenizer = w.json("run/final/tokenizer.json");
    const auto tokens = file.strings(*file.find_key("tokenizer.ggml.tokens"));
    const auto kinds = file.integers(*file.find_key("tokenizer.ggml.token_type"));
    ASSERT_EQ(tokens.size(), w.json("run/final/config.json")["vocab_size"].get<size_t>());
    ASSERT_EQ(kinds.size(), tokens.size());
    for (const auto& [token, id] : tokenizer["model"]["vocab"].items())
      EXPECT_EQ(tokens[id.get<size_t>()], token);
    const Json& added = tokenizer["added_tokens"][0];
    const auto eot = added["id"].get<int64_t>();
    EXPECT_EQ(added["content"], "<|endoftext|>");
    for (size_t i = 0; i < kinds.size(); ++i)
      EXPECT_EQ(kinds[i], static_cast<int64_t>(i) == eot ? 3 : 1) << i;
    for (const char* role : {"bos", "eos", "eot"})
      EXPECT_EQ(number((std::string("tokenizer.ggml.") + role + "_token_id").c_str()), eot);
    const auto merges = file.strings(*file.find_key("tokenizer.ggml.merges"));
    ASSERT_EQ(merges.size(), tokenizer["model"]["merges"].size());
    for (size_t i = 0; i < merges.size(); ++i)
      EXPECT_EQ(merges[i], tokenizer["model"]["merges"][i].get<std::string>());
  }
  for (const std::string& name : listing(w.path("")))
    EXPECT_EQ(name.find(".tmp"), std::string::npos) << name;
}

TEST(Convert, IdsWithoutATokenAreUnusedAndRowsThatDoNotFitAreF16) {
  Workspace w;
  w.trained("odd", {"model={type: gpt2, n_layer: 1, n_embd: 40, n_head: 4, n_positions: 32, "
                    "vocab_size: 310, tie_word_embeddings: false}",
                    "max_steps=1", "eval_fraction=0"});
  const Outcome o = convert(w.path("odd/final"), "gguf", w.path("odd.gguf"),
                            {"--dtype", "q8_0", "--name", "My model"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("5 matrices are F16"), std::string::npos) << o.err;
  const GgufReader file(w.path("odd.gguf"));
  const auto tokens = file.strings(*file.find_key("tokenizer.ggml.tokens"));
  const auto kinds = file.integers(*file.find_key("tokenizer.ggml.token_type"));
  ASSERT_EQ(tokens.size(), 310u);
  EXPECT_EQ(tokens[300], "[PAD300]");
  EXPECT_EQ(tokens[309], "[PAD309]");
  EXPECT_EQ(kinds[299], 1);
  EXPECT_EQ(kinds[300], 5);
  EXPECT_EQ(file.string(*file.find_key("general.name")), "My model");
  EXPECT_EQ(gguf_type_info(file.find("blk.0.ffn_down.weight")->type)->name, std::string("Q8_0"));
  EXPECT_EQ(gguf_type_info(file.find("token_embd.weight")->type)->name, std::string("F16"));
  const SafetensorsFolder folder(w.path("odd/final"));
  EXPECT_EQ(file.find("output.weight")->shape, folder.at("lm_head.weight").shape);

  // An added token that is not special is the user's own, which llama.cpp prints.
  fs::copy(w.path("odd/final"), w.path("own"), fs::copy_options::recursive);
  Json tokenizer = w.json("own/tokenizer.json");
  Json added = tokenizer["added_tokens"][0];
  added["id"] = 300;
  added["content"] = "<tool>";
  added["special"] = false;
  tokenizer["added_tokens"].push_back(added);
  spill(w.path("own/tokenizer.json"), tokenizer.dump());
  const Outcome own = convert(w.path("own"), "gguf", w.path("own.gguf"));
  ASSERT_EQ(own.code, 0) << own.err;
  const GgufReader with(w.path("own.gguf"));
  EXPECT_EQ(with.strings(*with.find_key("tokenizer.ggml.tokens"))[300], "<tool>");
  const auto own_kinds = with.integers(*with.find_key("tokenizer.ggml.token_type"));
  EXPECT_EQ(own_kinds[300], 4);
  EXPECT_EQ(own_kinds[301], 5);
}

TEST(Convert, ToAFolderOfAnotherDtype) {
  const Workspace& w = trained();
  const SafetensorsFolder from(w.path("run/final"));
  for (const char* type : {"f32", "bf16", "f16"}) {
    const std::string out = w.path(std::string("hf-") + type);
    const Outcome o = convert(w.path("run/final"), "hf", out, {"--dtype", type});
    ASSERT_EQ(o.code, 0) << o.err;
    const SafetensorsFolder folder(out);
    ASSERT_EQ(folder.tensors().size(), from.tensors().size());
    for (const SafeTensor* t : from.tensors()) {
      const SafeTensor& to = folder.at(t->name);
      EXPECT_EQ(to.shape, t->shape);
      const std::vector<float> a = floats(*t), b = floats(to);
      for (size_t i = 0; i < a.size(); ++i)
        ASSERT_EQ(b[i], type == std::string("bf16")  ? to_f32(from_f32<bf16>(a[i]))
                        : type == std::string("f16") ? to_f32(from_f32<f16>(a[i]))
                                                     : a[i]);
    }
    EXPECT_EQ(Json::parse(slurp(out + "/config.json"))["torch_dtype"],
              type == std::string("f32")    ? "float32"
              : type == std::string("bf16") ? "bfloat16"
                                            : "float16");
    EXPECT_TRUE(exists(out + "/tokenizer.json"));
    EXPECT_EQ(listing(out), model_files(w.path("run/final")));
    const Outcome eval = run({"eval", "--model", out, "--data", w.path("text.txt"), "--json",
                              "--max-length", "32", "--memory", "64MiB", "--threads", "1"});
    EXPECT_EQ(eval.code, 0) << eval.err;
    expect_refused(convert(w.path("run/final"), "hf", out, {}), 2,
                   {"--output as a folder that is not there yet", out, "another name"});
  }
  EXPECT_EQ(slurp(w.path("hf-f32/model.safetensors")),
            slurp(w.path("run/final/model.safetensors")));
}

// Changes a JSON file.
void edit(const std::string& path, const std::function<void(Json&)>& change) {
  Json j = Json::parse(slurp(path));
  change(j);
  spill(path, j.dump());
}

// The folder's weights again as F64, with `more` behind them.
void as_f64(const std::string& folder, const std::vector<SafeSpec>& more, double first) {
  const SafetensorsFolder from(trained().path("run/final"));
  std::vector<SafeSpec> specs;
  for (const SafeTensor* t : from.tensors()) specs.push_back({t->name, SafeDType::F64, t->shape});
  specs.insert(specs.end(), more.begin(), more.end());
  const SafetensorsLayout layout({{"format", "pt"}}, specs);
  fs::remove(folder + "/model.safetensors");
  SafetensorsWriter writer(folder + "/model.safetensors", layout);
  for (const SafeSpec& spec : layout.tensors()) {
    const SafeTensor* t = from.find(spec.name);
    int64_t n = 1;
    for (const int64_t extent : spec.shape) n *= extent;
    const std::vector<float> narrow = t ? floats(*t) : std::vector<float>(static_cast<size_t>(n));
    std::vector<double> values(narrow.begin(), narrow.end());
    if (spec.name == "transformer.wte.weight") values[0] = first;
    writer.begin(spec.name);
    writer.append(values.data(), n * 8);
    writer.end();
  }
  writer.commit();
}

// An empty folder that is there stays the one it is: under a link, as the current one, as a mount.
TEST(Convert, IntoAnEmptyFolder) {
  const Workspace& w = trained();
  const std::string model = w.path("run/final");
  for (const char* name : {"empty", "here"}) fs::create_directory(w.path(name));
  fs::create_directory_symlink(w.path("empty"), w.path("link"));
  const Outcome link = convert(model, "hf", w.path("link"));
  EXPECT_EQ(link.code, 0) << link.err;
  EXPECT_TRUE(fs::is_symlink(w.path("link")));
  EXPECT_EQ(listing(w.path("empty")), model_files(model));
  const Outcome here = shell("cd " + w.path("here") + " && $SNUG convert --model " + model +
                             " --to hf --output . && test -f config.json");
  EXPECT_EQ(here.code, 0) << here.err;
  EXPECT_EQ(listing(w.path("here")), model_files(model));
  fs::create_directory_symlink(w.path("nowhere"), w.path("astray"));
  expect_refused(convert(model, "hf", w.path("astray")), 2,
                 {"--output as a folder that is not there yet, or an empty one",
                  w.path("astray") + ", a link to nothing", "try:   another name"});
}

// What is wrong with the tokenizer is said before weights are written: here none can be.
TEST(Convert, TheTokenizerIsReadFirst) {
  const Workspace w;
  const std::string model = copy_of_final(w, "model");
  spill(model + "/tokenizer.json", "{");
  fs::create_directory(w.path("empty"));
  for (const char* name : {"new", "empty"}) {
    const Outcome o =
        shell("ulimit -f 50; $SNUG convert --model " + model + " --to hf --output " + w.path(name));
    expect_refused(o, 2, {"tokenizer.json"});
  }
  EXPECT_FALSE(exists(w.path("new")));
  EXPECT_TRUE(fs::is_empty(w.path("empty")));
}

// What a folder says beside the numbers: which tokens stop a text, how to sample, what others use.
TEST(Convert, ToAFolderKeepsWhatTheFilesSay) {
  Workspace w;
  const std::string folder = copy_of_final(w, "m");
  const std::string generation = "{\"eos_token_id\": [5, 7], \"temperature\": 0.6}\n";
  spill(folder + "/generation_config.json", generation);
  edit(folder + "/config.json", [](Json& j) {
    j["pad_token_id"] = 3;
    j["task_specific_params"] = {{"text-generation", {{"max_length", 50}}}};
    j["dtype"] = "bfloat16";
    j["torch_dtype"] = "bfloat16";
    j["eos_token_id"] = {5, 7};
  });
  ASSERT_EQ(convert(folder, "hf", w.path("a")).code, 0);
  EXPECT_EQ(slurp(w.path("a/generation_config.json")), generation);
  const Json config = w.json("a/config.json");
  EXPECT_EQ(config["pad_token_id"], 3);
  EXPECT_EQ(config["task_specific_params"]["text-generation"]["max_length"], 50);
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_FALSE(config.contains("dtype"));
  EXPECT_EQ(config["eos_token_id"], Json({5, 7}));
  fs::remove(folder + "/generation_config.json");
  ASSERT_EQ(convert(folder, "hf", w.path("b")).code, 0);
  EXPECT_EQ(w.json("b/generation_config.json")["eos_token_id"], Json({5, 7}));
}

TEST(Convert, TensorsOfNoParameterAreNamed) {
  Workspace w;
  const std::string folder = copy_of_final(w, "m");
  as_f64(folder, {{"score.weight", SafeDType::F64, {2, 32}}}, 0);
  for (const char* to : {"hf", "gguf"}) {
    const Outcome o = convert(folder, to, w.path(std::string("out-") + to));
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_NE(o.err.find("tensor score.weight is not part of the model"), std::string::npos)
        << o.err;
  }
}

// A half of an f16's unit and a bit, which f32 does not hold: by way of f32 it would go down.
TEST(Convert, F64IsRoundedOnce) {
  Workspace w;
  const std::string folder = copy_of_final(w, "m");
  as_f64(folder, {}, 1 + 0x1p-11 + 0x1p-30);
  ASSERT_EQ(convert(folder, "hf", w.path("f16"), {"--dtype", "f16"}).code, 0);
  const SafetensorsFolder made(w.path("f16"));
  EXPECT_EQ(floats(made.at("transformer.wte.weight"))[0], 1 + 0x1p-10f);
  as_f64(folder, {}, 1e300);
  expect_refused(convert(folder, "hf", w.path("none"), {"--dtype", "f16"}), 2,
                 {"weights that F16 can hold", "inf at element 0 of transformer.wte.weight"});
}

// Where the tokenizer does not say which token ends a text, the model may; and what a GGUF file
// cannot say is said to the user.
TEST(Convert, TheEndOfATextInGguf) {
  Workspace w;
  const std::string folder = copy_of_final(w, "m"), out = w.path("m.gguf");
  edit(folder + "/tokenizer_config.json",
       [](Json& j) { j["eos_token"] = j["bos_token"] = nullptr; });
  spill(folder + "/generation_config.json", "{\"eos_token_id\": [7, 5]}");
  edit(folder + "/config.json", [](Json& j) { j["bos_token_id"] = 4; });
  const Outcome list = convert(folder, "gguf", out);
  ASSERT_EQ(list.code, 0) << list.err;
  EXPECT_EQ(list.err.find("as well"), std::string::npos) << list.err;
  {
    const GgufReader file(out);
    for (const auto& [role, id] : {std::pair("eos", 7), std::pair("eot", 5), std::pair("bos", 4)}) {
      const GgufKey* const key = file.find_key(std::string("tokenizer.ggml.") + role + "_token_id");
      ASSERT_NE(key, nullptr) << role;
      EXPECT_EQ(file.integer(*key), id) << role;
    }
  }
  fs::remove(folder + "/generation_config.json");
  edit(folder + "/config.json", [](Json& j) { j["bos_token_id"] = j["eos_token_id"] = nullptr; });
  const Outcome none = convert(folder, "gguf", out, {"--overwrite"});
  EXPECT_NE(none.err.find("says which token ends a text"), std::string::npos) << none.err;
  const GgufReader file(out);
  EXPECT_FALSE(file.find_key("tokenizer.ggml.eos_token_id"));
  EXPECT_EQ(none.err.find("ignore_merges"), std::string::npos) << none.err;
  edit(folder + "/tokenizer.json", [](Json& j) { j["model"]["ignore_merges"] = true; });
  const Outcome whole = convert(folder, "gguf", out, {"--overwrite"});
  EXPECT_NE(whole.err.find("the tokenizer has ignore_merges true, llama.cpp with gpt-2 false"),
            std::string::npos)
      << whole.err;
  const Outcome asked = convert(folder, "gguf", out, {"--overwrite", "--pre", "llama-bpe"});
  EXPECT_EQ(asked.err.find("ignore_merges"), std::string::npos) << asked.err;
}

// A folder whose tokenizer is a vocab.txt alone is one with a tokenizer, for every command.
TEST(Convert, AVocabularyOfLinesIsATokenizer) {
  Workspace w;
  const std::string folder = copy_of_final(w, "m"), out = w.path("copy");
  for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"})
    fs::remove(folder + "/" + name);
  spill(folder + "/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n##s\n");
  const Outcome made = convert(folder, "hf", out);
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(made.err.find("no tokenizer"), std::string::npos) << made.err;
  EXPECT_TRUE(exists(out + "/tokenizer.json"));
  const Outcome facts = run({"inspect", folder, "--json"});
  EXPECT_EQ(Json::parse(facts.out)["tokenizer"], true);
  const Outcome text =
      run({"generate", "--model", folder, "--prompt", "the cats", "--max-new-tokens", "3"});
  EXPECT_EQ(text.code, 0) << text.err;
  const Outcome plan = run({"plan", "model=" + folder, "train_data=" + w.path("none.txt"),
                            "sample_prompt=the cats", "output_dir=" + w.path("r")});
  EXPECT_EQ(plan.code, 0) << plan.err;
  fs::create_directories(w.path("t"));
  spill(w.path("t/vocab.txt"), slurp(folder + "/vocab.txt"));
  const Outcome alone = run({"inspect", w.path("t")});
  EXPECT_NE(alone.out.find("WordPiece"), std::string::npos) << alone.out << alone.err;
}

TEST(Convert, WrongWordsAreExplained) {
  const Workspace& w = trained();
  const std::string model = w.path("run/final"), out = w.path("nothing.gguf");
  expect_refused(convert(model, "ggml", out), 2, {"--to gguf or --to hf", "\"ggml\"", "gguf"});
  expect_refused(convert(model, "gguf", out, {"--dtype", "q4_0"}), 2,
                 {"--dtype f32, f16, bf16 or q8_0", "\"q4_0\"", "q8_0"});
  expect_refused(convert(model, "hf", out, {"--dtype", "q8_0"}), 2,
                 {"--dtype f32, f16, bf16 or int8", "a type of GGUF", "--to gguf"});
  expect_refused(convert(w.path("none"), "gguf", out), 2,
                 {"--model as a folder", w.path("none"), "--model run1/final"});
  expect_refused(convert(model, "gguf", w.path("")), 2,
                 {"--output as a file", "which is a folder", "model.gguf"});
  expect_refused(convert(model, "gguf", ""), 2,
                 {"a value for --output", "an empty one", "--output PATH"});
  expect_refused(convert(model, "hf", w.path("x"), {"--pre", "gpt-2"}), 2,
                 {"--pre only with --to gguf", "leave --pre out"});
  expect_refused(convert(model, "hf", w.path("x"), {"--name", "n"}), 2,
                 {"--name only with --to gguf"});
  expect_refused(convert(model, "gguf", w.path("no/such/x.gguf")), 2,
                 {"--output in a folder that is there", "which is not", "create the folder first"});
  expect_refused(convert(model, "hf", w.path("no/such/x")), 1,
                 {"to make a folder beside", "No such file or directory", "--output"});
  EXPECT_FALSE(exists(out));
}

TEST(Convert, WhatGgufCannotSayIsRefused) {
  Workspace w;
  const std::string folder = copy_of_final(w, "m"), out = w.path("m.gguf");
  const std::string config = slurp(folder + "/config.json");
  const auto with = [&](const char* key, const Json& value) {
    Json changed = Json::parse(config);
    changed[key] = value;
    spill(folder + "/config.json", changed.dump());
    return convert(folder, "gguf", out);
  };
  expect_refused(with("activation_function", "relu"), 2,
                 {"gelu_new, as GGUF's gpt2 computes", "/config.json", "Hugging Face folder"});
  expect_refused(with("scale_attn_weights", false), 2, {"scale_attn_weights: true", "false in"});
  expect_refused(with("scale_attn_by_inverse_layer_idx", true), 2,
                 {"scale_attn_by_inverse_layer_idx: false", "true in"});
  expect_refused(with("vocab_size", 299), 2,
                 {"a tokenizer of at most 299 tokens", "300 tokens", "put the tokenizer"});
  expect_refused(with("n_embd", 64), 2,
                 {"transformer.wte.weight of shape (300,64)", "(300,32)", "belong together"});
  spill(folder + "/config.json", config);

  const std::string tokenizer = slurp(folder + "/tokenizer.json");
  const auto with_tokenizer = [&](const char* key, const Json& value,
                                  const std::vector<std::string>& more = {}) {
    Json changed = Json::parse(tokenizer);
    changed[key] = value;
    spill(folder + "/tokenizer.json", changed.dump());
    return convert(folder, "gguf", out, more);
  };
  const Json prefix = {{"type", "ByteLevel"},
                       {"add_prefix_space", true},
                       {"trim_offsets", true},
                       {"use_regex", true}};
  const std::string config_file = slurp(folder + "/tokenizer_config.json");
  Json no_prefix = Json::parse(config_file);
  no_prefix.erase("add_prefix_space");
  spill(folder + "/tokenizer_config.json", no_prefix.dump());
  expect_refused(with_tokenizer("pre_tokenizer", prefix), 2,
                 {"a splitting rule that GGUF has a name for", "another one in", "--pre NAME"});
  const Outcome forced = with_tokenizer("pre_tokenizer", prefix, {"--pre", "mine"});
  EXPECT_EQ(forced.code, 0) << forced.err;
  EXPECT_NE(forced.err.find("tokenizer.ggml.pre is mine, as asked"), std::string::npos);
  EXPECT_EQ(GgufReader(out).string(*GgufReader(out).find_key("tokenizer.ggml.pre")), "mine");
  fs::remove(out);
  expect_refused(with_tokenizer("normalizer", {{"type", "NFKC"}}), 2,
                 {"no normaliser, or NFC", "NFKC in", "keep the Hugging Face folder"});
  const Outcome nfc = with_tokenizer("normalizer", {{"type", "NFC"}});
  EXPECT_EQ(nfc.code, 0) << nfc.err;
  EXPECT_NE(nfc.err.find("NFC is not part of GGUF"), std::string::npos);
  fs::remove(out);
  for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt"})
    fs::remove(folder + "/" + name);
  expect_refused(convert(folder, "gguf", out), 2,
                 {"tokenizer.json file, or a folder with", "has none of them"});
  const Outcome without = convert(folder, "hf", w.path("without"));
  EXPECT_EQ(without.code, 0) << without.err;
  EXPECT_NE(without.err.find("the folder has no tokenizer"), std::string::npos);
  EXPECT_FALSE(exists(out));
}

// The splitting rules of the tokenizers that Python made get llama.cpp's names.
TEST(Convert, SplittingRulesHaveTheirNames) {
  Workspace w;
  const std::string folder = copy_of_final(w, "m"), out = w.path("m.gguf");
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"})
    fs::remove(folder + "/" + name);
  const std::string golden = source_folder() + "/tests/golden/tokenizer_";
  for (const auto& [file, rule] : {std::pair("gpt2", "gpt-2"), std::pair("llama3", "llama-bpe"),
                                   std::pair("qwen", "qwen2"), std::pair("o200k", "gpt-4o")}) {
    // Its tokens are more than the model has: only the parts that say how text is split are taken.
    const Json from = Json::parse(slurp(golden + file + ".json"));
    Json to = Json::parse(slurp(trained().path("run/final/tokenizer.json")));
    for (const char* part : {"pre_tokenizer", "normalizer"}) to[part] = from[part];
    to["model"]["ignore_merges"] = from["model"].value("ignore_merges", false);
    spill(folder + "/tokenizer.json", to.dump());
    const Outcome o = convert(folder, "gguf", out, {"--overwrite"});
    ASSERT_EQ(o.code, 0) << o.err;
    const GgufReader reader(out);
    EXPECT_EQ(reader.string(*reader.find_key("tokenizer.ggml.pre")), rule);
  }
}

TEST(Convert, AValueThatDoesNotFitIsNamedAndNothingIsWritten) {
  Workspace w;
  const std::string folder = copy_of_final(w, "m");
  const SafetensorsReader reader(folder + "/model.safetensors");
  std::string bytes = slurp(folder + "/model.safetensors");
  const SafeTensor& t = reader.at("transformer.h.1.mlp.c_fc.weight");  // (32, 128) in the file
  const auto at = static_cast<size_t>(t.data - reader.tensors().front().data) + bytes.size() - [&] {
    size_t all = 0;
    for (const SafeTensor& each : reader.tensors()) all += static_cast<size_t>(each.bytes);
    return all;
  }();
  const auto set = [&](float value) {
    std::memcpy(bytes.data() + at + (3 * 128 + 70) * 4, &value, 4);  // row 70 of (out, in)
    fs::remove(folder + "/model.safetensors");
    spill(folder + "/model.safetensors", bytes);
  };
  set(70000.0f);
  const std::string out = w.path("m.gguf");
  spill(out, "what was there");
  expect_refused(convert(folder, "gguf", out), 2,
                 {"--output as a file that is not there yet", out, "--overwrite to replace it"});
  expect_refused(
      convert(folder, "gguf", out, {"--dtype", "f16", "--overwrite"}), 2,
      {"weights that F16 can hold", "row 70 of transformer.h.1.mlp.c_fc.weight", "--dtype bf16"});
  EXPECT_EQ(slurp(out), "what was there");
  expect_refused(convert(folder, "hf", w.path("f16"), {"--dtype", "f16"}), 2,
                 {"weights that F16 can hold", "70000 at element 454 of transformer.h.1.mlp.c_fc",
                  "--dtype bf16"});
  EXPECT_FALSE(exists(w.path("f16")));
  EXPECT_EQ(convert(folder, "gguf", out, {"--dtype", "q8_0", "--overwrite"}).code, 0);
  set(NAN);
  expect_refused(convert(folder, "gguf", out, {"--dtype", "q8_0", "--overwrite"}), 2,
                 {"weights that Q8_0 can hold", "row 70"});
  EXPECT_EQ(convert(folder, "gguf", out, {"--dtype", "bf16", "--overwrite"}).code, 0);
  for (const std::string& name : listing(w.path("")))
    EXPECT_EQ(name.find("m.gguf."), std::string::npos) << name;
}

TEST(Convert, AFullDiskLeavesWhatWasThere) {
  const Workspace& w = trained();
  const std::string out = w.path("full.gguf");
  spill(out, "old");
  const Outcome o = shell("ulimit -f 50; $SNUG convert --model " + w.path("run/final") +
                          " --to gguf --dtype f32 --overwrite --output " + out);
  EXPECT_EQ(o.code, 1) << o.out << o.err;
  EXPECT_NE(o.err.find("device: expected to write " + out), std::string::npos) << o.err;
  EXPECT_EQ(slurp(out), "old");
  fs::remove(out);
  const Outcome folder = shell("ulimit -f 50; $SNUG convert --model " + w.path("run/final") +
                               " --to hf --output " + w.path("full"));
  EXPECT_EQ(folder.code, 1) << folder.out << folder.err;
  const Workspace other;
  EXPECT_EQ(shell("ulimit -f 50; mkdir " + other.path("empty") + "; $SNUG convert --model " +
                  w.path("run/final") + " --to hf --output " + other.path("empty"))
                .code,
            1);
  EXPECT_EQ(listing(other.path("empty")), std::vector<std::string>());
  for (const std::string& name : listing(w.path("")))
    EXPECT_EQ(name.rfind("full", 0), std::string::npos) << name;
}

TEST(Convert, WhatIsReadIsNotWrittenOver) {
  const Workspace w;
  const std::string folder = copy_of_final(w, "m"), weights = folder + "/model.safetensors";
  const std::string before = slurp(weights);
  expect_refused(convert(folder, "gguf", weights), 2, {"that is not there yet", weights});
  expect_refused(convert(folder, "gguf", weights, {"--overwrite"}), 2,
                 {"another file than the model's own", weights, "/model.gguf"});
  fs::create_symlink(weights, w.path("link"));
  expect_refused(convert(folder, "gguf", w.path("link"), {"--overwrite"}), 2,
                 {"another file than the model's own"});
  EXPECT_EQ(slurp(weights), before);
  // As caches have them: the folder's files lead to others elsewhere.
  fs::rename(weights, w.path("blob"));
  fs::create_symlink(w.path("blob"), weights);
  for (const std::string& name : {weights, w.path("blob"), w.path("link")})
    expect_refused(convert(folder, "gguf", name, {"--overwrite"}), 2,
                   {"another file than the model's own"});
  EXPECT_TRUE(slurp(w.path("blob")) == before);
  EXPECT_EQ(convert(folder, "gguf", folder + "/model.gguf").code, 0);
}

}  // namespace
}  // namespace snug::e2e
