#include <gtest/gtest.h>

#include "layers/adapters/kinds.h"
#include "layers/models/family.h"
#include "optim/adam_mini.h"
#include "tools/costs/matrix_pieces.h"

namespace snug {
namespace {

// Scales of rows and of columns have two extents and are no matrices; the A of a rank of 1 is one.
TEST(MatrixPieces, ScalesOfAdaptersAreNone) {
  const ModelSpec spec =
      resolve_model("", R"({"type": "gpt2", "vocab_size": 64, "n_positions": 8, "n_embd": 16,
                            "n_head": 2, "n_layer": 1})")
          .spec;
  const auto adapter = [](const char* method, bool input) {
    LinearAdapter a;
    a.pieces = {{.name = "c_proj", .rows = 16, .rank = 1}};
    a.kind = &adapter_method(method).kind({});
    a.input = input;
    return a;
  };
  for (const bool input : {false, true}) {
    const Adapters adapters = {{"h.0.attn.c_proj", adapter("lora", false)},
                               {"h.0.mlp.c_proj", adapter("ia3", input)}};
    const Model model(
        spec, parse_precision("fp32"),
        [](std::string_view name) {
          return name.find("lora") == name.npos && name.find("ia3") == name.npos;
        },
        adapters);
    const std::vector<std::vector<OptimPiece>> all = matrix_pieces(model);
    const int a = model.params().find("h.0.attn.c_proj.lora_A.weight");
    const int l = model.params().find("h.0.mlp.c_proj.ia3_l");
    ASSERT_GE(a, 0);
    ASSERT_GE(l, 0);
    const ParamInfo& scale = model.params()[l];
    EXPECT_EQ(scale.shape, input ? (Shape{1, 64}) : (Shape{16, 1}));
    ASSERT_EQ(all[static_cast<size_t>(a)].size(), 1u);
    EXPECT_EQ(all[static_cast<size_t>(a)][0].rows, 1);
    EXPECT_TRUE(all[static_cast<size_t>(l)].empty());
    EXPECT_EQ(blocks_of(scale, {}), -1);
  }
}

}  // namespace
}  // namespace snug
