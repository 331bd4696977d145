#include "engine/data/pair_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/data/row_record.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

using Json = nlohmann::ordered_json;  // a template may write the keys of a tool in their order

constexpr const char* kPairSpelling =
    "write {\"prompt\": \"...\", \"chosen\": \"...\", \"rejected\": \"...\"}, each a text or a "
    "list of "
    "messages";
constexpr const char* kSingleSpelling =
    "write {\"prompt\": \"...\", \"completion\": \"...\", \"label\": true}, texts or lists of "
    "messages, "
    "or pairs of chosen and rejected";

std::string keys_of(const Json& tree) {
  std::string list;
  for (const auto& item : tree.items()) {
    list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", beginning_utf8(item.key(), 40));
    if (list.size() > 200) break;
  }
  return list.empty() ? "an empty object" : "the keys " + list;
}

const Json* find(const Json& tree, const char* key) {
  const auto at = tree.find(key);
  return at == tree.end() || at->is_null() ? nullptr : &*at;
}

const Json& need(const Json& tree, const char* key, const std::string& where, bool single = false) {
  if (const Json* value = find(tree, key)) return *value;
  fail(ErrorCode::data,
       fmt::format("\"{}\" in every record of {}", key, single ? "single answers" : "pairs"),
       fmt::format("{}: {}", where, keys_of(tree)), single ? kSingleSpelling : kPairSpelling);
}

// The label of a single answer.
bool desirable_of(const Json& tree, const std::string& where) {
  const Json& label = need(tree, "label", where, true);
  if (label.is_boolean()) return label.get<bool>();
  if (label.is_number_integer() && (label == 0 || label == 1)) return label == 1;
  fail(ErrorCode::data, "\"label\" as true or false",
       fmt::format("{}: {}", where, beginning_utf8(label.dump(), 40)),
       "write true for an answer that is desirable, false for one that is not");
}

template <class A, class B>
size_t common(const A& a, const B& b) {
  const size_t most = std::min(a.size(), b.size());
  size_t n = 0;
  while (n < most && a[n] == b[n]) ++n;
  return n;
}

struct Pair {
  std::vector<int32_t> prompt, chosen,
      rejected;  // the last two with the prompt; of one answer the first
};

std::vector<int32_t> ids_of(const Json& list, const char* key, const std::string& where) {
  std::vector<int32_t> ids;
  const auto bad = [&](const std::string& what) {
    fail(ErrorCode::data, fmt::format("\"{}\" as a list of tokens", key),
         fmt::format("{}: {}", where, what), "write [464, 3290]");
  };
  if (!list.is_array()) bad("another value");
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) bad(beginning_utf8(id.dump(), 40));
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Pair pair_of_ids(const Json& tree, const std::string& where, bool prompted, bool single) {
  Pair p;
  if (prompted || find(tree, "prompt_ids"))
    p.prompt = ids_of(need(tree, "prompt_ids", where, single), "prompt_ids", where);
  std::vector<std::pair<const char*, std::vector<int32_t>*>> answers = {
      {"chosen_ids", &p.chosen}, {"rejected_ids", &p.rejected}};
  if (single) answers = {{"completion_ids", &p.chosen}};
  for (const auto& [key, to] : answers) {
    const std::vector<int32_t> own = ids_of(need(tree, key, where, single), key, where);
    if (own.empty())
      fail(ErrorCode::data, fmt::format("a token at least in \"{}\"", key),
           fmt::format("{}: none", where), single ? "leave the record out" : "leave the pair out");
    *to = p.prompt;
    to->insert(to->end(), own.begin(), own.end());
  }
  return p;
}

// Where the texts begin to differ, less a blank before it, at a whole character.
size_t common_text(const std::string& a, const std::string& b) {
  size_t n = common(a, b);
  const bool differ = n < std::min(a.size(), b.size());
  if (!differ && n > 0) --n;  // the last character is the answer's then
  while (n > 0 && (static_cast<unsigned char>(a[n]) & 0xc0) == 0x80) --n;
  if (differ && n > 0 && a[n - 1] == ' ') --n;
  return n;
}

// What of a list of messages is the prompt of both.
size_t common_messages(const Json& a, const Json& b) {
  const size_t n = common(a, b);
  return n == std::min(a.size(), b.size()) && n > 0 ? n - 1 : n;
}

Json joined(const Json& a, const Json& b) {
  Json all = a;
  for (const Json& message : b) all.push_back(message);
  return all;
}

}  // namespace

PairRows::Ids PairRows::encode(const std::string& text, bool ends) const {
  const Tokenizer& tokenizer = chats_->tokenizer();
  Ids ids = tokenizer.encode(text);
  const std::optional<int32_t> end = chats_->end();
  if (ends && end && (ids.empty() || ids.back() != *end)) ids.push_back(*end);
  const int32_t mark = -1;
  const TokenSequence around = tokenizer.with_special_tokens({&mark, 1});
  Ids out;
  for (const int32_t id : around.ids) {
    if (id == mark)
      out.insert(out.end(), ids.begin(), ids.end());
    else if (!ends || out.empty() || out.back() != id)  // never two ends
      out.push_back(id);
  }
  return out;
}

