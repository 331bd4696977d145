#include "layers/models/adapter_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"
#include "engine/io/safetensors_pieces.h"
#include "layers/adapters/kinds.h"
#include "layers/adapters/prompt_encoder.h"
#include "layers/models/weights.h"

namespace snug {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";

std::string without_end(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

}  // namespace

bool is_saved(const Model& model, int param) {
  return model.adapters().empty() || model.params()[param].trainable ||
         (is_adapter_name(model.params()[param].name.view()) &&
          !is_shared_adapter_name(model.params()[param].name.view()));
}

const char* weights_file(const Model& model) {
  return model.adapters().empty() ? "model.safetensors" : kAdapterWeights;
}

std::vector<FilePiece> saved_pieces(const Model& model, int param) {
  const ParamInfo& p = model.params()[param];
  const Family& family = find_family(model.spec().family, "model");
  if (model.adapters().empty()) return family.pieces(p, model.spec());
  std::vector<FilePiece> pieces;
  if (!is_adapter_name(p.name.view())) {
    pieces = family.pieces(p, model.spec());
    // PEFT wraps an adapted module, whose own parameters are then those of its base_layer.
    const auto adapter = model.adapters().find(without_end(p.name.str()));
    for (size_t k = 0; k < pieces.size(); ++k) {
      const bool wrapped = adapter != model.adapters().end() &&
                           std::any_of(adapter->second.pieces.begin(), adapter->second.pieces.end(),
                                       [&](const AdapterPiece& piece) { return piece.piece == k; });
      for (std::string& name : pieces[k].names) {
        if (wrapped) name.insert(name.rfind('.'), ".base_layer");
        name.insert(0, kPrefix);
      }
    }
    return pieces;
  }
  if (is_shared_adapter_name(p.name.view())) {  // of no file
    FilePiece own;
    own.names = {p.name.str()};
    own.rows = p.rows;
    return {own};
  }
  const PlacedParam placed = adapter_param_of(model, p.name.str());
  const LinearAdapter& adapter = *placed.layer.adapter;
  const int base = model.params().find(placed.layer.name + ".weight");
  const std::vector<FilePiece> of_base = family.pieces(model.params()[base], model.spec());
  for (size_t k = 0; k < adapter.pieces.size(); ++k) {
    if (placed.param.piece >= 0 && k != static_cast<size_t>(placed.param.piece)) continue;
    const FilePiece& from = of_base[adapter.pieces[k].piece];
    FilePiece piece;
    for (const char* end : {placed.param.end, placed.param.other_end})
      for (const std::string& name : from.names)
        if (end)
          piece.names.push_back(placed.param.whole_name
                                    ? end
                                    : fmt::format("{}{}{}", kPrefix, without_end(name), end));
    piece.rows = placed.param.rows_of(adapter, k);
    if (placed.param.by_rows) piece.groups = from.groups;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

bool is_adapter_folder(const std::string& folder) {
  return file_exists(folder + "/" + kAdapterConfig) &&
         !safetensors_there(folder + "/model.safetensors") &&
         !file_exists(folder + "/model.safetensors.index.json");
}

// Of a run's folder the one in it.
std::string adapter_instead_of(const std::string& folder) {
  const std::string own = folder + "/final";
  return file_exists(own + "/" + kAdapterConfig) ? own
                                                 : "final/ of a run with peft, such as run1/final";
}

std::string weights_fingerprint(const std::string& folder) {
  const SafetensorsFolder files(folder);
  std::vector<const SafeTensor*> tensors = files.tensors();
  std::sort(tensors.begin(), tensors.end(),
            [](const SafeTensor* a, const SafeTensor* b) { return a->name < b->name; });
  Fingerprint digest;
  for (const SafeTensor* t : tensors) {
    digest.add(fmt::format("{} {}", t->name, to_string(t->dtype)));
    for (const int64_t extent : t->shape) digest.add(fmt::format(" {}", extent));
    digest.add(t->data, t->bytes);
    for (const SafetensorsReader& file : files.files()) file.drop_pages();
  }
  return fingerprint_text(digest.digest());
}

const SafeTensor& adapter_tensor(const SafetensorsReader& file, const ParamInfo& param,
                                 const FilePiece& piece) {
  for (const std::string& name : piece.names)
    if (const SafeTensor* const tensor = file.find(name)) {
      check_weight(*tensor, param, piece, file.path());
      return *tensor;
    }
  fail(ErrorCode::data, fmt::format("a tensor {} in {}", piece.names.front(), file.path()),
       "none of that name",
       "the model that the adapter was trained on, with its adapter_config.json");
}

void use_adapter_tensor(const SafetensorsReader& file, const FilePiece& piece,
                        const SafeTensor& tensor, std::set<std::string>& used) {
  used.insert(tensor.name);
  for (const std::string& name : piece.names) {
    const SafeTensor* const copy = name == tensor.name ? nullptr : file.find(name);
    if (!copy) continue;
    if (copy->bytes != tensor.bytes ||
        std::memcmp(copy->data, tensor.data, static_cast<size_t>(tensor.bytes)) != 0)
      fail(ErrorCode::data,
           fmt::format("{} of {} as {}, of which it is a copy", name, file.path(), tensor.name),
           "other values", "both files of one folder, as they were saved");
    used.insert(name);
  }
}

std::string trained_base_form(const std::string& folder) {
  const std::string path = folder + "/" + kAdapterWeights;
  if (!safetensors_there(path)) return "full";
  const SafetensorsReader file(path);
  const auto said = file.metadata().find(kBaseFormKey);
  return said == file.metadata().end() ? "full" : said->second;
}

bool has_encoder(const std::string& folder) {
  const std::string path = folder + "/" + kAdapterWeights;
  if (!safetensors_there(path)) return false;
  const SafetensorsReader file(path);
  return std::any_of(file.tensors().begin(), file.tensors().end(),
                     [](const SafeTensor& t) { return t.name.starts_with(kPromptEncoder); });
}

std::vector<ModelResult> adapter_results(const Model& model) {
  std::vector<ModelResult> list;
  for (const auto& [layer, adapter] : model.adapters()) {
    const AdaptedLayer place = adapted_layer_of(model, layer);
    if (const std::optional<AdapterResult> of = adapter.kind->result(place))
      list.push_back({place, *of});
  }
  return list;
}

void check_adapter_base(const SafetensorsReader& file, const std::string& base) {
  const auto said = file.metadata().find("snug_base");
  if (base.empty() || said == file.metadata().end() || said->second == base) return;
  fail(ErrorCode::data,
       fmt::format("the base that {} was trained on, weights {}", file.path(), said->second),
       fmt::format("another one, weights {}", base), "the model folder that it was trained on");
}

std::vector<std::string> unused_adapter_tensors(const SafetensorsReader& file,
                                                const std::set<std::string>& used) {
  std::vector<std::string> warnings;
  for (const SafeTensor& t : file.tensors()) {
    if (used.contains(t.name)) continue;
    if (t.name.starts_with(kPrefix) && is_adapter_name(t.name))
      fail(ErrorCode::data,
           fmt::format("every tensor of an adapter in {} to be one of its adapter_config.json",
                       file.path()),
           t.name, "both files of one folder, as they were saved");
    warnings.push_back(fmt::format("{}: tensor {} is not part of the adapter and was not read",
                                   file.path(), t.name));
  }
  return warnings;
}

namespace {

// Matrices of all layers follow from a seed; of a file that has them too they are to be the same.
void check_shared(const SafetensorsReader& file, const Model& model, std::set<std::string>& used) {
  for (const AdapterKind* kind : kinds_of(model.adapters())) {
    const std::vector<AdaptedLayer> layers = layers_of(model.adapters(), *kind);
    const std::vector<AdapterParam> params = kind->shared(layers);
    const std::vector<std::vector<float>> values = kind->shared_values(layers);
    for (size_t i = 0; i < params.size(); ++i) {
      const SafeTensor* const t =
          file.find("base_model." + params[i].name.substr(params[i].name.find('.') + 1));
      if (!t) continue;
      used.insert(t->name);
      std::vector<float> theirs(static_cast<size_t>(t->elements()));
      if (convertible(t->dtype)) convert(t->dtype, t->data, t->elements(), theirs.data());
      // Rounded where the file is.
      std::vector<float> own = values[i];
      for (float& x : own)
        x = t->dtype == SafeDType::BF16  ? to_f32(from_f32<bf16>(x))
            : t->dtype == SafeDType::F16 ? to_f32(from_f32<f16>(x))
                                         : x;
      if (theirs != own)
        fail(ErrorCode::unsupported,
             fmt::format("{} of {} as its projection_prng_key draws it", t->name, file.path()),
             "another matrix", "an adapter whose config.json has the key that it was made with");
    }
  }
}

}  // namespace

std::vector<std::string> load_adapter(Context& ctx, const Model& model, const std::string& path,
                                      const RestingWeights& weights, const std::string& base) {
  const std::string file = path.ends_with(".safetensors") ? path : path + "/" + kAdapterWeights;
  if (!safetensors_there(file))
    fail(ErrorCode::usage, fmt::format("an adapter with {}", kAdapterWeights), path,
         adapter_instead_of(path));
  const SafetensorsReader reader(file);
  check_adapter_base(reader, base);
  std::set<std::string> used;
  check_shared(reader, model, used);
  for (const ModelResult& result : adapter_results(model)) used.insert(result.tensor.name);
  if (model.front().count > 0)  // beside rows that are read as they are
    for (const SafeTensor& t : reader.tensors())
      if (t.name.starts_with(kPromptEncoder)) used.insert(t.name);
  read_weights(
      ctx, model,
      [&](int param) {
        std::vector<WeightPart> parts;
        if (!is_saved(model, param)) return parts;
        for (const FilePiece& piece : saved_pieces(model, param)) {
          const SafeTensor& tensor = adapter_tensor(reader, model.params()[param], piece);
          use_adapter_tensor(reader, piece, tensor, used);
          parts.push_back({&tensor, piece});
        }
        return parts;
      },
      weights, file);
  return unused_adapter_tensors(reader, used);
}

}  // namespace snug
