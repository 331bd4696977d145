// Conversations to tokens, and which of them an assistant's turns teach.
//
// Tokens     Those of the rendered text, special tokens in it recognised and nothing put around it,
//            as apply_chat_template has it: one BOS if the template writes one, never two.
// Trained    With {% generation %} in the template: the tokens that hold a byte of such a block,
//            and no others. Without: of each message of role assistant (of those behind a prompt
//            alone, if the row has one), by the origin of the text,
//              from   behind the generation prompt, where the turn begins with it; else the first
//                     byte that is the message's own, its role apart, with white space of the
//                     template before it; of a turn with tool calls the first byte of the turn
//              to     the first special or end token behind the last such byte in the text that the
//                     template writes in this turn, or directly behind the turn; without one, the
//                     last byte that is the message's own
//            A token is trained if it holds a byte of such a span.
// Following  A token's bytes are found in the text by walking along it: vocabularies over bytes and
//            over characters, with a space put before, white space taken by a special token, and
//            text in the normal form that the tokenizer asks for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace snug {

struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> trained;  // of each id, 1 or 0
  int64_t turns = 0;             // assistant's turns with a trained token
  int64_t open_turns = 0;        // of those, without an end token
};

class ChatEncoder {
 public:
  // `ends`: the tokens that end a text, as the model's folder says. Throws Error (data) if not
  // even a question and its answer render.
  ChatEncoder(ChatTemplate chat, Tokenizer tokenizer, std::vector<int32_t> ends);

  // Throws Error (data): what the template raises or exceeds, and tokens that cannot be followed
  // through the text, naming `where`.
  ChatTokens encode(const Conversation& conversation, const std::string& where) const;
  // The conversation so far and the beginning of the assistant's turn.
  std::vector<int32_t> prompt(const Conversation& conversation) const;

  const ChatTemplate& chat() const { return chat_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const std::vector<int32_t>& ends() const { return ends_; }
  // What the template writes before an assistant's turn; empty if it does not say.
  const std::string& generation_prompt() const { return opening_; }

 private:
  void find_opening();
  bool ends_turn(int32_t id) const;

  ChatTemplate chat_;
  Tokenizer tokenizer_;
  std::vector<int32_t> ends_;
  std::string opening_;
};

// A prompt and what follows it, as text: tokens of both together with what the tokenizer puts
// around texts, an end token (if `end` is one) at the end; those that hold a byte of the completion
// and the end are trained. Throws as encode.
ChatTokens encode_completion(const Tokenizer& tokenizer, std::optional<int32_t> end,
                             std::string_view prompt, std::string_view completion,
                             const std::string& where);

// Where each token ends in `text`, whose ids they are; none if they cannot be followed.
std::optional<std::vector<int64_t>> follow_tokens(const Tokenizer& tokenizer, std::string_view text,
                                                  const std::vector<int32_t>& ids);

}  // namespace snug
