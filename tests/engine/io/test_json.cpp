#include <gtest/gtest.h>

#include <random>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "engine/io/text_reader.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

using json = nlohmann::json;

TEST(Json, BuildsTheSameTreeAsTheLibrary) {
  const std::string text = R"( {"a":[1,-2,3.5,{"b":null},[],[[true]]],"c":{},"d":"é\u00e9",
      "e":18446744073709551615,"f":false} )";
  EXPECT_EQ(parse_json(text, "t"), json::parse(text));
  EXPECT_EQ(parse_json("\xef\xbb\xbf[1]", "t"), json::parse("[1]"));
  EXPECT_EQ(parse_json("7", "t"), json(7));
}

TEST(Json, ErrorsHaveAPlace) {
  EXPECT_ERROR(parse_json("{\n \"a\": 1,\n \"a\": 2}", "f.json"), ErrorCode::data, "every key once",
               "f.json:3:5: \"a\" twice", "remove");
  EXPECT_ERROR(parse_json("{\n \"a\" 1}", "f.json"), ErrorCode::data, "valid JSON",
               "f.json:2:6: ", "correct the file");
  EXPECT_ERROR(parse_json("", "f.json"), ErrorCode::data, "valid JSON", "f.json:1:1: ", "correct");
  EXPECT_ERROR(parse_json("[1] 2", "f.json", 10), ErrorCode::data, "valid JSON",
               "f.json:10:5: ", "correct");
  EXPECT_ERROR(parse_json(std::string("[1]\0", 4), "f.json"), ErrorCode::data, "valid JSON",
               "f.json:1:4: a zero byte", "UTF-8");
  EXPECT_ERROR(parse_json("[\"\xff\"]", "f.json"), ErrorCode::data, "valid JSON", "UTF-8",
               "correct");
  EXPECT_ERROR(parse_json(std::string(100000, '['), "f.json"), ErrorCode::data, "512 levels",
               "f.json:1:51", "file you meant");
  EXPECT_ERROR(parse_json("[1e999]", "f.json"), ErrorCode::data, "valid JSON", "1e999", "correct");
}

TEST(Json, TypedValues) {
  const json o = json::parse(R"({"i":12,"s":"12","n":null,"x":1.5,"b":true,"l":["p","q"],
                                 "u":18446744073709551615})");
  const std::string where = "/path/config.json";
  EXPECT_EQ(get_int(o, "i", where), 12);
  EXPECT_EQ(get_int(o, "n", where, 3), 3);
  EXPECT_EQ(get_int(o, "none", where, 4), 4);
  EXPECT_EQ(get_number(o, "x", where), 1.5);
  EXPECT_EQ(get_number(o, "i", where), 12.0);
  EXPECT_EQ(get_number(o, "none", where, 2.5), 2.5);
  EXPECT_TRUE(get_bool(o, "b", where));
  EXPECT_TRUE(get_bool(o, "n", where, true));
  EXPECT_EQ(get_string(o, "s", where), "12");
  EXPECT_EQ(get_string(o, "none", where, "d"), "d");
  EXPECT_EQ(get_strings(o, "l", where), (std::vector<std::string>{"p", "q"}));
  EXPECT_TRUE(get_strings(o, "n", where).empty());
  EXPECT_EQ(get_int_in(o, "i", where, 1, 12), 12);
  EXPECT_EQ(get_int_in(o, "none", where, 1, 12, 5), 5);
  EXPECT_ERROR(get_int(o, "s", where), ErrorCode::data, "an integer for s in /path/config.json",
               "\"12\"", "correct the value of s");
  EXPECT_ERROR(get_int(o, "x", where, 1), ErrorCode::data, "an integer for x", "1.5", "x");
  EXPECT_ERROR(get_int(o, "u", where), ErrorCode::data, "an integer for u", "18446744073709551615",
               "u");
  EXPECT_ERROR(get_int(o, "none", where), ErrorCode::data, "none", "no such key", "none");
  EXPECT_ERROR(get_int(o, "n", where), ErrorCode::data, "for n", "null", "n");
  EXPECT_ERROR(get_number(o, "b", where), ErrorCode::data, "a number for b", "true", "b");
  EXPECT_ERROR(get_bool(o, "i", where), ErrorCode::data, "true or false for i", "12", "i");
  EXPECT_ERROR(get_string(o, "l", where), ErrorCode::data, "a string for l", "a list of 2", "l");
  EXPECT_ERROR(get_strings(o, "s", where), ErrorCode::data, "a list of strings for s", "\"12\"",
               "s");
  EXPECT_ERROR(get_int_in(o, "i", where, 13, 20), ErrorCode::data, "from 13 to 20 for i", "12",
               "i");
  EXPECT_ERROR(get_int(json::array(), "i", where), ErrorCode::data, "a JSON object in /path",
               "a list of 0", "file you meant");
}

// 97 bytes of it are shown, or those of whole characters.
TEST(Json, ALongValueIsCutBetweenCharacters) {
  std::string text = "a", shown = "a";
  while (shown.size() < 95) shown += "\u00E9";
  while (text.size() < 200) text += "\u00E9";
  EXPECT_EQ(json_brief(text), "\"" + shown + "...");
  EXPECT_EQ(json_brief(std::string(200, 'b')), "\"" + std::string(96, 'b') + "...");
  // And of what the parser quotes, wherever its words begin.
  for (const std::string begin : {"[\"", "[\"b"}) {
    std::string found;
    try {
      parse_json(begin + text + text, "f.json");
    } catch (const Error& error) {
      found = error.found();
    }
    EXPECT_GT(found.size(), 290u);
    EXPECT_EQ(text_prefix(found), static_cast<int64_t>(found.size())) << found;
  }
}

TEST(Json, FilesRoundTrip) {
  TempFolder tmp;
  const json value = {{"b", 1}, {"a", {1, 2}}, {"t", "한글"}};
  write_json_file(tmp / "f", value);
  EXPECT_EQ(parse_json_file(tmp / "f"), value);
  EXPECT_EQ(read_file(tmp / "f").back(), '\n');
  EXPECT_ERROR(parse_json_file(tmp / "none"), ErrorCode::data, "none", "No such file", "path");
}

TEST(Json, SurvivesMutation) {
  const std::string base = R"({"a":[1,-2,3.5,{"b":null}],"c":{"x":"\u00e9é"},"d":true})";
  std::mt19937_64 rng(3);
  int64_t good = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text = base;
    text[rng() % text.size()] = static_cast<char>(rng());
    if (trial % 3 == 0) text.resize(rng() % text.size());
    try {
      const json parsed = parse_json(text, "f");
      EXPECT_EQ(parsed, json::parse(text)) << text;
      ++good;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data);
    }
  }
  EXPECT_GT(good, 100);
}

}  // namespace
}  // namespace snug
