#include "engine/data/watched_file.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "engine/io/fingerprint.h"

namespace snug {
namespace {

[[noreturn]] void fail_short(const InputFile& file, int64_t offset, int64_t bytes) {
  throw DataLost(
      fmt::format("{} bytes at offset {} of {}", bytes, offset, file.path_now()),
      fmt::format("a file of {} bytes, {} when it was opened", file.state().size, file.size()));
}

}  // namespace

DataLost::DataLost(std::string expected, std::string found)
    : Error(ErrorCode::device, std::move(expected), std::move(found),
            "put the file back as it was, and write to no data file that a run is reading; a new "
            "version of one gets a new name, or is moved into place") {}

WatchedFile::WatchedFile(const std::string& path) : file_(path), state_(file_.state()) {}

void WatchedFile::read(int64_t offset, void* out, int64_t bytes) const {
  if (file_.read_at(offset, out, bytes) < bytes) fail_short(file_, offset, bytes);
}

uint64_t WatchedFile::digest(int64_t begin) const {
  std::array<uint8_t, 64 << 10> chunk;
  Fingerprint digest;
  for (int64_t at = begin;;) {
    const int64_t n = file_.read_at(at, chunk.data(), static_cast<int64_t>(chunk.size()));
    if (n == 0) return digest.digest();
    digest.add(chunk.data(), n);
    at += n;
  }
}

void WatchedFile::verify(const char* what, int64_t begin, std::optional<uint64_t> digest) const {
  const InputFile::State now = file_.state();
  if (now == state_) return;
  if (now.size != file_.size()) fail_short(file_, 0, file_.size());
  if (!digest || this->digest(begin) != *digest)
    throw DataLost(fmt::format("{} of {} as they were when it was opened", what, file_.path_now()),
                   "the same size and other content: something wrote to it");
  state_ = now;
}

}  // namespace snug
