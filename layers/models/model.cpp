#include "layers/models/model.h"

#include <algorithm>
#include <cstring>

#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/seams/param_store.h"
#include "layers/ops/dropout.h"
#include "layers/ops/embedding.h"
#include "layers/ops/head_loss.h"

namespace snug {

Model::Model(const ModelSpec& spec, const Precision& precision)
    : spec_(spec),
      precision_(precision),
      n_embedding_("embedding.out"),
      n_final_("final.x"),
      n_normf_("final.norm"),
      n_meanf_("final.mean"),
      n_rstdf_("final.rstd"),
      n_dnormf_("final.dnorm"),
      n_dx_("dresidual"),
      n_nll_("head.nll"),
      n_lse_("head.lse"),
      scope_embedding_("embedding"),
      scope_head_("head") {
  // Token rows beyond V are padding: zero, outside the softmax, never updated or saved.
  wte_ = params_.add({.name = Name("wte.weight"),
                      .shape = {spec.Vp(), spec.C},
                      .rows = spec.V,
                      .group = kGroupDecay,
                      .init = Init::normal,
                      .init_std = spec.init_std,
                      .linear = spec.tied});
  wpe_ = params_.add({.name = Name("wpe.weight"),
                      .shape = {spec.P, spec.C},
                      .group = kGroupDecay,
                      .init = Init::normal,
                      .init_std = spec.init_std});
  for (int64_t l = 0; l < spec.L; ++l) {
    blocks_.push_back(std::make_unique<Block>(spec_, precision, l, params_));
    n_cache_k_.push_back(join(blocks_.back()->name(), "cache_k"));
    n_cache_v_.push_back(join(blocks_.back()->name(), "cache_v"));
  }
  final_norm_.weight = params_.add(
      {.name = Name("ln_f.weight"), .shape = {spec.C}, .group = kGroupNoDecay, .init = Init::ones});
  final_norm_.bias = params_.add(
      {.name = Name("ln_f.bias"), .shape = {spec.C}, .group = kGroupNoDecay, .init = Init::zeros});
  lm_head_ = spec.tied ? wte_
                       : params_.add({.name = Name("lm_head.weight"),
                                      .shape = {spec.Vp(), spec.C},
                                      .rows = spec.V,
                                      .group = kGroupDecay,
                                      .init = Init::normal,
                                      .init_std = spec.init_std,
                                      .linear = true});
}

ModelPass Model::make_pass(const LayerPolicies& policies) const {
  ModelPass pass;
  for (const std::vector<SlotPolicy>& slots : policies)
    if (!pass.offload && std::count(slots.begin(), slots.end(), SlotPolicy::offload) > 0)
      pass.offload =
          std::make_unique<Offload>(static_cast<int>(spec_.L), static_cast<int>(slots.size()));
  for (int64_t l = 0; l < spec_.L; ++l)
    pass.blocks.emplace_back(block(l).body(), policies[static_cast<size_t>(l)], pass.offload.get(),
                             static_cast<int>(l));
  return pass;
}

ModelPass Model::make_inference_pass() const {
  ModelPass pass;
  for (int64_t l = 0; l < spec_.L; ++l) {
    const Body& body = block(l).body();
    pass.blocks.emplace_back(
        body, std::vector<SlotPolicy>(static_cast<size_t>(body.slots()), SlotPolicy::recompute));
  }
  return pass;
}

Tensor Model::embed(Context& ctx, Runtime& rt, const View& tokens, PassMode mode) const {
  const Context::Scope scope(ctx, scope_embedding_);
  const int64_t B = tokens.shape[0], T = tokens.shape[1];
  Tensor x = ctx.tensor(n_embedding_, {B * T, spec_.C}, precision_.compute, Category::activations);
  // The padded rows are not tokens: an id of V or above is refused.
  embedding_forward(ctx, x, tokens, rt.params.acquire(ctx, wte_).rows(0, spec_.V),
                    rt.params.acquire(ctx, wpe_), rt.state, rt.document_start);
  rt.params.release(ctx, wte_);
  rt.params.release(ctx, wpe_);
  if (mode == PassMode::train && spec_.embedding_dropout > 0.0f)
    dropout_forward(ctx, x, x, B, T, {spec_.embedding_dropout, 0}, rt.state);
  return x;
}

Tensor Model::run_blocks(Context& ctx, Runtime& rt, ModelPass& pass, const View& tokens,
                         PassMode mode) const {
  pass.dims = {tokens.shape[0], tokens.shape[1]};
  fetch_weights(ctx, rt, 0);
  Tensor x = embed(ctx, rt, tokens, mode);
  for (int64_t l = 0; l < spec_.L; ++l) {
    fetch_weights(ctx, rt, l + 1);
    x = block(l).forward(ctx, rt, pass.blocks[static_cast<size_t>(l)], pass.dims, mode,
                         std::move(x));
  }
  if (pass.offload) pass.offload->settle();
  return x;
}

void Model::fetch_weights(Context& ctx, Runtime& rt, int64_t layer) const {
  if (layer < 0 || layer >= spec_.L) return;
  const Context::Scope scope(ctx, block(layer).name());
  rt.params.fetch_part(ctx, static_cast<int>(layer));
}

void Model::fetch(Context& ctx, Runtime& rt, ModelPass& pass, int64_t layer) const {
  fetch_weights(ctx, rt, layer);
  if (layer < 0) return;
  const Context::Scope scope(ctx, block(layer).name());
  rt.grads->fetch_part(ctx, static_cast<int>(layer));
  if (!pass.offload) return;
  pass.blocks[static_cast<size_t>(layer)].fetch(ctx);
}

void Model::train_step(Context& ctx, Runtime& rt, ModelPass& pass, const ModelBatch& batch,
                       int64_t head_rows) const {
  Tensor x = run_blocks(ctx, rt, pass, batch.tokens, PassMode::train);
  const int64_t N = pass.dims.N();
  const DType dtype = precision_.compute;
  Tensor dx;
  {
    const Context::Scope scope(ctx, scope_head_);
    Tensor mean = ctx.tensor(n_meanf_, {N}, DType::f32, Category::activations);
    Tensor rstd = ctx.tensor(n_rstdf_, {N}, DType::f32, Category::activations);
    Tensor dnorm = ctx.tensor(n_dnormf_, {N, spec_.C}, dtype, Category::activations);
    {
      const Tensor norm = ctx.tensor(n_normf_, {N, spec_.C}, dtype, Category::activations);
      norm_forward(ctx, rt, final_norm_, norm, mean, rstd, x, spec_.norm_epsilon);
      // Plain language modelling knows every token's weight beforehand, so the head runs once:
      // loss, its gradient and both products of a chunk while its logits are there.
      GradView dweight;
      if (rt.grads->wants(lm_head_)) dweight = rt.grads->open(ctx, lm_head_);
      head_loss_train(ctx, dnorm, dweight, norm, rt.params.acquire(ctx, lm_head_), batch.targets,
                      spec_.V, head_rows, rt.state, rt.packed_weight(lm_head_));
      rt.params.release(ctx, lm_head_);
      if (!spec_.tied && rt.grads->wants(lm_head_)) rt.grads->close(ctx, lm_head_);
    }
    dx = ctx.tensor(n_dx_, {N, spec_.C}, dtype, Category::activations);
    // Not before the head is through: its logits are often what the peak is made of.
    fetch(ctx, rt, pass, spec_.L - 1);
    norm_backward(ctx, rt, final_norm_, {dx.view(), false}, dnorm, x, mean, rstd);
  }
  x.reset();
  for (int64_t l = spec_.L - 1; l >= 0; --l) {
    fetch(ctx, rt, pass, l - 1);
    dx = block(l).backward(ctx, rt, pass.blocks[static_cast<size_t>(l)], std::move(dx));
  }

  const Context::Scope scope(ctx, scope_embedding_);
  if (spec_.embedding_dropout > 0.0f)
    dropout_backward(ctx, dx, dx, pass.dims.B, pass.dims.T, {spec_.embedding_dropout, 0}, rt.state);
  GradView dwte, dwpe;
  if (rt.grads->wants(wte_)) dwte = rt.grads->open(ctx, wte_);
  if (rt.grads->wants(wpe_)) dwpe = rt.grads->open(ctx, wpe_);
  embedding_backward(ctx, dwte, dwpe, dx, batch.tokens, rt.state, rt.document_start);
  // A tied table's gradient is complete only now.
  if (rt.grads->wants(wte_)) rt.grads->close(ctx, wte_);
  if (rt.grads->wants(wpe_)) rt.grads->close(ctx, wpe_);
}

Tensor Model::hidden(Context& ctx, Runtime& rt, ModelPass& pass, const View& tokens,
                     PassMode mode) const {
  const Tensor x = run_blocks(ctx, rt, pass, tokens, mode);
  const Context::Scope scope(ctx, scope_head_);
  const int64_t N = pass.dims.N();
  Tensor norm = ctx.tensor(n_normf_, {N, spec_.C}, precision_.compute, Category::activations);
  const Tensor mean = ctx.tensor(n_meanf_, {N}, DType::f32, Category::workspace);
  const Tensor rstd = ctx.tensor(n_rstdf_, {N}, DType::f32, Category::workspace);
  norm_forward(ctx, rt, final_norm_, norm, mean, rstd, x, spec_.norm_epsilon);
  return norm;
}

void Model::evaluate(Context& ctx, Runtime& rt, ModelPass& pass, const ModelBatch& batch,
                     int64_t head_rows) const {
  const Tensor norm = hidden(ctx, rt, pass, batch.tokens, PassMode::inference);
  const Context::Scope scope(ctx, scope_head_);
  const int64_t N = pass.dims.N();
  const Tensor nll = ctx.tensor(n_nll_, {N}, DType::f32, Category::workspace);
  const Tensor lse = ctx.tensor(n_lse_, {N}, DType::f32, Category::workspace);
  head_loss_forward(ctx, nll, lse, norm, rt.params.acquire(ctx, lm_head_), batch.targets, spec_.V,
                    head_rows, rt.state, rt.packed_weight(lm_head_));
  rt.params.release(ctx, lm_head_);
}

void Model::logits(Context& ctx, Runtime& rt, const View& logits, const View& hidden_rows) const {
  const Context::Scope scope(ctx, scope_head_);
  head_logits(ctx, logits, hidden_rows, rt.params.acquire(ctx, lm_head_),
              rt.packed_weight(lm_head_));
  rt.params.release(ctx, lm_head_);
}

KvCache Model::make_cache(Context& ctx, int64_t B, int64_t P) const {
  KvCache cache;
  cache.P = P;
  for (size_t l = 0; l < n_cache_k_.size(); ++l) {
    const Shape shape{B, P, spec_.G, spec_.D};
    cache.k.push_back(ctx.tensor(n_cache_k_[l], shape, precision_.compute, Category::kv_cache));
    cache.v.push_back(ctx.tensor(n_cache_v_[l], shape, precision_.compute, Category::kv_cache));
  }
  return cache;
}

double Model::flops_per_token(int64_t T) const {
  const auto C = static_cast<double>(spec_.C), F = static_cast<double>(spec_.F);
  const auto L = static_cast<double>(spec_.L), HD = static_cast<double>(spec_.H * spec_.D);
  const double GD = static_cast<double>(spec_.G * spec_.D);
  const double matmul =
      L * (C * (HD + 2 * GD) + HD * C + 2 * C * F) + C * static_cast<double>(spec_.V);
  // Causal attention does half of T x T: two products forward, twice that backward.
  return 6.0 * matmul + 6.0 * L * HD * static_cast<double>(T);
}

namespace {

// `w`: zeros before.
void init_one(const ParamInfo& p, int i, float* w, uint64_t seed, int threads) {
  const int64_t n = p.real_elements();
  switch (p.init) {
    case Init::zeros:
      break;
    case Init::ones:
      for (int64_t j = 0; j < n; ++j) w[j] = 1.0f;
      break;
    case Init::normal: {
      const RandomKey key = random_key(seed, 0, 0x696e6974u + static_cast<uint32_t>(i));
      parallel_chunks(threads, n, 4096, [&](int64_t begin, int64_t end) {
        normal_fill(key, begin / 4, end - begin, static_cast<double>(p.init_std), w + begin);
      });
      break;
    }
  }
}

}  // namespace

void init_parameters(const ParamTable& table, const View& flat, uint64_t seed, int threads) {
  auto* base = flat.as<float>();
  parallel_chunks(threads, flat.elements(), int64_t{1} << 18, [&](int64_t begin, int64_t end) {
    std::memset(base + begin, 0, static_cast<size_t>(end - begin) * 4);
  });
  for (int i = 0; i < table.size(); ++i)
    init_one(table[i], i, base + table[i].offset, seed, threads);
}

void init_parameters(Context& ctx, const ParamTable& table, const View& flat, uint64_t seed) {
  if (ctx.host_reads()) return init_parameters(table, flat, seed, ctx.threads());
  std::vector<float> block;
  for (int i = 0; i < table.size(); ++i) {
    const int64_t begin = table[i].offset,
                  end = i + 1 < table.size() ? table[i + 1].offset : flat.elements();
    block.assign(static_cast<size_t>(end - begin), 0.0f);  // with the gap behind it
    init_one(table[i], i, block.data(), seed, ctx.threads());
    ctx.write(flat.rows(begin, end - begin), block.data());
  }
}

}  // namespace snug
