// A tiny BERT, its tokenizer and its rows: what tests of encoders share.
#pragma once

#include <string>
#include <vector>

#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {

// bert/ (a WordPiece tokenizer), train.tsv and dev.tsv (rows of two labels, "good" and "bad", in
// turn), lines.txt, words.jsonl (four words a row, "B" for good and bad).
void make_encoder_data(const Workspace& w);

// `snug train` of a small BERT for sequence classification on them, output_dir=path(name).
std::vector<std::string> encoder_arguments(const Workspace& w, const std::string& name,
                                           const std::vector<std::string>& more = {});
Outcome train_encoder(const Workspace& w, const std::string& name,
                      const std::vector<std::string>& more = {});

}  // namespace snug::e2e
