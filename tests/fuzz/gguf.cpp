// GGUF: any bytes as a file; what our writer can say of it is written again and read equal.
#include "engine/io/gguf.h"

#include <cmath>
#include <cstring>

#include "tests/fuzz/fuzz.h"

namespace snug::fuzz {
namespace {

constexpr int64_t kMostBytes = 1 << 20;  // that are written again

void visit(const GgufReader& file) {
  for (const GgufKey& key : file.keys()) {
    check(file.find_key(key.name) == &key, "every key found by its name");
    check(file.brief(key).size() < 400, "a short text of any value");
    holds([&] { file.integer(key); });
    holds([&] { file.number(key); });
    holds([&] { file.boolean(key); });
    holds([&] { file.string(key); });
    holds([&] { file.strings(key); });
    holds([&] { file.integers(key); });
  }
  for (const GgufTensor& t : file.tensors()) {
    check(file.find(t.name) == &t, "every tensor found by its name");
    const GgufTypeInfo& info = *gguf_type_info(t.type);
    check(t.bytes == t.elements() / info.elements * info.bytes, "bytes of whole blocks");
    const int64_t n = std::min<int64_t>(t.elements(), 1024) / info.elements * info.elements;
    std::vector<float> out(static_cast<size_t>(n));
    gguf_decode(t.type, t.data, n, out.data());
  }
}

// The keys that the writer has a form for; `text` is what reading them must give.
void add_key(const GgufReader& file, const GgufKey& key, GgufMetadata& out,
             std::vector<const GgufKey*>& added) {
  if (key.kind == GgufKind::u32) {
    out.add(key.name, static_cast<uint32_t>(file.integer(key)));
  } else if (key.kind == GgufKind::f32) {
    out.add(key.name, static_cast<float>(file.number(key)));
  } else if (key.kind == GgufKind::boolean) {
    out.add(key.name, file.boolean(key));
  } else if (key.kind == GgufKind::string) {
    out.add(key.name, file.string(key));
  } else if (key.kind == GgufKind::array && key.element == GgufKind::string) {
    std::vector<std::string> values;
    for (const std::string_view v : file.strings(key)) values.emplace_back(v);
    out.add(key.name, values);
  } else if (key.kind == GgufKind::array && key.element == GgufKind::i32) {
    std::vector<int32_t> values;
    for (const int64_t v : file.integers(key)) values.push_back(static_cast<int32_t>(v));
    out.add(key.name, values);
  } else {
    return;
  }
  added.push_back(&key);
}

void write_again(const GgufReader& file) {
  GgufMetadata metadata;
  std::vector<const GgufKey*> keys;
  std::vector<GgufSpec> specs;
  std::vector<const GgufTensor*> tensors;
  for (const GgufKey& key : file.keys())
    if (key.name != "general.alignment") add_key(file, key, metadata, keys);
  int64_t bytes = static_cast<int64_t>(metadata.bytes().size());
  for (const GgufTensor& t : file.tensors()) {
    if (t.type != 0 && t.type != 1 && t.type != 8 && t.type != 30) continue;
    if (t.shape.empty()) continue;  // the writer has no scalars
    specs.push_back({t.name, static_cast<GgufType>(t.type), t.shape});
    tensors.push_back(&t);
    bytes += t.bytes;
  }
  if (bytes > kMostBytes) return;
  const std::string path = folder() + "/again.gguf";
  must("what is read can be written again", [&] {
    const GgufLayout layout(metadata, specs);
    GgufWriter writer(path, layout);
    for (const GgufTensor* t : tensors) {
      writer.begin(t->name);
      writer.append(t->data, t->bytes / 2);
      writer.append(t->data + t->bytes / 2, t->bytes - t->bytes / 2);
      writer.end();
    }
    writer.commit();
    const GgufReader again(path);
    check(again.keys().size() == keys.size(), "all keys that were written");
    for (size_t i = 0; i < keys.size(); ++i) {
      const GgufKey& k = again.keys()[i];
      check(k.name == keys[i]->name && k.kind == keys[i]->kind && k.count == keys[i]->count &&
                k.bytes == keys[i]->bytes &&
                std::memcmp(k.data, keys[i]->data, static_cast<size_t>(k.bytes)) == 0,
            "keys as they were written");
    }
    check(again.tensors().size() == tensors.size(), "all tensors that were written");
    for (size_t i = 0; i < tensors.size(); ++i) {
      const GgufTensor& t = again.tensors()[i];
      check(t.name == tensors[i]->name && t.type == tensors[i]->type &&
                t.shape == tensors[i]->shape && t.bytes == tensors[i]->bytes &&
                std::memcmp(t.data, tensors[i]->data, static_cast<size_t>(t.bytes)) == 0,
            "tensors as they were written");
    }
  });
}

// The bytes as floats through Q8_0: refused, or within a step of the block's scale.
void quantise(std::string_view bytes) {
  const size_t n = bytes.size() / 4 / kQ8Block * kQ8Block;
  if (n == 0) return;
  std::vector<float> x(n), back(n);
  std::memcpy(x.data(), bytes.data(), n * 4);
  std::vector<uint8_t> blocks(n / kQ8Block * kQ8Bytes);
  if (!q8_0_encode(x.data(), static_cast<int64_t>(n), blocks.data())) return;
  q8_0_decode(blocks.data(), static_cast<int64_t>(n), back.data());
  for (size_t b = 0; b < n; b += kQ8Block) {
    float most = 0;
    for (size_t i = b; i < b + kQ8Block; ++i) most = std::max(most, std::fabs(x[i]));
    // Half a step of rounding; the scale as f16 is off by 2^-11 of itself, or by 2^-25 where it is
    // below f16's normal numbers: 127 times either.
    const float bound = most / 127.0f * (0.5f + 127.0f / 2048.0f + 0.001f) + 127.0f * 0x1p-25f;
    for (size_t i = b; i < b + kQ8Block; ++i)
      check(std::fabs(x[i] - back[i]) <= bound + 0x1p-24f, "Q8_0 within a step");
  }
}

}  // namespace
}  // namespace snug::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug::fuzz;
  const std::string_view bytes = text_of(data, size);
  if (!bytes.starts_with("GGUF")) quantise(bytes);
  holds([&] {
    const snug::GgufReader file("a.gguf", {data, size});
    visit(file);
    write_again(file);
  });
  return 0;
}
