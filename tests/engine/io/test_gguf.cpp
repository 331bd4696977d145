#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>

#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/io/gguf.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/folders.h"

namespace snug {
namespace {

const std::string kFixture = source_folder() + "/tests/golden/io_small.gguf";

// The fixture's formula; see tests/golden/io_gguf.py.
std::vector<float> formula(int64_t n, int64_t k) {
  std::vector<float> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    v[static_cast<size_t>(i)] =
        std::ldexp(static_cast<float>((i * 2654435761 + k * 40503) % 65536 - 32768),
                   -static_cast<int>((i / 32) % 24));
    if (i >= 32 && i < 64) v[static_cast<size_t>(i)] = 0;
    if (n >= 96 && i >= 64 && i < 96) v[static_cast<size_t>(i)] = static_cast<float>(i - 80) + 0.5f;
    if (n >= 96 && i == 64) v[static_cast<size_t>(i)] = 127.0f;
  }
  return v;
}

template <class T>
void put(std::string* out, T v) {
  out->append(reinterpret_cast<const char*>(&v), sizeof(T));
}
void put_text(std::string* out, const std::string& text) {
  put(out, static_cast<uint64_t>(text.size()));
  *out += text;
}

// A file from its parts, for faults that the writer would not make.
struct Parts {
  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t tensors = 0, keys = 0;
  std::string body;  // keys, tensor infos
  std::string data;
  std::string bytes() const {
    std::string out = magic;
    put(&out, version);
    put(&out, tensors);
    put(&out, keys);
    out += body;
    if (tensors > 0) out.resize((out.size() + 31) / 32 * 32, '\0');
    return out + data;
  }
};

std::string key_head(const std::string& name, uint32_t kind) {
  std::string out;
  put_text(&out, name);
  put(&out, kind);
  return out;
}
std::string tensor_info(const std::string& name, const std::vector<uint64_t>& extents,
                        uint32_t type, uint64_t offset) {
  std::string out;
  put_text(&out, name);
  put(&out, static_cast<uint32_t>(extents.size()));
  for (const uint64_t e : extents) put(&out, e);
  put(&out, type);
  put(&out, offset);
  return out;
}

TEST(Gguf, ReadsWhatThePythonPackageWrites) {
  const GgufReader file(kFixture);
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.alignment(), 32);
  const auto key = [&](const char* name) -> const GgufKey& {
    const GgufKey* k = file.find_key(name);
    if (!k) throw std::runtime_error(name);
    return *k;
  };
  EXPECT_EQ(file.string(key("general.architecture")), "test");
  EXPECT_EQ(file.integer(key("k.u8")), 200);
  EXPECT_EQ(file.integer(key("k.i8")), -100);
  EXPECT_EQ(file.integer(key("k.u16")), 60000);
  EXPECT_EQ(file.integer(key("k.i16")), -30000);
  EXPECT_EQ(file.integer(key("k.u32")), 4000000000);
  EXPECT_EQ(file.integer(key("k.i32")), -2000000000);
  EXPECT_EQ(file.number(key("k.f32")), 1.5);
  EXPECT_TRUE(file.boolean(key("k.bool")));
  EXPECT_EQ(file.string(key("k.string")), "한글 \"quotes\"");
  EXPECT_EQ(file.integer(key("k.i64")), -(int64_t{1} << 62));
  EXPECT_EQ(file.number(key("k.f64")), 0.1);
  EXPECT_EQ(file.number(key("k.i8")), -100.0);
  const auto strings = file.strings(key("k.strings"));
  ASSERT_EQ(strings.size(), 3u);
  EXPECT_EQ(strings[0], "a");
  EXPECT_EQ(strings[1], "");
  EXPECT_EQ(strings[2].size(), 100u);
  EXPECT_EQ(file.strings(key("k.strings"), 1).size(), 1u);
  EXPECT_EQ(file.integers(key("k.ints")), (std::vector<int64_t>{1, -2, 3, 4, 5, 6}));
  EXPECT_EQ(file.brief(key("k.u64")), "9223372036854775809");
  EXPECT_EQ(file.brief(key("k.i8")), "-100");
  EXPECT_EQ(file.brief(key("k.f32")), "1.5");
  EXPECT_EQ(file.brief(key("k.bool")), "true");
  EXPECT_EQ(file.brief(key("k.ints")), "[6 of i32] 1, -2, 3, 4, ...");
  EXPECT_EQ(file.brief(key("k.nested")), "[2 of array]");
  EXPECT_NE(file.brief(key("k.strings")).find("\"a\", \"\", \"long"), std::string::npos);

