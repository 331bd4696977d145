// A disk that is slow or full, a clock that is set back, a system that has no page to spare and one
// that says it has little memory free, for a program that runs with
// LD_PRELOAD=libsnug_bad_world.so:
//
//   BAD_WORLD_FILES=part       files whose path holds this; without it no file is meant
//   BAD_WORLD_SLOW=seconds     every write to them takes so much longer
//   BAD_WORLD_ROOM=bytes       all writes to them together: beyond it ENOSPC
//   BAD_WORLD_THEN_FULL=part   once one of them was written to, ENOSPC for streams to files whose
//                              path holds this
//   BAD_WORLD_CLOCK=readings   after so many, the clock on the wall is a day behind
//   BAD_WORLD_ARENA=bytes      while a reservation of so many bytes is made writable, RLIMIT_DATA
//   is
//                              what the process has (VmData) and these bytes,
//   BAD_WORLD_SHORT=bytes      less these
//   BAD_WORLD_FREE=bytes       of the machine's memory as /proc/meminfo tells it, all of it free;
//                              whole KiB,
//   BAD_WORLD_FREE_READS=times after it was read so often there is none left
//   BAD_WORLD_LOCKS=none       flock finds no locks, as on some network file systems
//   BAD_WORLD_CALLS=file       gets a line of each call that writes, makes durable, renames or
//   removes
//                              and came off: "write PATH", "sync PATH", "rename FROM TO", "remove
//                              PATH"
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr long kDay = 86400;
std::atomic<long> written{0}, readings{0};
std::atomic<bool> begun{false};

bool meant(int fd, const char* key) {
  const char* const part = std::getenv(key);
  if (!part) return false;
  char link[64], path[4096] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return readlink(link, path, sizeof path - 1) > 0 && std::strstr(path, part);
}

bool slow_or_full(int fd, size_t bytes) {
  if (!meant(fd, "BAD_WORLD_FILES")) return false;
  begun = true;
  if (const char* const slow = std::getenv("BAD_WORLD_SLOW"))
    usleep(static_cast<useconds_t>(std::atof(slow) * 1e6));
  const char* const room = std::getenv("BAD_WORLD_ROOM");
  if (!room || (written += static_cast<long>(bytes)) <= std::atol(room)) return false;
  errno = ENOSPC;
  return true;
}

long behind() {
  const char* const after = std::getenv("BAD_WORLD_CLOCK");
  return after && ++readings > std::atol(after) ? kDay : 0;
}

// What RLIMIT_DATA counts, in bytes; read without the heap, which it would count too.
long data_bytes() {
  char text[4096] = {};
  const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  const char* const at = got > 0 ? std::strstr(text, "VmData:") : nullptr;
  return at ? std::atol(at + 7) * 1024 : -1;
}

template <class F>
F real(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

// The path of an open file, or of `name` in an open folder.
void path_of(int fd, const char* name, char* path, size_t room) {
  char link[64];
  size_t used = 0;
  path[0] = '\0';
  if (name && (name[0] == '/' || fd == AT_FDCWD)) {
    std::snprintf(path, room, "%s", name);
    return;
  }
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t got = readlink(link, path, room - 1);
  if (got > 0) path[used = static_cast<size_t>(got)] = '\0';
  if (name) std::snprintf(path + used, room - used, "/%s", name);
}

// A line of BAD_WORLD_CALLS, without the heap; errno stays.
void record(const char* call, const char* path, const char* to = nullptr) {
  const char* const file = std::getenv("BAD_WORLD_CALLS");
  if (!file) return;
  const int before = errno;
  char line[9000];
  const int n =
      std::snprintf(line, sizeof line, "%s %s%s%s\n", call, path, to ? " " : "", to ? to : "");
  static const auto next = real<ssize_t (*)(int, const void*, size_t)>("write");
  const int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0 || next(fd, line, static_cast<size_t>(n)) != n)
    std::abort();  // nothing would be proved
  close(fd);
  errno = before;
}
void record_file(const char* call, int fd, const char* name = nullptr) {
  if (!std::getenv("BAD_WORLD_CALLS")) return;
  char path[4096];
  path_of(fd, name, path, sizeof path);
  record(call, path);
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  if (slow_or_full(fd, bytes)) return -1;
  static const auto next = real<ssize_t (*)(int, const void*, size_t)>("write");
  const ssize_t n = next(fd, data, bytes);
  if (n > 0) record_file("write", fd);
  return n;
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  if (slow_or_full(fd, bytes)) return -1;
  static const auto next = real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  const ssize_t n = next(fd, data, bytes, offset);
  if (n > 0) record_file("write", fd);
  return n;
}

