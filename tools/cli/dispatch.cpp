#include "tools/cli/dispatch.h"

#include <fmt/format.h>

#include <cstdio>
#include <new>
#include <system_error>
#include <typeinfo>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/text/unicode.h"
#include "tools/cli/terminal.h"

namespace snug {

std::string group_help(const CommandGroup& group) {
  std::string text = fmt::format("{}: {}\n\nusage: {} COMMAND ...\n\ncommands\n", group.prefix,
                                 group.summary, group.prefix);
  for (const Command& command : group.commands)
    text += fmt::format("  {:<12} {}\n", command.name, command.summary);
  text += fmt::format("\n{} COMMAND --help explains one of them by example.\n", group.prefix);
  if (group.version)
    text += fmt::format("{} --version says what was built and found.\n", group.prefix);
  return text + std::string(group.epilog);
}

int run_group(const CommandGroup& group, const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::fputs(fit_terminal(group_help(group)).c_str(), stderr);
    return 2;
  }
  const std::string& first = arguments[0];
  if (first == "--help" || first == "-h" || (first == "help" && arguments.size() == 1)) {
    std::fputs(fit_terminal(group_help(group)).c_str(), stdout);
    return 0;
  }
  if (group.version && first == "--version") {
    std::fputs(group.version().c_str(), stdout);
    return 0;
  }
  const bool help = first == "help";
  const std::string& name = help ? arguments[1] : first;
  std::vector<std::string_view> known;
  for (const Command& command : group.commands) {
    known.push_back(command.name);
    if (command.name != name) continue;
    if (help) return command.run({"--help"});
    return command.run({arguments.begin() + 1, arguments.end()});
  }
  for (const std::string_view missing : group.not_built)
    if (missing == name)
      fail(ErrorCode::usage, fmt::format("a command of {}", group.prefix),
           fmt::format("\"{}\", which is not built in this version", name),
           fmt::format("{} --help lists those that are", group.prefix));
  if (group.version) known.push_back("--version");
  known.push_back("--help");
  fail(ErrorCode::usage, fmt::format("a command of {}", group.prefix), fmt::format("\"{}\"", name),
       suggestion(name, known, fmt::format("{} --help lists them", group.prefix)));
}

namespace {

// Written out, since there may be no room to make it.
constexpr const char* kNoRoom =
    "device: expected room for a block outside the planned arena\n"
    "  found: out of memory: the system refused it\n"
    "  try:   end other programs, or raise the limit on this one's memory (ulimit -v, -d)\n";

// Names of files, keys and words of a model are of any origin, and a person's terminal is to show
// them, not to obey them. fmt::print would throw where standard error is closed, and the exit code
// would be lost with it.
int say(const Error& error) {
  std::fflush(stdout);
  std::fputs((printable_utf8(error.what(), LineBreaks::kept) + "\n").c_str(), stderr);
  return error.exit_code();
}

}  // namespace

int run_main(const CommandGroup& group, const std::vector<std::string>& arguments) {
  int code = 1;
  try {
    code = run_group(group, arguments);
  } catch (const Error& error) {
    return say(error);
  } catch (const std::bad_alloc&) {
    std::fflush(stdout);
    std::fputs(kNoRoom, stderr);
    return 1;
  } catch (const std::exception& error) {
    // fmt::print throws this where standard output cannot be written.
    if (!std::ferror(stdout) || typeid(error) != typeid(std::system_error))
      return say(Error(ErrorCode::internal, "no exception but those of Snug", error.what(),
                       "this is a defect in Snug: please report it with the command you ran"));
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    say(Error(ErrorCode::device, "standard output that can be written", "that it cannot",
              "free space where it goes, or send it to another place"));
    return code == 0 ? 1 : code;
  }
  return code;
}

}  // namespace snug
