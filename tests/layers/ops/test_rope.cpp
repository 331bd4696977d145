// On the CPU and in the emulator, which give the same bits, against the reference in double.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "layers/ops/rope_simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/reference/rope.h"

namespace snug::test {
namespace {

std::vector<float> frequencies(int64_t rotary, double theta = 10000) {
  std::vector<float> f;
  for (int64_t i = 0; i < rotary / 2; ++i)
    f.push_back(static_cast<float>(
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary))));
  return f;
}

struct Sizes {
  int64_t b, t, h, g, d, rotary;
};

struct Variant {
  Sizes s;
  DType dtype = DType::f32;
  bool in_place = false, documents = false, state = true;
  int64_t position = 0;
  float factor = 1;
  int threads = 64;
  bool shifted = false;

  int64_t n() const { return s.b * s.t; }
  int64_t width() const { return (s.h + 2 * s.g) * s.d; }
  RopeSpec spec() const { return {s.h, s.g, s.d, frequencies(s.rotary), factor}; }
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const bool in_place : {false, true}) {
      const auto add = [&](Variant v) {
        v.dtype = t;
        v.in_place = in_place;
        all.push_back(v);
      };
      add({.s = {1, 1, 1, 1, 2, 2}});
      add({.s = {5, 4, 1, 0, 12, 12}, .state = false});  // a matrix alone
      add({.s = {2, 5, 3, 1, 6, 6}});
      add({.s = {1, 7, 2, 2, 20, 10}, .position = 3});  // R/2 of 5 in 20
      add({.s = {2, 9, 4, 2, 64, 64}, .documents = true, .position = 100000});
      add({.s = {2, 9, 4, 2, 64, 16}, .factor = 1.25f});  // Pythia's quarter
      add({.s = {1, 33, 2, 1, 80, 40}, .state = false});
      add({.s = {3, 40, 8, 2, 128, 128}, .documents = true, .factor = 0.5f});
      add({.s = {1, 3, 1, 1, 256, 96}, .position = 4194301});
    }
  for (const int threads : kBlockSizes)
    for (const bool shifted : {false, true})
      all.push_back({.s = {2, 11, 3, 3, 32, 32},
                     .dtype = DType::bf16,
                     .in_place = shifted,
                     .threads = threads,
                     .shifted = shifted});
  all.push_back({.s = {1, 0, 1, 1, 8, 8}});
  return all;
}

// Every position begins a document or belongs to that of the one before it.
Values starts_of(const Variant& v) {
  Values starts;
  for (int64_t b = 0; b < v.s.b; ++b)
    for (int64_t t = 0; t < v.s.t; ++t)
      starts.push_back(t > 0 && (t * 5 + b) % 4 != 0 ? starts.back() : static_cast<double>(t));
  return starts;
}

struct Data {
  explicit Data(const Variant& v)
      : x(normal_values(v.n() * v.width(), 1, v.dtype)),
        dy(normal_values(v.n() * v.width(), 2, v.dtype)),
        starts(v.documents ? starts_of(v) : Values()) {}
  Values x, dy, starts;
};

auto body_of(const Variant& v, const Data& d) {
  return [&](auto& c) {
    const Shape shape{v.n(), v.width()};
    StepState s{};
    s.position = v.position;
    const View state = v.state ? c.step_state(s) : View();
    const View starts =
        v.documents ? c.input("document_start", {v.s.b, v.s.t}, DType::i32, d.starts) : View();
    const View x =
        v.in_place ? c.inout("y", shape, v.dtype, d.x) : c.input("x", shape, v.dtype, d.x);
    const View dy =
        v.in_place ? c.inout("dx", shape, v.dtype, d.dy) : c.input("dy", shape, v.dtype, d.dy);
    const View y = v.in_place ? x : c.output("y", shape, v.dtype);
    const View dx = v.in_place ? dy : c.output("dx", shape, v.dtype);
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      rope_on(c.queue(), y, x, v.s.t, v.spec(), 1, state, starts, v.threads);
      rope_on(c.queue(), dx, dy, v.s.t, v.spec(), -1, state, starts, v.threads);
    } else {
      rope_forward(c.ctx(), y, x, v.s.b, v.s.t, v.spec(), state, starts);
      rope_backward(c.ctx(), dx, dy, v.s.b, v.s.t, v.spec(), state, starts);
    }
  };
}

