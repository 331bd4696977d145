#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "layers/ops/attention.h"
#include "layers/ops/document_start.h"
#include "tests/support/case.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

struct Call {
  AttentionSpec spec;
  int64_t B = 2, T = 3;
  DType dtype = DType::f32, out_dtype = DType::f32;
  Shape qkv{6, 32}, out{6, 16}, lse{2, 4, 3};
  bool with_state = true;
  Values key_lengths, document_start, document_end;
};

// H=4 G=2 D=4 B=2 T=3, changed by `edit`, through forward or backward.
void call(bool backward, const std::function<void(Call&)>& edit) {
  Call a;
  a.spec.H = 4;
  a.spec.G = 2;
  a.spec.D = 4;
  edit(a);
  run_on_plan_and_cpu({}, [&](Case& t) {
    const View qkv = t.output("qkv", a.qkv, a.dtype), out = t.output("out", a.out, a.out_dtype);
    const View lse = t.output("lse", a.lse, DType::f32);
    const View state = a.with_state ? t.step_state(StepState{}) : View{};
    AttentionSpec spec = a.spec;
    if (!a.key_lengths.empty())
      spec.key_lengths = t.input("key_lengths", {static_cast<int64_t>(a.key_lengths.size())},
                                 DType::i32, a.key_lengths);
    if (!a.document_start.empty())
      spec.document_start =
          t.input("document_start", {static_cast<int64_t>(a.document_start.size()) / 3, 3},
                  DType::i32, a.document_start);
    if (!a.document_end.empty())
      spec.document_end =
          t.input("document_end", {static_cast<int64_t>(a.document_end.size()) / 3, 3}, DType::i32,
                  a.document_end);
    if (backward) {
      const View dqkv = t.output("dqkv", a.qkv, a.dtype), dout = t.output("dout", a.out, a.dtype);
      attention_backward(t.ctx(), dqkv, dout, qkv, out, lse, a.B, a.T, spec, state);
    } else {
      attention_forward(t.ctx(), out, lse, qkv, a.B, a.T, spec, state);
    }
  });
}

