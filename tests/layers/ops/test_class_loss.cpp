// On the CPU and in the emulator against PyTorch's formulas in double.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "layers/ops/class_loss_simt.h"
#include "layers/ops/ignored_target.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/gradient.h"
#include "tests/support/reference/class_loss.h"

namespace snug::test {
namespace {

constexpr ClassLoss kKinds[] = {ClassLoss::cross_entropy, ClassLoss::binary_cross_entropy,
                                ClassLoss::squared_error};
const double kNone = std::numeric_limits<double>::quiet_NaN();

struct Variant {
  ClassLoss kind;
  int64_t m, k;
  DType gradient = DType::f32;
  bool in_place = false, collect = true;
  int threads = 64;
  bool shifted = false;
};

// Every fifth row is ignored.
Values targets_of(const Variant& v) {
  if (v.kind == ClassLoss::cross_entropy) {
    Values t = index_values(v.m, v.k, 2);
    for (size_t i = 4; i < t.size(); i += 5) t[i] = kIgnoredTarget;
    return t;
  }
  Values t = normal_values(v.m * v.k, 2);
  for (size_t i = 0; i < t.size(); ++i) {
    // Labels of 0, 1 and soft ones.
    if (v.kind == ClassLoss::binary_cross_entropy) t[i] = i % 3 == 0 ? 0.25 : t[i] > 0 ? 1 : 0;
    if (i / static_cast<size_t>(v.k) % 5 == 4) t[i] = kNone;
  }
  return t;
}

struct Data {
  explicit Data(const Variant& v)
      : z(normal_values(v.m * v.k, 1, DType::f32, 3)), targets(targets_of(v)) {
    const auto width = static_cast<size_t>(v.k);
    state.inverse_tokens = 1.0f / 7;
    state.loss_scale = 4;
    state.loss_sum = 2.5;
    state.loss_tokens = 3;
    loss_sum = state.loss_sum;
    loss_tokens = state.loss_tokens;
    const double factor = double{state.inverse_tokens} * state.loss_scale;
    for (size_t m = 0; m < static_cast<size_t>(v.m); ++m) {
      const Values row(z.begin() + static_cast<int64_t>(m * width),
                       z.begin() + static_cast<int64_t>((m + 1) * width));
      const auto f = [&](const auto& x) {
        if (v.kind == ClassLoss::cross_entropy)
          return cross_entropy_reference(x, static_cast<size_t>(targets[m]));
        const Values t(targets.begin() + static_cast<int64_t>(m * width),
                       targets.begin() + static_cast<int64_t>((m + 1) * width));
        return v.kind == ClassLoss::binary_cross_entropy ? binary_cross_entropy_reference(x, t)
                                                         : squared_error_reference(x, t);
      };
      const bool ignored = v.kind == ClassLoss::cross_entropy ? targets[m] == kIgnoredTarget
                                                              : std::isnan(targets[m * width]);
      loss.push_back(ignored ? 0 : f(row));
      loss_sum += loss.back();
      loss_tokens += ignored ? 0 : 1;
      const Values slope = ignored ? Values(width, 0.0) : complex_step_gradient(f, row);
      for (const double s : slope) dz.push_back(s * factor);
    }
  }
  Values z, targets, loss, dz;
  StepState state{};
  double loss_sum;
  int64_t loss_tokens;
};

auto body_of(const Variant& v, const Data& d) {
  return [&](auto& c) {
    const bool labels = v.kind == ClassLoss::cross_entropy;
    const View state = c.step_state(d.state);
    const View z = v.in_place ? c.inout("dz", {v.m, v.k}, DType::f32, d.z)
                              : c.input("z", {v.m, v.k}, DType::f32, d.z);
    const View t = c.input("targets", labels ? Shape{v.m} : Shape{v.m, v.k},
                           labels ? DType::i32 : DType::f32, d.targets);
    const View loss = c.output("loss", {v.m}, DType::f32);
    const View dz = v.in_place ? z : c.output("dz", {v.m, v.k}, v.gradient);
    const View collected = v.collect ? state : View();
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      class_loss_forward_on(c.queue(), loss, z, t, v.kind, collected, v.threads);
      class_loss_backward_on(c.queue(), dz, z, t, v.kind, state, v.threads);
    } else {
      class_loss_forward(c.ctx(), loss, z, t, v.kind, collected);
      class_loss_backward(c.ctx(), dz, z, t, v.kind, state);
    }
  };
}

void check(const Variant& v) {
  SCOPED_TRACE(fmt::format("{} M{} K{} {}{} threads {}", to_string(v.kind), v.m, v.k,
                           to_string(v.gradient), v.in_place ? " in place" : "", v.threads));
  const Data d(v);
  const auto body = body_of(v, d);
  const Outputs cpu = run_in_all_modes(body), emu = run_in_all_schedules(body, v.shifted);
  for (const Outputs* out : {&cpu, &emu}) {
    EXPECT_TRUE(close((*out)["loss"], d.loss, tolerance(DType::f32, v.k)));
    EXPECT_TRUE(close((*out)["dz"], d.dz, tolerance(DType::f32, v.k) + tolerance(v.gradient, 1)));
    const StepState s = out->state();
    const double sum = v.collect ? d.loss_sum : d.state.loss_sum;
    EXPECT_NEAR(s.loss_sum, sum, sum * tolerance(DType::f32, v.k));
    EXPECT_EQ(s.loss_tokens, v.collect ? d.loss_tokens : d.state.loss_tokens);
  }
  EXPECT_EQ(cpu.ops, (std::vector<std::string>{"class_loss_forward", "class_loss_backward"}));
}

TEST(ClassLoss, MatchesPyTorchOnBothPlaces) {
  for (const ClassLoss kind : kKinds) {
    for (const auto& [m, k] :
         {std::pair{1, 1}, {4, 2}, {17, 3}, {40, 1}, {9, 31}, {65, 33}, {3, 700}})
      for (const DType t : {DType::f32, DType::bf16, DType::f16})
        check({.kind = kind, .m = m, .k = k, .gradient = t});
    check({.kind = kind, .m = 23, .k = 5, .in_place = true});
    check({.kind = kind, .m = 23, .k = 5, .collect = false});
    check({.kind = kind, .m = 2000, .k = 9});  // more than one task
    for (const int threads : kBlockSizes)
      check({.kind = kind, .m = 71, .k = 34, .threads = threads, .shifted = true});
  }
}

// PyTorch's own numbers: torch.nn.functional's cross_entropy, binary_cross_entropy_with_logits and
// mse_loss of these rows as means over rows, or over all elements.
TEST(ClassLoss, TheSumTimesInverseTokensIsTheMean) {
  const Values z{0.5, -1, 2, 0, 0, 0};
  const auto mean = [&](ClassLoss kind, Shape shape, DType t, const Values& targets) {
    StepState state{};
    const StepState after =
        run_in_all_modes([&](Case& c) {
          class_loss_forward(c.ctx(), c.output("loss", {2}, DType::f32),
                             c.input("z", {2, 3}, DType::f32, z), c.input("t", shape, t, targets),
                             kind, c.step_state(state));
        }).state();
    EXPECT_EQ(after.loss_tokens, 2);
    return after.loss_sum / 2;
  };
  // (log(e^.5 + e^-1 + e^2) - 2 + log 3) / 2
  EXPECT_NEAR(mean(ClassLoss::cross_entropy, {2}, DType::i32, {2, 1}),
              (std::log(std::exp(0.5) + std::exp(-1) + std::exp(2)) - 2 + std::log(3)) / 2, 1e-6);
  // Six elements: softplus(-.5), softplus(-1), softplus(2), 3 log 2.
  const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
  EXPECT_NEAR(mean(ClassLoss::binary_cross_entropy, {2, 3}, DType::f32, {1, 0, 0, 1, 0, 1}),
              (softplus(-0.5) + softplus(-1) + softplus(2) + 3 * std::log(2)) / 6, 1e-6);
  EXPECT_NEAR(mean(ClassLoss::squared_error, {2, 3}, DType::f32, {1, 0, 0, 1, 0, -1}),
              (0.25 + 1 + 4 + 1 + 0 + 1) / 6, 1e-6);
}

// Logits of any size: no overflow inside.
TEST(ClassLoss, Extremes) {
  const Values z{100, -100, 3e38, -3e38};
  for (const bool emulated : {false, true}) {
    const auto run = [&](ClassLoss kind, Shape shape, DType t, const Values& targets) {
      const auto body = [&](auto& c) {
        StepState state{};
        state.inverse_tokens = state.loss_scale = 1;
        const View s = c.step_state(state), vz = c.input("z", {2, 2}, DType::f32, z);
        const View vt = c.input("t", shape, t, targets), loss = c.output("loss", {2}, DType::f32);
        const View dz = c.output("dz", {2, 2}, DType::f32);
        if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
          class_loss_forward_on(c.queue(), loss, vz, vt, kind, s, 32);
          class_loss_backward_on(c.queue(), dz, vz, vt, kind, s, 32);
        } else {
          class_loss_forward(c.ctx(), loss, vz, vt, kind, s);
          class_loss_backward(c.ctx(), dz, vz, vt, kind, s);
        }
      };
      return emulated ? run_in_all_schedules(body) : run_in_all_modes(body);
    };
    const Outputs ce = run(ClassLoss::cross_entropy, {2}, DType::i32, {1, 0});
    EXPECT_EQ(ce["loss"], (Values{200, 0}));
    EXPECT_EQ(ce["dz"], (Values{1, -1, 0, 0}));
    const Outputs bce = run(ClassLoss::binary_cross_entropy, {2, 2}, DType::f32, {0, 0, 1, 0});
    EXPECT_TRUE(close(bce["loss"], {50, 0}, 1e-6));
    EXPECT_TRUE(close(bce["dz"], {0.5, 0, 0, 0}, 1e-6));
  }
}

