#include "layers/models/model.h"

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/seams/param_store.h"
#include "layers/ops/attention.h"
#include "layers/ops/document_start.h"
#include "layers/ops/head_loss.h"

namespace snug {

Model::Model(const ModelSpec& spec, const Precision& precision,
             std::function<bool(std::string_view)> frozen, Adapters adapters, int ranks,
             std::shared_ptr<const WeightCodes> codes)
    : spec_(spec),
      precision_(precision),
      adapters_(std::move(adapters)),
      params_(std::move(frozen), ranks, std::move(codes)),
      n_pair_loss_("head.pair_loss"),
      n_dnll_("head.dnll"),
      n_document_end_("batch.document_end"),
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
  embedding_.emplace(spec_, precision, params_, adapters_);
  for (const AdapterKind* kind : kinds_of(adapters_))
    for (const AdapterParam& p : kind->shared(layers_of(adapters_, *kind)))
      params_.add({.name = Name(p.name), .shape = p.shape, .trainable = false});
  for (int64_t l = 0; l < spec.L; ++l) {
    blocks_.push_back(std::make_unique<Block>(spec_, precision, l, params_, adapters_));
    n_cache_k_.push_back(join(blocks_.back()->name(), "cache_k"));
    n_cache_v_.push_back(join(blocks_.back()->name(), "cache_v"));
  }
  // A block has a backward if something in it or before it is trained.
  bool before = false;
  first_backward_ = spec.L;
  for (int i = 0, l = 0; i < params_.size(); ++i) {
    for (; l <= params_[i].part; ++l) blocks_[static_cast<size_t>(l)]->derive(params_, before);
    before |= params_[i].trainable;
    if (params_[i].trainable)
      first_backward_ = std::min<int64_t>(first_backward_, std::max(0, params_[i].part));
  }
  embedding_->derive(params_);
  const auto expect_adapters = [&] {
    for (const auto& [layer, adapter] : adapters_) {
      const int weight = params_.find(layer + ".weight");
      require(weight >= 0, "a linear layer for every adapter");
      const Shape& shape = params_[weight].shape;
      for (const AdapterParam& p : adapter.kind->params({layer, "", &adapter, shape[1], shape[0]}))
        require(params_.find(p.name) >= 0, "the adapter of a layer");
    }
  };
  if (spec.head != HeadKind::causal_lm) {
    rows_head_.emplace(spec_, precision, embedding_->wte(), params_, adapters_);
    rows_head_->derive(params_, first_backward_ < spec.L);
    expect_adapters();
    return;
  }
  final_norm_.weight = params_.add({.name = Name("ln_f.weight"),
                                    .shape = {spec.C},
                                    .group = kGroupNoDecay,
                                    .init = spec.unit_offset ? Init::zeros : Init::ones});
  final_norm_.unit_offset = spec.unit_offset;
  if (spec.norm == NormKind::layernorm)
    final_norm_.bias = params_.add({.name = Name("ln_f.bias"),
                                    .shape = {spec.C},
                                    .group = kGroupNoDecay,
                                    .init = Init::zeros});
  lm_head_ = spec.tied ? embedding_->wte()
                       : params_.add({.name = Name("lm_head.weight"),
                                      .shape = {spec.Vp(), spec.C},
                                      .rows = spec.V,
                                      .group = kGroupDecay,
                                      .init = Init::normal,
                                      .init_std = spec.init_std,
                                      .linear = true});
  expect_adapters();
}

ModelPass Model::make_pass_of_ends() const {
  ModelPass pass;
  const auto keep = [](const Body& body) {
    return std::vector<SlotPolicy>(static_cast<size_t>(body.slots()), SlotPolicy::keep);
  };
  pass.embedding.emplace(embedding_->body(), keep(embedding_->body()));
  if (rows_head_) pass.head.emplace(rows_head_->body(), keep(rows_head_->body()));
  return pass;
}

