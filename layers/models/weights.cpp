#include "layers/models/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_set>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/io/json.h"
#include "engine/seams/weight_codes.h"
#include "layers/adapters/kinds.h"
#include "layers/models/absent_biases.h"
#include "layers/models/adapted_base.h"
#include "layers/models/adapter_files.h"
#include "layers/models/coded_weights.h"
#include "layers/models/weight_values.h"

namespace snug {
namespace {

// Shape of a piece in the file: padding cut, transposed where the family stores (in, out).
std::vector<int64_t> file_shape(const ParamInfo& p, int64_t rows) {
  std::vector<int64_t> shape;
  for (int i = 0; i < p.shape.rank(); ++i) shape.push_back(i == 0 ? rows : p.shape[i]);
  if (p.transposed_in_file && shape.size() == 2) std::swap(shape[0], shape[1]);
  return shape;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string s = "(";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? "," : "") + std::to_string(shape[i]);
  return s + ")";
}

// Rows of the transposed matrix that fit in 256 KiB of f32, at least 1.
int64_t rows_per_block(int64_t width) {
  return std::max<int64_t>(1, (256 << 10) / std::max<int64_t>(1, width * 4));
}

// `out`: where the piece's first row goes.
template <class T>
void load_one(const SafeTensor& t, const ParamInfo& p, const FilePiece& piece_of, T* out,
              int threads) {
  if (const RowGroups& groups = piece_of.groups; groups.any()) {
    const int64_t width = t.elements() / piece_of.rows, element = bits_of(t.dtype) / 8;
    parallel_chunks(threads, piece_of.rows / groups.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t run = begin; run < end; ++run)
        convert(t.dtype, t.data + run * groups.rows * width * element, groups.rows * width,
                out + groups.ours(run * groups.rows) * width);
    });
    return;
  }
  if (!(p.transposed_in_file && p.shape.rank() == 2)) {
    convert(t.dtype, t.data, t.elements(), out);
    return;
  }
  const int64_t rows = p.shape[0], cols = p.shape[1];  // ours: (out, in); the file's: (in, out)
  const int64_t element = bits_of(t.dtype) / 8;
  // 16 file rows at a time, converted on the stack in pieces of 256, then scattered to columns.
  parallel_chunks(threads, cols, 16, [&](int64_t begin, int64_t end) {
    T piece[256];
    for (int64_t c = begin; c < end; ++c)
      for (int64_t r0 = 0; r0 < rows; r0 += 256) {
        const int64_t n = std::min<int64_t>(256, rows - r0);
        convert(t.dtype, t.data + (c * rows + r0) * element, n, piece);
        for (int64_t i = 0; i < n; ++i) out[(r0 + i) * cols + c] = piece[i];
      }
  });
}

// f16 ends at 65504: what lies beyond would compute infinities.
void load_f16(const SafeTensor& t, const ParamInfo& p, const FilePiece& piece, f16* out,
              int threads, const std::string& folder) {
  load_one(t, p, piece, out, threads);
  for (int64_t i = 0; i < t.elements(); ++i)
    if ((out[i].bits & 0x7c00u) == 0x7c00u)
      fail(ErrorCode::data, "weights that fp16 can hold, 65504 at most",
           fmt::format("an element of {} in {} that is larger or not finite", t.name, folder),
           "precision=bf16, or fp32");
}

// A tensor to the codes that it rests in: a NaN or an infinity would spoil its block, doubled scales
// the whole tensor.
void load_coded(const SafeTensor& t, const ParamInfo& p, const FilePiece& piece, CodeSink& sink,
                int param, size_t k, bool to_f16, const WeightCodes& codes, int threads,
                const std::string& folder) {
  sink.code(param, k, [&](float* out) {
    load_one(t, p, piece, out, threads);
    const bool bounded = to_f16 || codes.of_f16();
    const float most = bounded ? kMostOfF16 : std::numeric_limits<float>::max();
    for (int64_t i = 0; i < t.elements(); ++i)
      if (!(std::fabs(out[i]) <= most))
        fail(ErrorCode::data,
             bounded ? "weights that fp16 can hold, 65504 at most" : "finite weights, to be coded",
             fmt::format("element {} of {} in {} that is {}", i, t.name, folder, out[i]),
             codes.of_f16() ? "load_in_4bit=true in place of load_in_8bit, or none of the two"
             : to_f16       ? "precision=bf16, or fp32"
                            : "a base whose weights are whole");
  });
}

