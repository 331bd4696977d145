#include "tools/costs/op_rates.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/io/json.h"

namespace snug {
namespace {

// Where the seconds between ops stand among the ops.
constexpr const char* kBetween = "between ops";

// "matmul nt wide long, f32 f32, avx2" is alike "nt wide long, f32 f32, avx2" and "f32 f32, avx2".
std::vector<std::string> words_alike(const std::string& key) {
  const size_t space = key.find(' '), comma = key.find(", ");
  std::vector<std::string> words;
  if (space != std::string::npos) words.push_back(key.substr(space + 1));
  if (comma != std::string::npos) words.push_back(key.substr(comma + 2));
  return words;
}

}  // namespace

std::string OpRates::key(const OpRecord& op) {
  std::string key = op.name;
  if (!op.variant.empty()) key += " " + op.variant.str();
  return key;
}

void OpRates::add(const std::string& key, OpSample sample) {
  known_.clear();
  curves_[key].add(sample);
  if (is_packed(key)) return;
  for (const std::string& word : words_alike(key)) alike_[word].add(sample);
}

size_t OpRates::Work::Hash::operator()(const Seen& w) const {
  size_t h = std::hash<std::string_view>()(w.op);
  for (const size_t part : {reinterpret_cast<size_t>(w.variant), static_cast<size_t>(w.flops),
                            static_cast<size_t>(w.bytes)})
    h = (h ^ part) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}

double OpRates::seconds(const OpRecord& op) const {
  if (curves_.empty()) return -1;
  const Work::Seen work{op.name, op.variant.view().data(), op.flops, op.bytes};
  if (const auto found = known_.find(work); found != known_.end()) return found->second;
  const double seconds = look_up(op);
  known_.emplace(Work{std::string(work.op), work.variant, work.flops, work.bytes}, seconds);
  return seconds;
}

bool OpRates::packing() const {
  return curves_.contains(kPackOp) && std::any_of(curves_.begin(), curves_.end(),
                                                  [](const auto& c) { return is_packed(c.first); });
}

// Of the product of this name; else the mean of those that compute alike.
double OpRates::packed_ratio(const std::string& packed, double flops, double bytes) const {
  const auto ratio = [&](const std::string& key, const OpCurve& curve) {
    const auto plain = curves_.find(std::string(without_packed(key)));
    if (plain == curves_.end()) return 0.0;
    // Beyond what was measured packed, what it was at the end.
    const double times = curve.beyond(flops, bytes);
    return curve.seconds(flops / times, bytes / times) /
           plain->second.seconds(flops / times, bytes / times);
  };
  if (const auto own = curves_.find(packed); own != curves_.end())
    if (const double found = ratio(packed, own->second); found > 0) return found;
  for (const std::string& word : words_alike(packed)) {
    double logarithms = 0;
    int count = 0;
    for (const auto& [key, curve] : curves_) {
      if (!key.ends_with(" " + word)) continue;
      const double found = ratio(key, curve);
      if (found <= 0) continue;
      logarithms += std::log(found);
      ++count;
    }
    if (count > 0) return std::exp(logarithms / count);
  }
  return 1;
}

double OpRates::look_up(const OpRecord& op) const {
  if (is_packed(op.variant.view())) {
    OpRecord plain = op;
    plain.variant = Name(without_packed(op.variant.view()));
    const double seconds = look_up(plain);
    if (seconds < 0) return seconds;
    return seconds *
           packed_ratio(key(op), static_cast<double>(op.flops), static_cast<double>(op.bytes));
  }
  const std::string name = key(op);
  std::vector<const OpCurve*> curves;
  const auto look = [&](const std::map<std::string, OpCurve>& in, const std::string& word) {
    if (const auto found = in.find(word); found != in.end()) curves.push_back(&found->second);
  };
  look(curves_, name);
  for (const std::string& word : words_alike(name)) look(alike_, word);
  if (curves.empty()) return -1;
  return seconds(curves, 0, static_cast<double>(op.flops), static_cast<double>(op.bytes));
}

double OpRates::seconds(const std::vector<const OpCurve*>& curves, size_t i, double flops,
                        double bytes) const {
  const double times = curves[i]->beyond(flops, bytes);
  if (times <= 1 || i + 1 == curves.size()) return curves[i]->seconds(flops, bytes);
  const double f = flops / times, b = bytes / times;
  return curves[i]->seconds(f, b) * seconds(curves, i + 1, flops, bytes) /
         seconds(curves, i + 1, f, b);
}

nlohmann::json OpRates::json() const {
  nlohmann::json j = nlohmann::json::object();
  if (between_ > 0) j[kBetween].push_back({0, 0, between_});
  for (const auto& [key, curve] : curves_)
    for (const OpSample& s : curve.samples()) j[key].push_back({s.flops, s.bytes, s.seconds});
  return j;
}

OpRates OpRates::parse(const nlohmann::json& j, const std::string& where) {
  require_object(j, where);
  OpRates rates;
  for (const auto& [key, list] : j.items()) {
    const auto wrong = [&, &found = list] {  // Clang 14 captures no structured binding by itself
      fail(ErrorCode::data, "triples of FLOPs, bytes and seconds in " + where, json_brief(found),
           "measure again with snug calibrate --force, with the device= that the file is of");
    };
    if (!list.is_array() || list.empty()) wrong();
    for (const nlohmann::json& triple : list) {
      if (!triple.is_array() || triple.size() != 3) wrong();
      double v[3] = {};
      for (size_t i = 0; i < 3; ++i) {
        if (!triple[i].is_number()) wrong();
        v[i] = triple[i].get<double>();
        if (!(v[i] >= 0 && v[i] < (i < 2 ? 1e30 : 1e9))) wrong();
      }
      if (key == kBetween)
        rates.set_between(v[2]);
      else
        rates.add(key, {v[0], v[1], v[2]});
    }
  }
  return rates;
}

}  // namespace snug
