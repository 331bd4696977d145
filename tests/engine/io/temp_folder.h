// A folder for one test, removed at its end, and the check of a three-part error.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

#include "engine/core/error.h"

namespace snug {

class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> count{0};
    path_ = (std::filesystem::temp_directory_path() /
             ("snug-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++)))
                .string();
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  int64_t count() const {  // entries directly in it
    int64_t n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++n;
    return n;
  }

 private:
  std::string path_;
};

inline void expect_part(const std::string& part, const std::string& text, const char* which,
                        const Error& e) {
  EXPECT_NE(part.find(text), std::string::npos) << which << " lacks '" << text << "' in:\n"
                                                << e.what();
  EXPECT_FALSE(part.empty()) << which;
}

}  // namespace snug

// The statement must throw an Error of this code whose three parts hold the three texts.
#define EXPECT_ERROR(statement, error_code, in_expected, in_found, in_advice)         \
  do {                                                                                \
    bool thrown = false;                                                              \
    try {                                                                             \
      static_cast<void>(statement);                                                   \
    } catch (const snug::Error& e) {                                                  \
      thrown = true;                                                                  \
      EXPECT_EQ(snug::to_string(e.code()), std::string(snug::to_string(error_code))); \
      snug::expect_part(e.expected(), in_expected, "expected", e);                    \
      snug::expect_part(e.found(), in_found, "found", e);                             \
      snug::expect_part(e.advice(), in_advice, "advice", e);                          \
    }                                                                                 \
    EXPECT_TRUE(thrown) << #statement << " did not throw";                            \
  } while (false)