TEST(Rope, MatchesTheReferenceOnBothPlaces) {
  for (const Variant& v : variants()) {
    SCOPED_TRACE(fmt::format("B{} T{} H{} G{} D{} R{} {}{} position {} factor {} threads {}{}",
                             v.s.b, v.s.t, v.s.h, v.s.g, v.s.d, v.s.rotary, to_string(v.dtype),
                             v.in_place ? " in place" : "", v.position, v.factor, v.threads,
                             v.shifted ? " shifted" : ""));
    const Data d(v);
    const auto body = body_of(v, d);
    const Outputs out = run_in_all_modes(body);
    const auto reference = [&](const auto& x) {
      const auto z = [](int64_t i) { return static_cast<size_t>(i); };
      return rope_reference(x, {z(v.s.t), z(v.s.h), z(v.s.g), z(v.s.d)}, frequencies(v.s.rotary),
                            v.factor, static_cast<double>(v.state ? v.position : 0), d.starts);
    };
    // Two products, with sines that err by 3e-7.
    const double allowed = tolerance(v.dtype, 1) + 2 * 3e-7;
    EXPECT_TRUE(close(out["y"], reference(d.x), allowed));
    const std::vector<size_t> some = sample_indices(d.x.size(), 60);
    EXPECT_TRUE(
        close(pick(out["dx"], some),
              complex_step_gradient(
                  [&](const std::vector<Complex>& x) { return weighted_sum(reference(x), d.dy); },
                  d.x, some),
              allowed));
    EXPECT_EQ(out.ops, (std::vector<std::string>{"rope_forward", "rope_backward"}));
    EXPECT_EQ(out.bytes_moved, 4 * size_of(v.dtype) * v.n() *
                                   (v.in_place ? (v.s.h + v.s.g) * v.s.rotary : v.width()));
    Outputs emu = run_in_all_schedules(body, v.shifted);
    expect_equal_bits(emu, out);
  }
}

// What is not rotated keeps its bits, those of a NaN too, and rotating back gives what there was.
TEST(Rope, LeavesTheRestAlone) {
  const Variant v{.s = {1, 6, 2, 1, 12, 4}};
  Values x = normal_values(v.n() * v.width(), 1);
  for (size_t i = 0; i < x.size(); ++i)
    if (const size_t at = i % 48; at >= 36 || at % 12 >= 4) x[i] = -0.0;
  const Outputs out = run_in_all_modes([&](Case& c) {
    const Shape shape{v.n(), v.width()};
    const View vx = c.input("x", shape, DType::f32, x), y = c.output("y", shape, DType::f32);
    rope_forward(c.ctx(), y, vx, 1, v.s.t, v.spec(), {});
    rope_backward(c.ctx(), c.output("back", shape, DType::f32), y, 1, v.s.t, v.spec(), {});
  });
  const Values y = out["y"];
  for (size_t i = 0; i < x.size(); ++i) {
    if (const size_t at = i % 48; at >= 36 || at % 12 >= 4) {
      EXPECT_TRUE(y[i] == 0 && std::signbit(y[i]));
    }
  }
  EXPECT_TRUE(close(out["back"], x, 4 * 3e-7));
}

