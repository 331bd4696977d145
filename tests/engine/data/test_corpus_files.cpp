// From sources to files: folders, links, patterns, and what is left out of them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/core/error.h"
#include "engine/data/corpus.h"
#include "engine/io/files.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

class CorpusFiles : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(tmp_ / name).parent_path());
    write_atomic(tmp_ / name, text);
  }
  std::vector<std::string> expand(const std::vector<std::string>& names,
                                  const std::string& left_out = "") {
    std::vector<std::string> sources, out;
    for (const std::string& n : names) sources.push_back(n.empty() ? tmp_.path() : tmp_ / n);
    for (const CorpusFile& f : expand_corpus(sources, left_out))
      out.push_back(fs::path(f.path).lexically_normal().lexically_relative(tmp_.path()).string());
    return out;
  }
  TempFolder tmp_;
};

using Strings = std::vector<std::string>;

TEST_F(CorpusFiles, FoldersAreWalkedInSortedOrder) {
  for (const char* name : {"b.txt", "a.txt", ".hidden", "sub/c.md", "sub/deep/d.cpp", ".git/e",
                           "build/f", "build-x/g", "builder/h", "sub/build_2/i"})
    put(name, name);
  EXPECT_EQ(expand({""}), (Strings{"a.txt", "b.txt", "builder/h", "sub/c.md", "sub/deep/d.cpp"}));
  fs::create_directory_symlink(tmp_.path(), tmp_ / "loop");
  EXPECT_EQ(expand({""}).size(), 5u);
}

TEST_F(CorpusFiles, LinksToFoldersAreFollowed) {
  TempFolder far;
  fs::create_directories(far / "deep");
  write_atomic(far / "f.txt", "f");
  write_atomic(far / "deep/g.txt", "g");
  put("data/b/x.txt", "x");
  put("data/z/y.txt", "y");
  fs::create_directory_symlink(far.path(), tmp_ / "data/linked");
  fs::create_directory_symlink("z", tmp_ / "data/a");               // there under its own name
  fs::create_directory_symlink(far / "deep", tmp_ / "data/n");      // and so is this, by then
  fs::create_directory_symlink(tmp_.path(), far / "deep/back");     // a circle
  fs::create_directory_symlink("nowhere", tmp_ / "data/dangling");  // nothing
  fs::create_directory_symlink(far.path(), tmp_ / "data/.hidden");
  fs::create_directory_symlink(far.path(), tmp_ / "data/build");
  const Strings all = {"data/b/x.txt", "data/linked/f.txt", "data/linked/deep/g.txt",
                       "data/z/y.txt"};
  EXPECT_EQ(expand({"data"}), all);
  EXPECT_EQ(expand({"data/**/b/*"}), (Strings{"data/b/x.txt"}));
  EXPECT_EQ(expand({"data/**/*.txt"}).size(), 4u);
  EXPECT_EQ(expand({"data/li*/*.txt"}), (Strings{"data/linked/f.txt"}));
  EXPECT_EQ(expand({"data/linked/d*/*"}), (Strings{"data/linked/deep/g.txt"}));
  EXPECT_EQ(expand({"data/[an]/*"}), (Strings{"data/a/y.txt", "data/n/g.txt"}));
}