int PairRows::rows(const nlohmann::json& tree) const {
  const auto has = [&](const char* key) {
    return tree.is_object() && tree.contains(key) && !tree[key].is_null();
  };
  const bool pair = has("chosen") || has("rejected") || has("chosen_ids") || has("rejected_ids");
  return single() && pair ? 2 : 1;
}

void PairRows::read(const nlohmann::json& object, std::string_view text, const std::string& where,
                    RowRecord& out, int row) const {
  const Json tree = Json::parse(text);
  const bool rewards = use_ == PairUse::rewards, labelled = single() && rows(object) == 1;
  Pair p;
  if (find(tree, "prompt_ids") || find(tree, "chosen_ids") || find(tree, "rejected_ids") ||
      (labelled && find(tree, "completion_ids"))) {
    p = pair_of_ids(tree, where, !rewards, labelled);
  } else {
    // Of one answer the other is that too.
    Json chosen = need(tree, labelled ? "completion" : "chosen", where, labelled),
         rejected = labelled ? chosen : need(tree, "rejected", where);
    const Json* given = labelled ? &need(tree, "prompt", where, true) : find(tree, "prompt");
    const bool texts = chosen.is_string();
    const char* const first = labelled ? "completion" : "chosen";
    const Json* const parts[] = {&chosen, &rejected, given};
    for (const Json* part : parts)
      if (part && (texts ? !part->is_string() : !part->is_array()))
        fail(ErrorCode::data,
             labelled ? "prompt and completion that are both texts or both lists of messages"
                      : "prompt, chosen and rejected that are all texts or all lists of messages",
             part == &chosen
                 ? fmt::format("{}: {} is {}", where, first, chosen.type_name())
                 : fmt::format("{}: {} beside {}", where, part->type_name(), chosen.type_name()),
             labelled ? kSingleSpelling : kPairSpelling);
    for (const Json* part : {parts[0], parts[1]})
      if (part->empty() || (texts && part->get_ref<const std::string&>().empty()))
        fail(ErrorCode::data,
             labelled ? "an answer in completion of every record"
                      : "an answer in chosen and in rejected of every pair",
             fmt::format("{}: {} is empty", where, part == &chosen ? first : "rejected"),
             labelled ? "leave the record out" : "leave the pair out");
    if (!chats_)
      fail(ErrorCode::usage, "a tokenizer for pairs of texts or messages",
           fmt::format("none, and {}", where), "tokenizer=tok.json, or model=FOLDER with one");
    if (texts) {
      std::string a = chosen.get<std::string>(), b = rejected.get<std::string>(), prompt;
      if (given) {
        prompt = given->get<std::string>();
      } else {
        const size_t n = common_text(a, b);
        prompt = a.substr(0, n);
        a.erase(0, n);
        b.erase(0, n);
      }
      p = {encode(prompt, false), encode(prompt + a, true),
           labelled ? Ids() : encode(prompt + b, true)};
    } else {
      if (!chats_->encoder())
        fail(ErrorCode::data, "a chat template for conversations",
             fmt::format("{}: messages, and {}", where, chats_->missing()),
             "chat_template=FILE.jinja, or a model folder that has one");
      const ChatEncoder& encoder = *chats_->encoder();
      Json prompt = Json::array();
      if (given) {
        prompt = *given;
      } else {
        const size_t n = common_messages(chosen, rejected);
        prompt.insert(prompt.end(), chosen.begin(), chosen.begin() + static_cast<int64_t>(n));
        chosen.erase(chosen.begin(), chosen.begin() + static_cast<int64_t>(n));
        rejected.erase(rejected.begin(), rejected.begin() + static_cast<int64_t>(n));
      }
      const auto ids = [&](Json messages, bool opens) {
        Json record = {{"messages", std::move(messages)}};
        for (const char* key : {"tools", "chat_template_kwargs"})
          if (const Json* value = find(tree, key)) record[key] = *value;
        const Conversation conversation = Conversation::parse(record.dump(), where);
        return opens ? encoder.prompt(conversation)
                     : encoder.tokenizer().encode(encoder.chat().render(conversation).text);
      };
      if (prompt.empty() && !rewards)
        fail(ErrorCode::data,
             labelled ? "a message before the answer" : "a message before the answers of a pair",
             labelled ? fmt::format("{}: an empty prompt", where)
                      : fmt::format("{}: chosen and rejected differ from the first on", where),
             labelled ? kSingleSpelling : kPairSpelling);
      p = {rewards ? Ids() : ids(prompt, true), ids(joined(prompt, chosen), false),
           labelled ? Ids() : ids(joined(prompt, rejected), false)};
    }
  }
  if (rewards) return take_rewarded(tree, p.chosen, p.rejected, where, out);
  if (single())
    return take_single(tree, p.prompt, row == 0 ? p.chosen : p.rejected,
                       labelled ? size_t{2} : static_cast<size_t>(row), where,
                       fmt::format("{} {}", where, text), out);
  const size_t before = std::min(common(p.prompt, p.chosen), common(p.prompt, p.rejected));
  out.content = RowRecord::Content::ids;
  if (static_cast<int64_t>(before) >= max_length_) return;
  out.equal = p.chosen == p.rejected;
  for (const auto* ids : {&p.chosen, &p.rejected}) {
    if (ids->size() <= before)
      fail(ErrorCode::data, "an answer of a token at least behind the prompt",
           fmt::format("{}: {} has none", where, ids == &p.chosen ? "chosen" : "rejected"),
           "leave the pair out");
    const size_t n = std::min(ids->size(), static_cast<size_t>(max_length_));
    if (use_ == PairUse::means && n < 2)
      fail(ErrorCode::data,
           "a token before the last of every answer, so that one at least has a mean",
           fmt::format("{}: {} is one token without a prompt", where,
                       ids == &p.chosen ? "chosen" : "rejected"),
           "give the pair a prompt, or leave it out");
    out.cut = out.cut || n < ids->size();
    for (size_t i = 0; i < n; ++i) {
      out.ids.push_back((*ids)[i]);
      out.trained.push_back(i >= before);
      out.types.push_back(ids == &p.chosen ? 0 : 1);
    }
  }
}

