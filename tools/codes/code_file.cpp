#include "tools/codes/code_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/core/error.h"
#include "engine/io/safetensors.h"
#include "engine/text/regex.h"
#include "quant/code_parts.h"
#include "quant/coder.h"

namespace snug {
namespace {

std::optional<DType> coded_dtype(const SafeTensor& t) {
  const std::optional<DType> type = engine_dtype(t.dtype);
  if (t.elements() == 0 || !type) return {};
  if (*type == DType::f32 || *type == DType::bf16 || *type == DType::f16) return type;
  return {};
}

// Which tensors become codes, in the order of all.
std::vector<bool> chosen(const std::vector<const SafeTensor*>& all, const std::string& path,
                         const std::string& match) {
  std::optional<Regex> pattern;
  try {
    if (!match.empty()) pattern.emplace(match, "--match");
  } catch (const Error& e) {
    fail(ErrorCode::usage, "a regular expression over names of tensors as --match",
         fmt::format("{} ({})", match, e.found()), "--match 'weight$'");
  }
  RegexScratch scratch;
  std::vector<bool> out;
  int64_t floats = 0, matches = 0;
  for (const SafeTensor* t : all) {
    const bool may = coded_dtype(*t).has_value();
    size_t begin = 0, end = 0;
    const bool is = may && (!pattern || pattern->find(t->name, 0, scratch, begin, end));
    floats += may;
    matches += is;
    out.push_back(is);
  }
  if (floats == 0)
    fail(ErrorCode::data, "a file with tensors of F32, BF16 or F16 to code",
         fmt::format("{}, {} tensors without one", path, all.size()),
         "snug inspect shows what a file holds");
  if (matches == 0)
    fail(ErrorCode::usage, "a --match that is found in the name of a tensor",
         fmt::format("\"{}\", in none of {} of {}", match, floats, path),
         "snug inspect shows the names; --match 'weight$'");
  return out;
}

const char* torch_name(DType t) {
  return t == DType::f32 ? "float32" : (t == DType::bf16 ? "bfloat16" : "float16");
}

// Adds what `seen` of the codes of tensor values; x: the values, y: as they come back.
void measure(CodedTensor& out, const Codes& codes, const std::vector<float>& x,
             const std::vector<float>& y, const CodeSpec& spec) {
  const Codec& c = *spec.codec;
  const bool two_ends = c.rule == ScaleRule::min_max;
  const EntryTable entries = entry_table(spec, codes);
  out.entries = entries.places;
  out.used.assign(entries.places.size(), 0);
  out.values.assign(kCodeBins, 0);
  double magnitudes = 0, squares = 0, values = 0;
  const auto n = static_cast<int64_t>(x.size());
  for (int64_t begin = 0; begin < n; begin += spec.block) {
    const int64_t end = std::min(n, begin + spec.block);
    const auto [least, most] = std::minmax_element(x.begin() + begin, x.begin() + end);
    const auto low = static_cast<double>(*least), high = static_cast<double>(*most);
    const double largest = std::max(std::fabs(low), std::fabs(high));
    for (int64_t i = begin; i < end; ++i) {
      const auto v = static_cast<double>(x[static_cast<size_t>(i)]);
      const double d = std::fabs(static_cast<double>(y[static_cast<size_t>(i)]) - v);
      out.max_error = std::max(out.max_error, d);
      magnitudes += d;
      squares += d * d;
      values += v * v;
      double place = 0;  // of 0 to 1
      if (two_ends)
        place = high > low ? (v - low) / (high - low) : 0;
      else
        place = largest > 0 ? (v / largest + 1) / 2 : 0.5;
      const auto bin = static_cast<int64_t>(place * kCodeBins);
      ++out.values[static_cast<size_t>(std::clamp<int64_t>(bin, 0, kCodeBins - 1))];
      ++out.used[static_cast<size_t>(entries.of_code[code_at(codes, c.bits, i)])];
    }
  }
  const auto count = static_cast<double>(n);
  out.mean_error = magnitudes / count;
  out.rms_error = std::sqrt(squares / count);
  out.rms = std::sqrt(values / count);
}

// Codes of numbers that are not finite would take their block with them.
void check_finite(const SafeTensor& t, const std::vector<float>& x, const std::string& path) {
  int64_t bad = 0, first = -1;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isfinite(x[i])) continue;
    if (first < 0) first = static_cast<int64_t>(i);
    ++bad;
  }
  if (bad > 0)
    fail(ErrorCode::data, "finite numbers: one that is not would take its whole block with it",
         fmt::format("{}: {} of {} in {}, the first at element {}", path, bad, x.size(), t.name,
                     first),
         "--match for other tensors alone, or a file from before they were there");
}

