// The data of a run: tokenizer, token files and windows, from what the config names.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/text/tokenizer.h"
#include "tools/config/run_config.h"
#include "tools/setup/token_cache.h"

namespace snug {

class RowData;

// "1 file", "3 files".
std::string count_of(int64_t n, const char* what);

struct RunData {
  // Rows of a head that reads them, in place of the windows.
  std::shared_ptr<RowData> rows;
  std::optional<WindowDataset> train;
  std::optional<WindowDataset> eval;  // a file of its own; without it, the tail of `train`
  int64_t train_samples = 0, eval_samples = 0;
  int64_t train_tokens = 0;
  int64_t T = 0;                // tokens of a window
  std::string text;             // one line about what was read
  int64_t preparing_bytes = 0;  // of the process at most while text became tokens; 0: none did

  // As WindowDataset::fill_eval.
  void fill_eval(int64_t first, int64_t count, int32_t* tokens, int32_t* targets,
                 int32_t* document_start = nullptr) const;
};

// Throws usage where a key names no data.
void require_given(const std::vector<std::string>& given, const char* key);
// Of rows that have been read.
RunData rows_data(const std::shared_ptr<RowData>& rows);

// Tokenises text into the cache or `cache_folder` (token_cache.h; token files are used where they
// are) and cuts windows of T + 1 tokens. Token files are read by position: they cost no memory, and
// names of those in `cache_folder` may be removed after.
// A .bin file found in a folder is a token file only if its header or its side file says so: there
// it may be anything. Throws data on what cannot be trained on: missing or empty sources, text
// shorter than a sample, tokens outside [0, V), and, where packing_boundaries keeps documents
// apart, token files that do not say where documents end, documents of one token alone and samples
// to evaluate that hold no others. Errors name the sources, not the cache. `room`, `made`: of
// tokenize_once. `at_most`: windows are shorter where no file of eval_data has T + 1 tokens.
// `front`: of WindowOptions.
RunData prepare_data(const RunConfig& config, const std::optional<Tokenizer>& tokenizer, int64_t V,
                     int64_t T, const std::string& cache_folder, bool training,
                     const PrepareRoom& room = {}, bool made = false, bool at_most = false,
                     const FrontTokens& front = {});

// Throws data if documents are kept apart and no sample of `steps` (0: of an epoch) has a target.
void check_trained(const RunData& data, const RunConfig& config, int64_t steps,
                   int64_t global_batch);

}  // namespace snug
