// Shape, View, Name, Error, Precision and units: values and every error text.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <thread>
#include <type_traits>
#include <vector>

#include "engine/core/precision.h"
#include "engine/core/units.h"
#include "engine/core/view.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::expect_error;

TEST(Error, RendersThreeParts) {
  const Error e(ErrorCode::shape, "w of shape (C)=(768)", "w (1024) f32", "check the config");
  EXPECT_STREQ(e.what(),
               "shape: expected w of shape (C)=(768)\n  found: w (1024) f32\n  try:   check the "
               "config");
}

TEST(Error, NotesAreOneLineInnermostFirst) {
  Error e(ErrorCode::data, "a", "b", "c");
  e.add_note("attention").add_note("layer 7");
  EXPECT_STREQ(e.what(), "data: expected a\n  found: b\n  in:    attention < layer 7\n  try:   c");
  EXPECT_EQ(e.expected(), "a");
  EXPECT_EQ(e.found(), "b");
  EXPECT_EQ(e.advice(), "c");
}

TEST(Error, NotesSurviveRethrow) {
  try {
    try {
      fail(ErrorCode::device, "a", "b", "c");
    } catch (Error& e) {
      e.add_note("reserve");
      throw;
    }
  } catch (const std::exception& e) {
    EXPECT_STREQ(e.what(), "device: expected a\n  found: b\n  in:    reserve\n  try:   c");
  }
}

TEST(Error, CodesAndExits) {
  const struct {
    ErrorCode code;
    const char* name;
    int exit;
  } rows[] = {{ErrorCode::usage, "usage", 2},
              {ErrorCode::data, "data", 2},
              {ErrorCode::shape, "shape", 1},
              {ErrorCode::unsupported, "unsupported", 2},
              {ErrorCode::out_of_memory, "out_of_memory", 3},
              {ErrorCode::device, "device", 1},
              {ErrorCode::collective, "collective", 1},
              {ErrorCode::internal, "internal", 1}};
  for (const auto& row : rows) {
    EXPECT_STREQ(to_string(row.code), row.name);
    EXPECT_EQ(Error(row.code, "a", "b", "c").exit_code(), row.exit) << row.name;
  }
}

TEST(Error, RequireAsksForAReport) {
  require(true, "nothing");
  expect_error(ErrorCode::internal, {"expected one root", "please report"},
               [] { require(false, "one root"); });
}

TEST(Name, EqualTextsAreOnePointer) {
  const Name a("h.0.attn"), b(std::string("h.0.") + "attn");
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.c_str(), b.c_str());
  EXPECT_FALSE(a == Name("h.0.attm"));
  EXPECT_EQ(a.str(), "h.0.attn");
  static_assert(std::is_trivially_copyable_v<Name> && sizeof(Name) == sizeof(void*));
}

TEST(Name, EmptyNamesAreEqual) {
  EXPECT_TRUE(Name().empty());
  EXPECT_TRUE(Name("").empty());
  EXPECT_EQ(Name(), Name(""));
  EXPECT_STREQ(Name().c_str(), "");
  EXPECT_EQ(Name().view(), "");
}

TEST(Name, Join) {
  EXPECT_EQ(join(Name("h.0"), "ln_1"), Name("h.0.ln_1"));
  EXPECT_EQ(join(Name(), "ln_f"), Name("ln_f"));
  EXPECT_EQ(join(Name("h.0"), ""), Name("h.0"));
}

TEST(Name, AddressesStayWhileManyThreadsIntern) {
  const char* before = Name("stays").c_str();
  std::vector<std::vector<const char*>> seen(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < seen.size(); ++t)
    threads.emplace_back([&seen, t] {
      for (int i = 0; i < 2000; ++i) seen[t].push_back(Name("n" + std::to_string(i)).c_str());
    });
  for (std::thread& t : threads) t.join();
  for (const auto& s : seen) EXPECT_EQ(s, seen[0]);
  EXPECT_EQ(Name("stays").c_str(), before);
}

