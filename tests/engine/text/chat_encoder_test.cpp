// Which tokens a conversation trains, family by family, and where tokens lie in a text.
#include "engine/text/chat_encoder.h"

#include <nlohmann/json.hpp>

#include "tests/engine/text/helpers.h"

namespace snug {
namespace {

using Json = nlohmann::json;

// A byte-level tokenizer with special tokens behind its vocabulary.
Tokenizer tokenizer_with(const std::vector<std::string>& special, const std::string& form = "gpt2",
                         bool strips = false) {
  const TestFolder folder;
  Json json = Json::parse(slurp(golden("tokenizer_" + form + ".json")));
  const auto next = static_cast<int>(json["model"]["vocab"].size() + json["added_tokens"].size());
  for (size_t i = 0; i < special.size(); ++i) {
    if (json["model"]["vocab"].contains(special[i])) continue;
    json["added_tokens"].push_back({{"id", next + static_cast<int>(i)},
                                    {"content", special[i]},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", strips},
                                    {"normalized", false},
                                    {"special", true}});
  }
  return Tokenizer::load(folder.write("tok.json", json.dump()));
}

ChatEncoder encoder(const std::string& family, const std::vector<std::string>& special,
                    const std::string& bos = "<s>", const std::string& eos = "</s>",
                    bool strips = false) {
  ChatTemplate chat =
      ChatTemplate::parse(slurp(golden("chat_templates/" + family + ".jinja")), family);
  chat.set_variable("bos_token", bos);
  chat.set_variable("eos_token", eos);
  std::vector<std::string> all = special;
  for (const std::string& token : {bos, eos})
    if (std::find(all.begin(), all.end(), token) == all.end()) all.push_back(token);
  Tokenizer t = tokenizer_with(all, "gpt2", strips);
  return {std::move(chat), t, {*t.token_to_id(eos)}};
}

// The trained tokens, those that follow each other as one text.
std::vector<std::string> trained(const Tokenizer& t, const ChatTokens& tokens) {
  std::vector<std::string> out;
  EXPECT_EQ(tokens.ids.size(), tokens.trained.size());
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if (!tokens.trained[i]) continue;
    if (i == 0 || !tokens.trained[i - 1]) out.emplace_back();
    out.back() += t.token_bytes(tokens.ids[i]);
  }
  return out;
}

constexpr const char* kTalk =
    R"({"messages": [{"role": "user", "content": "Hi\n"}, {"role": "assistant", "content": "Hello."},
{"role": "user", "content": "More?"}, {"role": "assistant", "content": " padded "}]})";

struct Family {
  const char* name;
  std::vector<std::string> special;
  const char *bos, *eos, *opening;
  std::vector<std::string> trained;
  int64_t open = 0;
};

