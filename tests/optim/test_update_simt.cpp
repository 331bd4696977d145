// The kernels in the emulator against the CPU: updates with the same bits, step after step; the
// norm to the rounding of its sum.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/core/sanitizers.h"
#include "engine/kernels/gradient_norm_simt.h"
#include "optim/clip_simt.h"
#include "optim/rule.h"
#include "optim/update_simt.h"
#include "tests/optim/optim_case.h"
#include "tests/support/emu.h"

// Blocks of memory that the program has taken; a sanitizer has operators of its own, which know
// each other. Not inlined: GCC pairs what it sees of these with calls of operator new.
namespace {
std::atomic<int64_t> blocks_taken{0};
}
#if SNUG_ADDRESS_SANITIZER == 0
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++blocks_taken;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
#endif

namespace snug::test {
namespace {

struct Variant {
  std::vector<int64_t> sizes;  // of the parameters; every third is not decayed
  std::string name = "adamw";
  DType weights = DType::f32;
  int64_t updates = 0;
  int threads = 64;
  bool shifted = false;
  bool found_inf = false;
  double momentum = 0.9;
  bool nesterov = false;
  double dampening = 0;
  std::string args = {};
  std::vector<int> group_of = {};  // of two groups of the configuration
  DType held = DType::f32;         // what parameters rest in
  int64_t apart = 0;  // of how many spans of 256 elements one has its gradients in another tensor
};

UpdateCase case_of(const Variant& v) {
  const ParamTable table = table_of(v.sizes);
  UpdateCase u;
  u.config.name = v.name;
  u.config.weight_decay = 0.1;
  if (has_momentum(v.name)) {
    u.config.sgd_momentum = v.momentum;
    u.config.sgd_nesterov = v.nesterov;
    u.config.sgd_dampening = v.dampening;
  } else if (find_optimizer(v.name)->uses & kUsesBetas) {
    u.config.adam_beta2 = 0.95;
  }
  u.config.args = parse_optim_args(v.args);
  u.config.group_of = v.group_of;
  if (!v.group_of.empty()) u.config.groups = {{0.5, 0.3}, {0.25, -1}};
  u.spans = whole_parameter_spans(table);
  const int64_t n = table.flat_elements();
  u.master = normal_values(n, 1);
  u.gradients = normal_values(n, 2, DType::f32, 50);
  uint32_t seed = 3;
  for (const Name& state : std::vector<Name>(make_optimizer(u.config)->state_names())) {
    u.states.push_back(normal_values(n, seed++));
    if (!holds_squares(state)) continue;
    for (double& x : u.states.back()) x *= x;
    u.states.back() = as_f32(u.states.back());
  }
  // Before the first update the states hold anything.
  if (v.updates == 0)
    for (Values& s : u.states) s.assign(s.size(), std::nan(""));
  u.weights = v.weights;
  u.held = v.held;
  u.master = rounded(u.master, v.held);
  u.state = plain_state(0.0123);
  u.state.seed = 7;
  u.state.step = 5;
  u.state.learning_rate[kGroupNoDecay] = 0.5f;
  u.state.updates = v.updates;
  u.state.loss_scale = 128;
  u.state.clip_factor = 0.3f;
  u.state.found_inf = v.found_inf;
  return u;
}

// The spans of a vector, in order and each asked for once.
void update(simt::emu::Queue& queue, const OptimizerConfig& config,
            const std::vector<UpdateSpan>& spans, const View& state, int threads = 64,
            const View& norms = {}) {
  struct List {
    const std::vector<UpdateSpan>& spans;
    size_t next = 0;
  } list{spans};
  const auto at = [](const void* p, size_t i) {
    List& l = *static_cast<List*>(const_cast<void*>(p));
    EXPECT_EQ(i, l.next++);
    return l.spans.at(i);
  };
  DType weights = DType::f32, held = DType::f32;
  for (const UpdateSpan& s : spans) {
    if (s.weights.defined()) weights = s.weights.dtype;
    held = s.master.dtype;
  }
  optimizer_update_on(queue, config, {spans.size(), at, &list, norms}, weights, held, state,
                      threads);
  EXPECT_EQ(list.next, spans.size());
}

// Gives the number of launches.
int64_t check(const Variant& v) {
  SCOPED_TRACE(fmt::format("{} of {} tensors weights {} updates {} threads {} shifted {}", v.name,
                           v.sizes.size(), to_string(v.weights), v.updates, v.threads, v.shifted));
  const UpdateCase u = case_of(v);
  const auto optimizer = make_optimizer(u.config);
  const auto n = static_cast<int64_t>(u.master.size());
  const Outputs cpu = run_on_plan_and_cpu({}, u.body());
  // The op on the place emu finds the same kernels.
  expect_equal_bits(run_on_emu(u.body()), cpu);
  int64_t launches = 0;
  const Outputs out = run_in_all_schedules(
      [&](EmuCase& c) {
        const View master = c.inout("master", {n}, v.held, u.master);
        const View gradients = c.inout("gradients", {n}, DType::f32, u.gradients);
        const View others = c.input("others", {n}, DType::f32, u.gradients);
        View weights;
        if (v.weights != DType::f32)
          weights = c.inout("weights", {n}, v.weights, Values(u.master.size(), 7.0));
        std::vector<View> states;
        for (size_t k = 0; k < u.states.size(); ++k)
          states.push_back(
              c.inout(optimizer->state_names()[k].c_str(), {n}, DType::f32, u.states[k]));
        std::vector<UpdateSpan> spans;
        for (const StateSpan& s : u.spans) {
          const auto at = [&](const View& flat) { return flat.rows(s.offset, s.elements); };
          const bool apart = v.apart > 0 && s.offset / 256 % v.apart == 0;
          UpdateSpan span{
              at(master), at(apart ? others : gradients), {}, {}, number_of_group(u.config, s)};
          if (weights.defined()) span.weights = at(weights);
          span.first = s.offset;
          for (size_t k = 0; k < states.size(); ++k) span.states[k] = at(states[k]);
          spans.push_back(span);
        }
        StepState s = u.state;
        optimizer->prepare_step(s);
        View norms;
        if (measures(v.name)) {
          int64_t chunks = 0;
          for (const StateSpan& span : u.spans)
            chunks += ceil_div(span.elements, kChunkElements) + 1;
          norms = c.output("norms", {2 * chunks}, DType::f64);
        }
        update(c.queue(), u.config, spans, c.step_state(s), v.threads, norms);
        launches = c.queue().counters.launches;
      },
      v.shifted);
  EXPECT_EQ(out.all.size(), cpu.all.size() + (measures(v.name) ? 1 : 0));
  for (const Output& o : cpu.all) {
    const Values a = out[o.name], b = cpu[o.name];
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(double)), 0) << o.name;
  }
  return launches;
}

