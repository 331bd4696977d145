#include "engine/device/tier_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/mounts.h"

namespace snug {
namespace {

constexpr const char* kAgain =
    "resume=latest, which takes the states of a checkpoint; with another disk: offload_disk=FOLDER";

uint32_t checksum(const std::byte* block) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(block), static_cast<z_size_t>(TierFile::kBlock)));
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

TierFile::TierFile(const std::string& folder, int64_t bytes)
    : path_(fmt::format("{}/states-{}.disk", folder, getpid())), bytes_(bytes) {
  require(bytes > 0 && bytes % kBlock == 0, "a file of whole blocks");
  // Left by a process of this number that was ended between the next two calls.
  unlink(path_.c_str());
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  file_ = open(path_.c_str(), flags | O_DIRECT, 0600);
  direct_ = file_ >= 0;
  if (file_ < 0 && errno == EINVAL) {
    unlink(path_.c_str());
    file_ = open(path_.c_str(), flags, 0600);
  }
  if (file_ < 0)
    fail(ErrorCode::device,
         fmt::format("a file for {} of optimizer state in {}", human_bytes(bytes), folder),
         std::strerror(errno), "offload_disk=FOLDER, one that can be written to");
  unlink(path_.c_str());
  // Asked first: reserving what is not there takes all there is before it is given back.
  const int64_t free = free_disk_bytes(folder).value_or(-1);
  const int error = free >= 0 && free < bytes ? ENOSPC : posix_fallocate(file_, 0, bytes);
  if (error == 0) return;
  close(file_);
  fail(ErrorCode::device,
       fmt::format("{} B ({}) of disk in {} for the optimizer's state", bytes, human_bytes(bytes),
                   folder),
       fmt::format("{}{}", std::strerror(error),
                   free >= 0 ? fmt::format(", {} B ({}) free", free, human_bytes(free)) : ""),
       "free disk space, offload_disk=FOLDER on another disk, or offload_optimizer=none");
}

TierFile::~TierFile() {
  close(file_);
}

void TierFile::use(uint32_t* checksums, std::byte* room) {
  require(reinterpret_cast<uintptr_t>(room) % kAlignment == 0, "an aligned room");
  checksums_ = checksums;
  room_ = room;
  std::memset(room, 0, static_cast<size_t>(kBlock));
  std::fill_n(checksums_, bytes_ / kBlock, checksum(room));
}

int64_t TierFile::resident_bytes() const {
  struct stat file {};
  return fstat(file_, &file) == 0 ? static_cast<int64_t>(file.st_blocks) * 512 : -1;
}

double TierFile::moved_seconds() const {
  return static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) * 1e-9;
}

void TierFile::count(int64_t bytes, int64_t began) {
  moved_.fetch_add(bytes, std::memory_order_relaxed);
  nanoseconds_.fetch_add(now() - began, std::memory_order_relaxed);
}

void TierFile::fail_io(const char* what, int64_t offset, int error) const {
  fail(ErrorCode::device,
       fmt::format("to {} the optimizer's state at byte {} of {}", what, offset, path_),
       error == 0 ? std::string("the end of the file: it was made shorter")
                  : std::string(std::strerror(error)),
       kAgain);
}

void TierFile::check(int64_t offset, const std::byte* data, int64_t bytes) const {
  for (int64_t at = 0; at < bytes; at += kBlock) {
    const uint32_t want = checksums_[(offset + at) / kBlock], found = checksum(data + at);
    if (want != found)
      fail(ErrorCode::device,
           fmt::format("the optimizer's state at byte {} of {} as it was written: checksum {:08x}",
                       offset + at, path_, want),
           fmt::format("{:08x}: the disk gives back other bytes, or another program wrote there",
                       found),
           kAgain);
  }
}

void TierFile::note(int64_t offset, const std::byte* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kBlock)
    checksums_[(offset + at) / kBlock] = checksum(data + at);
}

void TierFile::pull(int64_t offset, std::byte* to, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = pread(file_, to + done, static_cast<size_t>(bytes - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_io("read", offset + done, n < 0 ? errno : 0);
    done += n;
  }
  if (!direct_) posix_fadvise(file_, offset, bytes, POSIX_FADV_DONTNEED);
}

void TierFile::push(int64_t offset, const std::byte* from, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n = pwrite(file_, from + done, static_cast<size_t>(bytes - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_io("write", offset + done, n < 0 ? errno : ENOSPC);
    done += n;
  }
  if (direct_) return;
  if (fdatasync(file_) != 0) fail_io("write", offset, errno);
  posix_fadvise(file_, offset, bytes, POSIX_FADV_DONTNEED);
}

void TierFile::read(int64_t offset, void* to, int64_t bytes) {
  require(offset % kBlock == 0 && bytes % kBlock == 0 && offset + bytes <= bytes_, "whole blocks");
  const int64_t began = now();
  auto* const data = static_cast<std::byte*>(to);
  pull(offset, data, bytes);
  check(offset, data, bytes);
  count(bytes, began);
}

void TierFile::write(int64_t offset, const void* from, int64_t bytes) {
  require(offset % kBlock == 0 && bytes % kBlock == 0 && offset + bytes <= bytes_, "whole blocks");
  const int64_t began = now();
  const auto* const data = static_cast<const std::byte*>(from);
  note(offset, data, bytes);
  push(offset, data, bytes);
  count(bytes, began);
}

void TierFile::read_part(int64_t offset, void* to, int64_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  for (const int64_t end = offset + bytes; offset < end;) {
    const int64_t begin = offset / kBlock * kBlock;
    const int64_t last = std::min(round_up(end, kBlock), begin + kRoomBytes);
    pull(begin, room_, last - begin);
    check(begin, room_, last - begin);
    const int64_t n = std::min(end, last) - offset;
    std::memcpy(out, room_ + (offset - begin), static_cast<size_t>(n));
    out += n;
    offset += n;
  }
}

void TierFile::write_part(int64_t offset, const void* from, int64_t bytes) {
  const auto* in = static_cast<const std::byte*>(from);
  for (const int64_t end = offset + bytes; offset < end;) {
    const int64_t begin = offset / kBlock * kBlock;
    const int64_t last = std::min(round_up(end, kBlock), begin + kRoomBytes);
    const int64_t n = std::min(end, last) - offset;
    if (n < last - begin) {
      pull(begin, room_, last - begin);
      check(begin, room_, last - begin);
    }
    std::memcpy(room_ + (offset - begin), in, static_cast<size_t>(n));
    note(begin, room_, last - begin);
    push(begin, room_, last - begin);
    in += n;
    offset += n;
  }
}

}  // namespace snug
