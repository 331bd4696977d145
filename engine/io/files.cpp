#include "engine/io/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "engine/core/error.h"

namespace snug {
namespace {

constexpr int64_t kMaxWrite = int64_t{1} << 30;  // Linux moves at most 2^31 - 4096 bytes a call

std::string reason(int code) {
  return std::generic_category().message(code);
}

[[noreturn]] void fail_read(const std::string& path, int code) {
  const bool missing = code == ENOENT || code == ENOTDIR;
  fail(ErrorCode::data, fmt::format("a readable file {}", path), reason(code),
       missing ? "check the path; relative paths start at the current folder"
               : "check the permissions of the file and its folder");
}

[[noreturn]] void fail_write(const std::string& path, int code) {
  const char* advice = "check the permissions and the health of the disk";
  if (code == ENOSPC || code == EDQUOT) advice = "free space on that disk or write to another one";
  if (code == EFBIG)
    advice = "raise the file size limit (ulimit -f unlimited) or write to another file system";
  if (code == ENOENT || code == ENOTDIR) advice = "create the folder first";
  if (code == EPIPE) advice = "let the reader of the pipe read to the end";
  if (code == ESPIPE) advice = "give the path of a file: this is not written from front to back";
  fail(ErrorCode::device, fmt::format("to write {}", path), reason(code), advice);
}

// Opens a regular file for reading and gives its size.
int open_regular(const std::string& path, int64_t* size) {
  // Without O_NONBLOCK a named pipe with no writer would hang here.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail_read(path, errno);
  struct stat info {};
  const int rc = ::fstat(fd, &info);
  const int code = errno;
  if (rc != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    if (rc != 0) fail_read(path, code);
    fail(ErrorCode::data, fmt::format("a regular file {}", path),
         S_ISDIR(info.st_mode) ? "a folder" : "a device, pipe or socket",
         "give the path of a file");
  }
  *size = info.st_size;
  return fd;
}

// Holds SIGXFSZ and SIGPIPE back in this thread, so that a file size limit and a reader that left
// are error codes and not a death.
class HoldWriteSignals {
 public:
  HoldWriteSignals() {
    sigset_t both;
    sigemptyset(&both);
    sigaddset(&both, SIGXFSZ);
    sigaddset(&both, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &both, &before_);
    sigemptyset(&set_);
    for (const int signal : {SIGXFSZ, SIGPIPE})  // else the caller holds it back himself
      if (sigismember(&before_, signal) != 1) sigaddset(&set_, signal);
  }
  ~HoldWriteSignals() {
    const timespec none{};
    while (sigtimedwait(&set_, nullptr, &none) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  HoldWriteSignals(const HoldWriteSignals&) = delete;
  HoldWriteSignals& operator=(const HoldWriteSignals&) = delete;

 private:
  sigset_t set_, before_;
};

// The number where `path` itself, no link followed, is that of an open file of this process; else
// -1. No memory of the heap.
int number_named(const std::string& path) {
  const size_t slash = path.rfind('/');
  int number = 0;
  const char *first = path.data() + slash + 1, *last = path.data() + path.size();
  if (slash == std::string::npos || slash >= PATH_MAX) return -1;
  if (const auto [end, error] = std::from_chars(first, last, number);
      error != std::errc() || end != last || number < 0)
    return -1;
  char given[PATH_MAX], folder[PATH_MAX], own[PATH_MAX];
  path.copy(given, slash);
  given[slash] = '\0';
  return ::realpath(given, folder) && ::realpath("/proc/self/fd", own) &&
                 std::string_view(folder) == own
             ? number
             : -1;
}

// Makes `target` what its links lead to, there or not. Where that is the number of an open file,
// returns it; else -1.
int follow_links(std::string& target, const std::string& path) {
  constexpr int kMostLinks = 40;  // as the system
  char to[4096];
  for (int i = 0;; ++i) {
    const ssize_t n = ::readlink(target.c_str(), to, sizeof(to));
    if (n < 0) return -1;  // no link
    if (const int number = number_named(target); number >= 0) return number;
    if (i == kMostLinks || n == static_cast<ssize_t>(sizeof(to))) fail_write(path, ELOOP);
    const size_t slash = target.rfind('/');
    if (to[0] == '/' || slash == std::string::npos)
      target.clear();
    else
      target.resize(slash + 1);
    target.append(to, static_cast<size_t>(n));
  }
}

}  // namespace

std::string read_file(const std::string& path, int64_t max_bytes) {
  int64_t size = 0;
  const int fd = open_regular(path, &size);
  std::string out;
  int code = 0;
  int64_t done = 0;
  if (size <= max_bytes) {
    out.resize(static_cast<size_t>(size));
    while (done < size) {
      const ssize_t n = ::read(fd, out.data() + done, static_cast<size_t>(size - done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) code = errno;
      if (n <= 0) break;
      done += n;
    }
  }
  ::close(fd);
  if (size > max_bytes)
    fail(ErrorCode::data, fmt::format("{} to have at most {} bytes", path, max_bytes),
         fmt::format("{} bytes", size), "check that this is the file you meant");
  if (code != 0) fail_read(path, code);
  out.resize(static_cast<size_t>(done));
  return out;
}

void write_atomic(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

namespace {

// Whose names sync_opened() makes durable; below 0 where it may not be read, which files may be made
// in all the same.
int open_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 && errno != EACCES) fail_write(folder, errno);
  return fd;
}

void sync_opened(int fd, const std::string& folder) {
  if (fd < 0) return;
  const int rc = ::fsync(fd);
  const int code = errno;
  ::close(fd);
  if (rc != 0 && code != EINVAL && code != ENOTSUP && code != EROFS) fail_write(folder, code);
}

}  // namespace

void sync_folder(const std::string& folder) {
  sync_opened(open_folder(folder), folder);
}

bool file_exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool is_file_number(const std::string& path) {
  std::string target = path;
  return follow_links(target, path) >= 0;
}

std::string normal_path(const std::string& path) {
  std::filesystem::path normal;
  for (const auto& part : std::filesystem::path(path))
    if (!part.empty() && part != ".") normal /= part;
  return normal.empty() && !path.empty() ? "." : normal.string();
}

void AtomicFile::reserve(size_t path_bytes) {
  path_.reserve(path_bytes);
  target_.reserve(path_bytes);
  temporary_.reserve(path_bytes + 32);
  folder_.reserve(path_bytes);
}

void AtomicFile::open(const std::string& path) {
  require(fd_ < 0, "open() after commit() or abandon()");
  static std::atomic<int> counter{0};
  path_.assign(path);
  size_ = 0;
  struct stat info {};
  const bool there = ::stat(path_.c_str(), &info) == 0;
  if (path_.empty() || path_.back() == '/' || (there && S_ISDIR(info.st_mode)))
    fail(ErrorCode::device, fmt::format("to write a file named '{}'", path_), "a folder or no name",
         "give the path of a file");
  target_.assign(path_);
  const int number = follow_links(target_, path_);
  straight_ = number >= 0 || (there && !S_ISREG(info.st_mode));
  if (number >= 0) {  // the same open file: its place is that of all who write to it
    fd_ = ::fcntl(number, F_DUPFD_CLOEXEC, 0);
    if (fd_ < 0) fail_write(path_, errno);
    return;
  }
  if (straight_) {
    while ((fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY)) < 0 && errno == EINTR) {
    }
    if (fd_ < 0) fail_write(path_, errno);
    return;
  }
  const size_t slash = target_.rfind('/');
  if (slash == std::string::npos)
    folder_.assign(".");
  else
    folder_.assign(target_, 0, std::max<size_t>(slash, 1));
  do {  // processes of other containers or machines may have this number: their files are theirs
    temporary_.clear();
    fmt::format_to(std::back_inserter(temporary_), "{}.tmp-{}-{}", target_, ::getpid(), counter++);
    fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) fail_write(path_, errno);
}

AtomicFile::~AtomicFile() {
  abandon();
}

void AtomicFile::abandon() noexcept {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  if (!straight_) ::unlink(temporary_.c_str());
}

void AtomicFile::write_all(At at, int64_t offset, const char* data, int64_t bytes) {
  require(fd_ >= 0, "writing before commit()");
  HoldWriteSignals hold;
  while (bytes > 0) {
    const auto most = static_cast<size_t>(std::min(bytes, kMaxWrite));
    const ssize_t n =
        straight_ && at == At::end ? ::write(fd_, data, most) : ::pwrite(fd_, data, most, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_write(path_, n < 0 ? errno : EIO);
    data += n;
    offset += n;
    bytes -= n;
  }
}

void AtomicFile::write(const void* data, int64_t bytes) {
  write_all(At::end, size_, static_cast<const char*>(data), bytes);
  size_ += bytes;
}

void AtomicFile::write_at(int64_t offset, const void* data, int64_t bytes) {
  require(offset >= 0 && bytes >= 0 && offset <= size_ - bytes,
          "write_at inside what was appended");
  struct stat info {};  // in a file by its number it is not known what stood before
  if (straight_ && ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode)) fail_write(path_, ESPIPE);
  write_all(At::offset, offset, static_cast<const char*>(data), bytes);
}

void AtomicFile::commit() {
  require(fd_ >= 0, "one commit()");
  if (::fsync(fd_) != 0 && errno != EINVAL) fail_write(path_, errno);
  // Opened before the file has its name: who waits for that may rename the folder at once.
  const int folder = straight_ ? -1 : open_folder(folder_);
  // close() reports late write errors on network file systems; the descriptor is gone either way.
  const int rc = ::close(std::exchange(fd_, -1));
  int code = rc == 0 ? 0 : errno;
  if (code == 0 && !straight_ && ::rename(temporary_.c_str(), target_.c_str()) != 0) code = errno;
  if (code != 0) {
    if (!straight_) ::unlink(temporary_.c_str());
    if (folder >= 0) ::close(folder);
    fail_write(path_, code);
  }
  sync_opened(folder, folder_);
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  fd_ = open_regular(path_, &size_);
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

std::string InputFile::path_now() const {
  char name[4096];
  const ssize_t n = ::readlink(fmt::format("/proc/self/fd/{}", fd_).c_str(), name, sizeof(name));
  return n > 0 && name[0] == '/' ? std::string(name, static_cast<size_t>(n)) : path_;
}

InputFile::State InputFile::state() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0)
    fail(ErrorCode::device, fmt::format("to ask for the state of {}", path_now()), reason(errno),
         "check the health of the disk");
  return {info.st_size, int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

int64_t InputFile::read_at(int64_t offset, void* out, int64_t bytes) const {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t n =
        ::pread(fd_, static_cast<char*>(out) + done,
                static_cast<size_t>(std::min(bytes - done, kMaxWrite)), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail(ErrorCode::device,
           fmt::format("to read {} bytes at {} of {}", bytes, offset, path_now()), reason(errno),
           "check the health of the disk");
    if (n == 0) break;
    done += n;
  }
  return done;
}

void InputFile::expect_jumps(bool jumps) const noexcept {
  ::posix_fadvise(fd_, 0, 0, jumps ? POSIX_FADV_RANDOM : POSIX_FADV_SEQUENTIAL);
}

void copy_file(const std::string& from, const std::string& to) {
  const InputFile source(from);
  AtomicFile copy(to);
  char block[16 << 10];
  while (const int64_t bytes = source.read_at(copy.size(), block, sizeof block))
    copy.write(block, bytes);
  copy.commit();
}

MappedFile::MappedFile(const std::string& path) {
  const int fd = open_regular(path, &size_);
  void* p = nullptr;
  int code = 0;
  if (size_ > 0) {
    p = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, fd, 0);
    code = errno;
  }
  ::close(fd);
  if (p == MAP_FAILED)
    fail(ErrorCode::device, fmt::format("to map the {} bytes of {}", size_, path), reason(code),
         "raise the limit on address space (ulimit -v unlimited)");
  data_ = static_cast<const uint8_t*>(p);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::drop_pages() const noexcept {
  if (data_ != nullptr)
    ::madvise(const_cast<uint8_t*>(data_), static_cast<size_t>(size_), MADV_DONTNEED);
}

}  // namespace snug
