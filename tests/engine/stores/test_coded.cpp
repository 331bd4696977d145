// Frozen weights in codes: their bytes and values are those of bitsandbytes on every place and in both
// homes, tensor by tensor of a parameter; the plan has one decoded weight at a time.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "engine/stores/coded_params.h"
#include "engine/stores/plain_params.h"
#include "quant/weight_codes.h"
#include "tests/support/errors.h"
#include "tests/support/folders.h"

namespace snug {
namespace {

using test::expect_error;

// Of int8, or of blocks.
const SafetensorsReader& fixture(const std::string& codec) {
  static const SafetensorsReader blocks(source_folder() + "/tests/golden/quant_file.safetensors"),
      rows(source_folder() + "/tests/golden/int8_linear.safetensors");
  return codec == "int8" ? rows : blocks;
}

std::vector<float> floats(const std::string& codec, const std::string& name) {
  const SafeTensor& t = fixture(codec).at(name);
  std::vector<float> values(static_cast<size_t>(t.elements()));
  convert(t.dtype, t.data, t.elements(), values.data());
  return values;
}

// Two layers, each with a weight of the fixture, that weight twice in one parameter of 96 rows, a
// trained matrix and a frozen vector.
struct Coded4 {
  static std::shared_ptr<const BlockCodes> codes_of(const std::string& codec, int64_t block,
                                                    bool doubled, int64_t rows) {
    const BlockCodes::Rows of = [rows](const ParamInfo& p) {
      std::vector<int64_t> list;
      if (p.linear) list.assign(static_cast<size_t>(p.shape[0] / rows), rows);
      return list;
    };
    if (codec == "int8") return std::make_shared<BlockCodes>(4.5f, of);
    return std::make_shared<BlockCodes>(CodeSpec(snug::codec(codec), block, doubled), of);
  }
  ParamTable table;
  std::vector<int> once, twice;
  int trained = -1, frozen = -1;
  Coded4(const char* codec, int64_t block, bool doubled, int64_t rows, int64_t width)
      : table([](std::string_view name) { return name != "t"; }, 1,
              codes_of(codec, block, doubled, rows)) {
    for (int layer = 0; layer < 2; ++layer) {
      const std::string h = "h." + std::to_string(layer);
      once.push_back(table.add(
          {.name = Name(h + ".once"), .shape = {rows, width}, .linear = true, .part = layer}));
      twice.push_back(table.add(
          {.name = Name(h + ".twice"), .shape = {2 * rows, width}, .linear = true, .part = layer}));
    }
    trained = table.add({.name = Name("t"), .shape = {16, 16}, .linear = true, .part = 1});
    frozen = table.add({.name = Name("v"), .shape = {7}, .part = 1});
  }
};

struct Home {
  std::unique_ptr<PlainParamStore> plain;
  std::unique_ptr<CodedParamStore> coded;
};

// A tensor of a parameter in x: the second one of two is negated.
void fill(const std::vector<float>& x, size_t k, float* to) {
  for (size_t i = 0; i < x.size(); ++i) to[i] = k == 0 ? x[i] : -x[i];
}

struct Case {
  const char* name;
  const char* weight;
  const char* codec;
  int64_t block;
  bool doubled;
  int64_t rows, width;
};
constexpr Case kCases[] = {{"Nf4Doubled", "a.weight", "nf4", 64, true, 48, 64},
                           {"Fp4", "b.weight", "fp4", 128, false, 34, 64},
                           {"Int8", "a.weight", "int8", 37, false, 70, 37},
                           {"Int8Wide", "c.weight", "int8", 129, false, 65, 129}};

class CodedStore : public testing::TestWithParam<std::tuple<Case, Place, bool>> {};

TEST_P(CodedStore, DecodesWhatBitsandbytesDecodes) {
  const auto& [c, place, with_host] = GetParam();
  const Coded4 m(c.codec, c.block, c.doubled, c.rows, c.width);
  const std::vector<float> x = floats(c.codec, c.weight),
                           back = floats(c.codec, std::string("back/") + c.weight);
  const bool half = fixture(c.codec).at(std::string("back/") + c.weight).dtype == SafeDType::F16;
  const DType dtype = half ? DType::f16 : DType::f32;
  Schedule s;
  s.add(Name("root"), -1, true);
  s.add(Name("code"), 0, false);
  s.add(Name("step"), 0, false);
  Home home;
  std::vector<std::vector<float>> seen(static_cast<size_t>(m.table.size()));
  const auto run = [&](Context& ctx) {
    home = {};
    ctx.program(s, 0, [&] {
      home.plain = std::make_unique<PlainParamStore>(ctx, m.table, dtype);
      home.coded = std::make_unique<CodedParamStore>(ctx, m.table, dtype, *home.plain, with_host);
    });
    const auto code = [&](int param, size_t k) {
      ctx.program(s, 1,
                  [&] { home.coded->encode(ctx, param, k, [&](float* to) { fill(x, k, to); }); });
    };
    if (ctx.planning()) {
      const auto [param, k] = home.coded->largest();
      code(param, k);
    } else {
      for (const int i : m.table.coded())
        for (size_t k = 0; k < m.table[i].code_rows.size(); ++k) code(i, k);
    }
    ctx.program(s, 2, [&] {
      for (int layer = 0; layer < 2; ++layer) {
        home.coded->fetch_part(ctx, layer);
        for (const int i : {m.once[static_cast<size_t>(layer)], m.twice[static_cast<size_t>(layer)],
                            m.trained, m.frozen}) {
          if (const Int8Weight int8 = home.coded->acquire_int8(ctx, i); !int8.any()) {
            EXPECT_TRUE(!m.table[i].coded() || std::string(c.codec) != "int8");
          } else {
            EXPECT_EQ(int8.count, static_cast<int>(m.table[i].code_rows.size()));
            EXPECT_EQ(int8.threshold, 4.5f);
            if (!ctx.planning()) {
              std::vector<uint8_t> codes(static_cast<size_t>(int8.pieces[0].codes.bytes()));
              ctx.read(codes.data(), int8.pieces[0].codes);
              const SafeTensor& t = fixture(c.codec).at(std::string("codes/") + c.weight);
              EXPECT_EQ(std::memcmp(codes.data(), t.data, codes.size()), 0);
            }
          }
          const View v = home.coded->acquire(ctx, i);
          EXPECT_EQ(v.name, m.table[i].name);
          EXPECT_EQ(v.shape, m.table[i].shape);
          EXPECT_EQ(v.dtype, dtype);
          if (!ctx.planning() && m.table[i].coded()) {
            auto& values = seen[static_cast<size_t>(i)];
            values.resize(static_cast<size_t>(v.elements()));
            std::vector<std::byte> raw(static_cast<size_t>(v.bytes()));
            ctx.read(raw.data(), v);
            convert(half ? SafeDType::F16 : SafeDType::F32,
                    reinterpret_cast<const char*>(raw.data()), v.elements(), values.data());
          }
          home.coded->release(ctx, i);
        }
        home.coded->drop_part(ctx, layer);
      }
    });
  };
  Settings settings;
  settings.target = place;
  {
    Context plan(Place::plan, settings);
    run(plan);
    home = {};
  }
  s.pack();
  Context ctx(place, settings);
  ctx.reserve(s);
  run(ctx);
  for (const std::vector<int>& list : {m.once, m.twice})
    for (const int i : list) {
      const std::vector<float>& got = seen[static_cast<size_t>(i)];
      ASSERT_EQ(got.size(), back.size() * m.table[i].code_rows.size());
      for (size_t k = 0; k < got.size(); ++k) {
        const float expected = k < back.size() ? back[k] : got[k];
        ASSERT_EQ(got[k], expected) << m.table[i].name.view() << " " << k;
      }
      // Of the negated one the blocks have the same magnitudes; NF4 is not symmetric, the others are.
      if (list == m.twice && std::string(c.codec) != "nf4") {
        for (size_t k = 0; k < back.size(); ++k) ASSERT_EQ(got[back.size() + k], -back[k]) << k;
      }
    }
  // The plan: the codes, and of decoded weights the largest one alone.
  int64_t codes = 0, host = 0;
  for (const TensorRecord& t : s.at(0).tensors)
    if (t.name.view().starts_with("weights.codes"))
      (t.residence == Residence::host ? host : codes) += t.bytes;
  EXPECT_EQ(with_host ? host : codes, m.table.coded_bytes());
  EXPECT_EQ(with_host ? codes : host, 0);
  int64_t decoded = 0;
  for (const TensorRecord& t : s.at(2).tensors)
    if (t.category == Category::workspace) {
      EXPECT_LE(decoded, t.born) << "two at a time";
      decoded = t.died;
    }
  home = {};
}

INSTANTIATE_TEST_SUITE_P(Homes, CodedStore,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::Values(Place::cpu, Place::emu), testing::Bool()),
                         [](const auto& p) {
                           return std::string(std::get<0>(p.param).name) +
                                  to_string(std::get<1>(p.param)) +
                                  (std::get<2>(p.param) ? "Host" : "Device");
                         });

// The bytes of one tensor, in the order of quant/weight_codes.h, are what bitsandbytes puts in a file.
TEST(BlockCodes, BytesAreThoseOfBitsandbytes) {
  for (const Case& c : kCases) {
    const Coded4 m(c.codec, c.block, c.doubled, c.rows, c.width);
    const std::vector<float> x = floats(c.codec, c.weight);
    Schedule s;
    s.add(Name("code"), -1, false);
    std::vector<std::byte> bytes(static_cast<size_t>(m.table.codes()->bytes(c.rows, c.width)));
    const auto run = [&](Context& ctx) {
      ctx.program(s, 0, [&] {
        const Tensor values =
            ctx.tensor(Name("x"), {c.rows, c.width}, DType::f32, Category::workspace);
        const Tensor codes = ctx.tensor(Name("codes"), {static_cast<int64_t>(bytes.size())},
                                        DType::u8, Category::workspace);
        if (!ctx.planning()) ctx.write(values, x.data());
        m.table.codes()->encode(ctx, codes, values);
        if (!ctx.planning()) ctx.read(bytes.data(), codes);
      });
    };
    Context plan(Place::plan, {});
    run(plan);
    s.pack();
    Context ctx(Place::cpu, {});
    ctx.reserve(s);
    run(ctx);
    size_t at = 0;
    const auto same = [&](const std::string& name) {
      const SafeTensor& t = fixture(c.codec).at("codes/" + std::string(c.weight) + name);
      EXPECT_EQ(std::memcmp(bytes.data() + at, t.data, static_cast<size_t>(t.bytes)), 0) << name;
      at = (at + static_cast<size_t>(t.bytes) + 63) / 64 * 64;
    };
    same("");
    if (c.doubled) same(".nested_absmax");
    same(".absmax");
    EXPECT_EQ(m.table.codes()->text(), c.doubled                        ? "nf4-double"
                                       : std::string(c.codec) == "int8" ? "int8:4.5"
                                                                        : "fp4");
  }
}

TEST(CodedTable, CodesHaveARangeOfTheirOwn) {
  const Coded4 m("nf4", 64, true, 48, 64);
  const ParamTable& t = m.table;
  EXPECT_EQ(t.coded(), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(t.by_offset(), (std::vector<int>{m.trained, m.frozen}));
  EXPECT_EQ(t.flat_elements(), 512);
  EXPECT_EQ(t.trained_elements(), 256);
  EXPECT_EQ(t.real_elements(), 6 * 48 * 64 + 256 + 7);
  // 1536 bytes of codes, 4 of scales of scales, 48 of their codes and an offset, each on a line of 64.
  EXPECT_EQ(t[0].code_bytes, 1792);
  EXPECT_EQ(t[1].offset, 1792);
  EXPECT_EQ(t[1].code_bytes, 2 * 1792);
  EXPECT_EQ(t.coded_bytes(), 6 * 1792);
  EXPECT_FALSE(t[m.trained].coded());
  View flat;
  expect_error(ErrorCode::internal, {"a parameter of the flat range"},
               [&] { parameter_view(flat, t[0]); });
  expect_error(ErrorCode::internal, {"a sink for what rests in codes"},
               [&] { RestingWeights(flat).sink(); });
}

}  // namespace
}  // namespace snug
