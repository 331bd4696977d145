#include "tests/house/config_keys.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string_view>

namespace snug::house {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Calls take(at) for every `word` in the text that is a whole word, until it returns true.
template <class Take>
bool any_word(const std::string& text, const std::string& word, const Take& take) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((end < text.size() && is_word(text[end])) || (at > 0 && is_word(text[at - 1]))) continue;
    if (take(at)) return true;
  }
  return false;
}

bool names(const std::string& text, const std::string& word) {
  return any_word(text, word, [&](size_t at) { return text[at + word.size()] != '('; });
}

bool calls(const std::string& text, const std::string& function) {
  return any_word(text, function, [&](size_t at) { return text[at + function.size()] == '('; });
}

// config.field, config().field, config_.field or c.field: another object's field of that name is
// no reading of the key. &RunConfig::field, by which a table reads it, is one.
bool reads(const std::string& text, const std::string& field) {
  constexpr std::string_view kMember = "&RunConfig::";
  return any_word(text, field, [&](size_t at) {
    if (at >= kMember.size() && text.compare(at - kMember.size(), kMember.size(), kMember) == 0)
      return true;
    if (at == 0 || text[at - 1] != '.' || text[at + field.size()] == '(') return false;
    size_t end = at - 1;
    if (end >= 2 && text.compare(end - 2, 2, "()") == 0) end -= 2;
    size_t begin = end;
    while (begin > 0 && is_word(text[begin - 1])) --begin;
    const std::string object = text.substr(begin, end - begin);
    return object == "config" || object == "config_" || object == "c";
  });
}

// The functions of a file from the mark on, by name.
std::map<std::string, std::string> functions(const std::string& text, const std::string& from) {
  std::map<std::string, std::string> out;
  size_t at = text.find(from);
  while (at != std::string::npos && at < text.size()) {
    const size_t end = text.find("\n}", at), open = text.find('(', at);
    if (open == std::string::npos || open > end) break;
    size_t begin = open;
    while (begin > at && is_word(text[begin - 1])) --begin;
    out[text.substr(begin, open - begin)] = text.substr(open, end - open);
    at = end == std::string::npos ? end : text.find_first_not_of("\n}", end);
  }
  return out;
}

// What of them is called by a file of tools/ outside tools/config, or by another that is.
std::string used_code(const Tree& tree, const std::map<std::string, std::string>& all) {
  std::set<std::string> used;
  for (bool more = true; more;) {
    more = false;
    for (const auto& [name, body] : all) {
      if (used.contains(name)) continue;
      bool called = false;
      for (const auto& [path, text] : tree)
        if (path.starts_with("tools/") && !path.starts_with("tools/config/"))
          called = called || calls(text, name);
      for (const std::string& other : used) called = called || calls(all.at(other), name);
      if (called) more = used.insert(name).second;
    }
  }
  std::string code;
  for (const std::string& name : used) code += all.at(name) + "\n";
  return code;
}

struct Entry {
  std::string key, field;  // the field is empty for a key that is spread over others
};

// .name = "max_steps" ... .field = &C::max_steps
std::vector<Entry> entries(const std::string& table) {
  const auto word_at = [&](size_t at) {
    size_t end = at;
    while (end < table.size() && is_word(table[end])) ++end;
    return table.substr(at, end - at);
  };
  const std::string name = "{.name = \"", field = "&C::";
  std::vector<Entry> out;
  for (size_t at = table.find(name); at != std::string::npos;) {
    const size_t next = table.find(name, at + 1);
    const size_t member = table.find(field, at);
    out.push_back({word_at(at + name.size()),
                   member < next ? word_at(member + field.size()) : std::string()});
    at = next;
  }
  return out;
}

}  // namespace

Findings check_config_keys(const Tree& tree, const std::vector<Unread>& excused) {
  const auto content = [&](const std::string& path) {
    const auto at = tree.find(path);
    return at == tree.end() ? std::string() : at->second;
  };
  const std::string derived = used_code(
      tree, functions(content("tools/config/check_config.cpp"), "RunSizes resolve_sizes"));
  Findings findings;
  const std::vector<Entry> all = entries(content("tools/config/keys.cpp"));
  if (all.empty()) findings.emplace_back("tools/config/keys.cpp: no keys found");
  for (const Entry& entry : all) {
    bool read = entry.field.empty() || reads(derived, entry.field), named = false;
    for (const auto& [path, text] : tree) {
      if (!path.ends_with(".cpp") && !path.ends_with(".h") && !is_table_of_rows(path)) continue;
      if (path.starts_with("tools/") && !path.starts_with("tools/config/"))
        read = read || reads(text, entry.field);
      if (path.starts_with("tests/tools/")) named = named || names(text, entry.key);
    }
    const bool pardoned = std::any_of(excused.begin(), excused.end(),
                                      [&](const Unread& u) { return u.key == entry.key; });
    if (!named) findings.push_back(entry.key + ": no test below tests/tools names it");
    if (!read && !pardoned) findings.push_back(entry.key + ": nothing reads it");
    if (read && pardoned) findings.push_back(entry.key + ": it is read; no excuse is needed");
  }
  return findings;
}

const std::vector<Unread>& unread_keys() {
  static const std::vector<Unread> list = {
      {"bnb_4bit_compute_dtype", "another name of precision, which load_config settles"}};
  return list;
}

}  // namespace snug::house
