// The bytes of a file in order, unpacked if its name ends in .gz (RFC 1952, any number of members)
// or .zst (RFC 8878, any number of frames). Buffers have a fixed size, whatever the file expands
// to: 64 KiB of input, and for .zst a window of at most what the caller has room for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace snug {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // The next bytes, from 1 to max_bytes of them; 0 at the end and only there. Throws data if the
  // file is damaged, ends too early, has something else behind its end, or expands to more than
  // 20000 times its size (no text does; a file made to fill disks may), device if it cannot be
  // read.
  virtual int64_t read(char* out, int64_t max_bytes) = 0;
};

// What may be held of unpacked text to look back into, a power of two: .zst files say what they
// need.
struct WindowLimit {
  int64_t bytes = int64_t{128} << 20;  // also the largest that is ever taken
  std::string advice;                  // said beside "pack it again": ", or memory=256MiB"
};
// What reading a .zst file takes beside that window.
inline constexpr int64_t kZstdBytes = int64_t{1} << 20;

// Throws data if the file cannot be opened.
std::unique_ptr<ByteSource> open_bytes(const std::string& path, const WindowLimit& window = {});

// The name without .gz or .zst: what the content is.
std::string_view unpacked_name(std::string_view path);

}  // namespace snug
