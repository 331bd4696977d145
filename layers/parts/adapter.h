// LoRA on a linear layer: y = x W^T + b + s (drop(x) A^T) B^T, with W frozen; DoRA and IA3 are scaled_linear.h.
//   Hu et al., "LoRA", arXiv:2106.09685; the scale of rsLoRA: Kalajdzievski, arXiv:2312.03732.
//
//   stage    reads  writes         backward
//   *_lora   x      u (N,R)        dA (+)= s du^T drop(x);  dx += drop(s du A)
//   *        x, u   y (N,out)      dB (+)= dy^T u;  du = dy B;  dx += dy W, which reads no input
//
// u = s drop(x) A^T. One layer here may be several modules of the family's files (queries, keys and
// values): these have ranks, scales and a B of their own, and A and u are theirs side by side,
// R = sum of r. Of several, B is put together with zeros between (layers/ops/matrix_block.h) in
// planned scratch while it is used.
// drop(x) has one mask for all modules of a layer, with the key of layers/ops/dropout.h.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/memory/pass.h"
#include "engine/seams/parameter.h"
#include "layers/ops/dropout.h"

namespace snug {

struct Wiring;

// dora: A, B and a magnitude of each row; ia3: a scale of each row, or of what is read.
enum class AdapterKind : uint8_t { lora, dora, ia3 };

// One A and B, or one scale: of rows of a weight that are a module in the family's files.
struct AdapterPiece {
  size_t piece = 0;           // which of the weight's pieces (layers/models/family.h)
  std::string name;           // the last word of its module: q_proj
  int64_t row = 0, rows = 0;  // of the weight, in our order
  int64_t rank = 0;           // r
  float scale = 1;            // s
};

struct LinearAdapter {
  std::vector<AdapterPiece> pieces;  // by row, at least one
  float dropout = 0;                 // of x, in [0,1)
  AdapterKind kind = AdapterKind::lora;
  bool input = false;         // of ia3: the one module scales what it reads, not what it makes
  Init init = Init::uniform;  // of A; normal: N(0, 1/r), PEFT's "gaussian"
  int64_t rank() const;
  bool of_input() const { return kind == AdapterKind::ia3 && input; }
};
// By the name of the layer in the table: h.0.attn.c_attn.
using Adapters = std::map<std::string, LinearAdapter, std::less<>>;

// The names of A, and of the B of a piece, in the table.
std::string adapter_a_name(const std::string& layer);
std::string adapter_b_name(const std::string& layer, const LinearAdapter& adapter, size_t piece);
// That of its scale: DoRA's magnitude, or IA3's vector.
std::string adapter_scale_name(const std::string& layer, const LinearAdapter& adapter,
                               size_t piece);
// Whether a parameter is one of these.
bool is_adapter_name(std::string_view param);

// The upper half, for the stage of the layer itself. Without pieces: no adapter.
struct AdapterUp {
  struct Piece {
    int b = -1;  // parameter (rows, r)
    int64_t row = 0, col = 0;
    float factor = 1;    // its scale over that of u
    int magnitude = -1;  // parameter: (rows) of DoRA, (rows,1) of IA3
    int64_t rows = 0, rank = 0;
    float scale = 1;
  };
  int u = -1;  // slot (N,R)
  std::vector<Piece> pieces;
  int64_t rank = 0, rows = 0, out = 0;  // R; rows that have a B; of the layer
  Name scratch, dscratch;
  int a = -1;  // parameter (R,in)
  DropoutSpec dropout;
  Name dropped, dx;
  AdapterKind kind = AdapterKind::lora;

  bool any() const { return u >= 0; }
  // Whether what the layer makes is scaled: scaled_linear() has its stages.
  bool scales() const { return !pieces.empty() && pieces.front().magnitude >= 0; }
  // Of one module, B is the parameter itself.
  bool whole() const;
};

// The parameters, and the stage `stage`_lora, of the adapter that the layer `name` has, if it has one that
// adds to or scales what it makes.
AdapterUp adapter_down(Wiring& w, const std::string& stage, const char* name, int64_t out, int x);
// drop(x) of the adapter's mask, in `made`; x itself where nothing is dropped.
View adapter_input(Context& ctx, Pass& p, const AdapterUp& up, const View& x, Tensor& made);
// Where the gradient of drop(x) is to be written, dx itself or `made`; and dx (+)= what of it x gets.
GradView adapter_input_gradient(Context& ctx, const AdapterUp& up, const GradView& dx,
                                Tensor& made);
void adapter_input_backward(Context& ctx, Pass& p, const AdapterUp& up, const GradView& dx,
                            const GradView& written);
// y += u B^T.
void adapter_up_forward(Context& ctx, Pass& p, const AdapterUp& up, const View& y);
// dB and the gradient of u.
void adapter_up_backward(Context& ctx, Pass& p, const AdapterUp& up, const View& dy);

}  // namespace snug
