// Whether a page of a report is well formed.
#pragma once

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <vector>

namespace snug {

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// What is wrong with the markup, or nothing: every tag closed in order, attributes quoted and not
// repeated, no bare '<' or '&' in text, ids unique. Style and script are skipped whole.
inline std::string markup_fault(const std::string& html) {
  std::vector<std::string> open;
  std::set<std::string> ids;
  const std::string doctype = "<!DOCTYPE html>\n";
  if (html.rfind(doctype, 0) != 0) return "no doctype";
  size_t i = doctype.size();
  while (i < html.size()) {
    if (html[i] == '&') {
      const size_t end = html.find(';', i);
      if (end == std::string::npos || end > i + 8) return "bare & at " + html.substr(i, 40);
      i = end + 1;
      continue;
    }
    if (html[i] == '>') return "bare > at " + html.substr(i - std::min<size_t>(i, 40), 80);
    if (html[i] != '<') {
      ++i;
      continue;
    }
    const std::string where = html.substr(i, 60);
    ++i;
    const bool closing = i < html.size() && html[i] == '/';
    if (closing) ++i;
    std::string name;
    while (i < html.size() && (std::isalnum(static_cast<unsigned char>(html[i])) != 0))
      name += html[i++];
    if (name.empty()) return "bare < at " + where;
    std::set<std::string> attributes;
    bool empty = false;
    for (;;) {
      while (i < html.size() && std::isspace(static_cast<unsigned char>(html[i])) != 0) ++i;
      if (i >= html.size()) return "unfinished tag " + where;
      if (html[i] == '>') break;
      if (html[i] == '/') {
        empty = true;
        ++i;
        continue;
      }
      const size_t equals = html.find('=', i);
      if (equals == std::string::npos || html[equals + 1] != '"') return "attribute in " + where;
      const std::string key = html.substr(i, equals - i);
      const size_t quote = html.find('"', equals + 2);
      if (quote == std::string::npos) return "quote in " + where;
      const std::string value = html.substr(equals + 2, quote - equals - 2);
      if (has(value, "<")) return "< in an attribute of " + where;
      if (!attributes.insert(key).second) return "repeated attribute in " + where;
      if (key == "id" && !ids.insert(value).second) return "repeated id " + value;
      i = quote + 1;
    }
    ++i;
    if (closing) {
      if (open.empty() || open.back() != name)
        return "</" + name + "> closes " + (open.empty() ? "nothing" : open.back());
      open.pop_back();
    } else if (!empty) {
      open.push_back(name);
      if (name == "style" || name == "script") {
        i = html.find("</" + name + ">", i);
        if (i == std::string::npos) return "endless " + name;
      }
    }
  }
  return open.empty() ? "" : "open at the end: " + open.back();
}

}  // namespace snug
