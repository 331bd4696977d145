// Chat templates: conversations to the text that a chat model was trained on, by the Jinja template
// of its folder, with the origin of every byte.
//
// Template   chat_template.jinja of the folder, else "chat_template" of tokenizer_config.json (a
//            string, or a list of {name, template}: "default", with tools "tool_use"). The language
//            is jinja2's as transformers sets it up: trim_blocks, lstrip_blocks, loop controls,
//            {% generation %}, tojson without HTML escapes, raise_exception, strftime_now. Unknown
//            tags, filters, tests and functions are refused by name and line.
// Variables  messages, tools, documents (none), add_generation_prompt, the special tokens of the
//            folder by role (bos_token ...), and those of chat_template_kwargs. Of messages, keys
//            whose value is null are dropped, and reasoning_content, thinking and reasoning stand
//            for each other, as in transformers 5.24.
// Spans      What an assistant's turn teaches (chat_spans).
// Bounds     ChatLimits; a template that loops for ever is an Error (data) with its line.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja_value.h"

namespace snug {

namespace jinja {
struct Program;
}

// The messages of one conversation and what goes with them. Immutable once made; moves.
class Conversation {
 public:
  // An object with "messages" (at least one; each an object with "role", a string), or with
  // "prompt" and "completion", both lists of messages, of which the last alone teach; and if it has
  // them "tools" (a list) and "chat_template_kwargs" (an object). Other keys are left. `where`
  // (file:line) is for errors, all of code data.
  static Conversation parse(std::string_view json, const std::string& where);
  // The messages alone: a JSON list.
  static Conversation of_messages(std::string_view json, const std::string& where);

  struct Message {
    std::string role;
    std::string content;  // "" where it is no string
    bool has_tool_calls = false;
  };
  const std::vector<Message>& messages() const { return messages_; }
  size_t first_trained() const { return first_trained_; }  // index of a message
  bool has_tools() const { return tools_.kind != jinja::Kind::none; }

 private:
  friend class ChatTemplate;
  Conversation();
  void take_messages(const jinja::Value& list, const std::string& where);

  std::unique_ptr<jinja::Arena> arena_;
  jinja::Value list_, tools_ = jinja::Value::of_none(), more_ = jinja::Value::of_none();
  std::vector<Message> messages_;
  size_t first_trained_ = 0;
};

struct ChatLimits {
  int64_t max_steps = 20'000'000;  // nodes of the template evaluated
  int64_t max_bytes = 256 << 20;   // of all texts and values on the way
};

struct RenderedChat {
  std::string text;
  std::vector<jinja::Run> runs;  // of all bytes, in order
};

class ChatTemplate {
 public:
  // Throws Error (data) for what is no template, with `name` and line.
  static ChatTemplate parse(std::string_view source, const std::string& name);
  // None if the folder has none. `with_tools` chooses among named ones. Throws data, unsupported.
  static std::optional<ChatTemplate> load(const std::filesystem::path& folder,
                                          bool with_tools = false);

  // What a template may name: bos_token ... as files beside the tokenizer give them, in place of
  // those that were set. load does it.
  void set_roles(const std::filesystem::path& folder);
  void set_variable(const std::string& name, const std::string& text);
  // Of strftime_now; left alone it is the time of the rendering.
  void set_time(std::time_t now) { now_ = now; }

  // Throws Error (data): what the template raises, with its message; what goes beyond `limits`.
  RenderedChat render(const Conversation& conversation, bool add_generation_prompt = false,
                      const ChatLimits& limits = {}) const;

  bool has_generation() const;  // {% generation %} is in it
  bool names_time() const { return source_.find("strftime_now") != std::string::npos; }
  const std::string& name() const { return name_; }
  const std::string& source() const { return source_; }
  // A hash of the source and the variables.
  uint64_t fingerprint() const;

 private:
  ChatTemplate() = default;
  std::string name_, source_;
  std::shared_ptr<const jinja::Program> program_;
  std::vector<std::pair<std::string, std::string>> variables_;
  std::optional<std::time_t> now_;
};

}  // namespace snug