ModelPass Model::make_pass(const LayerPolicies& policies) const {
  ModelPass pass = make_pass_of_ends();
  size_t most = 0;  // slots of a layer: adapters may be in some alone
  bool away = false;
  for (const std::vector<SlotPolicy>& slots : policies) {
    most = std::max(most, slots.size());
    away |= std::count(slots.begin(), slots.end(), SlotPolicy::offload) > 0;
  }
  if (away)
    pass.offload = std::make_unique<Offload>(static_cast<int>(spec_.L), static_cast<int>(most));
  for (int64_t l = 0; l < spec_.L; ++l)
    pass.blocks.emplace_back(block(l).body(), policies[static_cast<size_t>(l)], pass.offload.get(),
                             static_cast<int>(l));
  return pass;
}

ModelPass Model::make_inference_pass() const {
  ModelPass pass = make_pass_of_ends();
  for (int64_t l = 0; l < spec_.L; ++l) {
    const Body& body = block(l).body();
    pass.blocks.emplace_back(
        body, std::vector<SlotPolicy>(static_cast<size_t>(body.slots()), SlotPolicy::recompute));
  }
  return pass;
}

Tensor Model::run_blocks(Context& ctx, Runtime& rt, ModelPass& pass, const View& tokens,
                         PassMode mode) const {
  pass.dims = {tokens.shape[0], tokens.shape[1],
               rt.head_rows.defined() ? rt.head_rows.shape[0] / tokens.shape[0] : 0};
  rt.tokens = tokens;
  if (!spec_.causal && rt.document_start.defined()) {
    pass.document_end =
        ctx.tensor(n_document_end_, rt.document_start.shape, DType::i32, Category::batch);
    document_end(ctx, pass.document_end, rt.document_start, tokens.shape[0], tokens.shape[1]);
    rt.document_end = pass.document_end;
  }
  fetch_weights(ctx, rt, 0);
  Tensor x = [&] {
    const Context::Scope scope(ctx, scope_embedding_);
    return embedding_->forward(ctx, rt, *pass.embedding, mode);
  }();
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
  if (layer < first_backward_) return;
  fetch_weights(ctx, rt, layer);
  const Context::Scope scope(ctx, block(layer).name());
  rt.grads->fetch_part(ctx, static_cast<int>(layer));
  if (!pass.offload) return;
  pass.blocks[static_cast<size_t>(layer)].fetch(ctx);
}

void Model::token_losses(Context& ctx, Runtime& rt, const View& nll, const View& lse,
                         const View& norm, const ModelBatch& batch, int64_t head_rows,
                         const View& state) const {
  head_loss_forward(ctx, nll, lse, norm, rt.params.acquire(ctx, lm_head_), batch.targets, spec_.V,
                    head_rows, state, rt.packed_weight(lm_head_), {}, spec_.head_softcap);
  rt.params.release(ctx, lm_head_);
}

// What a token weighs is known when both sequences of its pair are through, so that logits are
// computed twice and never kept.
void Model::train_pairs(Context& ctx, Runtime& rt, const ModelBatch& batch, int64_t head_rows,
                        const View& norm, const View& dnorm, const GradView& dweight) const {
  const PairBatch& p = batch.pairs;
  const int64_t N = norm.shape[0];
  const Tensor nll = ctx.tensor(n_nll_, {N}, DType::f32, Category::workspace);
  const Tensor lse = ctx.tensor(n_lse_, {N}, DType::f32, Category::workspace);
  const Tensor dnll = ctx.tensor(n_dnll_, {N}, DType::f32, Category::workspace);
  const Tensor loss = ctx.tensor(n_pair_loss_, {p.pairs.shape[0]}, DType::f32, Category::workspace);
  token_losses(ctx, rt, nll, lse, norm, batch, head_rows, {});
  sequence_logps(ctx, p.logps, nll, p.pairs);
  pair_loss_forward(ctx, loss, p.logps, p.reference, p.pairs, p.loss, rt.state);
  pair_loss_backward(ctx, dnll, p.logps, p.reference, p.pairs, p.loss, rt.state);
  head_loss_backward(ctx, dnorm, dweight, dnll, lse, norm, rt.params.acquire(ctx, lm_head_),
                     batch.targets, spec_.V, head_rows, rt.packed_weight(lm_head_), {}, {},
                     spec_.head_softcap);
  rt.params.release(ctx, lm_head_);
}

