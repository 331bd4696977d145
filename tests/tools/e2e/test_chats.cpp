// Chats: learned by a template, looked at, evaluated, and talked to.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

constexpr const char* kChats =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"What is 1 + 1?\"}, {\"role\": "
    "\"assistant\", \"content\": \"Two.\"}, {\"role\": \"user\", \"content\": \"And 2?\"}, "
    "{\"role\": \"assistant\", \"content\": \"Four, of course.\"}]}\n"
    "{\"prompt\": \"The sky is\", \"completion\": \" blue\"}\n"
    "{\"prompt\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"completion\": [{\"role\": "
    "\"assistant\", \"content\": \"Hello!\"}]}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"nobody answers\"}]}\n";

// A tokenizer with the tokens of ChatML, its template, and conversations.
class Chats {
 public:
  explicit Chats(const Workspace& w) : w_(w) {
    Json json = Json::parse(slurp(source_folder() + "/tests/golden/tokenizer_gpt2.json"));
    const auto next = json["model"]["vocab"].size();
    for (const char* token : {"<|im_start|>", "<|im_end|>"})
      json["added_tokens"].push_back({{"id", next + json["added_tokens"].size()},
                                      {"content", token},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", true}});
    std::filesystem::create_directory(w.path("tok"));
    // Ids follow the vocabulary.
    int64_t id = 0;
    for (const auto& [token, number] : json["model"]["vocab"].items())
      id = std::max(id, number.get<int64_t>() + 1);
    for (Json& token : json["added_tokens"])
      if (token["content"].get<std::string>().starts_with("<|im_")) token["id"] = id++;
    vocabulary_ = id;
    spill(w.path("tok/tokenizer.json"), json.dump());
    spill(w.path("tok/tokenizer_config.json"), "{\"eos_token\": \"<|im_end|>\"}");
    spill(w.path("tok/chat_template.jinja"), family("chatml"));
    spill(w.path("chats.jsonl"), kChats);
  }
  static std::string family(const std::string& name) {
    return slurp(source_folder() + "/tests/golden/chat_templates/" + name + ".jinja");
  }
  std::vector<std::string> arguments(const std::vector<std::string>& more = {}) const {
    return joined(
        {"train",
         "model={type: llama, hidden_size: 24, intermediate_size: 40, num_hidden_layers: "
         "2, num_attention_heads: 3, num_key_value_heads: 1, max_position_embeddings: "
         "256, vocab_size: " +
             std::to_string(vocabulary_) + "}",
         "task=sft", "tokenizer=" + w_.path("tok"), "train_data=" + w_.path("chats.jsonl"),
         "eval_data=" + w_.path("chats.jsonl"), "max_length=224", "global_batch_size=4",
         "max_steps=12", "learning_rate=0.01", "lr_scheduler_type=constant", "warmup_steps=0",
         "logging_steps=1", "eval_steps=0", "save_steps=0", "threads=1", "memory=64MiB",
         "output_dir=" + w_.path("run")},
        more);
  }
  Outcome preview(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = arguments(more);
    words[0] = "preview";
    words.insert(words.begin(), "data");
    return run(words);
  }

 private:
  const Workspace& w_;
  int64_t vocabulary_ = 0;
};

TEST(Chats, AreLearnedEvaluatedAndTalkedTo) {
  const Workspace w;
  const Chats chats(w);
  const Outcome o = run(chats.arguments());
  ASSERT_EQ(o.code, 0) << o.err << o.out;
  EXPECT_NE((o.out + o.err).find("train_data: 4 rows, "), std::string::npos) << o.out;
  EXPECT_NE(
      (o.out + o.err).find(" (1 with nothing to train, e.g. " + w.path("chats.jsonl") + ":4)"),
      std::string::npos)
      << o.out << o.err;
  EXPECT_NE((o.out + o.err).find(" of them trained in 4 turns"), std::string::npos) << o.out;
  expect_planned_is_measured(w, "run");
  const std::vector<double> losses = w.losses("run");
  ASSERT_EQ(losses.size(), 12u);
  EXPECT_LT(losses.back(), losses.front() - 1);
  EXPECT_EQ(slurp(w.path("run/final/chat_template.jinja")), Chats::family("chatml"));

  const Outcome e = run({"eval", "--model", w.path("run/final"), "--task", "sft", "--data",
                         w.path("chats.jsonl"), "--json"});
  ASSERT_EQ(e.code, 0) << e.err;
  EXPECT_NEAR(Json::parse(e.out)["loss"].get<double>(),
              w.metrics("run").back()["eval_loss"].get<double>(), 1e-5);

  // The second turn goes on in the cache and says what it says from the beginning.
  spill(w.path("turns.txt"), "Hi\n\nAnd 2?\n");
  const std::vector<std::string> talk = {"generate",      "--model", w.path("run/final"), "--chat",
                                         "--temperature", "0",       "--max-new-tokens",  "8",
                                         "--json"};
  const Outcome t = run(talk, slurp(w.path("turns.txt")));
  ASSERT_EQ(t.code, 0) << t.err;
  const size_t line = t.out.find('\n');
  const Json first = Json::parse(t.out.substr(0, line)),
             second = Json::parse(t.out.substr(line + 1));
  EXPECT_EQ(first["cached_tokens"], 0);
  EXPECT_GE(second["cached_tokens"].get<int>(), first["prompt_tokens"].get<int>());
  const std::string so_far =
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" + first["text"].get<std::string>() +
      "<|im_end|>\n<|im_start|>user\nAnd 2?<|im_end|>\n<|im_start|>assistant\n";
  const Outcome fresh = run({"generate", "--model", w.path("run/final"), "--prompt", so_far,
                             "--temperature", "0", "--max-new-tokens", "8", "--json"});
  ASSERT_EQ(fresh.code, 0) << fresh.err;
  EXPECT_EQ(Json::parse(fresh.out)["tokens"], second["tokens"]);
  // Begun again, the same words have the same answer: all but the last token of them is in the cache,
  // which has to be fed for what follows it.
  const Outcome again = run(talk, "Hi\n/reset\nHi\n");
  ASSERT_EQ(again.code, 0) << again.err;
  const Json repeated = Json::parse(again.out.substr(again.out.find('\n') + 1));
  EXPECT_EQ(repeated["tokens"], first["tokens"]);
  EXPECT_EQ(repeated["prompt_tokens"], first["prompt_tokens"]);
  EXPECT_EQ(repeated["cached_tokens"].get<int>(), first["prompt_tokens"].get<int>() - 1);

  spill(w.path("run/final/generation_config.json"),
        "{\"do_sample\": true, \"temperature\": 0.5, \"top_p\": 0.9, \"max_new_tokens\": 3}");
  const Outcome asked = run({"generate", "--model", w.path("run/final"), "--chat", "--prompt", "Hi",
                             "--use-generation-config", "--max-new-tokens", "4"});
  ASSERT_EQ(asked.code, 0) << asked.err;
  EXPECT_NE(asked.err.find("generation_config.json: do_sample, temperature 0.5, top_p 0.9\n"),
            std::string::npos)
      << asked.err;
  // Who names a temperature draws, with the rest of what the file says; without one do_sample decides.
  spill(w.path("run/final/generation_config.json"), "{\"temperature\": 0.5, \"top_p\": 0.9}");
  const auto said_of = [&](const std::vector<std::string>& more) {
    const Outcome o2 = run(joined({"generate", "--model", w.path("run/final"), "--prompt", "Hi",
                                   "--use-generation-config", "--max-new-tokens", "1"},
                                  more));
    EXPECT_EQ(o2.code, 0) << o2.err;
    return o2.err;
  };
  EXPECT_NE(said_of({}).find("generation_config.json: greedy (no do_sample)\n"), std::string::npos);
  EXPECT_NE(said_of({"--temperature", "0"}).find("generation_config.json: nothing that differs\n"),
            std::string::npos);
  EXPECT_NE(said_of({"--temperature", "0.7"}).find("generation_config.json: top_p 0.9\n"),
            std::string::npos);
  spill(w.path("run/final/generation_config.json"), "{\"penalty_alpha\": 0.6}");
  const Outcome unknown = run(
      {"generate", "--model", w.path("run/final"), "--prompt", "Hi", "--use-generation-config"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("penalty_alpha: 0.6"), std::string::npos) << unknown.err;
  // What is tuned further keeps it, as it keeps the template.
  const Outcome on = run(chats.arguments({"model=" + w.path("run/final"), "max_steps=1",
                                          "output_dir=" + w.path("on"), "max_length=200"}));
  ASSERT_EQ(on.code, 0) << on.err;
  for (const char* name : {"generation_config.json", "chat_template.jinja"})
    EXPECT_EQ(slurp(w.path(std::string("on/final/") + name)),
              slurp(w.path(std::string("run/final/") + name)))
        << name;
  const auto expect_refused = [&](const std::vector<std::string>& more, const std::string& text,
                                  const std::string& input = "") {
    const Outcome refused = run(joined({"generate", "--model", w.path("run/final")}, more), input);
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find(text), std::string::npos) << text << "\n" << refused.err;
  };
  std::filesystem::remove(w.path("run/final/generation_config.json"));
  expect_refused({"--prompt", "a", "--use-generation-config"},
                 "expected generation_config.json for --use-generation-config\n  found: none in " +
                     w.path("run/final") + "\n  try:   leave the flag out");
  expect_refused({"--prompt", "a", "--system", "b"},
                 "expected --chat with --system\n  found: none\n  try:   add --chat");
  expect_refused({"--chat", "--num-beams", "2"},
                 "expected --num-beams without --chat, which is one talk\n  found: both\n  try:   "
                 "leave one of them out");
  expect_refused({"--chat"},
                 "expected turns of at most 1 MiB\n  found: a longer line\n  try:   put less into "
                 "one",
                 std::string((1 << 20) + 1, 'a'));
  expect_refused({"--chat", "--max-length", "9"}, "expected a talk of at most 9 tokens",
                 "Hello there\n");
  std::filesystem::remove(w.path("run/final/chat_template.jinja"));
  expect_refused({"--chat"}, "expected a chat template in " + w.path("run/final") + " for --chat");
}

TEST(Chats, AreShownAsTheyAreTrained) {
  const Workspace w;
  const Chats chats(w);
  const Outcome shown = chats.preview({"-n", "4"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  for (const char* text :
       {"<|im_start|>assistant\n{{Two.<|im_end|>}}\n", "{{Four, of course.<|im_end|>}}\n",
        "The sky is{{ blue<|im_end|>}}", "{{Hello!<|im_end|>}}\n", "nobody answers<|im_end|>\n"})
    EXPECT_NE(shown.out.find(text), std::string::npos) << text << "\n" << shown.out;
  // Another template by its key; one that marks what is trained, and one without an end.
  spill(w.path("marked.jinja"), Chats::family("granite"));
  const Outcome marked =
      chats.preview({"-n", "4", "max_length=256", "chat_template=" + w.path("marked.jinja")});
  ASSERT_EQ(marked.code, 0) << marked.err;
  EXPECT_NE(marked.err.find("trained is what {% generation %} of the chat template marks"),
            std::string::npos)
      << marked.err;
  EXPECT_NE(marked.err.find("the chat template writes today's date"), std::string::npos);
  EXPECT_NE(marked.out.find("{{<|start_of_role|>assistant<|end_of_role|>Hello!<|end_of_text|>\n}}"),
            std::string::npos)
      << marked.out;
  spill(w.path("open.jinja"), Chats::family("alpaca"));
  const Outcome open = chats.preview({"-n", "1", "chat_template=" + w.path("open.jinja")});
  ASSERT_EQ(open.code, 0) << open.err;
  EXPECT_NE(open.err.find("have no end token behind them, e.g. " + w.path("chats.jsonl") + ":1"),
            std::string::npos)
      << open.err;
}

TEST(Chats, AreRefusedWhereTheyAreBad) {
  const Workspace w;
  const Chats chats(w);
  const auto expect_refused = [&](const std::vector<std::string>& more, const std::string& text) {
    const Outcome o = run(chats.arguments(more));
    EXPECT_EQ(o.code, 2) << o.out;
    EXPECT_NE(o.err.find(text), std::string::npos) << text << "\n" << o.err;
    EXPECT_FALSE(exists(w.path("run")));
  };
  const std::string rows = w.path("bad.jsonl");
  const auto with = [&](const std::string& row) {
    spill(rows,
          "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
          "\"content\": \"b\"}]}\n" +
              row + "\n");
    return std::vector<std::string>{"train_data=" + rows};
  };
  expect_refused(with("{\"messages\": [{\"content\": \"a\"}]}"),
                 "expected a string under \"role\" in every message\n  found: " + rows +
                     ":2: message 1 has none");
  expect_refused(with("{\"messages\": []}"), rows + ":2: an empty list");
  expect_refused(with("{\"text\": \"a\"}"),
                 "expected messages, or a prompt and a completion, in every record\n  found: " +
                     rows + ":2: the keys \"text\"");
  expect_refused(with("{\"messages\": [{\"role\": \"user\"}], \"prompt\": \"a\", \"completion\": "
                      "\"b\"}"),
                 rows + ":2: both");
  expect_refused(with("{\"messages\": ["), rows + ":2");
  spill(w.path("gemma.jinja"), Chats::family("gemma2"));
  std::vector<std::string> system =
      with("{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}]}");
  system.push_back("chat_template=" + w.path("gemma.jinja"));
  expect_refused(system, "its complaint: System role not supported, at " + w.path("gemma.jinja") +
                             ":1\n  in:    " + rows + ":2");
  spill(w.path("loop.jinja"),
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for m in messages %}{% endfor %}"
        "{% endfor %}{% endfor %}");
  expect_refused({"chat_template=" + w.path("loop.jinja")}, w.path("loop.jinja") + ":1");
  spill(w.path("unknown.jinja"), "\n{{ messages | urlize }}");
  expect_refused(
      {"chat_template=" + w.path("unknown.jinja")},
      "expected a filter that is known\n  found: 'urlize', at " + w.path("unknown.jinja") + ":2");
  expect_refused({"chat_template=" + w.path("none.jinja")},
                 "expected a file with a chat template for chat_template");
  std::filesystem::remove(w.path("tok/chat_template.jinja"));
  expect_refused({}, "expected a chat template for conversations\n  found: " +
                         w.path("chats.jsonl") + ":1: messages, and no chat_template");
  expect_refused(with("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}"), rows + ":1");
  expect_refused({"text_column=body"}, "text_column only with text");
  expect_refused({"task=causal_lm", "chat_template=" + w.path("gemma.jinja")},
                 "chat_template only with task: sft");
}

}  // namespace
}  // namespace snug::e2e
