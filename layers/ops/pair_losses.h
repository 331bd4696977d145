// The losses of preference: what each makes of a pair, an answer that was chosen and one that was
// rejected, or of one answer that is either. This file is all that one more of them touches, beside a row
// in its test.
//
// Math      c, r are log probabilities of the chosen and the rejected answer, sums over its tokens, less those
//           of the reference where the loss has one; n_c, n_r the numbers of these tokens; b beta, s
//           label_smoothing, g simpo_gamma; S(x) = -log sigmoid(x), d = c - r and O(x) = x - log(1 - e^x),
//           the log odds of a token on the geometric mean.
//   sigmoid       (1 - s) S(b d) + s S(-b d)            DPO, Rafailov et al., arXiv:2305.18290; s: cDPO
//   hinge         max(0, 1 - b d)                       SLiC, arXiv:2305.10425
//   ipo           (c / n_c - r / n_r - 1 / (2 b))^2     Azar et al., arXiv:2310.12036
//   sigmoid_norm  S(b (c / n_c - r / n_r))              Tulu 3, arXiv:2411.15124
//   nca_pair      S(b c) + S(-b c) / 2 + S(-b r) / 2    arXiv:2402.05369
//   sppo_hard     (c - 1 / (2 b))^2 + (r + 1 / (2 b))^2 arXiv:2405.00675
//   apo_zero      1 - sigmoid(b c) + sigmoid(b r)       arXiv:2408.06266
//   apo_down      sigmoid(b c) + 1 - sigmoid(b d)       the same
//   simpo         (1 - s) S(x) + s S(-x), x = b (c / n_c - r / n_r) - g   Meng et al., arXiv:2405.14734
//   orpo          b S(O(c / n_c) - O(r / n_r))          Hong et al., arXiv:2403.07691; beside it the whole
//                 chosen sequence is learned, prompt and answer, as language models learn (pair_loss.h)
//           Of one answer, which is desirable or not and has the other's number of tokens 0, w_d and w_u its
//           weights desirable_weight and undesirable_weight, k what its log ratio is compared with:
//   kto           w_d (1 - sigmoid(b (c - k))), w_u (1 - sigmoid(b (k - r)))   arXiv:2402.01306; k, a
//                 constant of backward, is the mean log ratio of the step's prompts with the answers of
//                 others, at least 0: an estimate of the divergence from the reference
//   apo_zero_unpaired   the same with k = 0, which is w_d (1 - sigmoid(b c)), w_u sigmoid(b r)
//           As TRL 1.16.0 has them: trl/trainer/dpo_trainer.py, those of one answer kto_trainer.py, simpo of
//           trl/experimental/cpo, orpo of trl/experimental/orpo. There sigmoid has no s; here it is that of
//           cDPO.
// Numerics  double, on every place. Of orpo a mean above -1e-30, of tokens that are certain, is taken for
//           that: they have no odds.
#pragma once

#include <bit>
#include <cmath>
#include <compare>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#ifdef __CUDACC__
#define SNUG_PAIR_LOSS __host__ __device__ inline
#define SNUG_PAIR_LOSS_SIDE by_nvcc
#else
#define SNUG_PAIR_LOSS inline
#define SNUG_PAIR_LOSS_SIDE by_the_host
#endif

namespace snug {

enum class PairLossKind : uint8_t {
  sigmoid,
  hinge,
  ipo,
  sigmoid_norm,
  nca_pair,
  sppo_hard,
  apo_zero,
  apo_down,
  simpo,
  orpo,
  kto,
  apo_zero_unpaired
};

// In the order of PairLossKind.
struct PairLossFacts {
  std::string_view name;  // of the key loss_type
  bool reference;         // log probabilities of the model as it was are subtracted
  bool smoothing;         // label_smoothing means something
  bool averaged = false;  // by tokens: what it calls a reward is a mean too
  bool whole = false;     // all tokens of the chosen sequence are learned beside it
  bool single = false;    // of one answer
  bool compared = false;  // with a divergence, which other rows estimate
};
inline constexpr PairLossFacts kPairLosses[] = {
    {"sigmoid", true, true},
    {"hinge", true, false},
    {"ipo", true, false},
    {"sigmoid_norm", true, false},
    {"nca_pair", true, false},
    {"sppo_hard", true, false},
    {"apo_zero", true, false},
    {"apo_down", true, false},
    {"simpo", false, true, true},
    {"orpo", false, false, true, true},
    {.name = "kto", .reference = true, .smoothing = false, .single = true, .compared = true},
    {.name = "apo_zero_unpaired", .reference = true, .smoothing = false, .single = true},
};

constexpr std::optional<PairLossKind> find_pair_loss(std::string_view name) {
  for (size_t k = 0; k < std::size(kPairLosses); ++k)
    if (kPairLosses[k].name == name) return static_cast<PairLossKind>(k);
  return std::nullopt;
}

struct PairLoss {
  PairLossKind kind = PairLossKind::sigmoid;
  double beta = 0.1, label_smoothing = 0, gamma = 0.5, desirable = 1, undesirable = 1;

