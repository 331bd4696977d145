// The table of a model's parameters: what every seam indexes by. Parameters lie in one flat range,
// each aligned to 256 elements, so that an optimizer, a quantiser or a shard works on flat spans.
// Those that are trained come first: gradients, masters and states are of [0, trained_elements())
// and of nothing else, with the same offsets. Frozen tables of rows come last.
//
//   | wte | h.0 ... h.11 | ln_f |            nothing frozen: the order of the table
//   | h.11 | ln_f || h.0 ... h.10 | wte |    frozen: wte and h.0 to h.10
//     trained         frozen
//
// Frozen weights that rest in codes (seams/weight_codes.h) are in no element of that range: they
// have bytes of another one, [0, coded_bytes()), and ParamInfo::offset counts these.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/core/view.h"

namespace snug {

// normal: N(0, init_std^2); uniform: in [-init_std, init_std).
enum class Init : uint8_t { zeros, ones, normal, uniform };

// Optimizer groups. Decoupled decay applies to matrices and embeddings, not to biases and norms.
inline constexpr int kGroupDecay = 0;
inline constexpr int kGroupNoDecay = 1;

struct ParamInfo {
  Name name;    // Hugging Face name without the family's prefix, for example h.0.attn.c_attn.weight
  Shape shape;  // as held; the vocabulary is padded
  int64_t rows =
      0;  // rows of the first extent that are real; the rest is zero, never updated or saved
  int group = kGroupDecay;
  Init init = Init::zeros;
  float init_std = 0.0f;
  bool trainable = true;  // else frozen: no gradient, master or state
  // The weight (out, in) of a linear layer: products read it, so it may be kept packed for them.
  bool linear = false;
  // Stored transposed in the family's files ((in, out), as GPT-2's Conv1D).
  bool transposed_in_file = false;
  // Read row by row, by the ids of tokens, and by no product. A frozen one may rest with the host,
  // where the device reads the rows that it wants.
  bool gathered = false;
  // Neighbours in the table whose gradients are complete at the same time, as those of a block;
  // -1: of no part.
  int part = -1;
  int64_t offset = 0;  // element offset in the flat range, multiple of 256
  // Of a frozen weight in codes: the rows of each tensor that is coded by itself, and the bytes of
  // all, at `offset` of the coded range. Of all others: none.
  std::vector<int64_t> code_rows = {};
  int64_t code_bytes = 0;

  bool coded() const { return code_bytes > 0; }
  bool frozen_table() const { return gathered && !trainable; }
  int64_t elements() const { return shape.elements(); }
  int64_t real_elements() const {
    return shape.rank() && shape[0] ? shape.elements() / shape[0] * rows : shape.elements();
  }
};

inline constexpr int64_t kSpanAlignment = 256;

class WeightCodes;

// Neighbours of one part, or of none, all trained or all frozen, are a run of the flat range, and
// frozen tables one of their own. With
// `ranks` above 1 a run fills a multiple of 256 x ranks elements, so that it is cut into pieces of
// one length, a rank each, and no block of codes is cut.
class ParamTable {
 public:
  ParamTable() = default;
  // Parameters of which `frozen` says so, by name, are added as frozen; of these, those for which
  // `codes` has rows rest in codes.
  explicit ParamTable(std::function<bool(std::string_view)> frozen, int ranks = 1,
                      std::shared_ptr<const WeightCodes> codes = nullptr)
      : frozen_(std::move(frozen)), codes_(std::move(codes)), ranks_(ranks) {}

  int add(ParamInfo info);  // returns its index; settles the offsets of all
  const ParamInfo& operator[](int i) const { return params_[static_cast<size_t>(i)]; }
  int size() const { return static_cast<int>(params_.size()); }
  int64_t flat_elements() const { return flat_; }        // alignment gaps included
  int64_t trained_elements() const { return trained_; }  // the trained range, gaps included
  int64_t tables_first()
      const;  // where frozen tables begin, behind all others; without one the end
  int64_t real_elements() const;          // what "124M parameters" means
  int64_t real_trained_elements() const;  // of them, the trained ones
  int find(std::string_view name) const;  // -1 if absent
  // Indices by offset in the flat range: the trained ones, then the frozen, each in the order of the
  // table.
  const std::vector<int>& by_offset() const { return by_offset_; }
  // Those in codes, by offset in theirs; its bytes; and what codes them, null if nothing is in codes.
  const std::vector<int>& coded() const { return coded_; }
  int64_t coded_bytes() const { return coded_bytes_; }
  const WeightCodes* codes() const { return codes_.get(); }
  // The offset behind a parameter and its gap.
  int64_t end_of(int param) const { return ends_[static_cast<size_t>(param)]; }
  int ranks() const { return ranks_; }

 private:
  std::vector<ParamInfo> params_;
  std::vector<int> by_offset_, coded_;
  std::vector<int64_t> ends_;  // by parameter
  std::function<bool(std::string_view)> frozen_;
  std::shared_ptr<const WeightCodes> codes_;
  int ranks_ = 1;
  int64_t flat_ = 0, trained_ = 0, coded_bytes_ = 0;
};

// The span of `flat` that holds a parameter, in its shape.
View parameter_view(const View& flat, const ParamInfo& info);

// Takes the values of parameters that rest in codes.
class CodeSink {
 public:
  virtual ~CodeSink() = default;
  // Of tensor `k` of the parameter (ParamInfo::code_rows): `fill` writes all its elements.
  virtual void code(int param, size_t k, const std::function<void(float*)>& fill) = 0;
  // The same of a tensor that was in these codes before: its WeightCodes::bytes().
  virtual void put(int param, size_t k, const void* bytes) = 0;
};

// Where the value of record of every parameter rests, in pieces of the flat range: the f32 master
// of what is trained, and what layers read of what is frozen. What is in codes goes through the sink.
class RestingWeights {
 public:
  struct Piece {
    int64_t first;    // of the flat range
    View view;        // f32, bf16 or f16
    bool own = true;  // false: another rank's, whose data is not here
  };
  RestingWeights(const View& flat) : pieces_{{0, flat}} {}  // NOLINT: one view is one piece
  explicit RestingWeights(std::vector<Piece> pieces);       // in any order
  // Elements [first, first + n), which lie in one piece.
  View rows(int64_t first, int64_t n) const;
  // How many from `first` on do.
  int64_t reach(int64_t first) const;
  // The pieces that hold elements [first, first + n), each cut to these: f(piece, its first element,
  // its rows).
  template <class F>
  void each(int64_t first, int64_t n, F&& f) const {
    for (int64_t at = first; at < first + n;) {
      const Piece& piece = at_element(at);
      const int64_t behind = piece.first + piece.view.elements();
      const int64_t count = (behind < first + n ? behind : first + n) - at;
      f(piece, at, piece.view.rows(at - piece.first, count));
      at += count;
    }
  }
  // Whether elements [first, first + n) lie in one piece, and that is this rank's.
  bool whole(int64_t first, int64_t n) const;
  const std::vector<Piece>& pieces() const { return pieces_; }
  int64_t bytes() const;
  void set_sink(CodeSink* sink) { sink_ = sink; }
  CodeSink& sink() const;

 private:
  const Piece& at_element(int64_t first) const;

  std::vector<Piece> pieces_;
  CodeSink* sink_ = nullptr;
};

}  // namespace snug
