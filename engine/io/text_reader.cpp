#include "engine/io/text_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "engine/core/error.h"

namespace snug {
namespace {

constexpr int64_t kBlockBytes = 256 << 10;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// The length of the character at the start of `text`, or 0 if it is not one of well-formed UTF-8.
// A zero byte counts as bad: text has none.
int64_t character_length(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
  const auto follows = [&](size_t i) { return (at(i) & 0xc0u) == 0x80u; };
  const uint32_t a = at(0), b = at(1);
  if (a < 0x80) return a != 0 ? 1 : 0;
  if (a < 0xc2) return 0;
  if (a < 0xe0) return follows(1) ? 2 : 0;
  if (a < 0xf0) {
    const bool good = !(a == 0xe0 && b < 0xa0) && !(a == 0xed && b > 0x9f);  // overlong, surrogate
    return good && follows(1) && follows(2) ? 3 : 0;
  }
  if (a > 0xf4) return 0;
  const bool good =
      !(a == 0xf0 && b < 0x90) && !(a == 0xf4 && b > 0x8f);  // overlong, past U+10FFFF
  return good && follows(1) && follows(2) && follows(3) ? 4 : 0;
}

// Eight bytes of ASCII without a zero among them.
bool eight_plain(const char* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  constexpr uint64_t kHigh = 0x8080808080808080u, kOnes = 0x0101010101010101u;
  return (v & kHigh) == 0 && ((v - kOnes) & kHigh) == 0;
}

}  // namespace

int64_t text_prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (i + 8 <= text.size() && eight_plain(text.data() + i)) {
      i += 8;
      continue;
    }
    const int64_t n = character_length(text.substr(i));
    if (n == 0) break;
    i += static_cast<size_t>(n);
  }
  return static_cast<int64_t>(i);
}

std::string_view text_beginning(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  // A character has at most three bytes behind its first.
  for (int i = 0; i < 3 && most > 0 && (static_cast<uint8_t>(text[most]) & 0xC0) == 0x80; ++i)
    --most;
  return text.substr(0, most);
}

namespace {

// UTF-16 or UTF-32 by its mark or by where its zeros are; what iconv calls it. Null: neither.
struct Encoding {
  const char *name, *iconv;
  bool marked;
};
const char* how_seen(const Encoding& e) {
  return e.marked ? "by its byte order mark" : "by where its zero bytes are";
}
std::optional<Encoding> wide_encoding(std::string_view text) {
  using namespace std::string_view_literals;
  if (text.starts_with("\xff\xfe\0\0"sv) || text.starts_with("\0\0\xfe\xff"sv))
    return Encoding{"UTF-32", "utf-32", true};
  if (text.starts_with("\xff\xfe"sv) || text.starts_with("\xfe\xff"sv))
    return Encoding{"UTF-16", "utf-16", true};
  // Without a mark: of text that is mostly Latin, the upper bytes are zero.
  const size_t n = std::min<size_t>(text.size(), 1024) / 4 * 4;
  size_t zeros[4] = {};
  for (size_t i = 0; i < n; ++i) zeros[i % 4] += text[i] == 0 ? 1 : 0;
  const auto most = [&](size_t k) { return n >= 8 && zeros[k] * 4 > n / 4 * 3; };
  const auto few = [&](size_t k) { return zeros[k] * 4 < n / 4; };
  if (most(1) && most(2) && most(3) && few(0)) return Encoding{"UTF-32", "utf-32le", false};
  if (most(0) && most(1) && most(2) && few(3)) return Encoding{"UTF-32", "utf-32be", false};
  if (most(1) && most(3) && few(0) && few(2)) return Encoding{"UTF-16", "utf-16le", false};
  if (most(0) && most(2) && few(1) && few(3)) return Encoding{"UTF-16", "utf-16be", false};
  return std::nullopt;
}

// How to get at the text of a file in a form that is not read here; empty for another file.
std::string unpacking(const std::string& path) {
  static constexpr std::pair<std::string_view, const char*> kForms[] = {
      {".zip", "an archive: unzip {} -d FOLDER, and train_data=FOLDER"},
      {".tar.gz", "an archive: tar -xf {} -C FOLDER, and train_data=FOLDER"},
      {".tgz", "an archive: tar -xf {} -C FOLDER, and train_data=FOLDER"},
      {".tar.zst", "an archive: tar -xf {} -C FOLDER, and train_data=FOLDER"},
      {".tar", "an archive: tar -xf {} -C FOLDER, and train_data=FOLDER"},
      {".7z", "an archive: 7z x {} -oFOLDER, and train_data=FOLDER"},
      {".xz", "packed: xz -dk {}; .gz and .zst are read as they are"},
      {".bz2", "packed: bunzip2 -k {}; .gz and .zst are read as they are"},
      {".parquet",
       "Parquet: python3 -c 'import pandas, sys; pandas.read_parquet(sys.argv[1]).to_json("
       "sys.argv[2], orient=\"records\", lines=True)' {} FILE.jsonl"}};
  for (const auto& [end, advice] : kForms)
    if (path.ends_with(end)) return fmt::format(fmt::runtime(advice), path);
  return "";
}

}  // namespace

