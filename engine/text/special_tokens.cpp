#include "engine/text/special_tokens.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/error.h"
#include "engine/text/tokenizer_files.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr const char* kListKeys[] = {"extra_special_tokens", "additional_special_tokens"};

size_t index_of(const char* role) {
  const auto& roles = SpecialTokens::kRoles;
  const auto it = std::find_if(roles.begin(), roles.end(),
                               [&](const char* key) { return std::strcmp(key, role) == 0; });
  require(it != roles.end(), "a role of a tokenizer");
  return static_cast<size_t>(it - roles.begin());
}

std::optional<size_t> role_named(const std::string& key) {
  for (size_t i = 0; i < SpecialTokens::kRoles.size(); ++i)
    if (key == SpecialTokens::kRoles[i]) return i;
  return std::nullopt;
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

Json object_in(const fs::path& path, const char* wanted) {
  const Json json = parse_json_file(path.string());
  if (!json.is_object())
    fail(ErrorCode::data, wanted, path.string() + ": " + json.type_name(), kRepairFile);
  return json;
}

}  // namespace

SpecialTokens::SpecialTokens(const fs::path& folder)
    : config_path_((folder / "tokenizer_config.json").string()),
      map_path_((folder / "special_tokens_map.json").string()),
      added_path_((folder / "added_tokens.json").string()) {
  if (is_there(config_path_)) config_ = object_in(config_path_, "a JSON object");
  read_config();
  const Json& decoder = json_member(config_, "added_tokens_decoder", config_path_);
  if (!decoder.is_null()) {
    read_decoder(decoder);
  } else {
    if (is_there(map_path_)) read_map();
    if (is_there(added_path_)) read_added();
  }
  // Looked at last, so that it makes no token of added_tokens.json special.
  if (!extra_given_) {
    const bool in_map = map_.contains(kListKeys[1]);
    const Json& older = in_map ? map_[kListKeys[1]] : older_;
    if (!older.is_null()) read_list(older, kListKeys[1], in_map ? map_path_ : config_path_, in_map);
  }
  settle_names();
}

SpecialTokens::Entry SpecialTokens::entry_of(const Json& value, const std::string& key,
                                             const std::string& origin, bool special) const {
  Entry entry;
  entry.origin = &origin;
  AddedToken& token = entry.token;
  token.special = special;
  if (value.is_object()) {
    token.content = json_string(value, "content", origin);
    token.single_word = json_bool(value, "single_word", false, origin);
    token.lstrip = json_bool(value, "lstrip", false, origin);
    token.rstrip = json_bool(value, "rstrip", false, origin);
    token.special = special || json_bool(value, "special", false, origin);
    if (!json_member(value, "normalized", origin).is_null())
      entry.normalized = json_bool(value, "normalized", false, origin);
  } else if (value.is_string()) {
    token.content = value.get<std::string>();
    entry.text = true;
  }
  if (token.content.empty())
    fail(ErrorCode::data, "a token in \"" + key + "\"", origin + ": " + json_brief(value),
         kRepairFile);
  return entry;
}

void SpecialTokens::set_role(size_t role, const Json& value, const std::string& origin) {
  roles_[role].given = true;
  roles_[role].entry.reset();
  // An object of the config is special only by its role: until then it is another token than one
  // that says so, which add_to tells apart.
  const bool special = value.is_string() || &origin == &map_path_;
  if (!value.is_null() && value != "")
    roles_[role].entry = entry_of(value, kRoles[role], origin, special);
}

// Names with their tokens stand in the order of the file for transformers; here the order is lost,
// which matters to the ids of new ones, and to the flags where two names have one token.
void SpecialTokens::read_list(const Json& list, const char* key, const std::string& origin,
                              bool special) {
  if (!list.is_array() && !list.is_object())
    fail(ErrorCode::data, std::string("a list \"") + key + "\"", origin + ": " + list.type_name(),
         kRepairFile);
  if (list.is_object()) {
    for (const auto& [name, value] : list.items())
      set_named(named_first_, name, value, origin, special || value.is_string());
    return;
  }
  for (const Json& value : list)
    extra_.push_back(entry_of(value, key, origin, special || value.is_string()));
}

// A name said again keeps its place.
void SpecialTokens::set_named(std::vector<Named>& list, const std::string& name, const Json& value,
                              const std::string& origin, bool special) {
  Named named{.name = name, .entry = std::nullopt};
  if (value != "") named.entry = entry_of(value, name, origin, special);
  const auto it = std::find_if(list.begin(), list.end(),
                               [&](const Named& other) { return other.name == name; });
  if (it == list.end())
    list.push_back(std::move(named));
  else
    *it = std::move(named);
}

