// safetensors: any bytes as a file; what is read is written again and read equal.
#include "engine/io/safetensors.h"

#include <algorithm>
#include <cstring>

#include "tests/fuzz/fuzz.h"

namespace snug::fuzz {
namespace {

constexpr int64_t kMostBytes = 1 << 20;  // that are written again

void visit(const SafetensorsReader& file) {
  uint64_t sum = 0;
  for (const SafeTensor& t : file.tensors()) {
    check(t.bytes >= 0 && t.elements() >= 0, "sizes of tensors that are not negative");
    check(file.find(t.name) == &t, "every tensor found by its name");
    for (int64_t i = 0; i < t.bytes; ++i) sum += t.data[i];
    if (!convertible(t.dtype)) continue;
    std::vector<float> wide(static_cast<size_t>(std::min<int64_t>(t.elements(), 4096)));
    convert(t.dtype, t.data, static_cast<int64_t>(wide.size()), wide.data());
    std::vector<bf16> narrow(wide.size());
    convert(t.dtype, t.data, static_cast<int64_t>(narrow.size()), narrow.data());
  }
  check(sum <= 255 * static_cast<uint64_t>(INT64_MAX / 255), "bytes that can be read");
}

void write_again(const SafetensorsReader& file) {
  SafeMetadata metadata = file.metadata();
  metadata.emplace("format", "pt");
  std::vector<SafeSpec> specs;
  int64_t bytes = 0;
  for (const SafeTensor& t : file.tensors()) {
    specs.push_back({t.name, t.dtype, t.shape});
    bytes += t.bytes;
  }
  if (bytes > kMostBytes) return;
  const std::string path = folder() + "/again.safetensors";
  bool written = false;
  holds([&] {
    const SafetensorsLayout layout(metadata, specs);  // may refuse a name that a reader bears
    SafetensorsWriter writer(path, layout);
    for (const SafeTensor& t : file.tensors()) writer.write(t.name, t.data, t.bytes);
    writer.commit();
    written = true;
  });
  if (!written) return;
  must("a written safetensors file is read", [&] {
    const SafetensorsReader again(path);
    check(again.metadata() == metadata, "metadata as it was written");
    check(again.tensors().size() == file.tensors().size(), "all tensors that were written");
    for (const SafeTensor& t : file.tensors()) {
      const SafeTensor& u = again.at(t.name);
      check(u.dtype == t.dtype && u.shape == t.shape && u.bytes == t.bytes &&
                (t.bytes == 0 || std::memcmp(u.data, t.data, static_cast<size_t>(t.bytes)) == 0),
            "tensors as they were written");
    }
  });
}

}  // namespace
}  // namespace snug::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug::fuzz;
  const std::string path = put("a.safetensors", text_of(data, size));
  holds([&] {
    const snug::SafetensorsReader file(path);
    visit(file);
    write_again(file);
  });
  return 0;
}
