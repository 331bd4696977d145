// The string of a record, found without a tree: whatever parse_json takes or refuses, so does this.
#include <gtest/gtest.h>

#include <random>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "engine/io/json_record.h"

namespace snug {
namespace {

using Text = std::optional<std::string>;

Text found(const std::string& record, const std::string& key = "text") {
  JsonRecord reader(1 << 20);
  std::string bytes = record;
  const auto text = reader.find(bytes.data(), static_cast<int64_t>(bytes.size()), key);
  if (!text) {
    EXPECT_EQ(bytes, record) << "a record that is refused stays as it is";
    return std::nullopt;
  }
  return std::string(*text);
}

Text by_tree(const std::string& record, const std::string& key = "text") {
  try {
    const nlohmann::json tree = parse_json(record, "r");
    const auto it = tree.is_object() ? tree.find(key) : tree.end();
    if (!tree.is_object() || it == tree.end() || !it->is_string()) return std::nullopt;
    return it->get<std::string>();
  } catch (const Error&) {
    return std::nullopt;
  }
}

const char* const kRecords[] = {
    R"({"text":"a"})",
    "\xef\xbb\xbf { \"text\" :\t\"the cat\" } \r",
    R"({"id":1,"x":[[],{},{"a":[1,2,{"text":"no"}]}],"text":"yes","z":null})",
    R"({"te\u0078t":"by another spelling","t":true,"f":false})",
    R"({"text":"\"\\\/\b\f\n\r\t\u0000\u00e9\u20ac\ud83d\ude00 é€😀"})",
    R"({"text":"","":"","a":-0.5e-3,"b":0,"c":10.25E+7,"d":18446744073709551616})",
    R"({"text":3})",
    R"({"txt":"a"})",
    R"(["text"])",
    R"({})",
    R"({"text":"a","text":"b"})",
    R"({"text":"a","x":{"k":1,"\u006b":2}})",
    R"({"text":"a"} x)",
    R"({"text":"a",})",
    R"({"text":"a","x":[1,]})",
    R"({"text":"a","x":01})",
    R"({"text":"a","x":1.})",
    R"({"text":"a","x":1e999})",
    R"({"text":"a","x":1e-999})",
    R"({"text":"\ud800"})",
    R"({"text":"\ude00"})",
    R"({"text":"\ud800\u0041"})",
    R"({"text":"\u12g4"})",
    R"({"text":"\x"})",
    "{\"text\":\"a\tb\"}",
    R"({"text":"a)",
    R"({"text")",
    R"({"text":"a","x":nul})",
    R"({'text':"a"})",
    ""};

TEST(JsonRecords, AreThoseOfTheTree) {
  int taken = 0;
  for (const std::string record : kRecords) {
    EXPECT_EQ(found(record), by_tree(record)) << record;
    taken += found(record).has_value();
  }
  EXPECT_EQ(taken, 7);
  for (const size_t depth : {510u, 511u, 512u}) {
    const std::string deep =
        "{\"text\":\"a\",\"x\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
    EXPECT_EQ(found(deep), by_tree(deep)) << depth;
    EXPECT_EQ(found(deep).has_value(), depth <= 511);
  }
  const std::string digits = "{\"text\":\"a\",\"x\":" + std::string(400, '9') + "}";
  EXPECT_EQ(found(digits), by_tree(digits));
}

// Records with some bytes changed, taken out, or doubled.
TEST(JsonRecords, MutatedAreThoseOfTheTree) {
  std::mt19937_64 rng(3);
  const std::string signs = "{}[]\",:\\ue1-+.0 tnf\t";
  int taken = 0, refused = 0;
  for (int i = 0; i < 60'000; ++i) {
    std::string record = kRecords[rng() % std::size(kRecords)];
    for (uint64_t n = rng() % 3; n > 0 && !record.empty(); --n) {
      const size_t at = rng() % record.size();
      const char sign = signs[rng() % signs.size()];
      if (rng() % 3 == 0)
        record.insert(record.begin() + static_cast<std::ptrdiff_t>(at), sign);
      else if (rng() % 2 == 0)
        record.erase(at, 1 + rng() % 3);
      else
        record[at] = sign;
    }
    const Text want = by_tree(record);
    ++(want ? taken : refused);
    // What is cut within a character is no UTF-8, which a reader of files refuses before.
    bool ascii = true;
    for (const char c : record) ascii = ascii && static_cast<uint8_t>(c) < 0x80;
    if (!ascii && !want) continue;
    ASSERT_EQ(found(record), want) << record;
  }
  EXPECT_GT(taken, 5000);
  EXPECT_GT(refused, 5000);
}

TEST(JsonRecords, KeysHaveABound) {
  std::string wide = "{\"text\":\"a\"";
  for (int i = 0; i < 40'000; ++i) wide += ",\"" + std::to_string(i) + "\":0";
  wide += "}";
  EXPECT_EQ(found(wide), Text("a"));
  static_assert(JsonRecord::key_bytes(64) == (256 << 10) + 8);
  // 256 KiB of eight bytes each, whatever the record may have.
  JsonRecord narrow(64);
  EXPECT_FALSE(narrow.find(wide.data(), static_cast<int64_t>(wide.size()), "text"));
  EXPECT_LT(narrow.bad(), static_cast<int64_t>(wide.size()));
}

}  // namespace
}  // namespace snug