TEST_F(CorpusFiles, PatternsMatch) {
  for (const char* name : {"a.txt", "b.txt", "b.md", ".c.txt", "x/a.txt", "x/y/a.txt", "[odd].txt"})
    put(name, name);
  EXPECT_EQ(expand({"*.txt"}), (Strings{"[odd].txt", "a.txt", "b.txt"}));
  EXPECT_EQ(expand({"?.txt"}), (Strings{"a.txt", "b.txt"}));
  EXPECT_EQ(expand({"[b-z].*"}), (Strings{"b.md", "b.txt"}));
  EXPECT_EQ(expand({"**/a.txt"}), (Strings{"a.txt", "x/a.txt", "x/y/a.txt"}));
  EXPECT_EQ(expand({"x/**"}), (Strings{"x/a.txt", "x/y/a.txt"}));
  EXPECT_EQ(expand({"**/**/y/*"}), (Strings{"x/y/a.txt"}));
  EXPECT_EQ(expand({"*/*.txt"}), (Strings{"x/a.txt"}));
  EXPECT_EQ(expand({".*.txt"}), (Strings{".c.txt"}));
  EXPECT_EQ(expand({"[odd].txt"}), (Strings{"[odd].txt"}));  // a file of that name wins
  EXPECT_EQ(expand({"b.md", "*.txt", "a.txt", "x/../b.md"}),
            (Strings{"b.md", "[odd].txt", "a.txt", "b.txt"}));
}

// A run inside the folder of its texts: what it writes is none of them.
TEST_F(CorpusFiles, AFolderMayBeLeftOut) {
  for (const char* name : {"a.txt", "run/log.txt", "run/sub/b.txt", "x/run/c.txt", "running/d.txt"})
    put(name, name);
  const std::string run = tmp_ / "run";
  const Strings others = {"a.txt", "running/d.txt", "x/run/c.txt"};
  EXPECT_EQ(expand({""}, run), others);
  EXPECT_EQ(expand({""}, run + "/"), others);
  EXPECT_EQ(expand({""}, tmp_ / "x/../run"), others);
  fs::create_directory_symlink(run, tmp_ / "link");
  EXPECT_EQ(expand({""}, tmp_ / "link"), others);
  EXPECT_EQ(expand({"**/*.txt"}, run), others);
  EXPECT_EQ(expand({"*/*.txt"}, run), (Strings{"running/d.txt"}));
  EXPECT_EQ(expand({"run*/*.txt"}, run), (Strings{"running/d.txt"}));
  EXPECT_EQ(expand({""}, tmp_ / "none").size(), 5u);
  // What is named is meant.
  EXPECT_EQ(expand({"run"}, run), (Strings{"run/log.txt", "run/sub/b.txt"}));
  EXPECT_EQ(expand({"run/log.txt", "run/*/b.txt"}, run), (Strings{"run/log.txt", "run/sub/b.txt"}));
}