void check_plain(const std::vector<const SafeTensor*>& all, const std::string& path) {
  for (const SafeTensor* t : all)
    if (t->name.find(kQuantState) != std::string::npos)
      fail(ErrorCode::data, "a file of weights that are not codes yet",
           fmt::format("{}, which holds {}", path, t->name),
           "snug quant --decode makes weights of it");
}

SafeMetadata metadata_of(const SafetensorsFolder& file) {
  SafeMetadata metadata = file.metadata();
  metadata.emplace("format", "pt");
  return metadata;
}

}  // namespace

CodedFile code_file(const std::string& path, const CodeSpec& spec, const CodeOptions& options,
                    int64_t& copied) {
  const SafetensorsFolder file(path);
  const std::vector<const SafeTensor*> all = file.tensors();
  check_plain(all, path);
  const std::vector<bool> codes = chosen(all, path, options.match);
  std::vector<SafeSpec> specs;
  for (size_t i = 0; i < all.size(); ++i) {
    if (codes[i])
      add_code_specs(specs, all[i]->name, all[i]->shape, all[i]->elements(), spec,
                     torch_name(*coded_dtype(*all[i])));
    else
      specs.push_back({all[i]->name, all[i]->dtype, all[i]->shape});
  }
  std::optional<SafetensorsLayout> layout;
  std::optional<SafetensorsWriter> writer;
  if (!options.output.empty()) {
    layout.emplace(metadata_of(file), std::move(specs));
    writer.emplace(options.output, *layout);
  }
  CodedFile out;
  out.path = path;
  out.codec = spec.codec->name;
  out.block = spec.block;
  out.doubled = spec.doubled;
  out.low = spec.codec->rule == ScaleRule::min_max || !spec.codec->is_signed ? 0 : -1;
  copied = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const SafeTensor& t = *all[i];
    if (!codes[i]) {
      ++copied;
      if (writer) writer->write(t.name, t.data, t.bytes);
      continue;
    }
    const DType dtype = *coded_dtype(t);
    std::vector<float> x(static_cast<size_t>(t.elements())), y(x.size());
    convert(t.dtype, t.data, t.elements(), x.data());
    check_finite(t, x, path);
    std::vector<std::byte> back;
    const Codes made = encode_tensor(t.data, t.elements(), dtype, spec, options.threads, back);
    convert(t.dtype, back.data(), t.elements(), y.data());
    CodedTensor row;
    row.name = t.name;
    row.dtype = to_string(t.dtype);
    row.shape = t.shape;
    row.elements = t.elements();
    row.bytes = t.bytes;
    row.coded_bytes = spec.bytes(t.elements());
    measure(row, made, x, y, spec);
    out.tensors.push_back(std::move(row));
    if (writer) write_parts(*writer, t.name, made, spec, torch_name(dtype), t.shape);
    for (const SafetensorsReader& reader : file.files()) reader.drop_pages();
  }
  if (writer) writer->commit();
  return out;
}

std::vector<DecodedTensor> decode_file(const std::string& path, const CodeOptions& options,
                                       int64_t& copied) {
  const SafetensorsFolder file(path);
  const std::vector<CodeParts> parts = find_parts(file, path);
  std::vector<SafeSpec> specs;
  std::vector<const CodeParts*> of_spec;  // null: a tensor as it is
  std::vector<const SafeTensor*> plain;
  for (const SafeTensor* t : file.tensors()) {
    const CodeParts* owner = nullptr;
    bool codes = false;
    for (const CodeParts& p : parts)
      if (p.holds(*t)) {
        owner = &p;
        codes = p.codes == t;
      }
    if (owner != nullptr && !codes) continue;
    of_spec.push_back(owner);
    plain.push_back(t);
    if (owner != nullptr)
      specs.push_back({t->name, safe_dtype(owner->dtype), owner->shape});
    else
      specs.push_back({t->name, t->dtype, t->shape});
  }
  std::optional<SafetensorsLayout> layout;
  std::optional<SafetensorsWriter> writer;
  if (!options.output.empty()) {
    layout.emplace(metadata_of(file), std::move(specs));
    writer.emplace(options.output, *layout);
  }
  copied = 0;
  std::vector<DecodedTensor> out;
  for (size_t i = 0; i < plain.size(); ++i) {
    const SafeTensor& t = *plain[i];
    if (of_spec[i] == nullptr) {
      ++copied;
      if (writer) writer->write(t.name, t.data, t.bytes);
      continue;
    }
    const CodeParts& p = *of_spec[i];
    const std::vector<std::byte> back =
        decode_tensor(p.read(), p.elements, p.dtype, p.spec, options.threads);
    if (writer) writer->write(t.name, back.data(), static_cast<int64_t>(back.size()));
    out.push_back({t.name, to_string(safe_dtype(p.dtype)), p.spec.codec->name, p.shape,
                   p.spec.block, p.spec.doubled, static_cast<int64_t>(back.size()),
                   p.spec.bytes(p.elements)});
  }
  if (writer) writer->commit();
  return out;
}

}  // namespace snug
