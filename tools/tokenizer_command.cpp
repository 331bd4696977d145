// snug tokenizer train | encode | decode.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/data/corpus.h"
#include "engine/device/processors.h"
#include "engine/io/text_reader.h"
#include "engine/text/bpe_trainer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/unicode.h"
#include "tools/cli/argument_parser.h"
#include "tools/cli/dispatch.h"
#include "tools/cli/output_file.h"
#include "tools/cli/terminal.h"
#include "tools/commands.h"

namespace snug {
namespace {

constexpr int64_t kQueueBytes = 16 << 20;  // what is held of the text while training
constexpr size_t kPrintBytes = 1 << 16;
constexpr size_t kBatchLines = 1 << 15;

constexpr int64_t kMostThreads = 256, kMostOfAuto = 8;

// 0: auto.
int thread_count(int64_t configured) {
  return static_cast<int>(configured > 0
                              ? configured
                              : std::clamp<int64_t>(find_processors().threads(), 1, kMostOfAuto));
}

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
  bool terminal_ = lively_terminal(2);
  bool shown_ = false;
};

// True if `path` is to become a folder: it is one, or its name does not end in .json.
bool is_folder_name(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) || path.ends_with('/') ||
         !path.ends_with(".json");
}

// Said at once, not when all has been learned: a folder can be made there.
void check_output_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::path place = path;
  while (!place.empty() && !std::filesystem::exists(std::filesystem::symlink_status(place, error)))
    place = place.parent_path();
  if (!place.empty() && !std::filesystem::is_directory(place, error))
    fail(ErrorCode::usage, "--output as a folder, or a file whose name ends in .json",
         fmt::format("{}, which is no folder", place.string()), "--output tok.json");
}

// The files of a tokenizer saved there.
std::vector<std::string> output_files(const std::string& output) {
  if (!is_folder_name(output)) return {output};
  std::vector<std::string> files;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "vocab.txt"})
    files.push_back((std::filesystem::path(output) / name).string());
  return files;
}

// What is done of what is wanted: [#####     ] 512 of 1000
std::string bar(int64_t done, int64_t wanted) {
  constexpr int64_t kWidth = 30;
  const int64_t full = wanted > 0 ? std::min(kWidth, kWidth * done / wanted) : 0;
  return "[" + std::string(static_cast<size_t>(full), '#') +
         std::string(static_cast<size_t>(kWidth - full), ' ') + "]";
}

// Pieces of documents, collected until there are enough to keep all threads busy.
class FeedQueue {
 public:
  FeedQueue(BpeTrainer& trainer, int threads) : trainer_(trainer), threads_(threads) {}
  void add(std::string_view piece) {
    pieces_.emplace_back(piece);
    // A short piece costs more by its place in the list than by its text.
    bytes_ += static_cast<int64_t>(piece.size() + sizeof(std::string));
    if (bytes_ >= kQueueBytes) flush();
  }
  void flush() {
    const std::vector<std::string_view> views(pieces_.begin(), pieces_.end());
    trainer_.feed_batch(views, threads_);
    pieces_.clear();
    bytes_ = 0;
  }

 private:
  BpeTrainer& trainer_;
  int threads_;
  std::vector<std::string> pieces_;
  int64_t bytes_ = 0;
};

