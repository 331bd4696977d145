#include "tools/convert/export_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "layers/models/absent_biases.h"
#include "layers/models/family.h"
#include "layers/models/gguf_family.h"
#include "layers/models/model.h"
#include "layers/models/weights.h"
#include "tools/convert/gguf_tokenizer.h"
#include "tools/convert/weight_rows.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

// general.file_type, ggml's LLAMA_FTYPE: what most matrices are.
uint32_t file_type(GgufType type) {
  switch (type) {
    case GgufType::F32:
      return 0;
    case GgufType::F16:
      return 1;
    case GgufType::Q8_0:
      return 7;
    case GgufType::BF16:
      return 32;
  }
  require(false, "a file type for every tensor type");
  return 0;
}

// The type of one tensor: vectors and positions are F32; a row that is no whole number of blocks is
// F16, as other converters do.
GgufType type_of(const std::string& name, const ParamInfo& p, int64_t width, GgufType wanted) {
  if (p.shape.rank() < 2 || gguf_always_f32(name)) return GgufType::F32;
  if (wanted == GgufType::Q8_0 && width % kQ8Block != 0) return GgufType::F16;
  return wanted;
}

[[noreturn]] void fail_range(const std::string& tensor, int64_t row, GgufType type,
                             const std::string& folder) {
  fail(ErrorCode::data,
       fmt::format("weights that {} can hold", gguf_type_info(static_cast<uint32_t>(type))->name),
       fmt::format("a value that is not finite or too large in row {} of {} in {}", row, tensor,
                   folder),
       "--dtype bf16 or --dtype f32");
}

// One row to the file's type. False if a value does not fit.
bool encode_row(GgufType type, const float* x, int64_t n, uint8_t* out) {
  if (type == GgufType::Q8_0) return q8_0_encode(x, n, out);
  if (type == GgufType::BF16) {
    auto* const to = reinterpret_cast<bf16*>(out);
    for (int64_t i = 0; i < n; ++i) to[i] = from_f32<bf16>(x[i]);
    return true;
  }
  auto* const to = reinterpret_cast<f16*>(out);
  bool good = true;
  for (int64_t i = 0; i < n; ++i) {
    to[i] = from_f32<f16>(x[i]);
    good = good && ((to[i].bits & 0x7c00u) != 0x7c00u);
  }
  return good;
}

// A tensor to be written: rows of a parameter.
struct Item {
  WeightRows weight;
  GgufPiece piece;
  std::string source;  // the folder's tensor
};

void write_tensor(GgufWriter& writer, const GgufSpec& spec, const Item& item,
                  const std::string& folder, std::vector<float>& block,
                  std::vector<uint8_t>& encoded) {
  const WeightRows& weight = item.weight;
  const GgufTypeInfo& info = *gguf_type_info(static_cast<uint32_t>(spec.type));
  const int64_t width = weight.width(), step = weight.block(),
                row_bytes = width / info.elements * info.bytes;
  block.resize(
      static_cast<size_t>(std::max<int64_t>(static_cast<int64_t>(block.size()), step * width)));
  if (spec.type != GgufType::F32)
    encoded.resize(static_cast<size_t>(
        std::max<int64_t>(static_cast<int64_t>(encoded.size()), step * row_bytes)));
  writer.begin(spec.name);
  for (int64_t first = 0; first < item.piece.rows; first += step) {
    const int64_t n = std::min(step, item.piece.rows - first);
    weight.read(item.piece, first, n, block.data());
    if (spec.type == GgufType::F32) {
      writer.append(block.data(), n * width * 4);
      continue;
    }
    for (int64_t r = 0; r < n; ++r)
      if (!encode_row(spec.type, block.data() + r * width, width, encoded.data() + r * row_bytes))
        fail_range(item.source, first + r, spec.type, folder);
    writer.append(encoded.data(), n * row_bytes);
  }
  writer.end();
}

// What the model is called: as its config says where it came from, else as its folder, or that of its run.
std::string model_name(const std::string& folder) {
  const nlohmann::json config = parse_json_file(folder + "/config.json", 1 << 24);
  std::string from = get_string(config, "_name_or_path", folder + "/config.json", "");
  while (from.ends_with("/")) from.pop_back();
  fs::path path = from.empty() ? normal_path(folder) : from;
  const std::string name = path.filename().string();
  if (from.empty() && (name == "final" || name.starts_with("checkpoint-")) &&
      path.parent_path().has_filename())
    path = path.parent_path();
  return path.filename().string();
}

}  // namespace

