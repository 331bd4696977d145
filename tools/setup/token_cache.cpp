#include "tools/setup/token_cache.h"

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/sanitizers.h"
#include "engine/core/units.h"
#include "engine/data/token_file.h"
#include "engine/io/files.h"
#include "engine/io/fingerprint.h"
#include "tools/cli/terminal.h"
#include "tools/planner/plan.h"
#include "tools/session/tell.h"

namespace snug {

namespace fs = std::filesystem;

namespace {

// Raised when the same text and tokenizer would give other tokens than before.
constexpr int kCacheVersion = 2;

// What preparing takes beside records and long words. Measured: a piece with its ids and what reads
// it, 3 MiB, and the cache of words, up to 9.
constexpr int64_t kBuffers = int64_t{10} << 20;
// What always goes, of records and words: runtime bytes are 17 MiB and more, so that 4 MiB for such
// a word are there.
constexpr int64_t kLeastRecord = int64_t{64} << 10;
// Of a document read whole: as read, normalised, twice while that is done, and its ids while their
// list grows. The words' merges are not in it.
constexpr double kWholeCopies = kRecordCopies + 16;

std::string default_folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/snug";
  const char* const home = std::getenv("HOME");
  return home != nullptr && home[0] == '/' ? std::string(home) + "/.cache/snug" : "";
}

int64_t bytes_of(const std::vector<CorpusFile>& files) {
  int64_t bytes = 0;
  for (const CorpusFile& file : files) {
    std::error_code ignored;
    const auto size = fs::file_size(file.path, ignored);
    if (!ignored) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

// A line on stderr that rewrites itself on a terminal and is silent elsewhere.
class Progress {
 public:
  ~Progress() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
  }
  void show(int64_t bytes) {
    if (!terminal_) return;
    tell(stderr, "\r\x1b[Ktokenising: {}", human_bytes(bytes));
    std::fflush(stderr);
    shown_ = true;
  }

 private:
  bool terminal_ = lively_terminal(2);
  bool shown_ = false;
};

// What the cache holds under `path`, if it is whole and what its name says.
std::optional<TokensOfText> find(const std::string& path, uint64_t key,
                                 const Tokenizer& tokenizer) {
  if (!file_exists(path)) return std::nullopt;
  try {
    const auto info = read_token_info(path);
    if (!info || info->source.fingerprint != key) return std::nullopt;
    TokenFile file(path, tokenizer.fingerprint());
    file.check(tokenizer.vocab_size());
    if (file.documents() < 1) return std::nullopt;
    TokensOfText found;
    found.path = path;
    found.shared = found.reused = true;
    found.report = info->source.report;
    found.report.documents = file.documents();
    return found;
  } catch (const Error& error) {
    tell(stderr, "Note: tokens in the cache are made again: {}\n", error.what());
    return std::nullopt;
  }
}

std::vector<InputFile::State> states_of(const std::vector<CorpusFile>& files) {
  std::vector<InputFile::State> states;
  for (const CorpusFile& file : files) states.push_back(InputFile(file.path).state());
  return states;
}

// Files that runs which were killed left half written. A day is longer than any run tokenises.
void remove_leftovers(const std::string& folder) {
  std::error_code error;
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(24);
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code gone;
    if (name.starts_with("tokens-") && name.find(".tmp-") != std::string::npos &&
        fs::last_write_time(it->path(), gone) < old && !gone)
      fs::remove(it->path(), gone);
  }
}

// A token file with what stands beside it.
void remove_tokens(const std::string& path) {
  std::error_code gone;
  fs::remove(path, gone);
  for (const std::string& side : token_side_files(path)) fs::remove(side, gone);
}

// False if `folder` cannot be made or written to.
bool usable(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  return !error && ::access(folder.c_str(), W_OK) == 0;
}

}  // namespace

RecordLimits record_limits(const PrepareRoom& room, bool whole, bool zstd) {
  RecordLimits limits;
  if (room.budget <= 0) return limits;
  malloc_trim(0);  // pages of the plan's search that are free again
  const int64_t piece = ReadOptions().piece_bytes;
  // A sanitizer's own memory, which is most of the process then, is not the run's.
#if SNUG_ADDRESS_SANITIZER || SNUG_THREAD_SANITIZER
  const int64_t program = 0;
#else
  const int64_t program = process_private_bytes();
#endif
  int64_t have = program + kBuffers + (zstd ? kZstdBytes : 0);
  const double copies = whole ? kWholeCopies : kRecordCopies;
  const auto longest = [&](int64_t bytes) {
    return std::clamp(static_cast<int64_t>(static_cast<double>(bytes) / copies), kLeastRecord,
                      kMaxRecordBytes);
  };
  // A record is held while the words of a piece of it are merged.
  const int64_t merging = (whole ? kMaxRecordBytes : piece) * Tokenizer::kWordBytes;
  const auto most = static_cast<int64_t>(copies * static_cast<double>(kMaxRecordBytes));
  limits.enough = round_up(have + most + merging + (zstd ? limits.window : 0), int64_t{1} << 20);
  if (room.budget >= limits.enough) return RecordLimits();
  if (zstd) {  // half of what is left at most: what is unpacked is records and words
    constexpr int64_t kLeastWindow = 1 << 10;
    const int64_t half = std::max((room.budget - have) / 2, kLeastWindow);
    limits.window =
        std::min(limits.window, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(half))));
    have += limits.window;
  }
  const int64_t left = std::max<int64_t>(0, room.budget - have);
  if (whole) {
    limits.whole = left;
    limits.record = longest(left);
    return limits;
  }
  // A quarter for the words at least: most text has none of more than some hundred bytes.
  const int64_t words =
      std::clamp(std::max(left / 4, left - most), kLeastRecord * Tokenizer::kWordBytes, merging);
  limits.word = words / Tokenizer::kWordBytes;
  if (limits.word >= piece) limits.word = INT64_MAX;
  limits.record = longest(left - words);
  return limits;
}

