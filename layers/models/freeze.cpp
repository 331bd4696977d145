#include "layers/models/freeze.h"

#include <fmt/format.h>

#include <cctype>
#include <memory>
#include <optional>
#include <set>

#include "engine/core/error.h"
#include "engine/core/precision.h"
#include "engine/text/regex.h"
#include "layers/models/family.h"
#include "layers/models/model.h"

namespace snug {
namespace {

// `.2-4.` as `.(?:2|3|4).`, and at the end of an alternative too.
std::string with_ranges(const std::string& pattern, const char* key) {
  std::string out;
  for (size_t i = 0; i < pattern.size();) {
    size_t j = i, k = 0;
    const auto digit = [&](size_t at) {
      return at < pattern.size() && std::isdigit(static_cast<unsigned char>(pattern[at])) != 0;
    };
    const bool begins = i > 0 && pattern[i - 1] == '.' && digit(i);
    while (begins && digit(j)) ++j;
    if (begins && j < pattern.size() && pattern[j] == '-' && digit(j + 1)) {
      for (k = j + 1; digit(k);) ++k;
      const bool ends = k == pattern.size() || pattern[k] == '.' || pattern[k] == '|' ||
                        pattern[k] == ')' || pattern[k] == '\\';
      if (ends && j - i <= 4 && k - j <= 5) {
        const int first = std::stoi(pattern.substr(i, j - i)),
                  last = std::stoi(pattern.substr(j + 1, k - j - 1));
        if (first > last)
          fail(ErrorCode::usage, fmt::format("a range of layers in {} that goes up", key),
               pattern.substr(i, k - i), fmt::format("{}-{}", last, first));
        out += fmt::format("(?:{}", first);
        for (int n = first + 1; n <= last; ++n) out += fmt::format("|{}", n);
        out += ")(?![0-9])";  // a dot behind it, which any character is, is no digit either
        i = k;
        continue;
      }
    }
    out += pattern[i++];
  }
  return out;
}

class Rule {
 public:
  Rule(const char* key, const std::string& pattern) : key_(key), pattern_(pattern) {
    if (pattern.empty()) return;
    const std::string whole = with_ranges(pattern, key);
    try {
      regex_.emplace(whole, key);
    } catch (const Error& e) {
      fail(ErrorCode::usage, fmt::format("a regular expression over parameter names as {}", key),
           fmt::format("{} ({})", pattern, e.found()),
           fmt::format("{}: \"h.0-3.\", or \"embed|lm_head\"", key));
    }
  }
  bool matches(std::string_view name) {
    size_t begin = 0, end = 0;
    const bool found = regex_ && regex_->find(name, 0, scratch_, begin, end);
    any_ |= found;
    return found;
  }
  void expect_any(const std::vector<std::string>& names) const {
    if (pattern_.empty() || any_) return;
    std::string list;
    for (size_t i = 0; i < names.size(); ++i)
      if (i < 6 || i + 3 > names.size())
        list += (list.empty() ? "" : ", ") + names[i];
      else if (i == 6)
        list += ", ...";
    fail(ErrorCode::usage, fmt::format("{} to match the name of a parameter", key_), pattern_,
         fmt::format("a pattern for one of {}", list));
  }

 private:
  const char* key_;
  std::string pattern_;
  std::optional<Regex> regex_;
  RegexScratch scratch_;
  bool any_ = false;
};

}  // namespace

Frozen resolve_freeze(const ModelSpec& spec, const FreezeRules& rules) {
  Frozen result;
  const Model model(spec, parse_precision("fp32"));
  const Family& family = find_family(spec.family, "model");
  Rule freeze("freeze", rules.freeze), unfreeze("unfreeze", rules.unfreeze);
  if (rules.freeze.empty() && !rules.unfreeze.empty())
    fail(ErrorCode::usage, "unfreeze beside freeze, which it makes exceptions from",
         fmt::format("unfreeze: {} alone", rules.unfreeze),
         fmt::format("freeze=. unfreeze='{}'", rules.unfreeze));
  auto names = std::make_shared<std::set<std::string, std::less<>>>();
  std::vector<std::string> all;
  bool excepts = false;  // something that can be trained
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    const auto frozen_name = [&](std::string_view name) {
      const bool by_own = freeze.matches(p.name.view()), by_file = freeze.matches(name);
      const bool not_by_own = unfreeze.matches(p.name.view()), not_by_file = unfreeze.matches(name);
      const bool zero = spec.zero_biases && p.name.view().ends_with(".bias");
      excepts = excepts || (!zero && (not_by_own || not_by_file));
      return zero || ((by_own || by_file) && !(not_by_own || not_by_file));
    };
    std::string first;  // of the pieces
    std::optional<bool> frozen;
    for (const FilePiece& piece : family.pieces(p, spec)) {
      const std::string& name = piece.names.front();
      const bool own = frozen_name(name);
      if (frozen && *frozen != own)
        fail(ErrorCode::usage,
             fmt::format("{} and {} frozen together: they are one parameter here", first, name),
             fmt::format("{} alone", own ? name : first), "a pattern for both, or for neither");
      if (!frozen) first = name;
      frozen = own;
      all.push_back(name);
    }
    result.all += p.real_elements();
    if (frozen.value_or(false))
      names->insert(p.name.str());
    else
      result.trained += p.real_elements();
  }
  freeze.expect_any(all);
  unfreeze.expect_any(all);
  if (!rules.unfreeze.empty() && !excepts)
    fail(ErrorCode::usage, "parameters that can be trained as what unfreeze matches",
         fmt::format("unfreeze: {}, biases alone, of a model whose config says bias: false",
                     rules.unfreeze),
         "unfreeze with names of weights, or leave it out");
  if (result.trained == 0)
    fail(ErrorCode::usage, "a parameter that is trained", fmt::format("freeze: {}", rules.freeze),
         "unfreeze: with what is to be trained, such as unfreeze=h." + std::to_string(spec.L - 1) +
             ".");
  if (!names->empty())
    result.says = [names](std::string_view name) { return names->count(name) > 0; };
  return result;
}

}  // namespace snug
