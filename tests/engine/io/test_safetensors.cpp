#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "engine/io/safetensors.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/folders.h"

namespace snug {
namespace {

const std::string kFixture = source_folder() + "/tests/golden/io_small.safetensors";

// The fixture's formula; see tests/golden/io_safetensors.py.
const std::vector<SafeSpec>& fixture_specs() {
  static const std::vector<SafeSpec> specs = {
      {"f32", SafeDType::F32, {3, 5}},    {"bf16", SafeDType::BF16, {4, 4}},
      {"f16", SafeDType::F16, {2, 3, 2}}, {"f64", SafeDType::F64, {7}},
      {"i64", SafeDType::I64, {2, 2}},    {"i32", SafeDType::I32, {5}},
      {"i16", SafeDType::I16, {3}},       {"i8", SafeDType::I8, {9}},
      {"u8", SafeDType::U8, {3}},         {"bool", SafeDType::BOOL, {6}},
      {"f8", SafeDType::F8_E4M3, {4}},    {"scalar", SafeDType::F32, {}},
      {"empty", SafeDType::F32, {0, 4}},  {"name with \"quotes\" and 한글", SafeDType::F32, {2}}};
  return specs;
}

template <class T>
void put(std::string* out, T v) {
  out->append(reinterpret_cast<const char*>(&v), sizeof(T));
}

std::string fixture_bytes(size_t k) {
  const SafeSpec& s = fixture_specs()[k];
  int64_t n = 1;
  for (const int64_t extent : s.shape) n *= extent;
  std::string out;
  for (int64_t i = 0; i < n; ++i) {
    const int v = static_cast<int>((7 * i + 3 * static_cast<int64_t>(k)) % 256 - 128);
    switch (s.dtype) {
      case SafeDType::F32:
        put(&out, static_cast<float>(v));
        break;
      case SafeDType::BF16:
        put(&out, from_f32<bf16>(static_cast<float>(v)).bits);
        break;
      case SafeDType::F16:
        put(&out, from_f32<f16>(static_cast<float>(v)).bits);
        break;
      case SafeDType::F64:
        put(&out, static_cast<double>(v));
        break;
      case SafeDType::I64:
        put(&out, static_cast<int64_t>(v));
        break;
      case SafeDType::I32:
        put(&out, static_cast<int32_t>(v));
        break;
      case SafeDType::I16:
        put(&out, static_cast<int16_t>(v));
        break;
      case SafeDType::I8:
        put(&out, static_cast<int8_t>(v));
        break;
      case SafeDType::U8:
        put(&out, static_cast<uint8_t>(v + 128));
        break;
      case SafeDType::BOOL:
        put(&out, static_cast<uint8_t>(v > 0));
        break;
      case SafeDType::F8_E4M3:
        put(&out, static_cast<uint8_t>(v > 0 ? 0x38 : v < 0 ? 0xb8 : 0));
        break;
      default:
        ADD_FAILURE();
    }
  }
  return out;
}

void expect_fixture(const SafetensorsReader& file) {
  EXPECT_EQ(file.tensors().size(), fixture_specs().size());
  for (size_t k = 0; k < fixture_specs().size(); ++k) {
    const SafeSpec& want = fixture_specs()[k];
    const SafeTensor& got = file.at(want.name);
    EXPECT_EQ(to_string(got.dtype), std::string(to_string(want.dtype))) << want.name;
    EXPECT_EQ(got.shape, want.shape) << want.name;
    const std::string bytes = fixture_bytes(k);
    ASSERT_EQ(got.bytes, static_cast<int64_t>(bytes.size())) << want.name;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(got.data), bytes.size()), bytes)
        << want.name;
  }
  EXPECT_EQ(file.metadata(),
            (SafeMetadata{{"format", "pt"}, {"note", "line\nbreak and \"quotes\""}}));
}

std::string file_of(const std::string& header, const std::string& data) {
  std::string out;
  put(&out, static_cast<uint64_t>(header.size()));
  return out + header + data;
}

TEST(Safetensors, ReadsWhatThePythonPackageWrites) {
  expect_fixture(SafetensorsReader(kFixture));
}

