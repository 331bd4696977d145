// Every key of the configuration has an effect and stands in a test; its documentation is asked for
// where the table is linked (tests/tools/test_config.cpp).
#pragma once

#include <string>
#include <vector>

#include "tests/house/checks.h"

namespace snug::house {

// A key that nothing reads, and why it is there.
struct Unread {
  std::string key, why;
};

// Each entry of the table in tools/config/keys.cpp is named, as a whole word in a string, by a test
// below tests/tools, and its field is read (config.field, config().field, c.field) by a file of
// tools/ outside tools/config, or by a function behind the checks in check_config.cpp (the sizes
// and the schedule that follow from keys) that such a file calls. An entry of `excused` whose key
// is read is a finding too.
Findings check_config_keys(const Tree& tree, const std::vector<Unread>& excused);

const std::vector<Unread>& unread_keys();

}  // namespace snug::house
