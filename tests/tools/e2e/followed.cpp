#include "tests/tools/e2e/followed.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace snug::e2e {
namespace {

using Words = std::vector<std::string>;

std::string behind(const std::string& err, const std::string& mark) {
  const size_t at = err.find(mark);
  if (at == std::string::npos) return "";
  const size_t begin = at + mark.size();
  return err.substr(begin, err.find('\n', begin) - begin);
}

// Names in capitals and dots stand for something, but for those in a path.
bool literal(const std::string& text) {
  if (text.find('/') != std::string::npos) return text.find("...") == std::string::npos;
  int capitals = 0;
  for (const char c : text) {
    capitals = std::isupper(static_cast<unsigned char>(c)) ? capitals + 1 : 0;
    if (capitals >= 3) return false;
  }
  return text.find("...") == std::string::npos && text.find('<') == std::string::npos;
}

bool key_name(const std::string& text) {
  return !text.empty() && std::islower(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::islower(c) || std::isdigit(c) || c == '_' || c == '.';
         });
}

bool flag_name(const std::string& text) {
  return text.starts_with("--") && text.size() > 2 &&
         std::all_of(text.begin() + 2, text.end(),
                     [](unsigned char c) { return std::islower(c) || c == '-'; });
}

// The advice as a shell has its words: spaces within quotes, braces and brackets part none. What ends a
// clause, "," or ";" or ":", stays behind its word.
Words words_of(const std::string& text) {
  Words out;
  std::string word;
  int depth = 0;
  char quote = 0;
  bool any = false;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '"' || c == '\'') {
      quote = c;
      any = true;
    } else if (c == ' ' && depth == 0) {
      if (any || !word.empty()) out.push_back(word);
      word.clear();
      any = false;
    } else {
      depth += (c == '{' || c == '[') ? 1 : (c == '}' || c == ']') ? -1 : 0;
      word += c;
    }
  }
  if (any || !word.empty()) out.push_back(word);
  return out;
}

bool ends_clause(const std::string& word) {
  return !word.empty() && std::string_view(",;:").find(word.back()) != std::string_view::npos;
}
std::string without_end(std::string word) {
  while (ends_clause(word)) word.pop_back();
  return word;
}

// "key=value", without what a sentence puts behind it.
std::optional<std::string> setting(const std::string& said) {
  const std::string word = without_end(said);
  const size_t equals = word.find('=');
  if (equals == std::string::npos || equals + 1 == word.size()) return std::nullopt;
  if (!key_name(word.substr(0, equals)) || !literal(word)) return std::nullopt;
  return word;
}

// In place of the same key, if it is there, and the last one.
void set(Words& words, const std::string& setting) {
  const std::string key = setting.substr(0, setting.find('=') + 1);
  const auto same = [&](const std::string& word) {
    return word.starts_with(key) || word + "=" == key ||
           word.starts_with(key.substr(0, key.size() - 1) + ".");
  };
  words.erase(std::remove_if(words.begin() + 1, words.end(), same), words.end());
  words.push_back(setting);
}

void set_flag(Words& words, const std::string& flag, const std::string& value) {
  const auto at = std::find(words.begin(), words.end(), flag);
  if (at != words.end() && at + 1 != words.end()) {
    *(at + 1) = value;
    return;
  }
  if (at == words.end()) words.push_back(flag);
  words.push_back(value);
}

std::optional<Followed> with_meant_word(Words words, const std::string& err, std::string meant) {
  meant.pop_back();
  if (setting(meant)) {
    set(words, meant);
    return Followed{.words = words};
  }
  const std::string found = found_of(err);
  const size_t quote = found.find('"');
  std::string wrong = found.substr(0, found.find(' '));
  if (quote != std::string::npos)
    wrong = found.substr(quote + 1, found.find('"', quote + 1) - quote - 1);
  if (!literal(meant) || wrong.empty()) return std::nullopt;
  for (std::string& word : words) {
    const size_t at = word.find(wrong);
    if (at == std::string::npos) continue;
    word.replace(at, wrong.size(), meant);
    return Followed{.words = words};
  }
  // In a file: (PATH:LINE).
  const size_t open = found.rfind('('), colon = found.rfind(':');
  if (open == std::string::npos || colon == std::string::npos || !found.ends_with(')'))
    return std::nullopt;
  return Followed{.words = words,
                  .path = found.substr(open + 1, colon - open - 1),
                  .wrong = wrong,
                  .meant = meant,
                  .line = std::stoi(found.substr(colon + 1))};
}

