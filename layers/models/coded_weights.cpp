#include "layers/models/coded_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/core/error.h"
#include "quant/weight_codes.h"

namespace snug {
namespace {

CodeParts parts_of(const SafetensorsFolder& files, const SafeTensor& tensor,
                   const std::string& folder) {
  const SafeTensor* const state = find_state(files, tensor.name);
  if (state == nullptr)
    fail(ErrorCode::data,
         fmt::format("weights of dtype F64, F32, F16 or BF16, or codes with a tensor {}{}* in {}",
                     tensor.name, kQuantState, folder),
         fmt::format("{} of dtype U8 without one", tensor.name),
         "the folder as it was saved, or convert the weights first");
  return parts_of_state(files, folder, *state);
}

}  // namespace

void check_codes(const SafetensorsFolder& files, const SafeTensor& tensor,
                 const std::vector<int64_t>& shape, bool transposed, bool allowed,
                 const std::string& folder) {
  const CodeParts parts = parts_of(files, tensor, folder);
  if (!allowed)
    fail(ErrorCode::unsupported, fmt::format("weights that are no codes in {}", folder),
         fmt::format("{} in {}", tensor.name, parts.spec.codec->name),
         "snug quant FILE --decode --output model.safetensors makes weights of them, which are "
         "another "
         "base to adapters");
  if (transposed)
    fail(ErrorCode::unsupported,
         fmt::format("codes of weights that the family stores as (out, in), in {}", folder),
         fmt::format("{} in {}, of a layer stored as (in, out)", tensor.name,
                     parts.spec.codec->name),
         "the base in full precision, which peft=qlora codes itself");
  if (parts.shape != shape)
    fail(ErrorCode::data,
         fmt::format("codes of a tensor {} of shape ({}) in {}", tensor.name, fmt::join(shape, ","),
                     folder),
         fmt::format("({}), as its state says", fmt::join(parts.shape, ",")),
         "check that config.json and the weights belong together");
}

std::vector<const SafeTensor*> parts_beside(const SafetensorsFolder& files,
                                            const SafeTensor& tensor, const std::string& folder) {
  if (tensor.dtype != SafeDType::U8) return {};
  const CodeParts p = parts_of(files, tensor, folder);
  std::vector<const SafeTensor*> list = {p.absmax, p.quant_map, p.nested_absmax, p.nested_quant_map,
                                         p.state};
  std::erase(list, nullptr);
  return list;
}

bool put_codes(const SafetensorsFolder& files, const SafeTensor& tensor, const ParamTable& table,
               int param, size_t k, const FilePiece& piece, CodeSink& sink,
               const std::string& folder) {
  const auto* const codes = dynamic_cast<const BlockCodes*>(table.codes());
  if (tensor.dtype != SafeDType::U8 || codes == nullptr || piece.groups.any()) return false;
  const CodeParts parts = parts_of(files, tensor, folder);
  const CodeSpec &theirs = parts.spec, &ours = codes->spec();
  if (theirs.codec != ours.codec || theirs.block != ours.block || theirs.doubled != ours.doubled)
    return false;
  sink.put(param, k, codes->pack(parts.read(), parts.elements).data());
  return true;
}

const SafeTensor& DecodedTensors::plain(const SafeTensor* tensor) {
  if (tensor->dtype != SafeDType::U8) return *tensor;
  const CodeParts parts = parts_of(files_, *tensor, folder_);
  Decoded& d = decoded_.emplace_back();
  d.values = decode_tensor(parts.read(), parts.elements, DType::f32, parts.spec, threads_);
  d.tensor = {tensor->name, SafeDType::F32, parts.shape,
              reinterpret_cast<const uint8_t*>(d.values.data()),
              static_cast<int64_t>(d.values.size())};
  return d.tensor;
}

}  // namespace snug
