// The losses of preference as TRL 1.16.0 writes them (trl/trainer/dpo_trainer.py, _compute_loss; simpo of
// trl/experimental/cpo, cpo_loss; orpo of trl/experimental/orpo, odds_ratio_loss; those of single answers
// of trl/trainer/kto_trainer.py), of a pair; T: double or Complex.
#pragma once

#include <cmath>

#include "layers/ops/pair_losses.h"
#include "tests/support/gradient.h"

namespace snug::test {

template <class T>
T log_sigmoid_reference(const T& x) {
  using std::exp;
  using std::log;
  // Both are log sigmoid(x); the one that does not overflow.
  return real_of(x) < 0 ? x - log(1.0 + exp(x)) : -log(1.0 + exp(-x));
}
template <class T>
T sigmoid_reference(const T& x) {
  using std::exp;
  return 1.0 / (1.0 + exp(-x));
}

// log(p / (1 - p)) of the mean log probability.
template <class T>
T log_odds_reference(const T& x) {
  using std::exp;
  using std::log;
  return x - log(1.0 - exp(x));
}

// c and r: what chosen_logratios and rejected_logratios are there; counts: sums of completion_mask, 0 of
// an answer that is not there; kl: what a single one is compared with.
template <class T>
T pair_loss_reference(const PairLoss& l, const T& c, const T& r, double count_c, double count_r,
                      double kl = 0) {
  const double beta = l.beta, smoothing = l.label_smoothing;
  const T delta = c - r;
  switch (l.kind) {
    case PairLossKind::sigmoid:  // of TRL before 1.0 with label_smoothing
      return -log_sigmoid_reference(beta * delta) * (1 - smoothing) -
             log_sigmoid_reference(-beta * delta) * smoothing;
    case PairLossKind::hinge: {
      const T x = 1.0 - beta * delta;
      return real_of(x) > 0 ? x : T(0);
    }
    case PairLossKind::ipo: {
      const T x = c / count_c - r / count_r - 1 / (2 * beta);
      return x * x;
    }
    case PairLossKind::sigmoid_norm:
      return -log_sigmoid_reference(beta * (c / count_c - r / count_r));
    case PairLossKind::nca_pair:
      return -log_sigmoid_reference(beta * c) - 0.5 * log_sigmoid_reference(-beta * c) -
             0.5 * log_sigmoid_reference(-beta * r);
    case PairLossKind::sppo_hard: {
      const T a = c - 0.5 / beta, b = r + 0.5 / beta;
      return a * a + b * b;
    }
    case PairLossKind::apo_zero:
      return 1.0 - sigmoid_reference(beta * c) + sigmoid_reference(beta * r);
    case PairLossKind::apo_down:
      return sigmoid_reference(beta * c) + (1.0 - sigmoid_reference(beta * delta));
    case PairLossKind::simpo: {
      const T logits = c / count_c - r / count_r - l.gamma / beta;
      return -log_sigmoid_reference(beta * logits) * (1 - smoothing) -
             log_sigmoid_reference(-beta * logits) * smoothing;
    }
    case PairLossKind::orpo:
      return -beta * log_sigmoid_reference(log_odds_reference(c / count_c) -
                                           log_odds_reference(r / count_r));
    case PairLossKind::kto:
      if (count_c > 0) return l.desirable * (1.0 - sigmoid_reference(beta * (c - kl)));
      return l.undesirable * (1.0 - sigmoid_reference(beta * (kl - r)));
    case PairLossKind::apo_zero_unpaired:
      if (count_c > 0) return l.desirable * (1.0 - sigmoid_reference(beta * c));
      return l.undesirable * sigmoid_reference(beta * r);
  }
  return T(std::nan(""));
}

}  // namespace snug::test
