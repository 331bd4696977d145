// Adapters in and out of PEFT's folders: adapter_config.json, and adapter_model.safetensors with what
// is trained under PEFT's names (base_model.model.<path of the module>.lora_A.weight).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "layers/models/family.h"
#include "layers/models/model.h"
#include "layers/models/peft.h"

namespace snug {

inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";
inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kBaseFormKey = "snug_base_form";  // metadata of the weights

// The weights that a run of the model saves: all, or, with adapters, those that are trained.
bool is_saved(const Model& model, int param);
const char* weights_file(const Model& model);
// The tensors that such a file has of one of them, in the order of its rows.
std::vector<FilePiece> saved_pieces(const Model& model, int param);

// Whether a folder holds an adapter and no model.
bool is_adapter_folder(const std::string& folder);

// What to name where a folder is no adapter's: that of a run's folder, or how one is called.
std::string adapter_instead_of(const std::string& folder);

// What adapter_config.json says. Throws data and unsupported: a method that is not built, a field that
// asks for what is not there. `notes` gets a line for each field that is not known and left out.
PeftConfig read_adapter_config(const std::string& folder,
                               std::vector<std::string>* notes = nullptr);
// Fields as PEFT 0.21 writes them; the modules by the shortest names that mean these and no others.
void write_adapter_config(const Model& model, const PeftConfig& config, const std::string& folder);

// The tensor of a piece, of its shape. Throws data.
const SafeTensor& adapter_tensor(const SafetensorsReader& file, const ParamInfo& param,
                                 const FilePiece& piece);
// Adds it, and copies of it that the file has under other names of the piece, to `used`. Throws data where
// one of them has other values.
void use_adapter_tensor(const SafetensorsReader& file, const FilePiece& piece,
                        const SafeTensor& tensor, std::set<std::string>& used);
// How the frozen base rested when the adapter of a folder was trained (base_form() of peft.h): full
// where its file does not say, as PEFT's do not.
std::string trained_base_form(const std::string& folder);
// Whether the file of a folder has what encodes its virtual tokens, by which training goes on.
bool has_encoder(const std::string& folder);
// What files have of a model's adapters beside parameters.
struct ModelResult {
  AdaptedLayer layer;
  AdapterResult tensor;
};
std::vector<ModelResult> adapter_results(const Model& model);
// Throws data if the file names another base than the one of this fingerprint.
void check_adapter_base(const SafetensorsReader& file, const std::string& base);

// Of a file of which the tensors `used` were read: warnings about others. Throws data if one of them is an
// adapter's, without which it is not the adapter that was trained.
std::vector<std::string> unused_adapter_tensors(const SafetensorsReader& file,
                                                const std::set<std::string>& used);

// A fingerprint of all weights of a model folder: names, shapes and bytes.
std::string weights_fingerprint(const std::string& folder);

// Reads what is trained from adapter_model.safetensors of a folder, or from that file, to where it
// rests; the base is there already. `base`: its fingerprint; empty: not checked. Throws data, naming
// tensor and shapes, if the adapter is of another model or base, and as unused_adapter_tensors() does,
// whose warnings it returns.
std::vector<std::string> load_adapter(Context& ctx, const Model& model, const std::string& path,
                                      const RestingWeights& weights, const std::string& base);

}  // namespace snug
