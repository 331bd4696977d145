// snug tokenizer train | encode | decode.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/data/corpus.h"
#include "engine/text/bpe_trainer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/unicode.h"
#include "tools/cli/argument_parser.h"
#include "tools/cli/dispatch.h"
#include "tools/commands.h"

namespace snug {
namespace {

constexpr size_t kPrintBytes = 1 << 16;

// A line on stderr that rewrites itself on a terminal and is silent elsewhere.
class Progress {
 public:
  ~Progress() { clear(); }
  void show(const std::string& text) {
    if (!terminal_) return;
    fmt::print(stderr, "\r\x1b[K{}", text);
    std::fflush(stderr);
    shown_ = true;
  }
  void clear() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
    shown_ = false;
  }

 private:
  bool terminal_ = isatty(2) != 0;
  bool shown_ = false;
};

// True if `path` is to become a folder: it is one, or its name does not end in .json.
bool is_folder_name(const std::string& path) {
  return std::filesystem::is_directory(path) || path.ends_with('/') || !path.ends_with(".json");
}

int train(const Arguments& arguments) {
  int64_t vocab_size = 0;
  BpeTrainerOptions options;
  std::string output;
  ReadOptions read;
  std::vector<std::string> sources, special_tokens;
  ArgumentParser parser("tokenizer train",
                        "learns a byte-level BPE tokenizer, as GPT-2 has one, from text.");
  parser.option("--vocab-size", vocab_size, "N", "tokens, the 256 bytes and special ones included")
      .required()
      .option("--output", output, "PATH",
              "tokenizer.json to write, or a folder for it with vocab.json and merges.txt")
      .required()
      .option("--min-frequency", options.min_frequency, "N", "pairs seen less often are not merged")
      .options("--special-token", special_tokens, "TEXT",
               "a token never split, may be repeated; the first marks the end of a text (default "
               "<|endoftext|>)")
      .option("--text-column", read.text_column, "NAME",
              "key of the text in .jsonl, column in .csv and .tsv")
      .positionals(
          "FILE", sources,
          "text, .jsonl, .csv or .tsv files, also as .gz or .zst, folders, or patterns such "
          "as 'data/*.txt'")
      .required()
      .example("snug tokenizer train --vocab-size 2048 --output tok.json corpus.txt")
      .example(
          "snug tokenizer train --vocab-size 32000 --output tok/ --min-frequency 2 'data/**/*.md'")
      .example(
          "snug tokenizer train --vocab-size 8192 --output tok.json --special-token '<|end|>' "
          "--special-token '<|user|>' chats.jsonl");
  if (!parser.parse(arguments)) return 0;
  options.vocab_size = vocab_size;
  if (!special_tokens.empty()) options.special_tokens = special_tokens;
  if (options.min_frequency < 0)
    fail(ErrorCode::usage, "--min-frequency of at least 0",
         fmt::format("{}", options.min_frequency), "--min-frequency 2");
  if (output.empty())
    fail(ErrorCode::usage, "a path for --output", "an empty one", "--output tok.json");

  Progress progress;
  options.progress = [&](int64_t done, int64_t wanted) {
    progress.show(fmt::format("merging: {} of {} tokens", done, wanted));
  };
  BpeTrainer trainer(options);
  const std::vector<CorpusFile> files = expand_corpus(sources);
  int64_t bytes = 0;
  const CorpusReport report = for_each_piece(files, read, [&](std::string_view piece, bool) {
    trainer.feed(piece);
    bytes += static_cast<int64_t>(piece.size());
    progress.show(fmt::format("reading: {}", human_bytes(bytes)));
  });
  const Tokenizer tokenizer = trainer.train();
  progress.clear();
  if (is_folder_name(output)) {
    tokenizer.save(output);
  } else {
    tokenizer.save_json(output);
  }

  fmt::print("text: {} in {} file{}, {} document{}, {} distinct words\n", human_bytes(report.bytes),
             report.files, report.files == 1 ? "" : "s", report.documents,
             report.documents == 1 ? "" : "s", trainer.distinct_words());
  if (report.skipped > 0)
    fmt::print("skipped: {} that are not UTF-8 text, for example {}\n", report.skipped,
               report.first_skipped);
  fmt::print("tokenizer: {} tokens, {} merges, written to {}\n", tokenizer.vocab_size(),
             tokenizer.merge_count(), output);
  if (tokenizer.vocab_size() < vocab_size)
    fmt::print("note: the text had pairs for {} tokens, not for {}; more text gives more\n",
               tokenizer.vocab_size(), vocab_size);
  return 0;
}

std::string read_input() {
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), stdin))
    text.append(buffer.data(), got);
  if (std::ferror(stdin))
    fail(ErrorCode::data, "text on standard input", "a read error", "check what is piped in");
  return text;
}

