#include "layers/models/base_form.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/core/error.h"
#include "engine/core/precision.h"
#include "engine/core/suggest.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "layers/models/family.h"
#include "layers/models/model.h"
#include "quant/weight_codes.h"

namespace snug {
namespace {

using nlohmann::json;

// Of heads of any family, whether or not the model has one: what configurations name by custom.
constexpr std::string_view kHeads[] = {"lm_head", "score", "classifier"};

std::string path_of(const FilePiece& piece) {
  return piece.names.front().substr(0, piece.names.front().rfind('.'));
}

bool is_skipped(const std::vector<std::string>& skip, std::string_view path) {
  return std::any_of(skip.begin(), skip.end(), [&](const std::string& word) {
    return is_path_end(path, word) ||
           (path.starts_with(word) && path.size() > word.size() && path[word.size()] == '.');
  });
}

bool is_coded(const ParamInfo& p) {
  return p.linear && p.part >= 0;
}

std::vector<std::string> of_blocks(const ModelSpec& spec, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  const Family& family = find_family(spec.family, "model");
  const Model model(spec, parse_precision("fp32"));
  std::vector<std::string> list;
  for (const std::string& name : names) {
    bool found = false;
    for (int i = 0; i < model.params().size() && !found; ++i) {
      if (!is_coded(model.params()[i])) continue;
      for (const FilePiece& piece : family.pieces(model.params()[i], spec))
        found = found || is_skipped({name}, path_of(piece));
    }
    if (found) list.push_back(name);
  }
  return list;
}

// Each word is a module's; a weight rests whole or in codes.
void check_skipped(const ModelSpec& spec, const Family& family,
                   const std::vector<std::string>& skip) {
  if (skip.empty()) return;
  const Model model(spec, parse_precision("fp32"));
  std::vector<std::string> last;
  std::set<std::string> met(std::begin(kHeads), std::end(kHeads));
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    if (!p.linear) continue;
    std::vector<std::string> in, out;
    for (const FilePiece& piece : family.pieces(p, spec)) {
      const std::string path = path_of(piece);
      last.push_back(path.substr(path.rfind('.') + 1));
      for (const std::string& word : skip)
        if (is_skipped({word}, path)) met.insert(word);
      (is_skipped(skip, path) ? in : out).push_back(path);
    }
    if (is_coded(p) && !in.empty() && !out.empty())
      fail(ErrorCode::unsupported,
           fmt::format("llm_int8_skip_modules with all of {}, which are one weight here",
                       fmt::join(in, ", ")),
           fmt::format("{} not among them", fmt::join(out, ", ")),
           fmt::format("llm_int8_skip_modules with {} too",
                       out.front().substr(out.front().rfind('.') + 1)));
  }
  for (const std::string& word : skip)
    if (!met.contains(word))
      fail(ErrorCode::usage, "llm_int8_skip_modules to name modules of the model",
           fmt::format("{}, which none of their paths ends with", word),
           suggestion(word, std::vector<std::string_view>(last.begin(), last.end()),
                      "leave llm_int8_skip_modules out"));
}

}  // namespace

bool is_path_end(std::string_view path, std::string_view name) {
  return path == name || (path.ends_with(name) && path.size() > name.size() &&
                          path[path.size() - name.size() - 1] == '.');
}

std::shared_ptr<const WeightCodes> block_codes(const ModelSpec& spec, const PeftConfig& config) {
  constexpr int64_t kBlock = 64;
  const Family& family = find_family(spec.family, "model");
  check_skipped(spec, family, config.skip_modules);
  const BlockCodes::Rows rows_of = [spec, &family, skip = config.skip_modules](const ParamInfo& p) {
    std::vector<int64_t> rows;
    if (!is_coded(p)) return rows;
    const std::vector<FilePiece> pieces = family.pieces(p, spec);
    if (is_skipped(skip, path_of(pieces.front()))) return rows;
    for (const FilePiece& piece : pieces) rows.push_back(piece.rows);
    return rows;
  };
  const std::string form = base_form(config);
  if (config.codec == "int8")
    return std::make_shared<BlockCodes>(static_cast<float>(config.int8_threshold), rows_of, form);
  return std::make_shared<BlockCodes>(CodeSpec(codec(config.codec), kBlock, config.doubled),
                                      rows_of, form);
}

std::string base_form(const PeftConfig& config) {
  if (config.codec.empty()) return "full";
  std::string form = config.codec == "int8" ? int8_form(config.int8_threshold)
                                            : config.codec + (config.doubled ? "-double" : "");
  const std::set<std::string> skip(config.skip_modules.begin(), config.skip_modules.end());
  if (!skip.empty()) form += fmt::format("/{}", fmt::join(skip, ","));
  return form;
}