void SpecialTokens::settle_names() {
  for (Named& named : named_first_) {
    if (const auto role = role_named(named.name)) {
      roles_[*role] = {.given = true, .entry = std::move(named.entry)};
      continue;
    }
    const auto it = std::find_if(named_late_.begin(), named_late_.end(),
                                 [&](const Named& other) { return other.name == named.name; });
    if (it == named_late_.end())
      named_late_.push_back(std::move(named));
    else
      *it = std::move(named);
  }
  for (Named& named : named_late_)
    if (named.entry) named_.push_back(std::move(*named.entry));
}

void SpecialTokens::read_config() {
  for (const auto& [key, value] : config_.items()) {
    if (const auto role = role_named(key))
      set_role(*role, value, config_path_);
    else if (key.ends_with("_token") && value.is_string())
      set_named(named_first_, key, value, config_path_, true);
    else if (key.ends_with("_token") && value.is_object() &&
             json_member(value, "__type", config_path_) == "AddedToken")
      set_named(named_late_, key, value, config_path_, false);
  }
  const Json& newer = json_member(config_, kListKeys[0], config_path_);
  // The older key counts where the newer one says nothing, and may where that has names alone.
  const bool moved = config_.contains(kListKeys[1]) && (newer.is_null() || newer.empty());
  if (!moved) older_ = json_member(config_, kListKeys[1], config_path_);
  const char* key = kListKeys[moved ? 1 : 0];
  const Json& list = json_member(config_, key, config_path_);
  extra_given_ = config_.contains(key) && !list.is_object();
  if (!list.is_null()) read_list(list, key, config_path_, false);
}

void SpecialTokens::read_map() {
  map_ = object_in(map_path_, "a JSON object");
  for (const auto& [key, value] : map_.items()) {
    if (const auto role = role_named(key)) {
      set_role(*role, value, map_path_);
    } else if (key == kListKeys[0]) {
      if (!value.is_array()) extra_.clear();
      extra_given_ = !value.is_object();
      if (!value.is_null()) read_list(value, kListKeys[0], map_path_, true);
    } else if (key.ends_with("_token")) {
      const bool token = value.is_object() || value.is_string();
      set_named(named_late_, key, token ? value : Json(""), map_path_, true);
    }
  }
}

// Ids as decimal keys: {"50256": {"content": ...}}.
void SpecialTokens::read_decoder(const Json& decoder) {
  if (!decoder.is_object())
    fail(ErrorCode::data, "an object \"added_tokens_decoder\"",
         config_path_ + ": " + decoder.type_name(), kRepairFile);
  for (const auto& [key, value] : decoder.items()) {
    const bool digits =
        !key.empty() && key.size() <= 9 &&
        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits)
      fail(ErrorCode::data, "ids as keys of \"added_tokens_decoder\"",
           config_path_ + ": \"" + key + "\"", kRepairFile);
    decoder_.push_back(entry_of(value, "added_tokens_decoder", config_path_, false));
    decoder_.back().id = std::stoi(key);
  }
  std::sort(decoder_.begin(), decoder_.end(),
            [](const Entry& a, const Entry& b) { return a.id < b.id; });
}

// {"token": id}: special where another file says so, and then not looked for in normalised text.
void SpecialTokens::read_added() {
  const Json root = object_in(added_path_, "added tokens {\"token\": id, ...}");
  StringMap<bool> special;
  const auto note = [&](const Entry& entry) {  // objects of the config are not looked into
    if (entry.text || entry.origin == &map_path_) special.emplace(entry.token.content, true);
  };
  for (const Role& role : roles_)
    if (role.entry) note(*role.entry);
  for (const Entry& entry : extra_) note(entry);
  for (const auto& [content, id] : root.items()) {
    Entry entry;
    entry.origin = &added_path_;
    entry.token.content = content;
    entry.token.special = special.contains(content);
    entry.normalized = !entry.token.special;
    entry.id = id_of(id, "token \"" + content + "\"", added_path_);
    decoder_.push_back(std::move(entry));
  }
  std::sort(decoder_.begin(), decoder_.end(),
            [](const Entry& a, const Entry& b) { return a.id < b.id; });
}

