// What a pass over a corpus saw.
#pragma once

#include <cstdint>
#include <string>

namespace snug {

struct CorpusReport {
  int64_t files = 0, documents = 0, bytes = 0;  // used; bytes of text
  int64_t skipped = 0;                          // files of a folder that are not UTF-8 text
  int64_t empty = 0;                            // files without text, and records with an empty one
  int64_t no_column = 0;                        // tables of a folder without the text column
  int64_t quoted_breaks = 0;                    // line breaks inside of quotes of tables
  std::string first_skipped, first_no_column;   // examples for the log
  std::string first_quoted;                     // file:line
};

}  // namespace snug
