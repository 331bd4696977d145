// Records of JSON where text is expected: what a file begins with tells them from a document.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace snug {

enum class RecordLayout {
  none,   // anything else
  array,  // [{"key": ...
  lines,  // {"key": ...} on a line, and another one on the next
  // In a file whose name ends in .json:
  wrapped,  // {"name": [{"key": ...
  one,      // {"text": "... or {"messages": [{"role": ..., alone
  strings,  // ["...
};

// How the file `path`, whose first bytes are `beginning`, holds records.
RecordLayout record_layout(std::string_view beginning, std::string_view path);

// Throws data: a file of such records was given as text. The advice is a command that makes lines of
// an array, unpacking what is packed, or the name that lines want.
[[noreturn]] void refuse_records(RecordLayout layout, std::string_view beginning,
                                 const std::string& path);

// "task=sft, which reads conversations", of a record that a task other than those of texts reads; empty of
// another one.
std::string task_of_record(const nlohmann::json& record);

}  // namespace snug
