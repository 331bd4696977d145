// TierFile: a file of planned size below the memory, for what rests there while a process lives. It
// is scratch: made anew, reserved whole on the disk, without a name from then on, so the system
// takes it back when the process ends, however it ends; what is to last is in checkpoints.
//
//   file       | block 0 | block 1 | ...              a block: kBlock bytes
//   checksums  |  crc32  |  crc32  | ...              with the process, in memory of the caller's
//
// A block is read as it was last written, or the read fails: checksums are not in the file, so bytes
// of another file, of an older write and of none are found like those that were changed. Blocks that
// were never written are zero. Bytes go past the page cache (O_DIRECT) where the file system has it;
// else they are written through it and dropped from it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace snug {

class TierFile {
 public:
  static constexpr int64_t kBlock = 64 << 10;
  static constexpr int64_t kAlignment = 4096;  // of memory that blocks are read to and written from
  static constexpr int64_t kRoomBytes = 1 << 20;  // of use()

  // A file of `bytes`, a multiple of kBlock, in the folder. Throws device: with the bytes that are
  // needed and free where the disk has no room for them.
  TierFile(const std::string& folder, int64_t bytes);
  ~TierFile();
  TierFile(const TierFile&) = delete;
  TierFile& operator=(const TierFile&) = delete;

  // Before the first read: memory for a checksum a block, and kRoomBytes, aligned, for parts.
  void use(uint32_t* checksums, std::byte* room);

  // Whole blocks, from and to aligned memory. Different blocks by different threads at a time. Throw
  // device, of a block too that is not what was written.
  void read(int64_t offset, void* to, int64_t bytes);
  void write(int64_t offset, const void* from, int64_t bytes);
  // Any bytes, through the room: one thread at a time.
  void read_part(int64_t offset, void* to, int64_t bytes);
  void write_part(int64_t offset, const void* from, int64_t bytes);

  int64_t bytes() const { return bytes_; }
  bool direct() const { return direct_; }
  const std::string& path() const { return path_; }  // that it had
  std::string folder() const { return path_.substr(0, path_.rfind('/')); }
  int64_t resident_bytes() const;           // that it takes of the disk, as the file system says
  int descriptor() const { return file_; }  // tests
  // Of read() and write() so far, and the seconds that they took, checksums included.
  int64_t moved_bytes() const { return moved_.load(std::memory_order_relaxed); }
  double moved_seconds() const;

 private:
  void check(int64_t offset, const std::byte* data, int64_t bytes) const;
  void note(int64_t offset, const std::byte* data, int64_t bytes);
  void pull(int64_t offset, std::byte* to, int64_t bytes);
  void push(int64_t offset, const std::byte* from, int64_t bytes);
  void count(int64_t bytes, int64_t began);
  [[noreturn]] void fail_io(const char* what, int64_t offset, int error) const;

  std::string path_;
  int64_t bytes_;
  int file_ = -1;
  bool direct_ = false;
  uint32_t* checksums_ = nullptr;
  std::byte* room_ = nullptr;
  std::atomic<int64_t> moved_{0}, nanoseconds_{0};
};

}  // namespace snug