TEST(UpdateSimt, SameBitsAsTheCpu) {
  for (const std::string& name : optimizer_names())
    for (const DType weights : {DType::f32, DType::bf16, DType::f16}) {
      for (const int64_t updates : {0, 9}) {
        check({.sizes = {130}, .name = name, .weights = weights, .updates = updates});
        check({.sizes = {1, 3, 4, 7}, .name = name, .weights = weights, .updates = updates});
      }
      check(
          {.sizes = {300, 2051, 5}, .name = name, .weights = weights, .updates = 3, .threads = 32});
    }
  // Parameters of several chunks.
  for (const char* name : {"lamb", "lars"})
    for (const DType held : {DType::f32, DType::bf16})
      check({.sizes = {5, 40000, 300}, .name = name, .updates = 2, .threads = 128, .held = held});
  // Without a master.
  for (const std::string& name : optimizer_names()) {
    for (const int64_t updates : {0, 9})
      check({.sizes = {130, 1, 3, 2051, 7}, .name = name, .updates = updates, .held = DType::bf16});
    check({.sizes = {100}, .name = name, .found_inf = true, .held = DType::bf16});
  }
  check({.sizes = std::vector<int64_t>(7, 256), .updates = 1, .held = DType::bf16, .apart = 3});
  for (const bool shifted : {false, true})
    check({.sizes = {1001, 9}, .updates = 3, .shifted = shifted, .held = DType::bf16});
  for (const int threads : kBlockSizes)
    for (const bool shifted : {false, true})
      check({.sizes = {1001},
             .weights = DType::bf16,
             .updates = 3,
             .threads = threads,
             .shifted = shifted});
  for (const int64_t updates : {0, 2}) {
    check({.sizes = {70, 5}, .name = "sgd", .updates = updates, .momentum = 0});
    check({.sizes = {70, 5}, .name = "sgd", .updates = updates, .nesterov = true});
    check({.sizes = {70, 5}, .name = "sgd", .updates = updates, .dampening = 0.3});
  }
  for (const std::string& name : optimizer_names())
    check(
        {.sizes = {70, 5, 256, 256, 30}, .name = name, .updates = 2, .group_of = {1, 0, 2, 2, 1}});
  for (const char* args : {"momentum=0.9", "centered=1", "momentum=0.9,centered=1"})
    check({.sizes = {70, 5}, .name = "rmsprop", .updates = 2, .args = args});
  check(
      {.sizes = {70, 5}, .name = "adagrad", .args = "lr_decay=0.1,initial_accumulator_value=0.2"});
  for (const int64_t updates : {0, 3, 20})
    check(
        {.sizes = {70, 5}, .name = "ademamix", .updates = updates, .args = "t_alpha=8,t_beta3=9"});
  for (const std::string& name : optimizer_names())
    check({.sizes = {100}, .name = name, .weights = DType::bf16, .updates = 3, .found_inf = true});
}