std::optional<Followed> without(Words words, const std::string& name) {
  const size_t before = words.size();
  if (flag_name(name)) {
    const auto at = std::find(words.begin(), words.end(), name);
    if (at == words.end()) return std::nullopt;
    const bool value = at + 1 != words.end() && !(at + 1)->starts_with("--");
    words.erase(at, at + (value ? 2 : 1));
  } else if (key_name(name)) {
    std::erase_if(words, [&](const std::string& w) { return w.starts_with(name + "="); });
  }
  if (words.size() == before) return std::nullopt;
  return Followed{.words = words};
}

// What a file is to be instead of damaged.
bool says_to_repair(const std::string& advice) {
  constexpr std::array<std::string_view, 26> kWords = {"copy or download",
                                                       "correct the value of",
                                                       "correct the file",
                                                       "correct or remove",
                                                       "repair the file",
                                                       "write the file again",
                                                       "make the token file again",
                                                       "code the weights again",
                                                       "save the model again",
                                                       "convert the weights first",
                                                       "convert the model again",
                                                       "give a model folder",
                                                       "give text files",
                                                       "check that config.json",
                                                       "check that this is",
                                                       "use the vocabulary",
                                                       "use the model or tokenizer that",
                                                       "use the tokenizer that made",
                                                       "use the program that wrote it, or make",
                                                       "resume from another checkpoint",
                                                       "use the version of Snug",
                                                       "a copy of it from elsewhere",
                                                       "remove one of the two",
                                                       "remove shards",
                                                       "put the shards",
                                                       "download "};
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view w) { return advice.starts_with(w); });
}

}  // namespace

std::string advice_of(const std::string& err) {
  return behind(err, "\n  try:   ");
}
std::string found_of(const std::string& err) {
  return behind(err, "\n  found: ");
}

std::optional<Followed> followed(const Words& words, const std::string& err,
                                 const std::string& fresh) {
  const std::string advice = advice_of(err);
  Words said = words_of(advice);
  if (said.empty() || words.empty()) return std::nullopt;
  if (advice.starts_with("did you mean ") && said.size() == 4 && said[3].ends_with('?'))
    return with_meant_word(words, err, said[3]);
  // Of a plan to follow another one is at hand.
  if (says_to_repair(advice) && advice.find("plan=null") == std::string::npos)
    return Followed{.words = words, .repaired = true};
  Words out = words;
  if (said[0] == "snug") {
    // Of other commands the names stand for something.
    const auto help = std::find(said.begin(), said.end(), "--help");
    if (help == said.end()) return std::nullopt;
    return Followed{.words = Words(said.begin() + 1, help + 1)};
  }
  if (said[0] == "leave" && said.size() >= 3 && said[1] != "it" && said[2].starts_with("out"))
    return without(out, said[1]);
  if (advice.starts_with("leave it out") && found_of(err).starts_with('"')) {
    const std::string found = found_of(err);
    return without(out, found.substr(1, found.find('"', 1) - 1));
  }
  if (advice.starts_with("another output_dir")) {
    set(out, "output_dir=" + fresh);
    return Followed{.words = out};
  }
  if (advice.starts_with("another name") || advice.starts_with("another --output")) {
    set_flag(out, "--output", fresh);
    return Followed{.words = out};
  }
  bool any = false;
  for (size_t i = 0; i < said.size(); ++i) {
    if (i > 0 && any && ends_clause(said[i - 1])) break;
    std::string name = said[i], value;
    if (const auto one = setting(name)) {
      set(out, *one);
    } else if (name.starts_with("--") && name.find('=') != std::string::npos && literal(name)) {
      set_flag(out, name.substr(0, name.find('=')), without_end(name.substr(name.find('=') + 1)));
    } else if (flag_name(name) && i + 1 < said.size() && literal(said[i + 1]) &&
               (std::isdigit(static_cast<unsigned char>(said[i + 1][0])) ||
                ends_clause(said[i + 1]) || i + 2 == said.size())) {
      set_flag(out, name, without_end(said[++i]));
    } else if (any && name == "and") {
      return std::nullopt;  // there is more to do
    } else {
      break;
    }
    any = true;
  }
  if (!any && advice.find("plan=null") != std::string::npos) {
    set(out, "plan=null");
    any = true;
  }
  if (!any) return std::nullopt;
  return Followed{.words = out};
}

}  // namespace snug::e2e
