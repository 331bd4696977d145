// The header of a GGUF file to be written, and its writer.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/core/error.h"
#include "engine/io/gguf.h"

namespace snug {
namespace {

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_string(std::string& out, std::string_view text) {
  put(out, static_cast<uint64_t>(text.size()));
  out.append(text);
}

constexpr int64_t padded(int64_t bytes) {
  return (bytes + GgufLayout::kAlignment - 1) / GgufLayout::kAlignment * GgufLayout::kAlignment;
}

}  // namespace

void GgufMetadata::begin(const std::string& key, GgufKind kind) {
  if (key.empty() || static_cast<int64_t>(key.size()) > GgufReader::kMaxName)
    fail(ErrorCode::data, fmt::format("a GGUF key of 1 to {} bytes", GgufReader::kMaxName),
         fmt::format("{} bytes", key.size()), "shorten it");
  if (!names_.insert(key).second)
    fail(ErrorCode::data, "every GGUF key once", fmt::format("{} twice", key), "add it once");
  put_string(bytes_, key);
  put(bytes_, static_cast<uint32_t>(kind));
}

void GgufMetadata::add(const std::string& key, uint32_t value) {
  begin(key, GgufKind::u32);
  put(bytes_, value);
}
void GgufMetadata::add(const std::string& key, float value) {
  begin(key, GgufKind::f32);
  put(bytes_, value);
}
void GgufMetadata::add(const std::string& key, bool value) {
  begin(key, GgufKind::boolean);
  put(bytes_, static_cast<uint8_t>(value ? 1 : 0));
}
void GgufMetadata::add(const std::string& key, std::string_view value) {
  begin(key, GgufKind::string);
  put_string(bytes_, value);
}
void GgufMetadata::add(const std::string& key, const std::vector<std::string>& values) {
  begin(key, GgufKind::array);
  put(bytes_, static_cast<uint32_t>(GgufKind::string));
  put(bytes_, static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) put_string(bytes_, value);
}
void GgufMetadata::add(const std::string& key, const std::vector<int32_t>& values) {
  begin(key, GgufKind::array);
  put(bytes_, static_cast<uint32_t>(GgufKind::i32));
  put(bytes_, static_cast<uint64_t>(values.size()));
  for (const int32_t value : values) put(bytes_, value);
}

void GgufMetadata::add(const std::string& key, const std::vector<float>& values) {
  begin(key, GgufKind::array);
  put(bytes_, static_cast<uint32_t>(GgufKind::f32));
  put(bytes_, static_cast<uint64_t>(values.size()));
  for (const float value : values) put(bytes_, value);
}

GgufLayout::GgufLayout(const GgufMetadata& metadata, std::vector<GgufSpec> tensors)
    : tensors_(std::move(tensors)) {
  header_ = "GGUF";
  put(header_, uint32_t{3});
  put(header_, static_cast<uint64_t>(tensors_.size()));
  put(header_, static_cast<uint64_t>(metadata.count()));
  header_ += metadata.bytes();
  std::set<std::string> names;
  int64_t offset = 0;
  for (const GgufSpec& spec : tensors_) {
    if (spec.name.empty() || static_cast<int64_t>(spec.name.size()) > GgufReader::kMaxTensorName)
      fail(ErrorCode::data,
           fmt::format("a tensor name of 1 to {} bytes, as ggml takes", GgufReader::kMaxTensorName),
           fmt::format("'{}' of {} bytes", spec.name, spec.name.size()), "shorten it");
    if (!names.insert(spec.name).second)
      fail(ErrorCode::data, "every tensor name once in a GGUF file",
           fmt::format("{} twice", spec.name), "write each tensor once");
    const GgufTypeInfo& info = *gguf_type_info(static_cast<uint32_t>(spec.type));
    int64_t elements = 1, bytes = 0, end = 0;
    bool good = !spec.shape.empty() && spec.shape.size() <= 4;
    for (const int64_t extent : spec.shape)
      good = good && extent >= 1 && !__builtin_mul_overflow(elements, extent, &elements);
    good = good && spec.shape.back() % info.elements == 0 &&
           !__builtin_mul_overflow(elements / info.elements, info.bytes, &bytes) &&
           bytes <= (int64_t{1} << 60) && !__builtin_add_overflow(offset, padded(bytes), &end) &&
           end <= (int64_t{1} << 60);
    if (!good)
      fail(
          ErrorCode::data,
          fmt::format("one to four extents of at least 1, rows of whole blocks of {} and less than "
                      "2^60 bytes",
                      info.elements),
          fmt::format("tensor {} of {} [{}]", spec.name, info.name, fmt::join(spec.shape, ", ")),
          "another type, or other extents");
    put_string(header_, spec.name);
    put(header_, static_cast<uint32_t>(spec.shape.size()));
    for (size_t i = spec.shape.size(); i-- > 0;) put(header_, static_cast<uint64_t>(spec.shape[i]));
    put(header_, static_cast<uint32_t>(spec.type));
    put(header_, static_cast<uint64_t>(offset));
    bytes_.push_back(bytes);
    offset = end;
  }
  header_.resize(static_cast<size_t>(padded(static_cast<int64_t>(header_.size()))), '\0');
  total_ = static_cast<int64_t>(header_.size()) + offset;
}

GgufWriter::GgufWriter(const std::string& path, const GgufLayout& layout)
    : file_(path), layout_(layout) {
  file_.write(layout.header());
}

void GgufWriter::begin(std::string_view name) {
  require(left_ < 0, "end() of one GGUF tensor before begin() of the next");
  require(next_ < static_cast<int64_t>(layout_.tensors().size()) &&
              layout_.tensors()[static_cast<size_t>(next_)].name == name,
          "GGUF tensors written in the order of the layout");
  left_ = layout_.bytes_of(next_);
}

void GgufWriter::append(const void* data, int64_t bytes) {
  require(bytes >= 0 && bytes <= left_, "no more bytes of a GGUF tensor than the layout has");
  file_.write(data, bytes);
  left_ -= bytes;
}

void GgufWriter::end() {
  require(left_ == 0, "all bytes of a GGUF tensor before end()");
  constexpr char kZeros[GgufLayout::kAlignment] = {};
  const int64_t bytes = layout_.bytes_of(next_);
  file_.write(kZeros, padded(bytes) - bytes);
  left_ = -1;
  ++next_;
}

void GgufWriter::commit() {
  require(left_ < 0 && next_ == static_cast<int64_t>(layout_.tensors().size()),
          "all tensors of a GGUF file before commit()");
  file_.commit();
}

}  // namespace snug
