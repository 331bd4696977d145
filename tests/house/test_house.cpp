// Runs the house rules over the repository, and over small bad trees to see each fault caught.
#include <gtest/gtest.h>

#include "tests/house/checks.h"
#include "tests/house/config_keys.h"
#include "tests/house/error_texts.h"
#include "tests/support/folders.h"

namespace snug::house {
namespace {

// The repository, read once.
const Tree& repository() {
  static const Tree tree = read_tree(source_folder());
  return tree;
}

std::string joined(const Findings& findings) {
  std::string text;
  for (const auto& finding : findings) text += finding + "\n";
  return text;
}

#define EXPECT_CLEAN(findings) EXPECT_EQ(joined(findings), "")

// Exactly one finding, and it says `text`.
void expect_caught(const Findings& findings, const std::string& text) {
  ASSERT_EQ(findings.size(), 1u) << joined(findings);
  EXPECT_NE(findings[0].find(text), std::string::npos) << findings[0];
}

std::string quoted(const std::string& path) {
  return "#include \"" + path + "\"\n";
}

// The rules hold in the repository.

TEST(HouseRepository, IsRead) {
  // The checks below would hold in an empty tree as well: so see that the tree was found, with
  // this file in it and with its include of checks.h.
  ASSERT_TRUE(repository().contains("CMakeLists.txt"));
  ASSERT_TRUE(repository().contains("engine/core/error.h"));
  ASSERT_TRUE(repository().contains("tests/house/test_house.cpp"));
  bool found = false;
  for (const Include& include : parse_includes(repository().at("tests/house/test_house.cpp"))) {
    found = found || (include.kind == '"' && include.path == "tests/house/checks.h");
  }
  EXPECT_TRUE(found);
}

TEST(HouseRepository, IncludesResolve) {
  EXPECT_CLEAN(check_includes_resolve(repository()));
}
TEST(HouseRepository, Layering) {
  EXPECT_CLEAN(check_layering(repository()));
}
TEST(HouseRepository, NoIncludeCycles) {
  EXPECT_CLEAN(check_include_cycles(repository()));
}
TEST(HouseRepository, JsonHeaders) {
  EXPECT_CLEAN(check_json_headers(repository()));
}
TEST(HouseRepository, FileLength) {
  EXPECT_CLEAN(check_file_length(repository()));
}
TEST(HouseRepository, Readmes) {
  EXPECT_CLEAN(check_readmes(repository()));
}
TEST(HouseRepository, PragmaOnce) {
  EXPECT_CLEAN(check_pragma_once(repository()));
}
TEST(HouseRepository, HeaderComments) {
  EXPECT_CLEAN(check_header_comments(repository()));
}
TEST(HouseRepository, Text) {
  EXPECT_CLEAN(check_text(repository()));
}
TEST(HouseRepository, LongTests) {
  ASSERT_NE(repository().at("tests/long.txt"), "");
  EXPECT_CLEAN(check_long_tests(repository()));
}
TEST(HouseRepository, TopLevel) {
  EXPECT_CLEAN(check_top_level(read_top_level(source_folder())));
}
TEST(HouseRepository, ErrorTexts) {
  EXPECT_CLEAN(check_error_texts(repository(), untested_errors()));
}
TEST(HouseRepository, ConfigKeys) {
  EXPECT_CLEAN(check_config_keys(repository(), unread_keys()));
}

// Each fault is caught.

TEST(HouseCatches, UnresolvedInclude) {
  const Tree good = {{"engine/core/a.h", ""},
                     {"engine/core/b.cpp", quoted("engine/core/a.h") + "#include <vector>\n"}};
  EXPECT_CLEAN(check_includes_resolve(good));
  const auto with = [&](const std::string& content) {
    Tree tree = good;
    tree["engine/core/b.cpp"] = content;
    return check_includes_resolve(tree);
  };
  expect_caught(with(quoted("a.h")), "engine/core/b.cpp:1: \"a.h\" is no file");
  expect_caught(with("\n" + quoted("engine/core/gone.h")), "engine/core/b.cpp:2: ");
  expect_caught(with(quoted("../core/a.h")), "\"../core/a.h\" is no file");
  expect_caught(with("  #  include \"a.h\"\n"), "\"a.h\" is no file");
  expect_caught(with("#include <engine/core/a.h>\n"), "is ours; quote it");
  expect_caught(with("#include HEADER\n"), "through a macro");
  for (const char* name : {"engine/core/x.h", "engine/core/x.cu", "engine/core/x.cuh"}) {
    Tree tree = good;
    tree[name] = quoted("a.h");
    expect_caught(check_includes_resolve(tree), std::string(name) + ":1: ");
  }
}

TEST(HouseCatches, ForbiddenArrow) {
  const auto arrow = [](const std::string& from, const std::string& to) {
    return check_layering({{from, quoted(to)}, {to, ""}});
  };
  // file of each top folder (engine and layers: of their first subfolder) and whom it may include
  const std::map<std::string, std::string> file = {
      {"engine", "engine/core/x.h"}, {"quant", "quant/x.h"}, {"layers", "layers/ops/x.h"},
      {"optim", "optim/x.h"},        {"tools", "tools/x.h"}, {"parallel", "parallel/x.h"},
      {"tests", "tests/x.h"}};
  const std::map<std::string, std::set<std::string>> allowed = {
      {"engine", {"engine"}},
      {"quant", {"quant", "engine"}},
      {"layers", {"layers", "engine", "quant"}},
      {"optim", {"optim", "engine", "quant"}},
      {"parallel", {"parallel", "engine", "quant"}},
      {"tools", {"engine", "quant", "layers", "optim", "parallel", "tools"}},
      {"tests", {"engine", "quant", "layers", "optim", "parallel", "tools", "tests"}}};
  for (const auto& [from, from_file] : file) {
    for (const auto& [to, to_file] : file) {
      if (allowed.at(from).contains(to)) {
        EXPECT_CLEAN(arrow(from_file, to_file));
      } else {
        expect_caught(arrow(from_file, to_file), from_file + ":1: includes " + to_file);
      }
    }
  }
  expect_caught(arrow("layers/ops/x.cu", "parallel/x.h"), "layers may include only engine, quant");
}

TEST(HouseCatches, ForbiddenSubfolderArrow) {
  const auto arrow = [](const std::string& from, const std::string& to) {
    return check_layering({{from + "/a.cpp", quoted(to + "/b.h")}, {to + "/b.h", ""}});
  };
  const std::vector<std::string> order = {"core",    "device", "memory", "seams", "simt",
                                          "kernels", "blas",   "io",     "text",  "data"};
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t j = 0; j < order.size(); ++j) {
      const Findings findings = arrow("engine/" + order[i], "engine/" + order[j]);
      if (j <= i) {
        EXPECT_CLEAN(findings);
      } else {
        expect_caught(findings, "besides itself " + order[i] + " may include ");
      }
    }
  }
  EXPECT_CLEAN(arrow("layers/parts", "layers/ops"));
  EXPECT_CLEAN(arrow("layers/models", "layers/parts"));
  EXPECT_CLEAN(arrow("layers/adapters", "layers/ops"));
  EXPECT_CLEAN(arrow("layers/adapters", "layers/parts"));
  EXPECT_CLEAN(arrow("layers/models", "layers/adapters"));
  EXPECT_CLEAN(arrow("layers/tasks", "layers/models"));
  expect_caught(arrow("layers/ops", "layers/parts"), "ops may include nothing else");
  expect_caught(arrow("layers/parts", "layers/models"), "parts may include only ops");
  expect_caught(arrow("layers/models", "layers/tasks"),
                "models may include only adapters, ops, parts");
  expect_caught(arrow("layers/parts", "layers/adapters"), "parts may include only ops");
  expect_caught(check_layering({{"engine/misc/a.h", ""}}), "no folder engine/misc");
  expect_caught(check_layering({{"engine/a.h", ""}}), "engine/a.h:1: the layout has no folder");
}

