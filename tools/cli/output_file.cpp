#include "tools/cli/output_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "engine/core/error.h"
#include "engine/data/corpus.h"
#include "engine/io/files.h"

namespace snug {
namespace {

bool has_mark(const std::string& path, std::string_view mark) {
  std::string start(4096, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(in.gcount()));
  return !mark.empty() && start.find(mark) != std::string::npos;
}

}  // namespace

void check_output_file(const std::string& path, std::string_view flag, bool overwrite,
                       std::string_view mark) {
  std::error_code error;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty() && !std::filesystem::is_directory(folder, error))
    fail(ErrorCode::usage, fmt::format("{} in a folder that is there", flag),
         fmt::format("{}, which is not", folder), "create the folder first");
  if (overwrite || !std::filesystem::is_regular_file(path, error) || is_file_number(path) ||
      has_mark(path, mark))
    return;
  fail(ErrorCode::usage, fmt::format("{} as a file that is not there yet", flag),
       fmt::format("{}, which is", path), "another name, or --overwrite to replace it");
}

void check_output_is_no_input(const std::string& path, std::string_view flag,
                              const std::vector<std::string>& sources, std::string_view mark) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_regular_file(path, error) || has_mark(path, mark)) return;
  const fs::path at = fs::weakly_canonical(path, error);
  const auto refuse = [&](const std::string& found) {
    fail(ErrorCode::usage, fmt::format("{} as another file than what is read", flag), found,
         "another name");
  };
  for (const std::string& source : sources) {
    if (source.empty()) continue;
    if (!fs::exists(source, error)) {  // a pattern
      for (const CorpusFile& file : expand_corpus({source}))
        if (fs::equivalent(file.path, path, error)) refuse(path + ", which is both");
      continue;
    }
    const fs::path rest = at.lexically_relative(fs::weakly_canonical(source, error));
    if (rest == ".") refuse(path + ", which is both");
    if (!rest.empty() && *rest.begin() != "..")
      refuse(fmt::format("{}, which is in {}", path, source));
  }
}

}  // namespace snug