std::optional<std::string> SpecialTokens::role(const char* key) const {
  const Role& role = roles_[index_of(key)];
  if (!role.entry) return std::nullopt;
  return role.entry->token.content;
}

bool SpecialTokens::is_given(const char* key) const {
  return roles_[index_of(key)].given;
}

void SpecialTokens::set_default(const char* key, const char* content) {
  if (!is_given(key)) set_role(index_of(key), content, config_path_);
}

void SpecialTokens::add_to(TokenizerSpec& spec, bool plain, bool new_roles) const {
  StringMap<size_t> place;  // in spec.added
  auto next = static_cast<int64_t>(spec.vocab.size());
  for (const AddedToken& token : spec.added) {
    place.emplace(token.content, place.size());
    next = std::max(next, int64_t{token.id} + 1);
  }
  StringMap<bool> has_role;
  for (const Role& role : roles_)
    if (role.entry) has_role.emplace(role.entry->token.content, true);
  for (const Entry& entry : named_) has_role.emplace(entry.token.content, true);

  const auto add = [&](const Entry& entry) {
    AddedToken token = entry.token;
    token.special = token.special || has_role.contains(token.content);
    token.normalized = entry.normalized.value_or(!token.special);
    const auto [it, is_new] = place.emplace(token.content, spec.added.size());
    if (!is_new) {  // the later one counts
      token.id = spec.added[it->second].id;
    } else if (const auto known = spec.vocab.find(token.content); known != spec.vocab.end()) {
      token.id = known->second;
    } else {
      if (next > INT32_MAX)
        fail(ErrorCode::data, "token ids that leave room for those of added tokens",
             *entry.origin + ": none is left for \"" + token.content + "\"", kRepairFile);
      token.id = static_cast<int32_t>(next);
    }
    next = std::max(next, int64_t{token.id} + 1);
    if (entry.id >= 0 && entry.id != token.id)
      fail(ErrorCode::data,
           "the id " + std::to_string(token.id) + " for \"" + token.content +
               "\": that of the vocabulary, or the next one behind it",
           *entry.origin + ": " + std::to_string(entry.id), kSaveAsJson);
    if (is_new)
      spec.added.push_back(std::move(token));
    else
      spec.added[it->second] = std::move(token);
  };

  for (const Entry& entry : decoder_) {
    // tokenizer.json knows its own better than added_tokens.json.
    if (entry.origin != &added_path_ || !place.contains(entry.token.content)) add(entry);
  }
  // A role or a list changes none of these, and what is said twice in the same words counts once:
  // of "<s>", {"content": "<s>", "lstrip": true}, "<s>" the second counts.
  const StringMap<size_t> before = place;
  StringMap<bool> said;
  const auto is_said = [&](const Entry& entry) {
    const AddedToken& t = entry.token;
    std::string words = t.content;
    for (const bool flag : {entry.text, t.single_word, t.lstrip, t.rstrip, t.special,
                            entry.normalized.value_or(!t.special)})
      words += flag ? '1' : '0';
    return before.contains(t.content) || !said.emplace(std::move(words), true).second;
  };
  int64_t new_names = 0;
  for (size_t i = 0; i < kRoles.size(); ++i) {
    if (!roles_[i].entry || is_said(*roles_[i].entry)) continue;
    const std::string& content = roles_[i].entry->token.content;
    const bool has_id = spec.vocab.contains(content) || place.contains(content);
    const bool ours = i == 0 || i == 1 || i == 2 || i == 4;  // bos, eos, unk, pad
    if (!new_roles && ours && !has_id) return;               // build refuses it by name
    add(*roles_[i].entry);
  }
  for (const Entry& entry : named_) {
    if (is_said(entry)) continue;
    if (!place.contains(entry.token.content) && !spec.vocab.contains(entry.token.content) &&
        ++new_names > 1)
      fail(ErrorCode::unsupported, "at most one token with a name of its own that gets a new id",
           *entry.origin + ": \"" + entry.token.content + "\"", kSaveAsJson);
    add(entry);
  }
  for (const Entry& entry : extra_)
    if (!is_said(entry)) add(entry);
  if (!plain) return;
  const auto make_plain = [&](const Entry& entry) {
    AddedToken& token = spec.added[place.at(entry.token.content)];
    token = {.id = token.id, .content = token.content, .special = true};
  };
  for (const Role& role : roles_)
    if (role.entry) make_plain(*role.entry);
  for (const Entry& entry : named_) make_plain(entry);
  for (const Entry& entry : extra_) make_plain(entry);
}

}  // namespace snug