TEST(HouseCatches, IncludeCycle) {
  Tree tree = {{"optim/a.h", quoted("optim/b.h") + quoted("optim/c.h")},
               {"optim/b.h", quoted("optim/c.h")},
               {"optim/c.h", ""}};
  EXPECT_CLEAN(check_include_cycles(tree));
  tree["optim/c.h"] = quoted("optim/a.h");
  const Findings findings = check_include_cycles(tree);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0], "include cycle: optim/a.h -> optim/b.h -> optim/c.h -> optim/a.h");
  expect_caught(check_include_cycles({{"optim/a.h", quoted("optim/a.h")}}),
                "optim/a.h -> optim/a.h");
}

TEST(HouseCatches, JsonInAHeader) {
  const std::string whole = "#include <nlohmann/json.hpp>\n";
  EXPECT_CLEAN(check_json_headers({{"engine/io/json.h", whole},
                                   {"optim/a.cpp", whole},
                                   {"tests/a.h", whole},
                                   {"optim/a.h", "#include <nlohmann/json_fwd.hpp>\n"}}));
  expect_caught(check_json_headers({{"optim/a.h", whole}}), "optim/a.h");
}

TEST(HouseCatches, LongFile) {
  const auto lines = [](int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += "x\n";
    return text;
  };
  EXPECT_CLEAN(check_file_length({{"optim/a.cpp", lines(600)}, {"optim/a.json", lines(601)}}));
  for (const char* kind : {".h", ".cpp", ".cu", ".cuh", ".py", ".sh"}) {
    const std::string path = std::string("tools/a") + kind;
    EXPECT_CLEAN(check_file_length({{path, lines(600)}}));
    expect_caught(check_file_length({{path, lines(601)}}), path + ":601: the limit is 600 lines");
    expect_caught(check_file_length({{path, lines(600) + "x"}}), path + ":601: ");
  }
  expect_caught(check_file_length({{".ci/run", lines(601)}}), ".ci/run:601: ");
}

