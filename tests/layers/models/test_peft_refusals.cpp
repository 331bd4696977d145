// What adapters refuse: words that mean nothing in a model, methods where they are not for, folders of others.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>

#include "tests/layers/models/peft_golden.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::expect_error;
using test::PeftGolden;
using test::PeftRun;

// Keys that mean nothing in a model are refused, with what is near.
TEST(Peft, RefusesWhatDoesNotFit) {
  const PeftGolden g("c");
  const auto refuse = [&](const std::function<void(PeftConfig&)>& change,
                          std::initializer_list<const char*> texts) {
    PeftConfig config;
    change(config);
    expect_error(ErrorCode::usage, texts, [&] { resolve_peft(g.spec(), config); });
  };
  refuse([](PeftConfig& c) { c.target_modules = {"q_porj"}; },
         {"target_modules to name linear modules", "q_porj", "did you mean q_proj?"});
  refuse([](PeftConfig& c) { c.target_modules = {"attention"}; },
         {"all-linear, or some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"});
  refuse([](PeftConfig& c) { c.target_modules = {"q_proj", "lm_head"}; }, {"lm_head"});
  // A name is whole: PEFT asks for a path that is it or ends with a dot and it.
  refuse([](PeftConfig& c) { c.target_modules = {"proj"}; },
         {"target_modules to name linear modules", "found: proj"});
  refuse([](PeftConfig& c) { c.target_modules = {"attn.q_proj"}; },
         {"target_modules to name linear modules", "found: attn.q_proj"});
  refuse([](PeftConfig& c) { c.target_modules = {".*xyz.*"}, c.target_expression = true; },
         {".*xyz.*"});
  refuse([](PeftConfig& c) { c.target_modules = {"(q"}, c.target_expression = true; },
         {"names or a regular expression of modules as target_modules", "(q",
          "target_modules=all-linear"});
  // In a list a word is a name; as one expression it means the whole of a path.
  refuse([](PeftConfig& c) { c.target_modules = {".*_proj"}; }, {".*_proj"});
  refuse([](PeftConfig& c) { c.target_modules = {"q_proj"}, c.target_expression = true; },
         {"target_modules to name linear modules", "q_proj"});
  expect_error(ErrorCode::usage, {"one expression"}, [&] {
    is_expression("target_modules", {"q_proj", ".*v"});
  });
  refuse([](PeftConfig& c) { c.exclude_modules = {"up_porj"}; },
         {"exclude_modules to name linear modules", "up_porj", "did you mean up_proj?"});
  // A file of PEFT may exclude what its model has none of.
  PeftConfig of_folder;
  of_folder.exclude_modules = {"lm_head", "down_proj"};
  of_folder.of_folder = true;
  for (const auto& [layer, adapter] : resolve_peft(g.spec(), of_folder).adapters)
    EXPECT_EQ(layer.find("mlp.c_proj"), std::string::npos) << layer;
  const auto scales = [](std::vector<std::string> targets, std::vector<std::string> inputs) {
    return [=](PeftConfig& c) {
      c.method = "ia3";
      c.target_modules = targets;
      c.feedforward_modules = inputs;
    };
  };
  refuse(scales({"k_proj", "down_proj"}, {"down_porj"}),
         {"feedforward_modules to name linear modules", "did you mean down_proj?"});
  refuse(scales({"k_proj", "down_proj"}, {"o_proj"}),
         {"feedforward_modules to be among target_modules", "o_proj", "of k_proj, down_proj"});
  expect_error(ErrorCode::unsupported,
               {"feedforward_modules that alone read what they read", "gate_proj, beside",
                "which then scales what it makes"},
               [&] {
                 PeftConfig config;
                 scales({"gate_proj"}, {"gate_proj"})(config);
                 resolve_peft(g.spec(), config);
               });
  refuse([](PeftConfig& c) { c.lora_r = 0; }, {"lora_r between 1 and 24", "found: 0", "lora_r=8"});
  refuse([](PeftConfig& c) { c.lora_r = 25; },
         {"the smaller width of model.layers.0.self_attn.q_proj"});
  refuse([](PeftConfig& c) { c.layers_to_transform = {2}; },
         {"layers_to_transform between 0 and 1", "2", "layers_to_transform=[1]"});
  refuse([](PeftConfig& c) { c.modules_to_save = {"v_porj"}; },
         {"modules_to_save to name modules of the model", "v_porj", "did you mean v_proj?"});
  refuse([](PeftConfig& c) { c.modules_to_save = {"xyzzy"}; }, {"some of q_proj, k_proj, "});
  refuse([](PeftConfig& c) { c.alpha_pattern = {{"w_proj", 3.0}}; }, {"alpha_pattern", "w_proj"});
  refuse([](PeftConfig& c) { c.modules_to_save = {"k_proj"}; },
         {"trained together: they are one parameter here", "modules_to_save with both"});
  refuse([](PeftConfig& c) { c.rank_pattern = {{"w_proj", 3}}; }, {"rank_pattern", "w_proj"});
  // What is trained whole has no adapter beside it.
  PeftConfig both;
  both.target_modules = {"all-linear"};
  both.modules_to_save = {"down_proj"};
  const PeftModel whole = resolve_peft(g.spec(), both);
  ASSERT_FALSE(whole.adapters.empty());
  for (const auto& [layer, adapter] : whole.adapters)
    EXPECT_EQ(layer.find("mlp.c_proj"), std::string::npos) << layer;
  const PeftGolden tied("d");
  PeftConfig config;
  config.modules_to_save = {"embed_tokens"};
  expect_error(ErrorCode::unsupported, {"a model whose head is tied to it", "embed_tokens"},
               [&] { resolve_peft(tied.spec(), config); });
}

