// snug quant: codes and scales as bitsandbytes writes and reads them, every codec there and back,
// errors beside ones counted here, the picture, and a disk that is full.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "engine/io/safetensors.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

struct Plain {
  std::string name;
  SafeDType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

Plain floats(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& x) {
  Plain p{name, SafeDType::F32, std::move(shape), std::vector<std::byte>(x.size() * sizeof(float))};
  std::memcpy(p.bytes.data(), x.data(), p.bytes.size());
  return p;
}

void write_file(const std::string& path, const std::vector<Plain>& tensors) {
  std::vector<SafeSpec> specs;
  for (const Plain& p : tensors) specs.push_back({p.name, p.dtype, p.shape});
  const SafetensorsLayout layout({{"format", "pt"}, {"made", "here"}}, specs);
  SafetensorsWriter writer(path, layout);
  for (const Plain& p : tensors)
    writer.write(p.name, p.bytes.data(), static_cast<int64_t>(p.bytes.size()));
  writer.commit();
}

std::string contents(const SafeTensor& t) {
  return {reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.bytes)};
}

std::vector<float> values(const SafeTensor& t) {
  std::vector<float> x(static_cast<size_t>(t.elements()));
  convert(t.dtype, t.data, t.elements(), x.data());
  return x;
}

// Numbers of a normal distribution, more or less: sums of twelve uniform ones.
std::vector<float> some_values(int64_t n, uint64_t seed) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) {
    double sum = -6;
    for (int k = 0; k < 12; ++k) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      sum += static_cast<double>(seed >> 11) * 0x1p-53;
    }
    v = static_cast<float>(sum);
  }
  return x;
}

Outcome quant(const std::vector<std::string>& words) {
  std::vector<std::string> all = {"quant"};
  all.insert(all.end(), words.begin(), words.end());
  return run(all);
}

const SafetensorsReader& fixture() {
  static const SafetensorsReader file(source_folder() + "/tests/golden/quant_file.safetensors");
  return file;
}

// The tensors whose names begin with `prefix`, without it.
std::vector<Plain> fixture_part(const std::string& prefix) {
  std::vector<Plain> out;
  for (const SafeTensor& t : fixture().tensors()) {
    const bool plain = t.name.find('/') == std::string::npos;
    if (prefix.empty() ? !plain : !t.name.starts_with(prefix)) continue;
    const auto* data = reinterpret_cast<const std::byte*>(t.data);
    out.push_back({t.name.substr(prefix.size()), t.dtype, t.shape, {data, data + t.bytes}});
  }
  return out;
}

TEST(Quant, FilesAreThoseOfBitsandbytes) {
  const Workspace w;
  write_file(w.path("w.safetensors"), fixture_part(""));
  const Json cases = Json::parse(fixture().metadata().at("cases"));
  int states = 0;
  for (const Json& c : cases) {
    const auto name = c["name"].get<std::string>();
    std::vector<std::string> words = {w.path("w.safetensors"),
                                      "--codec",
                                      c["codec"],
                                      "--block",
                                      std::to_string(c["block"].get<int>()),
                                      "--match",
                                      "^" + name,
                                      "--output",
                                      w.path(name + ".safetensors")};
    if (c["doubled"]) words.push_back("--double");
    const Outcome o = quant(words);
    ASSERT_EQ(o.code, 0) << o.err;
    const SafetensorsReader ours(w.path(name + ".safetensors"));
    size_t parts = 0;
    for (const Plain& theirs : fixture_part("codes/" + name)) {
      const SafeTensor& t = ours.at(name + theirs.name);
      ++parts;
      EXPECT_EQ(t.dtype, theirs.dtype) << t.name;
      const std::string bytes(reinterpret_cast<const char*>(theirs.bytes.data()),
                              theirs.bytes.size());
      if (t.name.find(".quant_state.") != std::string::npos) {
        EXPECT_EQ(Json::parse(contents(t)), Json::parse(bytes));
        ++states;
      } else {
        EXPECT_EQ(t.shape, theirs.shape) << t.name;
        EXPECT_TRUE(contents(t) == bytes) << t.name;
      }
    }
    // The codes of one tensor, and the other one as it was.
    EXPECT_EQ(ours.tensors().size(), parts + 1);
    EXPECT_EQ(ours.metadata().at("made"), "here");
  }
  EXPECT_EQ(states, 2);
}

