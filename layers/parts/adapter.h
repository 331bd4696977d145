// What an adapter is to a linear layer y = x W^T + b, whose W and b are frozen: stages before it, something
// that it adds to y, or stages in the layer's place. Each kind is a row of layers/adapters/kinds.h.
//
// Of the table of tokens it may be virtual tokens in front of every sequence: rows of its own, which are read as
// the tokens V, V+1, ... are.
//
// One layer here may be several modules of the family's files (queries, keys and values): an adapter
// has a piece for each that it is for.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/memory/pass.h"
#include "engine/seams/parameter.h"
#include "layers/parts/behind.h"

namespace snug {

struct LinearParams;
struct Wiring;
class AdapterKind;
class ParamStore;
struct FirstWay;

// Of rows of a weight that are a module in the family's files.
struct AdapterPiece {
  size_t piece = 0;           // which of the weight's pieces (layers/models/family.h)
  std::string name;           // the last word of its module: q_proj
  int64_t row = 0, rows = 0;  // of the weight, in our order
  int64_t rank = 0;           // R
  float scale = 1;            // s
};

struct LinearAdapter {
  std::vector<AdapterPiece> pieces;  // by row, at least one
  float dropout = 0;                 // of x, in [0,1)
  const AdapterKind* kind = nullptr;
  bool table = false;         // of a table of embeddings, (V,C), whose rows are read by number
  bool first_trained = true;  // false: LoRA's A stays as it begins (LoRA-FA)
  bool input = false;         // the one module scales what it reads, not what it makes (IA3)
  Init init = Init::uniform;  // of LoRA's A; normal: N(0, 1/r), PEFT's "gaussian"
  float first = 1;            // what l_d begins with (VeRA)
  int64_t seed = 0;           // of matrices that all layers share
  int64_t in = 0;             // what the layer reads
  const FirstWay* first_way =
      nullptr;         // A and B made of the weight (layers/adapters/first_weights.h)
  int64_t rounds = 0;  // of such a way; 0: it has none
  int64_t front = 0;   // virtual tokens in front of every sequence
  // Of these: whether they are keys and values of every layer alone, of so many numbers a token and layer
  // together; and the width of what they are encoded by, 0: they are parameters themselves; and the layers of
  // an LSTM among that, 0: it has none.
  bool front_keys = false;
  int64_t keys_width = 0, layers = 0, encoder = 0, encoder_layers = 0;
  std::vector<int32_t> first_tokens = {};  // whose rows these begin as; empty: they are drawn
  int64_t rank() const;                    // of all pieces
};
// By the name of the layer in the table: h.0.attn.c_attn.
using Adapters = std::map<std::string, LinearAdapter, std::less<>>;

// A parameter of an adapter.
struct AdapterParam {
  std::string name;  // in the table
  const char* end;   // of its tensors in files, behind the path of their module, or...
  Shape shape;
  int group = kGroupDecay;
  Init init = Init::zeros;
  float init_std = 0;
  int piece = -1;  // the one that it is of; -1: of all, with `rank` rows of each below each other
  bool by_rows = false;     // its rows are those of the weight, in whichever order files have them
  bool matrix = true;       // to optimizers that treat matrices apart
  bool transposed = false;  // in files
  bool trained = true;
  bool whole_name = false;          // ... all that files call it
  bool laid = false;                // of no row alone, laid on the rows in the order of the files
  const char* other_end = nullptr;  // of a copy that files may have, which nobody needs
  int64_t rows_of(const LinearAdapter& adapter, size_t k) const {
    return piece < 0 ? adapter.pieces[k].rank : shape[0];
  }
};

// The layer that an adapter is for.
struct AdaptedLayer {
  std::string name;   // in the table
  std::string stage;  // of its product
  const LinearAdapter* adapter = nullptr;
  int64_t in = 0, out = 0;
  bool any() const { return adapter != nullptr; }
};
// The adapter that the layer `name` of a part has, if it has one.
AdaptedLayer adapted_layer(const Wiring& w, const std::string& stage, const char* name, int64_t in,
                           int64_t out);

// Virtual tokens in front of every sequence, as the table of tokens has them.
struct TokensInFront {
  int64_t count = 0;
  int param = -1;  // (count,C), or...
  int slot = -1;   // ... what stages before make; neither: rows that no layer's keys follow from
  std::vector<int> shared =
      {};  // parameters that the layers read, whose gradients are complete there
};

// A tensor of files that follows from parameters of an adapter, which PEFT reads in their place.
struct AdapterResult {
  std::string name;
  std::vector<int64_t> shape;
};
// Fills `to` with values of a parameter, by its name in the table: whole rows, from element `first` on.
using ParamValues =
    std::function<void(const std::string& param, int64_t first, std::span<float> to)>;

// What an adapter adds to what its layer makes.
class AdapterSum {
 public:
  virtual ~AdapterSum() = default;
  // y += it.
  virtual void forward(Context& ctx, Pass& p, const View& y) const = 0;
  // The gradients of its parameters, and of the slots that it reads.
  virtual void backward(Context& ctx, Pass& p, const View& dy) const = 0;
  std::vector<int> params;          // whose gradients it makes; those read `slots` and `constants`
  std::vector<int> slots;           // made by stages before
  std::vector<int> constants = {};  // the same, without a gradient of their own
};

// What a module with an adapter is as a weight (out,in) alone, in f32:
//   by_rows * (W + scale left right) * by_columns, or with magnitude: m / norm of its rows times that.
struct MergedModule {
  std::vector<float> left, right;  // (out,rank) and (rank,in); empty: nothing is added
  std::vector<float> added;        // (out,in), added beside them; empty: nothing
  int64_t rank = 0;
  float scale = 1;
  std::vector<float> rows, columns;  // factors; empty: 1
  std::vector<float> magnitude;      // (out); empty: the norms stay
  bool of_columns = false;           // the magnitude is (in), of the columns of a table
  bool bias = false;                 // `rows` are factors of the bias too
};
// The values of a module's tensor by the end of its name.
using TensorValues = std::function<std::vector<float>(const char* end)>;

class AdapterKind {
 public:
  virtual ~AdapterKind() = default;
  // In the order of the table; the names tell them from a model's (markers of kinds.h).
  virtual std::vector<AdapterParam> params(const AdaptedLayer& layer) const = 0;
  // Of all layers together, never trained, in no file; and their values.
  virtual std::vector<AdapterParam> shared(const std::vector<AdaptedLayer>&) const { return {}; }
  virtual std::vector<std::vector<float>> shared_values(const std::vector<AdaptedLayer>&) const {
    return {};
  }
  // What a parameter begins as where its Init does not say; empty: it does.
  virtual std::vector<float> first_values(const AdaptedLayer&, const AdapterParam&) const {
    return {};
  }
  // The slot that the layer reads in place of x: of a stage before it, or x.
  virtual int input(Wiring& w, const AdaptedLayer& layer, int x) const;
  // What is added to the product, with the stages before it; null: nothing.
  virtual std::shared_ptr<const AdapterSum> sum(Wiring& w, const AdaptedLayer& layer, int x) const;
  // The same of a table, which no kind without it is for.
  virtual std::shared_ptr<const AdapterSum> table_sum(Wiring& w, const AdaptedLayer& layer) const;
  // Virtual tokens, of a table.
  virtual TokensInFront in_front(Wiring& w, const AdaptedLayer& layer) const;
  // Of such that are keys and values: what is behind those of layer w.layer, before it `behind`.
  virtual InPlace keys_in_front(Wiring& w, const AdaptedLayer& layer, const InPlace& behind) const;
  // What files have beside the parameters; nothing unless it says.
  virtual std::optional<AdapterResult> result(const AdaptedLayer&) const { return std::nullopt; }
  virtual std::vector<float> result_values(const AdaptedLayer&, const ParamValues&, int) const {
    return {};
  }
  // Stages in place of the layer's, behind input(); the slot of y, or -1: the layer has its own.
  virtual int in_place_of(Wiring& w, const AdaptedLayer& layer, const LinearParams& params,
                          const char* slot, int x, const BehindProduct& behind) const;
  // Of a new adapter whose parameters take values from the weight: piece k's, of (rows), of a table's
  // (columns), in the compute dtype, as a recorded op; see tools/session/start_adapters.cpp. False: none do.
  virtual bool starts_from_weight() const { return false; }
  virtual std::string start_name(const AdaptedLayer&, size_t /*k*/) const { return {}; }
  virtual void start(Context& ctx, ParamStore& store, const AdaptedLayer& layer, const View& weight,
                     const View& values) const;
  // What module k comes to as a weight alone.
  virtual MergedModule merged(const AdaptedLayer& layer, size_t k,
                              const TensorValues& values) const = 0;
};

// The layers of one kind, in their order, by what their adapters say; without the rows of weights.
std::vector<AdaptedLayer> layers_of(const Adapters& adapters, const AdapterKind& kind);
// Whether a table's adapter reads all of its rows in every forward: DoRA, for the norms of its columns.
bool adapter_reads_whole(const Adapters& adapters, std::string_view table);
// The kinds that there are.
std::vector<const AdapterKind*> kinds_of(const Adapters& adapters);

// Virtual tokens in front of every sequence; 0: none. And whether the last of them is asked for the first token
// of the text.
int64_t front_tokens(const Adapters& adapters);
bool front_asked(const Adapters& adapters);
// `behind`, and then the keys and values of virtual tokens, where adapters have some.
InPlace keys_in_front(Wiring& w, const InPlace& behind);

// The parameter of an adapter, added to the table of a part.
int add_adapter_param(Wiring& w, const AdapterParam& param);

}  // namespace snug
