// Shared by the tests of engine/text.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>

#include "engine/core/error.h"
#include "engine/text/unicode.h"
#include "tests/support/folders.h"

namespace snug {

inline std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(source_folder()) / "tests/golden" / name;
}

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A folder that is removed with its content at the end of the test.
class TestFolder {
 public:
  TestFolder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("snug_text_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// Runs `f`, which must throw an Error of this code; each part must hold the given words.
inline void expect_error(const std::function<void()>& f, ErrorCode code,
                         const std::string& expected, const std::string& found,
                         const std::string& advice) {
  try {
    f();
    ADD_FAILURE() << "no error; wanted: " << expected;
  } catch (const Error& e) {
    EXPECT_EQ(to_string(e.code()), std::string(to_string(code))) << e.what();
    EXPECT_NE(e.expected().find(expected), std::string::npos) << e.what();
    EXPECT_NE(e.found().find(found), std::string::npos) << e.what();
    EXPECT_NE(e.advice().find(advice), std::string::npos) << e.what();
    EXPECT_FALSE(e.advice().empty());
  }
}

// Random text of characters that every Unicode version since 9 classifies alike, blanks and
// apostrophes often.
inline std::string random_text(std::mt19937& rng, int length) {
  static const std::u32string common = U" \t\n\r'stlvremdLS1 9Aé\u00A0\u3000\u0301.,!½٣中한あ";
  static const char32_t ranges[][2] = {{0x20, 0x7F},     {0xA1, 0x24F},      {0x300, 0x36F},
                                       {0x391, 0x3A1},   {0x410, 0x44F},     {0x5D0, 0x5EA},
                                       {0x2000, 0x2027}, {0x3041, 0x3096},   {0x4E00, 0x9FA5},
                                       {0xAC00, 0xD7A3}, {0x1F600, 0x1F64F}, {0x1D400, 0x1D454}};
  std::string out;
  for (int i = 0; i < length; ++i) {
    if (rng() % 2) {
      append_utf8(out, common[rng() % common.size()]);
    } else {
      const auto& r = ranges[rng() % std::size(ranges)];
      append_utf8(out, r[0] + static_cast<char32_t>(rng() % (r[1] - r[0] + 1)));
    }
  }
  return out;
}

inline std::string random_bytes(std::mt19937& rng, int length) {
  std::string out;
  for (int i = 0; i < length; ++i) out += static_cast<char>(rng() & 0xFF);
  return out;
}

}  // namespace snug