TEST(Shape, ExtentsRowsElements) {
  const Shape s{4, 128, 768};
  EXPECT_EQ(s.rank(), 3);
  EXPECT_EQ(s.elements(), 4 * 128 * 768);
  EXPECT_EQ(s.rows(), 512);
  EXPECT_EQ(s.last(), 768);
  EXPECT_EQ(to_string(s), "(4,128,768)");
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ(Shape().rows(), 1);
  EXPECT_EQ(to_string(Shape()), "()");
  EXPECT_EQ((Shape{3, 0}).elements(), 0);
  EXPECT_EQ((Shape{3, 0}).rows(), 0);
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_FALSE((Shape{2, 3}) == (Shape{2, 3, 1}));
  EXPECT_FALSE((Shape{2, 3}) == (Shape{3, 2}));
}

TEST(Shape, Errors) {
  expect_error(ErrorCode::shape, {"at most 5 extents", "6 extents", "merge leading"},
               [] { Shape s{1, 2, 3, 4, 5, 6}; });
  expect_error(ErrorCode::shape, {"at least 0", "an extent of -1"}, [] { Shape s{2, -1}; });
  const int64_t big = int64_t{1} << 32;
  EXPECT_EQ((Shape{big, big >> 2}).elements(), int64_t{1} << 62);
  expect_error(ErrorCode::shape, {"fewer than 2^63 elements", "(4294967296,2147483648)"}, [&] {
    (void)Shape({big, big >> 1}).elements();
  });
}

View view_of(void* data, Shape shape, DType dtype = DType::f32) {
  return {data, shape, dtype, Place::cpu, Name("w")};
}

TEST(View, RowsOfEveryRank) {
  std::vector<float> data(4 * 3 * 2 * 2 * 2);
  const Shape shapes[] = {{4}, {4, 3}, {4, 3, 2}, {4, 3, 2, 2}, {4, 3, 2, 2, 2}};
  const Shape expected[] = {{2}, {2, 3}, {2, 3, 2}, {2, 3, 2, 2}, {2, 3, 2, 2, 2}};
  for (size_t i = 0; i < 5; ++i) {
    const View v = view_of(data.data(), shapes[i]), r = v.rows(1, 2);
    EXPECT_EQ(r.shape, expected[i]);
    EXPECT_EQ(r.as<float>(), data.data() + shapes[i].elements() / 4);
    EXPECT_EQ(r.name, v.name);
    EXPECT_EQ(v.rows(4, 0).elements(), 0);
  }
  EXPECT_EQ(view_of(nullptr, {4, 3}).rows(1, 2).data, nullptr);
  EXPECT_EQ(view_of(data.data(), {4, 3}, DType::u8).rows(2, 1).data,
            reinterpret_cast<std::byte*>(data.data()) + 6);
}

TEST(View, RowsErrors) {
  const View v = view_of(nullptr, {4, 3});
  expect_error(ErrorCode::shape, {"rows inside the tensor", "rows 3..5 of w (4,3) f32", "chunk"},
               [&] { v.rows(3, 2); });
  expect_error(ErrorCode::shape, {"rows -1..0"}, [&] { v.rows(-1, 1); });
  expect_error(ErrorCode::shape, {"rows 2..1"}, [&] { v.rows(2, -1); });
  expect_error(ErrorCode::shape, {"rows inside"}, [&] { v.rows(2, INT64_MAX); });
  expect_error(ErrorCode::shape, {"rows inside", "w () f32"},
               [&] { view_of(nullptr, {}).rows(0, 0); });
}

TEST(View, Reshaped) {
  float x[6];
  const View r = view_of(x, {2, 3}).reshaped({3, 2});
  EXPECT_EQ(r.shape, (Shape{3, 2}));
  EXPECT_EQ(r.data, x);
  expect_error(ErrorCode::shape, {"keeps the number of elements", "w (2,3) f32 to (4)", "config"},
               [&] {
                 view_of(x, {2, 3}).reshaped({4});
               });
}

