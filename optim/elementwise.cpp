#include "optim/elementwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "engine/core/error.h"
#include "engine/core/isa.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/loops.h"
#include "optim/chunk_map.h"
#include "optim/factored_simt.h"
#include "optim/kahan.h"
#include "optim/percentile.h"
#include "optim/resting.h"
#include "optim/rule.h"
#include "optim/update_simt.h"
#include "quant/map_lines.h"

namespace snug {
namespace {

// A chunk is updated in pieces whose arrays stay in the first-level cache, so that the rounded
// weights cost no second read of the master.
constexpr int64_t kPiece = 1024;
// What update_coded() takes at once.
constexpr int64_t kCodedBlock = 256;

template <class T>
void round_to(void* weights, const float* master, int64_t begin, int64_t n) {
  T* __restrict w = static_cast<T*>(weights) + begin;
  const float* __restrict p = master;
  for (int64_t i = 0; i < n; ++i) w[i] = from_f32<T>(p[i]);
}

// From element `begin` of the weights on. f32: a copy, where the master rests elsewhere. A master in
// bf16 is the weights, and copied.
void round_weights(void* weights, DType dtype, const void* from, DType from_dtype, int64_t begin,
                   int64_t n) {
  if (from_dtype == DType::bf16) {
    require(dtype == DType::bf16, "weights of bf16 where the parameters are");
    std::memcpy(static_cast<bf16*>(weights) + begin, from, static_cast<size_t>(n) * sizeof(bf16));
    return;
  }
  const auto* master = static_cast<const float*>(from);
  if (dtype == DType::bf16)
    round_to<bf16>(weights, master, begin, n);
  else if (dtype == DType::f16)
    round_to<f16>(weights, master, begin, n);
  else if (dtype == DType::f32)
    round_to<float>(weights, master, begin, n);
  else
    require(false, "weights of an update to be bf16, f16 or f32");
}

void check(const Optimizer& optimizer, const UpdateTargets& t, const StateStore& store,
           const View& state, WindowRange windows) {
  const int64_t n = t.master.elements();
  expect(t.master, "master", {{"elements", n}});
  expect_dtype(t.master, "master", {DType::f32, DType::bf16});
  require(t.master.dtype == DType::f32 || !t.weights.defined(),
          "weights apart from a master in f32 only");
  require(t.master.dtype == DType::bf16 || !compensates(optimizer.config()),
          "weights without a master where they have a compensation");
  if (optimizer.config().moves != WeightsMove::none) {
    require(
        !t.brought && !t.gradients.defined() && windows.last < 0 && t.master.dtype == DType::f32,
        "no gradients, and parameters in f32, to go from weights to others");
  } else if (t.brought) {
    // Each window's are looked at when they are there.
  } else if (windows.last < 0) {
    expect(t.gradients, "gradients", {{"elements", n}});
  } else {
    require(windows.last <= store.windows(), "windows of the store");
    const int64_t held = t.gradients.elements();
    for (int w = windows.first; w < windows.last; ++w)
      for (const StateSpan& s : store.window(w))
        require(s.offset >= t.first && s.offset + s.elements <= t.first + held,
                "gradients for all spans of the windows");
  }
  if (t.weights.defined()) {
    expect(t.weights, "weights", {{"elements", n}});
    expect_dtype(t.weights, "weights", {DType::bf16, DType::f16});
    require(!store.has_weights(), "weights of the store or of the targets");
  }
  expect(state, "state", {{"bytes", static_cast<int64_t>(sizeof(StepState))}});
  const auto& names = optimizer.state_names();
  if (store.states() != static_cast<int>(names.size()))
    fail(ErrorCode::shape,
         fmt::format("a state store with {} states for {}", names.size(), optimizer.name()),
         fmt::format("one with {}", store.states()),
         "make the store from the optimizer's state_names()");
}

// Spans go up: two of one parameter are next to each other.
void check_whole(const Optimizer& optimizer, std::span<const StateSpan> spans) {
  for (size_t i = 1; i < spans.size(); ++i)
    if (spans[i].param == spans[i - 1].param && spans[i].param >= 0)
      fail(ErrorCode::unsupported,
           fmt::format("whole parameters for {}, which needs their norms", optimizer.name()),
           fmt::format("parameter {} in pieces", spans[i].param),
           "a store made from the optimizer's states()");
}

// 1 over the root of what rows and columns say of n elements of a matrix, from element `from` on.
void multiply_factors(const float* factors, int64_t rows, int64_t elements, int64_t from, int64_t n,
                      float* to) {
  const int64_t columns = elements / rows;
  int64_t i = from / columns, j = from % columns;
  for (int64_t k = 0; k < n;) {
    const int64_t run = std::min(n - k, columns - j);
    for (int64_t c = 0; c < run; ++c) to[k + c] = factors[i] * factors[rows + j + c];
    k += run;
    j = 0;
    ++i;
  }
}

// What of a span does not rest as the optimizer would have it.
void check_form(StateForm how, const Codec* codec, const RestForm& form) {
  if (form.dtype == DType::f32 && how != StateForm::bf16) return;  // of what is small too
  const bool same = how == StateForm::bf16
                        ? form.dtype == DType::bf16
                        : codec != nullptr && form.coded() &&
                              std::string_view(codec->name) == form.codec &&
                              codec->bits == form.bits && codec->block == form.block;
  if (!same)
    fail(ErrorCode::shape, fmt::format("states that rest in {}", to_string(how)),
         form.coded() ? fmt::format("codes of {}", form.codec) : to_string(form.dtype),
         "make the store from the optimizer's states()");
}

}  // namespace

ElementwiseOptimizer::ElementwiseOptimizer(OptimizerConfig config,
                                           const std::vector<OptimState>& states,
                                           const char* op_name, int64_t flops, OptimReach reach)
    : Optimizer(std::move(config), states, reach),
      op_name_(op_name),
      rings_(clips_by_percentile(this->config())),
      flops_(flops) {
  require(count() <= kMaxStates, "an optimizer of at most kMaxStates states");
  for (size_t k = 0; k < static_cast<size_t>(count()); ++k)
    codecs_[k] = codec_of_state(this->config().state, states[k].squares);
  one_pass_ = count() > 0 && codecs_[0] != nullptr && !compensates(this->config());
  for (size_t k = 0; one_pass_ && k < static_cast<size_t>(count()); ++k) {
    const Codec& c = *codecs_[k];
    lines_[k] = c.block == kCodedBlock && c.book != nullptr ? map_lines(*c.book) : nullptr;
    one_pass_ = lines_[k] != nullptr;
  }
}

void ElementwiseOptimizer::update_coded(const ElementStep&, const ElementBlock&,
                                        const CodedStates&) const {
  require(false, "update_coded() where has_coded_pass()");
}

void ElementwiseOptimizer::prepare_step(StepState& state) const {
  state.bias_correction1 = state.bias_correction2 = 1.0f;
}

void ElementwiseOptimizer::update(Context& ctx, const UpdateTargets& t, StateStore& store,
                                  const View& state, WindowRange windows) const {
  check(*this, t, store, state, windows);
  if (!t.brought && config().moves == WeightsMove::none)
    expect_gradient_dtype(ctx, t.gradients, "gradients");
  store.select(windows);
  const int last = windows.last < 0 ? store.windows() : windows.last;
  for (int w = windows.first; w < last; ++w) {
    store.open(ctx, w);
    UpdateTargets here = t;
    if (t.brought) {
      const GradientWindows::Window window = t.brought->open_window(ctx, w);
      here.gradients = window.gradients;
      here.first = window.first;
      expect_gradient_dtype(ctx, here.gradients, "gradients");
      for (const StateSpan& s : store.window(w))
        require(s.offset >= here.first &&
                    s.offset + s.elements <= here.first + here.gradients.elements(),
                "gradients for all spans of the window");
    }
    {
      std::optional<Context::OnHost> host;
      if (store.on_host()) host.emplace(ctx);
      update_window(ctx, here, store, store.window(w), state);
    }
    if (t.brought) t.brought->close_window(ctx, w);
    // Of a skipped step too.
    if (t.gate && !ctx.planning() && store.writes_back())
      for (const StateSpan& span : store.window(w)) t.gate->pass(span.param);
    store.close(ctx, w);
  }
}

void ElementwiseOptimizer::update_spans(Context& ctx, const UpdateTargets& t, StateStore& store,
                                        std::span<const StateSpan> spans, const View& state) const {
  const ChunkMap map(ctx, spans, t.master.elements());
  const int states = count();

  // Where the parameters of every span lie, its states and their scales, and the weights that the
  // store has.
  static const Name pointers_name("state_pointers");
  const int weights_column = 1 + states * (in_codes() ? 2 : 1);
  const int columns = weights_column + (store.has_weights() ? 1 : 0);
  Tensor pointers;
  // Behind the table of spans a factor's place of each.
  const bool matrices = std::any_of(spans.begin(), spans.end(),
                                    [&](const StateSpan& s) { return store.rows(s) > 0; });
  if (!ctx.by_kernels() && !spans.empty())
    pointers = ctx.tensor(pointers_name,
                          {static_cast<int64_t>(spans.size()),
                           (columns + (matrices ? 1 : 0)) * int64_t{sizeof(float*)}},
                          DType::u8, Category::workspace);
  float** const table = pointers.defined() ? static_cast<float**>(pointers.view().data) : nullptr;
  size_t next = 0;
  const auto note = [&](const View& v) {
    if (table && !ctx.planning()) table[next++] = static_cast<float*>(v.data);
  };
  const int64_t weight_bytes = t.weights.defined() ? size_of(t.weights.dtype) : 0;
  int64_t written = weight_bytes * map.elements();  // bytes of weights
  DType dtype = t.weights.defined() ? t.weights.dtype : DType::f32;
  int64_t state_bytes = 0;
  for (const StateSpan& span : spans) {
    View p = store.acquire_master(ctx, span);
    if (!p.defined()) p = t.master.rows(span.offset, span.elements);
    expect(p, "master", {{"elements", span.elements}});
    expect_dtype(p, "master", {t.master.dtype});
    note(p);
    for (int k = 0; k < states; ++k) {
      const RestForm form = store.form(k, span);
      check_form(config().state, codecs_[static_cast<size_t>(k)], form);
      const View v = store.acquire(ctx, k, span);
      expect(v, "state",
             {{"elements", form.value_bytes(store.numbers(k, span)) / size_of(form.dtype)}});
      note(v);
      state_bytes += form.bytes(store.numbers(k, span));
    }
    if (in_codes())
      for (int k = 0; k < states; ++k) {
        const View v = store.acquire_scales(ctx, k, span);
        if (v.defined())
          expect(v, "scales", {{"blocks", store.form(k, span).scales(span.elements)}});
        note(v);
      }
    if (!store.has_weights()) continue;
    const View w = store.acquire_weights(ctx, span);
    if (w.defined()) {
      expect(w, "weights", {{"elements", span.elements}});
      written += w.bytes();
      dtype = w.dtype;  // of one window that of all
    }
    note(w);
  }

  const DType held = t.master.dtype;
  const bool no_master = held == DType::bf16, compensated = compensates(config());
  const auto parameters = [&](float* const* places, int64_t from) {
    return reinterpret_cast<char*>(places[0]) + from * size_of(held);
  };
  const auto place = [&](float* const* places, int k) {
    return Place{places[1 + k], in_codes() ? places[1 + states + k] : nullptr};
  };
  // The rounded weights of n elements from `begin` of the flat range, `from` of their span, on.
  const auto round_at = [&](float* const* places, int64_t begin, int64_t from, int64_t n) {
    if (t.weights.defined())
      round_weights(t.weights.data, dtype, parameters(places, from), held, begin, n);
    else if (columns > weights_column && places[weights_column])
      round_weights(places[weights_column], dtype, parameters(places, from), held, from, n);
  };
  const bool moves = config().moves != WeightsMove::none;
  if (measures() || rings_) check_whole(*this, spans);
  Tensor clips;
  if (rings_ && !moves && !spans.empty())
    clips = percentile_factors(ctx, t, store, spans, map, state);
  const int64_t gradient_bytes = moves ? 0 : size_of(t.gradients.dtype);
  // Sums of the chunks, and behind them the norms of the spans.
  static const Name norms_name("norms");
  Tensor norms;
  int64_t measured = 0;  // bytes
  // Of matrices the factors, one behind the other, and behind all of them room for sums.
  static const Name factors_name("factors");
  Tensor factors;
  int64_t factored = 0, sums_of_factors = 0, in_matrices = 0;
  for (const StateSpan& span : spans)
    if (const int64_t rows = store.rows(span); rows > 0) {
      factored += store.numbers(0, span);
      in_matrices += span.elements;
      sums_of_factors = std::max(sums_of_factors, factored_sums(rows, span.elements));
    }
  if (factored > 0)
    factors = ctx.tensor(factors_name, {round_up(4 * factored, int64_t{8}) + 8 * sums_of_factors},
                         DType::u8, Category::workspace);
  if (measures() && !spans.empty()) {
    norms = ctx.tensor(norms_name, {2 * (map.chunks() + static_cast<int64_t>(spans.size()))},
                       DType::f64, Category::workspace);
    measured = (gradient_bytes + size_of(held)) * map.elements() + state_bytes +
               2 * gradient_bytes * in_matrices;
  }
  {
    Op op(ctx, op_name_,
          {.flops = flops_ * map.elements(),
           .bytes = (gradient_bytes + 2 * size_of(held)) * map.elements() + 2 * state_bytes +
                    written + measured});
    if (op.run() && ctx.by_kernels()) {
      for (const StateSpan& span : spans)
        if (t.gate) t.gate->pass(span.param);
      update_by_kernels(ctx, t, store, spans, dtype, state, norms.defined() ? norms.view() : View{},
                        factors.defined() ? factors.view() : View{},
                        clips.defined() ? clips.view() : View{});
    } else if (op.run() && !step_state(state)->found_inf) {
      const StepState& s = *step_state(state);
      require(s.loss_scale > 0, "a loss scale above 0 (1 without loss scaling)");
      ElementStep steps[kAllGroups];
      const GroupNumbers groups = group_numbers(config());
      for (int g = 0; g < kAllGroups; ++g) steps[g] = element_step(s, groups, g);
      const bool wide = t.gradients.dtype == DType::f32;
      const auto* gradients = static_cast<const float*>(wide ? t.gradients.data : nullptr);
      const auto* rounded = static_cast<const bf16*>(wide ? nullptr : t.gradients.data);
      const auto widen = pair_loops<float, bf16>().cast;
      const RandomKey key = random_key(s.seed, static_cast<uint64_t>(s.step), kWeightSite);
      auto* const all_factors =
          factors.defined() ? static_cast<float*>(factors.view().data) : nullptr;
      float** const factors_of = table + static_cast<int64_t>(spans.size()) * columns;
      float* next_factors = all_factors;
      const auto* const of_gradients = clips.defined() ? clips.view().as<const float>() : nullptr;
      const auto step_of = [&](int64_t span) {
        ElementStep step = steps[number_of_group(config(), spans[static_cast<size_t>(span)])];
        if (of_gradients != nullptr) step.gradient_factor *= of_gradients[span];
        return step;
      };
      for (size_t i = 0; all_factors != nullptr && i < spans.size(); ++i) {
        const int64_t rows = store.rows(spans[i]), at = spans[i].offset - t.first;
        factors_of[i] = rows > 0 ? next_factors : nullptr;
        if (rows == 0) continue;
        if (t.gate) t.gate->pass(spans[i].param);  // the sums of rows and columns are states
        const ElementStep& step = steps[number_of_group(config(), spans[i])];
        const FactoredMoments moments = {
            step.gradient_factor, static_cast<float>(1.0 - step.bias_correction1),
            static_cast<float>(step.bias_correction1), factored_epsilon(), step.first};
        float* const own = table[static_cast<int64_t>(i) * columns + 1];
        auto* const room = reinterpret_cast<double*>(static_cast<char*>(factors.view().data) +
                                                     round_up(4 * factored, int64_t{8}));
        const int64_t width = spans[i].elements / rows;
        if (wide)
          factored_moments(ctx.threads(), moments, gradients + at, rows, width, own, next_factors,
                           room);
        else
          factored_moments(ctx.threads(), moments, rounded + at, rows, width, own, next_factors,
                           room);
        next_factors += store.numbers(0, spans[i]);
      }
      const auto factors_at = [&](int64_t span) {
        return all_factors != nullptr ? factors_of[span] : nullptr;
      };
      // Whether pieces of a chunk go through update_coded().
      const auto goes_coded = [&](const ChunkMap::Chunk& chunk, bool first) {
        bool all = one_pass_ && has_coded_pass() && !first && factors_at(chunk.span) == nullptr &&
                   use_avx512_vbmi();
        for (int k = 0; all && k < states; ++k)
          all = place(table + chunk.span * columns, k).scales != nullptr;
        return all;
      };
      // f(a piece as floats, its first element, that within the span, the span's places), after which
      // nothing is kept. Coded, pieces of whole blocks come without states.
      const auto each_piece = [&](const ChunkMap::Chunk& chunk, bool first, bool coded, auto&& f) {
        const StateSpan& span = spans[static_cast<size_t>(chunk.span)];
        float widened[kPiece];  // gradients in bf16, which is exact
        float unpacked[kMaxStates][kPiece];
        float held_wide[kPiece];  // parameters in bf16
        if (moves) std::fill_n(widened, kPiece, 0.0f);
        for (int64_t begin = chunk.begin, n = 0; begin < chunk.end; begin += n) {
          float* const* const places = table + chunk.span * columns;
          const int64_t from = begin - span.offset;
          const int64_t blocks = coded ? (chunk.end - begin) / kCodedBlock : 0;
          const int64_t most =  // nothing to widen: as long as there is
              blocks > 0 && wide && !moves && !no_master ? blocks * kCodedBlock : kPiece;
          n = std::min(most, blocks > 0 ? blocks * kCodedBlock : chunk.end - begin);
          ElementBlock b{n, places[0] + from, widened, {}};
          if (no_master) {
            b.parameter = held_wide;
            bf16_decode(held_wide, reinterpret_cast<bf16*>(parameters(places, from)), b.n);
          }
          if (wide && !moves)
            b.gradient = gradients + (begin - t.first);
          else if (!moves)
            widen(widened, rounded + (begin - t.first), b.n);
          if (blocks > 0) {
            // update_coded() reads them.
          } else if (const float* const own = factors_at(chunk.span); own != nullptr) {
            multiply_factors(own, store.rows(span), span.elements, from, b.n, unpacked[0]);
            b.states[0] = unpacked[0];
          } else {
            for (int k = 0; k < states; ++k)
              b.states[static_cast<size_t>(k)] =
                  unpack(place(places, k), k, from, b.n, first, unpacked[k]);
          }
          if (compensated)
            for (int64_t i = 0; i < b.n; ++i) b.parameter[i] += unpacked[states - 1][i];
          f(b, begin, from, places);
        }
      };
      double* const sums = norms.defined() ? norms.view().as<double>() : nullptr;
      double* const of_spans = sums == nullptr ? nullptr : sums + 2 * map.chunks();
      if (sums != nullptr) {
        map.for_each(ctx.threads(), [&](int64_t c, const ChunkMap::Chunk& chunk) {
          ElementStep step = step_of(chunk.span);
          step.factored = factors_at(chunk.span) != nullptr;
          NormLanes lanes;
          each_piece(chunk, step.first, false,
                     [&](const ElementBlock& b, int64_t, int64_t, float* const*) {
                       measure_block(step, b, lanes);
                     });
          const NormSums sum = lanes.sum();
          sums[2 * c] = sum.parameter;
          sums[2 * c + 1] = sum.measured;
        });
        std::fill_n(of_spans, 2 * spans.size(), 0.0);
        for (int64_t c = 0; c < map.chunks(); ++c)
          for (int j = 0; j < 2; ++j) of_spans[2 * map.chunk(c).span + j] += sums[2 * c + j];
        for (size_t i = 0; i < 2 * spans.size(); ++i) of_spans[i] = std::sqrt(of_spans[i]);
      }
      map.for_each(ctx.threads(), [&](int64_t, const ChunkMap::Chunk& chunk) {
        const StateSpan& span = spans[static_cast<size_t>(chunk.span)];
        if (t.gate) t.gate->pass(span.param);
        ElementStep step = step_of(chunk.span);
        if (of_spans != nullptr) {
          step.parameter_norm = of_spans[2 * chunk.span];
          step.measured_norm = of_spans[2 * chunk.span + 1];
          step.elements = span.elements;
          step.factored = factors_at(chunk.span) != nullptr;
        }
        const bool coded = goes_coded(chunk, step.first);
        each_piece(
            chunk, step.first, coded,
            [&](const ElementBlock& b, int64_t begin, int64_t from, float* const* places) {
              const bool whole = coded && b.n % kCodedBlock == 0;
              if (whole) {
                CodedStates all{};
                for (int k = 0; k < states; ++k) {
                  const auto i = static_cast<size_t>(k);
                  const Place at = place(places, k);
                  all[i] = {codecs_[i], lines_[i], static_cast<uint8_t*>(at.values) + from,
                            at.scales + from / kCodedBlock};
                }
                update_coded(step, b, all);
              } else {
                update_block(step, b);
              }
              if (compensated)
                split_for_kahan(b.parameter, b.n, reinterpret_cast<bf16*>(parameters(places, from)),
                                b.states[static_cast<size_t>(states - 1)]);
              else if (no_master)
                bf16_encode(key, begin, b.parameter, b.n,
                            reinterpret_cast<bf16*>(parameters(places, from)));
              for (int k = 0; !whole && k < states; ++k)
                pack(place(places, k), k, from, b.n, b.states[static_cast<size_t>(k)], s, begin);
              round_at(places, begin, from, b.n);
            });
      });
    } else if (op.run() && (t.weights.defined() || columns > weights_column)) {
      // Skipped: the weights get the bits they have. In a window of a store that rests with the
      // host they are only written, so without this what goes back is whatever was there.
      map.for_each(ctx.threads(), [&](int64_t, const ChunkMap::Chunk& chunk) {
        const int64_t from = chunk.begin - spans[static_cast<size_t>(chunk.span)].offset;
        round_at(table + chunk.span * columns, chunk.begin, from, chunk.end - chunk.begin);
      });
    }
  }
  for (const StateSpan& span : spans)
    for (int k = 0; k < states; ++k) store.release(ctx, k, span);
}

float* ElementwiseOptimizer::unpack(const Place& place, int k, int64_t from, int64_t n, bool first,
                                    float* room) const {
  const bool half = config().state == StateForm::bf16;
  float* const floats =
      place.scales != nullptr || half ? room : static_cast<float*>(place.values) + from;
  if (first) {
    std::fill_n(floats, n, 0.0f);
  } else if (place.scales != nullptr) {
    const CodeSpec spec(*codecs_[static_cast<size_t>(k)]);
    codes_decode(spec, floats, static_cast<uint8_t*>(place.values) + from * spec.codec->bits / 8,
                 place.scales + from / spec.block, n);
  } else if (half) {
    bf16_decode(floats, static_cast<bf16*>(place.values) + from, n);
  }
  return floats;
}

void ElementwiseOptimizer::pack(const Place& place, int k, int64_t from, int64_t n,
                                const float* room, const StepState& state, int64_t element) const {
  if (place.scales != nullptr) {
    const CodeSpec spec(*codecs_[static_cast<size_t>(k)]);
    codes_encode(spec, room, n, static_cast<uint8_t*>(place.values) + from * spec.codec->bits / 8,
                 place.scales + from / spec.block);
  } else if (config().state == StateForm::bf16) {
    const RandomKey key = random_key(state.seed, static_cast<uint64_t>(state.step), state_site(k));
    bf16_encode(key, element, room, n, static_cast<bf16*>(place.values) + from);
  }
}

void ElementwiseOptimizer::update_by_kernels(Context& ctx, const UpdateTargets& t,
                                             StateStore& store, std::span<const StateSpan> spans,
                                             DType weights, const View& state, const View& norms,
                                             const View& factors, const View& clips) const {
  struct List {
    Context& ctx;
    const UpdateTargets& targets;
    StateStore& store;
    std::span<const StateSpan> spans;
    const OptimizerConfig& config;
    int states;
    float* factors;
    const float* clips;
  };
  const List list{ctx,
                  t,
                  store,
                  spans,
                  config(),
                  count(),
                  static_cast<float*>(factors.data),
                  static_cast<const float*>(clips.data)};
  // What was acquired before the op, once more: so no table of places is needed.
  const auto at = [](const void* p, size_t i) {
    const List& l = *static_cast<const List*>(p);
    const StateSpan& s = l.spans[i];
    UpdateSpan span;
    span.master = l.store.acquire_master(l.ctx, s);
    if (!span.master.defined()) span.master = l.targets.master.rows(s.offset, s.elements);
    for (int k = 0; k < l.states; ++k) {
      span.states.at(static_cast<size_t>(k)) = l.store.acquire(l.ctx, k, s);
      span.scales.at(static_cast<size_t>(k)) = l.store.acquire_scales(l.ctx, k, s);
    }
    span.first = s.offset;
    // Where there are none, what is read in their place is not looked at.
    span.gradient = l.targets.gradients.defined()
                        ? l.targets.gradients.rows(s.offset - l.targets.first, s.elements)
                        : span.master;
    if (l.targets.weights.defined())
      span.weights = l.targets.weights.rows(s.offset, s.elements);
    else if (l.store.has_weights())
      span.weights = l.store.acquire_weights(l.ctx, s);
    span.group = number_of_group(l.config, s);
    span.rows = l.store.rows(s);
    if (l.clips != nullptr) span.clip = l.clips + i;
    if (span.rows > 0) {
      float* own = l.factors;
      for (size_t before = 0; before < i; ++before)
        if (l.store.rows(l.spans[before]) > 0) own += l.store.numbers(0, l.spans[before]);
      span.factors = own;
    }
    return span;
  };
  int64_t factored = 0;
  for (const StateSpan& s : spans)
    if (store.rows(s) > 0) factored += store.numbers(0, s);
  on_queue(ctx, [&](auto& queue) {
    for (size_t i = 0; factored > 0 && i < spans.size(); ++i)
      if (const UpdateSpan m = at(&list, i); m.rows > 0)
        factored_moments_on(queue, factored_epsilon(), m.gradient, m.rows, m.states[0], m.factors,
                            reinterpret_cast<double*>(static_cast<char*>(factors.data) +
                                                      round_up(4 * factored, int64_t{8})),
                            state);
    const UpdateSpans all{spans.size(), at, &list, norms};
    if (config().state != StateForm::bf16)
      optimizer_update_on(queue, config(), all, weights, t.master.dtype, state);
    if (config().state != StateForm::f32)
      resting_update_on(queue, config(), codecs_, all, weights, t.master.dtype, state);
  });
}

}  // namespace snug
