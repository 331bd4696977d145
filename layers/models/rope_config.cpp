// Rotary settings of a config.json, in both spellings.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/core/error.h"
#include "engine/io/json.h"
#include "layers/models/decoder_family.h"

namespace snug {
namespace {

using nlohmann::json;

// Of one of the kinds; which settings it reads beside theta, partial and type.
struct Kind {
  std::string_view name;
  std::span<const std::string_view> settings;
};
constexpr std::array<std::string_view, 1> kFactor = {"factor"};
constexpr std::array<std::string_view, 2> kDynamic = {"factor", "original_max_position_embeddings"};
constexpr std::array<std::string_view, 4> kLlama3 = {
    "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
constexpr std::array<std::string_view, 8> kYarn = {
    "factor",           "original_max_position_embeddings",
    "attention_factor", "beta_fast",
    "beta_slow",        "truncate",
    "mscale",           "mscale_all_dim"};
constexpr std::array<std::string_view, 5> kLongrope = {"short_factor", "long_factor", "factor",
                                                       "original_max_position_embeddings",
                                                       "attention_factor"};
constexpr std::array<Kind, 6> kKinds = {{{"default", {}},
                                         {"linear", kFactor},
                                         {"dynamic", kDynamic},
                                         {"llama3", kLlama3},
                                         {"yarn", kYarn},
                                         {"longrope", kLongrope}}};

const Kind& kind_of(const std::string& type, const std::string& where) {
  for (const Kind& kind : kKinds)
    if (kind.name == type) return kind;
  fail(ErrorCode::unsupported,
       fmt::format("rope_type default, linear, dynamic, llama3, yarn or longrope in {}", where),
       type, "leave it out to train at the original length");
}

// A setting that this kind does not read would have no effect.
void check_settings(const json& s, const Kind& kind, const std::string& where) {
  for (const auto& [key, value] : s.items()) {
    bool known = value.is_null();
    for (const std::string_view name : {"rope_type", "type", "rope_theta", "partial_rotary_factor"})
      known = known || name == key;
    for (const std::string_view name : kind.settings) known = known || name == key;
    // Files keep these of the model's own length whatever the kind.
    known = known || key == "original_max_position_embeddings";
    if (!known)
      fail(ErrorCode::unsupported, fmt::format("settings of rope_type {} in {}", kind.name, where),
           fmt::format("{}: {}", key, json_brief(value)), "leave it out");
  }
}

std::vector<double> factors(const json& s, const char* key, const std::string& where) {
  if (!s.contains(key) || !s[key].is_array() || s[key].empty())
    fail(ErrorCode::data, fmt::format("{}, a list of numbers, in {}", key, where),
         s.contains(key) ? json_brief(s[key]) : "none", "the values of the published config.json");
  std::vector<double> list;
  for (const json& value : s[key]) {
    if (!value.is_number() || !(value.get<double>() >= 1e-3))
      fail(ErrorCode::data, fmt::format("numbers above 0 in {} of {}", key, where),
           json_brief(value), "the values of the published config.json");
    list.push_back(value.get<double>());
  }
  return list;
}

}  // namespace

json rope_settings(const json& c, std::string* key) {
  const char* const name = c.contains("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (key) *key = name;
  return c.contains(name) && c[name].is_object() ? c[name] : json::object();
}

RopeParameters read_rope(const json& c, const json& s, const std::string& where,
                         const DecoderKeys& keys, int64_t positions) {
  RopeParameters r;
  r.theta = get_number(s, "rope_theta", where, get_number(c, keys.theta_key, where, keys.theta));
  r.partial = get_number(s, "partial_rotary_factor", where,
                         get_number(c, keys.partial_key, where, keys.partial));
  r.type = get_string(s, "rope_type", where, get_string(s, "type", where, "default"));
  // Phi-3's first files.
  if (r.type == "su" || (r.type == "yarn" && s.contains("short_factor"))) r.type = "longrope";
  const Kind& kind = kind_of(r.type, where);
  check_settings(s, kind, where);
  r.original_positions = get_int(
      c, "original_max_position_embeddings", where,
      get_int(s, "original_max_position_embeddings", where,
              r.type == "llama3" || r.type == "yarn" || r.type == "longrope" ? positions : 8192));
  const double ratio = static_cast<double>(positions) /
                       static_cast<double>(std::max<int64_t>(1, r.original_positions));
  r.factor = get_number(s, "factor", where,
                        r.type == "yarn" || r.type == "longrope" ? std::max(1.0, ratio) : 1.0);
  r.low_frequency_factor = get_number(s, "low_freq_factor", where, 1.0);
  r.high_frequency_factor = get_number(s, "high_freq_factor", where, 4.0);
  r.beta_fast = get_number(s, "beta_fast", where, 32.0);
  r.beta_slow = get_number(s, "beta_slow", where, 1.0);
  r.truncate = get_bool(s, "truncate", where, true);
  r.attention_factor = get_number(s, "attention_factor", where, 0.0);
  r.mscale = get_number(s, "mscale", where, 0.0);
  r.mscale_all = get_number(s, "mscale_all_dim", where, 0.0);
  const bool good = r.theta > 1 && r.factor >= 1 && r.low_frequency_factor > 0 &&
                    r.high_frequency_factor > r.low_frequency_factor && r.original_positions > 0 &&
                    r.partial > 0 && r.partial <= 1 && r.attention_factor >= 0 && r.mscale >= 0 &&
                    r.mscale_all >= 0;
  if (!good)
    fail(ErrorCode::usage,
         "rope_theta above 1, factor of at least 1, low_freq_factor below high_freq_factor",
         fmt::format("{} in {}", json_brief(s), where), "the values of the published config.json");
  if (r.type == "yarn" && !(r.beta_slow > 0 && r.beta_fast > r.beta_slow))
    fail(ErrorCode::usage, fmt::format("beta_fast above beta_slow in {}", where),
         fmt::format("{} and {}", r.beta_fast, r.beta_slow), "32 and 1, which need not be named");
  if (r.type == "longrope") {
    if (r.original_positions < 2)
      fail(ErrorCode::usage, fmt::format("original_max_position_embeddings above 1 in {}", where),
           std::to_string(r.original_positions), "the values of the published config.json");
    r.short_factors = factors(s, "short_factor", where);
    r.long_factors = factors(s, "long_factor", where);
  }
  return r;
}

void write_rope(const RopeParameters& r, const DecoderKeys& keys, json& c) {
  c[keys.theta_key] = r.theta;
  if (r.partial != keys.partial) c[keys.partial_key] = r.partial;
  c["rope_scaling"] = nullptr;
  if (r.type == "default") return;
  json& s = c["rope_scaling"];
  s = {{"rope_type", r.type}, {"factor", r.factor}};
  if (r.type == "llama3") {
    s["low_freq_factor"] = r.low_frequency_factor;
    s["high_freq_factor"] = r.high_frequency_factor;
    s["original_max_position_embeddings"] = r.original_positions;
  } else if (r.type == "yarn") {
    s["beta_fast"] = r.beta_fast;
    s["beta_slow"] = r.beta_slow;
    s["truncate"] = r.truncate;
    if (r.mscale != 0) s["mscale"] = r.mscale;
    if (r.mscale_all != 0) s["mscale_all_dim"] = r.mscale_all;
    s["original_max_position_embeddings"] = r.original_positions;
  } else if (r.type == "longrope") {
    s["short_factor"] = r.short_factors;
    s["long_factor"] = r.long_factors;
    s["original_max_position_embeddings"] = r.original_positions;
  }
  if (r.attention_factor != 0) s["attention_factor"] = r.attention_factor;
}

}  // namespace snug
