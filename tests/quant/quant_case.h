// A tensor to codes and back as a test case, for every place; and the fixtures of
// tests/golden/make_quant_golden.py.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/core/units.h"
#include "engine/io/json.h"
#include "engine/io/safetensors.h"
#include "quant/quantise.h"
#include "quant/quantise_simt.h"
#include "tests/support/emu.h"
#include "tests/support/errors.h"
#include "tests/support/folders.h"

namespace snug::test {

class QuantFixture {
 public:
  explicit QuantFixture(const std::string& name)
      : reader_(source_folder() + "/tests/golden/" + name + ".safetensors"),
        cases_(parse_json(reader_.metadata().at("cases"), name)) {}
  const nlohmann::json& cases() const { return cases_; }
  bool has(const std::string& name) const { return reader_.find(name) != nullptr; }
  std::vector<std::byte> bytes(const std::string& name) const {
    const SafeTensor& t = reader_.at(name);
    const auto* data = reinterpret_cast<const std::byte*>(t.data);
    return {data, data + t.bytes};
  }
  Values values(const std::string& name) const {  // of F32 or bf16 kept as I16
    const std::vector<std::byte> raw = bytes(name);
    const DType t = reader_.at(name).dtype == SafeDType::F32 ? DType::f32 : DType::bf16;
    return load_values(raw.data(), t, static_cast<int64_t>(raw.size()) / size_of(t));
  }

 private:
  SafetensorsReader reader_;
  nlohmann::json cases_;
};

struct QuantCase {
  CodeSpec spec;
  DType dtype = DType::f32;
  Values x;
  Values book = {};                  // of codecs without one
  const StepState* state = nullptr;  // stochastic
  int64_t first = 0;
  int threads = 64;  // of a block, in the emulator
};

inline Coded coded_outputs(auto& c, const CodeSpec& spec, int64_t n, const Values& book = {}) {
  const int64_t blocks = spec.blocks(n);
  Coded to;
  to.codes = c.output("codes", {spec.code_bytes(n)}, DType::u8);
  if (spec.doubled) {
    to.scale_codes = c.output("scale_codes", {blocks}, DType::u8);
    to.scales = c.output("scales", {ceil_div(blocks, kDoubledBlock)}, DType::f32);
    to.offset = c.output("offset", {1}, DType::f32);
  } else {
    to.scales = c.output("scales", spec.codec->scales() == 2 ? Shape{blocks, 2} : Shape{blocks},
                         DType::f32);
  }
  if (!book.empty()) to.book = c.input("book", {kMaxCodes}, DType::f32, book);
  return to;
}

// Outputs: codes, scales, scale_codes, offset, y.
inline auto body_of(const QuantCase& q) {
  return [q](auto& c) {
    const auto n = static_cast<int64_t>(q.x.size());
    const View x = c.input("x", {n}, q.dtype, q.x);
    const Coded to = coded_outputs(c, q.spec, n, q.book);
    const View y = c.output("y", {n}, q.dtype);
    Rounding rounding;
    if (q.state != nullptr) rounding = {c.step_state(*q.state), 7, q.first};
    if constexpr (kEmulated<std::decay_t<decltype(c)>>) {
      const int64_t blocks = q.spec.blocks(n);
      View absmax, sums;
      if (q.spec.doubled) {
        absmax = c.inout("absmax", {blocks}, DType::f32, Values(static_cast<size_t>(blocks), 9));
        sums = c.output("sums", {double_scale_chunks(blocks)}, DType::f64);
      }
      quantise_on(c.queue(), to, x, q.spec, rounding, absmax, sums, q.threads);
      dequantise_on(c.queue(), y, to, q.spec, q.threads);
    } else {
      quantise(c.ctx(), to, x, q.spec, rounding);
      dequantise(c.ctx(), y, to, q.spec);
    }
  };
}

inline DType dtype_named(const std::string& name) {
  return name == "bf16" ? DType::bf16 : (name == "f16" ? DType::f16 : DType::f32);
}

inline const std::vector<std::byte>& bytes_of(const Outputs& out, const std::string& name) {
  static const std::vector<std::byte> none;
  for (const Output& o : out.all)
    if (o.name == name) return o.bytes;
  ADD_FAILURE() << "no output named " << name;
  return none;
}

// Where two outputs of floats or bytes first differ; -1: nowhere.
inline int64_t first_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                                int64_t element_bytes) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) return static_cast<int64_t>(i) / element_bytes;
  return -1;
}

// Numbers with every trouble that has an answer: zeros of both signs, blocks of one value and of
// zeros, subnormals, magnitudes over many decades.
inline Values awkward_values(int64_t n, uint32_t seed, DType t) {
  Values v = normal_values(n, seed, DType::f32);
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] *= std::exp2(static_cast<double>(mix64(seed * 77ull + i) % 24) - 12);
    if (i % 41 == 0) v[i] = -0.0;
    if (i % 43 == 0) v[i] = 0.0;
    if (i >= 300 && i < 600) v[i] = 0.0;
    if (i >= 700 && i < 1100) v[i] = -0.3;
    if (i >= 1300 && i < 1700) v[i] *= 1e-41;
    if (i == 2000) v[i] = 30000;
  }
  return rounded(v, t);
}

}  // namespace snug::test
