// Files of lines that grow at their end and are cut at a resume: metrics.jsonl and metrics.csv.
// Reading takes a fixed buffer whatever the file's size.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace snug {

// Whole lines of a file in their order, without the line break. Lines above kMaxLine bytes and a
// last one without a line break are left out: nobody here wrote them.
class LineReader {
 public:
  static constexpr int64_t kMaxLine = 64 << 10;

  explicit LineReader(const std::string& path);  // throws device if it cannot be opened
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;
  // The next line, valid until the next call; nothing at the end. Throws device.
  std::optional<std::string_view> next();

 private:
  std::string path_;
  int fd_ = -1;
  std::unique_ptr<char[]> buffer_;
  int64_t begin_ = 0, end_ = 0;
  bool skipping_ = false, ended_ = false;
};

// Where a line belongs: in its file, in another one beside it, or, as a heading, in both.
enum class LineGoes { here, aside, both };
// Leaves the lines that go `here` in place of what was there; through AtomicFile. The others go to
// a new file `aside()`, which is asked for once there is one that goes there alone and is whole
// before this file changes; without it they are dropped. Returns how many do. Nothing happens if
// the file is not there.
int64_t cut_lines(const std::string& path, const std::function<LineGoes(std::string_view)>& where,
                  const std::function<std::string()>& aside = nullptr);

// The step of a line of metrics.jsonl; nothing if it is no object with an integer "step".
std::optional<int64_t> step_of_line(std::string_view line);

// An open file to append whole lines to, with a buffer of its own: nothing is allocated after the
// constructor.
class LineFile {
 public:
  // Empties the file unless `append`. Throws device.
  LineFile(std::string path, bool append);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  void write(std::string_view text);  // reaches the system at once; throws device
  void sync();                        // makes what was written durable; throws device
  int64_t size() const;               // bytes in the file
  std::string text() const;           // all of it, whether it still has a name or not; throws data

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
  char buffer_[4096];
};

}  // namespace snug