  const GgufTensor* f32 = file.find("t.f32");
  ASSERT_NE(f32, nullptr);
  EXPECT_EQ(f32->shape, (std::vector<int64_t>{3, 64}));
  EXPECT_EQ(std::memcmp(f32->data, formula(192, 0).data(), 192 * 4), 0);
  EXPECT_EQ(file.find("t.vector")->shape, (std::vector<int64_t>{7}));
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_EQ(file.find("t.q4_0")->bytes, 5 * 160 / 32 * 18);
  // Every other type decodes to within half a unit of its own.
  for (const char* name : {"t.f16", "t.bf16"}) {
    const GgufTensor* t = file.find(name);
    const std::vector<float> want = formula(800, name[2] == 'f' ? 2 : 3);
    std::vector<float> got(800);
    ASSERT_TRUE(gguf_decode(t->type, t->data, 800, got.data()));
    for (size_t i = 0; i < 800; ++i)
      EXPECT_EQ(got[i],
                name[2] == 'f' ? to_f32(from_f32<f16>(want[i])) : to_f32(from_f32<bf16>(want[i])))
          << name << " " << i;
  }
  std::vector<float> q4(800);
  EXPECT_FALSE(gguf_decode(2, file.find("t.q4_0")->data, 800, q4.data()));
}

// The bytes of the package's own encoder: halves, zeros, and blocks from 2^15 down to 2^-8.
TEST(Gguf, Q8BlocksAreThoseOfThePythonPackage) {
  const GgufReader file(kFixture);
  const GgufTensor* t = file.find("t.q8_0");
  ASSERT_EQ(t->bytes, 800 / 32 * 34);
  const std::vector<float> x = formula(800, 4);
  std::vector<uint8_t> bytes(static_cast<size_t>(t->bytes));
  ASSERT_TRUE(q8_0_encode(x.data(), 800, bytes.data()));
  EXPECT_EQ(std::memcmp(bytes.data(), t->data, bytes.size()), 0);
  std::vector<float> back(800);
  q8_0_decode(bytes.data(), 800, back.data());
  for (int64_t b = 0; b < 800; b += 32) {
    float most = 0;
    for (int64_t i = b; i < b + 32; ++i)
      most = std::max(most, std::fabs(x[static_cast<size_t>(i)]));
    // Half a step of the scale, and the scale's own rounding to f16 (2^-11, or 2^-25 where f16 is
    // subnormal) times up to 127 steps.
    const float step = most / 127.0f;
    const float bound = 0.5f * step + 127.0f * std::max(step * 0x1p-11f, 0x1p-25f) + 1e-30f;
    for (int64_t i = b; i < b + 32; ++i)
      EXPECT_LE(std::fabs(back[static_cast<size_t>(i)] - x[static_cast<size_t>(i)]), 1.001f * bound)
          << i;
  }
}

TEST(Gguf, Q8HalvesGoAwayFromZeroAndEdgesHold) {
  std::vector<float> x(32, 0.0f);
  x[0] = 127.0f;  // scale 1
  x[1] = 2.5f;
  x[2] = -2.5f;
  x[3] = 0.5f;
  x[4] = -0.4999f;
  uint8_t block[34];
  ASSERT_TRUE(q8_0_encode(x.data(), 32, block));
  const auto* q = reinterpret_cast<const int8_t*>(block + 2);
  EXPECT_EQ(q[0], 127);
  EXPECT_EQ(q[1], 3);
  EXPECT_EQ(q[2], -3);
  EXPECT_EQ(q[3], 1);
  EXPECT_EQ(q[4], 0);
  // Too large for an f16 scale, and values that are no numbers.
  x[0] = 8.4e6f;
  EXPECT_FALSE(q8_0_encode(x.data(), 32, block));
  x[0] = 8.3e6f;
  EXPECT_TRUE(q8_0_encode(x.data(), 32, block));
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    x[31] = bad;
    EXPECT_FALSE(q8_0_encode(x.data(), 32, block));
  }
  // Subnormal values: a reciprocal that overflows must not become a byte.
  for (float& v : x) v = 1e-42f;
  ASSERT_TRUE(q8_0_encode(x.data(), 32, block));
  for (int i = 0; i < 34; ++i) EXPECT_EQ(block[i], 0) << i;
}

