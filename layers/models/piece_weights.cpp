#include "layers/models/piece_weights.h"

#include <algorithm>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/safetensors_pieces.h"
#include "layers/models/adapter_files.h"
#include "layers/models/weight_values.h"
#include "layers/models/weights.h"

namespace snug {

void load_saved_weights(Context& ctx, const Model& model, const std::string& file,
                        const RestingWeights& weights) {
  const SafetensorsPieces pieces(file);
  struct Read {
    std::vector<uint8_t> bytes;
    SafeTensor tensor;
  };
  std::list<Read> read;  // of one parameter
  read_weights(
      ctx, model,
      [&](int param) {
        read.clear();
        std::vector<WeightPart> parts;
        const ParamInfo& p = model.params()[param];
        bool own = false;
        if (is_saved(model, param))
          weights.each(p.offset, p.elements(),
                       [&](const RestingWeights::Piece& piece, int64_t, const View&) {
                         own = own || piece.own;
                       });
        if (!own) return parts;
        for (const FilePiece& piece : saved_pieces(model, param)) {
          const PiecedTensor& t = pieces.at(piece.names.front());
          Read& r = read.emplace_back();
          r.tensor = {t.name, t.dtype, t.shape, nullptr, t.elements() * (bits_of(t.dtype) / 8)};
          check_weight(r.tensor, p, piece, pieces.path());
          r.bytes.resize(static_cast<size_t>(r.tensor.bytes));
          pieces.read(t, r.bytes.data());
          r.tensor.data = r.bytes.data();
          parts.push_back({&r.tensor, piece});
        }
        return parts;
      },
      weights, pieces.path());
  pieces.drop_pages();
}

void join_weights(Context& ctx, const Model& model, const SafetensorsLayout& layout,
                  const std::string& file, const View& staging, const std::string& path) {
  Op op(ctx, "save_weights", {.flops = 0, .bytes = layout.total_bytes()});
  if (!op.run()) return;
  const SafetensorsPieces pieces(file);
  SafetensorsWriter writer(path, layout);
  auto* const values = static_cast<float*>(staging.data);
  const std::vector<SafeSpec>& tensors = layout.tensors();
  const size_t own = tensors.size() - adapter_results(model).size();
  for (const SafeSpec& spec : std::span(tensors).first(own)) {
    const PiecedTensor& t = pieces.at(spec.name);
    const auto dtype = engine_dtype(t.dtype);
    require(dtype.has_value() && t.shape == spec.shape, "pieces of what is written");
    const int64_t rows = t.shape.empty() ? 1 : t.shape[0];
    const int64_t width = rows == 0 ? 0 : t.elements() / rows;
    const int64_t block = std::max<int64_t>(1, staging.bytes() / 4 / std::max<int64_t>(1, width));
    require(std::min(block, rows) * width * 4 <= staging.bytes(), "staging of a row");
    writer.begin(spec.name);
    for (int64_t first = 0; first < rows; first += block) {
      View from = staging;
      from.dtype = *dtype;
      from.shape = {std::min(block, rows - first) * width};
      from.data = values_behind(values, from);
      pieces.read_rows(t, first, std::min(block, rows - first), from.data);
      values_to_f32(values, from);
      append_values(writer, values, from.elements(), spec.dtype, staging);
    }
    writer.end();
  }
  std::vector<uint8_t> bytes;
  const auto values_of = [&](const std::string& name, int64_t first, std::span<float> to) {
    const int param = model.params().find(name);
    const PiecedTensor& t = pieces.at(saved_pieces(model, param).front().names.front());
    const int64_t width = t.elements() / t.shape[0], n = static_cast<int64_t>(to.size());
    require(first % width == 0 && n % width == 0, "whole rows");
    bytes.resize(to.size() * static_cast<size_t>(bits_of(t.dtype) / 8));
    pieces.read_rows(t, first / width, n / width, bytes.data());
    convert(t.dtype, bytes.data(), n, to.data());
  };
  save_results(model, values_of, ctx.threads(), layout, writer, staging);
  writer.commit();
}

}  // namespace snug