TEST(View, TypedPointer) {
  float x[6];
  EXPECT_EQ(view_of(x, {6}).as<float>(), x);
  EXPECT_EQ(view_of(x, {6}).as<const float>(), x);
  expect_error(ErrorCode::internal, {"a view of bf16", "w (6) f32", "report"},
               [&] { (void)view_of(x, {6}).as<bf16>(); });
  EXPECT_EQ(view_of(x, {6}, DType::f64).bytes(), 48);
  static_assert(std::is_trivially_copyable_v<View>);
  EXPECT_FALSE(View().defined());
  EXPECT_TRUE(view_of(x, {6}).defined());
  EXPECT_EQ(describe(View()), "unnamed () f32");
  EXPECT_STREQ(to_string(Place::cpu), "cpu");
  EXPECT_STREQ(to_string(Place::plan), "plan");
}

TEST(View, Expect) {
  const View v = view_of(nullptr, {2, 3});
  expect(v, "x", {{"N", 2}, {"C", 3}});
  expect_error(ErrorCode::shape, {"x of shape (N,C)=(2,4)", "w (2,3) f32", "belong together"}, [&] {
    expect(v, "x", {{"N", 2}, {"C", 4}});
  });
  expect_error(ErrorCode::shape, {"x of shape (N)=(6)"}, [&] { expect(v, "x", {{"N", 6}}); });
  expect_error(ErrorCode::shape, {"x of shape (A,A,A,A,A,A)"}, [&] {
    expect(v, "x", {{"A", 2}, {"A", 3}, {"A", 1}, {"A", 1}, {"A", 1}, {"A", 1}});
  });
  expect_dtype(v, "x", {DType::bf16, DType::f32});
  expect_error(ErrorCode::unsupported, {"x of dtype bf16|i32", "w (2,3) f32", "precision"}, [&] {
    expect_dtype(v, "x", {DType::bf16, DType::i32});
  });
}

TEST(Precision, Names) {
  EXPECT_FALSE(parse_precision("fp32").separate_master());
  EXPECT_EQ(parse_precision("float32").compute, DType::f32);
  for (const char* name : {"bf16", "bfloat16"}) {
    const Precision p = parse_precision(name);
    EXPECT_EQ(p.compute, DType::bf16);
    EXPECT_EQ(p.master, DType::f32);
    EXPECT_EQ(p.gradient, DType::f32);
    EXPECT_EQ(p.state, DType::f32);
    EXPECT_TRUE(p.separate_master());
  }
  for (const char* name : {"fp16", "float16"}) {
    const Precision p = parse_precision(name);
    EXPECT_EQ(p.compute, DType::f16);
    EXPECT_EQ(p.master, DType::f32);
    EXPECT_EQ(p.gradient, DType::f32);
    EXPECT_EQ(p.state, DType::f32);
    EXPECT_TRUE(p.separate_master());
    EXPECT_TRUE(p.loss_scaling());
  }
  for (const char* name : {"fp32", "bf16", "fp16"}) {
    EXPECT_STREQ(to_string(parse_precision(name)), name);
    EXPECT_EQ(parse_precision(name).loss_scaling(), name == std::string("fp16"));
  }
  expect_error(ErrorCode::internal, {"a precision preset", "i32"},
               [] { (void)to_string(Precision{.compute = DType::i32}); });
  expect_error(ErrorCode::unsupported,
               {"fp32, bf16 or fp16", "tf32, a mode of the matrix units of GPUs", "precision=fp32"},
               [] { (void)parse_precision("tf32"); });
  expect_error(ErrorCode::usage, {"fp32, bf16 or fp16", "precision: fp12", "precision=bf16"},
               [] { (void)parse_precision("fp12"); });
}

