// Advice that a machine can follow: what a message says to try, done to the command that got it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace snug::e2e {

// Behind "try:" of the first message of `err`, to the end of the line; empty if there is none.
std::string advice_of(const std::string& err);
// Behind "found:".
std::string found_of(const std::string& err);

// `words` of a snug command as the advice of `err` has them: a key or flag with the value that it
// names, a word by the one that is meant, without what is to be left out, or the whole command that
// it prints. Nothing where that is for a person: names in capitals, files that are to be mended, a
// choice of programs.
std::optional<std::vector<std::string>> followed(const std::vector<std::string>& words,
                                                 const std::string& err);

}  // namespace snug::e2e
