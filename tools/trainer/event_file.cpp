#include "tools/trainer/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <nmmintrin.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/io/files.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.", kSuffix = ".snug";
// Larger than any record written here by far; a length beyond it is damage.
constexpr uint64_t kMaxRecord = 1 << 20;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 128; value >>= 7) out.push_back(static_cast<char>(value | 128));
  out.push_back(static_cast<char>(value));
}

// Wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
void put_key(std::string& out, int field, int wire) {
  put_varint(out, static_cast<uint64_t>(field << 3 | wire));
}

void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_key(out, field, 2);
  put_varint(out, bytes.size());
  out.append(bytes);
}

double wall_time() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return now.count();
}

std::string event(double time, int64_t step) {
  std::string out;
  put_key(out, 1, 1);
  put(out, time);
  put_key(out, 2, 0);
  put_varint(out, static_cast<uint64_t>(step));
  return out;
}

bool take_varint(std::string_view& in, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (in.empty()) return false;
    const auto byte = static_cast<uint8_t>(in.front());
    in.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return true;
  }
  return false;
}

std::string newest(const std::string& folder) {
  std::string name;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string found = entry.path().filename().string();
    if (found.starts_with(kPrefix) && found.ends_with(kSuffix)) name = std::max(name, found);
  }
  return name.empty() ? "" : folder + "/" + name;
}

std::string new_name() {
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') std::strcpy(host, "host");
  for (char* c = host; *c; ++c)
    if (*c == '/') *c = '-';
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  return fmt::format("{}{:010d}.{}{}", kPrefix, now.count(), host, kSuffix);
}

// Bytes of the file up to the first record that is torn, damaged or of a later step; of at most
// `most` records.
int64_t kept_bytes(std::string_view file, int64_t step, int64_t most = INT64_MAX) {
  size_t at = 0;
  while (file.size() - at >= 16 && most-- > 0) {
    const std::string_view head = file.substr(at, 8);
    uint64_t length = 0;
    uint32_t crc = 0;
    std::memcpy(&length, head.data(), 8);
    std::memcpy(&crc, head.data() + 8, 4);
    if (crc != masked_crc32c(head) || length > kMaxRecord || length > file.size() - at - 16) break;
    const std::string_view bytes = file.substr(at + 12, length);
    std::memcpy(&crc, bytes.data() + length, 4);
    const auto found = event_step(bytes);
    if (crc != masked_crc32c(bytes) || !found || *found > step) break;
    at += 16 + length;
  }
  return static_cast<int64_t>(at);
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint64_t crc = 0xffffffffu;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto low = static_cast<uint32_t>(crc);
  for (; i < bytes.size(); ++i) low = _mm_crc32_u8(low, static_cast<uint8_t>(bytes[i]));
  return ~low;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

std::optional<int64_t> event_step(std::string_view in) {
  int64_t step = 0;
  while (!in.empty()) {
    uint64_t key = 0, value = 0;
    if (!take_varint(in, key)) return std::nullopt;
    switch (key & 7) {
      case 0:
        if (!take_varint(in, value)) return std::nullopt;
        if (key >> 3 == 2) step = static_cast<int64_t>(value);
        break;
      case 1:
        value = 8;
        break;
      case 2:
        if (!take_varint(in, value)) return std::nullopt;
        break;
      case 5:
        value = 4;
        break;
      default:
        return std::nullopt;
    }
    if ((key & 7) == 0) continue;
    if (value > in.size()) return std::nullopt;
    in.remove_prefix(value);
  }
  return step;
}

EventFile::EventFile(const std::string& folder, int64_t keep_until_step) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::device, "to create " + folder, error.message(), "free disk space");
  if (keep_until_step >= 0) {
    cut(folder, keep_until_step);
    path_ = newest(folder);
  }
  const bool resumed = !path_.empty();
  if (!resumed) path_ = folder + "/" + new_name();
  file_ = std::make_unique<LineFile>(path_, resumed);
  if (file_->size() == 0) {
    std::string first = event(wall_time(), 0);
    put_bytes(first, 3, "brain.Event:2");
    file_->write(event_record(first));
  }
  if (keep_until_step >= 0) {
    std::string start = event(wall_time(), keep_until_step + 1);
    put_bytes(start, 7, std::string_view("\x08\x01", 2));  // status: START
    file_->write(event_record(start));
  }
}

std::string event_record(std::string_view bytes) {
  std::string out;
  put(out, static_cast<uint64_t>(bytes.size()));
  put(out, masked_crc32c(out));
  out.append(bytes);
  put(out, masked_crc32c(bytes));
  return out;
}

std::string scalar_event(double time, int64_t step, Scalars values) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, 5);
    put(value, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  std::string out = event(time, step);
  put_bytes(out, 5, summary);
  return out;
}

std::string text_event(double time, int64_t step, std::string_view tag, std::string_view text) {
  // tensorboard/compat/proto: Summary.Value {tag = 1, tensor = 8, metadata = 9}; TensorProto {dtype
  // = 1 (DT_STRING, 7), tensor_shape = 2, string_val = 8}; SummaryMetadata.plugin_data = 1.
  std::string plugin, metadata, size, shape, tensor, value, summary;
  put_bytes(plugin, 1, "text");
  put_bytes(metadata, 1, plugin);
  put_key(size, 1, 0);
  put_varint(size, 1);
  put_bytes(shape, 2, size);
  put_key(tensor, 1, 0);
  put_varint(tensor, 7);
  put_bytes(tensor, 2, shape);
  put_bytes(tensor, 8, text);
  put_bytes(value, 1, tag);
  put_bytes(value, 8, tensor);
  put_bytes(value, 9, metadata);
  put_bytes(summary, 1, value);
  std::string out = event(time, step);
  put_bytes(out, 5, summary);
  return out;
}

void EventFile::cut(const std::string& folder, int64_t step, const std::string& aside) {
  const std::string path = newest(folder);
  if (path.empty()) return;
  const MappedFile file(path);
  const std::string_view all = file.text();
  const int64_t kept = kept_bytes(all, step);
  if (kept == file.size()) return;
  if (!aside.empty()) {
    std::error_code error;
    fs::create_directories(aside, error);  // who writes to it says what is wrong
    AtomicFile rest(aside + path.substr(path.rfind('/')));
    rest.write(all.substr(0, static_cast<size_t>(kept_bytes(all, 0, 1))));  // the version
    rest.write(all.substr(static_cast<size_t>(kept)));
    rest.commit();
  }
  AtomicFile out(path);
  out.write(all.substr(0, static_cast<size_t>(kept)));
  out.commit();
}

void EventFile::scalars(int64_t step, Scalars values, double time) {
  file_->write(event_record(scalar_event(time < 0 ? wall_time() : time, step, values)));
}

void EventFile::text(int64_t step, std::string_view tag, std::string_view text, double time) {
  // Four spaces before a line keep Markdown from reading it.
  std::string shown;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    shown.append("    ").append(text.substr(at, end - at)).push_back('\n');
    at = end + 1;
  }
  file_->write(event_record(text_event(time < 0 ? wall_time() : time, step, tag, shown)));
}

}  // namespace snug
