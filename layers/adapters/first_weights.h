// A and B of a new LoRA that are made of the weight they go beside: `init_lora_weights` of PEFT.
//
//   pissa          the r largest singular parts, each factor with the root of s / scale; the base is what
//                  is left, W - scale B A. Meng, Wang, Zhang, arXiv:2404.02948
//   pissa_niter_N  nearly these, by N rounds of a random range (decompose.h)
//   olora          the first rows of R and columns of Q of W = Q R; what is left likewise. Buyukakyuz,
//                  arXiv:2406.01775
//   loftq          over a base in codes: the r largest singular parts of W less what its codes decode to,
//                  each factor with the root of s; the base stays. Li et al., arXiv:2310.08659, one round
#pragma once

#include <string>
#include <string_view>

#include "layers/parts/adapter.h"

namespace snug {

struct FirstFactors {
  std::vector<float> a, b;  // (r,in), (out,r)
};

struct FirstWay {
  std::string_view name;
  bool residual = false;    // the base is W - scale B A while the adapter is there
  bool of_decoded = false;  // of a base in codes: made of what they decode to
  bool of_error = false;    // made of W less that, so that there are codes
  bool transposes = true;   // of a weight (in,out) in its files too, as PEFT has it
  FirstFactors (*make)(const std::vector<float>& w, int64_t out, int64_t in, int64_t r, float scale,
                       int64_t iterations, int threads) = nullptr;
};

// Of a word of init_lora_weights; null: A is drawn and B is 0.
const FirstWay* find_first_way(std::string_view word);
// N of pissa_niter_N; 0: another word.
int64_t pissa_rounds(std::string_view word);

// w (out,in) -= scale b a, rounded once.
void subtract_factors(std::vector<float>& w, int64_t out, int64_t in, const FirstFactors& factors,
                      float scale, int threads);

}  // namespace snug
