// Documents of files, and their tokens. Finding the files is corpus_files.cpp.
#include "engine/data/corpus.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/data/token_file.h"
#include "engine/io/files.h"
#include "engine/io/json.h"

namespace snug {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// The length of the character at the start of `text`, or 0 if it is not one of well-formed UTF-8
// (Unicode 15, table 3-7). A zero byte counts as bad: text has none.
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

// The offset of the first byte that is not text, or -1.
int64_t first_bad_byte(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const int64_t n = character_length(text.substr(i));
    if (n == 0) return static_cast<int64_t>(i);
    i += static_cast<size_t>(n);
  }
  return -1;
}

bool is_jsonl(const std::string& path) {
  return path.size() > 6 && path.compare(path.size() - 6, 6, ".jsonl") == 0;
}

[[noreturn]] void fail_bytes(const std::string& path, std::string_view text, int64_t offset) {
  const std::string_view before = text.substr(0, static_cast<size_t>(offset));
  const int64_t line = 1 + std::count(before.begin(), before.end(), '\n');
  fail(ErrorCode::data, fmt::format("text in UTF-8 without zero bytes in {}", path),
       fmt::format("byte 0x{:02x} at {}:{} (offset {})",
                   static_cast<uint8_t>(text[static_cast<size_t>(offset)]), path, line, offset),
       is_token_file_name(path)
           ? "give token files alone: they cannot be mixed with text"
           : "convert it, for example with iconv -f latin1 -t utf-8, or leave it out");
}

void each_record(const std::string& path, std::string_view text,
                 const std::function<void(std::string_view)>& each, CorpusReport* report) {
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const nlohmann::json record = parse_json(line, path, number);
    const auto it = record.is_object() ? record.find("text") : record.end();
    if (!record.is_object() || it == record.end() || !it->is_string())
      fail(ErrorCode::data, "an object with a string \"text\" on every line",
           fmt::format("{}:{}: {}", path, number,
                       !record.is_object()  ? json_brief(record)
                       : it == record.end() ? std::string("no \"text\"")
                                            : "\"text\" is " + json_brief(*it)),
           "write each document as {\"text\": \"...\"} on its own line");
    const std::string& document = it->get_ref<const std::string&>();
    if (document.empty()) {
      ++report->empty;
      continue;
    }
    ++report->documents;
    report->bytes += static_cast<int64_t>(document.size());
    each(document);
  }
}

// White space beyond ASCII, as \s of the tokenizers' expressions sees it.
bool is_wide_space(std::string_view c) {
  static constexpr std::string_view kSpaces[] = {
      "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
      "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
      "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
      "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};
  return std::find(std::begin(kSpaces), std::end(kSpaces), c) != std::end(kSpaces);
}

bool is_narrow_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool visible_before(std::string_view text, size_t at) {
  if (at == 0 || is_narrow_space(text[at - 1])) return false;
  return !(at >= 2 && is_wide_space(text.substr(at - 2, 2))) &&
         !(at >= 3 && is_wide_space(text.substr(at - 3, 3)));
}

bool visible_at(std::string_view text, size_t at) {
  if (at >= text.size() || is_narrow_space(text[at])) return false;
  return !is_wide_space(text.substr(at, 2)) && !is_wide_space(text.substr(at, 3));
}

// Between the line break at `at` - 1 and what follows there is a token boundary in every known
// expression. A slash is not taken: some let punctuation run over line breaks and slashes.
bool clean_break(std::string_view text, size_t at) {
  return text[at - 1] == '\n' && visible_before(text, at - 1) && visible_at(text, at) &&
         text[at] != '/';
}

}  // namespace

std::string_view first_chunk(std::string_view text, int64_t max_bytes) {
  const size_t limit = static_cast<size_t>(std::max<int64_t>(max_bytes, 4));
  if (text.size() <= limit) return text;
  // Looking back further than half a chunk would make chunks small for little.
  const size_t low = limit / 2;
  for (size_t at = limit; at > low; --at)
    if (clean_break(text, at)) return text.substr(0, at);
  for (size_t at = limit; at > low; --at)
    if (text[at] == ' ' && visible_before(text, at) && visible_at(text, at + 1))
      return text.substr(0, at);
  for (size_t at = limit; at > low; --at)
    if (text[at - 1] == '\n') return text.substr(0, at);
  size_t at = limit;
  while (at > limit - 4 && (static_cast<uint8_t>(text[at]) & 0xc0u) == 0x80u) --at;
  return text.substr(0, at);
}

CorpusReport for_each_document(const std::vector<CorpusFile>& files,
                               const std::function<void(std::string_view)>& each) {
  CorpusReport report;
  for (const CorpusFile& file : files) {
    const MappedFile mapped(file.path);
    std::string_view text = mapped.text();
    const int64_t bad = first_bad_byte(text);
    if (bad >= 0) {
      if (file.named) fail_bytes(file.path, text, bad);
      if (report.skipped++ == 0) report.first_skipped = file.path;
      continue;
    }
    if (text.substr(0, 3) == kByteOrderMark) text.remove_prefix(3);
    if (text.empty()) {
      ++report.empty;
      continue;
    }
    ++report.files;
    if (is_jsonl(file.path)) {
      each_record(file.path, text, each, &report);
    } else {
      ++report.documents;
      report.bytes += static_cast<int64_t>(text.size());
      each(text);
    }
  }
  if (report.documents == 0)
    fail(ErrorCode::data, "text to learn from",
         files.size() == 1 ? fmt::format("none in {}", files.front().path)
                           : fmt::format("none in {} files ({} empty, {} not UTF-8 text)",
                                         files.size(), report.empty, report.skipped),
         "give files with text: .txt, .md, source code, or .jsonl with a \"text\" in every record");
  return report;
}

CorpusReport tokenize_corpus(const std::vector<CorpusFile>& files, const EncodeFunction& encode,
                             const TokenizeOptions& options, const std::string& out,
                             const std::function<void(int64_t)>& progress) {
  TokenFileWriter writer(out, options.vocab_size, options.tokenizer);
  std::vector<int32_t> ids;
  int64_t done = 0;
  const CorpusReport report = for_each_document(files, [&](std::string_view text) {
    while (!text.empty()) {
      const std::string_view chunk = first_chunk(text, options.chunk_bytes);
      text.remove_prefix(chunk.size());
      ids.clear();
      encode(chunk, ids);
      writer.append(ids.data(), static_cast<int64_t>(ids.size()));
      done += static_cast<int64_t>(chunk.size());
      if (progress) progress(done);
    }
    if (options.eos) writer.append(&*options.eos, 1);
    writer.end_document();
  });
  writer.commit();
  return report;
}

}  // namespace snug
