#include <algorithm>
#include <cmath>
#include <map>

#include "engine/core/error.h"
#include "engine/io/gguf.h"
#include "engine/io/json.h"
#include "engine/io/safetensors.h"
#include "engine/io/safetensors_pieces.h"
#include "engine/text/tokenizer.h"
#include "layers/adapters/kinds.h"
#include "layers/models/family.h"
#include "layers/models/model.h"
#include "layers/models/weights.h"
#include "quant/code_parts.h"
#include "quant/weight_codes.h"
#include "tools/inspect/kinds.h"

namespace snug {
namespace {

// Of the values of a tensor, in pieces; mean and deviation of the finite ones (Welford's
// recurrence).
class Statistics {
 public:
  void add(const float* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const double v = static_cast<double>(x[i]);
      nan_ += std::isnan(v);
      inf_ += std::isinf(v);
      zero_ += v == 0;
      if (!std::isfinite(v)) continue;
      ++count_;
      const double off = v - mean_;
      mean_ += off / static_cast<double>(count_);
      squares_ += off * (v - mean_);
      least_ = count_ == 1 ? v : std::min(least_, v);
      most_ = count_ == 1 ? v : std::max(most_, v);
    }
  }
  void write(Facts& out) const {
    const bool any = count_ > 0;
    out["min"] = any ? Facts(least_) : Facts(nullptr);
    out["max"] = any ? Facts(most_) : Facts(nullptr);
    out["mean"] = any ? Facts(mean_) : Facts(nullptr);
    out["std"] = any ? Facts(std::sqrt(squares_ / static_cast<double>(count_))) : Facts(nullptr);
    out["zeros"] = zero_;
    out["nan"] = nan_;
    out["inf"] = inf_;
  }
  int64_t bad() const { return nan_ + inf_; }

