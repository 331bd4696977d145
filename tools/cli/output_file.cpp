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
                              const std::vector<std::string>& sources) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  for (const CorpusFile& file : expand_corpus(sources))
    if (std::filesystem::equivalent(file.path, path, error))
      fail(ErrorCode::usage, fmt::format("{} as another file than what is read", flag),
           file.path + ", which is both", "another name");
}

void check_output_is_not_read(const std::string& path, std::string_view flag,
                              const std::vector<std::string>& read, std::string_view mark) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || has_mark(path, mark)) return;
  for (const std::string& one : read) {
    const std::filesystem::path in = std::filesystem::weakly_canonical(one, error);
    if (one.empty() || error || !std::filesystem::exists(in, error)) continue;
    const std::filesystem::path at = std::filesystem::weakly_canonical(path, error);
    const auto rest = at.lexically_relative(in);
    if (at == in ||
        (std::filesystem::is_directory(in, error) && !rest.empty() && *rest.begin() != ".."))
      fail(ErrorCode::usage, fmt::format("{} as another file than what is read", flag),
           at == in ? path + ", which is both" : fmt::format("{}, which is in {}", path, one),
           "another name");
  }
}

}  // namespace snug
