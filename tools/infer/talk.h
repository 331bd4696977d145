// A talk with a chat model, turn by turn: what was said stays in the session's cache, and a turn
// feeds what is new.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/text/chat_encoder.h"
#include "tools/infer/generation.h"

namespace snug {

class Talk {
 public:
  // `system`: what a message of that role says first; empty: none. `in` has one row of cache.
  Talk(Inference& in, const ChatEncoder& chat, const GenerationRequest& request,
       const std::string& system);

  // Adds what the user says and generates the answer; `shown` gets its text as it is made. Throws
  // data for what the template refuses and for a talk that the cache has no room for; the talk is
  // then as before.
  GeneratedText say(const std::string& user, const std::function<void(const std::string&)>& shown);
  void begin_again();
  int64_t turns() const { return turns_; }
  // Tokens of the last prompt that were in the cache.
  int64_t cached() const { return cached_; }

 private:
  struct Message {
    const char* role;
    std::string content;
  };
  Conversation conversation() const;

  Inference& in_;
  const ChatEncoder& chat_;
  GenerationRequest request_;
  uint64_t seed_;
  std::vector<Message> messages_;
  size_t first_ = 0;          // messages before the first of the user
  std::vector<int32_t> fed_;  // what the cache holds
  int64_t turns_ = 0, cached_ = 0;
};

}  // namespace snug
