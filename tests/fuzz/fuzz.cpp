#include "tests/fuzz/fuzz.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/core/error.h"

namespace snug::fuzz {

namespace fs = std::filesystem;

void broken(const std::string& promise) {
  fmt::print(stderr, "BROKEN: {}\n", promise);
  std::fflush(stderr);
  std::abort();
}

namespace {

void check_parts(const Error& error) {
  if (error.code() == ErrorCode::internal)
    broken(fmt::format("an internal error for an input: {}", error.what()));
  if (error.expected().empty() || error.found().empty() || error.advice().empty())
    broken(fmt::format("an error without three parts: {}", error.what()));
}

}  // namespace

int64_t completed = 0;

bool holds(const std::function<void()>& body) {
  try {
    body();
    ++completed;
    return true;
  } catch (const Error& error) {
    check_parts(error);
  } catch (const std::exception& error) {
    broken(fmt::format("an exception that is no Error: {}", error.what()));
  }
  return false;
}

void must(const char* promise, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    broken(fmt::format("{}: {}", promise, error.what()));
  }
}

const std::string& folder() {
  struct Folder {
    Folder() {
      const char* const wanted = std::getenv("SNUG_FUZZ_FOLDER");
      std::error_code error;
      const fs::path base = wanted != nullptr                     ? fs::path(wanted)
                            : fs::is_directory("/dev/shm", error) ? fs::path("/dev/shm")
                                                                  : fs::temp_directory_path();
      path = (base / fmt::format("snug-fuzz-{}", ::getpid())).string();
      fs::create_directories(path, error);
      if (error) broken(fmt::format("no folder {}: {}", path, error.message()));
    }
    ~Folder() {
      std::error_code error;
      fs::remove_all(path, error);
    }
    std::string path;
  };
  static const Folder one;
  return one.path;
}

std::string put(const std::string& name, std::string_view content) {
  const std::string path = folder() + "/" + name;
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(content.data(), static_cast<std::streamsize>(content.size()));
  return path;
}

void drop(const std::string& name) {
  std::error_code error;
  fs::remove(folder() + "/" + name, error);
}

std::vector<std::string_view> parts_of(std::string_view input, size_t count) {
  std::vector<std::string_view> parts;
  constexpr std::string_view kBetween = "\n----\n";
  while (parts.size() + 1 < count) {
    const size_t end = std::min(input.find(kBetween), input.size());
    parts.push_back(input.substr(0, end));
    input.remove_prefix(std::min(input.size(), end + kBetween.size()));
  }
  parts.push_back(input);
  return parts;
}

uint64_t take_number(std::string_view& text, size_t n) {
  uint64_t value = 0;
  for (size_t i = 0; i < n && !text.empty(); ++i) {
    value |= uint64_t{static_cast<uint8_t>(text[0])} << (8 * i);
    text.remove_prefix(1);
  }
  return value;
}

}  // namespace snug::fuzz
