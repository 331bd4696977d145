// Errors of what reads configurations, said to one who gave flags: snug eval and snug predict have no
// keys.
#pragma once

#include <functional>
#include <string>

namespace snug {

// `text` with keys as flags: "text_column" as "--text-column", "task=masked_lm" as "--task
// masked_lm"; keys that these commands do not have as what helps there. Parts of paths stay.
std::string in_flags(const std::string& text);

// Calls `body`; what it throws says flags where it said keys, in what was expected and in the advice.
void with_flags(const std::function<void()>& body);

}  // namespace snug