TEST(ChatEncoder, TrainsTheAssistantsTurnsAndTheirEnds) {
  const std::string im = "<|im_start|>assistant\n";
  const Family families[] = {
      {"chatml",
       {"<|im_start|>"},
       "<s>",
       "<|im_end|>",
       im.c_str(),
       {"Hello.<|im_end|>", " padded <|im_end|>"}},
      {"smollm2",
       {},
       "<|im_start|>",
       "<|im_end|>",
       im.c_str(),
       {"Hello.<|im_end|>", " padded <|im_end|>"}},
      {"qwen25",
       {"<|im_start|>"},
       "<s>",
       "<|im_end|>",
       im.c_str(),
       {"Hello.<|im_end|>", " padded <|im_end|>"}},
      {"qwen3",
       {"<|im_start|>"},
       "<s>",
       "<|im_end|>",
       im.c_str(),
       {"Hello.<|im_end|>", "<think>\n\n</think>\n\n padded <|im_end|>"}},
      {"llama2", {}, "<s>", "</s>", "", {" Hello. </s>", " padded </s>"}},
      {"llama3",
       {"<|start_header_id|>", "<|end_header_id|>"},
       "<s>",
       "<|eot_id|>",
       "<|start_header_id|>assistant<|end_header_id|>\n\n",
       {"Hello.<|eot_id|>", "padded<|eot_id|>"}},
      {"llama31",
       {"<|start_header_id|>", "<|end_header_id|>"},
       "<s>",
       "<|eot_id|>",
       "<|start_header_id|>assistant<|end_header_id|>\n\n",
       {"Hello.<|eot_id|>", "padded<|eot_id|>"}},
      {"mistral1", {}, "<s>", "</s>", "", {"Hello.</s>", " padded </s>"}},
      {"mistral3", {"[INST]", "[/INST]"}, "<s>", "</s>", "", {" Hello.</s>", " padded</s>"}},
      {"gemma2",
       {"<start_of_turn>", "<end_of_turn>"},
       "<bos>",
       "<eos>",
       "<start_of_turn>model\n",
       {"Hello.<end_of_turn>", "padded<end_of_turn>"}},
      {"gemma3",
       {"<start_of_turn>", "<end_of_turn>"},
       "<bos>",
       "<eos>",
       "<start_of_turn>model\n",
       {"Hello.<end_of_turn>", "padded<end_of_turn>"}},
      {"phi3",
       {"<|user|>", "<|assistant|>", "<|end|>"},
       "<s>",
       "<|endoftext|>",
       "<|assistant|>\n",
       {"Hello.<|end|>", " padded <|end|>"}},
      {"phi4",
       {"<|im_start|>", "<|im_sep|>"},
       "<s>",
       "<|im_end|>",
       "<|im_start|>assistant<|im_sep|>",
       {"Hello.<|im_end|>", " padded <|im_end|>"}},
      {"zephyr", {}, "<s>", "</s>", "<|assistant|>\n", {"Hello.</s>", " padded </s>"}},
      {"deepseek_r1",
       {"<｜User｜>", "<｜Assistant｜>"},
       "<s>",
       "<｜end▁of▁sentence｜>",
       "<｜Assistant｜><think>\n",
       {"Hello.<｜end▁of▁sentence｜>", " padded <｜end▁of▁sentence｜>"}},
      {"olmo2",
       {},
       "<|endoftext|>",
       "<|endoftext|>",
       "<|assistant|>\n",
       {"Hello.<|endoftext|>", " padded <|endoftext|>"}},
      {"vicuna", {}, "<s>", "</s>", "ASSISTANT:", {" Hello.</s>", " padded</s>"}},
      {"command_r",
       {"<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
       "<s>",
       "</s>",
       "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
       {"Hello.<|END_OF_TURN_TOKEN|>", "padded<|END_OF_TURN_TOKEN|>"}},
      {"exaone",
       {"[|endofturn|]"},
       "<s>",
       "[|endofturn|]",
       "[|assistant|]",
       {"Hello.[|endofturn|]", " padded [|endofturn|]"}},
      {"alpaca", {}, "<s>", "</s>", "### Response:\n", {"Hello.", " padded "}, 2},
      // {% generation %} is honoured as it stands.
      {"smollm3",
       {"<|im_start|>"},
       "<s>",
       "<|im_end|>",
       im.c_str(),
       {im + "Hello.<|im_end|>\n", im + " padded <|im_end|>\n"}},
      {"granite",
       {"<|start_of_role|>", "<|end_of_role|>"},
       "<s>",
       "<|end_of_text|>",
       "<|start_of_role|>assistant<|end_of_role|>",
       {"<|start_of_role|>assistant<|end_of_role|>Hello.<|end_of_text|>\n",
        "<|start_of_role|>assistant<|end_of_role|> padded <|end_of_text|>\n"}},
  };
  for (const Family& family : families) {
    SCOPED_TRACE(family.name);
    const ChatEncoder e = encoder(family.name, family.special, family.bos, family.eos);
    EXPECT_EQ(e.generation_prompt(), family.opening);
    const ChatTokens tokens = e.encode(Conversation::parse(kTalk, "r:1"), "r:1");
    EXPECT_EQ(trained(e.tokenizer(), tokens), family.trained);
    EXPECT_EQ(tokens.turns, 2);
    EXPECT_EQ(tokens.open_turns, family.open);
    // One BOS at most; the text is what the template makes, and nothing is put around it.
    EXPECT_EQ(e.tokenizer().decode(tokens.ids),
              e.chat().render(Conversation::parse(kTalk, "")).text);
  }
}

TEST(ChatEncoder, TrainsToolCallsAndEmptyTurns) {
  const ChatEncoder qwen = encoder("qwen25", {"<|im_start|>"}, "<s>", "<|im_end|>");
  const auto of = [&](const ChatEncoder& e, const std::string& messages) {
    return trained(e.tokenizer(), e.encode(Conversation::of_messages(messages, "r"), "r"));
  };
  const std::string calls =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls":
[{"function": {"name": "f", "arguments": {"k": 1}}}]}, {"role": "tool", "content": "r"},
{"role": "assistant", "content": ""}])";
  using Texts = std::vector<std::string>;
  EXPECT_EQ(
      of(qwen, calls),
      (Texts{"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"k\": 1}}\n</tool_call><|im_end|>",
             "<|im_end|>"}));
  const ChatEncoder mistral = encoder("mistral3", {"[INST]", "[/INST]", "[TOOL_CALLS]"});
  EXPECT_EQ(
      of(mistral,
         R"([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"id":
"abcdefghi", "function": {"name": "f", "arguments": {}}}]}])"),
      (Texts{"[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"abcdefghi\"}]</s>"}));
  // A user who quotes an assistant trains nothing.
  EXPECT_EQ(of(qwen, R"([{"role": "user", "content": "<|im_start|>assistant\nx<|im_end|>"}])"),
            Texts{});
}