// SNUG_KEEP=FILE keeps the file, for tests/golden/io_safetensors.py FILE to check.
TEST(Safetensors, WritesWhatItReads) {
  TempFolder tmp;
  const char* keep = std::getenv("SNUG_KEEP");
  const std::string path = keep ? keep : tmp / "w.safetensors";
  const SafetensorsLayout layout({{"format", "pt"}, {"note", "line\nbreak and \"quotes\""}},
                                 fixture_specs());
  EXPECT_EQ(layout.header().size() % 4096, 0u);
  {
    SafetensorsWriter writer(path, layout);
    for (size_t k = 0; k < fixture_specs().size(); ++k) {
      const std::string bytes = fixture_bytes(k);
      EXPECT_EQ(layout.bytes_of(static_cast<int64_t>(k)), static_cast<int64_t>(bytes.size()));
      if (k % 2 == 0) {
        writer.write(fixture_specs()[k].name, bytes.data(), static_cast<int64_t>(bytes.size()));
        continue;
      }
      writer.begin(fixture_specs()[k].name);
      for (const char c : bytes) writer.append(&c, 1);
      writer.end();
    }
    writer.commit();
  }
  EXPECT_EQ(static_cast<int64_t>(read_file(path).size()), layout.total_bytes());
  expect_fixture(SafetensorsReader(path));
}

TEST(Safetensors, WriterHoldsTheCallerToTheLayout) {
  TempFolder tmp;
  const SafetensorsLayout layout({{"format", "pt"}},
                                 {{"a", SafeDType::U8, {2}}, {"b", SafeDType::U8, {1}}});
  SafetensorsWriter w(tmp / "f", layout);
  EXPECT_ERROR(w.begin("b"), ErrorCode::internal, "'a' next", "tensor 'b'", "order of the layout");
  EXPECT_ERROR(w.append("x", 1), ErrorCode::internal, "begin()", "opposite", "report");
  w.begin("a");
  EXPECT_ERROR(w.append("xyz", 3), ErrorCode::internal, "at most 2 more bytes of tensor 'a'", "3",
               "dtype and shape");
  w.append("x", 1);
  EXPECT_ERROR(w.end(), ErrorCode::internal, "all 2 bytes of tensor 'a'", "1 fewer", "append");
  EXPECT_ERROR(w.commit(), ErrorCode::internal, "all 2 tensors", "0", "write the rest");
  w.append("x", 1);
  w.end();
  w.write("b", "x", 1);
  EXPECT_ERROR(w.begin("b"), ErrorCode::internal, "the end next", "tensor 'b'", "order");
  w.commit();
  EXPECT_EQ(SafetensorsReader(tmp / "f").at("a").bytes, 2);
}

TEST(Safetensors, LayoutRefusesWhatNoReaderWouldTake) {
  const SafeMetadata pt = {{"format", "pt"}};
  const auto layout = [](SafeMetadata m, std::vector<SafeSpec> t) {
    return SafetensorsLayout(std::move(m), std::move(t)).total_bytes();
  };
  EXPECT_ERROR(layout({}, {}), ErrorCode::data, "\"format\"", "none", "pt");
  EXPECT_ERROR(layout(pt, {{"a", SafeDType::U8, {1}}, {"a", SafeDType::U8, {1}}}), ErrorCode::data,
               "every tensor name once", "'a'", "tied");
  EXPECT_ERROR(layout(pt, {{"__metadata__", SafeDType::U8, {1}}}), ErrorCode::data, "name once",
               "__metadata__", "");
  EXPECT_ERROR(layout(pt, {{"a", SafeDType::U8, {-1}}}), ErrorCode::data, "0 or more",
               "tensor 'a' of U8 [-1]", "shape");
  EXPECT_ERROR(layout(pt, {{"a", SafeDType::F64, {1ll << 40, 1ll << 40}}}), ErrorCode::data,
               "below 2^60", "tensor 'a'", "shape");
  EXPECT_ERROR(layout(pt, {{"a", SafeDType::F4, {3}}}), ErrorCode::data, "whole bytes", "F4 [3]",
               "shape");
  EXPECT_ERROR(layout(pt, {{"\xff", SafeDType::U8, {1}}}), ErrorCode::data,
               "tensor names and metadata in UTF-8", "ufffd", "rename");
  const SafeSpec vast{"a", SafeDType::U8, {int64_t{1} << 59}};
  std::vector<SafeSpec> many(9, vast);
  for (size_t i = 0; i < many.size(); ++i) many[i].name += std::to_string(i);
  EXPECT_ERROR(layout(pt, many), ErrorCode::data, "less than 2^62 bytes in one file",
               "more, at tensor 'a8'", "several files");
  EXPECT_EQ(layout(pt, {}), 4096);
}