// Some without an element. In one launch as many as a model has; more than one takes.
TEST(UpdateSimt, ManyTensors) {
  Variant v{.sizes = {}, .updates = 2, .threads = 32};
  for (int i = 0; i < 67; ++i) v.sizes.push_back(i % 7 * 5);
  v.sizes[40] = 1500;
  EXPECT_EQ(check(v), 1);
  while (v.sizes.size() < 580) v.sizes.push_back(3);  // of GPT-2 XL
  EXPECT_EQ(check(v), 1);
  while (v.sizes.size() < kSpansOfALaunch + 200) v.sizes.push_back(3);
  v.weights = DType::bf16;
  EXPECT_EQ(check(v), 2);
}

// Gradients of every third span are in another tensor, so a launch ends before and after them.
// Spans of one group without a gap are one part.
TEST(UpdateSimt, TensorsThatLieApart) {
  EXPECT_EQ(check({.sizes = std::vector<int64_t>(7, 256), .updates = 1, .apart = 3}), 5);
  EXPECT_EQ(check({.sizes = {300, 70}, .name = "sgd", .weights = DType::f16, .apart = 5}), 2);
}

// The emulator takes memory for a launch, not for a span; the op takes none.
TEST(UpdateSimt, SpansTakeNoMemory) {
#if SNUG_ADDRESS_SANITIZER
  GTEST_SKIP() << "a sanitizer's own operator new does not count";
#endif
  const auto taken = [](size_t spans) {
    UpdateCase u = case_of({.sizes = std::vector<int64_t>(spans, 3), .updates = 1});
    int64_t before = 0, last = 0;
    u.before_update = [&] { before = blocks_taken; };
    u.after_update = [&] { last = blocks_taken - before; };  // of the run, which comes after plan's
    run_on_emu(u.body());
    return last;
  };
  taken(500);  // the stacks that it keeps
  EXPECT_EQ(taken(8), taken(500));
}

TEST(UpdateSimt, RefusesWhatItDoesNotKnow) {
  EmuCase c({}, false);
  const View state = c.step_state(plain_state());
  OptimizerConfig unknown;
  unknown.name = "lookahead";
  expect_error(ErrorCode::unsupported, {"an optimizer with a rule of optim/rules", "lookahead"},
               [&] { update(c.queue(), unknown, {}, state); });
  expect_error(ErrorCode::unsupported, {"weights of dtype f32, bf16 or f16", "i32"}, [&] {
    optimizer_update_on(c.queue(), {}, UpdateSpans{0, nullptr, nullptr}, DType::i32, DType::f32,
                        state);
  });
}

TEST(ClipSimt, NormAndFactor) {
  const std::vector<StateSpan> spans = {
      {0, 0, 0, 100}, {1, 0, 100, 30}, {2, 0, 256, 700}, {3, 0, 1024, 0}, {4, 0, 1100, 66000}};
  constexpr int64_t n = 67200;
  for (const double max_norm : {0.0, 1.0, 1e9})
    for (const int64_t bad : {-1, 130, 500}) {  // 130 is in a gap
      SCOPED_TRACE(fmt::format("max_norm {} bad {}", max_norm, bad));
      Values gradients = normal_values(n, 1, DType::f32, 3);
      if (bad >= 0) gradients[static_cast<size_t>(bad)] = INFINITY;
      StepState s = plain_state();
      s.loss_scale = 16;
      s.found_inf = 1;
      s.first_bad_element = 7;
      s.grad_square_sum = 5;
      s.clip_factor = 9;
      const auto body = [&](auto& c) {
        const View g = c.inout("gradients", {n}, DType::f32, gradients), state = c.step_state(s);
        if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
          const View partial = c.output("partial", {2 * square_chunks(n)}, DType::f64);
          gradient_norm_on(c.queue(), g, spans, partial, state, 64);
          clip_on(c.queue(), state, max_norm);
        } else {
          gradient_norm(c.ctx(), g, spans, state);
          clip(c.ctx(), state, max_norm);
        }
      };
      const StepState emu = run_in_all_schedules(body).state();
      const StepState cpu = run_on_plan_and_cpu({}, body).state();
      EXPECT_EQ(emu.found_inf, bad == 500);
      EXPECT_EQ(emu.first_bad_element, bad == 500 ? 500 : -1);
      EXPECT_EQ(cpu.first_bad_element, emu.first_bad_element);
      if (bad == 500) {
        EXPECT_FALSE(std::isfinite(emu.grad_square_sum));
        EXPECT_EQ(emu.clip_factor, 1.0f);
        continue;
      }
      // Two sums of n squares in double; the factor rounds once to float.
      EXPECT_NEAR(emu.grad_square_sum, cpu.grad_square_sum, 2 * n * 0x1p-53 * cpu.grad_square_sum);
      EXPECT_NEAR(emu.clip_factor, cpu.clip_factor, 0x1p-23 * cpu.clip_factor);
      EXPECT_EQ(emu.clip_factor == 1.0f, max_norm != 1.0);
    }
}