Tensor Model::train_causal(Context& ctx, Runtime& rt, ModelPass& pass, const ModelBatch& batch,
                           int64_t head_rows, const Tensor& x) const {
  const Context::Scope scope(ctx, scope_head_);
  const int64_t N = pass.dims.N();
  const DType dtype = precision_.compute;
  Tensor mean;
  if (final_norm_.bias >= 0) mean = ctx.tensor(n_meanf_, {N}, DType::f32, Category::activations);
  Tensor rstd = ctx.tensor(n_rstdf_, {N}, DType::f32, Category::activations);
  Tensor dnorm = ctx.tensor(n_dnormf_, {N, spec_.C}, dtype, Category::activations);
  {
    const Tensor norm = ctx.tensor(n_normf_, {N, spec_.C}, dtype, Category::activations);
    norm_forward(ctx, rt, final_norm_, norm, mean, rstd, x, spec_.norm_epsilon);
    // Plain language modelling knows every token's weight beforehand, so the head runs once:
    // loss, its gradient and both products of a chunk while its logits are there.
    GradView dweight;
    if (rt.grads->wants(lm_head_)) dweight = rt.grads->open(ctx, lm_head_);
    if (batch.pairs.pairs.defined()) {
      train_pairs(ctx, rt, batch, head_rows, norm, dnorm, dweight);
    } else {
      head_loss_train(ctx, dnorm, dweight, norm, rt.params.acquire(ctx, lm_head_), batch.targets,
                      spec_.V, head_rows, rt.state, rt.packed_weight(lm_head_), {}, {},
                      spec_.head_softcap);
      rt.params.release(ctx, lm_head_);
    }
    if (!spec_.tied && rt.grads->wants(lm_head_)) rt.grads->close(ctx, lm_head_);
  }
  const auto trained = [&](int param) { return param >= 0 && rt.grads->wants(param); };
  if (first_backward_ == spec_.L && !trained(final_norm_.weight) && !trained(final_norm_.bias))
    return {};
  Tensor dx = ctx.tensor(n_dx_, {N, spec_.C}, dtype, Category::activations);
  // Not before the head is through: its logits are often what the peak is made of.
  fetch(ctx, rt, pass, spec_.L - 1);
  norm_backward(ctx, rt, final_norm_, {dx.view(), false}, dnorm, x, mean, rstd);
  return dx;
}

Tensor Model::forward(Context& ctx, Runtime& rt, ModelPass& pass, const ModelBatch& batch,
                      PassMode mode) const {
  rt.token_types = batch.token_types;
  rt.head_rows = batch.head.index;
  return run_blocks(ctx, rt, pass, batch.tokens, mode);
}

Tensor Model::loss(Context& ctx, Runtime& rt, ModelPass& pass, const ModelBatch& batch,
                   int64_t head_rows, Tensor x) const {
  if (!rows_head_) return train_causal(ctx, rt, pass, batch, head_rows, x);
  Tensor dx = rows_head_->train(ctx, rt, *pass.head, batch.head, head_rows, std::move(x));
  fetch(ctx, rt, pass, spec_.L - 1);
  return dx;
}

void Model::backward(Context& ctx, Runtime& rt, ModelPass& pass, Tensor dx) const {
  for (int64_t l = spec_.L - 1; l >= first_backward_; --l) {
    fetch(ctx, rt, pass, l - 1);
    dx = block(l).backward(ctx, rt, pass.blocks[static_cast<size_t>(l)], std::move(dx));
  }
  if (dx.defined() && first_backward_ == 0) {
    const Context::Scope scope(ctx, scope_embedding_);
    embedding_->backward(ctx, *pass.embedding, std::move(dx));
  }
  pass.document_end.reset();
}