TEST(HouseCatches, MissingReadme) {
  Tree tree = {{"engine/core/a.h", ""},          {"engine/README.md", "idea\n"},
               {"engine/core/README.md", "i\n"}, {"tests/engine/core/t.cpp", ""},
               {"tests/optim/t.cpp", ""},        {"tests/README.md", "idea\n"}};
  EXPECT_CLEAN(check_readmes(tree));
  for (const char* path : {"engine/README.md", "engine/core/README.md", "tests/README.md"}) {
    Tree bad = tree;
    bad.erase(path);
    const std::string folder = std::filesystem::path(path).parent_path().string();
    expect_caught(check_readmes(bad), folder + "/ holds sources and has no README.md");
    bad[path] = "";
    expect_caught(check_readmes(bad), std::string(path) + ":1: opens with an empty line");
  }
  tree["tests/support/case.h"] = "";
  expect_caught(check_readmes(tree), "tests/support/ holds sources");
}

TEST(HouseCatches, MissingPragmaOnce) {
  EXPECT_CLEAN(check_pragma_once({{"optim/a.h", "// About a.\n\n#pragma once\nint a();\n"},
                                  {"optim/b.cuh", "/* About\n   b. */\n#pragma once\n"},
                                  {"optim/a.cpp", "int a();\n"}}));
  expect_caught(check_pragma_once({{"optim/a.h", "// About a.\nint a();\n"}}), "optim/a.h:2: ");
  expect_caught(check_pragma_once({{"optim/a.cuh", "int a();\n#pragma once\n"}}), "optim/a.cuh:1");
  expect_caught(check_pragma_once({{"optim/a.h", "// #pragma once\n"}}), "optim/a.h:1: ");
  expect_caught(check_pragma_once({{"optim/a.h", ""}}), "optim/a.h:0: ");
}

TEST(HouseCatches, MissingHeaderComment) {
  for (const char* top : {"engine/core/", "layers/ops/", "optim/", "quant/", "parallel/"}) {
    const std::string path = std::string(top) + "a.h";
    EXPECT_CLEAN(check_header_comments({{path, "// About a.\n#pragma once\nint a();\n"}}));
    EXPECT_CLEAN(check_header_comments({{path, "#pragma once\n\n// About a.\nint a();\n"}}));
    expect_caught(check_header_comments({{path, "#pragma once\n\nint a();\n"}}), path + ":1: ");
    expect_caught(check_header_comments({{path, ""}}), path + ":1: ");
  }
}