// Sums of parts that are taken ahead, in slots, and joined in order: every bit of those taken in place.
TEST(ClipSimt, SumsInSlotsHaveTheBitsOfSumsInPlace) {
  const std::vector<StateSpan> spans = {{0, 0, 0, 300}, {1, 0, 512, 700}, {2, 0, 4096, 130}};
  constexpr int64_t n = 4352, kBytes = sizeof(StepState);
  const std::span<const StateSpan> lower = std::span(spans).first(2), upper = {&spans[2], 1};
  ASSERT_EQ(gradient_norm_ops(lower), 2);
  for (const int64_t bad : {-1, 600, 4100}) {
    Values gradients = normal_values(n, 1, DType::f32, 3);
    if (bad >= 0) gradients[static_cast<size_t>(bad)] = INFINITY;
    StepState s = plain_state();
    s.loss_scale = 3;
    s.grad_square_sum = 5;
    const auto whole = [&](Case& c) {
      const View g = c.inout("gradients", {n}, DType::f32, gradients), state = c.step_state(s);
      gradient_norm(c.ctx(), g, spans, state);
    };
    const auto parts = [&](Case& c) {
      const View g = c.inout("gradients", {n}, DType::f32, gradients), state = c.step_state(s),
                 two = c.output("two", {2, kBytes}, DType::u8),
                 one = c.output("one", {1, kBytes}, DType::u8);
      gradient_norm_slots(c.ctx(), g.rows(4096, 256), 4096, upper, one);
      gradient_norm_slots(c.ctx(), g, 0, lower, two);
      gradient_norm_reset(c.ctx(), state);
      gradient_norm_join(c.ctx(), two, state);
      gradient_norm_join(c.ctx(), one, state);
    };
    const auto same = [&](const StepState& a, const StepState& b) {
      EXPECT_EQ(a.found_inf, bad >= 0);
      EXPECT_EQ(a.first_bad_element, bad);
      EXPECT_EQ(a.found_inf, b.found_inf);
      EXPECT_EQ(a.first_bad_element, b.first_bad_element);
      EXPECT_EQ(std::memcmp(&a.grad_square_sum, &b.grad_square_sum, sizeof(double)), 0);
    };
    same(run_on_emu(parts).state(), run_on_emu(whole).state());
    same(run_on_plan_and_cpu({}, parts).state(), run_on_plan_and_cpu({}, whole).state());
  }
}

// Of a norm of 1, as of the CPU: 1e-6 is 17 units of float.
TEST(ClipSimt, SeesTheSmallTermOfTheDenominator) {
  StepState s = plain_state();
  s.loss_scale = 16;
  const std::vector<StateSpan> spans = {{0, 0, 0, 1}};
  const StepState emu = run_in_all_schedules([&](EmuCase& c) {
                          const View g = c.inout("gradients", {1}, DType::f32, {16.0}),
                                     state = c.step_state(s),
                                     partial = c.output("partial", {2}, DType::f64);
                          gradient_norm_on(c.queue(), g, spans, partial, state, 64);
                          clip_on(c.queue(), state, 1.0);
                        }).state();
  EXPECT_EQ(emu.clip_factor, static_cast<float>(1.0 / (1.0 + 1e-6)));
}

TEST(ClipSimt, TheNextLossScaleIsThatOfTheCpu) {
  LossScaling config;
  config.growth_interval = 3;
  config.min_scale = 4;
  for (const float scale : {1.0f, 4.0f, 6.0f, 65536.0f, 0x1p127f})
    for (const int32_t found_inf : {0, 1})
      for (const int32_t tracker : {0, 1, 2}) {
        StepState s = plain_state();
        s.loss_scale = scale;
        s.found_inf = found_inf;
        s.growth_tracker = tracker;
        const auto body = [&](Case& c) { update_loss_scale(c.ctx(), c.step_state(s), config); };
        expect_equal_bits(run_on_emu(body), run_on_plan_and_cpu({}, body));
      }
}

}  // namespace
}  // namespace snug::test