TEST(AttentionErrors, NameWhatIsWrong) {
  for (const bool backward : {false, true}) {
    const auto expect_call = [&](ErrorCode code, std::initializer_list<const char*> words,
                                 const std::function<void(Call&)>& edit) {
      expect_error(code, words, [&] { call(backward, edit); });
    };
    EXPECT_NO_THROW(call(backward, [](Call&) {}));
    expect_call(ErrorCode::shape, {"a multiple of G", "H=4 G=3", "model's config"},
                [](Call& a) { a.spec.G = 3; });
    expect_call(ErrorCode::shape, {"positive sizes", "T=0"}, [](Call& a) { a.T = 0; });
    expect_call(ErrorCode::unsupported, {"at most D=256", "D=300", "more heads"},
                [](Call& a) { a.spec.D = 300; });
    expect_call(ErrorCode::usage, {"finite attention scale", "1/sqrt(D)"},
                [](Call& a) { a.spec.scale = INFINITY; });
    EXPECT_NO_THROW(call(backward, [](Call& a) { a.spec.window = 2; }));
    expect_call(ErrorCode::usage, {"window of at least one key", "window=-1", "the query itself"},
                [](Call& a) { a.spec.window = -1; });
    expect_call(ErrorCode::unsupported,
                {"causal attention with a window", "window=2 causal=false", "window=0"},
                [](Call& a) {
                  a.spec.window = 2;
                  a.spec.causal = false;
                });
    expect_call(ErrorCode::usage, {"an attention softcap above 0, or 0 for none", "softcap=-1"},
                [](Call& a) { a.spec.softcap = -1; });
    expect_call(ErrorCode::unsupported,
                {"causal attention with a softcap", "softcap=50 causal=false", "softcap=0"},
                [](Call& a) {
                  a.spec.softcap = 50;
                  a.spec.causal = false;
                });
    EXPECT_NO_THROW(call(backward, [](Call& a) { a.document_start = {0, 1, 1, 0, 0, 2}; }));
    for (const bool causal : {true, false})
      expect_call(ErrorCode::unsupported,
                  {"attention without key lengths to keep documents apart",
                   "document_start with key_lengths", "a document of its own"},
                  [=](Call& a) {
                    a.document_start = {0, 0, 0, 0, 0, 0};
                    a.key_lengths = {3, 3};
                    a.spec.causal = causal;
                  });
    const auto both_ways = [](Call& a) {
      a.spec.causal = false;
      a.document_start = {0, 1, 1, 0, 0, 2};
      a.document_end = {1, 3, 3, 2, 2, 3};
    };
    EXPECT_NO_THROW(call(backward, both_ways));
    expect_call(ErrorCode::usage,
                {"a document_end for causal=false document_start=true", "document_end=false",
                 "document_end()"},
                [&](Call& a) {
                  both_ways(a);
                  a.document_end.clear();
                });
    expect_call(ErrorCode::usage,
                {"no document_end for causal=true document_start=true", "document_end=true",
                 "leave it undefined"},
                [&](Call& a) {
                  both_ways(a);
                  a.spec.causal = true;
                });
    expect_call(ErrorCode::usage, {"no document_end for causal=false document_start=false"},
                [&](Call& a) {
                  both_ways(a);
                  a.document_start.clear();
                });
    expect_call(ErrorCode::shape, {"document_end of shape (B,T)=(2,3)", "(3,3) i32"}, [&](Call& a) {
      both_ways(a);
      a.document_end = Values(9, 1.0);
    });
    expect_call(ErrorCode::data,
                {"document_end 2 at position 1 of sequence 1", "found: 3", "document_end()"},
                [&](Call& a) {
                  both_ways(a);
                  a.document_end = {1, 3, 3, 2, 3, 3};
                });
    expect_call(ErrorCode::data, {"document_end 3 at position 2 of sequence 0", "found: 4"},
                [&](Call& a) {
                  both_ways(a);
                  a.document_end = {1, 3, 4, 2, 2, 3};
                });
    expect_call(ErrorCode::shape, {"document_start of shape (B,T)=(2,3)", "(3,3) i32"},
                [](Call& a) { a.document_start = Values(9, 0.0); });
    expect_call(ErrorCode::data, {"document_start 0 at position 0 of sequence 1", "found: -1"},
                [](Call& a) { a.document_start = {0, 0, 0, -1, 0, 0}; });
    expect_call(ErrorCode::data,
                {"document_start 0 or 2 at position 2 of sequence 0", "found: 1",
                 "its document's first token"},
                [](Call& a) { a.document_start = {0, 0, 1, 0, 0, 0}; });
    expect_call(ErrorCode::data, {"document_start 0 or 1 at position 1 of sequence 1", "found: 2"},
                [](Call& a) { a.document_start = {0, 1, 2, 0, 2, 2}; });
    expect_call(ErrorCode::usage, {"dropout in [0,1)", "dropout=1"},
                [](Call& a) { a.spec.dropout = 1; });
    expect_call(ErrorCode::usage, {"dropout in [0,1)", "nan"},
                [](Call& a) { a.spec.dropout = NAN; });
    expect_call(ErrorCode::unsupported, {"T below 2^20", "T=1048576"}, [](Call& a) {
      a.spec.dropout = 0.1f;
      a.T = 1 << 20;
    });
    expect_call(ErrorCode::shape, {"state"}, [](Call& a) {
      a.spec.dropout = 0.1f;
      a.with_state = false;
    });
    expect_call(ErrorCode::shape, {"qkv", "(B*T,(H+2G)*D)=(6,32)", "(6,31)"}, [](Call& a) {
      a.qkv = {6, 31};
    });
    expect_call(ErrorCode::shape, {"out", "(B*T,H*D)=(6,16)", "(6,15)"}, [](Call& a) {
      a.out = {6, 15};
    });
    expect_call(ErrorCode::shape, {"lse", "(2,3,4)"}, [](Call& a) { a.lse = {2, 3, 4}; });
    expect_call(ErrorCode::unsupported, {"attention over f32, bf16 or f16", "qkv (6,32) i32"},
                [](Call& a) { a.dtype = DType::i32; });
    expect_call(ErrorCode::unsupported, {"out of dtype f32", "bf16"},
                [](Call& a) { a.out_dtype = DType::bf16; });
    expect_call(ErrorCode::shape, {"key_lengths", "(B)=(2)"}, [](Call& a) {
      a.key_lengths = {1, 2, 3};
    });
    expect_call(ErrorCode::data, {"key lengths in [1,3]", "0 for sequence 1"}, [](Call& a) {
      a.key_lengths = {3, 0};
    });
    expect_call(ErrorCode::data, {"key lengths in [1,3]", "4 for sequence 0"}, [](Call& a) {
      a.key_lengths = {4, 1};
    });
  }
}