GgufMetadata some_keys() {
  GgufMetadata keys;
  keys.add("general.architecture", "gpt2");
  keys.add("a.count", uint32_t{7});
  keys.add("a.rate", 0.25f);
  keys.add("a.flag", true);
  keys.add("a.words", std::vector<std::string>{"x", "", "한"});
  keys.add("a.ids", std::vector<int32_t>{-1, 5});
  return keys;
}

TEST(Gguf, WritesWhatItReads) {
  TempFolder tmp;
  const std::string path = tmp / "w.gguf";
  const GgufLayout layout(some_keys(), {{"a", GgufType::F32, {3}},
                                        {"b", GgufType::Q8_0, {2, 64}},
                                        {"c", GgufType::F16, {2, 3, 5}},
                                        {"d", GgufType::BF16, {1, 1}}});
  std::vector<std::string> contents;
  {
    GgufWriter writer(path, layout);
    for (size_t i = 0; i < 4; ++i) {
      std::string bytes(static_cast<size_t>(layout.bytes_of(static_cast<int64_t>(i))), '\0');
      for (size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<char>(i * 37 + k);
      writer.begin(layout.tensors()[i].name);
      for (const char c : bytes) writer.append(&c, 1);
      writer.end();
      contents.push_back(bytes);
    }
    EXPECT_FALSE(file_exists(path));
    writer.commit();
  }
  EXPECT_EQ(static_cast<int64_t>(read_file(path).size()), layout.total_bytes());
  const GgufReader file(path);
  ASSERT_EQ(file.tensors().size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const GgufTensor& t = file.tensors()[i];
    EXPECT_EQ(t.name, layout.tensors()[i].name);
    EXPECT_EQ(t.shape, layout.tensors()[i].shape);
    EXPECT_EQ(t.type, static_cast<uint32_t>(layout.tensors()[i].type));
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.bytes)),
              contents[i]);
  }
  EXPECT_EQ(file.integer(*file.find_key("a.count")), 7);
  EXPECT_EQ(file.number(*file.find_key("a.rate")), 0.25);
  EXPECT_TRUE(file.boolean(*file.find_key("a.flag")));
  EXPECT_EQ(file.strings(*file.find_key("a.words"))[2], "한");
  EXPECT_EQ(file.integers(*file.find_key("a.ids")), (std::vector<int64_t>{-1, 5}));
}

TEST(Gguf, WriterRefusesWhatNoReaderTakes) {
  GgufMetadata keys = some_keys();
  EXPECT_ERROR(keys.add("a.flag", false), ErrorCode::data, "every GGUF key once", "a.flag twice",
               "once");
  EXPECT_ERROR(keys.add("", false), ErrorCode::data, "a GGUF key of 1 to", "0 bytes", "shorten");
  const auto layout = [&](std::vector<GgufSpec> tensors) { GgufLayout(keys, std::move(tensors)); };
  EXPECT_ERROR(layout({{"a", GgufType::F32, {1}}, {"a", GgufType::F32, {1}}}), ErrorCode::data,
               "every tensor name once", "a twice", "once");
  EXPECT_ERROR(layout({{std::string(65, 'x'), GgufType::F32, {1}}}), ErrorCode::data,
               "a tensor name of 1 to 64 bytes", "65 bytes", "shorten");
  const char* const extents = "one to four extents of at least 1";
  EXPECT_ERROR(layout({{"a", GgufType::Q8_0, {2, 33}}}), ErrorCode::data, extents,
               "a of Q8_0 [2, 33]", "another type");
  EXPECT_ERROR(layout({{"a", GgufType::F32, {}}}), ErrorCode::data, extents, "[]", "another");
  EXPECT_ERROR(layout({{"a", GgufType::F32, {1, 1, 1, 1, 1}}}), ErrorCode::data, extents, "[1,",
               "another");
  EXPECT_ERROR(layout({{"a", GgufType::F32, {0}}}), ErrorCode::data, extents, "[0]", "another");
  EXPECT_ERROR(layout({{"a", GgufType::F32, {int64_t{1} << 40, int64_t{1} << 40}}}),
               ErrorCode::data, extents, "a of F32", "another");
}

