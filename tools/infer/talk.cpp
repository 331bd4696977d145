#include "tools/infer/talk.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/text/unicode.h"

namespace snug {

Talk::Talk(Inference& in, const ChatEncoder& chat, const GenerationRequest& request,
           const std::string& system)
    : in_(in), chat_(chat), request_(request), seed_(request.options.sampling.seed) {
  require(in.plan.decisions.kv_rows == 1, "a cache of one row");
  if (!system.empty()) messages_.push_back({"system", sanitize_utf8(system)});
  first_ = messages_.size();
}

void Talk::begin_again() {
  messages_.resize(first_);
}

Conversation Talk::conversation() const {
  nlohmann::json list = nlohmann::json::array();
  for (const Message& m : messages_) list.push_back({{"role", m.role}, {"content", m.content}});
  return Conversation::of_messages(list.dump(), "the talk");
}

GeneratedText Talk::say(const std::string& user,
                        const std::function<void(const std::string&)>& shown) {
  messages_.push_back({"user", sanitize_utf8(user)});
  std::vector<int32_t> prompt;
  try {
    prompt = chat_.prompt(conversation());
    const int64_t length = text_room(*in_.session);
    if (static_cast<int64_t>(prompt.size()) > length)
      fail(ErrorCode::data, fmt::format("a talk of at most {} tokens", length),
           fmt::format("{} with this turn", prompt.size()),
           "begin again, or give --max-length more");
  } catch (Error&) {
    messages_.pop_back();
    throw;
  }
  // A template may write earlier turns in another way once they are over.
  const auto [same, end] = std::mismatch(fed_.begin(), fed_.end(), prompt.begin(), prompt.end());
  cached_ = in_.session->reusable(
      std::min<int64_t>(same - fed_.begin(), static_cast<int64_t>(prompt.size()) - 1),
      static_cast<int64_t>(fed_.size()));
  request_.options.sampling.seed = seed_ + static_cast<uint64_t>(turns_++);  // no turn draws twice
  GeneratedText answer;
  fed_.clear();  // until it is known again
  generate_texts(
      in_, request_, 1, [&](int64_t) { return prompt; },
      [&](const GeneratedText& text) { answer = text; }, shown, cached_);
  fed_ = std::move(prompt);
  fed_.insert(fed_.end(), answer.ids.begin(), answer.ids.end());
  if (!answer.ids.empty()) fed_.pop_back();  // the last one need not have been fed
  messages_.push_back({"assistant", answer.text});
  return answer;
}

}  // namespace snug