// What earlier runs made is no text, or there would be more of it with every run.
TEST_F(CorpusFiles, FoldersOfRunsModelsAndTokenizersAreLeftOut) {
  for (const char* name :
       {"a.txt", "r/config.resolved.yaml", "r/metrics.jsonl", "r/log.txt", "r/final/merges.txt",
        "x/planned/config.resolved.yaml", "x/planned/plan.json", "x/planned/b.txt", "m/config.json",
        "m/weights-00001-of-00002.safetensors", "m/readme.txt", "lora/adapter_config.json",
        "lora/adapter_model.safetensors", "lora/c.txt", "kept/COMPLETE", "kept/snug_state.json",
        "kept/d.txt", "tok/tokenizer.json", "tok/merges.txt"})
    put(name, name);
  for (const char* name : {"bert/vocab.txt", "bert/tokenizer_config.json", "old/config.json",
                           "old/pytorch_model.bin", "old/f.txt"})
    put(name, name);
  const std::string tokenizer =
      R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [)";
  put("t.json", "\n" + tokenizer + "]}");
  // Less than that is a folder of the user's.
  const Strings mine = {"a.txt",
                        "b.json",
                        "mine/COMPLETE",
                        "mine/config.json",
                        "mine/config.resolved.yaml",
                        "mine/e.txt",
                        "mine/merges.txt",
                        "mine2/metrics.jsonl",
                        "mine2/tokenizer.json",
                        "mine2/w.safetensors"};
  for (const std::string& name : mine) put(name, name == "b.json" ? "[" + tokenizer + "]}]" : "");
  EXPECT_EQ(expand({""}), mine);
  EXPECT_EQ(expand({"**/*.txt"}), (Strings{"a.txt", "mine/e.txt", "mine/merges.txt"}));
  EXPECT_EQ(expand({"*/*.txt"}), (Strings{"mine/e.txt", "mine/merges.txt"}));
  std::vector<std::string> products;
  expand_corpus({tmp_.path(), tmp_ / "**/*.txt", tmp_ / "*/*.txt"}, tmp_ / "m", &products);
  for (std::string& folder : products)
    folder = fs::path(folder).lexically_relative(tmp_.path()).string();
  EXPECT_EQ(products, (Strings{"bert", "kept", "lora", "old", "r", "tok", "x/planned", "t.json"}));
  EXPECT_EQ(products_text(products), "8 runs, models or tokenizers, e.g. bert");
  EXPECT_EQ(products_text({"a\nb"}), "1 run, model or tokenizer, e.g. a\\x0ab");
  // What is named is meant, and links lead to what they lead to.
  EXPECT_EQ(
      expand({"r/final/merges.txt", "m/*.txt", "tok"}),
      (Strings{"r/final/merges.txt", "m/readme.txt", "tok/merges.txt", "tok/tokenizer.json"}));
  for (const char* name : {"m", "r", "kept", "old", "lora"})
    EXPECT_ERROR(expand({name}), ErrorCode::data, "a folder of texts, " + (tmp_ / name),
                 "a run or a model", "name the files");
  EXPECT_EQ(expand({"r/*.txt"}), (Strings{"r/log.txt"}));
  fs::create_directory_symlink(tmp_ / "x/planned", tmp_ / "link");
  EXPECT_EQ(expand({""}), mine);
  for (const char* name : {"a.txt", "b.json", "mine", "mine2"}) fs::remove_all(tmp_ / name);
  EXPECT_ERROR(expand({""}), ErrorCode::data, "files in the folder",
               "none but 9 runs, models or tokenizers, e.g. ", "name the files");
  EXPECT_ERROR(expand({"m*/*.txt"}), ErrorCode::data, "files that match",
               "none but 1 run, model or tokenizer, e.g. " + tmp_.path() + "/m, which is left out",
               "name the files");
}

TEST_F(CorpusFiles, MissingSourcesAreErrors) {
  EXPECT_ERROR(expand_corpus({}), ErrorCode::data, "training text", "an empty list", "train_data");
  EXPECT_ERROR(expand({"a.txt,b.txt"}), ErrorCode::data, tmp_ / "a.txt,b.txt",
               "nothing of that name", "several are a list: [a.txt, b.txt]");
  EXPECT_ERROR(expand({"no.txt"}), ErrorCode::data, tmp_ / "no.txt", "nothing of that name",
               "path");
  EXPECT_ERROR(expand({"*.txt"}), ErrorCode::data, "match '" + tmp_.path(), "none", "**");
  EXPECT_ERROR(expand({""}), ErrorCode::data, "files in the folder", "none", "path");
  EXPECT_ERROR(expand_corpus({"/dev/null"}), ErrorCode::data, "'/dev/null'", "a device", "path");
}

TEST_F(CorpusFiles, AFolderThatMayNotBeReadIsNamed) {
  put("locked/a.txt", "a");
  fs::permissions(tmp_ / "locked", fs::perms::none);
  // Root may read anything: it takes another user's rights for the call.
  const bool root = geteuid() == 0;
  fs::permissions(tmp_.path(), fs::perms::all);
  if (root) {
    ASSERT_EQ(seteuid(65534), 0);
  }
  EXPECT_ERROR(expand({"locked"}), ErrorCode::data, "a readable folder " + tmp_.path() + "/locked",
               "Permission denied", "check its permissions, or leave it out");
  if (root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  fs::permissions(tmp_ / "locked", fs::perms::owner_all);
}

}  // namespace
}  // namespace snug
