// Records of conversations as rows of tokens (row_reader.h, kind causal): an assistant's turns are
// trained, the rest is context.
//
// Records    {"messages": [...]}, also with "tools" and "chat_template_kwargs"; {"prompt": [...],
//            "completion": [...]}, lists of messages of which the completion's are trained; or
//            {"prompt": "...", "completion": "..."}, texts that no template touches, with the end
//            token behind. "input_ids" are read as ever.
// Tokens     chat_encoder.h.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/chat_encoder.h"

namespace snug {

struct RowRecord;  // row_record.h

class ChatRows {
 public:
  // Without a template only texts are read: `missing` says where one was looked for. `ends`: the
  // tokens that end a text, the first of which ends a completion.
  ChatRows(std::optional<ChatTemplate> chat, const Tokenizer& tokenizer, std::vector<int32_t> ends,
           std::string missing);

  // `tree` is the record, `text` its JSON. Throws Error (data) naming `where`: keys that make no
  // row, messages that are none, what the template refuses.
  void read(const nlohmann::json& tree, std::string_view text, const std::string& where,
            RowRecord& out) const;

  const std::optional<ChatEncoder>& encoder() const { return encoder_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  // The token that ends a completion.
  std::optional<int32_t> end() const {
    return ends_.empty() ? std::nullopt : std::optional<int32_t>(ends_.front());
  }
  const std::string& missing() const { return missing_; }
  // Of what decides the tokens beside the tokenizer.
  uint64_t fingerprint() const;

 private:
  std::optional<ChatEncoder> encoder_;
  Tokenizer tokenizer_;
  std::vector<int32_t> ends_;
  std::string missing_;
};

}  // namespace snug