// The first of the names that the files have; null if they have none.
const SafeTensor* first_of(const SafetensorsFolder& files, const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (const SafeTensor* const tensor = files.find(name)) return tensor;
  return nullptr;
}

// Of equal shapes; of two dtypes, the values as f32.
bool same_values(const SafeTensor& a, const SafeTensor& b) {
  const int64_t n = a.elements();
  if (a.dtype == b.dtype)
    return std::memcmp(a.data, b.data, static_cast<size_t>(n * bits_of(a.dtype) / 8)) == 0;
  if (!convertible(a.dtype) || !convertible(b.dtype)) return false;
  float left[256], right[256];
  for (int64_t i = 0; i < n; i += 256) {
    const int64_t count = std::min<int64_t>(256, n - i);
    convert(a.dtype, a.data + i * (bits_of(a.dtype) / 8), count, left);
    convert(b.dtype, b.data + i * (bits_of(b.dtype) / 8), count, right);
    if (std::memcmp(left, right, static_cast<size_t>(count) * 4) != 0) return false;
  }
  return true;
}

// The tensors of embedding and head in the files of a tied model, if both are there.
std::pair<const SafeTensor*, const SafeTensor*> embedding_and_head(const SafetensorsFolder& files,
                                                                   const Family& family,
                                                                   ModelSpec spec) {
  spec.tied = false;  // each by its own names
  const auto find = [&](const char* name) {
    ParamInfo param;
    param.name = Name(name);
    param.rows = 1;
    return first_of(files, family.pieces(param, spec).front().names);
  };
  return {find(family.embedding), find(family.head)};
}

}  // namespace

std::vector<std::string> settle_head(ModelSource& source) {
  const bool reads_tokens =
      source.spec.head == HeadKind::causal_lm || source.spec.head == HeadKind::masked_lm;
  if (source.folder.empty() || !source.spec.tied || !reads_tokens) return {};
  const Family& family = find_family(source.spec.family, source.folder);
  const SafetensorsFolder files(source.folder);
  const auto [embedding, head] = embedding_and_head(files, family, source.spec);
  if (!embedding || !head) return {};
  if (head->shape != embedding->shape)
    fail(ErrorCode::data,
         fmt::format("{} of shape {} in {}, as the embedding that it is tied to", head->name,
                     shape_text(embedding->shape), source.folder),
         shape_text(head->shape), "check that config.json and the weights belong together");
  const bool same = same_values(*embedding, *head);
  for (const SafetensorsReader& file : files.files()) file.drop_pages();
  if (same) return {};
  source.spec.tied = false;
  return {
      fmt::format("{} differs from {} in {}, whose config.json calls them tied: the model keeps "
                  "both, with tie_word_embeddings: false",
                  head->name, embedding->name, source.folder)};
}

void check_weight(const SafeTensor& tensor, const ParamInfo& p, const FilePiece& piece,
                  const std::string& origin) {
  const std::vector<int64_t> expected = file_shape(p, piece.rows);
  if (tensor.shape != expected)
    fail(ErrorCode::data,
         fmt::format("{} of shape {} in {}", tensor.name, shape_text(expected), origin),
         shape_text(tensor.shape), "check that config.json and the weights belong together");
  if (!convertible(tensor.dtype))
    fail(ErrorCode::unsupported, "weights of dtype F64, F32, F16 or BF16",
         fmt::format("{} of dtype {} in {}", tensor.name, to_string(tensor.dtype), origin),
         "convert the weights first");
}

