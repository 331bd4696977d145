#include "engine/text/chat_encoder.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/text/jinja_text.h"
#include "engine/text/tokenizer_spec.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

using jinja::Origin;
using jinja::Run;
using jinja::Source;

[[noreturn]] void lost(const std::string& where) {
  fail(ErrorCode::data, "tokens that can be followed through the text of a conversation",
       where + ": text that the tokenizer changes in another way than by a normal form",
       "give rows of input_ids and labels, or leave the row out");
}

// The normal form that the tokenizer's normaliser asks for, if it does.
std::optional<NormalForm> normal_form(const Tokenizer& tokenizer) {
  const std::string& json = tokenizer.spec().normalizer;
  const std::pair<const char*, NormalForm> forms[] = {{"\"NFC\"", NormalForm::nfc},
                                                      {"\"NFD\"", NormalForm::nfd},
                                                      {"\"NFKC\"", NormalForm::nfkc},
                                                      {"\"NFKD\"", NormalForm::nfkd}};
  for (const auto& [name, form] : forms)
    if (json.find(name) != std::string::npos) return form;
  return std::nullopt;
}

struct Followed {
  std::string text;       // in the tokenizer's normal form
  std::vector<Run> runs;  // of it
  std::vector<int32_t> ids;
  std::vector<int64_t> ends;  // of each token, in text
  int64_t begin(size_t i) const { return i ? ends[i - 1] : 0; }
};

Followed follow(const Tokenizer& tokenizer, RenderedChat chat, const std::string& where) {
  Followed out;
  tokenizer.encode(chat.text, out.ids);
  if (const auto form = normal_form(tokenizer)) {
    // Run by run, so that their ends are known; where the whole would be another text nothing is.
    std::string joined;
    int64_t begin = 0;
    for (Run& run : chat.runs) {
      joined +=
          normalize_utf8(std::string_view(chat.text).substr(static_cast<size_t>(begin),
                                                            static_cast<size_t>(run.end - begin)),
                         *form);
      begin = run.end;
      run.end = static_cast<int64_t>(joined.size());
    }
    if (joined != chat.text && tokenizer.encode(joined) != out.ids) lost(where);
    chat.text = std::move(joined);
  }
  auto ends = follow_tokens(tokenizer, chat.text, out.ids);
  if (!ends) lost(where);
  out.text = std::move(chat.text);
  out.runs = std::move(chat.runs);
  out.ends = std::move(*ends);
  return out;
}

// Of one message: where its turn lies and what in it is its own.
struct Turn {
  int64_t begin = -1, end = -1;   // the bytes written in its turn or its own, from first to last
  int64_t first = -1, last = -1;  // its own text: begin of the first byte, end of the last
};

std::vector<Turn> turns_of(const std::vector<Run>& runs, size_t messages) {
  std::vector<Turn> out(messages);
  int64_t begin = 0;
  for (const Run& run : runs) {
    const Origin& o = run.origin;
    for (const int32_t m : {o.turn, o.message}) {
      if (m < 0 || static_cast<size_t>(m) >= messages) continue;
      Turn& t = out[static_cast<size_t>(m)];
      // A system's text may stand in another's turn; a turn is what its own loop wrote.
      if (m == o.message && o.turn >= 0 && o.turn != m) continue;
      if (t.begin < 0) t.begin = begin;
      t.end = run.end;
    }
    if (o.message >= 0 && o.source == Source::content &&
        static_cast<size_t>(o.message) < messages) {
      Turn& t = out[static_cast<size_t>(o.message)];
      if (t.first < 0) t.first = begin;
      t.last = run.end;
    }
    begin = run.end;
  }
  return out;
}

}  // namespace

std::optional<std::vector<int64_t>> follow_tokens(const Tokenizer& tokenizer, std::string_view text,
                                                  const std::vector<int32_t>& ids) {
  std::vector<int64_t> ends;
  ends.reserve(ids.size());
  size_t at = 0;
  for (const int32_t id : ids) {
    std::string_view bytes = tokenizer.token_bytes(id);
    if (!text.substr(at).starts_with(bytes)) {
      const size_t behind = at + jinja::strip_begin(text.substr(at));
      if (behind > at && text.substr(behind).starts_with(bytes)) {
        at = behind;  // a special token took the white space
      } else if (bytes.starts_with(' ') && text.substr(at).starts_with(bytes.substr(1))) {
        bytes.remove_prefix(1);  // put there by the tokenizer
      } else {
        return std::nullopt;
      }
    }
    at += bytes.size();
    ends.push_back(static_cast<int64_t>(at));
  }
  if (at + jinja::strip_begin(text.substr(at)) < text.size()) return std::nullopt;
  return ends;
}

ChatEncoder::ChatEncoder(ChatTemplate chat, Tokenizer tokenizer, std::vector<int32_t> ends)
    : chat_(std::move(chat)), tokenizer_(std::move(tokenizer)), ends_(std::move(ends)) {
  find_opening();
}

bool ChatEncoder::ends_turn(int32_t id) const {
  return tokenizer_.is_special(id) || std::find(ends_.begin(), ends_.end(), id) != ends_.end();
}

