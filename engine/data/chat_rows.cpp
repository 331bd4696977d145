#include "engine/data/chat_rows.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/data/row_record.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

constexpr const char* kSpelling =
    "write {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, {\"role\": \"assistant\", "
    "\"content\": \"...\"}]}, or {\"prompt\": \"...\", \"completion\": \"...\"}";

std::string keys_of(const nlohmann::json& tree) {
  std::string list;
  for (const auto& [key, value] : tree.items()) {
    list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", beginning_utf8(key, 40));
    if (list.size() > 200) break;
  }
  return list.empty() ? "an empty object" : "the keys " + list;
}

void take(ChatTokens tokens, RowRecord& out) {
  out.content = RowRecord::Content::ids;
  out.ids.assign(tokens.ids.begin(), tokens.ids.end());
  out.trained = std::move(tokens.trained);
  out.turns = tokens.turns;
  out.open_turns = tokens.open_turns;
}

}  // namespace

ChatRows::ChatRows(std::optional<ChatTemplate> chat, const Tokenizer& tokenizer,
                   std::vector<int32_t> ends, std::string missing)
    : tokenizer_(tokenizer), ends_(std::move(ends)), missing_(std::move(missing)) {
  if (chat) encoder_.emplace(std::move(*chat), tokenizer, ends_);
}

void ChatRows::read(const nlohmann::json& tree, std::string_view text, const std::string& where,
                    RowRecord& out) const {
  const auto is = [&](const char* key, auto&& kind) {
    const auto at = tree.find(key);
    return at != tree.end() && kind(*at);
  };
  const auto string = [](const nlohmann::json& v) { return v.is_string(); };
  const auto given = [](const nlohmann::json& v) { return !v.is_null(); };
  const bool messages = is("messages", given);
  const bool pair = is("prompt", given) && is("completion", given);
  if (messages == pair)
    fail(ErrorCode::data, "messages, or a prompt and a completion, in every record",
         fmt::format("{}: {}", where, messages ? "both" : keys_of(tree)), kSpelling);
  if (pair && is("prompt", string) && is("completion", string))
    return take(encode_completion(tokenizer_, end(), tree["prompt"].get_ref<const std::string&>(),
                                  tree["completion"].get_ref<const std::string&>(), where),
                out);
  const Conversation conversation = Conversation::parse(text, where);
  if (!encoder_)
    fail(ErrorCode::data, "a chat template for conversations",
         fmt::format("{}: messages, and {}", where, missing_),
         "chat_template=FILE.jinja, or a model folder that has one");
  take(encoder_->encode(conversation, where), out);
}

uint64_t ChatRows::fingerprint() const {
  uint64_t hash = encoder_ ? encoder_->chat().fingerprint() : 1;
  for (const int32_t id : ends_) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001b3;
  return hash;
}

}  // namespace snug