TEST(Gguf, WriterHoldsTheCallerToTheLayout) {
  TempFolder tmp;
  const GgufLayout layout(some_keys(), {{"a", GgufType::F32, {2}}, {"b", GgufType::F32, {1}}});
  const float x[2] = {1, 2};
  const auto attempt = [&](const std::function<void(GgufWriter&)>& use) {
    GgufWriter writer(tmp / "x.gguf", layout);
    use(writer);
  };
  EXPECT_ERROR(attempt([&](GgufWriter& w) { w.begin("b"); }), ErrorCode::internal, "", "", "");
  EXPECT_ERROR(attempt([&](GgufWriter& w) {
                 w.begin("a");
                 w.append(x, 9);
               }),
               ErrorCode::internal, "", "", "");
  EXPECT_ERROR(attempt([&](GgufWriter& w) {
                 w.begin("a");
                 w.append(x, 4);
                 w.end();
               }),
               ErrorCode::internal, "", "", "");
  EXPECT_ERROR(attempt([&](GgufWriter& w) { w.commit(); }), ErrorCode::internal, "", "", "");
  EXPECT_EQ(tmp.count(), 0);
}

TEST(Gguf, ValuesOfAnotherKindAreRefused) {
  const GgufReader file(kFixture);
  const auto key = [&](const char* name) -> const GgufKey& { return *file.find_key(name); };
  EXPECT_ERROR(file.integer(key("k.string")), ErrorCode::data, "an integer for k.string",
               "a value of type string", "correct writer");
  EXPECT_ERROR(file.integer(key("k.u64")), ErrorCode::data, "an integer", "u64", "");
  EXPECT_ERROR(file.number(key("k.bool")), ErrorCode::data, "a number for k.bool", "bool", "");
  EXPECT_ERROR(file.boolean(key("k.u8")), ErrorCode::data, "true or false", "u8", "");
  EXPECT_ERROR(file.string(key("k.strings")), ErrorCode::data, "a string", "an array of string",
               "");
  EXPECT_ERROR(file.strings(key("k.ints")), ErrorCode::data, "an array of strings",
               "an array of i32", "");
  EXPECT_ERROR(file.integers(key("k.strings")), ErrorCode::data, "an array of integers", "string",
               "");
  EXPECT_ERROR(file.integers(key("k.u8")), ErrorCode::data, "an array of integers", "u8", "");
}

class GgufBroken : public testing::Test {
 protected:
  GgufReader open(const std::string& bytes) {
    std::ofstream(tmp_ / "bad.gguf", std::ios::binary) << bytes;
    return GgufReader(tmp_ / "bad.gguf");
  }
  TempFolder tmp_;
};

TEST_F(GgufBroken, EachFaultHasItsMessage) {
  EXPECT_ERROR(open(""), ErrorCode::data, "begins with \"GGUF\"", "0 bytes", "download");
  EXPECT_ERROR(open("GGML and more bytes of it"), ErrorCode::data, "GGUF file", "other bytes", "");
  EXPECT_ERROR(open("GGUF\3"), ErrorCode::data, "4 bytes for the version at byte 4",
               "the end of the file 1 bytes later", "");
  Parts p;
  p.version = 1;
  EXPECT_ERROR(open(p.bytes()), ErrorCode::unsupported, "version 2 or 3", "version 1",
               "current converter");
  p.version = 3u << 24;
  EXPECT_ERROR(open(p.bytes()), ErrorCode::unsupported, "little endian", "big-endian", "");
  p = {};
  p.tensors = 1;
  EXPECT_ERROR(open(p.bytes()), ErrorCode::data, "a number of tensors that", "1 of at least", "");
  p = {};
  p.keys = uint64_t{1} << 60;
  EXPECT_ERROR(open(p.bytes()), ErrorCode::data, "a number of keys that", "1152921504606846976",
               "");
  EXPECT_EQ(open(Parts{}.bytes()).keys().size(), 0u);
}

TEST_F(GgufBroken, ALongTextIsShownUpToAWholeCharacter) {
  Parts p;
  p.keys = 1;
  p.body = key_head("k", 8);
  const std::string shown(59, 'a');
  put_text(&p.body, shown + "\u00E9\u00E9");
  const GgufReader file = open(p.bytes());
  EXPECT_EQ(file.brief(file.keys()[0]), "\"" + shown + "...\" (63 bytes)");
}