TEST(HouseCatches, UntidyText) {
  const std::string mark = std::string("TO") + "DO", other_mark = std::string("FIX") + "ME";
  EXPECT_CLEAN(check_text({{"optim/a.h", "int a();\n\n// " + mark + "S" + other_mark + "_x\n"},
                           {"tests/golden/text.json", "\t" + mark + " \n"},
                           {"tools/a.sh", "\techo\n"}}));
  expect_caught(check_text({{"optim/a.h", "int\ta();\n"}}), "optim/a.h:1: a tab");
  expect_caught(check_text({{"README.md", "one\ntwo \n"}}), "README.md:2: white space");
  expect_caught(check_text({{"CMakeLists.txt", "one\r\n"}}), "CMakeLists.txt:1: white space");
  expect_caught(check_text({{".clang-format", "one\t\n"}}), ".clang-format:1: white space");
  expect_caught(check_text({{"optim/README.md", "x " + mark + ": y\n"}}), ":1: " + mark);
  expect_caught(check_text({{"tools/a.py", "#" + other_mark + "\n"}}), ":1: " + other_mark);
}

TEST(HouseCatches, StrayTopLevelName) {
  std::vector<std::string> names = {"CMakeLists.txt", "README.md",  "engine", "layers", "optim",
                                    "quant",          "parallel",   "tools",  "tests",  ".git",
                                    "build",          "build-asan", "runs"};
  EXPECT_CLEAN(check_top_level(names));
  names.push_back("docs");
  expect_caught(check_top_level(names), "docs: the top level is fixed");
  names.pop_back();
  names.erase(names.begin() + 1);
  expect_caught(check_top_level(names), "README.md: missing");
}

TEST(HouseCatches, UntestedMessage) {
  const std::string head =
      "[[noreturn]] void wrong(const char* w) {\n  fail(ErrorCode::data, w, x, y);\n}\n";
  const auto found = [&](const std::string& code, const std::string& test,
                         const std::vector<Untested>& exempt = {}) {
    return check_error_texts({{"engine/io/a.cpp", head + code}, {"tests/engine/io/a.cpp", test}},
                             exempt);
  };
  const std::string said =
      "// \"in a comment\"\nfail(ErrorCode::usage, fmt::format(\"seven {} of honey\", n), x,\n "
      "\"buy \"\n \"more bees\");";
  expect_caught(found(said, ""),
                "engine/io/a.cpp:5: no test says what this says: seven {} of honey");
  expect_caught(found(said, "// \"buy more bees\"\n"), "no test says");
  expect_caught(found(said, "\"buy more\""), "no test says");
  EXPECT_CLEAN(found(said, "\"if you buy more bees\""));
  EXPECT_CLEAN(found(said, "\"buy more\"\n  \" bees\""));
  EXPECT_CLEAN(found(said, "R\"(buy more bees)\""));
  EXPECT_CLEAN(found(said, "", {{"engine/io/a.cpp", "more bees", "there are none"}}));
  expect_caught(found(said, "\"buy more bees\"", {{"engine/io/a.cpp", "more bees", ""}}),
                "fits no");
  for (const char* code : {"shape", "internal"})
    EXPECT_CLEAN(
        found("fail(ErrorCode::" + std::string(code) + ", \"a long sentence\", x, y);", ""));
  // Text that comes from elsewhere is asked for there; a helper's callers are such places.
  EXPECT_CLEAN(found("fail(ErrorCode::usage, expected, found, advice);", ""));
  expect_caught(found("wrong(\"ten of these\");", ""), "ten of these");
  EXPECT_CLEAN(found("wrong(\"ten of these\");", "\"ten of these\""));
  EXPECT_CLEAN(found("error.wrong(\"ten of these\"); call_wrong(\"ten of these\");", ""));
  // A table of rows says them as it stands.
  Tree tree = {{"engine/io/a.cpp", head + said},
               {"tests/tools/e2e/bad/a.txt", "  try:   buy more bees\n"}};
  EXPECT_CLEAN(check_error_texts(tree, {}));
  tree["tests/tools/e2e/bad/a.txt"] = "  try:   buy more\n";
  expect_caught(check_error_texts(tree, {}), "more bees");
  // So are those of a function that a header declares, with the code of its definition, and an
  // exception of our own.
  const auto elsewhere = [&](const std::string& call, const std::string& body) {
    return check_error_texts(
        {{"engine/io/b.h",
          "[[noreturn]] void refuse_all(const char* w);\nclass Lost : public Error {\n};\n"},
         {"engine/io/b.cpp",
          "void refuse_all(const char* w) {\n  fail(" + body + ", w, x, y);\n}\n"},
         {"engine/io/c.cpp", call}},
        {});
  };
  expect_caught(elsewhere("refuse_all(\"ten of these\");", "ErrorCode::usage"),
                "engine/io/c.cpp:1: no test says what this says: ten of these");
  EXPECT_CLEAN(elsewhere("refuse_all(\"ten of these\");", "ErrorCode::internal"));
  expect_caught(elsewhere("throw Lost(\"ten of those\");", "ErrorCode::internal"), "ten of those");
  // Words that two calls share say nothing of either.
  const std::string two = "wrong(\"a good number of apples\");\nwrong(\"a good number of pears\");";
  expect_caught(found(two, "\"a good number of apples\""),
                ":5: no test says what this says: a good number of pears");
}

