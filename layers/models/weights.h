// Weights in and out of model folders, between the flat range and Hugging Face's names and layouts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "layers/models/family.h"
#include "layers/models/model.h"

namespace snug {

class FactorsOfBase;

// Reads every parameter from model.safetensors, its shards, or a single file to where it rests (f32,
// bf16 or f16; gaps and padded rows become zero). Shapes are checked, layouts
// and dtypes converted, each value rounded once. Throws data, naming file and tensor, if one is
// missing, of another shape, or has a value that f16 cannot hold. Returns warnings about tensors
// nobody asked for. Tensors in codes under the names of bitsandbytes are decoded; those that rest in the
// same codes here are taken as they are.
// A head that the files do not have is drawn from `seed` as in a new model: missing_weights(). So are
// adapters. `factors`: of such as are made of the base (adapted_base.h), found before; null: they are found here.
std::vector<std::string> load_weights(const Model& model, const std::string& folder,
                                      const RestingWeights& weights, int threads,
                                      uint64_t seed = 0);

// The same on any place: they are written through the context, a parameter at a time.
std::vector<std::string> load_weights(Context& ctx, const Model& model, const std::string& folder,
                                      const RestingWeights& weights, uint64_t seed = 0,
                                      const FactorsOfBase* factors = nullptr);
// The tensors of a head that the files of a base model do not have.
std::vector<std::string> missing_weights(const Model& model, const std::string& folder);

// Whether the model of a folder has a head of its own, which its files say: one that differs from
// the embedding it is called tied to is kept, and source.spec is untied. Returns the line that says
// so, or nothing. Throws data on a head of another shape.
std::vector<std::string> settle_head(ModelSource& source);

// The tensors that hold a parameter, in the order of its rows, under any of the family's names, of
// the shapes they must have and dtypes that convert() takes; none of a head that is not there.
// Throws data or unsupported, naming file and tensor. With `coded`, one may be in codes under the names
// of bitsandbytes (quant/code_parts.h), of which this is the tensor of codes, checked with the others.
std::vector<const SafeTensor*> find_weight(const SafetensorsFolder& files, const Model& model,
                                           int param, const std::string& folder,
                                           bool coded = false);

// The order of a parameter's rows in files: that of its one tensor, or none where it has several.
RowGroups row_groups(const Model& model, int param);

// A warning for each tensor of the files that no parameter asks for and that is no known leftover.
std::vector<std::string> unused_tensors(const Model& model, const SafetensorsFolder& files,
                                        const std::string& folder);

// One tensor of a file for rows of a parameter.
struct WeightPart {
  const SafeTensor* tensor;
  FilePiece piece;
};
// Reads the parameters that `parts` has something for, and leaves the others. `origin` names the
// files in messages.
void read_weights(Context& ctx, const Model& model,
                  const std::function<std::vector<WeightPart>(int param)>& parts,
                  const RestingWeights& weights, const std::string& origin);
// Throws data or unsupported unless the tensor has the shape of the piece and a dtype of weights.
void check_weight(const SafeTensor& tensor, const ParamInfo& param, const FilePiece& piece,
                  const std::string& origin);

// The layout of what a run saves (adapter_files.h): of a model.safetensors with every parameter in
// `dtype`, or of an adapter_model.safetensors, with the fingerprint of its base, if there is one. Made
// before a run starts, so that writing allocates nothing. results: with what an encoder makes of its
// parameters, which a checkpoint, of parameters alone, has not.
SafetensorsLayout weights_layout(const Model& model, DType dtype, const std::string& base = "",
                                 bool results = true);

// Writes what files of that layout have beside parameters, its last tensors, made of the values that `of` gives.
void save_results(const Model& model, const ParamValues& of, int threads,
                  const SafetensorsLayout& layout, SafetensorsWriter& writer, const View& staging);

// Bytes of staging save_weights needs: one block of rows of the widest parameter.
int64_t save_staging_bytes(const Model& model);
// Of the largest parameter that is transposed in files, as f32. Where the host cannot read the
// device's tensors it is read as a whole before it is turned.
int64_t turned_bytes(const Model& model);

// All elements of a parameter: where they rest if the host reads them there in one piece, else read to
// `room`, turned_bytes() at most.
View whole_parameter(Context& ctx, const RestingWeights& weights, const ParamInfo& param,
                     void* room);

// Writes what a run saves from where the weights rest; rows are converted and transposed through
// `staging`. Where the host cannot read them there, or they lie in pieces, the staging is in the host
// arena and has turned_bytes() more.
// A recorded op.
void save_weights(Context& ctx, const Model& model, const SafetensorsLayout& layout,
                  const RestingWeights& weights, const View& staging, const std::string& path);

// Writes config.json and generation_config.json of the folder.
void save_model_config(const Model& model, const std::string& folder, DType dtype);

}  // namespace snug