// The adapter of a fixture with the matrices that all layers share, all of a dtype, as a file in `folder`.
std::string with_matrices(const PeftGolden& g, const Model& model, SafeDType dtype,
                          const TempFolder& folder) {
  std::vector<SafeSpec> specs;
  std::vector<std::vector<float>> values;
  for (const SafeTensor& t : g.file.tensors())
    if (t.name.starts_with("base_model.")) {
      specs.push_back({t.name, dtype, t.shape});
      values.emplace_back(static_cast<size_t>(t.elements()));
      convert(t.dtype, t.data, t.elements(), values.back().data());
    }
  for (const AdapterKind* kind : kinds_of(model.adapters())) {
    const std::vector<AdaptedLayer> layers = layers_of(model.adapters(), *kind);
    for (const AdapterParam& p : kind->shared(layers))
      specs.push_back(
          {"base_model." + p.name.substr(p.name.find('.') + 1), dtype, {p.shape[0], p.shape[1]}});
    for (std::vector<float>& of_one : kind->shared_values(layers))
      values.push_back(std::move(of_one));
  }
  const SafetensorsLayout layout({{"format", "pt"}}, specs);
  SafetensorsWriter writer(folder / kAdapterWeights, layout);
  const auto put = [&]<class T>(const std::vector<float>& from, T) {
    std::vector<T> to;
    for (const float x : from) to.push_back(from_f32<T>(x));
    writer.append(to.data(), static_cast<int64_t>(to.size() * sizeof(T)));
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    writer.begin(specs[i].name);
    dtype == SafeDType::BF16  ? put(values[i], bf16{})
    : dtype == SafeDType::F16 ? put(values[i], f16{})
                              : put(values[i], float{});
    writer.end();
  }
  writer.commit();
  return folder.path();
}

