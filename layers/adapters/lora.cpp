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
    return layer.adapter->table ? embedding_lora_params(layer, false)
                                : low_rank_params(layer, false);
  }
  std::shared_ptr<const AdapterSum> table_sum(Wiring& w, const AdaptedLayer& layer) const override {
    return embedding_lora(w, layer, false);
  }
  std::shared_ptr<const AdapterSum> sum(Wiring& w, const AdaptedLayer& layer,
                                        int x) const override {
    return add_low_rank(w, layer, x, false);
  }
  MergedModule merged(const AdaptedLayer& layer, size_t k,
                      const TensorValues& values) const override {
    if (layer.adapter->table) return merged_embedding_lora(layer, values, false);
    return merged_low_rank(layer, k, values);
  }
};

class Dora : public AdapterKind {
 public:
  std::vector<AdapterParam> params(const AdaptedLayer& layer) const override {
    return layer.adapter->table ? embedding_lora_params(layer, true) : low_rank_params(layer, true);
  }
  std::shared_ptr<const AdapterSum> table_sum(Wiring& w, const AdaptedLayer& layer) const override {
    return embedding_lora(w, layer, true);
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
    if (layer.adapter->table) return table_norms(ctx, store, layer, weight, values);
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
    if (layer.adapter->table) return merged_embedding_lora(layer, values, true);
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
  adapter.init = config.init_lora_weights == "gaussian" ? Init::normal : Init::uniform;
  adapter.first_trained = !config.freeze_a;
  adapter.first_way = find_first_way(config.init_lora_weights);
  adapter.rounds = pissa_rounds(config.init_lora_weights);
}

std::vector<AdapterField> lora_fields() {
  using C = PeftConfig;
  // clang-format off
  return {
      {.key = "r", .run_key = "lora_r", .value = &C::lora_r, .least = 1, .below = 1 << 20,
       .said = {.doc = "the rank of the matrices; auto: PEFT's, 8 of lora", .example = "16", .unset = "auto",
                .aliases = "r lora_rank", .least = 1}},
      {.key = "lora_alpha", .run_key = "lora_alpha", .value = &C::lora_alpha, .least = -1e12,
       .said = {.doc = "what they make is multiplied by lora_alpha / lora_r", .example = "32", .least = 0,
                .above_least = true}},
      {.key = "lora_dropout", .run_key = "lora_dropout", .value = &C::lora_dropout, .below = 1,
       .said = {.doc = "dropout of their input, one mask for all modules that read it", .example = "0.05",
                .least = 0, .most = 1, .below_most = true}},
      {.key = "use_rslora", .run_key = "use_rslora", .value = &C::use_rslora,
       .said = {.doc = "multiply by lora_alpha / sqrt(lora_r) instead", .example = "true"}},
      {.key = "use_dora", .run_key = "use_dora", .value = &C::use_dora,
       .said = {.doc = "the magnitude of each row of the weights is learned beside their direction (DoRA); over "
                       "weights in 4 bits too", .example = "true"}},
      {.key = "init_lora_weights", .run_key = "init_lora_weights", .value = &C::init_lora_weights,
       .words = "true gaussian pissa olora", .also_text = " pissa_niter_N",
       .also = [](std::string_view word) { return pissa_rounds(word) > 0; },
       .advice = "the adapter converted by PEFT to one of LoRA (path_initial_model_for_weight_conversion)",
       .said = {.doc = "the first weights of A, those of B being 0: true, as those of a linear layer of PyTorch; "
                       "gaussian, of deviation 1 / lora_r. Or both made of the weight beside them, which is less what "
                       "they make: pissa, its largest singular parts; pissa_niter_N, nearly these, found by N rounds, "
                       "which PEFT repeats at every load with other random numbers, so that its model is not quite "
                       "this one; olora, the first parts of its QR. loftq: those of what a weight in 4 bits has lost",
                .example = "gaussian", .choices = "true gaussian pissa pissa_niter_N olora loftq",
                .refused = "false eva corda orthogonal lora_ga mica"}}};
  // clang-format on
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
      .fields = lora_fields(),
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
                "lora r {} alpha {} dropout {}{}", c.lora_r, c.lora_alpha, c.lora_dropout,
                (find_first_way(c.init_lora_weights) ? " of " + c.init_lora_weights : "") +
                    (c.freeze_a ? " fa" : ""));
          }};
  return row;
}

}  // namespace snug
