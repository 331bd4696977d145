#include "tools/cli/argument_parser.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <variant>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/core/units.h"
#include "tools/cli/terminal.h"
#include "tools/config/config_node.h"
#include "tools/config/keys.h"
#include "tools/config/values.h"

namespace snug {
namespace {

constexpr size_t kDocColumn = 28, kNarrow = 60;
// What the parser keeps of a flag that was given without a value; no value of a user's.
constexpr const char* kPlain = "\x01";

// A pointer to int64_t that holds a size.
struct Bytes {
  int64_t* variable;
};
// One that holds a number of threads; 0: auto.
struct Threads {
  int64_t* variable;
  int64_t most;
};
using Target =
    std::variant<std::string*, int64_t*, double*, Bytes, Threads, std::vector<std::string>*, bool*>;

struct Argument {
  std::string flag;  // "--name", or the name of positionals
  std::string value, doc;
  Target target;
  bool required = false;
  bool positional = false;
  std::string text;                // what the command line gave for a single value
  std::vector<std::string> texts;  // for several
  CLI::Option* option = nullptr;
};

std::string shown_default(const Target& target) {
  return std::visit(
      [](auto t) -> std::string {
        using T = decltype(t);
        if constexpr (std::is_same_v<T, std::string*>) {
          return *t;
        } else if constexpr (std::is_same_v<T, Bytes>) {
          return *t.variable > 0 ? yaml_bytes(*t.variable) : "";
        } else if constexpr (std::is_same_v<T, Threads>) {
          return *t.variable > 0 ? fmt::format("{}", *t.variable) : "auto";
        } else if constexpr (std::is_same_v<T, int64_t*> || std::is_same_v<T, double*>) {
          return fmt::format("{}", *t);
        } else {
          return "";
        }
      },
      target);
}

std::string help_line(const std::string& left, const std::string& doc, size_t columns) {
  const size_t at = columns < kNarrow ? 6 : kDocColumn;
  std::string text = "  " + left;
  std::string line = text;
  if (line.size() + 2 > at) {
    text += "\n";
    line.clear();
  } else {
    text.clear();
  }
  line.resize(at, ' ');
  for (const std::string_view word : words(doc)) {
    if (line.size() > at && line.size() + 1 + word.size() > columns) {
      text += line + "\n";
      line.assign(at, ' ');
    }
    line += (line.size() > at ? " " : "") + std::string(word);
  }
  return text + line + "\n";
}

// A command whose lines a shell takes together.
std::string command_lines(const std::string& command, size_t columns) {
  std::string out, line;
  bool quoted = false;  // a shell would read the break there
  for (const std::string_view word : words(command)) {
    if (line.empty()) {
      line = "  ";
    } else if (!quoted && line.size() + 1 + word.size() + 2 > columns) {
      out += line + " \\\n";
      line.assign(6, ' ');
    } else {
      line += ' ';
    }
    line += word;
    if (std::count(word.begin(), word.end(), '\'') % 2 == 1) quoted = !quoted;
  }
  return out + line + "\n";
}

}  // namespace

struct ArgumentParser::Impl {
  std::string command, summary;
  std::vector<std::unique_ptr<Argument>> arguments;
  std::vector<std::string> examples;
  std::function<std::string()> epilog;
  CLI::App app;

  Argument& add(std::string_view flag, std::string_view value, std::string_view doc,
                Target target) {
    arguments.push_back(std::make_unique<Argument>());
    Argument& a = *arguments.back();
    a.flag = flag;
    a.value = value;
    a.doc = doc;
    a.target = target;
    return a;
  }