void fail_not_text(const std::string& path, std::string_view text, int64_t bad, int64_t lines,
                   int64_t offset) {
  const std::string expected = fmt::format("text in UTF-8 without zero bytes in {}", path);
  if (const std::string advice = unpacking(path); !advice.empty()) {
    const size_t colon = advice.find(": ");
    fail(ErrorCode::data, expected, fmt::format("a file that is {}", advice.substr(0, colon)),
         advice.substr(colon + 2));
  }
  const auto wide = offset == 0 ? wide_encoding(text) : std::nullopt;
  if (wide) {
    const char* const unpacked = path.ends_with(".gz")    ? "zcat"
                                 : path.ends_with(".zst") ? "zstdcat"
                                                          : "";
    fail(ErrorCode::data, expected, fmt::format("{}, {}", wide->name, how_seen(*wide)),
         *unpacked != '\0'
             ? fmt::format("{} {} | iconv -f {} -t utf-8 > FILE, or leave it out", unpacked, path,
                           wide->iconv)
             : fmt::format("iconv -f {} -t utf-8 {} > FILE, or leave it out", wide->iconv, path));
  }
  const auto before = text.substr(0, static_cast<size_t>(bad));
  const int64_t line = 1 + lines + std::count(before.begin(), before.end(), '\n');
  fail(ErrorCode::data, expected,
       fmt::format("byte 0x{:02x} at {}:{} (offset {})",
                   static_cast<uint8_t>(text[static_cast<size_t>(bad)]), path, line, offset + bad),
       path.ends_with(".bin")
           ? "give token files alone: they cannot be mixed with text"
           : "convert it with iconv -f ENCODING -t utf-8, where file -i names the "
             "encoding, or leave it out");
}

void refuse_wide_text(std::string_view text) {
  if (const auto wide = wide_encoding(text))
    fail(ErrorCode::data, "text in UTF-8 on standard input",
         fmt::format("{}, {}", wide->name, how_seen(*wide)),
         fmt::format("iconv -f {} -t utf-8 before it", wide->iconv));
}

TextReader::TextReader(const std::string& path, const WindowLimit& window)
    : path_(path), source_(open_bytes(path, window)), block_(static_cast<size_t>(kBlockBytes)) {}

int64_t TextReader::fill() {
  // What the last block ended with, at most three bytes of a character, comes first.
  breaks_ += std::count(block_.begin(), block_.begin() + checked_, '\n');
  offset_ += checked_;
  int64_t held = size_ - checked_;
  std::memmove(block_.data(), block_.data() + checked_, static_cast<size_t>(held));
  checked_ = 0;
  while (held < kBlockBytes && !ended_) {
    const int64_t n = source_->read(block_.data() + held, kBlockBytes - held);
    ended_ = n == 0;
    held += n;
  }
  size_ = held;
  checked_ = text_prefix({block_.data(), static_cast<size_t>(size_)});
  if (checked_ == size_) return -1;
  // Behind the end of the block the rest of a character may come.
  if (!ended_ && size_ - checked_ <= 3) {
    char whole[4] = {};
    const int64_t part = size_ - checked_;
    std::memcpy(whole, block_.data() + checked_, static_cast<size_t>(part));
    // It is unfinished, not wrong, if some bytes make it a character.
    for (const unsigned char next : {0x80, 0x90, 0xa0}) {
      for (int64_t i = part; i < 4; ++i)
        whole[i] = static_cast<char>(i == 1 ? next : static_cast<unsigned char>(0x80));
      if (character_length({whole, 4}) > part) return -1;
    }
  }
  return checked_;
}

std::string_view TextReader::next() {
  do {
    const bool start = offset_ == 0 && size_ == 0;
    const int64_t bad = fill();
    if (bad >= 0)
      fail_not_text(path_, {block_.data(), static_cast<size_t>(size_)}, bad, breaks_, offset_);
    std::string_view text(block_.data(), static_cast<size_t>(checked_));
    if (start && text.starts_with(kByteOrderMark)) text.remove_prefix(3);
    if (start && text.find('\n') == text.npos && text.find('\r') != text.npos) break_ = '\r';
    if (!text.empty()) return text;
  } while (!ended_);
  return {};
}

bool TextReader::next_line(std::string_view& line, int64_t max_bytes, const std::string& advice) {
  if (!line_text_) line_text_.emplace(max_bytes);
  line_text_->cut(0);
  bool any = false;
  ++line_;
  while (true) {
    if (rest_.empty()) rest_ = next();
    any = any || !rest_.empty();
    const size_t end = rest_.find(break_);
    const std::string_view part = rest_.substr(0, end);
    if (line_text_->size() + static_cast<int64_t>(part.size()) > max_bytes)
      fail(ErrorCode::data, fmt::format("lines of at most {} bytes in {}", max_bytes, path_),
           fmt::format("a longer one at {}:{}", path_, line_),
           "split it into several; one document a file needs no lines: name it .txt" + advice);
    line_text_->append(part);
    const bool ended = rest_.empty() || end != std::string_view::npos;
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    if (!ended) continue;
    line = line_text_->view();
    if (end != std::string_view::npos && break_ == '\n' && line.ends_with('\r'))
      line.remove_suffix(1);
    return any;
  }
}

bool is_text(const std::string& path, const WindowLimit& window) {
  TextReader reader(path, window);
  do {
    if (reader.fill() >= 0) return false;
  } while (!reader.ended_);
  return true;
}

}  // namespace snug