// What a method, or a form of it, is not for.
TEST(Peft, RefusesWhatAMethodIsNotFor) {
  PeftConfig miss;
  miss.method = "miss";
  miss.lora_r = 3;
  miss.target_modules = {"query_key_value"};
  const PeftGolden by_head("e"), tied("d"), shared("al");
  expect_error(ErrorCode::unsupported,
               {"modules whose rows files hold in the model's order for peft: miss",
                "attention.query_key_value", "target_modules without it, or peft=lora"},
               [&] { resolve_peft(by_head.spec(), miss); });
  miss.method = "vera";
  expect_error(ErrorCode::unsupported, {"in the model's order for peft: vera"},
               [&] { resolve_peft(by_head.spec(), miss); });
  PeftConfig mora;
  mora.method = "mora";
  mora.target_modules = {"query_key_value"};
  expect_error(ErrorCode::unsupported, {"in the model's order for peft: mora"},
               [&] { resolve_peft(by_head.spec(), mora); });
  // A side is at most twice what is read, 24 numbers here: (24 + 24) r at most 48.5^2.
  mora.target_modules = {"o_proj"};
  mora.lora_r = 49;
  EXPECT_EQ(resolve_peft(shared.spec(), mora).trained, 2 * 48 * 48);
  mora.lora_r = 50;
  expect_error(
      ErrorCode::usage,
      {"square matrices of peft: mora of a side of at most 48, twice what the module reads",
       "lora_r 50, of side 49 for 24 to 24 of o_proj", "lora_r=49"},
      [&] { resolve_peft(shared.spec(), mora); });
  mora.mora_type = 6;  // whose side is even
  EXPECT_EQ(resolve_peft(shared.spec(), mora).trained, 2 * 48 * 48);
  mora.mora_type = 3;
  expect_error(ErrorCode::unsupported,
               {"mora_type 1, which folds, or 6, which turns", "mora_type 3", "mora_type=6"},
               [&] { resolve_peft(shared.spec(), mora); });
  PeftConfig front;
  front.method = "prompt_tuning";
  front.num_virtual_tokens = 3;
  const PeftGolden encoder("g");
  expect_error(
      ErrorCode::unsupported,
      {"a causal language model for peft: prompt_tuning, whose tokens lie in front of texts",
       "a head for sequence_classification", "peft=lora"},
      [&] { resolve_peft(encoder.spec(), front); });
  ModelSpec few = shared.spec();
  few.V = 5;
  front.method = "prefix_tuning";
  front.num_virtual_tokens = 6;
  expect_error(
      ErrorCode::usage,
      {"num_virtual_tokens between 1 and 5, the model's tokens", "6", "num_virtual_tokens=5"},
      [&] { resolve_peft(few, front); });

  // Bottlenecks behind a sum want one; others stand wherever a branch ends.
  PeftConfig bottleneck;
  bottleneck.method = "pfeiffer";
  expect_error(ErrorCode::unsupported,
               {"a model with norms before its branches for peft: pfeiffer",
                "bert, which has norms behind them", "peft=houlsby"},
               [&] { resolve_peft(encoder.spec(), bottleneck); });
  bottleneck.method = "houlsby";
  resolve_peft(encoder.spec(), bottleneck);
  PeftConfig table;
  table.target_modules = {"embed_tokens", "q_proj"};
  table.codec = "nf4";
  table.init_lora_weights = "loftq";
  expect_error(
      ErrorCode::unsupported,
      {"loftq without model.embed_tokens", "it among target_modules", "init_lora_weights=true"},
      [&] { resolve_peft(tied.spec(), table); });
  table = {};
  table.target_modules = {"embed_tokens"};
  EXPECT_EQ(resolve_peft(tied.spec(), table).adapters.size(), 1u);
  // All linear modules: no table.
  table.target_modules = {"all-linear"};
  EXPECT_EQ(resolve_peft(tied.spec(), table).adapters.count("wte"), 0u);

  // A file that has the matrices of all layers is to have those of its key, rounded where it is.
  PeftRun run(shared);
  const TempFolder folder;
  for (const SafeDType dtype : {SafeDType::F32, SafeDType::BF16, SafeDType::F16})
    EXPECT_TRUE(run.load(with_matrices(shared, run.model(), dtype, folder)).empty());
  std::vector<float> values(2, 0.5f);
  SafetensorsLayout layout({{"format", "pt"}}, {{"base_model.vera_A", SafeDType::F32, {1, 2}}});
  SafetensorsWriter writer(folder / kAdapterWeights, layout);
  writer.begin("base_model.vera_A");
  writer.append(values.data(), 8);
  writer.end();
  writer.commit();
  expect_error(ErrorCode::unsupported,
               {"base_model.vera_A of", "as its projection_prng_key draws it", "another matrix"},
               [&] { run.load(folder.path()); });
}

