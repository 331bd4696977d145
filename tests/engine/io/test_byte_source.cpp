#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <random>

#include "engine/core/error.h"
#include "engine/io/byte_source.h"
#include "engine/io/files.h"
#include "tests/engine/io/packed.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

using test::gzip;
using test::zstd;

std::string read_all(const std::string& path, int64_t step) {
  const auto source = open_bytes(path);
  std::string out, buffer(static_cast<size_t>(step), '\0');
  while (const int64_t n = source->read(buffer.data(), step)) {
    EXPECT_GT(n, 0);
    EXPECT_LE(n, step);
    out.append(buffer.data(), static_cast<size_t>(n));
  }
  EXPECT_EQ(source->read(buffer.data(), step), 0) << "the end stays the end";
  return out;
}

std::string noise(size_t bytes, unsigned seed) {
  std::mt19937_64 rng(seed);
  std::string text;
  while (text.size() < bytes) text += static_cast<char>(rng() % 64 + (rng() % 4 == 0 ? 0 : 60));
  return text;
}

class Packed : public ::testing::Test {
 protected:
  std::string read(const std::string& name, const std::string& bytes, int64_t step = 1 << 16) {
    // Thousands of files: not made durable, and not written over, which some file systems flush.
    std::filesystem::remove(tmp_ / name);
    std::ofstream(tmp_ / name, std::ios::binary) << bytes;
    return read_all(tmp_ / name, step);
  }
  TempFolder tmp_;
};

TEST_F(Packed, UnpacksWhatWasPacked) {
  for (const size_t size : {0u, 1u, 1000u, 65536u, 262'144u, 300'000u}) {
    const std::string text = noise(size, 1), other = noise(777, 2);
    EXPECT_EQ(read("a", text), text);
    for (const int64_t step : {int64_t{7}, int64_t{65536}, int64_t{1} << 20}) {
      EXPECT_EQ(read("a.gz", gzip(text), step), text) << size << " " << step;
      EXPECT_EQ(read("a.zst", zstd(text), step), text) << size << " " << step;
    }
    // Members and frames follow each other; tools pad gzip with zeros.
    EXPECT_EQ(read("a.gz", gzip(text) + gzip("") + gzip(other) + std::string(500, '\0')),
              text + other);
    EXPECT_EQ(read("a.zst", zstd(text) + zstd("") + zstd(other)), text + other);
    // Without a checksum zstd takes all input before it has given all text.
    EXPECT_EQ(read("a.zst", std::string("\x28\xb5\x2f\xfd\0\x58\x23\x03\0z", 10), 7),
              std::string(100, 'z'));
    // A skippable frame of zstd holds no text.
    EXPECT_EQ(read("a.zst", std::string("\x50\x2a\x4d\x18\x03\0\0\0abc", 11) + zstd(text)), text);
  }
}

TEST_F(Packed, NamesSayWhatTheyHold) {
  EXPECT_EQ(unpacked_name("x/a.jsonl.gz"), "x/a.jsonl");
  EXPECT_EQ(unpacked_name("a.txt.zst"), "a.txt");
  EXPECT_EQ(unpacked_name("a.gz.txt"), "a.gz.txt");
  EXPECT_EQ(unpacked_name(".gz"), ".gz");
}

TEST_F(Packed, EndsTooEarly) {
  const std::string text = noise(5000, 3);
  for (const bool gz : {true, false}) {
    const std::string whole = gz ? gzip(text) : zstd(text), name = gz ? "a.gz" : "a.zst";
    for (size_t size = 0; size < whole.size();
         size += size < 40 || size + 40 > whole.size() ? 1 : 97)
      EXPECT_ERROR(read(name, whole.substr(0, size)), ErrorCode::data,
                   (tmp_ / name) + " to be a whole " + (gz ? "gzip" : "zstd") + " file",
                   "its end after " + std::to_string(size) + " bytes", "again");
    EXPECT_ERROR(read(name, whole + whole.substr(0, whole.size() / 2)), ErrorCode::data, "whole",
                 "in the middle", "again");
  }
}

