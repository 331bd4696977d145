#include "tests/tools/e2e/followed.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace snug::e2e {
namespace {

using Words = std::vector<std::string>;

std::string behind(const std::string& err, const std::string& mark) {
  const size_t at = err.find(mark);
  if (at == std::string::npos) return "";
  const size_t begin = at + mark.size();
  return err.substr(begin, err.find('\n', begin) - begin);
}

// Names in capitals and dots stand for something.
bool literal(const std::string& text) {
  int capitals = 0;
  for (const char c : text) {
    capitals = std::isupper(static_cast<unsigned char>(c)) ? capitals + 1 : 0;
    if (capitals >= 3) return false;
  }
  return text.find("...") == std::string::npos && text.find('"') == std::string::npos &&
         text.find('\'') == std::string::npos && text.find('<') == std::string::npos;
}

bool key_name(const std::string& text) {
  return !text.empty() && std::islower(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::islower(c) || std::isdigit(c) || c == '_' || c == '.';
         });
}

// "key=value", without what a sentence puts behind it.
std::optional<std::string> setting(std::string word) {
  while (!word.empty() && std::string(",;:").find(word.back()) != std::string::npos)
    word.pop_back();
  const size_t equals = word.find('=');
  if (equals == std::string::npos || equals + 1 == word.size()) return std::nullopt;
  if (!key_name(word.substr(0, equals)) || !literal(word)) return std::nullopt;
  const auto count = [&](char c) { return std::count(word.begin(), word.end(), c); };
  if (count('{') != count('}') || count('[') != count(']')) return std::nullopt;
  return word;
}

// In place of the same key, if it is there, and the last one.
void set(Words& words, const std::string& setting) {
  const std::string key = setting.substr(0, setting.find('=') + 1);
  std::erase_if(words, [&](const std::string& word) {
    return word.starts_with(key) || word + "=" == key ||
           word.starts_with(key.substr(0, key.size() - 1) + ".");
  });
  words.push_back(setting);
}

std::optional<Words> with_meant_word(Words words, const std::string& err, std::string meant) {
  if (meant.empty() || meant.back() != '?') return std::nullopt;
  meant.pop_back();
  const std::string found = found_of(err);
  const size_t quote = found.find('"'), end = found.find('"', quote + 1);
  if (quote == std::string::npos || end == std::string::npos || !literal(meant))
    return std::nullopt;
  const std::string wrong = found.substr(quote + 1, end - quote - 1);
  for (std::string& word : words) {
    const size_t at = word.find(wrong);
    if (at == std::string::npos) continue;
    word.replace(at, wrong.size(), meant);
    return words;
  }
  return std::nullopt;
}

}  // namespace

std::string advice_of(const std::string& err) {
  return behind(err, "\n  try:   ");
}
std::string found_of(const std::string& err) {
  return behind(err, "\n  found: ");
}

std::optional<Words> followed(const Words& words, const std::string& err) {
  std::istringstream text(advice_of(err));
  Words said;
  for (std::string word; text >> word;) said.push_back(word);
  if (said.empty() || words.empty()) return std::nullopt;
  if (said.size() >= 4 && said[0] == "did" && said[1] == "you" && said[2] == "mean")
    return with_meant_word(words, err, said[3]);
  if (said[0] == "snug") {
    if (!literal(advice_of(err)) || said.size() < 2) return std::nullopt;
    // A sentence may follow the command.
    for (const std::string& word : said)
      if (word.ends_with(',') || word.ends_with(';')) return std::nullopt;
    return Words(said.begin() + 1, said.end());
  }
  Words out = words;
  if (said[0] == "leave" && said.size() >= 3 && said[2].starts_with("out") && key_name(said[1])) {
    const size_t before = out.size();
    std::erase_if(out, [&](const std::string& w) { return w.starts_with(said[1] + "="); });
    if (out.size() == before) return std::nullopt;  // in a file
    return out;
  }
  if (setting(said[0])) {
    for (const std::string& word : said) {
      const auto one = setting(word);
      if (!one && word == "and") return std::nullopt;  // there is more to do
      if (!one) break;
      set(out, *one);
      if (word != *one) break;  // the end of the clause
    }
    return out;
  }
  const bool flag = said[0].starts_with("--") && said.size() >= 2 && key_name(said[0].substr(2));
  if (flag && literal(said[1]) && said[1].find_first_of("0123456789") == 0) {
    std::string value = said[1];
    while (!value.empty() && std::string(",;:").find(value.back()) != std::string::npos)
      value.pop_back();
    const auto at = std::find(out.begin(), out.end(), said[0]);
    if (at != out.end() && at + 1 != out.end()) {
      *(at + 1) = value;
      return out;
    }
    out.insert(out.end(), {said[0], value});
    return out;
  }
  return std::nullopt;
}

}  // namespace snug::e2e