TEST(Peft, RefusesFoldersOfOthers) {
  const PeftGolden g("c"), other("d");
  PeftRun run(g);
  // Of another model: other paths, other widths.
  expect_error(ErrorCode::data, {"a tensor base_model.model.", "none of that name"},
               [&] { run.load(other.folder.path()); });
  const TempFolder empty;
  // One matrix under two names, of which one was changed.
  const PeftGolden twice("mb");
  PeftRun squares(twice);
  const SafeTensor& copy =
      twice.file.at("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight");
  std::string bytes = read_file(twice.path);
  const size_t place = bytes.rfind(
      std::string(reinterpret_cast<const char*>(copy.data), static_cast<size_t>(copy.bytes)));
  ASSERT_NE(place, std::string::npos);
  bytes[place] = static_cast<char>(bytes[place] ^ 1);
  write_atomic(empty / kAdapterWeights, bytes);
  expect_error(ErrorCode::data,
               {"q_proj.lora_B.weight of", "q_proj.lora_A.weight, of which it is a copy",
                "other values", "as they were saved"},
               [&] { squares.load(empty.path()); });
  expect_error(ErrorCode::usage, {"adapter_config.json and adapter_model.safetensors"},
               [&] { read_adapter_config(empty.path()); });
  const auto with = [&](const char* text) {
    write_atomic(empty / kAdapterConfig, text);
    return [&] { read_adapter_config(empty.path()); };
  };
  expect_error(
      ErrorCode::unsupported,
      {"peft_type LORA, IA3, VERA, MISS, PROMPT_TUNING, P_TUNING, PREFIX_TUNING, HOULSBY or "
       "PFEIFFER",
       "ADALORA",
       "an adapter of LoRA, IA3, VeRA, MiSS, MoRA, prompt-tuning, P-tuning, prefix-tuning, "
       "Houlsby or Pfeiffer"},
      with(R"({"peft_type": "ADALORA"})"));
  expect_error(ErrorCode::unsupported,
               {"without lora_bias, which is not built", "true", "an adapter trained without it"},
               with(R"({"peft_type": "LORA", "lora_bias": true})"));
  expect_error(ErrorCode::unsupported, {"without ensure_weight_tying, which is not built", "true"},
               with(R"({"peft_type": "LORA", "ensure_weight_tying": true})"));
  expect_error(
      ErrorCode::unsupported,
      {"init_lora_weights true, false, gaussian, pissa, olora or pissa_niter_N in", "corda",
       "converted by PEFT to one of LoRA (path_initial_model_for_weight_conversion)"},
      with(R"({"peft_type": "LORA", "init_lora_weights": "corda"})"));
  expect_error(ErrorCode::data, {"bias none, all or lora_only in", "some"},
               with(R"({"peft_type": "LORA", "bias": "some"})"));
  expect_error(ErrorCode::data, {"lora_dropout from 0 to below 1 in", "1"},
               with(R"({"peft_type": "LORA", "lora_dropout": 1})"));
  expect_error(ErrorCode::data, {"r"}, with(R"({"peft_type": "LORA", "r": 0})"));
  write_atomic(empty / kAdapterConfig, R"({"peft_type": "LORA", "news": 3, "use_news": false})");
  std::vector<std::string> notes;
  read_adapter_config(empty.path(), &notes);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("news"), std::string::npos);
}

