#include "layers/models/absent_biases.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/core/error.h"
#include "layers/adapters/kinds.h"
#include "layers/models/family.h"

namespace snug {
namespace {

bool all_zero(const SafeTensor& tensor) {
  if (!convertible(tensor.dtype)) return true;  // is refused where it is read
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  convert(tensor.dtype, tensor.data, tensor.elements(), values.data());
  return std::all_of(values.begin(), values.end(), [](float v) { return v == 0.0f; });
}

}  // namespace

SafetensorsFolder open_weights(const Model& model, const std::string& folder) {
  SafetensorsFolder files(folder);
  const ModelSpec& spec = model.spec();
  if (!spec.zero_biases) return files;
  const Family& family = find_family(spec.family, folder);
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    if (!p.name.view().ends_with(".bias") || is_adapter_name(p.name.view())) continue;
    for (const FilePiece& piece : family.pieces(p, spec)) {
      const SafeTensor* tensor = nullptr;
      for (const std::string& name : piece.names)
        if (!tensor) tensor = files.find(name);
      if (!tensor)
        files.add_zeros(piece.names.front(), {piece.rows});
      else if (!all_zero(*tensor))
        fail(ErrorCode::data,
             fmt::format("biases of zero in {}, whose config.json says bias: false", folder),
             fmt::format("a value in {} that is not", tensor->name),
             "bias: true in its config.json");
    }
  }
  return files;
}

}  // namespace snug
