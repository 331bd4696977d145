// The names that columns and keys of rows have in published data sets (GLUE and those like it), in
// the order in which they are looked for.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace snug {

constexpr std::pair<const char*, const char*> kPairColumns[] = {{"sentence1", "sentence2"},
                                                                {"premise", "hypothesis"},
                                                                {"question1", "question2"},
                                                                {"question", "sentence"}};
constexpr const char* kTextColumns[] = {"sentence", "text",       "sentence1", "sentence2",
                                        "premise",  "hypothesis", "question",  "question1"};
constexpr const char* kLabelColumns[] = {"label", "labels"};
constexpr const char* kWordColumns[] = {"tokens", "words"};
constexpr const char* kTagColumns[] = {"tags", "ner_tags", "labels"};

bool is_known_column(std::string_view name);
char row_separator(const std::string& path);  // of a table, by its name

}  // namespace snug