int64_t RecordLimits::longest_word(int64_t document) const {
  if (whole == 0) return word;
  const int64_t left = whole - static_cast<int64_t>(kWholeCopies * static_cast<double>(document));
  return std::max(kLeastRecord, left / Tokenizer::kWordBytes);
}

TokensOfText tokenize_once(const std::vector<CorpusFile>& files, const Tokenizer& tokenizer,
                           const ReadOptions& read, const std::string& cache,
                           const std::string& own, const PrepareRoom& room, bool made) {
  TokenizeOptions options;
  options.vocab_size = tokenizer.vocab_size();
  options.tokenizer = tokenizer.fingerprint();
  options.eos = tokenizer.eos_id();
  options.read.text_column = read.text_column;
  options.read.quotes = read.quotes;
  options.read.whole = !tokenizer.safe_in_pieces();

  std::string folder;
  if (cache.empty() && bytes_of(files) > kCachedTextBytes) {
    folder = default_folder();
    if (!folder.empty() && !usable(folder)) folder.clear();  // then each run keeps its own
  } else if (!cache.empty() && cache != "none") {
    folder = cache;
    if (!usable(folder))
      fail(ErrorCode::usage, "token_cache as a folder that can be written to", folder,
           "another folder, or token_cache=none");
  }

  TokensOfText out;
  out.path = own;
  const std::vector<InputFile::State> before = states_of(files);
  if (!folder.empty()) {
    remove_leftovers(folder);
    options.source = fingerprint(fmt::format(
        "{} {} {} {}", kCacheVersion, fingerprint_text(corpus_fingerprint(files, options.read)),
        fingerprint_text(options.tokenizer), options.eos ? *options.eos : -1));
    out.path = fmt::format("{}/tokens-{}.bin", folder, fingerprint_text(options.source));
    if (const auto found = find(out.path, options.source, tokenizer)) return *found;
    out.shared = true;
  }
  if (made) return out;
  std::error_code error;
  const std::string parent = fs::path(out.path).parent_path().string();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (error)
    fail(ErrorCode::device, fmt::format("to make the folder {} for tokens", parent),
         error.message(), "check its permissions and what is in its way");
  const RecordLimits limits = apply_room(room, files, options.read.whole, options.read);
  const auto encode = [&](std::string_view s, std::vector<int32_t>& ids) {
    const int64_t most = limits.longest_word(static_cast<int64_t>(s.size()));
    if (const int64_t word = tokenizer.encode(s, ids, most))
      throw PieceRefused{fmt::format("words of at most {} bytes for {}", most,
                                     room.set ? fmt::format("{}{}", room.key, room.budget)
                                              : "what is free now less a reserve"),
                         fmt::format("one of {} in the text", word),
                         (options.read.whole ? "split it into several documents"
                                             : "break it with spaces or lines") +
                             options.read.longer_records};
  };
  Progress progress;
  // By the text and by the clock: of records that are mostly left unread there is little text.
  int64_t looked_at = -1;
  auto looked_when = std::chrono::steady_clock::now();
  const CorpusReport report = tokenize_corpus(files, encode, options, out.path, [&](int64_t bytes) {
    progress.show(bytes);
    const auto now = std::chrono::steady_clock::now();
    if (looked_at >= 0 && bytes - looked_at < int64_t{1} << 20 &&
        now - looked_when < std::chrono::milliseconds(2))
      return;
    looked_at = bytes;
    looked_when = now;
    out.most_bytes = std::max(out.most_bytes, process_private_bytes());
  });
  // Else the tokens might be of another text than the fingerprint that names them.
  if (states_of(files) != before) {
    remove_tokens(out.path);
    fail(ErrorCode::device, "text that stays as it is while it is tokenised",
         fmt::format("a file written to meanwhile, of {} from {} on", files.size(),
                     files.front().path),
         "start again when nothing writes to it");
  }
  out.report = report;
  return out;
}

}  // namespace snug
