// Advice, tried by following it: what a message says to do is done, and the message is gone.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "tests/tools/e2e/followed.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A refusal with usage or data whose advice, put in place of `with` in the command or behind it,
// works.
void follow(const std::vector<std::string>& command, const std::string& found,
            const std::string& tried, const std::vector<std::string>& then) {
  const Outcome o = run(command);
  ASSERT_EQ(o.code, 2) << o.out;
  EXPECT_TRUE(has(o.err, found)) << o.err;
  EXPECT_EQ(advice_of(o.err), tried) << o.err;
  const Outcome good = run(then);
  EXPECT_EQ(good.code, 0) << good.err;
}

TEST(Advice, OfARunThatGoesOn) {
  const Workspace w;
  w.trained("run", {"max_steps=4", "save_steps=2"});
  const std::string dir = w.path("run"), config = dir + "/config.resolved.yaml";
  // Another tokenizer of the same size: it is blamed, and not the data.
  spill(w.path("other.txt"), sentences(400, 9) + "zebras quickly juggle waltzing oxen\n");
  ASSERT_EQ(run({"tokenizer", "train", "--vocab-size", "300", "--output", w.path("other.json"),
                 w.path("other.txt")})
                .code,
            0);
  const std::vector<std::string> on = {"train", "--config", config, "max_steps=6"};
  follow(joined(on, {"resume=latest", "tokenizer=" + w.path("other.json")}),
         "tokenizer: " + w.path("other.json") + " (command line), fingerprint ",
         "tokenizer=" + dir + "/checkpoint-4",
         joined(on, {"resume=latest", "tokenizer=" + dir + "/checkpoint-4"}));
  follow(joined(on, {"resume=checkpoint-2"}), "checkpoint-2, which is not in the current folder",
         "resume=" + dir + "/checkpoint-2", joined(on, {"resume=" + dir + "/checkpoint-2"}));
  follow({"train", "resume=latest", "output_dir=" + dir}, "without --config or model",
         "snug train " + dir, {"train", dir});
  // Without its folder there is none to name.
  EXPECT_EQ(advice_of(run({"train", "resume=latest"}).err),
            "snug train RUN, with the folder of the run");
}

TEST(Advice, OfAModelThatIsARun) {
  const Workspace w;
  w.trained("run", {"max_steps=2"});
  const std::string dir = w.path("run"), model = dir + "/final", text = w.path("text.txt");
  follow({"eval", "--model", dir, "--data", text}, "the folder of a run", model,
         {"eval", "--model", model, "--data", text});
  follow({"generate", "--model", dir, "--prompt", "a", "--max-new-tokens", "2"},
         "the folder of a run", model,
         {"generate", "--model", model, "--prompt", "a", "--max-new-tokens", "2"});
  const std::vector<std::string> more = {"train_data=" + text, "output_dir=" + w.path("tuned"),
                                         "max_steps=1", "memory=64MiB", "max_length=32"};
  follow(joined({"train", "model=" + dir}, more), "the folder of a run", model,
         joined({"train", "model=" + model}, more));
  // Before it has ended: the newest checkpoint; before there is one: the run itself.
  fs::remove_all(model);
  follow({"eval", "--model", dir, "--data", text}, "the folder of a run", dir + "/checkpoint-2",
         {"eval", "--model", dir + "/checkpoint-2", "--data", text});
  fs::remove_all(dir + "/checkpoint-2");
  const Outcome none = run({"eval", "--model", dir, "--data", text});
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(has(none.err, "which has no model yet")) << none.err;
  // A path that is none is not answered with a list of names.
  const Outcome path = run({"train", "model=no/where", "train_data=" + text});
  EXPECT_EQ(path.code, 2);
  EXPECT_FALSE(has(path.err, "qwen")) << path.err;
  EXPECT_TRUE(has(path.err, "no/where, where there is no folder")) << path.err;
}

TEST(Advice, OfWordsThatAreNoKeys) {
  const Workspace w;
  w.trained("run", {"max_steps=2"});
  const std::string dir = w.path("run");
  // A run of nearly that name; a key; a file.
  follow({"train", w.path("rnu")}, "which is no folder, no file and no key",
         "did you mean " + dir + "?", {"train", dir});
  std::vector<std::string> plain = w.train_arguments("more", {"max_steps=2", "overwrite=true"});
  follow(joined(plain, {"seed"}), "\"seed\" (command line), a key without a value", "seed=7",
         joined(plain, {"seed=7"}));
  const std::string config = dir + "/config.resolved.yaml";
  follow({"train", config, "output_dir=" + w.path("again")}, "(command line), a file",
         "--config " + config, {"train", "--config", config, "output_dir=" + w.path("again")});
  const Outcome none = run({"train", "zzzzzz"});
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(
      has(none.err, "expected the folder of a run to go on with, --config FILE, or key=value"))
      << none.err;
  // Two names of one run.
  follow({"report", dir, dir + "/../run"}, "which are one", "snug report " + dir, {"report", dir});
}