ExportReport export_gguf(const GgufExport& request) {
  const std::string& folder = request.model;
  ModelSource source = resolve_model(folder, "");
  std::vector<std::string> notes = settle_head(source);
  const Family& family = find_family(source.spec.family, folder);
  if (!family.gguf)
    fail(ErrorCode::unsupported, "a model family that is written as GGUF",
         fmt::format("{} in {}", source.spec.family, folder), "--to hf");
  if (source.spec.head != HeadKind::causal_lm)
    fail(ErrorCode::unsupported, "a model with a head of causal_lm to write as GGUF",
         fmt::format("{} in {}", source.spec.architecture, folder), "--to hf");
  const std::vector<std::string> said =
      check_gguf(*family.gguf, source.spec, folder + "/config.json");
  const Tokenizer tokenizer = Tokenizer::load(folder);
  if (tokenizer.vocab_size() > source.spec.V)
    fail(ErrorCode::data,
         fmt::format("a tokenizer of at most {} tokens, the vocab_size of {}/config.json",
                     source.spec.V, folder),
         fmt::format("{} tokens", tokenizer.vocab_size()),
         "put the tokenizer that the model was trained with into the folder");
  const Model model(source.spec, parse_precision("fp32"));
  const SafetensorsFolder files = open_weights(model, folder);

  ExportReport report;
  GgufMetadata keys;
  keys.add("general.architecture", family.gguf->name);
  keys.add("general.type", "model");
  const std::string name = request.name.empty() ? model_name(folder) : request.name;
  keys.add("general.name", name);
  keys.add("general.file_type", file_type(request.type));
  keys.add("general.quantization_version", uint32_t{2});
  add_gguf_keys(*family.gguf, source.spec, keys);
  report.notes = add_gguf_tokenizer(tokenizer, source.spec, request.pre, folder, keys);
  notes.insert(notes.end(), said.begin(), said.end());
  for (std::string& note : check_gguf_name(tokenizer, name)) notes.push_back(std::move(note));
  for (std::string& note : unused_tensors(model, files, folder)) notes.push_back(std::move(note));
  for (std::string& note : notes) report.notes.push_back(std::move(note));

  std::vector<Item> items;
  std::vector<GgufSpec> specs;
  int64_t kept = 0;
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    const std::vector<const SafeTensor*> tensors = find_weight(files, model, i, folder);
    const WeightRows weight(tensors, family.pieces(p, source.spec), p);
    const std::vector<GgufPiece> pieces = gguf_pieces(family, p, source.spec);
    for (size_t k = 0; k < pieces.size(); ++k) {
      const GgufPiece& piece = pieces[k];
      const GgufType type = type_of(piece.name, p, weight.width(), request.type);
      kept += request.type == GgufType::Q8_0 && type == GgufType::F16;
      specs.push_back({piece.name, type,
                       p.shape.rank() < 2 ? std::vector<int64_t>{piece.rows}
                                          : std::vector<int64_t>{piece.rows, weight.width()}});
      items.push_back({weight, piece, tensors[std::min(k, tensors.size() - 1)]->name});
    }
    report.parameters += p.real_elements();
  }
  const std::vector<GgufVector> vectors = gguf_vectors(source.spec);
  for (const GgufVector& vector : vectors)
    specs.push_back({vector.name, GgufType::F32, {static_cast<int64_t>(vector.values.size())}});
  if (kept > 0)
    report.notes.push_back(fmt::format(
        "{} matrices are F16: their rows are no whole number of Q8_0's blocks of 32", kept));
  const GgufLayout layout(keys, std::move(specs));
  GgufWriter writer(request.output, layout);
  std::vector<float> block;
  std::vector<uint8_t> encoded;
  for (size_t k = 0; k < items.size(); ++k) {
    write_tensor(writer, layout.tensors()[k], items[k], folder, block, encoded);
    for (const SafetensorsReader& file : files.files()) file.drop_pages();
  }
  for (const GgufVector& vector : vectors) {
    writer.begin(vector.name);
    writer.append(vector.values.data(), static_cast<int64_t>(vector.values.size()) * 4);
    writer.end();
  }
  writer.commit();
  report.tensors = static_cast<int64_t>(layout.tensors().size());
  report.bytes = layout.total_bytes();
  return report;
}

}  // namespace snug