Tensor Model::hidden(Context& ctx, Runtime& rt, ModelPass& pass, const View& tokens,
                     PassMode mode) const {
  const Tensor x = run_blocks(ctx, rt, pass, tokens, mode);
  const Context::Scope scope(ctx, scope_head_);
  const int64_t N = pass.dims.N();
  Tensor norm = ctx.tensor(n_normf_, {N, spec_.C}, precision_.compute, Category::activations);
  Tensor mean;
  if (final_norm_.bias >= 0) mean = ctx.tensor(n_meanf_, {N}, DType::f32, Category::workspace);
  const Tensor rstd = ctx.tensor(n_rstdf_, {N}, DType::f32, Category::workspace);
  norm_forward(ctx, rt, final_norm_, norm, mean, rstd, x, spec_.norm_epsilon);
  return norm;
}

void Model::evaluate(Context& ctx, Runtime& rt, ModelPass& pass, const ModelBatch& batch,
                     int64_t head_rows) const {
  if (rows_head_) {
    Tensor x = forward(ctx, rt, pass, batch, PassMode::inference);
    rows_head_->evaluate(ctx, rt, *pass.head, batch.head, head_rows, std::move(x));
    pass.document_end.reset();
    return;
  }
  rt.token_types = batch.token_types;
  const Tensor norm = hidden(ctx, rt, pass, batch.tokens, PassMode::inference);
  const Context::Scope scope(ctx, scope_head_);
  const int64_t N = pass.dims.N();
  const Tensor nll = ctx.tensor(n_nll_, {N}, DType::f32, Category::workspace);
  const Tensor lse = ctx.tensor(n_lse_, {N}, DType::f32, Category::workspace);
  const PairBatch& p = batch.pairs;
  token_losses(ctx, rt, nll, lse, norm, batch, head_rows, p.pairs.defined() ? View() : rt.state);
  if (!p.pairs.defined()) return;
  const Tensor loss = ctx.tensor(n_pair_loss_, {p.pairs.shape[0]}, DType::f32, Category::workspace);
  sequence_logps(ctx, p.logps, nll, p.pairs);
  pair_loss_forward(ctx, loss, p.logps, p.reference, p.pairs, p.loss, rt.state);
}

void Model::reference(Context& ctx, Runtime& rt, ModelPass& pass, const ModelBatch& batch,
                      int64_t head_rows) const {
  rt.token_types = batch.token_types;
  rt.adapters = false;
  const Tensor norm = hidden(ctx, rt, pass, batch.tokens, PassMode::inference);
  const Context::Scope scope(ctx, scope_head_);
  const int64_t N = pass.dims.N();
  const Tensor nll = ctx.tensor(n_nll_, {N}, DType::f32, Category::workspace);
  const Tensor lse = ctx.tensor(n_lse_, {N}, DType::f32, Category::workspace);
  token_losses(ctx, rt, nll, lse, norm, batch, head_rows, {});
  sequence_logps(ctx, batch.pairs.reference, nll, batch.pairs.pairs);
}

void Model::logits(Context& ctx, Runtime& rt, const View& logits, const View& hidden_rows) const {
  const Context::Scope scope(ctx, scope_head_);
  head_logits(ctx, logits, hidden_rows, rt.params.acquire(ctx, lm_head_),
              rt.packed_weight(lm_head_), {}, spec_.head_softcap);
  rt.params.release(ctx, lm_head_);
}

KvCache Model::make_cache(Context& ctx, int64_t B, int64_t P, int64_t chunk) const {
  KvCache cache;
  cache.P = P;
  for (size_t l = 0; l < n_cache_k_.size(); ++l) {
    const int64_t window = spec_.kind(static_cast<int64_t>(l)).window;
    const int64_t rows = window > 0 ? std::min(P, attention_ring(window, chunk)) : P;
    if (rows < P) cache.slack = std::min(cache.slack, rows - window - chunk);
    const Shape shape{B, rows, spec_.G, spec_.D};
    cache.k.push_back(ctx.tensor(n_cache_k_[l], shape, precision_.compute, Category::kv_cache));
    cache.v.push_back(ctx.tensor(n_cache_v_[l], shape, precision_.compute, Category::kv_cache));
  }
  return cache;
}

