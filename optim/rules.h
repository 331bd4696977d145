// All rules: what the build collected of optim/rules.
#pragma once

#include <snug_optim_rules.h>

namespace snug {
inline namespace SNUG_RULE_SIDE {

// f(Entry()) for every one, by name.
template <class F>
void for_each_rule(F&& f) {
#define SNUG_RULE_ENTRY(Entry) f(Entry{});
  SNUG_OPTIM_RULES(SNUG_RULE_ENTRY)
#undef SNUG_RULE_ENTRY
}

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
