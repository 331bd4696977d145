#include "tests/tools/e2e/encoders.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace snug::e2e {

void make_encoder_data(const Workspace& w) {
  const char* const things[] = {"film", "book", "song", "play", "story"};
  const auto rows = [&](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text +=
          std::string(i % 3 == 0 ? "a " : "the ") + (i % 2 == 0 ? "good " : "bad ") + things[i % 5];
      for (int k = 0; k < i % 4; ++k) text += " of the day";
      text += i % 2 == 0 ? "\tgood\n" : "\tbad\n";
    }
    return text;
  };
  spill(w.path("train.tsv"), rows(200));
  spill(w.path("dev.tsv"), rows(40));
  spill(w.path("lines.txt"), sentences(200, 7));
  std::string words;
  for (int i = 0; i < 20; ++i) {
    const std::vector<std::string> row = {"a", i % 2 == 0 ? "good" : "bad", things[i % 5], "today"};
    words += Json({{"tokens", row}, {"tags", {"O", "B", "O", "O"}}}).dump() + "\n";
  }
  spill(w.path("words.jsonl"), words);
  std::filesystem::create_directory(w.path("bert"));
  spill(w.path("corpus.txt"), slurp(w.path("train.tsv")) + slurp(w.path("lines.txt")) + "today\n");
  const Outcome made = run({"tokenizer", "train", "--type", "wordpiece", "--vocab-size", "200",
                            "--output", w.path("bert/"), w.path("corpus.txt")});
  EXPECT_EQ(made.code, 0) << made.err;
}

std::vector<std::string> encoder_arguments(const Workspace& w, const std::string& name,
                                           const std::vector<std::string>& more) {
  std::vector<std::string> words = {
      "train",
      "model={type: bert, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, "
      "intermediate_size: 64, max_position_embeddings: 64}",
      "task=sequence_classification",
      "tokenizer=" + w.path("bert"),
      "train_data=" + w.path("train.tsv"),
      "eval_data=" + w.path("dev.tsv"),
      "max_length=64",
      "global_batch_size=16",
      "max_steps=60",
      "learning_rate=0.003",
      "logging_steps=1",
      "eval_steps=0",
      "threads=1",
      "memory=64MiB",
      "output_dir=" + w.path(name)};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Outcome train_encoder(const Workspace& w, const std::string& name,
                      const std::vector<std::string>& more) {
  return run(encoder_arguments(w, name, more));
}

}  // namespace snug::e2e
