#include "tests/house/config_keys.h"

#include <algorithm>
#include <cctype>

namespace snug::house {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// `word` as a whole word behind one of `before` (any character that is no word's if empty).
bool holds(const std::string& text, const std::string& word, const std::string& before) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    const char left = at > 0 ? text[at - 1] : ' ';
    if ((end < text.size() && (is_word(text[end]) || text[end] == '(')) || is_word(left)) continue;
    if (before.empty() || before.find(left) != std::string::npos) return true;
  }
  return false;
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
  const std::string checks = content("tools/config/check_config.cpp");
  const std::string behind =
      checks.substr(std::min(checks.find("RunSizes resolve_sizes"), checks.size()));
  Findings findings;
  const std::vector<Entry> all = entries(content("tools/config/keys.cpp"));
  if (all.empty()) findings.emplace_back("tools/config/keys.cpp: no keys found");
  for (const Entry& entry : all) {
    bool read = entry.field.empty() || holds(behind, entry.field, "."), named = false;
    for (const auto& [path, text] : tree) {
      if (!path.ends_with(".cpp") && !path.ends_with(".h")) continue;
      if (path.starts_with("tools/") && !path.starts_with("tools/config/"))
        read = read || holds(text, entry.field, ".>");
      if (path.starts_with("tests/tools/")) named = named || holds(text, entry.key, "");
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
      {"task", "causal_lm is all there is; any other task is refused where the key is read"},
      {"device", "auto and cpu name the only device; any other is refused where the key is read"},
  };
  return list;
}

}  // namespace snug::house
