// From the words of a command line to a subcommand, and from its end to an exit code.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

struct Command {
  std::string_view name;
  std::string_view summary;  // one line of help
  int (*run)(const std::vector<std::string>& arguments);
};

// A group of commands: snug itself (prefix "snug") or one with subcommands ("snug tokenizer").
struct CommandGroup {
  std::string_view prefix;
  std::string_view summary;
  std::vector<Command> commands;
  std::string_view epilog;             // end of help: examples and exit codes
  std::string (*version)() = nullptr;  // text of --version; null: no such flag
  // Words that name commands elsewhere: refused as not built rather than as unknown.
  std::vector<std::string_view> not_built = {};
};

std::string group_help(const CommandGroup& group);

// Runs the command that the first argument names; --help, help and no argument print the help.
// Throws usage, with a suggestion, if there is no such command; no argument at all is usage too.
int run_group(const CommandGroup& group, const std::vector<std::string>& arguments);

// run_group for main: an exception becomes its message on stderr and its exit code, and output that
// could not be written becomes exit code 1.
int run_main(const CommandGroup& group, const std::vector<std::string>& arguments);

}  // namespace snug
