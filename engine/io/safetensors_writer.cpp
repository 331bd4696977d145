// The layout of a file to be written, and its writer.
#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "engine/core/error.h"
#include "engine/io/safetensors.h"

namespace snug {
namespace {

constexpr int64_t kAlignment = 4096;

std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::data, "tensor names and metadata in UTF-8",
         nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
         "rename it");
  }
}

int64_t byte_size(const SafeSpec& spec) {
  int64_t size = bits_of(spec.dtype);
  bool good = true;
  for (const int64_t extent : spec.shape)
    good = good && extent >= 0 && !__builtin_mul_overflow(size, extent, &size);
  if (!good || size % 8 != 0)
    fail(ErrorCode::data, "extents of 0 or more and a size of whole bytes below 2^60",
         fmt::format("tensor '{}' of {} [{}]", spec.name, to_string(spec.dtype),
                     fmt::join(spec.shape, ", ")),
         "correct the shape");
  return size / 8;
}

}  // namespace

SafetensorsLayout::SafetensorsLayout(SafeMetadata metadata, std::vector<SafeSpec> tensors)
    : metadata_(std::move(metadata)), tensors_(std::move(tensors)) {
  if (metadata_.count("format") == 0)
    fail(ErrorCode::data, "\"format\" in the metadata of a safetensors file", "none",
         "add {\"format\", \"pt\"}: transformers refuses files without it");
  std::string json = "{\"__metadata__\":{";
  bool first = true;
  for (const auto& [key, value] : metadata_) {
    json += fmt::format("{}{}:{}", first ? "" : ",", quoted(key), quoted(value));
    first = false;
  }
  json += '}';
  std::unordered_set<std::string> names{"__metadata__"};
  int64_t offset = 0;
  for (const SafeSpec& spec : tensors_) {
    if (!names.insert(spec.name).second)
      fail(ErrorCode::data, "every tensor name once, and none called __metadata__",
           fmt::format("'{}'", spec.name), "write tied tensors under one name only");
    bytes_.push_back(byte_size(spec));
    int64_t end = 0;
    if (__builtin_add_overflow(offset, bytes_.back(), &end) || end > (int64_t{1} << 62))
      fail(ErrorCode::data, "less than 2^62 bytes in one file",
           fmt::format("more, at tensor '{}'", spec.name), "write several files");
    json += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        quoted(spec.name), to_string(spec.dtype), fmt::join(spec.shape, ","),
                        offset, end);
    offset = end;
  }
  json += '}';
  const int64_t used = 8 + static_cast<int64_t>(json.size());
  const int64_t padded = (used + kAlignment - 1) / kAlignment * kAlignment;
  if (padded - 8 > SafetensorsReader::kMaxHeader)
    fail(
        ErrorCode::data, fmt::format("a header of at most {} bytes", SafetensorsReader::kMaxHeader),
        fmt::format("{} bytes for {} tensors", padded - 8, tensors_.size()), "write several files");
  const uint64_t n = static_cast<uint64_t>(padded - 8);
  header_.assign(static_cast<size_t>(padded), ' ');
  std::memcpy(header_.data(), &n, 8);
  std::memcpy(header_.data() + 8, json.data(), json.size());
  total_ = padded + offset;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, const SafetensorsLayout& layout)
    : file_(path), layout_(layout) {
  file_.write(layout.header());
}

void SafetensorsWriter::write(std::string_view name, const void* data, int64_t bytes) {
  begin(name);
  append(data, bytes);
  end();
}

void SafetensorsWriter::begin(std::string_view name) {
  require(left_ < 0, "end() of one tensor before begin() of the next");
  const auto& tensors = layout_.tensors();
  const bool more = next_ < static_cast<int64_t>(tensors.size());
  const std::string wanted =
      more ? "'" + tensors[static_cast<size_t>(next_)].name + "'" : "the end";
  if (!more || tensors[static_cast<size_t>(next_)].name != name)
    fail(ErrorCode::internal, fmt::format("{} next in {}", wanted, file_.path()),
         fmt::format("tensor '{}'", name), "write the tensors in the order of the layout");
  left_ = layout_.bytes_of(next_);
}

void SafetensorsWriter::append(const void* data, int64_t bytes) {
  require(left_ >= 0 && bytes >= 0, "begin() before append()");
  if (bytes > left_)
    fail(ErrorCode::internal,
         fmt::format("at most {} more bytes of tensor '{}' in {}", left_,
                     layout_.tensors()[static_cast<size_t>(next_)].name, file_.path()),
         fmt::format("{}", bytes), "give the dtype and shape of the layout");
  file_.write(data, bytes);
  left_ -= bytes;
}

void SafetensorsWriter::end() {
  require(left_ >= 0, "begin() before end()");
  if (left_ != 0)
    fail(ErrorCode::internal,
         fmt::format("all {} bytes of tensor '{}' in {}", layout_.bytes_of(next_),
                     layout_.tensors()[static_cast<size_t>(next_)].name, file_.path()),
         fmt::format("{} fewer", left_), "append the rest before end()");
  left_ = -1;
  ++next_;
}

void SafetensorsWriter::commit() {
  if (left_ >= 0 || next_ != static_cast<int64_t>(layout_.tensors().size()))
    fail(ErrorCode::internal,
         fmt::format("all {} tensors of {} written before commit()", layout_.tensors().size(),
                     file_.path()),
         fmt::format("{}", next_), "write the rest first");
  file_.commit();
}

}  // namespace snug