void PairRows::take_rewarded(const nlohmann::ordered_json& tree, const Ids& chosen,
                             const Ids& rejected, const std::string& where, RowRecord& out) const {
  out.content = RowRecord::Content::ids;
  if (const Json* margin = find(tree, "margin")) {
    if (!margin->is_number())
      fail(ErrorCode::data, "\"margin\" as a number",
           fmt::format("{}: {}", where, beginning_utf8(margin->dump(), 40)),
           "write {\"margin\": 0.5}, or leave it out");
    out.margin = margin->get<float>();
    if (!std::isfinite(out.margin))
      fail(ErrorCode::data, "\"margin\" as a number that a float holds",
           fmt::format("{}: {}", where, margin->dump()), "write {\"margin\": 0.5}");
  }
  const auto most = static_cast<size_t>(max_length_);
  if (chosen.size() > most || rejected.size() > most) return;
  out.equal = chosen == rejected;
  for (const Ids* ids : {&chosen, &rejected}) {
    out.ids.insert(out.ids.end(), ids->begin(), ids->end());
    out.types.insert(out.types.end(), ids->size(), ids == &chosen ? 0 : 1);
  }
  out.trained.assign(out.ids.size(), 1);
}

// `form`: 0 of a chosen one, 1 of a rejected one, 2 of one with a label.
void PairRows::take_single(const nlohmann::ordered_json& tree, const Ids& prompt, const Ids& ids,
                           size_t form, const std::string& where, const std::string& record,
                           RowRecord& out) const {
  require(others_ != nullptr, "a place for the answers of others");
  out.content = RowRecord::Content::ids;
  const bool desirable = form == 2 ? desirable_of(tree, where) : form == 0;
  const size_t before = common(prompt, ids);
  if (static_cast<int64_t>(before) >= max_length_) return;
  Ids answer(ids.begin() + static_cast<int64_t>(before), ids.end());
  if (answer.empty())
    fail(ErrorCode::data, "an answer of a token at least behind the prompt",
         fmt::format("{}: none", where), "leave the record out");
  out.ids.assign(prompt.begin(), prompt.begin() + static_cast<int64_t>(before));
  if (use_ == PairUse::mismatched && others_->records[form] == record)
    fail(ErrorCode::data,
         "two records at least, since each prompt is compared with another's answer",
         fmt::format("{} alone", where),
         "give more records, or loss_type=apo_zero_unpaired, which compares with nothing");
  std::swap(others_->ids[form], answer);
  others_->records[form] = record;
  const Ids& taken = use_ == PairUse::mismatched ? answer : others_->ids[form];
  out.ids.insert(out.ids.end(), taken.begin(), taken.end());
  out.cut = static_cast<int64_t>(out.ids.size()) > max_length_;
  if (out.cut) out.ids.resize(static_cast<size_t>(max_length_));
  for (size_t i = 0; i < out.ids.size(); ++i) out.trained.push_back(i >= before);
  out.types.assign(out.ids.size(), desirable ? 0 : 1);
}

uint64_t PairRows::fingerprint() const {
  return (chats_ ? chats_->fingerprint() : 2) ^
         static_cast<uint64_t>(max_length_) * 0x9e3779b97f4a7c15 ^
         (use_ == PairUse::rewards ? 0x7265776172647321 : 0) ^
         (single() ? 0x73696e676c65 + static_cast<uint64_t>(use_) : 0);
}

}  // namespace snug