// By the same question with and without the beginning of an answer; they part at a token.
void ChatEncoder::find_opening() {
  const Conversation question =
      Conversation::of_messages(R"([{"role": "user", "content": "a"}])", "a question");
  RenderedChat plain, asked;
  try {
    plain = chat_.render(question);
    asked = chat_.render(question, true);
  } catch (Error& e) {
    e.add_note("a conversation of one question");
    throw;
  }
  const Followed with = follow(tokenizer_, asked, "a question");
  const std::vector<int32_t> without = tokenizer_.encode(plain.text);
  size_t same = 0;
  while (same < without.size() && same < with.ids.size() && without[same] == with.ids[same]) ++same;
  const auto begin = static_cast<size_t>(with.begin(same));
  // What both begin with ends where the shorter does, if its tokens merely merge with what follows.
  const size_t bytes = plain.text.size();
  opening_ = with.text.substr(asked.text.starts_with(plain.text) ? std::max(begin, bytes) : begin);
}

std::vector<int32_t> ChatEncoder::prompt(const Conversation& conversation) const {
  return tokenizer_.encode(chat_.render(conversation, true).text);
}

ChatTokens ChatEncoder::encode(const Conversation& conversation, const std::string& where) const {
  RenderedChat chat;
  try {
    chat = chat_.render(conversation);
  } catch (Error& e) {
    e.add_note(where);
    throw;
  }
  Followed f = follow(tokenizer_, std::move(chat), where);
  ChatTokens out;
  out.trained.assign(f.ids.size(), 0);
  const auto train = [&](int64_t begin, int64_t end) {  // bytes
    bool any = false;
    auto i =
        static_cast<size_t>(std::upper_bound(f.ends.begin(), f.ends.end(), begin) - f.ends.begin());
    for (; i < f.ids.size() && f.begin(i) < end; ++i) {
      if (f.ends[i] == f.begin(i)) continue;
      out.trained[i] = 1;
      any = true;
    }
    return any;
  };
  if (chat_.has_generation()) {
    int64_t begin = 0;
    bool open = false;
    for (const Run& run : f.runs) {
      if (run.origin.generation && train(begin, run.end) && !open) ++out.turns;
      open = run.origin.generation;
      begin = run.end;
    }
    out.ids = std::move(f.ids);
    return out;
  }
  const std::vector<Turn> turns = turns_of(f.runs, conversation.messages().size());
  for (size_t m = 0; m < turns.size(); ++m) {
    const Turn& t = turns[m];
    const Conversation::Message& message = conversation.messages()[m];
    if (message.role != "assistant" || m < conversation.first_trained()) continue;
    if (t.begin < 0) continue;  // the template leaves it out
    int64_t begin = t.first;
    const std::string_view turn = std::string_view(f.text).substr(
        static_cast<size_t>(t.begin), static_cast<size_t>(t.end - t.begin));
    if (!opening_.empty() && turn.starts_with(opening_)) {
      begin = t.begin + static_cast<int64_t>(opening_.size());
    } else if (message.has_tool_calls && opening_.empty()) {
      begin = t.begin;
    } else if (begin >= 0 && opening_.empty()) {
      // White space that the template writes before it is the assistant's too.
      const auto before = static_cast<size_t>(begin - t.begin);
      if (begin > t.begin)
        begin = t.begin + static_cast<int64_t>(jinja::strip_end(turn.substr(0, before)));
    }
    if (begin < 0) continue;
    int64_t end = std::max(begin, t.last);
    // The token that ends the turn: the first such one behind, in the turn or directly behind it.
    auto i = static_cast<size_t>(std::lower_bound(f.ends.begin(), f.ends.end(), end + 1) -
                                 f.ends.begin());
    while (i < f.ids.size() && f.begin(i) < end) ++i;  // one that holds the last byte itself
    bool closed = false;
    for (; i < f.ids.size() && f.begin(i) <= t.end; ++i) {
      const bool inside = f.begin(i) < t.end;
      const bool is_end = std::find(ends_.begin(), ends_.end(), f.ids[i]) != ends_.end();
      if (inside ? ends_turn(f.ids[i]) : is_end) {
        end = f.ends[i];
        closed = true;
        break;
      }
    }
    if (!train(begin, end)) continue;
    ++out.turns;
    out.open_turns += !closed;
  }
  out.ids = std::move(f.ids);
  return out;
}

ChatTokens encode_completion(const Tokenizer& tokenizer, std::optional<int32_t> end,
                             std::string_view prompt, std::string_view completion,
                             const std::string& where) {
  RenderedChat chat;
  chat.text = std::string(prompt) + std::string(completion);
  Origin own;
  own.message = 0;
  if (!prompt.empty()) chat.runs.push_back({static_cast<int64_t>(prompt.size()), {}});
  if (!completion.empty()) chat.runs.push_back({static_cast<int64_t>(chat.text.size()), own});
  const Followed f = follow(tokenizer, std::move(chat), where);
  const int64_t from = f.runs.empty() || f.runs.front().origin == own ? 0 : f.runs.front().end;
  const int32_t mark = -1;
  const TokenSequence around = tokenizer.with_special_tokens({&mark, 1});
  const auto text = std::find(around.ids.begin(), around.ids.end(), mark);
  ChatTokens out;
  out.ids.assign(around.ids.begin(), text);
  out.trained.assign(out.ids.size(), 0);
  for (size_t i = 0; i < f.ids.size(); ++i) {
    out.ids.push_back(f.ids[i]);
    out.trained.push_back(f.ends[i] > from && f.ends[i] > f.begin(i));
  }
  // What stands behind is the end that the completion teaches.
  std::vector<int32_t> behind(text == around.ids.end() ? text : text + 1, around.ids.end());
  if (behind.empty() && end && (out.ids.empty() || out.ids.back() != *end)) behind.push_back(*end);
  for (const int32_t id : behind) {
    out.ids.push_back(id);
    out.trained.push_back(1);
  }
  out.turns = 1;
  out.open_turns = !end;
  return out;
}

}  // namespace snug