// The C library writes by calls of its own, which nobody else can replace.
int fflush(FILE* file) {
  if (file != nullptr && begun && meant(fileno(file), "BAD_WORLD_THEN_FULL")) {
    errno = ENOSPC;
    return EOF;
  }
  static const auto next = real<int (*)(FILE*)>("fflush");
  return next(file);
}

int fsync(int fd) {
  static const auto next = real<int (*)(int)>("fsync");
  const int code = next(fd);
  if (code == 0) record_file("sync", fd);
  return code;
}

int fdatasync(int fd) {
  static const auto next = real<int (*)(int)>("fdatasync");
  const int code = next(fd);
  if (code == 0) record_file("sync", fd);
  return code;
}

int rename(const char* from, const char* to) noexcept {
  static const auto next = real<int (*)(const char*, const char*)>("rename");
  const int code = next(from, to);
  if (code == 0) record("rename", from, to);
  return code;
}

int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) noexcept {
  static const auto next = real<int (*)(int, const char*, int, const char*, unsigned)>("renameat2");
  const int code = next(from_fd, from, to_fd, to, flags);
  if (code == 0) record("rename", from, to);
  return code;
}

int remove(const char* path) noexcept {
  static const auto next = real<int (*)(const char*)>("remove");
  const int code = next(path);
  if (code == 0) record("remove", path);
  return code;
}

int unlink(const char* path) noexcept {
  static const auto next = real<int (*)(const char*)>("unlink");
  const int code = next(path);
  if (code == 0) record("remove", path);
  return code;
}

int unlinkat(int fd, const char* name, int flags) noexcept {
  static const auto next = real<int (*)(int, const char*, int)>("unlinkat");
  const int code = next(fd, name, flags);
  if (code == 0) record_file("remove", fd, name);
  return code;
}

// std::ifstream opens files by this name.
FILE* fopen64(const char* path, const char* mode) {
  static const auto next = real<FILE* (*)(const char*, const char*)>("fopen64");
  const char* const free = std::getenv("BAD_WORLD_FREE");
  if (!free || std::strcmp(path, "/proc/meminfo") != 0) return next(path, mode);
  char text[128];
  static std::atomic<long> reads{0};
  const char* const most = std::getenv("BAD_WORLD_FREE_READS");
  const long kib = most && ++reads > std::atol(most) ? 1 : std::atol(free) / 1024;
  std::snprintf(text, sizeof text, "MemTotal: %ld kB\nMemAvailable: %ld kB\n", kib, kib);
  FILE* const file = tmpfile64();
  if (!file) std::abort();  // nothing would be proved
  std::fputs(text, file);
  std::rewind(file);
  return file;
}

int flock(int fd, int operation) noexcept {
  static const auto next = real<int (*)(int, int)>("flock");
  if (!std::getenv("BAD_WORLD_LOCKS")) return next(fd, operation);
  errno = ENOLCK;
  return -1;
}

int mprotect(void* at, size_t bytes, int protection) noexcept {
  static const auto next = real<int (*)(void*, size_t, int)>("mprotect");
  const char* const arena = std::getenv("BAD_WORLD_ARENA");
  if (!arena || std::atol(arena) != static_cast<long>(bytes) || !(protection & PROT_WRITE))
    return next(at, bytes, protection);
  const char* const less = std::getenv("BAD_WORLD_SHORT");
  const long room = data_bytes() + static_cast<long>(bytes) - (less ? std::atol(less) : 0);
  rlimit before{};
  getrlimit(RLIMIT_DATA, &before);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(room);
  if (setrlimit(RLIMIT_DATA, &tight) != 0) std::abort();  // nothing would be proved
  const int code = next(at, bytes, protection), error = errno;
  setrlimit(RLIMIT_DATA, &before);
  errno = error;
  return code;
}

int clock_gettime(clockid_t clock, timespec* out) noexcept {
  static const auto next = real<int (*)(clockid_t, timespec*)>("clock_gettime");
  const int code = next(clock, out);
  if (code == 0 && clock == CLOCK_REALTIME) out->tv_sec -= behind();
  return code;
}

time_t time(time_t* out) noexcept {
  static const auto next = real<time_t (*)(time_t*)>("time");
  const time_t now = next(nullptr) - behind();
  if (out) *out = now;
  return now;
}

int gettimeofday(timeval* out, void* zone) noexcept {
  static const auto next = real<int (*)(timeval*, void*)>("gettimeofday");
  const int code = next(out, zone);
  if (code == 0 && out) out->tv_sec -= behind();
  return code;
}

}  // extern "C"
