#include "quant/code_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/io/json.h"

namespace snug {
namespace {

constexpr std::string_view kAdvice = "code the weights again with snug quant";

// The offset of doubled scales is known after the header is written: the JSON keeps room for it.
constexpr size_t kOffsetRoom = 32;

bool of_bitsandbytes(std::string_view codec) {
  return codec == "nf4" || codec == "fp4";
}
std::string state_name(const std::string& name, const CodeSpec& spec) {
  return fmt::format("{}{}{}__{}", name, kQuantState,
                     of_bitsandbytes(spec.codec->name) ? "bitsandbytes" : "snug", spec.codec->name);
}

std::string state_text(const CodeSpec& spec, const char* dtype, const std::vector<int64_t>& shape,
                       float offset) {
  nlohmann::ordered_json j = {{"quant_type", spec.codec->name},
                              {"blocksize", spec.block},
                              {"dtype", dtype},
                              {"shape", shape}};
  size_t room = 0;
  if (spec.doubled) {
    j["nested_blocksize"] = kDoubledBlock;
    j["nested_dtype"] = "float32";
    room = j.dump().size() + std::strlen(R"(,"nested_offset":)") + kOffsetRoom;
    j["nested_offset"] = static_cast<double>(offset);
  }
  std::string text = j.dump();
  if (text.size() < room) text.append(room - text.size(), ' ');
  return text;
}

// The values of a codec by code, as PyTorch has them: 16 or 256.
std::vector<float> map_of(const Codec& c, const std::vector<float>& book) {
  if (!book.empty()) return book;
  const size_t size = c.bits == 4 ? 16 : kMaxCodes;
  return {c.book->values, c.book->values + size};
}

const std::vector<float>& nested_map() {
  static const std::vector<float> map = map_of(codec("dynamic8"), {});
  return map;
}

// What a file says of one tensor, looked up and checked.
class Finder {
 public:
  Finder(const SafetensorsFolder& file, std::string path, std::string name)
      : file_(file), path_(std::move(path)), name_(std::move(name)) {}

  const SafeTensor* part(const std::string& suffix, SafeDType dtype, int64_t elements) const {
    const SafeTensor* t = file_.find(name_ + suffix);
    if (t == nullptr)
      fail(ErrorCode::data,
           fmt::format("a tensor {}{} beside its codes in {}", name_, suffix, path_), "none",
           std::string(kAdvice));
    if (t->dtype != dtype || t->elements() != elements)
      fail(ErrorCode::data,
           fmt::format("{} elements of {} as {}{} in {}", elements, to_string(dtype), name_, suffix,
                       path_),
           fmt::format("{} of {}", t->elements(), to_string(t->dtype)), std::string(kAdvice));
    return t;
  }
  // The same with a book, whose bits are known.
  const SafeTensor* book(const std::string& suffix, const std::vector<float>& values) const {
    const SafeTensor* t = part(suffix, SafeDType::F32, static_cast<int64_t>(values.size()));
    for (size_t k = 0; k < values.size(); ++k) {
      float v = 0;
      std::memcpy(&v, t->data + k * sizeof(float), sizeof(float));
      if (v == values[k]) continue;
      fail(ErrorCode::data,
           fmt::format("the codec's own book in {}{} of {}: {} for code {}", name_, suffix, path_,
                       values[k], k),
           fmt::format("{}", v), std::string(kAdvice));
    }
    return t;
  }
  [[noreturn]] void refuse(const std::string& expected, const std::string& found) const {
    fail(ErrorCode::data, fmt::format("{} in the state of {} in {}", expected, name_, path_), found,
         std::string(kAdvice));
  }