TEST_F(GgufBroken, Keys) {
  const auto with = [&](const std::string& body, uint64_t keys = 1) {
    Parts p;
    p.keys = keys;
    p.body = body;
    return open(p.bytes());
  };
  std::string body;
  put(&body, uint64_t{1} << 40);
  EXPECT_ERROR(with(body + std::string(20, 'x')), ErrorCode::data, "a length of a key inside",
               "1099511627776 bytes with 20", "");
  EXPECT_ERROR(with(key_head("", 0) + std::string(8, 'x')), ErrorCode::data, "keys of 1 to 65535",
               "one of 0 bytes", "");
  EXPECT_ERROR(with(key_head("k\n", 0) + "x"), ErrorCode::data, "keys of printable ASCII",
               "a byte 0x0a", "");
  EXPECT_ERROR(with(key_head("k\x1f", 0) + "x"), ErrorCode::data, "keys of printable ASCII",
               "a byte 0x1f", "");
  EXPECT_ERROR(with(key_head("k\x7f", 0) + "x"), ErrorCode::data, "keys of printable ASCII",
               "a byte 0x7f", "");
  EXPECT_ERROR(with(key_head("\xc3\xa9", 0) + "x"), ErrorCode::data, "keys of printable ASCII",
               "a byte 0xc3", "");
  EXPECT_ERROR(with(key_head("k", 13) + std::string(8, 'x')), ErrorCode::data,
               "a value type of 0 to 12 for key k", "13", "");
  EXPECT_ERROR(with(key_head("k", 10) + "1234567"), ErrorCode::data, "8 bytes for key k",
               "7 bytes later", "");
  EXPECT_ERROR(with(key_head("k", 7) + "\2"), ErrorCode::data, "a bool of 0 or 1 for key k", "2",
               "");
  body = key_head("k", 8);
  put(&body, uint64_t{9});
  EXPECT_ERROR(with(body + "12345678"), ErrorCode::data, "a length of key k inside",
               "9 bytes with 8", "");
  body = key_head("k", 9);
  put(&body, uint32_t{5});
  put(&body, uint64_t{3});
  EXPECT_ERROR(with(body + "12345678901"), ErrorCode::data, "a number of elements of key k",
               "3 of at least 4 bytes each with 11", "");
  body = key_head("k", 9);
  put(&body, uint32_t{7});
  put(&body, uint64_t{2});
  EXPECT_ERROR(with(body + std::string("\1\7")), ErrorCode::data, "a bool of 0 or 1", "7", "");
  // Arrays in arrays: four are read, five are not.
  for (const int levels : {4, 5}) {
    body = key_head("k", 9);
    for (int i = 1; i < levels; ++i) {
      put(&body, uint32_t{9});
      put(&body, uint64_t{1});
    }
    put(&body, uint32_t{0});
    put(&body, uint64_t{1});
    body += 'x';
    if (levels == 4)
      EXPECT_EQ(with(body).keys()[0].bytes, 12 * 3 + 1);
    else
      EXPECT_ERROR(with(body), ErrorCode::data, "at most 4 arrays within each other", "key k", "");
  }
  EXPECT_ERROR(with(key_head("k", 0) + "x" + key_head("k", 0) + "x", 2), ErrorCode::data,
               "every key once", "k twice", "");
  for (const uint32_t alignment : {0u, 4u, 12u, 1u << 21}) {
    body = key_head("general.alignment", 4);
    put(&body, alignment);
    EXPECT_ERROR(with(body), ErrorCode::data, "general.alignment as a multiple of 8",
                 std::to_string(alignment), "");
  }
  EXPECT_ERROR(with(key_head("general.alignment", 7) + '\1'), ErrorCode::data,
               "an integer for general.alignment", "bool", "");
}