TEST(Units, ParseBytes) {
  const struct {
    const char* text;
    int64_t bytes;
  } rows[] = {{"0", 0},
              {"1048576", 1048576},
              {"10B", 10},
              {"64KiB", 65536},
              {"256 MiB", 256ll << 20},
              {"4GiB", 4ll << 30},
              {"1.5GiB", 3ll << 29},
              {"2TiB", 2ll << 40},
              {"4GB", 4'000'000'000},
              {"4 G", 4ll << 30},
              {"1.5k", 1536},
              {"2K", 2048},
              {"3kB", 3000},
              {"1TB", 1'000'000'000'000},
              {"0.1KiB", 102},
              {"1e6", 1000000}};
  for (const auto& row : rows) EXPECT_EQ(parse_bytes(row.text, "memory"), row.bytes) << row.text;
}

TEST(Units, ParseBytesErrors) {
  const struct {
    const char *text, *why;
  } rows[] = {{"", "not a number"},
              {"big", "not a number"},
              {" 4GiB", "not a number"},
              {"nan", "not a number"},
              {"inf", "not a number"},
              {"1e999", "not a number"},
              {"4GX", "unknown unit: B, KiB, MiB, GiB and TiB are known"},
              {"4gib", "unknown unit"},
              {"4GiB ", "unknown unit"},
              {"-1", "negative"},
              {"-1GiB", "negative"},
              {"9e18B", nullptr},
              {"9.1e18", "more than 2^63 bytes"},
              {"9000000TiB", "more than 2^63 bytes"},
              {"1.5", "a fraction of a byte"},
              {"0.5B", "a fraction of a byte"}};
  for (const auto& row : rows) {
    if (!row.why) {
      EXPECT_EQ(parse_bytes(row.text, "memory"), 9000000000000000000ll);
      continue;
    }
    expect_error(ErrorCode::usage,
                 {"memory as a size such as 4GiB, 256MiB, 64KiB or bytes", row.why,
                  ("\"" + std::string(row.text) + "\"").c_str(), "memory=4GiB"},
                 [&] { (void)parse_bytes(row.text, "memory"); });
  }
  expect_error(ErrorCode::usage, {"\"100Mb\" (unknown unit"},
               [] { (void)parse_bytes("100Mb", "memory"); });
  EXPECT_EQ(parse_bytes("100MB", "memory"), 100000000) << "of powers of ten, as the SI has it";
  EXPECT_EQ(parse_bytes("1.5 kB", "memory"), 1500);
  EXPECT_EQ(parse_bytes("4G", "memory"), int64_t{4} << 30) << "of two, as ulimit has it";
  EXPECT_EQ(parse_bytes("2k", "memory"), parse_bytes("2K", "memory"));
}

TEST(Units, HumanText) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(-1023), "-1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(-1536), "-1.50 KiB");
  EXPECT_EQ(human_bytes(3ll << 29), "1.50 GiB");
  EXPECT_EQ(human_bytes((1ll << 30) - 4096), "1.00 GiB");  // not 1024.00 MiB
  EXPECT_EQ(human_bytes((1ll << 30) - 8192), "1023.99 MiB");
  EXPECT_EQ(human_bytes(1048575), "1.00 MiB");
  EXPECT_EQ(human_bytes(INT64_MAX), "8192.00 PiB");
  EXPECT_EQ(human_seconds(0), "0.0s");
  EXPECT_EQ(human_seconds(0.04), "40.0 ms");
  EXPECT_EQ(human_seconds(9.94), "9.9s");
  EXPECT_EQ(human_seconds(59.4), "59s");
  EXPECT_EQ(human_seconds(59.6), "1m 00s");
  EXPECT_EQ(human_seconds(125), "2m 05s");
  EXPECT_EQ(human_seconds(3599.6), "1h 00m");
  EXPECT_EQ(human_seconds(7300), "2h 01m");
  EXPECT_EQ(human_seconds(1e9), "-");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(human_count(12), "12");
  EXPECT_EQ(human_count(1500), "1.5k");
  EXPECT_EQ(human_count(124439808), "124.44M");
  EXPECT_EQ(human_count(1.3e9), "1.30B");
  EXPECT_EQ(human_count(2e12), "2.00T");
}

TEST(Units, Rounding) {
  EXPECT_EQ(round_up(0, 256), 0);
  EXPECT_EQ(round_up(1, 256), 256);
  EXPECT_EQ(round_up(256, 256), 256);
  EXPECT_EQ(ceil_div(0, 3), 0);
  EXPECT_EQ(ceil_div(7, 3), 3);
  EXPECT_EQ(ceil_div(9, 3), 3);
}

#ifdef __SANITIZE_ADDRESS__
TEST(Sanitizers, NameTheLineOfUndefinedBehaviour) {
  volatile int most = std::numeric_limits<int>::max();
  EXPECT_DEATH(std::exit(most + 1), "ILL .*test_types.cpp");
}
#endif

}  // namespace
}  // namespace snug
