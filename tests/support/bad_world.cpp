// A disk that is slow or full and a clock that is set back, for a program that runs with
// LD_PRELOAD=libsnug_bad_world.so:
//
//   BAD_WORLD_FILES=part       files whose path holds this; without it no file is meant
//   BAD_WORLD_SLOW=seconds     every write to them takes so much longer
//   BAD_WORLD_ROOM=bytes       all writes to them together: beyond it ENOSPC
//   BAD_WORLD_CLOCK=readings   after so many, the clock on the wall is a day behind
#include <dlfcn.h>
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

bool meant(int fd) {
  const char* const part = std::getenv("BAD_WORLD_FILES");
  if (!part) return false;
  char link[64], path[4096] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return readlink(link, path, sizeof path - 1) > 0 && std::strstr(path, part);
}

bool slow_or_full(int fd, size_t bytes) {
  if (!meant(fd)) return false;
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

template <class F>
F real(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  if (slow_or_full(fd, bytes)) return -1;
  static const auto next = real<ssize_t (*)(int, const void*, size_t)>("write");
  return next(fd, data, bytes);
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  if (slow_or_full(fd, bytes)) return -1;
  static const auto next = real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return next(fd, data, bytes, offset);
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
