// Patterns in Ruby's syntax, as Oniguruma reads them, written for PCRE2; see regex.h.
#pragma once

#include <string>
#include <string_view>

namespace snug {

// What PCRE2 is to compile, as UTF with UCP and MULTILINE, to match as `pattern` does in Oniguruma.
// Not checked: what PCRE2 refuses itself. Throws Error (unsupported) as refuse_pattern does.
std::string pcre2_pattern(std::string_view pattern, std::string_view where);

// Throws Error (unsupported): `where` names the place of the pattern, `why` what is wrong with it.
[[noreturn]] void refuse_pattern(std::string_view pattern, std::string_view where,
                                 const std::string& why);

}  // namespace snug