namespace {

// Of a base model's files; an adapter's has none there.
std::vector<FilePiece> pieces_of(const Model& model, int param, const std::string& origin) {
  if (is_adapter_name(model.params()[param].name.view())) return {};
  return find_family(model.spec().family, origin).pieces(model.params()[param], model.spec());
}

// The tensor of a piece; null if the files have none.
const SafeTensor* find_piece(const SafetensorsFolder& files, const ParamInfo& p,
                             const FilePiece& piece, const std::string& folder, bool coded) {
  const SafeTensor* const tensor = first_of(files, piece.names);
  if (!tensor) return nullptr;
  if (may_be_codes(*tensor))
    check_codes(files, *tensor, file_shape(p, piece.rows), p.transposed_in_file, coded, folder);
  else
    check_weight(*tensor, p, piece, folder);
  return tensor;
}

[[noreturn]] void no_tensor(const FilePiece& piece, const Family& family,
                            const std::string& folder) {
  const std::string& first = piece.names.front();
  std::string found = "none of that name";
  for (const std::string& other : piece.names)
    if (other.size() < first.size() && first.ends_with(other))
      found = fmt::format("none of that name, with or without the prefix {}",
                          first.substr(0, first.size() - other.size()));
  fail(ErrorCode::data, fmt::format("a tensor {} in {}", first, folder), found,
       family.reads_bias && first.ends_with(".bias")
           ? "\"bias\": false in its config.json, if it is a model without biases; else check that "
             "config.json and the weights belong together"
           : "check that config.json and the weights belong together");
}

// A head that the files of a base model, or of a model with another head, do not have.
bool may_be_missing(const ModelSpec& spec, const ParamInfo& p) {
  const std::string_view name = p.name.view();
  if (spec.causal) return spec.head != HeadKind::causal_lm && name.starts_with("head.out.");
  return name.starts_with("head.") || name.starts_with("lm_head.");
}

}  // namespace

std::vector<const SafeTensor*> find_weight(const SafetensorsFolder& files, const Model& model,
                                           int param, const std::string& folder, bool coded) {
  const ParamInfo& p = model.params()[param];
  std::vector<const SafeTensor*> tensors;
  for (const FilePiece& piece : pieces_of(model, param, folder)) {
    const SafeTensor* const tensor = find_piece(files, p, piece, folder, coded);
    if (!tensor && tensors.empty() && may_be_missing(model.spec(), p)) return {};
    if (!tensor) no_tensor(piece, find_family(model.spec().family, folder), folder);
    tensors.push_back(tensor);
  }
  return tensors;
}

RowGroups row_groups(const Model& model, int param) {
  const std::vector<FilePiece> pieces = saved_pieces(model, param);
  return pieces.size() == 1 ? pieces.front().groups : RowGroups{};
}

std::vector<std::string> missing_weights(const Model& model, const std::string& folder) {
  const SafetensorsFolder files = open_weights(model, folder);
  std::vector<std::string> names;
  for (int i = 0; i < model.params().size(); ++i)
    if (!is_adapter_name(model.params()[i].name.view()) &&
        find_weight(files, model, i, folder, true).empty())
      names.push_back(pieces_of(model, i, folder).front().names.front());
  return names;
}

std::vector<std::string> unused_tensors(const Model& model, const SafetensorsFolder& files,
                                        const std::string& folder) {
  const Family& family = find_family(model.spec().family, folder);
  std::unordered_set<std::string> used;
  for (int i = 0; i < model.params().size(); ++i) {
    const std::vector<const SafeTensor*> tensors = find_weight(files, model, i, folder, true);
    const std::vector<FilePiece> pieces = pieces_of(model, i, folder);
    for (size_t k = 0; k < tensors.size(); ++k) {
      used.insert(tensors[k]->name);
      for (const SafeTensor* part : parts_beside(files, *tensors[k], folder))
        used.insert(part->name);
      // Another spelling of the same tensor, the head of a tied model among them.
      for (const std::string& name : pieces[k].names) {
        const SafeTensor* const other = files.find(name);
        if (!other || other == tensors[k]) continue;
        const bool same = other->shape == tensors[k]->shape && same_values(*other, *tensors[k]);
        // A head that differs is settle_head's; whoever did not ask it hears that it was not read.
        if (!same && model.params()[i].name.view() == family.embedding) continue;
        if (!same)
          fail(ErrorCode::data,
               fmt::format("{} and {} of {}, which are one parameter, to be equal",
                           tensors[k]->name, name, folder),
               "two that differ", "remove the one that is not meant");
        used.insert(name);
      }
    }
  }
  std::vector<std::string> warnings;
  for (const SafeTensor* t : files.tensors())
    if (!used.count(t->name) && !family.ignorable(t->name))
      warnings.push_back(
          fmt::format("{}: tensor {} is not part of the model and was not read", folder, t->name));
  return warnings;
}