double Model::flops_per_token(int64_t T) const {
  const auto C = static_cast<double>(spec_.C), F = static_cast<double>(spec_.F);
  const auto L = static_cast<double>(spec_.L), HD = static_cast<double>(spec_.H * spec_.D);
  const double GD = static_cast<double>(spec_.G * spec_.D);
  // A head over rows sees few of them: it is not counted.
  const double head = rows_head_ ? 0.0 : C * static_cast<double>(spec_.V);
  const double matmul = L * (C * (HD + 2 * GD) + HD * C + (spec_.gated_mlp ? 3 : 2) * C * F) + head;
  // Causal attention does half of T x T: two products forward, twice that backward.
  const double pairs = spec_.causal ? 6.0 : 12.0;
  // Of a frozen weight there is no gradient to compute.
  return (adapters_.empty() ? 6.0 : 4.0) * matmul + pairs * L * HD * static_cast<double>(T);
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
    case Init::uniform: {
      const RandomKey key = random_key(seed, 0, 0x696e6974u + static_cast<uint32_t>(i));
      for (int64_t j = 0; j < n; ++j) {
        const Philox4 block = random_block(key, static_cast<uint64_t>(j / 4), 0, 0);
        w[j] = p.init_std * (2.0f * uniform_from(block[static_cast<size_t>(j % 4)]) - 1.0f);
      }
      break;
    }
  }
}

}  // namespace

namespace {

void init_coded(const ParamTable& table, int param, CodeSink& sink, uint64_t seed, int threads) {
  const ParamInfo& p = table[param];
  std::vector<float> all(static_cast<size_t>(p.elements()), 0.0f);
  init_one(p, param, all.data(), seed, threads);
  const float* from = all.data();
  for (size_t k = 0; k < p.code_rows.size(); ++k) {
    const int64_t n = p.elements() / p.shape[0] * p.code_rows[k];
    sink.code(param, k, [&](float* to) { std::copy_n(from, n, to); });
    from += n;
  }
}

}  // namespace

void init_parameter(const ParamTable& table, int param, float* values, uint64_t seed, int threads) {
  init_one(table[param], param, values, seed, threads);
}

void init_parameters(const ParamTable& table, const View& flat, uint64_t seed, int threads) {
  auto* base = flat.as<float>();
  parallel_chunks(threads, flat.elements(), int64_t{1} << 18, [&](int64_t begin, int64_t end) {
    std::memset(base + begin, 0, static_cast<size_t>(end - begin) * 4);
  });
  for (int i = 0; i < table.size(); ++i)
    init_one(table[i], i, base + table[i].offset, seed, threads);
}

void init_parameters(Context& ctx, const ParamTable& table, const RestingWeights& weights,
                     uint64_t seed) {
  const std::vector<RestingWeights::Piece>& pieces = weights.pieces();
  if (ctx.host_reads() && pieces.size() == 1 && pieces.front().view.dtype == DType::f32 &&
      table.coded().empty())
    return init_parameters(table, pieces.front().view, seed, ctx.threads());
  std::vector<float> block;
  std::vector<uint16_t> rounded;
  for (int i = 0; i < table.size(); ++i) {
    if (table[i].coded()) {
      init_coded(table, i, weights.sink(), seed, ctx.threads());
      continue;
    }
    const int64_t begin = table[i].offset, n = table.end_of(i) - begin;
    block.assign(static_cast<size_t>(n), 0.0f);  // with the gap behind it
    init_one(table[i], i, block.data(), seed, ctx.threads());
    weights.each(begin, n,
                 [&](const RestingWeights::Piece& piece, int64_t first, const View& place) {
                   if (!piece.own) return;
                   const float* const from = block.data() + (first - begin);
                   const void* values = from;
                   if (place.dtype != DType::f32) {
                     require(place.dtype == DType::bf16 || place.dtype == DType::f16,
                             "parameters of f32, bf16 or f16");
                     const auto count = static_cast<size_t>(place.elements());
                     rounded.resize(count);
                     for (size_t k = 0; k < count; ++k)
                       rounded[k] = place.dtype == DType::bf16 ? from_f32<bf16>(from[k]).bits
                                                               : from_f32<f16>(from[k]).bits;
                     values = rounded.data();
                   }
                   ctx.write(place, values);
                 });
  }
}

}  // namespace snug
