// Files: whole reads with a limit, read-only mappings, and writes that are seen whole or not at
// all. A file that cannot be read is an Error of code data, one that cannot be written of code
// device; both name the path and the system's reason.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace snug {

// The whole file as bytes. Throws data if it is missing, a folder, unreadable or longer than
// max_bytes.
std::string read_file(const std::string& path, int64_t max_bytes = int64_t{1} << 30);

// Writes `bytes` to `path` through AtomicFile.
void write_atomic(const std::string& path, std::string_view bytes);

// Makes earlier creations and renames in `folder` durable. File systems that cannot do this, and
// folders that may be written to but not read, are left as they are.
void sync_folder(const std::string& folder);

bool file_exists(const std::string& path);  // a regular file, links followed

// True where the path, links followed, is the number of a file that this process has open:
// "/dev/stdout", "/dev/fd/3", "/proc/self/fd/3".
bool is_file_number(const std::string& path);

// A path without what changes nothing: "a/b/", "a/./b" and "a//b/." are "a/b". ".." stays, for what
// it leads to depends on links.
std::string normal_path(const std::string& path);

// A file being written under a new temporary name in the folder of `path`; commit() makes it
// durable and renames it, so that `path` holds the old content or the new one and never a part.
// Without commit() the temporary file is removed. Data goes from the caller's memory to the system
// with write(2): no buffer of ours, whatever the size. A full disk, a quota or a file size limit is
// an Error of code device (the signals SIGXFSZ and SIGPIPE are held back), after which only
// destruction makes sense. Where `path` is a link, what it points to is written so, be it there or
// not, and the link stays. A pipe, a device or a file by its number (/dev/stdout) is never
// replaced: data goes straight to it, and what was written stays.
class AtomicFile {
 public:
  AtomicFile() = default;  // open() follows
  // Throws device if the folder is missing or not writable.
  explicit AtomicFile(const std::string& path) { open(path); }
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, int64_t bytes);  // appends
  // Overwrites what was appended. A pipe cannot, nor a file by its number: device.
  void write_at(int64_t offset, const void* data, int64_t bytes);
  void write(std::string_view text) { write(text.data(), static_cast<int64_t>(text.size())); }
  void commit();

  // For a file that is written again and again: the object may be opened after a commit() or an
  // abandon(). After reserve() nothing from here to commit() takes memory of the heap, as long as
  // paths are not longer than that and nothing fails.
  void reserve(size_t path_bytes);
  void open(const std::string& path);  // of a pipe: waits for its reader
  void abandon() noexcept;             // removes what was written so far, if anything

  int64_t size() const noexcept { return size_; }  // bytes appended
  const std::string& path() const noexcept { return path_; }

 private:
  enum class At { end, offset };
  void write_all(At at, int64_t offset, const char* data, int64_t bytes);
  std::string path_, target_, temporary_, folder_;  // as given; where links lead
  int fd_ = -1;
  bool straight_ = false;  // a pipe, a device or a file by its number: no temporary file
  int64_t size_ = 0;
};

// A regular file open for reading, without a mapping: what another program does to it meanwhile
// shows as a short read or another state, never as a signal. Its pages stay in the system's cache
// and are not the process's own.
class InputFile {
 public:
  // What tells a changed file: its size and the time of the last write.
  struct State {
    int64_t size = 0, modified = 0;  // bytes; nanoseconds
    bool operator==(const State&) const = default;
  };

  InputFile() = default;
  explicit InputFile(std::string path);  // throws data
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;

  const std::string& path() const noexcept { return path_; }
  // Where the system says it is now, which renames follow; ends in "(deleted)" if nowhere.
  std::string path_now() const;
  int64_t size() const noexcept { return size_; }  // when it was opened
  State state() const;                             // now
  // Bytes from `offset` on; fewer than asked only at the end. Throws device.
  int64_t read_at(int64_t offset, void* out, int64_t bytes) const;
  // True: reads will jump, so that reading ahead is of no use.
  void expect_jumps(bool jumps) const noexcept;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// Writes what `from` holds to `to`, as AtomicFile does, through a block of 16 KiB of the stack.
// Throws data if `from` cannot be opened, device otherwise.
void copy_file(const std::string& from, const std::string& to);

// A read-only mapping of a whole regular file. Its pages are the file's own: they can be dropped
// and read again at any time, so they count in no budget. An empty file has a null data(). The file
// must not be shortened by another program while it is mapped (files replaced by rename are safe).
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const uint8_t* data() const noexcept { return data_; }
  int64_t size() const noexcept { return size_; }
  std::span<const uint8_t> bytes() const noexcept { return {data_, static_cast<size_t>(size_)}; }
  std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(data_), static_cast<size_t>(size_)};
  }
  // Tells the system that the pages read so far are not needed soon; the content stays valid.
  void drop_pages() const noexcept;

 private:
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace snug