namespace {

// Where parameter i lies until it is in its place: there already, or in a block of its own size.
class ParamTarget {
 public:
  // With `clear`, all is zero until it is filled.
  ParamTarget(Context* ctx, const ParamTable& table, const RestingWeights& weights,
              bool clear = true)
      : ctx_(ctx && !ctx->host_reads() ? ctx : nullptr), table_(table), weights_(weights) {
    for (const RestingWeights::Piece& piece : weights.pieces()) {
      const DType t = piece.view.dtype;
      require(t == DType::f32 || t == DType::bf16 || t == DType::f16,
              "parameters of f32, bf16 or f16");
      if (!ctx_ && clear && piece.own)
        std::memset(piece.view.data, 0, static_cast<size_t>(piece.view.bytes()));
    }
  }
  // f(T* parameter), with the type that it rests in.
  template <class F>
  void fill(int i, F&& f) {
    // With the gap behind it, which becomes zero.
    const int64_t begin = table_[i].offset, n = table_.end_of(i) - begin;
    bool wanted = false;  // nothing of it may be this rank's
    DType dtype = DType::f32;
    weights_.each(begin, n, [&](const RestingWeights::Piece& piece, int64_t, const View& rows) {
      wanted = wanted || piece.own;
      dtype = rows.dtype;
    });
    if (!wanted) return;
    const bool there = !ctx_ && weights_.whole(begin, n);
    if (!there) block_.assign(static_cast<size_t>(n * size_of(dtype)), std::byte{0});
    void* const to = there ? weights_.rows(begin, n).data : block_.data();
    if (dtype == DType::bf16)
      f(static_cast<bf16*>(to));
    else if (dtype == DType::f16)
      f(static_cast<f16*>(to));
    else
      f(static_cast<float*>(to));
    if (there) return;
    weights_.each(begin, n,
                  [&](const RestingWeights::Piece& piece, int64_t first, const View& rows) {
                    if (!piece.own) return;
                    const std::byte* const from = block_.data() + (first - begin) * size_of(dtype);
                    if (ctx_)
                      ctx_->write(rows, from);
                    else
                      std::memcpy(rows.data, from, static_cast<size_t>(rows.bytes()));
                  });
  }

 private:
  Context* ctx_;
  const ParamTable& table_;
  const RestingWeights& weights_;
  std::vector<std::byte> block_;
};

std::vector<std::string> load_weights(Context* ctx, const Model& model, const std::string& folder,
                                      const RestingWeights& weights, int threads, uint64_t seed,
                                      const FactorsOfBase* factors) {
  const SafetensorsFolder files = open_weights(model, folder);
  const ParamTable& table = model.params();
  ParamTarget target(ctx, table, weights);
  AdaptedBase adapted(model, factors, threads);
  for (int i = 0; i < table.size(); ++i) {
    const ParamInfo& p = table[i];
    std::vector<const SafeTensor*> tensors = find_weight(files, model, i, folder, true);
    const std::vector<FilePiece> pieces = pieces_of(model, i, folder);
    adapted.clear();
    if (p.coded()) {
      require(pieces.size() == p.code_rows.size(), "codes of each tensor of the files");
      for (size_t k = 0; k < tensors.size(); ++k) {
        const bool takes = adapted.takes(i, k);
        if (!takes && put_codes(files, *tensors[k], table, i, k, pieces[k], weights.sink(), folder))
          continue;
        DecodedTensors decoded(files, threads, folder);
        const SafeTensor& plain = decoded.plain(tensors[k]);
        load_coded(takes ? adapted.base(i, k, pieces[k], plain) : plain, p, pieces[k],
                   weights.sink(), i, k, model.precision().compute == DType::f16, *table.codes(),
                   threads, folder);
      }
      continue;
    }
    DecodedTensors decoded(files, threads, folder);
    for (size_t k = 0; k < tensors.size(); ++k) {
      tensors[k] = &decoded.plain(tensors[k]);
      adapted.look(i, *tensors[k]);
      if (adapted.takes(i, k)) tensors[k] = &adapted.base(i, k, pieces[k], *tensors[k]);
    }
    target.fill(i, [&]<class T>(T* out) {
      if (const std::vector<float>* const first = adapted.first(i)) {
        convert(SafeDType::F32, reinterpret_cast<const char*>(first->data()), p.elements(), out);
        return;
      }
      if (tensors.empty()) {  // as a new model has it
        std::vector<float> values(static_cast<size_t>(p.elements()), 0.0f);
        init_parameter(table, i, values.data(), seed);
        convert(SafeDType::F32, reinterpret_cast<const char*>(values.data()), p.elements(), out);
      }
      for (size_t k = 0; k < tensors.size(); ++k) {
        if constexpr (std::is_same_v<T, f16>)
          load_f16(*tensors[k], p, pieces[k], out, threads, folder);
        else
          load_one(*tensors[k], p, pieces[k], out, threads);
        out += tensors[k]->elements();
      }
    });
  }
  std::vector<std::string> warnings = unused_tensors(model, files, folder);
  for (const SafetensorsReader& file : files.files()) file.drop_pages();
  return warnings;
}

}  // namespace