int train(const Arguments& arguments) {
  int64_t vocab_size = 0, threads = 0;
  BpeTrainerOptions options;
  std::string output, type = "bpe", quoting = "auto";
  bool cased = false, overwrite = false;
  ReadOptions read;
  std::vector<std::string> sources, special_tokens;
  ArgumentParser parser("tokenizer train",
                        "learns a tokenizer from text: byte-level BPE, as GPT-2 has one, or "
                        "WordPiece, as BERT.");
  parser
      .option("--vocab-size", vocab_size, "N",
              "tokens, special ones included, and of bpe the 256 bytes")
      .required()
      .option("--output", output, "PATH",
              "tokenizer.json to write, or a folder for it with the vocabulary files")
      .required()
      .flag("--overwrite", overwrite, "replace a tokenizer that is there")
      .option("--type", type, "bpe|wordpiece", "the kind of tokenizer")
      .flag("--cased", cased, "wordpiece: keep capitals and accents")
      .option("--limit-alphabet", options.limit_alphabet, "N",
              "wordpiece: only the N most frequent characters")
      .option("--min-frequency", options.min_frequency, "N", "pairs seen less often are not merged")
      .threads(threads,
               "threads that read the text; the result is the same; auto: one per core the process "
               "may use, at most 8",
               kMostThreads)
      .options("--special-token", special_tokens, "TEXT",
               "a token never split, may be repeated; of bpe the first marks the end of a text, "
               "which a folder alone can say of others than <|endoftext|> (default <|endoftext|>, "
               "of wordpiece [PAD] [UNK] [CLS] [SEP] [MASK])")
      .option("--text-column", read.text_column, "NAME",
              "key of the text in .jsonl, column in .csv and .tsv")
      .option("--quoting", quoting, "auto|none|minimal",
              "quotes around fields of .csv and .tsv; auto: those of .csv alone")
      .positionals(
          "FILE", sources,
          "text, .jsonl, .csv or .tsv files, also as .gz or .zst, folders, or patterns such "
          "as 'data/*.txt'")
      .required()
      .example("snug tokenizer train --vocab-size 2048 --output tok.json corpus.txt")
      .example(
          "snug tokenizer train --vocab-size 32000 --output tok/ --min-frequency 2 'data/**/*.md'")
      .example("snug tokenizer train --type wordpiece --vocab-size 30522 --output bert/ corpus.txt")
      .example(
          "snug tokenizer train --vocab-size 8192 --output tok/ --special-token '<|end|>' "
          "--special-token '<|user|>' chats.jsonl");
  if (!parser.parse(arguments)) return 0;
  options.vocab_size = vocab_size;
  read.quotes = parse_quoting(quoting, "--quoting");
  if (type != "bpe" && type != "wordpiece")
    fail(ErrorCode::usage, "--type bpe or wordpiece", "--type " + type,
         "--type bpe for language models, --type wordpiece for BERT");
  if (type == "wordpiece") {
    options.model = TrainedModel::word_piece;
    options.special_tokens = bert_special_tokens();
    options.lowercase = !cased;
  } else if (cased) {
    fail(ErrorCode::usage, "--cased with --type wordpiece only", "--cased with --type bpe",
         "leave it out: BPE keeps capitals");
  } else if (parser.given("--limit-alphabet")) {
    fail(ErrorCode::usage, "--limit-alphabet with --type wordpiece only",
         "--limit-alphabet with --type bpe", "leave it out, or --type wordpiece");
  }
  if (!special_tokens.empty()) options.special_tokens = special_tokens;
  if (options.min_frequency < 0)
    fail(ErrorCode::usage, "--min-frequency of at least 0",
         fmt::format("{}", options.min_frequency), "--min-frequency 2");
  if (is_folder_name(output)) check_output_folder(output);
  const std::vector<std::string> written = output_files(output);
  std::error_code error;
  if (!is_folder_name(output) || std::filesystem::is_directory(output, error))
    for (const std::string& path : written) check_output_file(path, "--output", overwrite);

  Progress progress;
  options.progress = [&](int64_t done, int64_t wanted) {
    progress.show(fmt::format("merging {} {} of {} tokens", bar(done, wanted), done, wanted));
  };
  BpeTrainer trainer(options);
  // tokenizer.json names no roles: of a lone file, the end of a text is the token everyone knows.
  if (!is_folder_name(output) && options.model == TrainedModel::bpe &&
      !options.special_tokens.empty() && options.special_tokens.front() != "<|endoftext|>")
    fail(ErrorCode::usage,
         fmt::format("a folder for --output: a file cannot say that {} ends a text",
                     printable_utf8(options.special_tokens.front(), LineBreaks::shown)),
         output,
         fmt::format("--output {}, or --special-token '<|endoftext|>' first",
                     std::filesystem::path(output).replace_extension().string()));
  std::vector<std::string> products;
  std::vector<CorpusFile> files = expand_corpus(sources, "", &products);
  // A tokenizer that lies with its text is no text of the one that replaces it.
  std::string named;
  std::erase_if(files, [&](const CorpusFile& file) {
    const bool own = std::any_of(written.begin(), written.end(), [&](const std::string& path) {
      std::error_code ignored;
      return std::filesystem::equivalent(file.path, path, ignored);
    });
    if (own && std::find(sources.begin(), sources.end(), file.path) != sources.end())
      named = file.path;
    return own;
  });
  std::erase_if(products, [&](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::equivalent(path, output, ignored) ||
           std::filesystem::equivalent(std::filesystem::path(path).parent_path(), output, ignored);
  });
  if (files.empty())
    fail(ErrorCode::usage, fmt::format("text beside {}, which --overwrite replaces", output),
         "none", "name the files of text, or another --output");
  if (!named.empty())
    fail(ErrorCode::usage, "--output as another file than the text", named + ", which is both",
         "another --output");
  if (parser.given("--text-column") &&
      std::none_of(files.begin(), files.end(),
                   [](const CorpusFile& file) { return has_text_column(file.path); }))
    fail(ErrorCode::usage, "a .jsonl, .csv or .tsv file for --text-column",
         fmt::format("{}, and none in the data", read.text_column),
         "leave it out: other text is read whole");
  FeedQueue queue(trainer, thread_count(threads));
  int64_t bytes = 0;
  const CorpusReport report = for_each_piece(files, read, [&](std::string_view piece, bool) {
    queue.add(piece);
    bytes += static_cast<int64_t>(piece.size());
    progress.show(fmt::format("reading: {}", human_bytes(bytes)));
  });
  queue.flush();
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
  if (report.empty > 0) fmt::print("left out: {} empty\n", report.empty);
  if (!products.empty()) fmt::print("left out: {}\n", products_text(products));
  if (report.quoted_breaks > 0)
    fmt::print(
        "note: {} line breaks inside of quotes, for example at {}; with --quoting none each line "
        "is "
        "a record\n",
        report.quoted_breaks, printable_utf8(report.first_quoted, LineBreaks::shown));
  if (report.skipped > 0)
    fmt::print("skipped: {} that are not UTF-8 text, for example {}\n", report.skipped,
               printable_utf8(report.first_skipped, LineBreaks::shown));
  if (report.no_column > 0)
    fmt::print("skipped: {} table{} without a column \"{}\", for example {}\n", report.no_column,
               report.no_column == 1 ? "" : "s", read.text_column,
               printable_utf8(report.first_no_column, LineBreaks::shown));
  if (options.model == TrainedModel::bpe) {
    fmt::print("tokenizer: {} tokens, {} merges, written to {}\n", tokenizer.vocab_size(),
               tokenizer.merge_count(), output);
  } else {
    fmt::print("tokenizer: {} tokens, written to {}\n", tokenizer.vocab_size(), output);
  }
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
  bool lines = false, special = false;
  int64_t threads = 0;
  ArgumentParser parser("tokenizer encode", "prints the ids of the text on standard input.");
  parser.option("--tokenizer", path, "PATH", "tokenizer.json, or a folder with a tokenizer")
      .required()
      .flag("--lines", lines, "each line by itself, one line of ids each, without its line break")
      .flag("--special", special, "add the special tokens the file asks for ([CLS], [SEP], <s>)")
      .threads(threads,
               "threads that work on --lines; auto: one per core the process may use, at most 8",
               kMostThreads)
      .example("snug tokenizer encode --tokenizer tok.json < text.txt")
      .example("printf 'Hello world' | snug tokenizer encode --tokenizer run1/final");
  if (!parser.parse(arguments)) return 0;
  if (parser.given("--threads") && !lines)
    fail(ErrorCode::usage, "--threads with --lines: lines are what threads share",
         "--threads alone", "add --lines, or leave it out");
  const int workers = thread_count(threads);
  const Tokenizer tokenizer = Tokenizer::load(path);
  const std::string text = read_input();
  refuse_wide_text(text);
  std::string out;
  const auto print = [&](const std::vector<int32_t>& plain) {
    const auto ids = special ? tokenizer.with_special_tokens(plain).ids : plain;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) out += ' ';
      const fmt::format_int digits(ids[i]);
      out.append(digits.data(), digits.size());
      if (out.size() < kPrintBytes) continue;
      std::fwrite(out.data(), 1, out.size(), stdout);
      out.clear();
    }
    out += '\n';
  };
  if (!lines) print(tokenizer.encode(text));
  std::vector<std::string_view> batch;
  for (std::string_view rest = text; lines && !rest.empty();) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    if (end != std::string_view::npos && line.ends_with('\r')) line.remove_suffix(1);
    batch.push_back(line);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (batch.size() < kBatchLines && !rest.empty()) continue;
    for (const auto& ids : tokenizer.encode_batch(batch, workers)) print(ids);
    batch.clear();
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
                    {{"train", "learns a BPE or WordPiece tokenizer from text", train},
                     {"encode", "text on standard input to ids", encode},
                     {"decode", "ids on standard input to text", decode}},
                    kEpilog},
                   arguments);
}

}  // namespace snug
