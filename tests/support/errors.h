// expect_error: runs something that must throw Error and checks its code and words.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "engine/core/error.h"

namespace snug::test {

// `body()` must throw Error with this code, three filled parts, and every one of `words` somewhere
// in the message. Returns the whole message.
template <class F>
std::string expect_error(ErrorCode code, std::initializer_list<const char*> words, F&& body) {
  try {
    body();
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_STREQ(to_string(e.code()), to_string(code)) << text;
    EXPECT_FALSE(e.expected().empty()) << text;
    EXPECT_FALSE(e.found().empty()) << text;
    EXPECT_FALSE(e.advice().empty()) << text;
    for (const char* word : words)
      EXPECT_NE(text.find(word), std::string::npos) << "no \"" << word << "\" in:\n" << text;
    return text;
  }
  ADD_FAILURE() << "no error; one of code " << to_string(code) << " was due";
  return {};
}

}  // namespace snug::test