// A number of adapter_config.json: the least and the first above it that are read.
struct FieldEnds {
  const char* methods;
  const char* key;
  double least, above;
};
constexpr double kMost = 1 << 20;  // ranks, tokens and widths are below
constexpr FieldEnds kFieldEnds[] = {
    {"lora vera miss mora", "r", 1, kMost},
    {"lora", "lora_alpha", -1e12, 1e12},
    {"lora mora", "lora_dropout", 0, 1},
    {"vera", "vera_dropout", 0, 1},
    {"miss", "miss_dropout", 0, 1},
    {"vera", "d_initial", -1e12, 1e12},
    {"vera", "projection_prng_key", 0, 1e18},
    {"mora", "mora_type", 1, 7},
    {"prompt_tuning p_tuning prefix_tuning", "num_virtual_tokens", 1, kMost},
    {"p_tuning prefix_tuning", "encoder_hidden_size", 0, kMost},
    {"p_tuning", "encoder_num_layers", 1, 1024},
    {"houlsby pfeiffer", "reduction_factor", 1, kMost}};

const FieldEnds* ends_of(std::string_view method, std::string_view key) {
  for (const FieldEnds& row : kFieldEnds) {
    const std::string methods = std::string(" ") + row.methods + " ";
    if (row.key == key && methods.find(" " + std::string(method) + " ") != std::string::npos)
      return &row;
  }
  return nullptr;
}

// Every number that any method reads: its ends are values, what lies beyond them is refused by name.
TEST(Peft, NumbersOfFoldersHaveTheirEnds) {
  const TempFolder folder;
  size_t rows = 0;
  for (const AdapterMethod* method : adapter_methods())
    for (const AdapterField& field : method->fields) {
      const bool whole = std::holds_alternative<int64_t AdapterFields::*>(field.value);
      if (!whole && !std::holds_alternative<double AdapterFields::*>(field.value)) continue;
      SCOPED_TRACE(std::string(method->name) + "." + std::string(field.key));
      const FieldEnds* const ends = ends_of(method->name, field.key);
      ASSERT_NE(ends, nullptr);
      ++rows;
      const auto read = [&](double value) {
        nlohmann::json c = {{"peft_type", method->type}};
        if (!method->flag.empty()) c[std::string(method->flag)] = true;
        const std::string key(field.key);
        if (whole)
          c[key] = static_cast<int64_t>(value);
        else
          c[key] = value;
        std::ofstream(folder / kAdapterConfig) << c.dump();
        const PeftConfig config = read_adapter_config(folder.path());
        EXPECT_EQ(config.method, method->name);
        if (whole) {
          EXPECT_EQ(config.*std::get<int64_t AdapterFields::*>(field.value),
                    static_cast<int64_t>(value));
        } else {
          EXPECT_EQ(config.*std::get<double AdapterFields::*>(field.value), value);
        }
      };
      const double one = ends->above > 1e15 ? 1024 : 1;  // of what a double tells apart
      const std::string named = whole ? "an integer from " + fmt::format("{:.0f}", ends->least)
                                      : std::string(field.key) + " from ";
      const auto refused = [&](double value) {
        expect_error(ErrorCode::data, {named.c_str(), ends->key}, [&] { read(value); });
      };
      read(ends->least);
      read(whole ? ends->above - one : std::nextafter(ends->above, 0.0));
      refused(ends->least - (whole ? 1 : std::abs(ends->least) * 1e-6 + 1e-300));
      refused(ends->above);
    }
  size_t known = 0;
  for (const FieldEnds& row : kFieldEnds)
    for (const AdapterMethod* method : adapter_methods())
      known += ends_of(method->name, row.key) == &row;
  EXPECT_EQ(rows, known);
}

}  // namespace
}  // namespace snug