void set_base_form(PeftConfig& config, const std::string& form, const std::string& where) {
  constexpr std::string_view kForms[] = {"full", "nf4", "nf4-double", "fp4", "fp4-double", "int8"};
  const std::vector<std::string_view> forms(std::begin(kForms), std::end(kForms));
  const size_t slash = form.find('/');
  const std::string codes = form.substr(0, slash);
  const size_t colon = codes.find(':');
  const std::string word = codes.substr(0, colon);
  double threshold = kInt8Threshold;
  bool known = std::find(forms.begin(), forms.end(), word) != forms.end();
  if (colon != std::string::npos) {
    const char *const first = codes.data() + colon + 1, *const end = codes.data() + codes.size();
    const auto [behind, error] = std::from_chars(first, end, threshold);
    known = word == "int8" && error == std::errc() && behind == end && threshold >= 0 &&
            threshold <= kMostInt8Threshold;
  }
  std::vector<std::string> skip;
  for (size_t at = slash; at != std::string::npos && known;) {
    const size_t next = form.find(',', at + 1);
    skip.push_back(form.substr(at + 1, next == std::string::npos ? next : next - at - 1));
    known = !skip.back().empty() && word != "full";
    at = next;
  }
  if (!known)
    fail(ErrorCode::usage, fmt::format("{} in {}", fmt::join(forms, ", "), where), form,
         suggestion(form, forms, "full"));
  config.doubled = word.ends_with("-double");
  config.codec = word == "full" ? "" : word.substr(0, word.find('-'));
  config.int8_threshold = threshold;
  config.skip_modules = skip;
}

std::vector<std::string> skipped_of_blocks(const ModelSpec& spec,
                                           const std::vector<std::string>& names) {
  check_skipped(spec, find_family(spec.family, "model"), names);
  return of_blocks(spec, names);
}

std::vector<std::string> modules_of_no_block(const ModelSpec& spec) {
  const Model model(spec, parse_precision("fp32"));
  const Family& family = find_family(spec.family, "model");
  std::vector<std::string> list;
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    if (!p.linear || is_coded(p) || p.name.view() == family.embedding) continue;
    list.push_back(path_of(family.pieces(p, spec).front()));
  }
  // That of a tied head is the table's.
  if (spec.head == HeadKind::causal_lm &&
      std::find(list.begin(), list.end(), "lm_head") == list.end())
    list.emplace_back("lm_head");
  return list;
}

std::optional<PeftConfig> folder_form(const std::string& folder, const ModelSpec& spec) {
  const std::string path = folder + "/config.json";
  if (folder.empty() || !file_exists(path)) return {};
  const json config = parse_json_file(path);
  if (!config.is_object() || !config.contains("quantization_config")) return {};
  const json& q = config["quantization_config"];
  const std::string where = path + " / quantization_config";
  require_object(q, where);
  if (get_string(q, "quant_method", where, "") != "bitsandbytes") return {};
  PeftConfig form;
  if (get_bool(q, "load_in_8bit", where, false)) {
    form.codec = "int8";
    form.int8_threshold = get_number(q, "llm_int8_threshold", where, kInt8Threshold);
    if (!(form.int8_threshold >= 0 && form.int8_threshold <= kMostInt8Threshold))
      fail(ErrorCode::data,
           fmt::format("llm_int8_threshold from 0 to {} in {}", kMostInt8Threshold, where),
           fmt::format("{}", form.int8_threshold), "6.0, which is bitsandbytes' own");
  } else if (get_bool(q, "load_in_4bit", where, false)) {
    form.codec = get_string(q, "bnb_4bit_quant_type", where, "fp4");
    form.doubled = get_bool(q, "bnb_4bit_use_double_quant", where, false);
  } else {
    return {};
  }
  const auto skip = q.find("llm_int8_skip_modules");
  if (skip == q.end() || skip->is_null()) return form;
  form.skip_modules = of_blocks(spec, get_strings(q, "llm_int8_skip_modules", where));
  return form;
}

json quantization_config(const PeftConfig& form, const std::vector<std::string>& skip) {
  const bool eight = form.codec == "int8";
  return {{"_load_in_4bit", !eight},
          {"_load_in_8bit", eight},
          {"bnb_4bit_compute_dtype", "float32"},
          {"bnb_4bit_quant_storage", "uint8"},
          {"bnb_4bit_quant_type", eight ? "fp4" : form.codec},
          {"bnb_4bit_use_double_quant", form.doubled},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", skip},
          {"llm_int8_threshold", form.int8_threshold},
          {"load_in_4bit", !eight},
          {"load_in_8bit", eight},
          {"quant_method", "bitsandbytes"}};
}

}  // namespace snug