// One broken file per check of the format; each has its own text and names file and tensor.
TEST(Safetensors, EveryReaderCheckHasItsError) {
  TempFolder tmp;
  const std::string path = tmp / "x.safetensors";
  const auto entry = [](const std::string& inside) { return "{\"a\":{" + inside + "}}"; };
  const std::string good = "\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]";
  struct Case {
    std::string bytes, expected, found;
  };
  std::string huge, long_header;
  put(&huge, uint64_t{100'000'001});
  put(&long_header, uint64_t{100});
  const std::string big = "9223372036854775807";
  const std::vector<Case> cases = {
      {"1234567", "at least 8 bytes", "7 bytes"},
      {huge + "{}", "at most 100000000 bytes", "100000001"},
      {long_header + "{}", "its header of 100 bytes", "10 bytes"},
      {file_of("", ""), "begin with '{'", "an empty header"},
      {file_of(" {}", ""), "begin with '{'", "0x20"},
      {file_of("{\"a", ""), "a JSON header in UTF-8", "an error at byte"},
      {file_of("{}{}", ""), "JSON header", "byte 10"},
      {file_of(std::string("{}\0x", 4), ""), "JSON header", "zero byte at byte 10"},
      {file_of("{\"\xff\":{}}", ""), "JSON header in UTF-8", "invalid"},
      {file_of("{\"a\":{" + good + "},\"a\":{" + good + "}}", "xy"), "every name once",
       "'a' twice"},
      {file_of(entry(good + ",\"dtype\":\"U8\""), "xy"), "every name once",
       "\"dtype\" twice in 'a'"},
      {file_of("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", ""), "every name once",
       "\"k\" twice"},
      {file_of("{\"__metadata__\":{\"k\":1}}", ""), "a string as __metadata__ \"k\"", "1"},
      {file_of("{\"__metadata__\":{\"k\":{}}}", ""), "a string as __metadata__ \"k\"", "an object"},
      {file_of("{\"__metadata__\":3}", ""), "an object as '__metadata__'", "3"},
      {file_of("{\"a\":[]}", ""), "an object as 'a'", "an array"},
      {file_of(entry("\"dtype\":\"U9\""), ""), "an element type", "\"U9\" for tensor 'a'"},
      {file_of(entry("\"dtype\":8"), ""), "a string as \"dtype\" of tensor 'a'", "8"},
      {file_of(entry("\"shape\":2"), ""), "an array as \"shape\" of tensor 'a'", "2"},
      {file_of(entry("\"shape\":[-1]"), ""), "whole numbers, 0 or more, as \"shape\"", "-1"},
      {file_of(entry("\"shape\":[1.0]"), ""), "whole numbers", "1.0"},
      {file_of(entry("\"shape\":[\"1\"]"), ""), "whole numbers", "\"1\""},
      {file_of(entry("\"shape\":[[1]]"), ""), "whole numbers", "an array"},
      {file_of(entry("\"shape\":[1e999]"), ""), "JSON header", "1e999"},
      {file_of(entry("\"shape\":[99999999999999999999]"), ""), "whole numbers", "9999"},
      {file_of(entry("\"shape\":[9223372036854775808]"), ""), "a number below 2^63",
       "9223372036854775808"},
      {file_of(entry("\"dtype\":\"U8\",\"shape\":[2]"), "xy"), "dtype, shape and data_offsets",
       "no \"data_offsets\" in tensor 'a'"},
      {file_of(entry("\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0]"), "xy"), "two numbers",
       "1 numbers in tensor 'a'"},
      {file_of(entry("\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2,2]"), "xy"),
       "two numbers", "3 numbers in tensor 'a'"},
      {file_of(entry("\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]"), "xyz"),
       "begin at byte 0", "a hole: data_offsets [1, 3] in tensor 'a'"},
      {file_of(
           "{\"a\":{" + good + "},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
           "xyz"),
       "begin at byte 2", "an overlap: data_offsets [1, 3] in tensor 'b'"},
      {file_of(
           "{\"a\":{" + good + "},\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,1]}}",
           "xy"),
       "end after they begin", "[2, 1] in tensor 'b'"},
      {file_of(entry("\"dtype\":\"U8\",\"shape\":[" + big + ",3],\"data_offsets\":[0,2]"), "xy"),
       "elements below 2^63", "shape [" + big + ", 3] in tensor 'a'"},
      {file_of(entry("\"dtype\":\"U8\",\"shape\":[" + big + "],\"data_offsets\":[0,2]"), "xy"),
       "size below 2^63 bits", "shape [" + big + "] of U8 in tensor 'a'"},
      {file_of(entry("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]"), "xy"), "whole bytes",
       "12 bits"},
      {file_of(entry("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,2]"), "xy"),
       "8 bytes for shape [2] of F32", "2 bytes, data_offsets [0, 2] in tensor 'a'"},
      {file_of(entry(good), "x"), "to hold tensor 'a', up to byte 2", "1 bytes of data"},
      {file_of(entry(good), "xyz"), "to end with its last tensor, 2 bytes", "3 bytes of data"},
  };
  for (const Case& c : cases) {
    write_atomic(path, c.bytes);
    try {
      SafetensorsReader reader(path);
      ADD_FAILURE() << "accepted; wanted " << c.expected << " / " << c.found;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data);
      expect_part(e.expected(), c.expected, "expected", e);
      expect_part(e.found(), c.found, "found", e);
      EXPECT_FALSE(e.advice().empty());
      EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
    }
  }
}

