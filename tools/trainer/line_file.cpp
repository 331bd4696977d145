#include "tools/trainer/line_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"

namespace snug {

LineReader::LineReader(const std::string& path)
    : path_(path), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)), buffer_(new char[kMaxLine]) {
  if (fd_ < 0) fail(ErrorCode::device, "to read " + path, std::strerror(errno), "check its rights");
}

LineReader::~LineReader() {
  if (fd_ >= 0) close(fd_);
}

std::optional<std::string_view> LineReader::next() {
  for (int64_t searched = begin_;;) {
    const void* found =
        std::memchr(buffer_.get() + searched, '\n', static_cast<size_t>(end_ - searched));
    if (found) {
      const int64_t at = static_cast<const char*>(found) - buffer_.get();
      const std::string_view line(buffer_.get() + begin_, static_cast<size_t>(at - begin_));
      begin_ = at + 1;
      if (!skipping_) return line;
      skipping_ = false;  // the end of one that was too long
      searched = begin_;
      continue;
    }
    if (ended_) return std::nullopt;
    if (begin_ == 0 && end_ == kMaxLine) {
      skipping_ = true;
      begin_ = end_;
    }
    std::memmove(buffer_.get(), buffer_.get() + begin_, static_cast<size_t>(end_ - begin_));
    end_ -= begin_;
    begin_ = 0;
    searched = end_;
    ssize_t got = 0;
    do {
      got = read(fd_, buffer_.get() + end_, static_cast<size_t>(kMaxLine - end_));
    } while (got < 0 && errno == EINTR);
    if (got < 0)
      fail(ErrorCode::device, "to read " + path_, std::strerror(errno), "check the disk");
    ended_ = got == 0;
    end_ += got;
  }
}

std::optional<int64_t> step_of_line(std::string_view line) {
  // Ours begin with it: most lines need no parser.
  constexpr std::string_view kStart = "{\"step\":";
  if (line.starts_with(kStart) && line.ends_with('}')) {
    int64_t step = 0;
    const char* const from = line.data() + kStart.size();
    const auto result = std::from_chars(from, line.data() + line.size(), step);
    if (result.ec == std::errc() && *result.ptr == ',') return step;
  }
  const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
  if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer()) return std::nullopt;
  return j["step"].get<int64_t>();
}

namespace {

// Lines gathered, since a system call for each of many short ones takes longer than reading them.
class LineWriter {
 public:
  LineWriter() { held_.reserve(static_cast<size_t>(2 * LineReader::kMaxLine)); }
  void open(const std::string& path) { file_.open(path); }
  bool is_open() const { return !file_.path().empty(); }
  // Before open() too.
  void add(std::string_view line) {
    held_.append(line).push_back('\n');
    if (is_open() && static_cast<int64_t>(held_.size()) >= LineReader::kMaxLine) flush();
  }
  void commit() {
    flush();
    file_.commit();
  }

 private:
  void flush() {
    file_.write(held_);
    held_.clear();
  }
  AtomicFile file_;
  std::string held_;
};

}  // namespace

int64_t cut_lines(const std::string& path, const std::function<LineGoes(std::string_view)>& where,
                  const std::function<std::string()>& aside) {
  if (!file_exists(path)) return 0;
  LineReader in(path);
  LineWriter here, there;
  here.open(path);
  int64_t moved = 0;
  while (const auto line = in.next()) {
    const LineGoes goes = where(*line);
    if (goes != LineGoes::aside) here.add(*line);
    if (goes == LineGoes::aside && moved++ == 0 && aside) there.open(aside());
    if (goes != LineGoes::here && aside) there.add(*line);
  }
  if (there.is_open()) there.commit();
  here.commit();
  return moved;
}

LineFile::LineFile(std::string path, bool append) : path_(std::move(path)) {
  file_ = std::fopen(path_.c_str(), append ? "ae" : "we");
  if (!file_)
    fail(ErrorCode::device, "to open " + path_, std::strerror(errno), "another output_dir");
  std::setvbuf(file_, buffer_, _IOFBF, sizeof buffer_);
}

LineFile::~LineFile() {
  std::fclose(file_);
}

void LineFile::write(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
    fail(ErrorCode::device, "to write " + path_, std::strerror(errno), "free disk space");
}

void LineFile::sync() {
  // Some file systems cannot; what they have written is then as durable as it gets.
  if (fdatasync(fileno(file_)) != 0 && errno != EINVAL && errno != ENOSYS && errno != EROFS)
    fail(ErrorCode::device, "to write " + path_, std::strerror(errno), "free disk space");
}

std::string LineFile::text() const {
  return read_file(fmt::format("/proc/self/fd/{}", fileno(file_)));
}

int64_t LineFile::size() const {
  struct stat info {};
  return fstat(fileno(file_), &info) == 0 ? static_cast<int64_t>(info.st_size) : 0;
}

}  // namespace snug
