#include "layers/models/coded_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <functional>
#include <string_view>

#include "engine/core/error.h"
#include "quant/weight_codes.h"

namespace snug {
namespace {

// A tensor of either form.
struct StoredCodes {
  CodeSpec spec;
  std::vector<int64_t> shape;
  int64_t elements;
  std::vector<const SafeTensor*> beside;
  std::function<Codes()> read;
};

StoredCodes blocks_of(const SafetensorsFolder& files, const SafeTensor& tensor,
                      const std::string& folder) {
  const SafeTensor* const state = find_state(files, tensor.name);
  if (state == nullptr)
    fail(ErrorCode::data,
         fmt::format("weights of dtype F64, F32, F16 or BF16, or codes with a tensor {}{}* in {}",
                     tensor.name, kQuantState, folder),
         fmt::format("{} of dtype U8 without one", tensor.name),
         "the folder as it was saved, or convert the weights first");
  const CodeParts p = parts_of_state(files, folder, *state);
  StoredCodes stored{p.spec,
                     p.shape,
                     p.elements,
                     {p.absmax, p.quant_map, p.nested_absmax, p.nested_quant_map, p.state},
                     [p] { return p.read(); }};
  std::erase(stored.beside, nullptr);
  return stored;
}

StoredCodes rows_of(const SafetensorsFolder& files, const SafeTensor& tensor,
                    const std::string& folder) {
  constexpr std::string_view kWeight = "weight";
  const std::string layer = tensor.name.ends_with(kWeight)
                                ? tensor.name.substr(0, tensor.name.size() - kWeight.size())
                                : tensor.name + ".";
  const SafeTensor *const scales = files.find(layer + "SCB"), *const format = files.find(
                                                                  layer + "weight_format");
  const std::string expected =
      fmt::format("rows of int8 with a tensor {}SCB of F32, a number a row, in {}", layer, folder);
  const std::string whole = "the folder as it was saved, or convert the weights first";
  if (scales == nullptr)
    fail(ErrorCode::data, expected, fmt::format("{} of dtype I8 without one", tensor.name), whole);
  const bool matrix = tensor.shape.size() == 2 && tensor.shape[1] > 0;
  if (!matrix || scales->dtype != SafeDType::F32 || scales->elements() != tensor.shape[0])
    fail(ErrorCode::data, expected,
         fmt::format("({}) of {} beside {} of ({})", fmt::join(scales->shape, ","),
                     to_string(scales->dtype), tensor.name, fmt::join(tensor.shape, ",")),
         whole);
  if (format != nullptr &&
      (format->dtype != SafeDType::U8 || format->elements() != 1 || format->data[0] != 0))
    fail(ErrorCode::unsupported,
         fmt::format("{} that is 0, rows of int8, in {}", format->name, folder),
         format->dtype == SafeDType::U8 && format->elements() == 1
             ? std::to_string(static_cast<int>(format->data[0]))
             : std::string(to_string(format->dtype)),
         "the base in full precision, which load_in_8bit=true codes itself");
  StoredCodes stored{CodeSpec(codec("int8"), tensor.shape[1]),
                     tensor.shape,
                     tensor.elements(),
                     {scales},
                     [&tensor, scales] {
                       Codes codes;
                       codes.codes.assign(tensor.data, tensor.data + tensor.elements());
                       codes.scales.resize(static_cast<size_t>(scales->elements()));
                       std::memcpy(codes.scales.data(), scales->data,
                                   static_cast<size_t>(scales->bytes));
                       return codes;
                     }};
  if (format != nullptr) stored.beside.push_back(format);
  return stored;
}

StoredCodes codes_of(const SafetensorsFolder& files, const SafeTensor& tensor,
                     const std::string& folder) {
  return tensor.dtype == SafeDType::I8 ? rows_of(files, tensor, folder)
                                       : blocks_of(files, tensor, folder);
}

}  // namespace

bool may_be_codes(const SafeTensor& tensor) {
  return tensor.dtype == SafeDType::U8 || tensor.dtype == SafeDType::I8;
}

void check_codes(const SafetensorsFolder& files, const SafeTensor& tensor,
                 const std::vector<int64_t>& shape, bool transposed, bool allowed,
                 const std::string& folder) {
  const StoredCodes stored = codes_of(files, tensor, folder);
  if (!allowed)
    fail(ErrorCode::unsupported, fmt::format("weights that are no codes in {}", folder),
         fmt::format("{} in {}", tensor.name, stored.spec.codec->name),
         tensor.dtype == SafeDType::I8
             ? "the base in full precision, which load_in_8bit=true of a run codes itself"
             : "snug quant FILE --decode --output model.safetensors makes weights of them, which "
               "are "
               "another base to adapters");
  if (transposed)
    fail(ErrorCode::unsupported,
         fmt::format("codes of weights that the family stores as (out, in), in {}", folder),
         fmt::format("{} in {}, of a layer stored as (in, out)", tensor.name,
                     stored.spec.codec->name),
         "the base in full precision, which peft=qlora codes itself");
  if (stored.shape != shape)
    fail(ErrorCode::data,
         fmt::format("codes of a tensor {} of shape ({}) in {}", tensor.name, fmt::join(shape, ","),
                     folder),
         tensor.dtype == SafeDType::I8
             ? fmt::format("({})", fmt::join(stored.shape, ","))
             : fmt::format("({}), as its state says", fmt::join(stored.shape, ",")),
         "check that config.json and the weights belong together");
}

std::vector<const SafeTensor*> parts_beside(const SafetensorsFolder& files,
                                            const SafeTensor& tensor, const std::string& folder) {
  if (!may_be_codes(tensor)) return {};
  return codes_of(files, tensor, folder).beside;
}

bool put_codes(const SafetensorsFolder& files, const SafeTensor& tensor, const ParamTable& table,
               int param, size_t k, const FilePiece& piece, CodeSink& sink,
               const std::string& folder) {
  const auto* const codes = dynamic_cast<const BlockCodes*>(table.codes());
  if (!may_be_codes(tensor) || codes == nullptr || piece.groups.any()) return false;
  const StoredCodes stored = codes_of(files, tensor, folder);
  const int64_t width = stored.elements / piece.rows;
  const CodeSpec &theirs = stored.spec, ours = codes->spec(width);
  if (theirs.codec != ours.codec || theirs.block != ours.block || theirs.doubled != ours.doubled)
    return false;
  sink.put(param, k, codes->pack(stored.read(), piece.rows, width).data());
  return true;
}

const SafeTensor& DecodedTensors::plain(const SafeTensor* tensor) {
  if (!may_be_codes(*tensor)) return *tensor;
  const StoredCodes stored = codes_of(files_, *tensor, folder_);
  Decoded& d = decoded_.emplace_back();
  d.values = decode_tensor(stored.read(), stored.elements, DType::f32, stored.spec, threads_);
  d.tensor = {tensor->name, SafeDType::F32, stored.shape,
              reinterpret_cast<const uint8_t*>(d.values.data()),
              static_cast<int64_t>(d.values.size())};
  return d.tensor;
}

}  // namespace snug
