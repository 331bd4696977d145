// The special and added tokens that stand beside a tokenizer: in tokenizer_config.json,
// special_tokens_map.json and added_tokens.json, put together as transformers 5 does
// (PreTrainedTokenizerBase._from_pretrained, TokenizersBackend.__init__).
//
// Order     tokenizer_config.json; over it special_tokens_map.json, unless the config has
//           added_tokens_decoder, which with the config's own keys is then all; added_tokens.json
//           where there is no decoder.
// Lists     extra_special_tokens, or additional_special_tokens where it says nothing or gives names
//           to its tokens, as an object does.
// Names     those of an object and keys "..._token" that are no roles. A name has one token: the
//           configuration's, and an object's before a key's. A name of an object may be a role.
// Ids       a token of the vocabulary has its id there; others follow the vocabulary and the tokens
//           before them: those of the decoder in the order of their keys, the roles in the order of
//           kRoles, other keys "..._token", the lists.
// Errors    data: what is no token; an id in a file that is not the one the token gets.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/json_text.h"
#include "engine/text/tokenizer_spec.h"

namespace snug {

class SpecialTokens {
 public:
  static constexpr std::array<const char*, 7> kRoles = {
      "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

  explicit SpecialTokens(const std::filesystem::path& folder);
  SpecialTokens(const SpecialTokens&) = delete;
  SpecialTokens& operator=(const SpecialTokens&) = delete;

  // tokenizer_config.json, or an empty object, and its path for messages.
  const Json& config() const { return config_; }
  const std::string& config_path() const { return config_path_; }

  // The token of a role of kRoles; none where a file says null or nothing does.
  std::optional<std::string> role(const char* key) const;
  bool is_given(const char* key) const;                    // be it null
  void set_default(const char* key, const char* content);  // where no file speaks of the role

  // Adds all of them to `spec`, whose vocabulary is there. `plain`: those that have a role or stand
  // in a list lose what files say of blanks around them. Without `new_roles` bos, eos, pad and
  // unk get no ids: where one of them has none, nothing more is added.
  void add_to(TokenizerSpec& spec, bool plain, bool new_roles) const;

 private:
  struct Entry {
    AddedToken token;
    bool text = false;  // a string, not an object
    std::optional<bool> normalized;
    int32_t id = -1;                      // what the file says, or -1
    const std::string* origin = nullptr;  // the path of the file
  };
  struct Role {
    bool given = false;
    std::optional<Entry> entry;
  };

  Entry entry_of(const Json& value, const std::string& key, const std::string& origin,
                 bool special) const;
  void set_role(size_t role, const Json& value, const std::string& origin);
  struct Named {
    std::string name;
    std::optional<Entry> entry;  // none: said to be empty
  };
  void set_named(std::vector<Named>& list, const std::string& name, const Json& value,
                 const std::string& origin, bool special);
  void settle_names();
  void read_list(const Json& list, const char* key, const std::string& origin, bool special);
  void read_config();
  void read_map();
  void read_decoder(const Json& decoder);
  void read_added();

  Json config_ = Json::object(), map_ = Json::object();
  Json older_;  // the configuration's older list, which may count yet
  std::string config_path_, map_path_, added_path_;
  std::array<Role, kRoles.size()> roles_;
  std::vector<Entry> decoder_;  // by id
  // Names: the first list are those that the second counts before.
  std::vector<Named> named_late_, named_first_;
  std::vector<Entry> named_;  // what they come to
  std::vector<Entry> extra_;
  bool extra_given_ = false;
};

}  // namespace snug
