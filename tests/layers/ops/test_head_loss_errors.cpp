#include <gtest/gtest.h>

#include <functional>

#include "layers/ops/head_loss.h"
#include "tests/support/case.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

struct Call {
  Shape x{5, 4}, weight{16, 4}, dx{5, 4}, dweight{16, 4}, nll{5}, logits{5, 16}, state{}, bias{16},
      dbias{16};
  Values targets{0, 12, -100, 3, 4};
  int64_t V = 13, rows = 2;
  DType dtype = DType::f32, dx_dtype = DType::f32, dweight_dtype = DType::f32,
        target_dtype = DType::i32, bias_dtype = DType::f32, dbias_dtype = DType::f32;
  bool has_bias = true;
  StepState* after = nullptr;
};

enum class Which { forward, backward, train };

void call(Which which, const std::function<void(Call&)>& edit) {
  Call a;
  a.state = step_state_shape();
  edit(a);
  run_on_plan_and_cpu({}, [&](Case& t) {
    const View x = t.output("x", a.x, a.dtype), weight = t.output("weight", a.weight, a.dtype);
    const View targets =
        t.input("targets", {static_cast<int64_t>(a.targets.size())}, a.target_dtype, a.targets);
    const View nll = t.output("nll", a.nll, DType::f32), lse = t.output("lse", {5}, DType::f32);
    const View dx = t.output("dx", a.dx, a.dx_dtype);
    const GradView dweight{t.output("dweight", a.dweight, a.dweight_dtype), false};
    const View state = t.output("state", a.state, DType::u8);
    const View bias = a.has_bias ? t.output("bias", a.bias, a.bias_dtype) : View();
    const GradView dbias{t.output("dbias", a.dbias, a.dbias_dtype), false};
    if (which == Which::forward)
      head_loss_forward(t.ctx(), nll, lse, x, weight, targets, a.V, a.rows, state, {}, bias);
    else if (which == Which::backward)
      head_loss_backward(t.ctx(), dx, dweight, nll, lse, x, weight, targets, a.V, a.rows, {}, bias,
                         dbias);
    else
      head_loss_train(t.ctx(), dx, dweight, x, weight, targets, a.V, a.rows, state, {}, bias,
                      dbias);
  });
}

TEST(HeadLossErrors, NameWhatIsWrong) {
  for (const Which which : {Which::forward, Which::backward, Which::train}) {
    const auto expect_call = [&](ErrorCode code, std::initializer_list<const char*> words,
                                 const std::function<void(Call&)>& edit) {
      expect_error(code, words, [&] { call(which, edit); });
    };
    EXPECT_NO_THROW(call(which, [](Call&) {}));
    for (const double bad : {13.0, -1.0, -99.0, -101.0, 2147483647.0, -2147483648.0})
      expect_call(ErrorCode::data,
                  {"targets of 0 .. 12, or -100 for none",
                   (std::to_string(static_cast<int64_t>(bad)) + " in row 3 of targets").c_str(),
                   "check that the data was made with the tokenizer of this model"},
                  [&](Call& a) { a.targets[3] = bad; });
    expect_call(ErrorCode::shape, {"weight", "(Vp,C)=(16,4)", "(16,5)"}, [](Call& a) {
      a.weight = {16, 5};
    });
    expect_call(ErrorCode::shape, {"targets", "(N)=(5)"}, [](Call& a) { a.targets.pop_back(); });
    expect_call(ErrorCode::unsupported, {"targets of dtype i32"},
                [](Call& a) { a.target_dtype = DType::i64; });
    expect_call(ErrorCode::unsupported, {"a head over f32, bf16 or f16", "x (5,4) i32"},
                [](Call& a) { a.dtype = DType::i32; });
    expect_call(ErrorCode::shape, {"bias", "(Vp)=(16)", "(13)"}, [](Call& a) { a.bias = {13}; });
    expect_call(ErrorCode::unsupported, {"bias of dtype f32"},
                [](Call& a) { a.bias_dtype = DType::bf16; });
    expect_call(ErrorCode::shape, {"a vocabulary V of 1 .. Vp", "V=17 Vp=16", "vocab_size"},
                [](Call& a) { a.V = 17; });
    expect_call(ErrorCode::shape, {"a vocabulary V of 1 .. Vp", "V=0"}, [](Call& a) { a.V = 0; });
    expect_call(ErrorCode::usage, {"at least one row in a chunk", "rows_per_chunk=0"},
                [](Call& a) { a.rows = 0; });
    if (which != Which::train)
      expect_call(ErrorCode::shape, {"nll", "(N)=(5)"}, [](Call& a) { a.nll = {4}; });
    if (which != Which::backward)
      expect_call(ErrorCode::shape, {"state"}, [](Call& a) { a.state = {8}; });
    if (which == Which::forward) continue;
    expect_call(ErrorCode::shape, {"dx", "(N,C)=(5,4)"}, [](Call& a) { a.dx = {4, 4}; });
    expect_call(ErrorCode::unsupported, {"dx of dtype f32"},
                [](Call& a) { a.dx_dtype = DType::bf16; });
    expect_call(ErrorCode::shape, {"dweight", "(Vp,C)=(16,4)"}, [](Call& a) {
      a.dweight = {13, 4};
    });
    expect_call(ErrorCode::unsupported, {"dweight of dtype"},
                [](Call& a) { a.dweight_dtype = DType::f16; });
    expect_call(ErrorCode::shape, {"dbias", "(Vp)=(16)", "(13)"}, [](Call& a) { a.dbias = {13}; });
    expect_call(ErrorCode::unsupported, {"dbias of dtype f32|bf16"},
                [](Call& a) { a.dbias_dtype = DType::f16; });
    expect_call(ErrorCode::usage, {"a bias where its gradient is wanted", "dbias (16) f32"},
                [](Call& a) { a.has_bias = false; });
  }
}

TEST(HeadLossErrors, LogitsNeedTheirShape) {
  const auto logits = [](Shape shape, DType dtype, Shape bias = {16}) {
    run_on_plan_and_cpu({}, [&](Case& t) {
      head_logits(t.ctx(), t.output("logits", shape, dtype), t.output("x", {5, 4}, DType::f32),
                  t.output("weight", {16, 4}, DType::f32), {}, t.output("bias", bias, DType::f32));
    });
  };
  EXPECT_NO_THROW(logits({5, 16}, DType::f32));
  expect_error(ErrorCode::shape, {"logits", "(N,Vp)=(5,16)"}, [&] { logits({5, 13}, DType::f32); });
  expect_error(ErrorCode::unsupported, {"logits of dtype f32"}, [&] {
    logits({5, 16}, DType::bf16);
  });
  expect_error(ErrorCode::shape, {"bias", "(Vp)=(16)"}, [&] { logits({5, 16}, DType::f32, {13}); });
}

}  // namespace
}  // namespace snug::test
