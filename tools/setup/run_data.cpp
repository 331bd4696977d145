#include "tools/setup/run_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/data/corpus.h"
#include "engine/io/files.h"
#include "engine/text/unicode.h"
#include "tools/session/tell.h"
#include "tools/setup/row_data.h"
#include "tools/setup/token_cache.h"

namespace snug {

std::string count_of(int64_t n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}
namespace {

// The sources sorted by what they are.
struct Sources {
  std::vector<CorpusFile> texts;
  std::vector<std::string> tokens;
  int64_t strangers = 0;  // .bin files of folders that say nothing of tokens
  std::string first_stranger;
};

// A run's own files are no data of it, or a resume would not find what it began with.
Sources sort_sources(const std::vector<std::string>& sources, const char* key,
                     const std::string& output_dir) {
  Sources out;
  std::vector<std::string> products;
  const std::vector<CorpusFile> files = expand_corpus(sources, output_dir, &products);
  if (!products.empty()) tell(stderr, "Note: {} leaves out {}.\n", key, products_text(products));
  std::set<std::string> side_files;
  for (const CorpusFile& f : files) {
    if (!is_token_file_name(f.path)) continue;
    for (const std::string& side : token_side_files(f.path)) side_files.insert(side);
    if (f.named || states_tokens(f.path)) {
      out.tokens.push_back(f.path);
    } else if (out.strangers++ == 0) {
      out.first_stranger = f.path;
    }
  }
  for (const CorpusFile& f : files)
    if (!is_token_file_name(f.path) && (f.named || side_files.count(f.path) == 0))
      out.texts.push_back(f);
  return out;
}

// Text files are gathered into one token file; .bin files are token files already.
std::vector<TokenFile> open_tokens(const std::vector<std::string>& given, const char* key,
                                   const RunConfig& config,
                                   const std::optional<Tokenizer>& tokenizer, int64_t V,
                                   std::string& cache, std::string& text, bool& columns,
                                   const PrepareRoom& room, int64_t& most_bytes, bool found) {
  require_given(given, key);
  const Sources sources = sort_sources(given, key, config.output_dir);
  for (const CorpusFile& file : sources.texts) columns |= has_text_column(file.path);
  std::vector<TokenFile> files;
  std::optional<uint64_t> fingerprint;
  if (tokenizer) fingerprint = tokenizer->fingerprint();
  for (const std::string& path : sources.tokens) {
    files.emplace_back(path, fingerprint);
    files.back().check(V);
  }
  std::vector<std::string> parts;
  if (files.size() == 1) parts.push_back("1 token file, " + files.front().path());
  if (files.size() > 1)
    parts.push_back(
        fmt::format("{} token files, the first {}", files.size(), files.front().path()));
  if (sources.strangers > 0 && sources.texts.empty() && files.empty())
    fail(ErrorCode::data, fmt::format("text or token files for {}", key),
         fmt::format("{} without a llm.c header or a side file, e.g. {}",
                     count_of(sources.strangers, ".bin file"), sources.first_stranger),
         fmt::format("{}={} takes it as uint16 tokens", key, sources.first_stranger));
  if (!sources.texts.empty()) {
    if (!tokenizer)
      fail(ErrorCode::usage, fmt::format("tokenizer for the text in {}", key),
           fmt::format("{} and no tokenizer", sources.texts.front().path),
           key[0] == '-' ? "copy the tokenizer's files into the model's folder"
                         : "snug tokenizer train --vocab-size 1024 --output tok.json FILE..., then "
                           "tokenizer=tok.json");
    const TokensOfText made = tokenize_once(
        sources.texts, *tokenizer,
        {.text_column = config.text_column, .quotes = parse_quoting(config.quoting, "quoting")},
        config.token_cache, cache, room, found);
    const CorpusReport& report = made.report;
    most_bytes = std::max(most_bytes, made.most_bytes);
    cache = made.path;
    files.emplace_back(cache, fingerprint);
    files.back().check(V);
    parts.push_back(fmt::format("{}, {}, {} of text", count_of(report.files, "file"),
                                count_of(report.documents, "document"), human_bytes(report.bytes)));
    if (report.empty > 0) parts.back() += fmt::format(" ({} empty left out)", report.empty);
    if (report.quoted_breaks > 0)
      parts.back() +=
          fmt::format(" ({} inside of quotes, e.g. at {}; with quoting=none each line is a record)",
                      count_of(report.quoted_breaks, "line break"), report.first_quoted);
    if (report.skipped > 0)
      parts.back() += fmt::format(
          " ({} not text skipped, e.g. {})",
          count_of(report.skipped, "file") + (report.skipped == 1 ? " that is" : " that are"),
          report.first_skipped);
    if (report.no_column > 0)
      parts.back() += fmt::format(" ({} without a column \"{}\" skipped, e.g. {})",
                                  count_of(report.no_column, "table"), config.text_column,
                                  report.first_no_column);
    if (made.shared)
      parts.back() += fmt::format(", as tokens {}in {}", made.reused ? "found " : "", made.path);
  }
  if (sources.strangers > 0)
    parts.push_back(fmt::format("{} that may not be tokens skipped, e.g. {}",
                                count_of(sources.strangers, ".bin file"), sources.first_stranger));
  int64_t tokens = 0;
  for (const TokenFile& f : files) tokens += f.size();
  text = printable_utf8(fmt::format("{}, {} tokens", fmt::join(parts, ", "), tokens),
                        LineBreaks::shown);
  return files;
}

// Windows over the files of `sources`. What is wrong is the sources' fault: the name of the cache
// says nothing to a user.
WindowDataset cut_windows(std::vector<TokenFile> files, int64_t T, const WindowOptions& options,
                          const std::vector<std::string>& sources, const std::string& cache) {
  try {
    return WindowDataset(std::move(files), T, options);
  } catch (const Error& error) {
    std::string found = error.found();
    const size_t at = found.find(cache);
    if (at == std::string::npos) throw;
    found.replace(
        at, cache.size(),
        sources.front() +
            (sources.size() > 1 ? fmt::format(" and {} more", sources.size() - 1) : std::string()));
    fail(error.code(), error.expected(), found, error.advice());
  }
}

// Documents can be kept apart only where they are known, and learned from only if one has a token
// after its first.
void check_documents(const WindowDataset& data, const RunConfig& config) {
  if (!config.packing_boundaries) return;
  const std::string key =
      fmt::format("packing_boundaries ({})", config.where("packing_boundaries"));
  int64_t tokens = 0;
  for (int64_t i = 0; i < data.files(); ++i) {
    const TokenFile& file = data.file(i);
    tokens += file.size();
    if (file.documents() < 0)
      fail(ErrorCode::usage, fmt::format("the ends of documents, {}.idx, for {}", file.path(), key),

           file_exists(file.path() + ".idx") ? "one beside tokens that Snug did not write"
                                             : "no such file",
           "give the text, which is tokenised with them, or leave packing_boundaries out");
  }
  if (data.documents() == tokens)
    fail(ErrorCode::data, fmt::format("a document of two tokens or more for {}", key),
         fmt::format("{} of one token each", count_of(tokens, "document")),
         "leave packing_boundaries out");
}

constexpr const char* kNoTarget = "none: no token of theirs follows another of its document";

// A mean over no target would be the lowest loss there is.
void check_targets(const RunData& data, const RunConfig& config, bool training) {
  if (!config.packing_boundaries || data.eval_samples == 0) return;
  for (int64_t i = 0; i < data.eval_samples; ++i)
    if ((data.eval ? data.eval->trained_targets(i, 1) : data.train->evaluated_targets(i, 1)) > 0)
      return;
  const char* const limit = training ? "max_eval_samples" : "--max-samples";
  fail(ErrorCode::data,
       fmt::format("a target to evaluate in {} for packing_boundaries ({})",
                   count_of(data.eval_samples, "sample"), config.where("packing_boundaries")),
       kNoTarget,
       fmt::format(
           "{}other data to evaluate, or leave packing_boundaries out",
           config.max_eval_samples > 0 ? fmt::format("a larger {}, ", limit) : std::string()));
}

}  // namespace

void check_trained(const RunData& data, const RunConfig& config, int64_t steps,
                   int64_t global_batch) {
  if (!config.packing_boundaries) return;
  const bool part = steps > 0 && steps <= data.train_samples / global_batch;
  const int64_t looked = part ? steps * global_batch : data.train_samples;
  for (int64_t i = 0; i < looked; ++i)
    if (data.train->trained_targets(i, 1) > 0) return;
  fail(ErrorCode::data,
       fmt::format("a target to train in the run's {} for packing_boundaries ({})",
                   count_of(looked, "sample"), config.where("packing_boundaries")),
       kNoTarget,
       fmt::format("{}other data, or leave packing_boundaries out",
                   looked < data.train_samples ? "more steps, " : ""));
}

void RunData::fill_eval(int64_t first, int64_t count, int32_t* tokens, int32_t* targets,
                        int32_t* document_start) const {
  // A file of its own is all evaluation: its "training" samples, in the order of the file.
  if (eval)
    eval->fill(first, count, tokens, targets, document_start);
  else
    train->fill_eval(first, count, tokens, targets, document_start);
}

void require_given(const std::vector<std::string>& given, const char* key) {
  if (given.empty())
    fail(ErrorCode::usage, fmt::format("{} as a file, folder or pattern", key), "none",
         fmt::format("{}=input.txt", key));
}

RunData rows_data(const std::shared_ptr<RowData>& rows) {
  RunData data;
  data.rows = rows;
  data.train_samples = rows->train_rows();
  data.eval_samples = rows->eval_rows();
  data.train_tokens =
      static_cast<int64_t>(static_cast<double>(rows->train_rows()) * rows->mean_length());
  data.text = rows->text();
  return data;
}

RunData prepare_data(const RunConfig& config, const std::optional<Tokenizer>& tokenizer, int64_t V,
                     int64_t T, const std::string& cache_folder, bool training,
                     const PrepareRoom& room, bool made, bool at_most, const FrontTokens& front) {
  RunData data;
  data.T = T;
  bool columns = false;
  const auto seed = static_cast<uint64_t>(config.data_seed >= 0 ? config.data_seed : config.seed);
  if (training) {
    std::string cache = cache_folder + "/train.bin";
    std::vector<TokenFile> files =
        open_tokens(config.train_data, "train_data", config, tokenizer, V, cache, data.text,
                    columns, room, data.preparing_bytes, made);
    for (const TokenFile& f : files) data.train_tokens += f.size();
    data.train.emplace(cut_windows(
        std::move(files), T, {.eval_fraction = config.eval_fraction, .seed = seed, .front = front},
        config.train_data, cache));
    check_documents(*data.train, config);
    data.train_samples = data.train->train_samples();
    data.eval_samples = data.train->eval_samples();
    if (data.train->held_out_documents() > 0)
      data.text += fmt::format(", {} held out whole",
                               count_of(data.train->held_out_documents(), "document"));
    else if (data.eval_samples > 0)
      data.text += ", the end held out";
  }
  if (!config.eval_data.empty()) {
    std::string cache = cache_folder + "/eval.bin";
    std::string text;
    std::vector<TokenFile> files =
        open_tokens(config.eval_data, training ? "eval_data" : "--data", config, tokenizer, V,
                    cache, text, columns, room, data.preparing_bytes, made);
    int64_t longest = 0;
    for (const TokenFile& f : files) longest = std::max(longest, f.size());
    if (at_most && longest > 1) data.T = std::min(T, longest - 1);
    data.eval.emplace(
        cut_windows(std::move(files), data.T,
                    {.eval_fraction = 0.0, .seed = seed, .shuffle = false, .front = front},
                    config.eval_data, cache));
    check_documents(*data.eval, config);
    data.eval_samples = data.eval->train_samples();
    if (!training) data.text = text;
  }
  if (!columns && config.text_column != RunConfig().text_column)
    fail(ErrorCode::usage, "a .jsonl, .csv or .tsv file for text_column",
         fmt::format("{} ({}), and none in the data", config.text_column,
                     config.where("text_column")),
         "leave it out: other text is read whole");
  if (!columns && config.quoting != RunConfig().quoting)
    fail(ErrorCode::usage, "a .csv or .tsv file for quoting",
         fmt::format("{} ({}), and none in the data", config.quoting, config.where("quoting")),
         "leave it out: other text has no quotes to read");
  if (config.max_eval_samples > 0)
    data.eval_samples = std::min(data.eval_samples, config.max_eval_samples);
  check_targets(data, config, training);
  return data;
}

}  // namespace snug