TEST(HouseCatches, KeyWithoutEffectOrTest) {
  const Tree good = {
      {"tools/config/keys.cpp",
       "{.name = \"max_steps\", .field = &C::max_steps},\n{.name = \"kw\"},\n{.name = \"power\", "
       ".field = &C::power}"},
      {"tools/config/check_config.cpp",
       "c.max_steps;\n}\n\nRunSizes resolve_sizes() {\n  power_of(c);\n}\n\nint power_of(C c) {\n  "
       "return c.power;\n}\n"},
      {"tools/trainer/a.cpp", "config().max_steps; resolve_sizes(config)"},
      {"tests/tools/a.cpp", "\"max_steps=3\", \"kw\", power"}};
  EXPECT_CLEAN(check_config_keys(good, {}));
  const auto with = [&](const std::string& path, const std::string& content) {
    Tree tree = good;
    tree[path] = content;
    return check_config_keys(tree, {});
  };
  expect_caught(
      with("tools/trainer/a.cpp",
           "config.max_steps_2; max_steps; config.max_steps(); metrics.max_steps; resolve_sizes()"),
      "max_steps: nothing reads it");
  EXPECT_CLEAN(with("tools/trainer/a.cpp", "&RunConfig::max_steps; resolve_sizes(config)"));
  expect_caught(with("tools/config/check_config.cpp", "c.power"), "power: nothing reads it");
  expect_caught(with("tools/trainer/a.cpp", "config.max_steps"), "power: nothing reads it");
  expect_caught(with("tests/tools/a.cpp", "max_steps, powers, kw"), "power: no test");
  expect_caught(with("tools/config/keys.cpp", ""), "no keys found");
  expect_caught(check_config_keys(good, {{"power", "why"}}), "power: it is read");
  Tree bad = good;
  bad["tools/config/check_config.cpp"] = "RunSizes resolve_sizes() {\n}\n";
  EXPECT_CLEAN(check_config_keys(bad, {{"power", "why"}}));
}

TEST(HouseCatches, LongTestsThatAreNone) {
  const auto with = [](const std::string& list) {
    return check_long_tests(
        {{"tests/long.txt", list}, {"tests/a.cpp", "TEST_P(Suite, Test) {}\n"}});
  };
  EXPECT_CLEAN(with("# why\n\nSuite.Test\n"));
  expect_caught(with("# why\nSuite.Gone\n"), "tests/long.txt:2: Suite.Gone is no test");
  expect_caught(with("Suite\n"), "tests/long.txt:1: Suite is no test");
}

}  // namespace
}  // namespace snug::house
