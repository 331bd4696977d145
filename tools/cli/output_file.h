// Files that a command writes where it is told to: there is a place for them, which is said before
// the work is done, and none is written over by accident.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Throws usage if the folder of `path` is not there, or if `path` is there already, unless
// `overwrite`, or unless the file begins as those of the command do: `mark` stands in its first 4
// KiB (empty: no file does). A pipe, a device or an open file by its number (/dev/stdout) is no
// file to lose. `flag` names the option for the message.
void check_output_file(const std::string& path, std::string_view flag, bool overwrite,
                       std::string_view mark = {});

// Throws usage if `path` is there and is one of the files that `sources` (files, folders, patterns) name, or
// lies in one of the folders, unless it has `mark`: what a command reads is not what it replaces.
void check_output_is_no_input(const std::string& path, std::string_view flag,
                              const std::vector<std::string>& sources, std::string_view mark = {});

}  // namespace snug