// Sine and cosine by themselves, at every size of angle: of transformers' float angle.
TEST(Rope, SinesErrByLessThanThreeTenMillionths) {
  const int64_t T = 3000, d = 128;
  const std::vector<float> inverse = frequencies(d);
  for (const int64_t position : {int64_t{0}, int64_t{100000}, (int64_t{1} << 22) - T}) {
    StepState s{};
    s.position = position;
    Values x(static_cast<size_t>(T * 3 * d), 0.0);
    for (size_t i = 0; i < x.size(); ++i) x[i] = i % 128 < 64 ? 1 : 0;
    const Values y = run_in_all_modes([&](Case& c) {
      const Shape shape{T, 3 * d};
      rope_forward(c.ctx(), c.output("y", shape, DType::f32), c.input("x", shape, DType::f32, x), 1,
                   T, {1, 1, d, inverse}, c.step_state(s));
    })["y"];
    double worst = 0;
    for (int64_t t = 0; t < T; ++t)
      for (size_t i = 0; i < 64; ++i) {
        const double angle = static_cast<float>(position + t) * inverse[i];
        const size_t at = static_cast<size_t>(t * 3 * d) + i;
        worst = std::max(
            {worst, std::fabs(y[at] - std::cos(angle)), std::fabs(y[at + 64] - std::sin(angle))});
      }
    EXPECT_LT(worst, 3e-7) << position;
  }
}

TEST(Rope, RefusesWhatDoesNotFit) {
  const auto run = [](const RopeSpec& spec, Shape y, Shape x, int64_t position = 0,
                      const Values& starts = {}, DType y_dtype = DType::f32,
                      DType x_dtype = DType::f32) {
    StepState s{};
    s.position = position;
    run_on_plan_and_cpu({}, [&](Case& c) {
      const View documents =
          starts.empty() ? View() : c.input("document_start", {2, 3}, DType::i32, starts);
      rope_forward(c.ctx(), c.output("y", y, y_dtype), c.output("x", x, x_dtype), 2, 3, spec,
                   c.step_state(s), documents);
    });
  };
  const RopeSpec spec{2, 1, 4, {1, 0.5}};
  const Shape fits{6, 16};
  run(spec, fits, fits);
  expect_error(ErrorCode::shape, {"y of shape (N,(H+2G)D)=(6,16)", "y (6,12) f32"}, [&] {
    run(spec, {6, 12}, fits);
  });
  expect_error(ErrorCode::shape, {"qkv of shape (N,(H+2G)D)=(6,16)", "x (5,16) f32"}, [&] {
    run(spec, fits, {5, 16});
  });
  expect_error(ErrorCode::unsupported, {"y of dtype f32", "y (6,16) bf16"},
               [&] { run(spec, fits, fits, 0, {}, DType::bf16); });
  expect_error(ErrorCode::unsupported, {"qkv of dtype f32|bf16|f16", "x (6,16) i64"},
               [&] { run(spec, fits, fits, 0, {}, DType::i64, DType::i64); });
  expect_error(ErrorCode::usage, {"R/2 of 1 to D/2", "H=2 G=1 D=4 R/2=3"}, [&] {
    run({2, 1, 4, {1, 1, 1}}, fits, fits);
  });
  expect_error(ErrorCode::usage, {"R/2 of 1 to D/2 and 512", "R/2=0", "rotary part"}, [&] {
    run({2, 1, 4, {}}, fits, fits);
  });
  expect_error(ErrorCode::usage, {"512 inverse frequencies", "R/2=513"}, [&] {
    run({2, 1, 2000, std::vector<float>(513, 1.0f)}, fits, fits);
  });
  expect_error(ErrorCode::usage, {"inverse frequencies of 0 to 1", "10000", "theta"}, [&] {
    run({2, 1, 4, {1, 10000}}, fits, fits);
  });
  expect_error(ErrorCode::usage, {"inverse frequencies of 0 to 1", "nan"}, [&] {
    run({2, 1, 4, {std::nanf("")}}, fits, fits);
  });
  expect_error(ErrorCode::data, {"positions of [0,4194304)", "positions 4194302 to 4194304"},
               [&] { run(spec, fits, fits, 4194302); });
  expect_error(ErrorCode::data, {"positions -1 to 1", "max_length"},
               [&] { run(spec, fits, fits, -1); });
  expect_error(ErrorCode::data, {"document_start 1 or 2 at position 2 of sequence 1", "found: 3"},
               [&] {
                 run(spec, fits, fits, 0, {0, 1, 2, 0, 1, 3});
               });
}

}  // namespace
}  // namespace snug::test