std::vector<std::string> load_weights(const Model& model, const std::string& folder,
                                      const RestingWeights& weights, int threads, uint64_t seed) {
  return load_weights(nullptr, model, folder, weights, threads, seed, nullptr);
}

std::vector<std::string> load_weights(Context& ctx, const Model& model, const std::string& folder,
                                      const RestingWeights& weights, uint64_t seed,
                                      const FactorsOfBase* factors) {
  return load_weights(&ctx, model, folder, weights, ctx.threads(), seed, factors);
}

void read_weights(Context& ctx, const Model& model,
                  const std::function<std::vector<WeightPart>(int param)>& parts,
                  const RestingWeights& weights, const std::string& origin) {
  ParamTarget target(&ctx, model.params(), weights, false);
  for (int i = 0; i < model.params().size(); ++i) {
    const std::vector<WeightPart> list = parts(i);
    if (list.empty()) continue;
    target.fill(i, [&]<class T>(T* out) {
      for (const WeightPart& part : list) {
        if constexpr (std::is_same_v<T, f16>)
          load_f16(*part.tensor, model.params()[i], part.piece, out, ctx.threads(), origin);
        else
          load_one(*part.tensor, model.params()[i], part.piece, out, ctx.threads());
        out += part.tensor->elements();
      }
    });
  }
}

SafetensorsLayout weights_layout(const Model& model, DType dtype, const std::string& base,
                                 bool results) {
  std::vector<SafeSpec> specs;
  for (int i = 0; i < model.params().size(); ++i) {
    if (!is_saved(model, i)) continue;
    for (const FilePiece& piece : saved_pieces(model, i))
      specs.push_back(
          {piece.names.front(), safe_dtype(dtype), file_shape(model.params()[i], piece.rows)});
  }
  if (results)
    for (const ModelResult& result : adapter_results(model))
      specs.push_back({result.tensor.name, safe_dtype(dtype), result.tensor.shape});
  SafeMetadata metadata = {{"format", "pt"}};
  if (!base.empty()) metadata["snug_base"] = base;
  if (const WeightCodes* codes = model.params().codes()) metadata[kBaseFormKey] = codes->text();
  return SafetensorsLayout(std::move(metadata), std::move(specs));
}

int64_t save_staging_bytes(const Model& model) {
  int64_t bytes = 0;
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    const int64_t width = p.transposed_in_file && p.shape.rank() == 2 ? p.shape[0] : p.shape.last();
    bytes = std::max(bytes, rows_per_block(width) * width * 4);
  }
  return bytes;
}

int64_t turned_bytes(const Model& model) {
  int64_t bytes = 0;
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    if (p.transposed_in_file && p.shape.rank() == 2) bytes = std::max(bytes, p.elements() * 4);
  }
  return bytes;
}

View whole_parameter(Context& ctx, const RestingWeights& weights, const ParamInfo& p, void* room) {
  if (ctx.host_reads() && weights.reach(p.offset) >= p.elements())
    return weights.rows(p.offset, p.elements());
  View all;
  weights.each(p.offset, p.elements(),
               [&](const RestingWeights::Piece&, int64_t at, const View& v) {
                 if (at == p.offset) all = v;
                 ctx.read(static_cast<char*>(room) + (at - p.offset) * size_of(v.dtype), v);
               });
  all.shape = {p.elements()};
  all.data = room;
  return all;
}

void save_results(const Model& model, const ParamValues& of, int threads,
                  const SafetensorsLayout& layout, SafetensorsWriter& writer, const View& staging) {
  const std::vector<ModelResult> results = adapter_results(model);
  size_t tensor = layout.tensors().size() - results.size();  // they are the last ones
  for (const ModelResult& result : results) {
    const SafeSpec& spec = layout.tensors()[tensor++];
    const std::vector<float> values =
        result.layer.adapter->kind->result_values(result.layer, of, threads);
    writer.begin(spec.name);
    const int64_t block = rows_per_block(1), all = static_cast<int64_t>(values.size());
    for (int64_t at = 0; at < all; at += block)
      append_values(writer, values.data() + at, std::min(block, all - at), spec.dtype, staging);
    writer.end();
  }
}