TEST_F(GgufBroken, Tensors) {
  const auto with = [&](const std::string& body, uint64_t tensors = 1,
                        const std::string& data = std::string(256, 'd')) {
    Parts p;
    p.tensors = tensors;
    p.body = body;
    p.data = data;
    return open(p.bytes());
  };
  EXPECT_ERROR(with(tensor_info("", {1}, 0, 0)), ErrorCode::data, "tensor names of 1 to 64",
               "one of 0", "");
  EXPECT_ERROR(with(tensor_info(std::string(65, 't'), {1}, 0, 0)), ErrorCode::data,
               "tensor names of 1 to 64", "one of 65", "");
  EXPECT_ERROR(with(tensor_info(std::string("t\0", 2), {1}, 0, 0)), ErrorCode::data,
               "tensor names of printable", "a byte 0x00", "");
  EXPECT_ERROR(with(tensor_info("t", {1, 1, 1, 1, 1}, 0, 0)), ErrorCode::data,
               "at most 4 extents for tensor t", "5", "");
  EXPECT_ERROR(with(tensor_info("t", {4, 0}, 0, 0)), ErrorCode::data, "extents of at least 1",
               "0 as extent 1", "");
  EXPECT_ERROR(with(tensor_info("t", {uint64_t{1} << 33, uint64_t{1} << 33}, 0, 0)),
               ErrorCode::data, "a product below 2^63", "8589934592 as extent 1", "");
  EXPECT_ERROR(with(tensor_info("t", {uint64_t{1} << 63}, 0, 0)), ErrorCode::data,
               "extents of at least 1", "9223372036854775808", "");
  EXPECT_ERROR(with(tensor_info("t", {4}, 4, 0)), ErrorCode::unsupported,
               "a known tensor type for tensor t", "4", "newer version");
  EXPECT_ERROR(with(tensor_info("t", {31}, 8, 0)), ErrorCode::data,
               "rows of a multiple of 32 elements for tensor t of type Q8_0", "rows of 31", "");
  EXPECT_ERROR(with(tensor_info("t", {uint64_t{1} << 62}, 28, 0)), ErrorCode::data,
               "a size below 2^63 bytes for tensor t", "4611686018427387904 elements of F64", "");
  EXPECT_ERROR(with(tensor_info("t", {4}, 0, 32)), ErrorCode::data, "at offset 0", "offset 32", "");
  EXPECT_ERROR(with(tensor_info("t", {4}, 0, 0) + tensor_info("u", {4}, 0, 16), 2), ErrorCode::data,
               "tensor u", "offset 16", "");
  EXPECT_ERROR(with(tensor_info("t", {65}, 0, 0)), ErrorCode::data, "260 bytes for tensor t",
               "256 bytes up to the end", "");
  EXPECT_ERROR(with(tensor_info("t", {1}, 0, 0), 1, ""), ErrorCode::data, "4 bytes for tensor t",
               "0 bytes up to the end", "");
  EXPECT_ERROR(with(tensor_info("t", {4}, 0, 0)), ErrorCode::data, "to end with its last tensor",
               "bytes", "");
  EXPECT_ERROR(with(tensor_info("t", {4}, 0, 0) + tensor_info("t", {4}, 0, 32), 2), ErrorCode::data,
               "every tensor once", "t twice", "");
  // What is good: without padding at the end, with it, and a scalar.
  EXPECT_EQ(with(tensor_info("t", {4}, 0, 0), 1, std::string(16, 'd')).tensors()[0].bytes, 16);
  EXPECT_EQ(with(tensor_info("t", {4}, 0, 0), 1, std::string(32, 'd')).tensors()[0].bytes, 16);
  EXPECT_EQ(with(tensor_info("t", {}, 0, 0), 1, std::string(4, 'd')).tensors()[0].elements(), 1);
}

// Thousands of small changes to good files: they load or throw, and what loads can be read.
TEST(GgufBytes, NoSequenceCrashes) {
  const std::string good = read_file(kFixture);
  std::mt19937 random(5);
  int loaded = 0, refused = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string bytes = good;
    // Most of what can go wrong is in the header, the first 1500 bytes.
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int c = 0; c < changes; ++c) {
      const size_t at = random() % (random() % 8 == 0 ? bytes.size() : 1500);
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
          break;
        case 2:
          bytes[at] = static_cast<char>(random() % 2 ? 0xff : 0);
          break;
        default:
          bytes.resize(random() % 4 == 0 ? at + 1 : bytes.size());
      }
      if (bytes.size() < 1500) break;
    }
    try {
      const GgufReader file("bytes",
                            {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
      ++loaded;
      for (const GgufKey& key : file.keys()) {
        EXPECT_LE(file.brief(key).size(), 1000u);
        try {
          static_cast<void>(file.integers(key));
          static_cast<void>(file.strings(key));
        } catch (const Error&) {
        }
      }
      for (const GgufTensor& t : file.tensors()) {
        ASSERT_GE(t.data, file.tensors()[0].data);
        if (t.elements() > 1 << 20) continue;
        std::vector<float> out(static_cast<size_t>(t.elements()));
        gguf_decode(t.type, t.data, t.elements(), out.data());
      }
    } catch (const Error& e) {
      ++refused;
      EXPECT_TRUE(e.code() == ErrorCode::data || e.code() == ErrorCode::unsupported) << e.what();
    }
  }
  EXPECT_GT(loaded, 500);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace snug