TEST(Safetensors, DeepNestingIsAnErrorAndUnknownKeysAreNot) {
  TempFolder tmp;
  const std::string path = tmp / "x";
  const std::string good = "\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]";
  write_atomic(path,
               file_of("{\"a\":{\"x\":{\"y\":[1,null,{\"dtype\":[]}]}," + good + "}}  ", "xy"));
  EXPECT_EQ(SafetensorsReader(path).at("a").bytes, 2);
  write_atomic(path, file_of("{\"a\":{\"x\":" + std::string(1'000'000, '[') + "}}", "xy"));
  EXPECT_ERROR(SafetensorsReader(path), ErrorCode::data, "at most 64 levels", "deeper", "writer");
}

TEST(Safetensors, MissingNamesAreErrors) {
  const SafetensorsReader file(kFixture);
  EXPECT_EQ(file.find("none"), nullptr);
  EXPECT_ERROR(file.at("none"), ErrorCode::data, "a tensor 'none' in " + kFixture, "14 tensors",
               "belong to this model");
}

// Any bytes load or throw Error; under the sanitizer build this also proves that nothing else
// happens.
void mutate(uint64_t seed, int trials) {
  TempFolder tmp;
  const std::string path = tmp / "m";
  const std::string base = read_file(kFixture);
  std::mt19937_64 rng(seed);
  const std::string tokens[] = {"{",    "}",      "[",      "]",          ",",
                                ":",    "\"",     "0",      "9",          "-",
                                "1e9",  "null",   "\"F4\"", "\"shape\":", std::string(300, '['),
                                "\xff", "\\u0000"};
  int64_t loaded = 0, refused = 0;
  for (int trial = 0; trial < trials; ++trial) {
    std::string bytes = base;
    const int edits = 1 + static_cast<int>(rng() % 3);
    for (int e = 0; e < edits; ++e) {
      const size_t header = std::min<size_t>(bytes.size(), base.size() - 300);
      const size_t at = rng() % std::max<size_t>(1, header);
      switch (rng() % 6) {
        case 0:
          bytes.resize(rng() % (bytes.size() + 1));
          break;
        case 1:
          bytes.insert(std::min(at, bytes.size()), tokens[rng() % std::size(tokens)]);
          break;
        case 2:
          if (at < bytes.size()) bytes.erase(at, 1 + rng() % 8);
          break;
        case 3:
          if (bytes.size() >= 8) bytes[rng() % 8] = static_cast<char>(rng());
          break;
        default:
          if (at < bytes.size()) bytes[at] = static_cast<char>(rng());
          break;
      }
    }
    {
      std::remove(
          path.c_str());  // file systems flush a file that is cut to nothing and written again
      FILE* f = std::fopen(path.c_str(), "wb");
      ASSERT_NE(f, nullptr);
      std::fwrite(bytes.data(), 1, bytes.size(), f);
      std::fclose(f);
    }
    try {
      const SafetensorsReader reader(path);
      uint64_t sum = 0;
      for (const SafeTensor& t : reader.tensors())
        for (int64_t i = 0; i < t.bytes; ++i) sum += t.data[i];
      EXPECT_LT(sum, uint64_t{1} << 40);
      ++loaded;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data) << e.what();
      EXPECT_FALSE(e.expected().empty() || e.found().empty() || e.advice().empty());
      ++refused;
    }
  }
  EXPECT_GT(loaded, trials / 200);  // both outcomes are exercised
  EXPECT_GT(refused, trials / 2);
}

