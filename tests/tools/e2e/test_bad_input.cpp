// Whatever is wrong with what the user gives: exit code 2, what was expected, what was found, what
// to try, and nothing written.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

// Words of a snug command in which @ stands for the workspace; "..." at the front stands for a good
// `train` command that the words after it change.
struct Row {
  const char* name;
  std::vector<std::string> words;
  std::vector<const char*> says;  // parts of the message
};

std::vector<std::string> expanded(const Workspace& w, const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (std::string word : words) {
    if (word == "...") {
      out = w.train_arguments("out");
      continue;
    }
    for (size_t at = 0; (at = word.find('@', at)) != std::string::npos;)
      word.replace(at, 1, w.path(""));
    out.push_back(word);
  }
  return out;
}

void check(const Workspace& w, const std::vector<Row>& rows) {
  const std::vector<std::string> before = listing(w.path(""));
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const Outcome outcome = run(expanded(w, row.words));
    EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
    for (const char* part : {": expected ", "\n  found: ", "\n  try:   "})
      EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    for (const char* part : row.says)
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << "\nin " << outcome.err;
    EXPECT_EQ(outcome.err.find("internal"), std::string::npos) << outcome.err;
    EXPECT_EQ(listing(w.path("")), before) << "nothing is written";
  }
}

TEST(BadInput, Commands) {
  const Workspace w;
  check(
      w,
      {
          {"command", {"trian"}, {"a command of snug", "\"trian\"", "did you mean train?"}},
          {"subcommand", {"tokenizer", "encod"}, {"did you mean encode?"}},
          {"flag", {"...", "--print-confg"}, {"\"--print-confg\"", "did you mean --print-config?"}},
          {"key as flag", {"...", "--max-steps=3"}, {"no dashes: max_steps=..."}},
          {"no key", {"...", "max_steps"}, {"expected key=value", "\"max_steps\""}},
          {"flag without value", {"eval", "--model"}, {"--model"}},
          {"eval without model", {"eval", "--data", "@text.txt"}, {"--model for snug eval"}},
          {"eval without data", {"eval", "--model", "@"}, {"--data or --choices for snug eval"}},
          {"vocab size",
           {"tokenizer", "train", "--vocab-size", "x", "--output", "@t", "@text.txt"},
           {"an integer for --vocab-size", "\"x\""}},
          {"vocab size too small",
           {"tokenizer", "train", "--vocab-size", "10", "--output", "@t.json", "@text.txt"},
           {"10"}},
          {"config file", {"train", "--config", "@none.yaml"}, {"none.yaml"}},
      });
}