TEST_F(Packed, DamageIsFound) {
  const std::string text = noise(3000, 4);
  EXPECT_ERROR(read("a.gz", "no gzip at all"), ErrorCode::data, "gzip data in " + (tmp_ / "a.gz"),
               "incorrect header check", "must not end in .gz");
  EXPECT_ERROR(read("a.zst", "no zstd at all"), ErrorCode::data, "zstd data in " + (tmp_ / "a.zst"),
               "nknown frame", "must not end in .gz");
  EXPECT_ERROR(read("a.gz", gzip(text) + "tail"), ErrorCode::data, "gzip data", "header",
               "download");
  EXPECT_ERROR(read("a.zst", zstd(text) + "tail"), ErrorCode::data, "zstd data", "3000 of text",
               "download");
  std::mt19937_64 rng(5);
  for (const bool gz : {true, false}) {
    const std::string whole = gz ? gzip(text) : zstd(text);
    for (int trial = 0; trial < 1500; ++trial) {
      std::string bad = whole;
      for (uint64_t i = 0, n = 1 + rng() % 3; i < n; ++i)
        bad[rng() % bad.size()] = static_cast<char>(rng());
      try {
        // A byte of the header that means nothing (its time, its system) may change.
        EXPECT_EQ(read(gz ? "a.gz" : "a.zst", bad), text);
      } catch (const Error& e) {
        EXPECT_STREQ(to_string(e.code()), "data") << e.what();
      }
    }
  }
}

TEST_F(Packed, AFileWrittenToMeanwhileIsAnError) {
  const auto check = [&](const char* name, const std::function<void(const std::string&)>& change,
                         const char* found) {
    const std::string path = tmp_ / name;
    std::filesystem::remove(path);
    std::ofstream(path, std::ios::binary) << gzip(noise(300'000, 7));
    const auto source = open_bytes(path);
    std::string buffer(1000, '\0');
    EXPECT_GT(source->read(buffer.data(), 1000), 0);
    change(path);
    const auto drain = [&] {
      while (source->read(buffer.data(), 1000) > 0) {
      }
    };
    EXPECT_ERROR(drain(), ErrorCode::device, path + " to stay as it is while it is read", found,
                 "start again");
  };
  const auto longer = [](const std::string& path) {
    std::ofstream(path, std::ios::app | std::ios::binary) << std::string(10, '\0');
  };
  const auto shorter = [](const std::string& path) { std::filesystem::resize_file(path, 70'000); };
  const auto touched = [](const std::string& path) {
    std::filesystem::last_write_time(
        path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  };
  for (const char* name : {"a.txt", "a.gz"}) {  // as it is, and below a packing
    check(name, longer, "bytes at the start");
    check(name, shorter, "70000 bytes read");
    check(name, touched, "written to since");
  }
}

TEST_F(Packed, WindowsAndRatiosAreBounded) {
  // Frames of one letter whose headers ask for a window of 2^28 bytes, and of 2^27 (RFC 8878).
  const auto frame = [](char window) {
    return std::string("\x28\xb5\x2f\xfd\0", 5) + window + std::string("\x09\0\0a", 4);
  };
  EXPECT_ERROR(read("a.zst", frame('\x90')), ErrorCode::data,
               "a zstd window of at most 128.00 MiB in " + (tmp_ / "a.zst"), "a larger one",
               "--long");
  EXPECT_EQ(read("a.zst", frame('\x88')), "a");
  // What a caller has room for bounds it too: 2^20 here, of frames that ask for 2^21 and 2^20.
  const WindowLimit small{.bytes = 1 << 20, .advice = ", or more memory"};
  char out[4];
  read("a.zst", frame('\x58'));
  EXPECT_ERROR(open_bytes(tmp_ / "a.zst", small)->read(out, 4), ErrorCode::data,
               "a zstd window of at most 1.00 MiB", "a larger one", "--ultra, or more memory");
  read("a.zst", frame('\x50'));
  EXPECT_EQ(open_bytes(tmp_ / "a.zst", small)->read(out, 4), 1);
  // 128 KiB of one letter in 4 bytes, 10000 times: 1.2 GiB in 40 KB (RFC 8878, RLE blocks).
  std::string bomb("\x28\xb5\x2f\xfd\x00\x58", 6);
  for (int i = 0; i < 10000; ++i) bomb += std::string("\x02\x00\x10", 3) + "a";
  write_atomic(tmp_ / "bomb.zst", bomb);
  const auto source = open_bytes(tmp_ / "bomb.zst");
  std::string buffer(1 << 20, '\0');
  int64_t got = 0;
  const auto drain = [&] {
    while (const int64_t n = source->read(buffer.data(), 1 << 20)) got += n;
    return got;
  };
  EXPECT_ERROR(drain(), ErrorCode::data, "expand to at most 20000 times its size", "bytes from",
               "no text");
  EXPECT_GE(got, (int64_t{1} << 30) - (1 << 20));
  EXPECT_ERROR(open_bytes(tmp_ / "none.gz"), ErrorCode::data, "none.gz", "No such file", "path");
}

}  // namespace
}  // namespace snug