TEST(AttentionErrors, OfTheEndsOfDocuments) {
  const auto ends_of = [](int64_t B, int64_t T, Shape ends, const Values& starts) {
    run_on_plan_and_cpu({}, [&](Case& t) {
      const auto n = static_cast<int64_t>(starts.size()) / 2;
      document_end(t.ctx(), t.output("ends", ends, DType::i32),
                   t.input("starts", {2, n}, DType::i32, starts), B, T);
    });
  };
  EXPECT_NO_THROW(ends_of(2, 3, {2, 3}, {0, 1, 1, 0, 0, 2}));
  expect_error(ErrorCode::shape, {"positive sizes of a batch", "B=2 T=0"}, [&] {
    ends_of(2, 0, {2, 3}, {0, 1, 1, 0, 0, 2});
  });
  expect_error(ErrorCode::shape, {"document_start of shape (B,T)=(2,4)"}, [&] {
    ends_of(2, 4, {2, 4}, {0, 1, 1, 0, 0, 2});
  });
  expect_error(ErrorCode::shape, {"document_end of shape (B,T)=(2,3)"}, [&] {
    ends_of(2, 3, {3, 2}, {0, 1, 1, 0, 0, 2});
  });
  expect_error(ErrorCode::data, {"document_start 0 or 2 at position 2 of sequence 0", "found: 1"},
               [&] {
                 ends_of(2, 3, {2, 3}, {0, 0, 1, 0, 0, 0});
               });
}

TEST(AttentionErrors, TheCacheTakesPlainCausalAttention) {
  const auto cached = [](const std::function<void(AttentionSpec&)>& edit, Shape cache,
                         DType cache_dtype) {
    AttentionSpec spec;
    spec.H = 4;
    spec.G = 2;
    spec.D = 4;
    edit(spec);
    run_on_plan_and_cpu({}, [&](Case& t) {
      const View qkv = t.output("qkv", {6, 32}, DType::f32),
                 out = t.output("out", {6, 16}, DType::f32);
      const View k = t.output("k", cache, cache_dtype), v = t.output("v", cache, cache_dtype);
      attention_cached_forward(t.ctx(), out, k, v, qkv, 2, 3, spec, t.step_state(StepState{}));
    });
  };
  const Shape good{2, 5, 2, 4};
  EXPECT_NO_THROW(cached([](AttentionSpec&) {}, good, DType::f32));
  expect_error(ErrorCode::unsupported, {"causal attention over the cache", "causal=false"},
               [&] { cached([](AttentionSpec& s) { s.causal = false; }, good, DType::f32); });
  expect_error(ErrorCode::unsupported, {"causal attention over the cache", "dropout=0.5"},
               [&] { cached([](AttentionSpec& s) { s.dropout = 0.5f; }, good, DType::f32); });
  expect_error(ErrorCode::unsupported, {"key lengths or documents", "document_start=true"}, [&] {
    cached(
        [](AttentionSpec& s) {
          s.document_start = {.shape = {2, 3}, .dtype = DType::i32, .name = Name("starts")};
        },
        good, DType::f32);
  });
  expect_error(ErrorCode::shape, {"cache_k", "(B,P,G,D)=(2,5,2,4)", "(2,5,4,4)"}, [&] {
    cached([](AttentionSpec&) {}, {2, 5, 4, 4}, DType::f32);
  });
  expect_error(ErrorCode::shape, {"cache_k"},
               [&] { cached([](AttentionSpec&) {}, {80}, DType::f32); });
  expect_error(ErrorCode::shape, {"(B,P,G,D) with P above 0", "(2,0,2,4)"}, [&] {
    cached([](AttentionSpec&) {}, {2, 0, 2, 4}, DType::f32);
  });
  expect_error(ErrorCode::unsupported, {"cache_k of dtype f32", "bf16"},
               [&] { cached([](AttentionSpec&) {}, good, DType::bf16); });
}

}  // namespace
}  // namespace snug::test