int encode(const Arguments& arguments) {
  std::string path;
  bool lines = false;
  ArgumentParser parser("tokenizer encode", "prints the ids of the text on standard input.");
  parser.option("--tokenizer", path, "PATH", "tokenizer.json, or a folder with a tokenizer")
      .required()
      .flag("--lines", lines, "each line by itself, one line of ids each, without its line break")
      .example("snug tokenizer encode --tokenizer tok.json < text.txt")
      .example("printf 'Hello world' | snug tokenizer encode --tokenizer run1/final");
  if (!parser.parse(arguments)) return 0;
  const Tokenizer tokenizer = Tokenizer::load(path);
  const std::string text = read_input();
  std::vector<int32_t> ids;
  std::string out;
  const auto print = [&] {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out += ' ';
      out += fmt::format_int(ids[i]).str();
      if (out.size() < kPrintBytes) continue;
      std::fwrite(out.data(), 1, out.size(), stdout);
      out.clear();
    }
    out += '\n';
  };
  if (!lines) {
    tokenizer.encode(text, ids);
    print();
  }
  for (std::string_view rest = text; lines && !rest.empty();) {
    const size_t end = rest.find('\n');
    ids.clear();
    tokenizer.encode(rest.substr(0, end), ids);
    print();
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
  return 0;
}

// Ids separated by blanks, commas or brackets, so that what encode and most tools print is read.
std::vector<int32_t> parse_ids(std::string_view text, int64_t vocab_size) {
  std::vector<int32_t> ids;
  int64_t line = 1;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '\n') ++line;
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == ',' || c == '[' || c == ']') {
      ++at;
      continue;
    }
    int32_t id = -1;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + at, end, id);
    const size_t length = std::min<size_t>(text.find_first_of(" \n\t\r,[]", at), text.size()) - at;
    if (error != std::errc() || rest != text.data() + at + length || id < 0 || id >= vocab_size)
      fail(ErrorCode::data, fmt::format("ids from 0 to {}", vocab_size - 1),
           fmt::format("\"{}\" (standard input:{})",
                       sanitize_utf8(text.substr(at, std::min<size_t>(length, 40))), line),
           "check that the ids come from this tokenizer");
    ids.push_back(id);
    at += length;
  }
  return ids;
}

int decode(const Arguments& arguments) {
  std::string path;
  bool skip_special = false;
  ArgumentParser parser("tokenizer decode",
                        "prints the text of the ids on standard input, byte for byte.");
  parser.option("--tokenizer", path, "PATH", "tokenizer.json, or a folder with a tokenizer")
      .required()
      .flag("--skip-special", skip_special, "leave special tokens such as <|endoftext|> out")
      .example("echo 72 105 | snug tokenizer decode --tokenizer tok.json")
      .example(
          "snug tokenizer encode --tokenizer tok.json < a.txt | "
          "snug tokenizer decode --tokenizer tok.json");
  if (!parser.parse(arguments)) return 0;
  const Tokenizer tokenizer = Tokenizer::load(path);
  const std::vector<int32_t> ids = parse_ids(read_input(), tokenizer.vocab_size());
  const std::string text = tokenizer.decode(ids, skip_special);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

constexpr const char* kEpilog = R"(
examples
  snug tokenizer train --vocab-size 2048 --output tok.json corpus.txt
  snug tokenizer encode --tokenizer tok.json < text.txt
  echo 72 105 | snug tokenizer decode --tokenizer tok.json
)";

}  // namespace

int tokenizer_command(const Arguments& arguments) {
  return run_group({"snug tokenizer",
                    "trains tokenizers; turns text into ids and back",
                    {{"train", "learns a byte-level BPE tokenizer from text", train},
                     {"encode", "text on standard input to ids", encode},
                     {"decode", "ids on standard input to text", decode}},
                    kEpilog},
                   arguments);
}

}  // namespace snug
