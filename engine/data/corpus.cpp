// Documents of files, and their tokens. Finding the files is corpus_files.cpp.
#include "engine/data/corpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/data/record_layout.h"
#include "engine/data/table_reader.h"
#include "engine/data/token_file.h"
#include "engine/io/byte_source.h"
#include "engine/io/files.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"
#include "engine/io/json_record.h"
#include "engine/io/long_buffer.h"
#include "engine/io/text_reader.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

enum class Form { whole, records, commas, tabs };

Form form_of(std::string_view path) {
  const std::string_view name = unpacked_name(path);
  const auto is = [&](std::string_view end) {
    return name.size() > end.size() && name.ends_with(end);
  };
  if (is(".jsonl") || is(".ndjson")) return Form::records;
  if (is(".csv")) return Form::commas;
  if (is(".tsv")) return Form::tabs;
  return Form::whole;
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

std::optional<bool> parse_quoting(const std::string& word, const char* key) {
  if (word == "auto") return std::nullopt;
  if (word == "none" || word == "minimal") return word == "minimal";
  fail(ErrorCode::usage, fmt::format("{} as auto, none or minimal", key),
       fmt::format("\"{}\"", word), "auto: quotes in .csv, none in .tsv");
}

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

namespace {

// One pass over a corpus.
class Pass {
 public:
  Pass(const ReadOptions& options, const PieceFunction& each) : options_(options), each_(each) {}

  void read(const CorpusFile& file) {
    const Form form = form_of(file.path);
    path_ = file.path;
    line_ = 1;
    // What is found in a folder must be known to be text before the first of it is given.
    if (!file.named && (!is_text(file.path, options_.window) || holds_records(file.path, form))) {
      if (report_.skipped++ == 0) report_.first_skipped = file.path;
      return;
    }
    if (form == Form::whole) options_.whole ? whole(file.path) : in_pieces(file.path);
    if (form == Form::records) records(file.path);
    if (form == Form::commas) table(file, ',');
    if (form == Form::tabs) table(file, '\t');
  }

  CorpusReport report() const { return report_; }

 private:
  void give(std::string_view piece, bool last) {
    try {
      each_(piece, last);
    } catch (const PieceRefused& refused) {
      fail(ErrorCode::data, refused.expected,
           fmt::format("{} at {}:{}", refused.found, path_, line_), refused.advice);
    }
  }

  std::string beginning_of(const std::string& path) const {
    return std::string(TextReader(path, options_.window).next());
  }
  // Other records than the form has: a record a line is what Form::records is.
  bool holds_records(const std::string& path, Form form) const {
    const RecordLayout layout = record_layout(beginning_of(path), path);
    return layout == RecordLayout::array || (form == Form::whole && layout != RecordLayout::none);
  }
  // Refuses records in a file that is read as text.
  static void check_text(const std::string& path, std::string_view beginning) {
    const RecordLayout layout = record_layout(beginning, path);
    if (layout != RecordLayout::none) refuse_records(layout, beginning, path);
  }

  // The next piece of a document of which `text` is left.
  std::string_view piece_of(std::string_view text) const {
    return options_.whole ? text : first_chunk(text, options_.piece_bytes);
  }

  // A file that is one document.
  void in_pieces(const std::string& path) {
    // first_chunk looks up to three bytes further than the piece.
    const auto wanted = static_cast<size_t>(std::max<int64_t>(options_.piece_bytes, 4)) + 4;
    TextReader reader(path, options_.window);
    std::string held;
    bool any = false;
    while (true) {
      const std::string_view block = reader.next();
      if (!any) check_text(path, block);
      held += block;
      any = any || !block.empty();
      std::string_view text = held;
      while (text.size() >= wanted || (block.empty() && !text.empty())) {
        const std::string_view piece = piece_of(text);
        text.remove_prefix(piece.size());
        report_.bytes += static_cast<int64_t>(piece.size());
        give(piece, block.empty() && text.empty());
        line_ += std::count(piece.begin(), piece.end(), '\n');
      }
      held.erase(0, held.size() - text.size());
      if (block.empty()) break;
    }
    ++(any ? report_.files : report_.empty);
    report_.documents += any ? 1 : 0;
  }

  void whole(const std::string& path) {
    TextReader reader(path, options_.window);
    LongBuffer held(options_.max_record_bytes);
    while (true) {
      const std::string_view block = reader.next();
      if (block.empty()) break;
      if (held.size() == 0) check_text(path, block);
      if (held.size() + static_cast<int64_t>(block.size()) > options_.max_record_bytes)
        fail(ErrorCode::data,
             fmt::format("a document of at most {} bytes in {}: this tokenizer must see each whole",
                         options_.max_record_bytes, path),
             "a longer one",
             "split it into several files, or write it as .jsonl with a document a line" +
                 options_.longer_records);
      held.append(block);
    }
    if (held.size() > 0) ++report_.files;
    document(held.view());
  }

  void document(std::string_view text) {
    if (text.empty()) {
      ++report_.empty;
      return;
    }
    ++report_.documents;
    report_.bytes += static_cast<int64_t>(text.size());
    while (!text.empty()) {
      const std::string_view piece = piece_of(text);
      text.remove_prefix(piece.size());
      give(piece, text.empty());
    }
  }

  void records(const std::string& path) {
    if (holds_records(path, Form::records))
      refuse_records(RecordLayout::array, beginning_of(path), path);
    TextReader reader(path, options_.window);
    JsonRecord record(options_.max_record_bytes);
    std::string_view line;
    bool any = false;
    while (reader.next_line(line, options_.max_record_bytes, options_.longer_records)) {
      any = true;
      line_ = reader.line();
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const auto text =
          record.find(reader.line_bytes(), static_cast<int64_t>(line.size()), options_.text_column);
      if (text)
        document(*text);
      else
        other_record(line, record.bad(), path, reader.line());
    }
    ++(any ? report_.files : report_.empty);
  }

  // A line that JsonRecord did not take: what is wrong is found by making a tree of it, which takes
  // many times its bytes (of "[],[]" twenty), so only of a short one.
  void other_record(std::string_view line, int64_t bad, const std::string& path, int64_t number) {
    const std::string& key = options_.text_column;
    const auto bytes = static_cast<int64_t>(line.size());
    if (bytes > std::max(kTreeBytes, options_.max_record_bytes / 32))
      fail(
          ErrorCode::data, fmt::format("a JSON object with a string \"{}\" and each key once", key),
          bad == bytes ? fmt::format("none in the record of {} bytes at {}:{}", bytes, path, number)
                       : fmt::format("{}:{}:{}: something else", path, number, bad + 1),
          "correct the file; a JSON checker shows the place");
    const nlohmann::json record = parse_json(line, path, number);
    const auto it = record.is_object() ? record.find(key) : record.end();
    if (!record.is_object() || it == record.end() || !it->is_string())
      fail(ErrorCode::data, fmt::format("an object with a string \"{}\" on every line", key),
           fmt::format("{}:{}: {}", path, number,
                       !record.is_object()  ? json_brief(record)
                       : it == record.end() ? fmt::format("no \"{}\"{}", key, keys_of(record))
                                            : fmt::format("\"{}\" is {}", key, json_brief(*it))),
           task_of_record(record).empty()
               ? fmt::format("write each document as {{\"{}\": \"...\"}} on its own line, or name "
                             "the key with text_column (of eval and tokenizer: --text-column)",
                             key)
               : task_of_record(record) +
                     " (of eval: --task), or name the key of a text with text_column (of eval and "
                     "tokenizer: --text-column)");
    document(it->get_ref<const std::string&>());
  }

  static std::string keys_of(const nlohmann::json& record) {
    std::string list;
    for (const auto& [key, value] : record.items()) {
      if (!value.is_string()) continue;
      list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", key);
      if (list.size() > 200) break;
    }
    return list.empty() ? "" : ", but " + list;
  }

  void table(const CorpusFile& file, char separator) {
    TableReader reader(file.path, separator, options_.quotes.value_or(separator == ','),
                       options_.max_record_bytes, options_.longer_records, options_.window);
    if (reader.columns().empty()) {
      ++report_.empty;
      return;
    }
    const int64_t column = reader.find(options_.text_column);
    if (column < 0 && !file.named) {
      if (report_.no_column++ == 0) report_.first_no_column = file.path;
      return;
    }
    if (column < 0) {
      // Records in the place of names are what a table without a header begins with.
      constexpr size_t kLongest = 40;
      std::string names;
      bool records = false;
      for (const std::string& name : reader.columns()) {
        const bool cut = name.size() > kLongest;
        const std::string shown = name.substr(0, text_prefix(name.substr(0, kLongest)));
        names += fmt::format("{}\"{}{}\"", names.empty() ? "" : ", ", shown, cut ? "..." : "");
        records |= cut || shown.empty() || shown.find_first_not_of("0123456789.-") == shown.npos ||
                   shown.find(' ') != shown.npos;
      }
      if (names.size() > 200) names = names.substr(0, text_prefix(names.substr(0, 200))) + "...";
      fail(ErrorCode::data, fmt::format("a column \"{}\" in {}", options_.text_column, file.path),
           fmt::format("the columns {}", names),
           records ? fmt::format("a first line that names the columns, one of them {}",
                                 options_.text_column)
                   : fmt::format(
                         "text_column={0} (of eval and tokenizer: --text-column {0}); the first "
                         "line must name the columns",
                         reader.columns().front()));
    }
    ++report_.files;
    std::string_view text;
    while (reader.next(column, text)) {
      line_ = reader.line();
      document(text);
    }
    if (reader.quoted_breaks() > 0 && report_.quoted_breaks == 0)
      report_.first_quoted = fmt::format("{}:{}", file.path, reader.first_quoted_break());
    report_.quoted_breaks += reader.quoted_breaks();
  }

  static constexpr int64_t kTreeBytes = 64 << 10;

  const ReadOptions& options_;
  const PieceFunction& each_;
  std::string path_;  // of what is given now
  int64_t line_ = 1;
  CorpusReport report_;
};

}  // namespace

CorpusReport for_each_piece(const std::vector<CorpusFile>& files, const ReadOptions& options,
                            const PieceFunction& each) {
  Pass pass(options, each);
  for (const CorpusFile& file : files) pass.read(file);
  const CorpusReport report = pass.report();
  if (report.documents == 0) {
    std::string found = fmt::format("none in {} files ({} empty, {} not UTF-8 text)", files.size(),
                                    report.empty, report.skipped);
    if (files.size() == 1) found = fmt::format("none in {}", files.front().path);
    if (report.no_column > 0)
      found += fmt::format("; {} without a column \"{}\", e.g. {}", report.no_column,
                           options.text_column, report.first_no_column);
    fail(ErrorCode::data, "text to learn from", found,
         fmt::format("give files with text: .txt, .md, source code, or .jsonl, .csv, .tsv with a "
                     "\"{}\" in every record (text_column, of eval and tokenizer --text-column)",
                     options.text_column));
  }
  return report;
}

CorpusReport for_each_document(const std::vector<CorpusFile>& files,
                               const std::function<void(std::string_view)>& each,
                               const std::string& text_column) {
  std::string document;
  return for_each_piece(files, {.text_column = text_column},
                        [&](std::string_view piece, bool last) {
                          document += piece;
                          if (!last) return;
                          each(document);
                          document.clear();
                        });
}

bool has_text_column(const std::string& path) {
  return form_of(path) != Form::whole;
}

uint64_t corpus_fingerprint(const std::vector<CorpusFile>& files, const ReadOptions& options) {
  std::vector<char> buffer(256 << 10);
  Fingerprint all;
  all.add(fmt::format("{} {} ", options.whole ? 0 : options.piece_bytes, options.text_column));
  if (options.quotes) all.add(*options.quotes ? "quotes " : "no quotes ");
  for (const CorpusFile& file : files) {
    const std::string_view name = unpacked_name(file.path);
    const std::string packing = file.path.substr(name.size());
    const InputFile input(file.path);
    input.expect_jumps(false);
    Fingerprint content;
    int64_t at = 0;
    while (const int64_t n =
               input.read_at(at, buffer.data(), static_cast<int64_t>(buffer.size()))) {
      content.add(buffer.data(), n);
      at += n;
    }
    all.add(fmt::format("{}{} {} {} ", static_cast<int>(form_of(file.path)), packing, at,
                        fingerprint_text(content.digest())));
  }
  return all.digest();
}

CorpusReport tokenize_corpus(const std::vector<CorpusFile>& files, const EncodeFunction& encode,
                             const TokenizeOptions& options, const std::string& out,
                             const std::function<void(int64_t)>& progress) {
  TokenFileWriter writer(out, options.vocab_size, options.tokenizer);
  std::vector<int32_t> ids;
  int64_t done = 0;
  const CorpusReport report =
      for_each_piece(files, options.read, [&](std::string_view piece, bool last) {
        ids.clear();
        encode(piece, ids);
        writer.append(ids.data(), static_cast<int64_t>(ids.size()));
        done += static_cast<int64_t>(piece.size());
        if (progress) progress(done);
        if (!last) return;
        if (options.eos) writer.append(&*options.eos, 1);
        writer.end_document();
      });
  writer.set_source({.fingerprint = options.source, .report = report});
  writer.commit();
  return report;
}

}  // namespace snug