 private:
  int64_t count_ = 0, nan_ = 0, inf_ = 0, zero_ = 0;
  double mean_ = 0, squares_ = 0, least_ = 0, most_ = 0;
};

constexpr int64_t kPiece = 1 << 16;

// `read(first, n, out)` for pieces of the tensor; their length is a multiple of any type's block.
template <class Read>
int64_t add_statistics(Facts& row, int64_t elements, Read read) {
  Statistics s;
  std::vector<float> piece(static_cast<size_t>(std::min(elements, kPiece)));
  for (int64_t at = 0; at < elements; at += kPiece) {
    const int64_t n = std::min(kPiece, elements - at);
    read(at, n, piece.data());
    s.add(piece.data(), n);
  }
  s.write(row);
  return s.bad();
}

struct Totals {
  int64_t elements = 0, bytes = 0, bad = 0;
  std::map<std::string, int64_t> by_type;  // tensors
  void write(Facts& out, const InspectOptions& options) const {
    out["parameters"] = elements;
    out["tensor_bytes"] = bytes;
    Facts types = Facts::object();
    for (const auto& [type, count] : by_type) types[type] = count;
    out["dtypes"] = types;
    if (options.stats) out["not_finite"] = bad;
  }
};

Facts tensor_rows(const std::vector<SafetensorsReader>& files, const InspectOptions& options,
                  Totals& totals) {
  Facts rows = Facts::array();
  for (const SafetensorsReader& file : files) {
    for (const SafeTensor& t : file.tensors()) {
      Facts row = {
          {"name", t.name}, {"dtype", to_string(t.dtype)}, {"shape", t.shape}, {"bytes", t.bytes}};
      if (options.stats && convertible(t.dtype)) {
        const int64_t element = bits_of(t.dtype) / 8;
        totals.bad += add_statistics(row, t.elements(), [&](int64_t at, int64_t n, float* out) {
          convert(t.dtype, t.data + at * element, n, out);
        });
        file.drop_pages();
      }
      totals.elements += t.elements();
      totals.bytes += t.bytes;
      ++totals.by_type[to_string(t.dtype)];
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

Facts metadata_of(const SafeMetadata& metadata) {
  Facts out = Facts::object();
  for (const auto& [key, value] : metadata) out[key] = value;
  return out;
}

// `in_pieces`: of tensors that no file has alone.
int64_t size_of_file(const std::string& path, int64_t in_pieces = 0) {
  return safetensors_in_pieces(path) ? in_pieces : MappedFile(path).size();
}

}  // namespace

Facts inspect_safetensors(const std::string& path, const InspectOptions& options) {
  Facts out = {{"kind", "safetensors"}, {"path", path}};
  std::vector<SafetensorsReader> files;
  files.emplace_back(path);
  Totals totals;
  const Facts rows = tensor_rows(files, options, totals);
  out["bytes"] = size_of_file(path, totals.bytes);
  totals.write(out, options);
  out["metadata"] = metadata_of(files[0].metadata());
  out["tensors"] = rows;
  return out;
}

// Of any method of PEFT: what its config says, as it says it, and the tensors.
Facts inspect_adapter(const std::string& folder, const InspectOptions& options) {
  const std::string config = folder + "/adapter_config.json";
  const nlohmann::json j = parse_json_file(config, 1 << 20);
  require_object(j, config);
  Facts out = {{"kind", "adapter"}, {"path", folder}};
  for (const char* key : {"peft_type", "task_type", "base_model_name_or_path", "r", "lora_alpha",
                          "lora_dropout", "target_modules", "modules_to_save", "bias", "use_rslora",
                          "use_dora", "feedforward_modules"})
    if (j.contains(key)) out[key] = j[key];
  if (const auto type = j.find("peft_type"); type != j.end() && type->is_string())
    if (const AdapterMethod* const method =
            find_peft_type(type->get<std::string>(), [&](std::string_view field) {
              return j.value(std::string(field), nlohmann::json()) == true;
            })) {
      for (const AdapterField& field : method->fields)
        if (const std::string key(field.key); j.contains(key)) out[key] = j[key];
      if (!method->flag.empty()) out[std::string(method->flag)] = true;
    }
  std::vector<SafetensorsReader> files;
  files.emplace_back(folder + "/adapter_model.safetensors");
  Totals totals;
  const Facts rows = tensor_rows(files, options, totals);
  totals.write(out, options);
  out["metadata"] = metadata_of(files[0].metadata());
  out["tensors"] = rows;
  return out;
}

namespace {

// What quantization_config says of a folder, and how many of its tensors are codes.
void add_codes(Facts& out, const SafetensorsFolder& files, const std::string& folder) {
  const std::string path = folder + "/config.json";
  if (!file_exists(path)) return;
  const nlohmann::json config = parse_json_file(path);
  const auto q = config.find("quantization_config");
  if (q == config.end() || !q->is_object()) return;
  const auto said = [&](const char* key, Facts otherwise) {
    const auto found = q->find(key);
    return found == q->end() ? otherwise : Facts(*found);
  };
  const Facts method = said("quant_method", nullptr);
  Facts codes = {{"method", method}};
  if (method == "bitsandbytes") {
    const bool eight = said("load_in_8bit", false) == true;
    int64_t tensors = 0;
    for (const SafeTensor* t : files.tensors())
      tensors += eight ? t->dtype == SafeDType::I8 && t->name.ends_with(".weight")
                       : t->name.find(kQuantState) != std::string::npos;
    if (eight) {
      codes["form"] = "int8, a scale a row (LLM.int8())";
      codes["llm_int8_threshold"] = said("llm_int8_threshold", kInt8Threshold);
    } else {
      codes["form"] = said("bnb_4bit_quant_type", "fp4");
      codes["scales_coded"] = said("bnb_4bit_use_double_quant", false);
    }
    codes["tensors"] = tensors;
    codes["whole_modules"] = said("llm_int8_skip_modules", nullptr);
  }
  out["quantization"] = codes;
}

}  // namespace

Facts inspect_model(const std::string& folder, const InspectOptions& options) {
  Facts out = {{"kind", "model"}, {"path", folder}};
  const std::string config_path = folder + "/config.json";
  if (file_exists(config_path)) {
    const nlohmann::json config = parse_json_file(config_path);
    require_object(config, config_path);
    out["model_type"] = get_string(config, "model_type", config_path, "");
    if (config.contains("architectures")) out["architectures"] = config["architectures"];
    if (out["model_type"] == "gpt2") {
      ModelSource source = resolve_model(folder, "");
      if (const auto notes = settle_head(source); !notes.empty()) out["note"] = notes.front();
      const ModelSpec& s = source.spec;
      out["shape"] = {{"vocabulary", s.V}, {"positions", s.P}, {"width", s.C},
                      {"mlp_width", s.F},  {"layers", s.L},    {"heads", s.H}};
      out["tied"] = s.tied;
    }
  }
  const SafetensorsFolder files(folder);
  add_codes(out, files, folder);
  Totals totals;
  const Facts rows = tensor_rows(files.files(), options, totals);
  Facts names = Facts::array();
  for (const SafetensorsReader& file : files.files()) names.push_back(file.path());
  out["files"] = names;
  totals.write(out, options);
  out["metadata"] = metadata_of(files.metadata());
  out["tokenizer"] = holds_tokenizer(folder);
  out["tensors"] = rows;
  return out;
}

Facts inspect_gguf(const std::string& path, const InspectOptions& options) {
  const GgufReader file(path);
  Facts out = {{"kind", "gguf"},
               {"path", path},
               {"bytes", size_of_file(path)},
               {"version", file.version()},
               {"alignment", file.alignment()}};
  Totals totals;
  Facts keys = Facts::object();
  for (const GgufKey& key : file.keys()) keys[key.name] = file.brief(key);
  Facts rows = Facts::array();
  for (const GgufTensor& t : file.tensors()) {
    const GgufTypeInfo& info = *gguf_type_info(t.type);
    Facts row = {{"name", t.name}, {"dtype", info.name}, {"shape", t.shape}, {"bytes", t.bytes}};
    float probe[1];
    if (options.stats && gguf_decode(t.type, t.data, 0, probe)) {
      totals.bad += add_statistics(row, t.elements(), [&](int64_t at, int64_t n, float* x) {
        gguf_decode(t.type, t.data + at / info.elements * info.bytes, n, x);
      });
      file.drop_pages();
    }
    totals.elements += t.elements();
    totals.bytes += t.bytes;
    ++totals.by_type[info.name];
    rows.push_back(std::move(row));
  }
  totals.write(out, options);
  out["keys"] = keys;
  out["tensors"] = rows;
  return out;
}

}  // namespace snug