// What is stopped says how it goes on, and that works as it is.
TEST(Advice, OfARunThatWasStopped) {
  const Workspace w;
  for (const char* name : {"plain", "lr=0.1", "two words"}) {
    Child child(w.train_arguments(name, {"max_steps=100000"}));
    ASSERT_TRUE(child.read_until("step      5/"));
    child.send(SIGINT);
    const Outcome stopped = child.finish();
    ASSERT_EQ(stopped.code, 75) << stopped.err;
    const std::string mark = "To go on: snug ";
    const size_t at = stopped.out.find(mark);
    ASSERT_NE(at, std::string::npos) << stopped.out;
    const std::string command =
        stopped.out.substr(at + mark.size(), stopped.out.find('\n', at) - at - mark.size());
    const Outcome on =
        shell("\"$SNUG\" " + command + " max_steps=" +
              std::to_string(
                  1 + w.json(std::string(name) + "/trainer_state.json")["global_step"].get<int>()));
    EXPECT_EQ(on.code, 0) << command << "\n" << on.err;
  }
}

TEST(Advice, OfFilesThatArePacked) {
  const Workspace w;
  const std::pair<const char*, const char*> rows[] = {
      {"a.zip", "unzip "},          {"a.tar.gz", "tar -xf "}, {"a.tgz", "tar -xf "},
      {"a.tar", "tar -xf "},        {"a.txt.xz", "xz -dk "},  {"a.txt.bz2", "bunzip2 -k "},
      {"a.parquet", "python3 -c "}, {"a.7z", "7z x "}};
  for (const auto& [name, command] : rows) {
    // What no text has; of the two that are unpacked as they are read, a stream of it.
    spill(w.path(name), std::string("\0\1\2", 3));
    const std::string file = name;
    if (file.ends_with("gz")) {
      ASSERT_EQ(shell("cd '" + w.path("") + "' && tar -czf " + file + " text.txt").code, 0);
    }
    const Outcome o = w.train("run", {"train_data=" + w.path(name)});
    EXPECT_EQ(o.code, 2) << name;
    EXPECT_TRUE(advice_of(o.err).starts_with(command)) << o.err;
    EXPECT_TRUE(has(advice_of(o.err), w.path(name))) << o.err;
  }
  // What can be done here is.
  const std::string packed = w.path("a.tar.gz"), folder = w.path("unpacked");
  fs::create_directory(folder);
  std::string command = advice_of(w.train("run", {"train_data=" + packed}).err);
  command = command.substr(0, command.find(','));
  command.replace(command.find("FOLDER"), 6, folder);
  ASSERT_EQ(shell(command).code, 0);
  EXPECT_EQ(w.train("run", {"train_data=" + folder, "max_steps=2"}).code, 0);
}

// Words of nanoGPT and llm.c: the key that is named is one, and the word itself is none.
TEST(Advice, OfOtherTrainersWords) {
  const Workspace w;
  const std::pair<const char*, const char*> rows[] = {
      {"max_iters=5", "max_steps=5"},
      {"num_iterations=5", "max_steps=5"},
      {"eval_interval=3", "eval_steps=3"},
      {"val_loss_every=3", "eval_steps=3"},
      {"eval_iters=2", "max_eval_samples=2"},
      {"log_interval=1", "logging_steps=1"},
      {"checkpoint_every=9", "save_steps=9"},
      {"beta1=0.9", "adam_beta1=0.9"},
      {"beta2=0.95", "adam_beta2=0.95"},
      {"warmup_iters=1", "warmup_steps=1"},
      {"decay_lr=true", "lr_scheduler_type=cosine"},
      {"decay_lr=false", "lr_scheduler_type=constant"},
      {"n_layer=1", "model.n_layer=1"},
      {"n_head=2", "model.n_head=2"},
      {"n_embd=16", "model.n_embd=16"},
      {"dropout=0.1", "model.resid_pdrop=0.1"},
      {"model.dropout=0.1", "model.embd_pdrop=0.1"},
      {"model.block_size=32", "model.n_positions=32"},
      {"model.channels=16", "model.n_embd=16"},
      {"bias=true", "bias=none"},
      {"bias=false", "model.bias=false"}};
  for (const auto& [word, key] : rows) {
    const std::vector<std::string> plain =
        w.train_arguments("run", {"max_steps=2", "overwrite=true"});
    const Outcome o = run(joined(plain, {word}));
    EXPECT_EQ(o.code, 2) << word << "\n" << o.out;
    const std::string name(key, std::string_view(key).find('='));
    const std::string bare =
        name.starts_with("model.") && has(word, "model.") ? name.substr(6) : name;
    EXPECT_TRUE(has(advice_of(o.err), bare)) << o.err;
    const Outcome good = run(joined(plain, {key}));
    EXPECT_EQ(good.code, 0) << key << "\n" << good.err;
  }
}

}  // namespace
}  // namespace snug::e2e
