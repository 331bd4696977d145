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

struct Followed {
  std::vector<std::string> words;  // of the command
  // In this line of this file, `wrong` becomes `meant`; path empty: no file changes.
  std::string path = {}, wrong = {}, meant = {};
  int line = 0;
  bool repaired = false;  // the row's files are whole again
};

// `words` of a snug command as the advice of `err` has them: a key or flag with the value that it
// names, a word by the one that is meant, without what is to be left out, another output, which is `fresh`,
// help, or a damaged file that is put right. Nothing where more has to be known: names in capitals, what a
// file is to hold, a choice of programs.
std::optional<Followed> followed(const std::vector<std::string>& words, const std::string& err,
                                 const std::string& fresh);

}  // namespace snug::e2e