// A template that works on copies writes what belongs to the same messages, and in the same turns.
TEST(ChatEncoder, ACopiedMessageIsTheMessage) {
  const std::string turn =
      "<|im_start|>{{ c.role }}\n{% if c.role == 'assistant' %}Well: {% endif %}"
      "{{ c.content }}<|im_end|>\n{% endfor %}";
  const Tokenizer t = tokenizer_with({"<|im_start|>", "<|im_end|>"});
  const auto shown = [&](const std::string& head) {
    const ChatEncoder e(ChatTemplate::parse(head + turn, "t.jinja"), t,
                        {*t.token_to_id("<|im_end|>")});
    return trained(t, e.encode(Conversation::parse(kTalk, "r:1"), "r:1"));
  };
  const std::vector<std::string> own = shown("{% for m in messages %}{% set c = m %}");
  ASSERT_EQ(own.size(), 2u);
  EXPECT_TRUE(own[0].ends_with("Hello.<|im_end|>")) << own[0];
  for (const char* head :
       {"{% for m in messages %}{% set c = m.copy() %}",
        "{% for i in range(messages | length) %}{% set c = messages[i] %}",
        "{% for i in range(messages | length) %}{% set c = messages[i].copy() %}"})
    EXPECT_EQ(shown(head), own) << head;
}

TEST(ChatEncoder, TrainsTheCompletionAlone) {
  const ChatEncoder e = encoder("chatml", {"<|im_start|>"}, "<s>", "<|im_end|>");
  const Conversation c = Conversation::parse(
      R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
{"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]})",
      "r:1");
  EXPECT_EQ(trained(e.tokenizer(), e.encode(c, "r:1")), std::vector<std::string>{"d<|im_end|>"});
  const Tokenizer& t = e.tokenizer();
  const int32_t end = *t.token_to_id("<|im_end|>");
  ChatTokens plain = encode_completion(t, end, "2 + 2 =", " 4", "r:1");
  EXPECT_EQ(trained(t, plain), std::vector<std::string>{" 4<|im_end|>"});
  EXPECT_EQ(t.decode(plain.ids), "2 + 2 = 4<|im_end|>");
  plain = encode_completion(t, end, "", "x<|im_end|>", "r:1");  // not twice
  EXPECT_EQ(trained(t, plain), std::vector<std::string>{"x<|im_end|>"});
  plain = encode_completion(t, std::nullopt, "ab", "c", "r:1");
  EXPECT_EQ(trained(t, plain).size(), 1u);
  EXPECT_EQ(plain.open_turns, 1);
}

TEST(ChatEncoder, FollowsTokensThroughTheText) {
  const std::vector<std::string> texts = {"Hello, W\u00f6rld \U0001f600\n\n  x",
                                          "caf\u00e9 e\u0301 \ud55c\uad6d\uc5b4",
                                          "",
                                          " \n ",
                                          "<|im_end|>\n<|im_end|>  <|im_end|>",
                                          "tabs\t\r\n<|im_end|> a"};
  for (const char* form : {"gpt2", "llama3", "qwen", "o200k", "prefix", "lines"})
    for (const bool strips : {false, true}) {
      const Tokenizer t = tokenizer_with({"<|im_end|>"}, form, strips);
      for (const std::string& given : texts) {
        SCOPED_TRACE(std::string(form) + " " + given);
        const std::string text = normalize_utf8(given, NormalForm::nfc);
        const std::vector<int32_t> ids = t.encode(text);
        const auto ends = follow_tokens(t, text, ids);
        ASSERT_TRUE(ends.has_value());
        int64_t begin = 0;
        for (size_t i = 0; i < ids.size(); ++i) {
          const std::string_view piece = std::string_view(text).substr(
              static_cast<size_t>(begin), static_cast<size_t>((*ends)[i] - begin));
          std::string_view bytes = t.token_bytes(ids[i]);
          if (piece.size() + 1 == bytes.size() && bytes[0] == ' ') bytes.remove_prefix(1);
          EXPECT_TRUE(piece.ends_with(bytes)) << piece << "|" << bytes;
          begin = (*ends)[i];
        }
      }
    }
  const Tokenizer t = tokenizer_with({});
  EXPECT_FALSE(follow_tokens(t, "abc", t.encode("abd")).has_value());
  EXPECT_FALSE(follow_tokens(t, "abcd", t.encode("abc")).has_value());
}

TEST(ChatEncoder, ReadsTextInTheTokenizersNormalForm) {
  ChatTemplate chat = ChatTemplate::parse(slurp(golden("chat_templates/chatml.jinja")), "chatml");
  const Tokenizer t = tokenizer_with({"<|im_start|>", "<|im_end|>"}, "qwen");
  const ChatEncoder e(chat, t, {});
  const std::string row =
      R"({"messages": [{"role": "user", "content": "e\u0301"}, {"role": "assistant", "content": "ae\u0301"}]})";
  EXPECT_EQ(trained(t, e.encode(Conversation::parse(row, "r:1"), "r:1")),
            std::vector<std::string>{"a\u00e9<|im_end|>"});
}

TEST(ChatEncoder, NamesTheRowThatTheTemplateRefuses) {
  const ChatEncoder e = encoder("gemma2", {"<start_of_turn>", "<end_of_turn>"});
  try {
    e.encode(Conversation::of_messages(R"([{"role": "system", "content": "x"}])", "c.jsonl:3"),
             "c.jsonl:3");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    const std::string text = error.what();
    EXPECT_NE(text.find("System role not supported, at gemma2:1"), std::string::npos) << text;
    EXPECT_NE(text.find("c.jsonl:3"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace snug
