#include "engine/text/chat_template.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/text/chat_json.h"
#include "engine/text/jinja_eval.h"
#include "engine/text/jinja_syntax.h"
#include "engine/text/json_text.h"
#include "engine/text/special_tokens.h"
#include "engine/text/unicode.h"

namespace snug {

using jinja::Kind;
using jinja::Source;
using jinja::Value;

namespace {

constexpr int64_t kMostConversation = int64_t{1} << 30;  // bytes of values of one conversation

// Marks all texts of a message as its own.
void mark(const Value& value, int32_t message, Source source) {
  if (value.kind == Kind::text) {
    auto* text = const_cast<jinja::Text*>(value.text);  // ours, made by parse_chat_json
    text->whole.message = message;
    text->whole.source = source;
  } else if (value.kind == Kind::sequence) {
    for (int64_t i = 0; i < value.sequence->size; ++i)
      mark(value.sequence->data[i], message, source);
  } else if (value.kind == Kind::dict) {
    for (int64_t i = 0; i < value.dict->size; ++i) mark(value.dict->data[i].value, message, source);
  }
}

constexpr const char* kSpelling =
    "write {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, {\"role\": \"assistant\", "
    "\"content\": \"...\"}]}";

}  // namespace

Conversation::Conversation() : arena_(std::make_unique<jinja::Arena>(kMostConversation)) {}

void Conversation::take_messages(const Value& list, const std::string& where) {
  if (list.kind != Kind::sequence || !list.sequence->size)
    fail(ErrorCode::data, "a list of at least one message under \"messages\"",
         where + (list.kind == Kind::sequence ? ": an empty list" : ": no list"), kSpelling);
  std::vector<Value> out;
  for (int64_t i = 0; i < list.sequence->size; ++i) {
    const Value& given = list.sequence->data[i];
    const std::string at = where + ": message " + std::to_string(i + 1);
    if (given.kind != Kind::dict)
      fail(ErrorCode::data, "messages that are objects with \"role\" and \"content\"",
           at + " is none", kSpelling);
    const Value* role = given.dict->find("role");
    if (!role || role->kind != Kind::text)
      fail(ErrorCode::data, "a string under \"role\" in every message",
           at + (role ? " has another value" : " has none"), kSpelling);
    const auto index = static_cast<int32_t>(i);
    jinja::Dict* message = arena_->make<jinja::Dict>();
    message->message = index;
    // As transformers 5.24: keys without a value go, and reasoning has three names.
    const Value* reasoning = nullptr;
    for (const char* key : {"reasoning_content", "thinking", "reasoning"})
      if (const Value* v = given.dict->find(key); !reasoning && v && v->kind != Kind::none)
        reasoning = v;
    const auto key = [&](const char* name) { return Value::of(jinja::make_text(*arena_, name)); };
    if (reasoning) jinja::dict_set(*arena_, *message, key("thinking"), *reasoning);
    for (int64_t k = 0; k < given.dict->size; ++k) {
      const jinja::Pair& p = given.dict->data[k];
      if (p.value.kind == Kind::none) continue;
      mark(p.value, index, p.key.text->view() == "role" ? Source::role : Source::content);
      jinja::dict_set(*arena_, *message, p.key, p.value);
    }
    if (reasoning) jinja::dict_set(*arena_, *message, key("reasoning_content"), *reasoning);
    const Value* content = message->find("content");
    if (content && content->kind != Kind::text && content->kind != Kind::sequence)
      fail(ErrorCode::data, "a string or a list of parts under \"content\"",
           at + " has another value", kSpelling);
    const Value* calls = message->find("tool_calls");
    messages_.push_back(
        {.role = std::string(role->text->view()),
         .content =
             content && content->kind == Kind::text ? std::string(content->text->view()) : "",
         .has_tool_calls = calls && calls->kind == Kind::sequence && calls->sequence->size > 0});
    out.push_back(Value::of(message));
  }
  list_ = Value::of(jinja::make_sequence(*arena_, out));
}

Conversation Conversation::parse(std::string_view json, const std::string& where) {
  Conversation out;
  const Value root = parse_chat_json(json, *out.arena_, where);
  if (root.kind != Kind::dict)
    fail(ErrorCode::data, "an object with \"messages\"", where + ": none", kSpelling);
  const Value* list = root.dict->find("messages");
  const Value *prompt = root.dict->find("prompt"), *completion = root.dict->find("completion");
  Value joined;
  if (!list && prompt && completion) {
    if (prompt->kind != Kind::sequence || completion->kind != Kind::sequence)
      fail(ErrorCode::data,
           "a prompt and a completion that are both texts or both lists of messages",
           where + ": one of each", kSpelling);
    std::vector<Value> both;
    for (const Value* part : {prompt, completion})
      both.insert(both.end(), part->sequence->data, part->sequence->data + part->sequence->size);
    joined = Value::of(jinja::make_sequence(*out.arena_, both));
    out.first_trained_ = static_cast<size_t>(prompt->sequence->size);
    list = &joined;
  }
  if (!list)
    fail(ErrorCode::data, "a list of messages under \"messages\"", where + ": no such key",
         kSpelling);
  if (const Value* tools = root.dict->find("tools"); tools && tools->kind != Kind::none) {
    if (tools->kind != Kind::sequence)
      fail(ErrorCode::data, "a list of tools under \"tools\"", where + ": another value",
           "write each tool as a JSON schema, or leave the key out");
    out.tools_ = *tools;
  }
  if (const Value* more = root.dict->find("chat_template_kwargs");
      more && more->kind != Kind::none) {
    if (more->kind != Kind::dict)
      fail(ErrorCode::data, "an object under \"chat_template_kwargs\"", where + ": another value",
           "write {\"enable_thinking\": false}, or leave the key out");
    out.more_ = *more;
  }
  out.take_messages(*list, where);
  return out;
}

Conversation Conversation::of_messages(std::string_view json, const std::string& where) {
  Conversation out;
  out.take_messages(parse_chat_json(json, *out.arena_, where), where);
  return out;
}

ChatTemplate ChatTemplate::parse(std::string_view source, const std::string& name) {
  constexpr size_t kMost = 4 << 20;
  if (source.size() > kMost)
    fail(ErrorCode::data, "a chat template of at most 4 MiB", name + " is larger", "shorten it");
  ChatTemplate out;
  out.name_ = name;
  out.source_ = source;
  out.program_ = std::make_shared<const jinja::Program>(jinja::parse(source, name));
  return out;
}

std::optional<ChatTemplate> ChatTemplate::load(const std::filesystem::path& folder,
                                               bool with_tools) {
  const SpecialTokens tokens(folder);
  std::optional<ChatTemplate> out;
  const std::filesystem::path file = folder / "chat_template.jinja";
  if (file_exists(file.string())) {
    out = parse(read_file(file.string()), file.string());
  } else {
    const Json& given = json_member(tokens.config(), "chat_template", tokens.config_path());
    const std::string name = tokens.config_path() + ": chat_template";
    if (given.is_string()) {
      out = parse(given.get<std::string>(), name);
    } else if (given.is_array()) {
      const Json* chosen = nullptr;
      for (const Json& one : given) {
        const std::string called = get_string(one, "name", name);
        if (called == "default" && !chosen) chosen = &one;
        if (called == "tool_use" && with_tools) chosen = &one;
      }
      if (!chosen)
        fail(ErrorCode::data, "a template named \"default\" among several", name + " has none",
             "name one of them so");
      out = parse(get_string(*chosen, "template", name), name);
    } else if (!given.is_null()) {
      fail(ErrorCode::data, "a chat template as a string or a list of named ones",
           name + " is " + json_brief(given), "put the template into chat_template.jinja");
    }
  }
  if (out) out->set_roles(folder);
  return out;
}

void ChatTemplate::set_roles(const std::filesystem::path& folder) {
  variables_.clear();
  const SpecialTokens tokens(folder);
  for (const char* role : SpecialTokens::kRoles)
    if (const auto token = tokens.role(role)) set_variable(role, *token);
}

void ChatTemplate::set_variable(const std::string& name, const std::string& text) {
  for (auto& [key, value] : variables_)
    if (key == name) {
      value = text;
      return;
    }
  variables_.push_back({name, text});
}

bool ChatTemplate::has_generation() const {
  return program_->has_generation;
}

uint64_t ChatTemplate::fingerprint() const {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
    hash = (hash ^ 0x100) * 0x100000001b3;
  };
  add(source_);
  for (const auto& [name, text] : variables_) {
    add(name);
    add(text);
  }
  return hash;
}

RenderedChat ChatTemplate::render(const Conversation& conversation, bool add_generation_prompt,
                                  const ChatLimits& limits) const {
  jinja::Arena arena(limits.max_bytes);
  jinja::Evaluator evaluator(*program_, arena, limits.max_steps, now_.value_or(std::time(nullptr)));
  for (const auto& [name, text] : variables_)
    evaluator.define(name, Value::of(jinja::make_text(arena, text)));
  evaluator.define("messages", conversation.list_);
  evaluator.define("tools", conversation.tools_);
  evaluator.define("documents", Value::of_none());
  evaluator.define("add_generation_prompt", Value::of(add_generation_prompt));
  if (conversation.more_.kind == Kind::dict)
    for (int64_t i = 0; i < conversation.more_.dict->size; ++i) {
      const jinja::Pair& p = conversation.more_.dict->data[i];
      evaluator.define(p.key.text->view(), p.value);
    }
  const jinja::Text* text = evaluator.run();
  RenderedChat out;
  out.text = text->view();
  if (text->run_count)
    out.runs.assign(text->runs, text->runs + text->run_count);
  else if (text->size)
    out.runs.push_back({text->size, text->whole});
  return out;
}

}  // namespace snug
