#include "tools/checkpoint/run_input.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/data/corpus.h"
#include "tools/checkpoint/output_folder.h"

namespace snug {

namespace fs = std::filesystem;

namespace {

fs::path real(const fs::path& path) {
  std::error_code error;
  return fs::weakly_canonical(path, error);
}

// Both without links.
bool below(const fs::path& path, const fs::path& place) {
  return std::mismatch(place.begin(), place.end(), path.begin(), path.end()).first == place.end();
}

class Places {
 public:
  explicit Places(const std::vector<fs::path>& places) {
    for (const fs::path& place : places) {
      std::error_code error;
      if (!fs::exists(fs::symlink_status(place, error))) continue;
      places_.push_back(real(place.parent_path()) / place.filename());  // a link goes by itself
      places_.push_back(real(place));
    }
  }
  bool have(const fs::path& path) const {
    const fs::path found = real(path);
    return std::any_of(places_.begin(), places_.end(),
                       [&](const fs::path& place) { return below(found, place); });
  }
  // A file, or a folder with files of its own.
  std::string first_of(const std::string& path) const {
    std::error_code error;
    if (path.empty() || !fs::exists(path, error)) return "";
    if (have(path)) return path;
    if (!fs::is_directory(path, error)) return "";
    for (fs::directory_iterator it(path, error); !error && it != fs::directory_iterator();
         it.increment(error)) {
      std::error_code dangling;
      if (it->is_regular_file(dangling) && have(it->path())) return it->path().string();
    }
    return "";
  }

 private:
  std::vector<fs::path> places_;
};

std::string first_of_data(const Places& places, const std::vector<std::string>& sources,
                          const std::string& output_dir) {
  for (const std::string& source : sources) try {
      for (const CorpusFile& file : expand_corpus({source}, output_dir))
        if (places.have(file.path)) return file.path;
    } catch (const Error&) {  // said when it is read
    }
  return "";
}

}  // namespace

std::string input_within(const RunConfig& config, const std::vector<fs::path>& given) {
  const Places places(given);
  const struct {
    const char* key;
    std::string found;
  } inputs[] = {
      {"model", places.first_of(config.model)},
      {"adapter", places.first_of(config.adapter)},
      {"tokenizer", places.first_of(config.tokenizer)},
      {"chat_template", places.first_of(config.chat_template)},
      {"train_data", first_of_data(places, config.train_data, config.output_dir)},
      {"eval_data", first_of_data(places, config.eval_data, config.output_dir)},
  };
  for (const auto& input : inputs)
    if (!input.found.empty())
      return fmt::format("{}: {} ({})", input.key, input.found, config.where(input.key));
  return "";
}

std::string input_of_old_run(const RunConfig& config) {
  if (!holds_run(config.output_dir)) return "";
  return input_within(config, files_of_old_run(config.output_dir));
}

}  // namespace snug
