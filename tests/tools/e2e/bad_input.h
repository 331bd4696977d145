// The rows of the table of bad inputs: what is given, and the whole message that comes back.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/tools/e2e/workspace.h"

// The named shapes of the other families, as a message lists them behind GPT-2's.
#define NAMED_OTHERS                                                                          \
  "bert-base, bert-base-uncased, bert-base-cased, bert-base-multilingual, bert-large, "       \
  "bert-large-cased, bert-mini, bert-tiny, roberta-base, roberta-large, distilroberta-base, " \
  "distilbert, distilbert-base-uncased, distilbert-base-cased, "                              \
  "distilbert-base-multilingual-cased, "                                                      \
  "smollm2-135m, smollm2-360m, smollm2-1.7b, tinyllama-1.1b, yi-6b, yi-9b, yi-34b, "          \
  "llama-2-7b, llama-2-13b, llama-2-70b, llama-3-8b, llama-3-70b, llama-3.1-8b, "             \
  "llama-3.1-70b, llama-3.2-1b, llama-3.2-3b, llama-3.3-70b, mistral-7b-v0.1, "               \
  "mistral-7b-v0.3, mistral-nemo-12b, qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-3b, qwen2.5-7b, "   \
  "qwen2.5-14b, qwen2.5-32b, qwen2.5-72b, qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, "       \
  "qwen3-14b, qwen3-32b, gemma-2b, gemma-7b, gemma-2-2b, gemma-2-9b, gemma-2-27b, "           \
  "gemma-3-270m, gemma-3-1b, gemma-3-4b-text, gemma-3-12b-text, gemma-3-27b-text, "           \
  "pythia-70m, pythia-160m, pythia-410m, pythia-1b, pythia-1.4b, pythia-2.8b, pythia-6.9b, "  \
  "pythia-12b, gpt-neox-20b, polyglot-ko-1.3b, polyglot-ko-3.8b, polyglot-ko-5.8b, "          \
  "polyglot-ko-12.8b, olmo2-1b, olmo2-7b, olmo2-13b, olmo2-32b, phi-3-mini, phi-3-medium, "   \
  "phi-4, smollm3-3b"

namespace snug::e2e {

// Something made in the workspace before a row runs and removed after it.
class Make {
 public:
  Make(std::nullptr_t) {}
  template <class F>
  Make(F make, bool whole = false) : make_(std::move(make)), whole_(whole) {}
  void operator()(const Workspace& w) const { make_(w); }
  explicit operator bool() const { return static_cast<bool>(make_); }
  // A copy or a folder: what is there where nothing was damaged.
  bool whole() const { return whole_; }

 private:
  std::function<void(const Workspace&)> make_;
  bool whole_ = false;
};

struct BadRow {
  std::string name;
  // Words of a snug command in which @ stands for the workspace; "..." at the front stands for a
  // good `train` command that the words after it change.
  std::vector<std::string> words;
  // All of standard error but the end of its last line, @ as above. <*> stands for any text within
  // a line: numbers of the machine.
  std::string says;
  std::vector<Make> files = {};
  int code = 2;
  std::string input = {};  // standard input
  // How its advice is followed, where followed.h does not find that by itself: what is done to the files
  // first, the command and its standard input (empty: those of the row), and of what is said then a part
  // (empty: nothing, it succeeds).
  std::vector<Make> mend = {};
  std::vector<std::string> then = {};
  std::string then_input = {};
  std::string next = {};
  std::string unfollowed = {};  // why no test follows it; empty: one does
};

// A row whose advice is followed by another command, and after a change of files.
BadRow follows(BadRow row, const std::vector<std::string>& then, const std::vector<Make>& mend = {},
               const std::string& next = "");
BadRow unfollowed(BadRow row, const std::string& why);

// A message with its three parts.
std::string usage(const std::string& expected, const std::string& found, const std::string& advice);
std::string data(const std::string& expected, const std::string& found, const std::string& advice);
std::string unsupported(const std::string& expected, const std::string& found,
                        const std::string& advice);
std::string device(const std::string& expected, const std::string& found,
                   const std::string& advice);
std::string too_small(const std::string& expected, const std::string& found,
                      const std::string& advice);

// A file, a folder, a copy of one that is there.
Make file(const std::string& name, const std::string& content);
Make folder(const std::string& name);
Make copy(const std::string& from, const std::string& to);
// Changes to a file that is there: gone, `bytes` at `at`, the last `count` bytes off, one value of
// a JSON file at a pointer ("/model/type").
Make gone(const std::string& name);
Make bytes(const std::string& name, size_t at, const std::string& content);
Make cut(const std::string& name, size_t count);
Make json(const std::string& name, const std::string& pointer, const Json& value);
// The checksums of a checkpoint made anew after a change, so that the change itself is looked at.
Make sealed(const std::string& name);

// `value` as `size` bytes, the least first.
std::string little(uint64_t value, int size);
// A safetensors file: its header's length, the header, `count` zero bytes of data.
std::string safetensors(const std::string& header, size_t count);
// GGUF: a name or text with its length; a file of version 3 with these keys and tensors.
std::string counted(const std::string& text);
std::string gguf(uint64_t tensors, uint64_t keys, const std::string& rest);

// The rows of tests/tools/e2e/bad/`area`.txt, which needs no compiler:
//
//   [a name]
//   file a.txt "the cat\n"              what is made before, in the words of Make; a word with spaces
//   bytes m/model.safetensors 8 PK      stands in quotes, with \n \t \r \" \\ and \x7f
//   exit 3                              if it is not 2
//   stdin "some text"
//   mend file a.txt "the dog\n"         how its advice is followed: files, commands or a shell's line
//   mend snug tokenizer train ...       (mend snug, mend sh "..."), standard input (mend stdin "...")
//   then snug ... model=gpt2            the command then
//   next expected a file                what is said then; without, it succeeds
//   person a GPU is wanted              why no test follows it
//   snug ... model=gpt3                 the command
//   usage: expected ...                 what it says, to the next empty line and [
//
// The five in the middle stand where followed.h cannot read off the advice what to do.
// Beside the makes below there are `tokens NAME COUNT VOCABULARY`, `sentences NAME COUNT SEED`,
// `file_repeated NAME BEFORE PIECE COUNT` and `bytes_repeated NAME AT BEFORE PIECE COUNT`. <NAMED> in
// a message is NAMED_OTHERS.
std::vector<BadRow> rows_of(const char* area);

// Those that make binary files, or change plans, are code.
std::vector<BadRow> bad_token_files();
std::vector<BadRow> bad_weights();
std::vector<BadRow> bad_gguf();
std::vector<BadRow> bad_quant();
std::vector<BadRow> bad_plans();

}  // namespace snug::e2e
