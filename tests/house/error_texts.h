// The inventory of messages: every error a user can reach has a test of its text.
#pragma once

#include <string>
#include <vector>

#include "tests/house/checks.h"

namespace snug::house {

// A message without a test, and why none can reach it. `fragment` is part of its literals.
struct Untested {
  std::string path, fragment, why;
};

// Every call of fail() with the code data, usage, unsupported, out_of_memory or device outside
// tests/, every call of a [[noreturn]] function of the same file or of a header that ends in one,
// and every exception made of Error has literal words of its own in its arguments: ten characters
// in a row that no other such call has (or, where the call has none of its own, any ten). One of
// these runs stands in a string of a test. Calls whose text all comes from elsewhere (variables)
// are not asked: who made the text is. An entry of `exempt` that fits no untested call is a finding
// too.
Findings check_error_texts(const Tree& tree, const std::vector<Untested>& exempt);

// The exemptions of this repository.
const std::vector<Untested>& untested_errors();

}  // namespace snug::house