  void store(Argument& a) const;
  std::vector<std::string> with_values(const std::vector<std::string>& words) const;
  [[noreturn]] void unknown(const std::string& word) const;
  std::string help_flag() const { return fmt::format("snug {} --help", command); }
};

void ArgumentParser::Impl::store(Argument& a) const {
  if (a.option->count() == 0) return;
  ConfigNode node;
  node.kind = ConfigNode::Kind::scalar;
  node.text = a.text;
  node.where = "command line";
  const std::string example = help_flag();
  std::visit(
      [&](auto target) {
        using T = decltype(target);
        if constexpr (std::is_same_v<T, std::string*>) {
          // It would ask for nothing and be taken for no flag.
          if (a.text.empty())
            fail(ErrorCode::usage, fmt::format("a value for {}", a.flag), "an empty one",
                 fmt::format("{} {}; {} says what it is for", a.flag, a.value, example));
          *target = a.text;
        } else if constexpr (std::is_same_v<T, int64_t*>) {
          *target = to_integer(node, a.flag, {}, example);
        } else if constexpr (std::is_same_v<T, double*>) {
          *target = to_number(node, a.flag, {}, example);
        } else if constexpr (std::is_same_v<T, Bytes>) {
          *target.variable = to_bytes(node, a.flag);
        } else if constexpr (std::is_same_v<T, Threads>) {
          *target.variable = 0;
          if (node.text != "auto")
            *target.variable = to_integer(
                node, a.flag, {.min = 1, .max = static_cast<double>(target.most)}, "--threads 2");
        } else if constexpr (std::is_same_v<T, std::vector<std::string>*>) {
          *target = a.texts;
        } else {
          for (const std::string& value : a.option->results())
            if (value != kPlain)
              fail(
                  ErrorCode::usage,
                  fmt::format("{} without a value, since it is a flag of snug {}", a.flag, command),
                  fmt::format("\"{}={}\"", a.flag, value),
                  fmt::format("{} alone, or leave it out", a.flag));
          *target = true;
        }
      },
      a.target);
}

// --picture="$PICTURE" without that variable as --picture "": the library would take the word that
// follows for the value.
std::vector<std::string> ArgumentParser::Impl::with_values(
    const std::vector<std::string>& words) const {
  const auto takes_value = [&](std::string_view word) {
    return std::any_of(arguments.begin(), arguments.end(), [&](const auto& a) {
      return !a->positional && !a->value.empty() && a->flag == word;
    });
  };
  std::vector<std::string> result;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      result.insert(result.end(), words.begin() + static_cast<ptrdiff_t>(i), words.end());
      break;
    }
    result.push_back(word);
    if (takes_value(word) && i + 1 < words.size()) {
      result.push_back(words[++i]);  // whatever it looks like
    } else if (word.ends_with('=') && takes_value(word.substr(0, word.size() - 1))) {
      result.back().pop_back();
      result.emplace_back();
    }
  }
  return result;
}

void ArgumentParser::Impl::unknown(const std::string& word) const {
  std::vector<std::string_view> known = {"--help"};
  bool takes_settings = false;
  for (const auto& a : arguments) {
    if (a->positional) takes_settings = takes_settings || a->flag == "key=value";
    if (!a->positional) known.push_back(a->flag);
  }
  const std::string name = word.substr(0, word.find('='));
  std::string advice = suggestion(name, known, help_flag() + " lists the flags");
  std::string key = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::replace(key.begin(), key.end(), '-', '_');
  if (takes_settings && find_key(key.substr(0, key.find('.'))))
    advice = fmt::format("keys of the configuration have no dashes: {}=...", key);
  fail(ErrorCode::usage,
       fmt::format("the {} of snug {}", word.starts_with('-') ? "flags" : "arguments", command),
       fmt::format("\"{}\"", word), advice);
}

ArgumentParser::ArgumentParser(std::string command, std::string summary)
    : impl_(std::make_unique<Impl>()) {
  impl_->command = std::move(command);
  impl_->summary = std::move(summary);
  impl_->app.allow_extras();
  impl_->app.set_help_flag("-h,--help");
}
ArgumentParser::~ArgumentParser() = default;

