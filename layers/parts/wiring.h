// Wiring: what a block is put together with. Each part is a function that adds its parameters to the
// table and its stages to the body, and gives the slot that holds its result:
//
//   const int x = w.given("x");
//   const int h = norm(w, "ln_1", "1", x);
//   const int qkv = linear(w, "qkv", {.name = "attn.c_attn", .out = heads}, h);
//
// Neighbours that an op does at once are fused by the part that comes second.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/core/precision.h"
#include "layers/parts/adapter.h"
#include "layers/parts/behind.h"
#include "layers/parts/runtime.h"
#include "layers/parts/spec.h"

namespace snug {

// Parameters of y = x W^T + b. W is (out, in).
struct LinearParams {
  int weight = -1;
  int bias = -1;  // -1: none
  Name of = {};   // the layer, h.3.attn.c_attn: scope of its ops; empty: that of its part
};

// Presets that a slot belongs to (Slot::presets), by which policies name several at once.
enum Preset : unsigned { kNorms = 1, kAttention = 2, kMlp = 4 };

struct Wiring {
  // Slots: a tensor from outside; (N, width) in the compute dtype; (N) f32. Behind choose() of as many
  // rows as a head reads.
  int given(const char* slot, int64_t width) { return rows(slot, width); }
  int rows(std::string_view slot, int64_t width);
  int statistic(std::string_view slot);
  // The slot, which belongs to the preset from here on.
  int in(Preset preset, int slot) {
    body.add_presets(slot, preset);
    return slot;
  }
  int64_t width(int slot) const { return body.slot(slot).shape({1, 1})[1]; }
  Name param_name(std::string_view layer_name, std::string_view suffix) const;
  int param(ParamInfo info);  // adds it, as one of this part
  // The site of one more dropout: three a layer at most, so that all of a model differ. 0 is the
  // embedding's.
  uint32_t dropout_site();

  Body& body;
  ParamTable& table;
  const ModelSpec& spec;
  DType dtype;                         // of activations
  Name name;                           // before those of parameters and slots
  int part;                            // ParamInfo::part of every parameter
  int64_t layer;                       // of the KV cache and of dropout sites
  const Adapters* adapters = nullptr;  // by the name of a layer; null: none

  // The rows of slot x that the head reads (Runtime::head_rows), and from here on no others.
  int choose(int x);

  // The linear stage that was added last, for a part that fuses with it.
  struct Linear {
    int stage, x, y;
    LinearParams params;
    int residual = -1;  // -1: y is the product alone
    BranchDropout dropout = {};
  };
  // It, if it is the last stage and `slot` is what it makes.
  const Linear* fusable(int slot) const {
    return linear && linear->y == slot &&
                   linear->stage + 1 == static_cast<int>(body.stages().size())
               ? &*linear
               : nullptr;
  }
  std::optional<Linear> linear = {};
  uint32_t dropouts = 0;  // sites given
  bool chosen = false;    // choose() was called
};

}  // namespace snug
