// Codes, scales and values against bitsandbytes, PyTorch and NumPy: bit for bit.
#include <gtest/gtest.h>

#include <cmath>

#include "quant/block.h"
#include "quant/quantile.h"
#include "tests/quant/quant_case.h"

namespace snug::test {
namespace {

const std::vector<std::string> kFixtures = {"quant_dynamic", "quant_four_bits", "quant_integers",
                                            "quant_fp8", "quant_states"};

void expect_same(const Outputs& out, const QuantFixture& f, const std::string& name,
                 const std::string& tensor, int64_t element_bytes) {
  const std::string wanted = name + "." + (tensor == "y" ? "values" : tensor);
  EXPECT_EQ(first_difference(bytes_of(out, tensor), f.bytes(wanted), element_bytes), -1)
      << wanted << " differs first at this element";
}

TEST(QuantGolden, CodesScalesAndValuesAreTheirs) {
  std::map<std::string, int> cases_of;
  for (const std::string& file : kFixtures) {
    const QuantFixture f(file);
    for (const auto& c : f.cases()) {
      const std::string name = c.at("name"), which = c.at("codec");
      SCOPED_TRACE(name);
      ++cases_of[which];
      const DType dtype = dtype_named(c.at("dtype"));
      Values x = f.values(c.at("input"));
      x.resize(c.at("n").get<size_t>());
      if (!codec(which).is_signed)
        for (double& v : x) v = std::fabs(v);
      QuantCase q{CodeSpec(codec(which), c.at("block").get<int64_t>()), dtype, rounded(x, dtype)};
      const Outputs out =
          x.size() == 4099 ? run_in_all_modes(body_of(q)) : run_on_plan_and_cpu({}, body_of(q));
      expect_same(out, f, name, "codes", 1);
      expect_same(out, f, name, "scales", 4);
      if (f.has(name + ".values")) expect_same(out, f, name, "y", size_of(dtype));
    }
  }
  for (const Codec& c : codecs()) {  // a row of the registry without a row in the fixtures
    if (c.book_of_data()) continue;
    EXPECT_GE(cases_of[c.name], 24) << c.name;
  }
}

TEST(QuantGolden, BooksAreTheirs) {
  int books = 0;
  for (const std::string& file : kFixtures) {
    const QuantFixture f(file);
    for (const Codec& c : codecs()) {
      if (c.book == nullptr || !f.has(std::string(c.name) + ".book")) continue;
      SCOPED_TRACE(c.name);
      ++books;
      const Values book = f.values(std::string(c.name) + ".book");
      for (size_t k = 0; k < book.size(); ++k)
        EXPECT_EQ(static_cast<double>(c.book->values[k]), book[k]) << "code " << k;
    }
  }
  EXPECT_EQ(books, 8);
}

TEST(QuantGolden, DoubledScalesAreTheirs) {
  const QuantFixture f("quant_double");
  ASSERT_EQ(f.cases().size(), 2u);
  for (const auto& c : f.cases()) {
    const std::string name = c.at("name");
    SCOPED_TRACE(name);
    QuantCase q{
        CodeSpec(codec(c.at("codec").get<std::string>()), c.at("block").get<int64_t>(), true),
        DType::bf16, f.values("x")};
    const Outputs out = run_in_all_modes(body_of(q));
    expect_same(out, f, name, "codes", 1);
    expect_same(out, f, name, "scale_codes", 1);
    expect_same(out, f, name, "scales", 4);
    expect_same(out, f, name, "offset", 4);
    expect_same(out, f, name, "y", 2);
  }
}

TEST(QuantGolden, QuantilesAreNumpys) {
  const QuantFixture f("quant_quantile");
  ASSERT_EQ(f.cases().size(), 6u);
  for (const auto& c : f.cases()) {
    const std::string name = c.at("name");
    SCOPED_TRACE(name);
    const DType dtype = dtype_named(c.at("dtype"));
    const CodeSpec spec(codec("quantile8"), c.at("block").get<int64_t>());
    const Values x = rounded(f.values("plain"), dtype);
    const Outputs out = run_in_all_modes([&](Case& k) {
      const auto n = static_cast<int64_t>(x.size());
      const View vx = k.input("x", {n}, dtype, x), y = k.output("y", {n}, dtype);
      Coded to = coded_outputs(k, spec, n);
      to.book = k.output("book", {kMaxCodes}, DType::f32);
      quantile_book(k.ctx(), to.book, vx, spec);
      quantise(k.ctx(), to, vx, spec);
      dequantise(k.ctx(), y, to, spec);
    });
    for (const char* tensor : {"book", "scales"}) expect_same(out, f, name, tensor, 4);
    expect_same(out, f, name, "codes", 1);
    expect_same(out, f, name, "y", size_of(dtype));
  }
}

// Figures of the papers and of bitsandbytes' documents.
TEST(QuantGolden, BooksHaveTheirPublishedFigures) {
  const auto sums = [](const CodeBook& b) {
    std::pair<double, double> s{0, 0};
    for (int k = 0; k < b.size; ++k) {
      s.first += static_cast<double>(b.sorted[k]);
      s.second += std::fabs(static_cast<double>(b.sorted[k]));
    }
    return s;
  };
  const CodeBook &m = *codec("dynamic8").book, &v = *codec("dynamic8_unsigned").book;
  EXPECT_EQ(m.size, 256);
  EXPECT_EQ(v.size, 256);
  EXPECT_EQ(m.zero, 127);
  EXPECT_EQ(v.zero, 0);
  EXPECT_NEAR(sums(m).first, 1.0, 1e-6);
  EXPECT_NEAR(sums(m).second, 75.105263, 1e-5);
  EXPECT_NEAR(sums(v).second, 75.105263, 1e-5);
  const float eight[8] = {-1, -.5f, -.05f, 0, .05f, .1f, .3f, 1};
  uint8_t codes[4];
  float scale = 0;
  encode_block(codec("nf4"), eight, 8, codes, &scale);
  EXPECT_EQ(scale, 1.0f);
  EXPECT_EQ(fmt::format("{:02x} {:02x} {:02x} {:02x}", codes[0], codes[1], codes[2], codes[3]),
            "02 67 88 bf");
}

}  // namespace
}  // namespace snug::test