TEST(Safetensors, SurvivesMutation) {
  mutate(7, 1000);
}
TEST(SlowSafetensors, SurvivesMutation) {
  mutate(8, 20000);
}

void write_shard(const std::string& path, const std::vector<std::string>& names) {
  std::vector<SafeSpec> specs;
  for (const std::string& n : names) specs.push_back({n, SafeDType::U8, {1}});
  const SafetensorsLayout layout({{"format", "pt"}}, specs);
  SafetensorsWriter w(path, layout);
  for (const std::string& n : names) w.write(n, n.data(), 1);
  w.commit();
}

TEST(SafetensorsFolder, OpensOneFileShardsOrAFolder) {
  TempFolder tmp;
  const std::string index = tmp / "model.safetensors.index.json";
  EXPECT_ERROR(SafetensorsFolder(tmp.path()), ErrorCode::data, "model.safetensors", "neither",
               "give a model folder");
  write_atomic(tmp / "pytorch_model.bin", "x");
  EXPECT_ERROR(SafetensorsFolder(tmp.path()), ErrorCode::data, tmp.path(), "a pickle",
               "save the model again");
  write_shard(tmp / "s1.safetensors", {"a", "b"});
  write_shard(tmp / "s2.safetensors", {"c"});
  write_atomic(index, R"({"metadata":{"total_size":999},"weight_map":
      {"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"}})");
  for (const std::string& path : {tmp.path(), index}) {
    const SafetensorsFolder folder(path);
    EXPECT_EQ(folder.files().size(), 2u);
    EXPECT_EQ(folder.tensors().size(), 3u);
    EXPECT_EQ(*folder.at("c").data, 'c');
    EXPECT_EQ(folder.metadata().at("format"), "pt");
    EXPECT_ERROR(folder.at("d"), ErrorCode::data, "'d'", "3 tensors, the first is 'a'", "belong");
  }
  EXPECT_EQ(SafetensorsFolder(tmp / "s2.safetensors").tensors().size(), 1u);
  const auto with_map = [&](const std::string& map) {
    write_atomic(index, "{\"weight_map\":" + map + "}");
    return SafetensorsFolder(tmp.path()).files().size();
  };
  EXPECT_ERROR(with_map("{\"a\":\"s3.safetensors\"}"), ErrorCode::data, "s3.safetensors",
               "no such file", "download the missing shard");
  EXPECT_ERROR(with_map("{\"z\":\"s1.safetensors\"}"), ErrorCode::data, "tensor 'z' in",
               "2 other tensors", "same version");
  EXPECT_ERROR(with_map("{\"a\":\"../s1.safetensors\"}"), ErrorCode::data, "without a folder",
               "../s1", "beside the index");
  EXPECT_ERROR(with_map("{\"a\":7}"), ErrorCode::data, "tensor 'a'", "7", "beside the index");
  EXPECT_ERROR(with_map("{}"), ErrorCode::data, "weight_map", "0 keys", "download");
  write_shard(tmp / "s2.safetensors", {"a"});
  EXPECT_ERROR(with_map("{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}"), ErrorCode::data,
               "in one shard", "'a' in two", "another model");
  write_atomic(index, "[]");
  EXPECT_ERROR(SafetensorsFolder(tmp.path()), ErrorCode::data, "a JSON object", "a list", "check");
  write_shard(tmp / "model.safetensors", {"only"});
  EXPECT_EQ(SafetensorsFolder(tmp.path()).tensors().size(), 1u);
}