ArgumentParser& ArgumentParser::option(std::string_view flag, std::string& variable,
                                       std::string_view value, std::string_view doc) {
  Argument& a = impl_->add(flag, value, doc, &variable);
  a.option = impl_->app.add_option(a.flag, a.text);
  return *this;
}
ArgumentParser& ArgumentParser::option(std::string_view flag, int64_t& variable,
                                       std::string_view value, std::string_view doc) {
  Argument& a = impl_->add(flag, value, doc, &variable);
  a.option = impl_->app.add_option(a.flag, a.text);
  return *this;
}
ArgumentParser& ArgumentParser::option(std::string_view flag, double& variable,
                                       std::string_view value, std::string_view doc) {
  Argument& a = impl_->add(flag, value, doc, &variable);
  a.option = impl_->app.add_option(a.flag, a.text);
  return *this;
}
ArgumentParser& ArgumentParser::bytes(std::string_view flag, int64_t& variable,
                                      std::string_view doc) {
  Argument& a = impl_->add(flag, "SIZE", doc, Bytes{&variable});
  a.option = impl_->app.add_option(a.flag, a.text);
  return *this;
}
ArgumentParser& ArgumentParser::threads(int64_t& variable, std::string_view doc, int64_t most) {
  Argument& a = impl_->add("--threads", "N", doc, Threads{&variable, most});
  a.option = impl_->app.add_option(a.flag, a.text);
  return *this;
}
ArgumentParser& ArgumentParser::options(std::string_view flag, std::vector<std::string>& variable,
                                        std::string_view value, std::string_view doc) {
  Argument& a = impl_->add(flag, value, doc, &variable);
  a.option = impl_->app.add_option(a.flag, a.texts);
  a.option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  a.option->allow_extra_args(false);  // one value each time, so that files may follow
  return *this;
}
ArgumentParser& ArgumentParser::flag(std::string_view flag, bool& variable, std::string_view doc) {
  Argument& a = impl_->add(flag, "", doc, &variable);
  a.option = impl_->app.add_flag(fmt::format("{}{{{}}}", a.flag, kPlain));
  return *this;
}
ArgumentParser& ArgumentParser::positionals(std::string_view name,
                                            std::vector<std::string>& variable,
                                            std::string_view doc) {
  Argument& a = impl_->add(name, "", doc, &variable);
  a.positional = true;
  a.option = impl_->app.add_option("positionals", a.texts);
  return *this;
}
ArgumentParser& ArgumentParser::required() {
  impl_->arguments.back()->required = true;
  return *this;
}
ArgumentParser& ArgumentParser::example(std::string_view command_line) {
  impl_->examples.emplace_back(command_line);
  return *this;
}
ArgumentParser& ArgumentParser::epilog(std::function<std::string()> text) {
  impl_->epilog = std::move(text);
  return *this;
}

bool ArgumentParser::parse(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = impl_->with_values(arguments);
  std::reverse(words.begin(), words.end());
  try {
    impl_->app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    std::fputs(help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    fail(ErrorCode::usage, fmt::format("the arguments of snug {}", impl_->command), error.what(),
         impl_->help_flag());
  }
  for (const std::string& word : impl_->app.remaining()) {
    if (word != "--") impl_->unknown(word);  // the mark before positionals stays in the list
  }
  for (const auto& a : impl_->arguments) {
    if (a->required && a->option->count() == 0)
      fail(ErrorCode::usage, fmt::format("{} for snug {}", a->flag, impl_->command), "none",
           impl_->examples.empty() ? impl_->help_flag() : impl_->examples.front());
  }
  for (const auto& a : impl_->arguments) impl_->store(*a);
  return true;
}

bool ArgumentParser::given(std::string_view flag) const {
  for (const auto& a : impl_->arguments) {
    if (a->flag == flag) return a->option->count() > 0;
  }
  require(false, "a flag that was added");
  return false;
}

size_t help_columns() {
  constexpr int kMost = 100;
  const int columns = terminal_columns();
  return static_cast<size_t>(columns > 0 ? std::min(columns, kMost) : kMost);
}

std::string ArgumentParser::help() const {
  const size_t columns = help_columns();
  std::string usage = fmt::format("usage: snug {} [flags]", impl_->command);
  std::string flags, positionals;
  for (const auto& a : impl_->arguments) {
    std::string doc = a->doc;
    if (a->required) doc += " (required)";
    if (const std::string value = shown_default(a->target);
        !a->required && !value.empty() && doc.find("(default") == std::string::npos)
      doc += fmt::format(" (default {})", value);
    if (a->positional) {
      usage += a->required ? fmt::format(" {}...", a->flag) : fmt::format(" [{}...]", a->flag);
      positionals += help_line(a->flag, doc, columns);
    } else {
      flags += help_line(a->value.empty() ? a->flag : a->flag + " " + a->value, doc, columns);
    }
  }
  std::string text =
      fit_columns(fmt::format("snug {}: {}\n\n{}\n", impl_->command, impl_->summary, usage),
                  columns < kNarrow ? static_cast<int>(columns) : 0);
  if (!positionals.empty()) text += "\narguments\n" + positionals;
  text += "\nflags\n" + flags + help_line("--help", "this text", columns);
  if (!impl_->examples.empty()) text += "\nexamples\n";
  for (const std::string& example : impl_->examples)
    text += columns < kNarrow ? command_lines(example, columns) : "  " + example + "\n";
  if (impl_->epilog) text += impl_->epilog();
  return text;
}

}  // namespace snug