TEST(ClassLoss, RefusesTargetsThatAreNone) {
  const auto run = [](ClassLoss kind, const Values& targets, bool backward) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      const bool labels = kind == ClassLoss::cross_entropy;
      const View z = c.output("z", {2, 3}, DType::f32), state = c.step_state(StepState{});
      const View t = c.input("targets", labels ? Shape{2} : Shape{2, 3},
                             labels ? DType::i32 : DType::f32, targets);
      if (backward)
        class_loss_backward(c.ctx(), c.output("dz", {2, 3}, DType::f32), z, t, kind, state);
      else
        class_loss_forward(c.ctx(), c.output("loss", {2}, DType::f32), z, t, kind, state);
    });
  };
  for (const bool backward : {false, true}) {
    const auto refused = [&](ClassLoss kind, const Values& targets,
                             std::initializer_list<const char*> words) {
      expect_error(ErrorCode::data, words, [&] { run(kind, targets, backward); });
    };
    run(ClassLoss::cross_entropy, {2, -100}, backward);
    refused(ClassLoss::cross_entropy, {0, 3},
            {"targets of 0 .. 2, or -100", "3 in row 1 of targets",
             "check the labels of the data, and num_labels"});
    refused(ClassLoss::cross_entropy, {-1, 0}, {"-1 in row 0 of targets"});
    run(ClassLoss::binary_cross_entropy, {0, 1, 0.5, kNone, 0, 7}, backward);
    refused(ClassLoss::binary_cross_entropy, {0, 1, 0, 0, 2, 0},
            {"targets of 0 to 1", "2 in row 1 of targets"});
    refused(ClassLoss::binary_cross_entropy, {0, kNone, 0, 0, 1, 0}, {"nan in row 0 of targets"});
    run(ClassLoss::squared_error, {-7, 1e30, 0, kNone, 0, 0}, backward);
    refused(ClassLoss::squared_error, {0, INFINITY, 0, 0, 0, 0},
            {"targets that are numbers", "inf in row 0 of targets"});
  }
}