void save_weights(Context& ctx, const Model& model, const SafetensorsLayout& layout,
                  const RestingWeights& weights, const View& staging, const std::string& path) {
  Op op(ctx, "save_weights", {.flops = 0, .bytes = weights.bytes()});
  if (!op.run()) return;
  const bool apart = !ctx.host_reads();
  auto* const turned = static_cast<char*>(staging.data) + save_staging_bytes(model);
  // n values from element `first` of the flat range on, of whichever pieces they lie in.
  const auto read_values = [&](float* out, int64_t first, int64_t n) {
    weights.each(first, n, [&](const RestingWeights::Piece&, int64_t at, View from) {
      float* const to = out + (at - first);
      if (apart) {
        void* const behind = values_behind(to, from);
        ctx.read(behind, from);
        from.data = behind;
      }
      values_to_f32(to, from);
    });
  };
  SafetensorsWriter writer(path, layout);
  size_t tensor = 0;
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    const bool transposed = p.transposed_in_file && p.shape.rank() == 2;
    if (!is_saved(model, i)) continue;
    int64_t first = 0;  // element of the parameter
    for (const FilePiece& piece : saved_pieces(model, i)) {
      const SafeSpec& spec = layout.tensors()[tensor++];
      const int64_t begin = p.offset + first;
      View own;  // of one that is transposed: the whole of it
      if (transposed)
        own = whole_parameter(ctx, weights, p, turned).rows(first, p.elements() - first);
      const int64_t row = p.real_elements() / std::max<int64_t>(1, p.rows);
      const int64_t rows = transposed ? p.shape[1] : piece.rows;  // of the file
      const int64_t width = transposed ? p.shape[0] : row;
      const int64_t block = rows_per_block(width);
      writer.begin(spec.name);
      for (int64_t r0 = 0; r0 < rows; r0 += block) {
        const int64_t n = std::min(block, rows - r0), elements = n * width;
        auto* out = static_cast<float*>(staging.data);
        const float* source = out;
        if (transposed) {
          transposed_to_f32(out, own, rows, width, r0 * width, elements);
        } else if (piece.groups.any()) {
          for (int64_t r = 0; r < n;) {
            const int64_t run = std::min(n - r, piece.groups.rows - (r0 + r) % piece.groups.rows);
            const int64_t from = piece.groups.ours(r0 + r) * width;
            read_values(out + r * width, begin + from, run * width);
            r += run;
          }
        } else {
          const int64_t at = begin + r0 * width;
          const bool one = elements > 0 && weights.reach(at) >= elements;
          const View from = one ? weights.rows(at, elements) : View();
          if (one && from.dtype == DType::f32 && !apart)
            source = from.as<const float>();
          else
            read_values(out, at, elements);
        }
        append_values(writer, source, elements, spec.dtype, staging);
      }
      writer.end();
      first += piece.rows * row;
    }
  }
  save_results(
      model,
      [&](const std::string& name, int64_t first, std::span<float> to) {
        const ParamInfo& p = model.params()[model.params().find(name)];
        read_values(to.data(), p.offset + first, static_cast<int64_t>(to.size()));
      },
      ctx.threads(), layout, writer, staging);
  writer.commit();
}

void save_model_config(const Model& model, const std::string& folder, DType dtype) {
  const ModelSpec& spec = model.spec();
  const Family& family = find_family(spec.family, "model");
  write_json_file(folder + "/config.json", family.write(spec, dtype == DType::bf16  ? "bfloat16"
                                                              : dtype == DType::f16 ? "float16"
                                                                                    : "float32"));
  nlohmann::json generation = {{"transformers_version", "4.44.0"}};
  generation["bos_token_id"] =
      spec.bos_token < 0 ? nlohmann::json(nullptr) : nlohmann::json(spec.bos_token);
  generation["eos_token_id"] =
      spec.eos_token < 0 ? nlohmann::json(nullptr) : nlohmann::json(spec.eos_token);
  write_json_file(folder + "/generation_config.json", generation);
}

}  // namespace snug