 private:
  const SafetensorsFolder& file_;
  std::string path_, name_;
};

std::vector<int64_t> shape_of(const nlohmann::json& j, const Finder& find) {
  const auto at = j.find("shape");
  std::vector<int64_t> shape;
  int64_t n = 1;
  bool good = at != j.end() && at->is_array() && at->size() <= 8;
  if (good)
    for (const nlohmann::json& extent : *at) {
      good = good && extent.is_number_integer() && extent.get<int64_t>() > 0 &&
             extent.get<int64_t>() <= std::numeric_limits<int64_t>::max() / 64 / n;
      if (!good) break;
      shape.push_back(extent.get<int64_t>());
      n *= shape.back();
    }
  if (!good)
    find.refuse("a list \"shape\" of extents above 0", at == j.end() ? "none" : json_brief(*at));
  return shape;
}

DType stored_dtype(const nlohmann::json& j, const Finder& find, const std::string& where) {
  const std::string name = get_string(j, "dtype", where);
  if (name == "float32") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  find.refuse("a \"dtype\" of float32, bfloat16 or float16", fmt::format("\"{}\"", name));
}

CodeSpec spec_of(const nlohmann::json& j, const Finder& find, const std::string& where) {
  const std::string type = get_string(j, "quant_type", where);
  const int64_t block = get_int(j, "blocksize", where);
  const bool doubled = j.contains("nested_blocksize");
  try {
    return CodeSpec(codec(type), block, doubled);
  } catch (const Error& e) {
    find.refuse(e.expected(), e.found());
  }
}

}  // namespace

CodeParts parts_of_state(const SafetensorsFolder& file, const std::string& path,
                         const SafeTensor& state) {
  const std::string name = state.name.substr(0, state.name.find(kQuantState));
  const Finder find(file, path, name);
  if (state.dtype != SafeDType::U8)
    find.refuse("JSON as bytes of U8", fmt::format("{} of {}", state.name, to_string(state.dtype)));
  const std::string where = fmt::format("{} of {}", state.name, path);
  const nlohmann::json j = parse_json(
      {reinterpret_cast<const char*>(state.data), static_cast<size_t>(state.bytes)}, where);
  require_object(j, where);
  CodeParts p{.spec = spec_of(j, find, where),
              .dtype = stored_dtype(j, find, where),
              .shape = shape_of(j, find),
              .elements = 1,
              .codes = nullptr,
              .absmax = nullptr,
              .state = &state};
  for (const int64_t extent : p.shape) p.elements *= extent;
  const Codec& c = *p.spec.codec;
  const int64_t blocks = p.spec.blocks(p.elements);
  p.codes = find.part("", SafeDType::U8, p.spec.code_bytes(p.elements));
  if (p.spec.doubled) {
    if (const int64_t size = get_int(j, "nested_blocksize", where); size != kDoubledBlock)
      find.refuse(fmt::format("a \"nested_blocksize\" of {}", kDoubledBlock),
                  fmt::format("{}", size));
    p.absmax = find.part(".absmax", SafeDType::U8, blocks);
    p.nested_absmax = find.part(".nested_absmax", SafeDType::F32, ceil_div(blocks, kDoubledBlock));
    p.nested_quant_map = find.book(".nested_quant_map", nested_map());
    p.offset = static_cast<float>(get_number(j, "nested_offset", where));
  } else {
    p.absmax = find.part(".absmax", SafeDType::F32, blocks * c.scales());
  }
  if (c.book_of_data())
    p.quant_map = find.part(".quant_map", SafeDType::F32, kMaxCodes);
  else if (c.has_book())
    p.quant_map = find.book(".quant_map", map_of(c, {}));
  return p;
}

const SafeTensor* find_state(const SafetensorsFolder& file, const std::string& name) {
  for (const Codec& c : codecs())
    if (const SafeTensor* const t = file.find(state_name(name, c))) return t;
  return nullptr;
}

namespace {

template <class T>
std::vector<T> contents(const SafeTensor* t) {
  if (t == nullptr) return {};
  std::vector<T> out(static_cast<size_t>(t->bytes) / sizeof(T));
  std::memcpy(out.data(), t->data, out.size() * sizeof(T));
  return out;
}

}  // namespace

void add_code_specs(std::vector<SafeSpec>& specs, const std::string& name,
                    const std::vector<int64_t>& shape, int64_t n, const CodeSpec& spec,
                    const char* dtype) {
  const Codec& c = *spec.codec;
  const int64_t blocks = spec.blocks(n);
  const auto add = [&](const std::string& suffix, SafeDType type, std::vector<int64_t> extents) {
    specs.push_back({name + suffix, type, std::move(extents)});
  };
  add("", SafeDType::U8, c.bits == 4 ? std::vector<int64_t>{spec.code_bytes(n), 1} : shape);
  add(".absmax", spec.doubled ? SafeDType::U8 : SafeDType::F32,
      c.scales() == 2 ? std::vector<int64_t>{blocks, 2} : std::vector<int64_t>{blocks});
  if (c.has_book()) add(".quant_map", SafeDType::F32, {c.bits == 4 ? 16 : kMaxCodes});
  if (spec.doubled) {
    add(".nested_absmax", SafeDType::F32, {ceil_div(blocks, kDoubledBlock)});
    add(".nested_quant_map", SafeDType::F32, {kMaxCodes});
  }
  add(state_name("", spec), SafeDType::U8,
      {static_cast<int64_t>(state_text(spec, dtype, shape, 0).size())});
}

void write_parts(SafetensorsWriter& writer, const std::string& name, const Codes& codes,
                 const CodeSpec& spec, const char* dtype, const std::vector<int64_t>& shape) {
  const auto put = [&](const std::string& full, const void* data, size_t bytes) {
    writer.write(full, data, static_cast<int64_t>(bytes));
  };
  const auto floats = [&](const std::string& suffix, const std::vector<float>& v) {
    put(name + suffix, v.data(), v.size() * sizeof(float));
  };
  put(name, codes.codes.data(), codes.codes.size());
  if (spec.doubled)
    put(name + ".absmax", codes.scale_codes.data(), codes.scale_codes.size());
  else
    floats(".absmax", codes.scales);
  if (spec.codec->has_book()) floats(".quant_map", map_of(*spec.codec, codes.book));
  if (spec.doubled) {
    floats(".nested_absmax", codes.scales);
    floats(".nested_quant_map", nested_map());
  }
  const std::string text = state_text(spec, dtype, shape, codes.offset);
  put(state_name(name, spec), text.data(), text.size());
}

Codes CodeParts::read() const {
  Codes c;
  c.codes = contents<uint8_t>(codes);
  if (spec.doubled) {
    c.scale_codes = contents<uint8_t>(absmax);
    c.scales = contents<float>(nested_absmax);
    c.offset = offset;
  } else {
    c.scales = contents<float>(absmax);
  }
  if (spec.codec->book_of_data()) c.book = contents<float>(quant_map);
  return c;
}

std::vector<CodeParts> find_parts(const SafetensorsFolder& file, const std::string& path) {
  std::vector<CodeParts> out;
  for (const SafeTensor* t : file.tensors())
    if (t->name.find(kQuantState) != std::string::npos)
      out.push_back(parts_of_state(file, path, *t));
  if (out.empty())
    fail(ErrorCode::data, "a file of codes, with a tensor X.quant_state.* for each",
         fmt::format("{}, without one", path),
         "snug quant --codec nf4 --output FILE makes one; without --decode it codes weights");
  return out;
}

}  // namespace snug