TEST(BadInput, Keys) {
  const Workspace w;
  spill(w.path("bad.yaml"), "seed: 1\nlerning_rate: 0.1\n");
  spill(w.path("type.yaml"), "seed: 1\n\nmax_steps: many\n");
  spill(w.path("broken.yaml"), "seed: [1\nmax_steps: 3\n");
  check(
      w,
      {
          {"unknown in a file",
           {"train", "--config", "@bad.yaml"},
           {"\"lerning_rate\"", "bad.yaml:2", "did you mean learning_rate?"}},
          {"unknown",
           {"...", "memroy=1GiB"},
           {"\"memroy\" (command line)", "did you mean memory?"}},
          {"meaningless here", {"...", "run_name=x"}, {"leave it out: metrics go to"}},
          {"report_to",
           {"...", "report_to=wandb"},
           {"report_to as all", "metrics go to files only"}},
          {"type in a file", {"train", "--config", "@type.yaml"}, {"\"many\"", "type.yaml:3"}},
          {"no YAML", {"train", "--config", "@broken.yaml"}, {"broken.yaml:"}},
          {"type", {"...", "max_steps=ten"}, {"an integer for max_steps"}},
          {"fraction of a step", {"...", "max_steps=1.5"}, {"an integer for max_steps"}},
          {"flag", {"...", "overwrite=maybe"}, {"true or false for overwrite"}},
          {"memory unit", {"...", "memory=4Gigs"}, {"4Gigs"}},
          {"memory sign", {"...", "memory=-1"}, {"-1"}},
          {"time", {"...", "max_time=2parsecs"}, {"a time such as 90s"}},
          {"micro-batch",
           {"...", "per_device_train_batch_size=4"},
           {"a multiple of per_device_train_batch_size", "global_batch_size: 6"}},
          {"three sizes",
           {"...", "per_device_train_batch_size=3", "gradient_accumulation_steps=3"},
           {"per_device_train_batch_size x gradient_accumulation_steps"}},
          {"tokens", {"...", "global_batch_tokens=100"}, {"a multiple of max_length 32"}},
          {"eval_fraction of 1", {"...", "eval_fraction=1"}, {"eval_fraction", "below 1"}},
          {"eval_fraction below 0", {"...", "eval_fraction=-0.1"}, {"eval_fraction", "at least 0"}},
          {"two evaluations", {"...", "eval_data=@text.txt"}, {"eval_data or eval_fraction"}},
          {"max_length", {"...", "max_length=65"}, {"at most 64, the model's positions"}},
          {"max_length of 0", {"...", "max_length=0"}, {"max_length"}},
          {"optimizer", {"...", "optim=adan"}, {"optim as one of", "\"adan\""}},
          {"optimizer not built", {"...", "optim=adamw_8bit"}, {"which is not built"}},
          {"another's setting", {"...", "sgd_momentum=0.9"}, {"sgd_momentum only with optim: sgd"}},
          {"schedule", {"...", "lr_scheduler_type=cosin"}, {"did you mean cosine?"}},
          {"recompute", {"...", "recompute=blocks"}, {"did you mean block?"}},
          {"recompute of a layer", {"...", "recompute={0-9: block}"}, {"0 and 1"}},
          {"precision", {"...", "precision=fp12"}, {"precision: fp12 (command line)"}},
          {"precision not built", {"...", "precision=fp16"}, {"fp16"}},
          {"device", {"...", "device=cuda"}, {"device as one of auto, cpu"}},
          {"task", {"...", "task=masked_lm"}, {"which is not built"}},
          {"permission", {"...", "allow=[micro_bath]"}, {"did you mean micro_batch?"}},
          {"permission not built", {"...", "allow=[adam8bit]"}, {"which is not built"}},
          {"seed", {"...", "seed=-1"}, {"seed of at least 0"}},
          {"rate", {"...", "learning_rate=fast"}, {"a number for learning_rate"}},
          {"rate without bound", {"...", "learning_rate=inf"}, {"a number for learning_rate"}},
      });
}

