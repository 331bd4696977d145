// A data file that a run reads by position while others may write to it: what changes under it is
// an error of its own, never a signal and never other numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/core/error.h"
#include "engine/io/files.h"

namespace snug {

// Thrown when a data file is not what it was when it was opened: shortened, rewritten or
// unreadable. Of code device (exit code 1): the input was good, its reader's work so far is sound.
class DataLost : public Error {
 public:
  DataLost(std::string expected, std::string found);
};

class WatchedFile {
 public:
  WatchedFile() = default;
  explicit WatchedFile(const std::string& path);  // throws data

  const InputFile& input() const { return file_; }
  const std::string& path() const { return file_.path(); }
  int64_t size() const { return file_.size(); }  // when it was opened
  // Bytes [offset, offset + bytes). Throws DataLost if the file ends before. Takes no memory.
  void read(int64_t offset, void* out, int64_t bytes) const;
  // The digest (fingerprint.h) of all bytes from `begin` on, now, by a block of the stack.
  uint64_t digest(int64_t begin) const;
  // Throws DataLost, naming `what` of the file, if it is not what it was. As long as nobody wrote
  // to it this costs one call of the system; else its content is read again, and one of that
  // `digest` is accepted. Without a digest any write is an error.
  void verify(const char* what, int64_t begin, std::optional<uint64_t> digest) const;

 private:
  InputFile file_;
  mutable InputFile::State state_;  // when it was last known to be good
};

}  // namespace snug
