// Sets of characters that patterns in Ruby's syntax name, written for PCRE2. The PCRE2 of a system
// may know another version of Unicode than unicode_table.h, reads some names in another way (since
// 10.40 \p{Han} is an extension of the script) and does not know others.
#pragma once

#include <string>
#include <string_view>

namespace snug {

// Alone, and then in the brackets that the caller writes; in [...]; in [...] of (?i), which takes
// the other cases of its members, too, as PCRE2 does for ranges only.
enum class SetPlace { alone, in_class, in_folding_class };

// What stands between the brackets of a class of PCRE2 for the characters that have the property
// (`negated`: for all others). Names are loose: case, blanks, '_' and '-' do not count. nullptr: no
// general category, script or POSIX class.
const std::string* property_members(std::string_view name, bool negated, SetPlace place);

// Whether it is a property of one case alone, which (?i) gives the other one.
bool is_of_one_case(std::string_view name);

// The name of the property that [[:name:]] stands for; empty: none.
std::string_view posix_property(std::string_view name);

// Whether a class of PCRE2, brackets included, has a member that (?i) lets match several characters
// in Oniguruma (\u00DF: ss), and in PCRE2 one.
bool has_long_fold(const std::string& set);

// Whether `folded`, folded as (?i) does it, ends with what such a character stands for.
bool ends_with_long_fold(std::u32string_view folded);

}  // namespace snug
