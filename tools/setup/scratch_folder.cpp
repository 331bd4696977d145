#include "tools/setup/scratch_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "engine/core/error.h"

namespace snug {

ScratchFolder::ScratchFolder(const std::string& command) {
  std::error_code error;
  const std::filesystem::path base = std::filesystem::temp_directory_path(error);
  path_ = (base / fmt::format("snug-{}-XXXXXX", command)).string();
  if (error || mkdtemp(path_.data()) == nullptr) {
    const std::string reason =
        error ? error.message() : std::error_code(errno, std::generic_category()).message();
    const char* const set = std::getenv("TMPDIR");
    path_.clear();
    fail(ErrorCode::usage, "a folder for temporary files, TMPDIR or /tmp, that can be written",
         fmt::format("{}: {}", set ? fmt::format("TMPDIR={}", set) : base.string(), reason),
         fmt::format("TMPDIR=FOLDER snug {} ...", command));
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

}  // namespace snug