TEST(BadInput, Data) {
  const Workspace w;
  spill(w.path("empty.txt"), "");
  spill(w.path("short.txt"), "the cat sees a red door.");
  spill(w.path("half.txt.gz"), std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03K", 11));
  spill(w.path("plain.jsonl.zst"), "{\"text\": \"the cat\"}\n");
  spill(w.path("table.csv"), "id,body\n1,the cat\n2,a dog, a bird\n");
  spill(w.path("quote.tsv"), "id\ttext\n1\t\"the cat\n");
  spill(w.path("binary.txt"), std::string("the cat\nsees \xff\xfe a door\n"));
  spill(w.path("bad.jsonl"), "{\"text\": \"the cat\"}\n{\"text\": \"a dog\n");
  spill(w.path("notext.jsonl"), "{\"text\": \"the cat\"}\n\n{\"txt\": \"a dog\"}\n");
  std::vector<uint16_t> ids = numbered_tokens(500, 300);
  spill(w.path("good.bin"), raw_tokens(ids));
  ids[400] = 300;
  spill(w.path("large.bin"), raw_tokens(ids));
  spill(w.path("odd.bin"), raw_tokens(ids) + "x");
  spill(w.path("empty.bin"), "");
  spill(w.path("one.bin"), raw_tokens(numbered_tokens(32, 300)));
  std::filesystem::create_directory(w.path("hollow"));
  check(
      w,
      {
          {"missing", {"...", "train_data=@none.txt"}, {"none.txt", "nothing of that name"}},
          {"not given", {"...", "train_data=null"}, {"train_data as a file, folder or pattern"}},
          {"empty", {"...", "train_data=@empty.txt"}, {"empty.txt", "text to learn from"}},
          {"empty folder", {"...", "train_data=@hollow"}, {"files in the folder"}},
          {"no match", {"...", "train_data=@*.md"}, {"files that match"}},
          {"short", {"...", "train_data=@short.txt"}, {"at least 33 tokens", "max_length"}},
          {"short of a token", {"...", "train_data=@one.bin"}, {"at least 33 tokens", "32"}},
          {"nothing left to train on",
           {"...", "train_data=@one.bin", "max_length=31", "eval_fraction=0.5"},
           {"one to hold"}},
          {"not text", {"...", "train_data=@binary.txt"}, {"binary.txt:2", "0xff"}},
          {"broken record", {"...", "train_data=@bad.jsonl"}, {"bad.jsonl:2"}},
          {"record without text",
           {"...", "train_data=@notext.jsonl"},
           {"notext.jsonl:3", "no \"text\""}},
          {"token outside",
           {"...", "train_data=@large.bin"},
           {"below the vocabulary size 300", "300 at position 400 of 500"}},
          {"half of a packed file",
           {"...", "train_data=@half.txt.gz"},
           {"half.txt.gz to be a whole gzip file"}},
          {"not packed", {"...", "train_data=@plain.jsonl.zst"}, {"zstd data in "}},
          {"table without the column",
           {"...", "train_data=@table.csv"},
           {"a column \"text\" in ", "the columns id, body", "text_column=id"}},
          {"broken table",
           {"...", "train_data=@table.csv", "text_column=body"},
           {"2 fields in every record", "table.csv:3"}},
          {"open quote", {"...", "train_data=@quote.tsv"}, {"a closing quote in ", "quote.tsv:2"}},
          {"text column of no table",
           {"...", "text_column=body"},
           {"a .jsonl, .csv or .tsv file for text_column", "body (command line)"}},
          {"attention", {"...", "neat_packing=true"}, {"no masks of documents"}},
          {"odd", {"...", "train_data=@odd.bin"}, {"odd number of bytes, 1001"}},
          {"empty tokens", {"...", "train_data=@empty.bin"}, {"empty.bin"}},
          {"eval missing",
           {"...", "eval_fraction=0", "eval_data=@none.txt"},
           {"none.txt", "nothing of that name"}},
          {"eval short",
           {"...", "eval_fraction=0", "eval_data=@short.txt"},
           {"at least 33 tokens"}},
          {"eval token outside",
           {"...", "eval_fraction=0", "eval_data=@large.bin"},
           {"300 at position 400"}},
          {"no tokenizer for text",
           {"...", "tokenizer=null", "model.vocab_size=300"},
           {"tokenizer for the text in train_data", "snug tokenizer train"}},
          {"tokenizer missing", {"...", "tokenizer=@none.json"}, {"none.json"}},
          {"tokenizer of another kind", {"...", "tokenizer=@text.txt"}, {"text.txt"}},
          {"tokenizer larger",
           {"...", "model.vocab_size=299"},
           {"299 tokens, the model's vocab_size", "tok.json with 300 tokens"}},
          {"nothing to learn a tokenizer from",
           {"tokenizer", "train", "--vocab-size", "300", "--output", "@t.json", "@empty.txt"},
           {"text to learn from"}},
      });
}

TEST(BadInput, Models) {
  const Workspace w;
  w.trained("run", {"max_steps=1", "eval_fraction=0"});
  const auto copy = [&](const std::string& name) {
    std::filesystem::copy(w.path("run/final"), w.path(name));
    return w.path(name);
  };
  const std::string weights = slurp(w.path("run/final/model.safetensors"));
  spill(copy("cut") + "/model.safetensors", weights.substr(0, weights.size() - 100));
  std::string text = weights;
  text[9] = '!';
  spill(copy("garbled") + "/model.safetensors", text);
  text = weights;
  text[6] = '\x7f';  // a header of many petabytes
  spill(copy("endless") + "/model.safetensors", text);
  spill(copy("hollow") + "/model.safetensors", "");
  std::filesystem::remove(copy("weightless") + "/model.safetensors");
  const auto config = [&](const std::string& name, const std::string& key, const Json& value) {
    Json json = Json::parse(slurp(copy(name) + "/config.json"));
    json[key] = value;
    spill(w.path(name) + "/config.json", json.dump());
  };
  config("typed", "n_layer", "two");
  config("wide", "n_embd", 48);
  config("deep", "n_layer", 3);
  config("family", "model_type", "mamba");
  config("negative", "n_layer", -1);
  config("huge", "n_layer", int64_t{1} << 60);
  spill(copy("nojson") + "/config.json", "{\"model_type\": ");
  std::filesystem::remove(copy("tokenless") + "/tokenizer.json");
  std::filesystem::remove(w.path("tokenless/vocab.json"));
  std::filesystem::remove(w.path("tokenless/merges.txt"));
  check(w,
        {
            {"used output_dir", {"...", "output_dir=@run"}, {"with files in it", "resume=latest"}},
            {"output_dir under a file", {"...", "output_dir=@text.txt/run"}, {"text.txt"}},
            {"output_dir is a file", {"...", "output_dir=@text.txt"}, {"text.txt"}},
            {"no output_dir", {"...", "output_dir=null"}, {"output_dir, where the run is written"}},
            {"nothing to resume", {"...", "resume=latest"}, {"a complete checkpoint in"}},
            {"no such checkpoint", {"...", "resume=@run/checkpoint-7"}, {"checkpoint-7"}},
            {"model", {"...", "model=gpt3"}, {"a named shape (gpt2, ", "model: gpt3"}},
            {"no model", {"...", "model=null"}, {"model as a named shape"}},
            {"family", {"...", "model.type=mamba"}, {"\"mamba\""}},
            {"heads", {"...", "model.n_head=5"}, {"n_embd", "5"}},
            {"no heads", {"...", "model.n_head=0"}, {"n_head"}},
            {"layers", {"...", "model.n_layer=-2"}, {"n_layer"}},
            {"model key", {"...", "model.n_layers=3"}, {"\"n_layers\""}},
            {"model type", {"...", "model.n_layer=two"}, {"n_layer", "two"}},
            {"activation", {"...", "model.activation_function=swoosh"}, {"swoosh"}},
            {"dropout", {"...", "model.attn_pdrop=1.5"}, {"attn_pdrop"}},
            {"pretrained without weights", {"...", "init=pretrained"}, {"init: pretrained"}},
            {"cut weights", {"...", "model=@cut"}, {"cut/model.safetensors"}},
            {"garbled weights", {"...", "model=@garbled"}, {"garbled/model.safetensors"}},
            {"endless header", {"...", "model=@endless"}, {"endless/model.safetensors"}},
            {"empty weights", {"...", "model=@hollow"}, {"hollow/model.safetensors"}},
            {"no weights", {"...", "model=@weightless"}, {"weightless"}},
            {"typed config", {"...", "model=@typed"}, {"n_layer", "typed/config.json", "two"}},
            {"wide config", {"...", "model=@wide"}, {"wide", "(300,48)", "(300,32)"}},
            {"deep config", {"...", "model=@deep"}, {"h.2."}},
            {"unknown family", {"...", "model=@family"}, {"\"mamba\""}},
            {"negative layers", {"...", "model=@negative"}, {"n_layer", "negative/config.json"}},
            {"huge layers", {"...", "model=@huge"}, {"n_layer"}},
            {"no JSON", {"...", "model=@nojson"}, {"nojson/config.json"}},
            {"eval of cut weights",
             {"eval", "--model", "@cut", "--data", "@text.txt"},
             {"cut/model.safetensors"}},
            {"eval of a name",
             {"eval", "--model", "gpt2", "--data", "@text.txt"},
             {"--model as a folder"}},
            {"eval too long",
             {"eval", "--model", "@run/final", "--data", "@text.txt", "--max-length", "65"},
             {"1 to 64, the model's positions"}},
            {"eval length below 0",
             {"eval", "--model", "@run/final", "--data", "@text.txt", "--max-length", "-4"},
             {"--max-length"}},
            {"eval batch",
             {"eval", "--model", "@run/final", "--data", "@text.txt", "--batch-size", "0"},
             {"--batch-size of at least 1"}},
            {"eval samples",
             {"eval", "--model", "@run/final", "--data", "@text.txt", "--max-samples", "-3"},
             {"--max-samples"}},
            {"generate threads",
             {"generate", "--model", "@run/final", "--prompt", "a", "--threads", "-1"},
             {"--threads"}},
            {"eval threads",
             {"eval", "--model", "@run/final", "--data", "@text.txt", "--threads", "-3"},
             {"threads"}},
            {"eval precision",
             {"eval", "--model", "@run/final", "--data", "@text.txt", "--precision", "fp12"},
             {"fp12"}},
            {"generate without tokenizer",
             {"generate", "--model", "@tokenless", "--prompt", "the cat"},
             {"a tokenizer (tokenizer.json)", "tokenless"}},
            {"generate from nothing",
             {"generate", "--model", "@run/final", "--prompt", ""},
             {"a prompt of 1 to 63 tokens"}},
            {"generate nothing",
             {"generate", "--model", "@run/final", "--prompt", "a", "--max-new-tokens", "0"},
             {"--max-new-tokens of at least 1"}},
            {"temperature",
             {"generate", "--model", "@run/final", "--prompt", "a", "--temperature", "-1"},
             {"temperature"}},
            {"top-k",
             {"generate", "--model", "@run/final", "--prompt", "a", "--top-k", "-1"},
             {"top"}},
            {"top-p",
             {"generate", "--model", "@run/final", "--prompt", "a", "--top-p", "1.5"},
             {"top"}},
            {"sample_prompt",
             {"...", "sample_prompt=" + sentences(20, 3)},
             {"a sample_prompt of 1 to 63"}},
        });
}

// A folder that was there before the refusal is as it was.
TEST(BadInput, EmptyOutputFolderStaysEmpty) {
  const Workspace w;
  spill(w.path("short.txt"), "the cat");
  std::filesystem::create_directory(w.path("out"));
  check(w, {{"short", {"...", "train_data=@short.txt"}, {"at least 33 tokens"}}});
  w.trained("out");
}

TEST(BadInput, ParentsOfTheOutputFolderGoToo) {
  const Workspace w;
  spill(w.path("short.txt"), "the cat");
  check(w, {{"short",
             {"...", "output_dir=@deep/er/out", "train_data=@short.txt"},
             {"at least 33 tokens"}}});
}

// overwrite: true removes the old run when the new one is known to start, not before.
TEST(BadInput, OverwriteKeepsTheOldRunUntilTheNewOneStarts) {
  const Workspace w;
  spill(w.path("short.txt"), "the cat");
  w.trained("out", {"save_steps=4"});
  const std::string curve = w.curve("out"), plan = slurp(w.path("out/plan.json")),
                    tokens = slurp(w.path("out/data/train.bin"));
  check(w, {{"short", {"...", "overwrite=true", "train_data=@short.txt"}, {"at least 33 tokens"}},
            {"budget", {"...", "overwrite=true", "max_length=100"}, {"max_length"}}});
  EXPECT_EQ(w.curve("out"), curve);
  EXPECT_EQ(slurp(w.path("out/plan.json")), plan);
  EXPECT_TRUE(slurp(w.path("out/data/train.bin")) == tokens);
  w.trained("out", {"overwrite=true", "max_steps=2"});
  EXPECT_EQ(w.losses("out").size(), 2u);
  EXPECT_FALSE(exists(w.path("out/checkpoint-12"))) << "of the old run";
  EXPECT_EQ(w.json("out/memory.json")["finished"], true);
  EXPECT_TRUE(exists(w.path("out/checkpoint-2")));
}

}  // namespace
}  // namespace snug::e2e