TEST(ClassLoss, RefusesWhatDoesNotFit) {
  const auto forward = [](Shape z, DType z_dtype, Shape t, DType t_dtype, Shape loss,
                          ClassLoss kind) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      class_loss_forward(c.ctx(), c.output("loss", loss, DType::f32), c.output("z", z, z_dtype),
                         c.output("t", t, t_dtype), kind, {});
    });
  };
  const DType f32 = DType::f32, i32 = DType::i32;
  const ClassLoss ce = ClassLoss::cross_entropy, mse = ClassLoss::squared_error;
  expect_error(ErrorCode::shape, {"logits of shape (M,K)", "z (6) f32", "num_labels"},
               [&] { forward({6}, f32, {2}, i32, {2}, ce); });
  expect_error(ErrorCode::unsupported, {"logits of dtype f32", "z (2,3) bf16"}, [&] {
    forward({2, 3}, DType::bf16, {2}, i32, {2}, ce);
  });
  expect_error(ErrorCode::shape, {"targets of shape (M)=(2)", "t (2,3) i32"}, [&] {
    forward({2, 3}, f32, {2, 3}, i32, {2}, ce);
  });
  expect_error(ErrorCode::unsupported, {"targets of dtype i32", "t (2) f32"}, [&] {
    forward({2, 3}, f32, {2}, f32, {2}, ce);
  });
  expect_error(ErrorCode::shape, {"targets of shape (M,K)=(2,3)", "t (2) f32"}, [&] {
    forward({2, 3}, f32, {2}, f32, {2}, mse);
  });
  expect_error(ErrorCode::unsupported, {"targets of dtype f32", "t (2,3) i32"}, [&] {
    forward({2, 3}, f32, {2, 3}, i32, {2}, mse);
  });
  expect_error(ErrorCode::shape, {"loss of shape (M)=(2)", "loss (3) f32"}, [&] {
    forward({2, 3}, f32, {2}, i32, {3}, ce);
  });
  expect_error(ErrorCode::unsupported, {"binary_cross_entropy or squared_error", "number 9"}, [&] {
    forward({2, 3}, f32, {2}, i32, {2}, static_cast<ClassLoss>(9));
  });
  const auto backward = [](Shape dz, DType dz_dtype, bool state) {
    run_on_plan_and_cpu({}, [&](Case& c) {
      class_loss_backward(c.ctx(), c.output("dz", dz, dz_dtype), c.output("z", {2, 3}, DType::f32),
                          c.input("t", {2}, DType::i32, {0, 0}), ClassLoss::cross_entropy,
                          state ? c.step_state(StepState{}) : c.output("no", {3}, DType::u8));
    });
  };
  expect_error(ErrorCode::shape, {"dlogits of shape (M,K)=(2,3)", "dz (2,2) f32"}, [&] {
    backward({2, 2}, f32, true);
  });
  expect_error(ErrorCode::unsupported, {"dlogits of dtype f32|bf16|f16", "dz (2,3) i32"}, [&] {
    backward({2, 3}, i32, true);
  });
  expect_error(ErrorCode::shape, {"state of shape (bytes)"}, [&] { backward({2, 3}, f32, false); });
}

}  // namespace
}  // namespace snug::test
