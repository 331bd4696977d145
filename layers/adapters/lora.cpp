// LoRA, and DoRA, which PEFT has as LoRA with use_dora: low_rank.h, scaled_linear.h.
#include <fmt/format.h>

#include <cmath>

#include "layers/adapters/embedding_lora.h"
#include "layers/adapters/first_weights.h"
#include "layers/adapters/rows.h"
#include "layers/adapters/scaled_linear.h"

namespace snug {
namespace {

MergedModule merged_low_rank(const AdaptedLayer& layer, size_t k, const TensorValues& values) {
  MergedModule m;
  m.left = values(".lora_B.weight");
  m.right = values(".lora_A.weight");
  m.rank = layer.adapter->pieces[k].rank;
  m.scale = layer.adapter->pieces[k].scale;
  return m;
}

class Lora : public AdapterKind {
 public:
  std::vector<AdapterParam> params(const AdaptedLayer& layer) const override {
    return layer.adapter->table ? embedding_lora_params(layer) : low_rank_params(layer, false);
  }
  std::shared_ptr<const AdapterSum> table_sum(Wiring& w, const AdaptedLayer& layer) const override {
    return embedding_lora(w, layer);
  }
  std::shared_ptr<const AdapterSum> sum(Wiring& w, const AdaptedLayer& layer,
                                        int x) const override {
    return add_low_rank(w, layer, x, false);
  }
  MergedModule merged(const AdaptedLayer& layer, size_t k,
                      const TensorValues& values) const override {
    if (layer.adapter->table) return merged_embedding_lora(layer, values);
    return merged_low_rank(layer, k, values);
  }
};

class Dora : public AdapterKind {
 public:
  std::vector<AdapterParam> params(const AdaptedLayer& layer) const override {
    return low_rank_params(layer, true);
  }
  int in_place_of(Wiring& w, const AdaptedLayer& layer, const LinearParams& params,
                  const char* slot, int x, const BehindProduct& behind) const override {
    const std::shared_ptr<const LowRank> up = add_low_rank(w, layer, x, true);
    std::vector<ScaledRows> scales;
    for (const LowRank::Piece& piece : up->pieces)
      scales.push_back({piece.magnitude, piece.row, piece.rows});
    return scaled_linear(w, layer, slot, params, up, std::move(scales), x, behind);
  }
  bool starts_from_weight() const override { return true; }
  std::string start_name(const AdaptedLayer& layer, size_t k) const override {
    return magnitude_name(layer, k);
  }
  void start(Context& ctx, ParamStore& store, const AdaptedLayer& layer, const View& weight,
             const View& values) const override {
    const ParamTable& table = store.table();
    LowRank up;
    up.a = table.find(low_rank_a(layer));
    int64_t col = 0;
    for (size_t k = 0; k < layer.adapter->pieces.size(); ++k) {
      const AdapterPiece& own = layer.adapter->pieces[k];
      up.pieces.push_back(
          {table.find(low_rank_b(layer, k)), own.row, col, 1, -1, own.rows, own.rank, own.scale});
      col += own.rank;
    }
    weight_norms(ctx, store, up, weight, values);
  }
  MergedModule merged(const AdaptedLayer& layer, size_t k,
                      const TensorValues& values) const override {
    MergedModule m = merged_low_rank(layer, k, values);
    m.magnitude = values(".lora_magnitude_vector");
    return m;
  }
};

const Lora kLora;
const Dora kDora;

void settle_lora(const PeftConfig& config, double alpha, AdapterPiece& piece,
                 LinearAdapter& adapter) {
  const auto r = static_cast<double>(piece.rank);
  piece.scale = static_cast<float>(alpha / (config.use_rslora ? std::sqrt(r) : r));
  adapter.init = config.init == "gaussian" ? Init::normal : Init::uniform;
  adapter.first_trained = !config.freeze_a;
  adapter.first_way = find_first_way(config.init);
  adapter.rounds = pissa_rounds(config.init);
}

}  // namespace

const AdapterMethod& lora_method() {
  using C = PeftConfig;
  static const AdapterMethod row{
      .name = "lora",
      .words = "lora qlora dora lora_fa",
      .type = "LORA",
      .title = "LoRA",
      .doc =
          "lora, matrices of a low rank beside those of its linear layers; qlora, the same of all "
          "of them, over "
          "weights in 4 bits; dora, lora with use_dora; "
          "lora_fa, lora whose A stays as it is drawn",
      .fields = {{"r", "lora_r", &C::r, 1, 1 << 20},
                 {"lora_alpha", "lora_alpha", &C::lora_alpha, -1e12},
                 {"lora_dropout", "lora_dropout", &C::lora_dropout, 0, 1},
                 {"use_rslora", "use_rslora", &C::use_rslora},
                 {"use_dora", "use_dora", &C::use_dora},
                 {"init_lora_weights", "init_lora_weights", &C::init, 0, 0,
                  "true gaussian pissa olora", " pissa_niter_N",
                  [](std::string_view word) { return pissa_rounds(word) > 0; },
                  "the adapter converted by PEFT to one of LoRA "
                  "(path_initial_model_for_weight_conversion)"}},
      .shared =
          "target_modules exclude_modules modules_to_save layers_to_transform rank_pattern "
          "alpha_pattern bias fan_in_fan_out",
      .indifferent = "megatron_core qalora_group_size loftq_config eva_config corda_config",
      .refused =
          "lora_bias ensure_weight_tying layer_replication megatron_config target_parameters "
          "trainable_token_indices alora_invocation_tokens use_qalora use_bdlora "
          "arrow_config velora_config kasa_config monteclora_config lora_ga_config",
      .constants = {{"lora_bias", "false"},
                    {"layers_pattern", "null"},
                    {"layer_replication", "null"}},
      .markers = {".lora_A.", ".lora_B.", ".lora_magnitude_vector", ".lora_embedding_"},
      .tables = true,
      .kind = [](const C& c) -> const AdapterKind& {
        if (c.use_dora) return kDora;
        return kLora;
      },
      .settle = settle_lora,
      .text =
          [](const C& c) {
            return fmt::format(
                "lora r {} alpha {} dropout {}{}", c.r, c.lora_alpha, c.lora_dropout,
                (find_first_way(c.init) ? " of " + c.init : "") + (c.freeze_a ? " fa" : ""));
          }};
  return row;
}

}  // namespace snug
