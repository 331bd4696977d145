// Flags and arguments of one subcommand. Parsing is CLI11's; this adds the project's messages: what
// was expected, what was found, the nearest known flag. Values go through the same readers as the
// configuration (256MiB, 2m, 5e-5).
//
//   ArgumentParser parser("tokenizer encode", "Prints the ids of the text on standard input.");
//   parser.option("--tokenizer", path, "PATH", "tokenizer.json or a folder").required();
//   parser.example("snug tokenizer encode --tokenizer tok.json < text.txt");
//   if (!parser.parse(arguments)) return 0;  // --help was printed
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

class ArgumentParser {
 public:
  // `command` as typed after snug; `summary` is one or two sentences.
  ArgumentParser(std::string command, std::string summary);
  ~ArgumentParser();
  ArgumentParser(const ArgumentParser&) = delete;
  ArgumentParser& operator=(const ArgumentParser&) = delete;

  // A flag with a value; the variable keeps its value, which help shows as the default, when the
  // flag is not given. `value` names the value in help. The variable must outlive parse().
  ArgumentParser& option(std::string_view flag, std::string& variable, std::string_view value,
                         std::string_view doc);
  ArgumentParser& option(std::string_view flag, int64_t& variable, std::string_view value,
                         std::string_view doc);
  ArgumentParser& option(std::string_view flag, double& variable, std::string_view value,
                         std::string_view doc);
  // Sizes such as 256MiB.
  ArgumentParser& bytes(std::string_view flag, int64_t& variable, std::string_view doc);
  // --threads: 1 to `most`, or auto as in the key of that name, for which the variable is 0.
  ArgumentParser& threads(int64_t& variable, std::string_view doc, int64_t most = 1024);
  // May be given more than once.
  ArgumentParser& options(std::string_view flag, std::vector<std::string>& variable,
                          std::string_view value, std::string_view doc);
  // Without a value.
  ArgumentParser& flag(std::string_view flag, bool& variable, std::string_view doc);
  // What is not a flag, in order.
  ArgumentParser& positionals(std::string_view name, std::vector<std::string>& variable,
                              std::string_view doc);
  // The flag or the positionals added last must be given.
  ArgumentParser& required();

  // Lines of help: an example, and text at the end.
  ArgumentParser& example(std::string_view command_line);
  ArgumentParser& epilog(std::function<std::string()> text);

  // False if --help was asked for and printed. Throws usage.
  bool parse(const std::vector<std::string>& arguments);
  // Whether the flag was given.
  bool given(std::string_view flag) const;
  std::string help() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Columns of help: those of the terminal, at most 100, and 100 where there is none.
size_t help_columns();

}  // namespace snug
