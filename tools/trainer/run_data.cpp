#include "tools/trainer/run_data.h"

#include <fmt/format.h>

#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/data/corpus.h"

namespace snug {
namespace {

// Text files are gathered into one token file; .bin files are token files already.
std::vector<TokenFile> open_tokens(const std::vector<std::string>& sources, const char* key,
                                   const std::optional<Tokenizer>& tokenizer, int64_t V,
                                   const std::string& cache, std::string& text) {
  if (sources.empty())
    fail(ErrorCode::usage, fmt::format("{} as a file, folder or pattern", key), "none",
         fmt::format("{}=input.txt", key));
  std::vector<CorpusFile> texts;
  std::vector<TokenFile> files;
  std::optional<uint64_t> fingerprint;
  if (tokenizer) fingerprint = tokenizer->fingerprint();
  for (const CorpusFile& f : expand_corpus(sources)) {
    if (!is_token_file_name(f.path)) {
      texts.push_back(f);
      continue;
    }
    files.emplace_back(f.path, fingerprint);
    files.back().check(V);
  }
  if (!texts.empty()) {
    if (!tokenizer)
      fail(ErrorCode::usage, fmt::format("tokenizer for the text in {}", key),
           fmt::format("{} and no tokenizer", texts.front().path),
           "snug tokenizer train --vocab-size 1024 --output tok.json FILE..., then "
           "tokenizer=tok.json");
    TokenizeOptions options;
    options.vocab_size = tokenizer->vocab_size();
    options.tokenizer = tokenizer->fingerprint();
    options.eos = tokenizer->eos_id();
    std::filesystem::create_directories(std::filesystem::path(cache).parent_path());
    const CorpusReport report = tokenize_corpus(
        texts, [&](std::string_view s, std::vector<int32_t>& out) { tokenizer->encode(s, out); },
        options, cache);
    files.emplace_back(cache, fingerprint);
    files.back().check(V);
    text += fmt::format("{} files, {} documents, {} of text", report.files, report.documents,
                        human_bytes(report.bytes));
    if (report.skipped > 0)
      text += fmt::format(" ({} files that are not text skipped, e.g. {})", report.skipped,
                          report.first_skipped);
  } else {
    text += fmt::format("{} token files", files.size());
  }
  int64_t tokens = 0;
  for (const TokenFile& f : files) tokens += f.size();
  text += fmt::format(", {} tokens", tokens);
  return files;
}

}  // namespace

std::optional<Tokenizer> load_run_tokenizer(const RunConfig& config,
                                            const std::string& model_folder) {
  if (!config.tokenizer.empty()) return Tokenizer::load(config.tokenizer);
  if (model_folder.empty()) return std::nullopt;
  const std::filesystem::path folder(model_folder);
  if (std::filesystem::exists(folder / "tokenizer.json") ||
      std::filesystem::exists(folder / "vocab.json"))
    return Tokenizer::load(model_folder);
  return std::nullopt;
}

void RunData::fill_eval(int64_t first, int64_t count, int32_t* tokens, int32_t* targets) const {
  // A file of its own is all evaluation: its "training" samples, in the order of the file.
  if (eval)
    eval->fill(first, count, tokens, targets);
  else
    train->fill_eval(first, count, tokens, targets);
}

RunData prepare_data(const RunConfig& config, const std::optional<Tokenizer>& tokenizer, int64_t V,
                     int64_t T, const std::string& cache_folder, bool training) {
  RunData data;
  const auto seed = static_cast<uint64_t>(config.data_seed >= 0 ? config.data_seed : config.seed);
  if (training) {
    std::vector<TokenFile> files = open_tokens(config.train_data, "train_data", tokenizer, V,
                                               cache_folder + "/train.bin", data.text);
    for (const TokenFile& f : files) data.train_tokens += f.size();
    data.train.emplace(std::move(files), T,
                       WindowOptions{.eval_fraction = config.eval_fraction, .seed = seed});
    data.train_samples = data.train->train_samples();
    data.eval_samples = data.train->eval_samples();
  }
  if (!config.eval_data.empty()) {
    std::string ignored;
    std::vector<TokenFile> files = open_tokens(config.eval_data, "eval_data", tokenizer, V,
                                               cache_folder + "/eval.bin", ignored);
    data.eval.emplace(std::move(files), T,
                      WindowOptions{.eval_fraction = 0.0, .seed = seed, .shuffle = false});
    data.eval_samples = data.eval->train_samples();
    if (!training) data.text = ignored;
  }
  if (config.max_eval_samples > 0)
    data.eval_samples = std::min(data.eval_samples, config.max_eval_samples);
  return data;
}

}  // namespace snug