  auto operator<=>(const PairLoss&) const = default;
};
constexpr const PairLossFacts& facts_of(PairLossKind kind) {
  return kPairLosses[static_cast<int>(kind)];
}

struct PairValue {
  double loss, chosen, rejected;  // and its slopes by c and r
};

inline namespace SNUG_PAIR_LOSS_SIDE {
namespace pair_loss {

// S and its slope, without overflow.
struct Softplus {
  double value, slope;
};
SNUG_PAIR_LOSS Softplus minus_log_sigmoid(double x) {
  const double e = ::exp(x < 0 ? x : -x);  // of -|x|
  return {(x < 0 ? -x : 0.0) + ::log1p(e), x < 0 ? -1.0 / (1.0 + e) : -e / (1.0 + e)};
}
SNUG_PAIR_LOSS double sigmoid(double x) {
  const double e = ::exp(x < 0 ? x : -x);
  return (x < 0 ? e : 1.0) / (1.0 + e);
}
// p S(x) + q S(-x) of x, times the slopes of x by c and r.
SNUG_PAIR_LOSS PairValue weighed(double p, double q, double x, double by_c, double by_r) {
  const Softplus a = minus_log_sigmoid(x), b = minus_log_sigmoid(-x);
  const double slope = p * a.slope - q * b.slope;
  return {p * a.value + q * b.value, slope * by_c, slope * by_r};
}
// O and its slope.
SNUG_PAIR_LOSS Softplus log_odds(double mean) {
  const double x = mean > -1e-30 ? -1e-30 : mean;  // NaN stays one
  const double rest = x < -0.6931471805599453 ? 1.0 - ::exp(x) : -::expm1(x);
  return {x - ::log(rest), 1.0 / rest};
}

}  // namespace pair_loss

// NaN for a kind that is none.
SNUG_PAIR_LOSS PairValue pair_loss_value(const PairLoss& l, double c, double r, double n_c,
                                         double n_r) {
  const double b = l.beta, s = l.label_smoothing, margin = 1.0 / (2.0 * b);
  switch (l.kind) {
    case PairLossKind::sigmoid:
      return pair_loss::weighed(1.0 - s, s, b * (c - r), b, -b);
    case PairLossKind::hinge: {
      const double x = 1.0 - b * (c - r);
      return x <= 0 ? PairValue{0, 0, 0} : PairValue{x, -b, b};  // NaN stays one
    }
    case PairLossKind::ipo: {
      const double x = c / n_c - r / n_r - margin;
      return {x * x, 2.0 * x / n_c, -2.0 * x / n_r};
    }
    case PairLossKind::sigmoid_norm:
      return pair_loss::weighed(1.0, 0.0, b * (c / n_c - r / n_r), b / n_c, -b / n_r);
    case PairLossKind::nca_pair: {
      const PairValue of_c = pair_loss::weighed(1.0, 0.5, b * c, b, 0.0),
                      of_r = pair_loss::weighed(0.0, 0.5, b * r, 0.0, b);
      return {of_c.loss + of_r.loss, of_c.chosen, of_r.rejected};
    }
    case PairLossKind::sppo_hard:
      return {(c - margin) * (c - margin) + (r + margin) * (r + margin), 2.0 * (c - margin),
              2.0 * (r + margin)};
    case PairLossKind::apo_zero: {
      const double x = pair_loss::sigmoid(b * c), y = pair_loss::sigmoid(b * r);
      return {1.0 - x + y, -b * x * (1.0 - x), b * y * (1.0 - y)};
    }
    case PairLossKind::apo_down: {
      const double x = pair_loss::sigmoid(b * c), y = pair_loss::sigmoid(b * (c - r)),
                   slope = b * y * (1.0 - y);
      return {x + 1.0 - y, b * x * (1.0 - x) - slope, slope};
    }
    case PairLossKind::simpo:
      return pair_loss::weighed(1.0 - s, s, b * (c / n_c - r / n_r) - l.gamma, b / n_c, -b / n_r);
    case PairLossKind::orpo: {
      const pair_loss::Softplus of_c = pair_loss::log_odds(c / n_c),
                                of_r = pair_loss::log_odds(r / n_r);
      return pair_loss::weighed(b, 0.0, of_c.value - of_r.value, of_c.slope / n_c,
                                -of_r.slope / n_r);
    }
    case PairLossKind::kto:
    case PairLossKind::apo_zero_unpaired: {
      const double x = pair_loss::sigmoid(b * c), y = pair_loss::sigmoid(b * r);
      // NaN of either side stays one, and the side that is not there adds 0.
      const double w_c = n_c > 0 ? l.desirable : 0, w_r = n_r > 0 ? l.undesirable : 0;
      return {w_c * (1.0 - x) + w_r * y, -w_c * b * x * (1.0 - x), w_r * b * y * (1.0 - y)};
    }
  }
  return {NAN, NAN, NAN};
}

// k of a row of pair_loss.h's pairs, of which c and r are less here.
SNUG_PAIR_LOSS double compared_with(const PairLoss& l, const int32_t* pair) {
  return l.kind == PairLossKind::kto ? double{std::bit_cast<float>(pair[6])} : 0.0;
}
// What a token of the whole chosen sequence weighs beside the loss; `pair`: a row of pair_loss.h's pairs.
SNUG_PAIR_LOSS double whole_weight(const PairLoss& l, const int32_t* pair) {
  if (l.kind != PairLossKind::orpo || pair[6] <= 0) return 0;
  return static_cast<double>(pair[7]) / static_cast<double>(pair[6]);
}
// What it adds; `logps`: a row of pair_loss.h's.
SNUG_PAIR_LOSS double whole_loss(const PairLoss& l, const int32_t* pair, const float* logps) {
  if (l.kind != PairLossKind::orpo) return 0;
  return whole_weight(l, pair) * (0.0 - double{logps[2]});
}

}  // namespace SNUG_PAIR_LOSS_SIDE
}  // namespace snug