TEST(Quant, WhatBitsandbytesWroteIsReadAsItReadsIt) {
  const Workspace w;
  write_file(w.path("codes.safetensors"), fixture_part("codes/"));
  const Outcome o = quant(
      {w.path("codes.safetensors"), "--decode", "--output", w.path("back.safetensors"), "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  const SafetensorsReader back(w.path("back.safetensors"));
  const std::vector<Plain> theirs = fixture_part("back/");
  EXPECT_EQ(back.tensors().size(), theirs.size());
  for (const Plain& p : theirs) {
    const SafeTensor& t = back.at(p.name);
    EXPECT_EQ(t.dtype, p.dtype);
    EXPECT_EQ(t.shape, p.shape);
    EXPECT_TRUE(contents(t) ==
                std::string(reinterpret_cast<const char*>(p.bytes.data()), p.bytes.size()))
        << p.name;
  }
  const Json j = Json::parse(o.out);
  EXPECT_EQ(j["tensors"].size(), 2u);
  for (const Json& row : j["tensors"]) {
    const bool first = row["name"] == "a.weight";
    EXPECT_EQ(row["codec"], first ? "nf4" : "fp4");
    EXPECT_EQ(row["doubled"], first);
    EXPECT_EQ(row["dtype"], first ? "F32" : "F16");
    int64_t elements = 1;
    for (const Json& extent : row["shape"]) elements *= extent.get<int64_t>();
    EXPECT_EQ(row["bytes"], elements * (first ? 4 : 2)) << row;
    // Half a byte each and a scale a block, of f32 or doubled.
    EXPECT_GT(row["coded_bytes"], elements / 2) << row;
    EXPECT_LE(row["coded_bytes"], elements * 3 / 4) << row;
  }
}

// The eight numbers of the published example, and their two codes a byte.
TEST(Quant, AKnownBlockOfNf4) {
  const Workspace w;
  write_file(w.path("w.safetensors"),
             {floats("x", {2, 4}, {-1, -.5F, -.05F, 0, .05F, .1F, .3F, 1})});
  ASSERT_EQ(
      quant({w.path("w.safetensors"), "--codec", "nf4", "--output", w.path("q.safetensors")}).code,
      0);
  const SafetensorsReader q(w.path("q.safetensors"));
  EXPECT_EQ(contents(q.at("x")), "\x02\x67\x88\xBF");
  EXPECT_EQ(q.at("x").shape, (std::vector<int64_t>{4, 1}));
  EXPECT_EQ(values(q.at("x.absmax")), std::vector<float>{1});
}

// A file with an odd length, a vector, what is no float, a tensor without elements.
std::vector<Plain> awkward() {
  Plain ids{"ids", SafeDType::I64, {3}, std::vector<std::byte>(24, std::byte{7})};
  Plain none{"none", SafeDType::F32, {0, 4}, {}};
  Plain half{"half", SafeDType::BF16, {9}, {}};
  for (int k = 0; k < 9; ++k) {
    half.bytes.push_back(std::byte{0});
    half.bytes.push_back(static_cast<std::byte>(0x3c + k % 4));
  }
  return {floats("odd", {13, 97}, some_values(13 * 97, 5)), floats("scalar", {}, {-2.5F}), ids,
          none, half};
}

TEST(Quant, EveryCodecThereAndBackWithTheErrorItSays) {
  const Workspace w;
  write_file(w.path("w.safetensors"), awkward());
  const SafetensorsReader plain(w.path("w.safetensors"));
  for (const char* codec : {"dynamic8", "dynamic8_unsigned", "nf4", "fp4", "int8", "min_max8",
                            "fp8_e4m3", "fp8_e5m2", "quantile8"}) {
    for (const bool doubled : {false, true}) {
      if (doubled && std::string(codec) == "min_max8") continue;
      SCOPED_TRACE(std::string(codec) + (doubled ? " doubled" : ""));
      std::vector<std::string> words = {
          w.path("w.safetensors"), "--codec",     codec,       "--json", "--output",
          w.path("q.safetensors"), "--overwrite", "--threads", "2"};
      if (doubled) words.push_back("--double");
      const Outcome o = quant(words);
      ASSERT_EQ(o.code, 0) << o.err;
      const Json j = Json::parse(o.out);
      EXPECT_EQ(j["copied_tensors"], 2);
      ASSERT_EQ(j["tensors"].size(), 3u);
      ASSERT_EQ(quant({w.path("q.safetensors"), "--decode", "--overwrite", "--output",
                       w.path("b.safetensors")})
                    .code,
                0);
      const SafetensorsReader back(w.path("b.safetensors"));
      EXPECT_EQ(back.tensors().size(), plain.tensors().size());
      EXPECT_EQ(back.metadata(), plain.metadata());
      for (const SafeTensor& t : plain.tensors()) {
        const SafeTensor& b = back.at(t.name);
        EXPECT_EQ(b.dtype, t.dtype);
        EXPECT_EQ(b.shape, t.shape);
        const auto row = std::find_if(j["tensors"].begin(), j["tensors"].end(),
                                      [&](const Json& r) { return r["name"] == t.name; });
        if (row == j["tensors"].end()) {
          EXPECT_TRUE(contents(b) == contents(t)) << t.name;
          continue;
        }
        const std::vector<float> x = values(t), y = values(b);
        double most = 0, sum = 0, squares = 0, all = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          const double d = std::fabs(static_cast<double>(y[i]) - static_cast<double>(x[i]));
          most = std::max(most, d);
          sum += d;
          squares += d * d;
          all += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        }
        const auto n = static_cast<double>(x.size());
        EXPECT_EQ((*row)["max_error"], most);
        EXPECT_NEAR((*row)["mean_error"].get<double>(), sum / n, 1e-12 * most);
        EXPECT_NEAR((*row)["rms_error"].get<double>(), std::sqrt(squares / n), 1e-12 * most);
        EXPECT_NEAR((*row)["relative_error"].get<double>(), std::sqrt(squares / all), 1e-12);
      }
    }
  }
}

TEST(Quant, TableAndPicture) {
  const Workspace w;
  write_file(w.path("w.safetensors"), {floats("h.0.fc.weight", {64, 64}, some_values(4096, 1)),
                                       floats("<b>&", {64, 32}, some_values(2048, 2))});
  const Outcome o = quant(
      {w.path("w.safetensors"), "--codec", "nf4", "--double", "--picture", w.path("codes.html")});
  ASSERT_EQ(o.code, 0) << o.err;
  for (const char* part : {"nf4 in blocks of 64, scales coded too",
                           "h.0.fc.weight  F32    16.00 KiB    2.07 KiB   4.141 ",
                           "code at   share of elements", "\n -1.0000 ", "\n  0.0000 "})
    EXPECT_NE(o.out.find(part), std::string::npos) << part << "\n" << o.out;
  const std::string page = slurp(w.path("codes.html"));
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  EXPECT_EQ(page.find("<b>&"), std::string::npos) << "names are escaped";
  // Sixteen codes in each of three pictures.
  size_t sticks = 0;
  for (size_t at = 0; (at = page.find("curve s1", at)) != std::string::npos; ++at) ++sticks;
  EXPECT_EQ(sticks, 48u);
  const Json j =
      Json::parse(quant({w.path("w.safetensors"), "--codec", "nf4", "--double", "--json"}).out);
  // 4 bits, 8 of 64 for the scale, and 32 of 64 * 256 and the offset for it all (two tensors).
  EXPECT_EQ(j["coded_bytes"], (4096 + 2048) / 2 + (64 + 32) + 2 * (4 + 4));
  EXPECT_EQ(j["output"], nullptr);
  EXPECT_EQ(j["doubled"], true);
  ASSERT_EQ(j["tensors"].size(), 2u);
  int64_t coded = 0;
  for (const Json& t : j["tensors"]) {
    const int64_t elements = t["shape"][0].get<int64_t>() * t["shape"][1].get<int64_t>();
    EXPECT_EQ(t["bytes"], 4 * elements) << t;
    EXPECT_EQ(t["coded_bytes"], elements / 2 + elements / 64 + 4 + 4) << t;
    EXPECT_EQ(t["dtype"], "F32");
    coded += t["coded_bytes"].get<int64_t>();
  }
  EXPECT_EQ(j["coded_bytes"], coded);
}

TEST(Quant, AFullDiskLeavesNothing) {
  NEEDS_PRELOAD();
  const Workspace w;
  write_file(w.path("w.safetensors"), {floats("x", {1 << 16}, some_values(1 << 16, 3))});
  const Environment load("LD_PRELOAD", kBadWorld), files("BAD_WORLD_FILES", "q.safetensors"),
      bytes("BAD_WORLD_ROOM", "20000");
  const Outcome o =
      quant({w.path("w.safetensors"), "--codec", "nf4", "--output", w.path("q.safetensors")});
  EXPECT_EQ(o.code, 1) << o.out;
  for (const char* part : {"device: expected to write ", "q.safetensors",
                           "\n  found: No space left on device", "\n  try:   free space"})
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
  for (const std::string& name : listing(w.path("")))
    EXPECT_EQ(name.find("q.safetensors"), std::string::npos) << name;
}

}  // namespace
}  // namespace snug::e2e