TEST(SafetensorsTypes, NamesBitsAndEngineTypes) {
  for (int i = 0; i < kSafeDTypes; ++i) {
    const SafeDType t = static_cast<SafeDType>(i);
    EXPECT_EQ(safe_dtype(to_string(t)), t);
    if (const auto engine = engine_dtype(t)) {
      EXPECT_EQ(bits_of(t), size_of(*engine) * 8);
      EXPECT_EQ(safe_dtype(*engine), t);
    }
  }
  EXPECT_FALSE(safe_dtype("f32"));
  EXPECT_EQ(bits_of(SafeDType::F6_E2M3), 6);
  EXPECT_EQ(bits_of(SafeDType::C64), 64);
}

TEST(SafetensorsConvert, IsExactOrRoundsOnce) {
  std::string raw = "x";  // one byte first: every source below is unaligned
  const float values[] = {1.5f, -0.0f, 3.14159274f, INFINITY};
  for (const float v : values) put(&raw, v);
  float f[4];
  convert(SafeDType::F32, raw.data() + 1, 4, f);
  EXPECT_EQ(std::memcmp(f, values, 16), 0);
  bf16 b[4];
  convert(SafeDType::F32, raw.data() + 1, 4, b);
  EXPECT_EQ(b[0].bits, 0x3fc0);
  EXPECT_EQ(b[1].bits, 0x8000);
  EXPECT_EQ(b[2].bits, 0x4049);
  EXPECT_EQ(b[3].bits, 0x7f80);
  convert(SafeDType::BF16, b, 4, f);
  EXPECT_EQ(f[2], 3.140625f);
  const f16 h[] = {{0x3c01}, {0x0001}};
  convert(SafeDType::F16, h, 2, f);
  EXPECT_EQ(f[0], 1.0009765625f);
  EXPECT_EQ(f[1], 0x1p-24f);
  EXPECT_ERROR(convert(SafeDType::I64, h, 1, f), ErrorCode::unsupported,
               "weights of type F64, F32, F16 or BF16", "I64", "convert");
  EXPECT_FALSE(convertible(SafeDType::F8_E4M3));
  // A double just above the middle of two bf16 values: through float it would fall on the middle
  // and go down to even; rounding once goes up.
  const double d[] = {1.0 + 0x1p-8 + 0x1p-40,
                      -(1.0 + 0x1p-8 + 0x1p-40),
                      1.0 + 0x1p-8 - 0x1p-40,
                      0x1p-8 + 1.0,
                      1e300,
                      1e-300};
  bf16 r[6];
  convert(SafeDType::F64, d, 6, r);
  EXPECT_EQ(r[0].bits, 0x3f81);
  EXPECT_EQ(r[1].bits, 0xbf81);
  EXPECT_EQ(r[2].bits, 0x3f80);
  EXPECT_EQ(r[3].bits, 0x3f80);
  EXPECT_EQ(r[4].bits, 0x7f80);
  EXPECT_EQ(r[5].bits, 0x0000);
  convert(SafeDType::F64, d, 1, f);
  EXPECT_EQ(f[0], 1.00390625f);
}

}  // namespace
}  // namespace snug
