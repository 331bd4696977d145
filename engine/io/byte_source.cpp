#include "engine/io/byte_source.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/io/files.h"

namespace snug {
namespace {

constexpr int64_t kInputBytes = 64 << 10;
constexpr int64_t kFreeBytes = int64_t{1} << 30;  // below this no ratio is suspicious
constexpr int64_t kMaxRatio = 20000;

class PlainSource : public ByteSource {
 public:
  explicit PlainSource(const std::string& path) : file_(path), state_(file_.state()) {
    file_.expect_jumps(false);
  }

  int64_t read(char* out, int64_t max_bytes) override {
    const int64_t n = file_.read_at(at_, out, max_bytes);
    at_ += n;
    if (n == 0) check_unchanged();
    return n;
  }

 private:
  void check_unchanged() const {
    const InputFile::State now = file_.state();
    if (at_ == state_.size && now == state_) return;
    fail(ErrorCode::device, fmt::format("{} to stay as it is while it is read", file_.path()),
         fmt::format("{} bytes read, {} bytes at the start, {} now{}", at_, state_.size, now.size,
                     now.size == state_.size ? ", written to since" : ""),
         "start again when nothing writes to it");
  }

  InputFile file_;
  InputFile::State state_;
  int64_t at_ = 0;
};

// What the two packed forms share: input by the block, and the ways in which it can be wrong.
class PackedSource : public ByteSource {
 public:
  PackedSource(const std::string& path, const char* format)
      : source_(path), path_(path), format_(format), input_(static_cast<size_t>(kInputBytes)) {}

 protected:
  // The next block of input; 0 at its end.
  int64_t refill() {
    const int64_t n = source_.read(input_.data(), kInputBytes);
    taken_ += n;
    return n;
  }

  void count_output(int64_t bytes) {
    given_ += bytes;
    if (given_ > kFreeBytes && given_ / kMaxRatio > taken_)
      fail(ErrorCode::data,
           fmt::format("{} to expand to at most {} times its size", path_, kMaxRatio),
           fmt::format("{} bytes from the first {}", given_, taken_),
           "leave it out: this is no text");
  }

  [[noreturn]] void fail_early() const {
    fail(ErrorCode::data, fmt::format("{} to be a whole {} file", path_, format_),
         fmt::format("its end after {} bytes, in the middle of the data", taken_),
         "copy or download it again");
  }

  [[noreturn]] void fail_damaged(const char* why) const {
    fail(ErrorCode::data, fmt::format("{} data in {}", format_, path_),
         fmt::format("{} within the first {} bytes, {} of text before it",
                     why != nullptr ? why : "damage", taken_, given_),
         "copy or download it again; a file that is not packed must not end in .gz or .zst");
  }

  char* input() { return input_.data(); }
  const std::string& path() const { return path_; }

 private:
  PlainSource source_;
  std::string path_;
  const char* format_;
  std::vector<char> input_;
  int64_t taken_ = 0, given_ = 0;
};

class GzipSource : public PackedSource {
 public:
  explicit GzipSource(const std::string& path) : PackedSource(path, "gzip") {
    require(inflateInit2(&stream_, 15 + 16) == Z_OK, "zlib to start");  // 16: gzip's header
  }
  ~GzipSource() override { inflateEnd(&stream_); }

  int64_t read(char* out, int64_t max_bytes) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    const int64_t room = std::min<int64_t>(max_bytes, 1 << 30);
    stream_.avail_out = static_cast<uInt>(room);
    while (stream_.avail_out == static_cast<uInt>(room) && !done_) {
      if (stream_.avail_in == 0) {
        stream_.next_in = reinterpret_cast<Bytef*>(input());
        stream_.avail_in = static_cast<uInt>(refill());
        if (stream_.avail_in == 0) {
          if (inside_) fail_early();
          done_ = true;
          break;
        }
      }
      if (!inside_ && members_ > 0 && *stream_.next_in == 0) {  // padding, as on tapes
        ++stream_.next_in;
        --stream_.avail_in;
        continue;
      }
      inside_ = true;
      const int code = inflate(&stream_, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {
        inside_ = false;
        ++members_;
        require(inflateReset(&stream_) == Z_OK, "zlib to start again");
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        fail_damaged(stream_.msg);
      }
    }
    const int64_t n = room - static_cast<int64_t>(stream_.avail_out);
    // An empty file is no gzip file.
    if (n == 0 && members_ == 0) fail_early();
    count_output(n);
    return n;
  }

 private:
  z_stream stream_ = {};
  bool inside_ = false, done_ = false;  // inside a member
  int64_t members_ = 0;
};

class ZstdSource : public PackedSource {
 public:
  ZstdSource(const std::string& path, WindowLimit window)
      : PackedSource(path, "zstd"), window_(std::move(window)), stream_(ZSTD_createDCtx()) {
    require(stream_ != nullptr, "zstd to start");
    const int log = std::clamp(
        static_cast<int>(std::bit_width(static_cast<uint64_t>(window_.bytes))) - 1, 10, 27);
    require(!ZSTD_isError(ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, log)),
            "a limit of zstd's window");
  }
  ~ZstdSource() override { ZSTD_freeDCtx(stream_); }

  int64_t read(char* out, int64_t max_bytes) override {
    ZSTD_outBuffer to = {out, static_cast<size_t>(max_bytes), 0};
    while (to.pos == 0 && !done_) {
      if (from_.pos == from_.size && !more_) {
        from_ = {input(), static_cast<size_t>(refill()), 0};
        if (from_.size == 0) {
          if (inside_ || !begun_) fail_early();
          done_ = true;
          break;
        }
      }
      begun_ = true;
      const size_t code = ZSTD_decompressStream(stream_, &to, &from_);
      if (ZSTD_isError(code)) {
        if (ZSTD_getErrorCode(code) == ZSTD_error_frameParameter_windowTooLarge)
          fail(ErrorCode::data,
               fmt::format("a zstd window of at most {} in {}", human_bytes(window_.bytes), path()),
               "a larger one", "pack it again without --long and --ultra" + window_.advice);
        fail_damaged(ZSTD_getErrorName(code));
      }
      inside_ = code != 0;
      // Inside a frame it may hold text back for want of room; asked again at its end, without
      // input, it would speak of the next frame.
      more_ = inside_ && to.pos == to.size;
    }
    count_output(static_cast<int64_t>(to.pos));
    return static_cast<int64_t>(to.pos);
  }

 private:
  WindowLimit window_;
  ZSTD_DCtx* stream_;
  ZSTD_inBuffer from_ = {nullptr, 0, 0};
  bool inside_ = false, done_ = false, begun_ = false, more_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::string& path, const WindowLimit& window) {
  if (path.ends_with(".gz")) return std::make_unique<GzipSource>(path);
  if (path.ends_with(".zst")) return std::make_unique<ZstdSource>(path, window);
  return std::make_unique<PlainSource>(path);
}

std::string_view unpacked_name(std::string_view path) {
  for (const std::string_view end : {".gz", ".zst"})
    if (path.size() > end.size() && path.ends_with(end))
      return path.substr(0, path.size() - end.size());
  return path;
}

}  // namespace snug
