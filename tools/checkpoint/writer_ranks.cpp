// What the writers of several ranks leave each other: files beside those of the checkpoint.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/memory/context.h"
#include "layers/models/adapter_files.h"
#include "tools/checkpoint/checkpoint_writer.h"

namespace snug {

// Takes no memory: sealed_ has room.
void CheckpointWriter::set_sealed(int rank) {
  sealed_.assign(folder_);
  fmt::format_to(std::back_inserter(sealed_), "/rank-{}.sealed", rank);
}

void CheckpointWriter::fail_rank(int rank, const std::string& why, const char* more) const {
  bool before = false;
  for (const int64_t step : checkpoint_steps(output_dir_))
    before =
        before || checkpoint_complete(fmt::format("{}/{}{}", output_dir_, kCheckpointPrefix, step));
  fail(ErrorCode::device, fmt::format("{}, which rank {} writes", sealed_, rank), why,
       fmt::format("{}, once the reason is gone; {}",
                   before ? "resume=latest, from the checkpoint before" : "the run anew", more));
}

// On the ring's thread of rank 0: the lines of COMPLETE of the others' files, which are durable when they are
// there. Takes no memory unless it fails.
void CheckpointWriter::await_ranks() {
  constexpr useconds_t kPause = 500;
  constexpr const char* kDisk = "check the rights and the health of that disk";
  constexpr const char* kSlow = "a longer ddp_timeout for a disk that is slow";
  char lines[1024];
  for (int r = 1; r < rank_->size; ++r) {
    set_sealed(r);
    const double began = monotonic_seconds();
    int fd = -1;
    for (int64_t i = 1; (fd = ::open(sealed_.c_str(), O_RDONLY | O_CLOEXEC)) < 0; ++i) {
      const int code = errno;
      if (code == EINTR) continue;
      if (code != ENOENT) fail_rank(r, std::generic_category().message(code), kDisk);
      if (leaving_) fail_rank(r, "none, and nobody waits for it any more", kDisk);
      if (i % 20 == 0) {
        if (const std::string gone = rank_->gone(r, began); !gone.empty())
          fail_rank(r, gone, kSlow);
      }
      ::usleep(kPause);
    }
    ssize_t n = 0;
    do n = ::read(fd, lines, sizeof(lines));
    while (n < 0 && errno == EINTR);
    const int code = errno;
    ::close(fd);
    if (n < 0) fail_rank(r, std::generic_category().message(code), kDisk);
    require(n > 0 && n < static_cast<ssize_t>(sizeof(lines)), "the lines of a rank's two files");
    seal_.add_part({lines, static_cast<size_t>(n)});
    ::unlink(sealed_.c_str());
  }
}

void CheckpointWriter::write_texts(const std::string& folder, bool weights_alone) const {
  write_atomic(pieces_path(folder + "/" + weights_file(session_.model())), pieces_->text(kModel));
  if (!weights_alone)
    write_atomic(pieces_path(folder + "/" + kStatesFile), pieces_->text(kOptimizer));
}

// While nothing is on its way: through the ring's memory.
void CheckpointWriter::write_weights(const std::string& folder) {
  require(pieces_ != nullptr && !open_, "pieces, and no checkpoint on its way");
  if (leads()) write_texts(folder, true);
  const View& room = session_.save_ring();
  AtomicFile file(folder + "/" + names_[kModel]);
  file.write(pieces_->layout(kModel).header());
  pieces_->begin(true);
  for (;;) {
    const RankPieces::Read read = pieces_->read(static_cast<char*>(room.data), room.bytes());
    if (read.bytes == 0) break;
    file.write(room.data, read.bytes);
    go_on();
  }
  const SignThread::During lasting(signs_.get());
  file.commit();
}

void CheckpointWriter::remove_pieces(const std::string& folder) const {
  const std::string file = folder + "/" + weights_file(session_.model());
  std::error_code ignored;
  std::filesystem::remove(pieces_path(file), ignored);
  for (int r = 0; r < rank_->size; ++r) std::filesystem::remove(rank_file(file, r), ignored);
}

}  // namespace snug
