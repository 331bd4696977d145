// A folder in bitsandbytes' int8: to the byte what transformers saves of the same weights, and what its config says
// is read back.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/io/files.h"
#include "engine/io/json.h"
#include "engine/io/safetensors.h"
#include "layers/models/family.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/errors.h"
#include "tests/support/folders.h"
#include "tests/tools/session_case.h"
#include "tools/convert/coded_rows.h"
#include "tools/convert/export_folder.h"

namespace snug {
namespace {

using nlohmann::json;
using test::expect_error;

class Int8Folders : public testing::Test {
 protected:
  Int8Folders()
      : file_(source_folder() + "/tests/golden/int8_folder.safetensors"),
        config_(parse("config")),
        quantization_(parse("quantization_config")) {}
  json parse(const char* key) const { return parse_json(file_.metadata().at(key), file_.path()); }
  // The tensors whose names begin so, as a model's folder.
  void write(const std::string& prefix, const json& config, const std::string& folder) const {
    std::filesystem::create_directories(folder);
    std::vector<SafeSpec> specs;
    for (const SafeTensor& t : file_.tensors())
      if (t.name.starts_with(prefix))
        specs.push_back({t.name.substr(prefix.size()), t.dtype, t.shape});
    const SafetensorsLayout layout({{"format", "pt"}}, specs);
    SafetensorsWriter writer(folder + "/model.safetensors", layout);
    for (const SafeSpec& s : layout.tensors()) {
      const SafeTensor& t = file_.at(prefix + s.name);
      writer.write(s.name, t.data, t.bytes);
    }
    writer.commit();
    write_atomic(folder + "/config.json", config.dump());
  }

  SafetensorsReader file_;
  json config_, quantization_;
  TempFolder folder_;
};

TEST_F(Int8Folders, AreWhatTransformersSaves) {
  write("plain/", config_, folder_ / "plain");
  export_folder(folder_ / "plain", DType::f16, folder_ / "coded", "", "auto", "int8:4.5/o_proj");
  const SafetensorsReader made(folder_ / "coded/model.safetensors");
  size_t theirs = 0;
  for (const SafeTensor& t : file_.tensors()) {
    constexpr std::string_view kCoded = "coded/";
    if (!t.name.starts_with(kCoded)) continue;
    ++theirs;
    const SafeTensor& own = made.at(t.name.substr(kCoded.size()));
    ASSERT_EQ(own.dtype, t.dtype) << t.name;
    ASSERT_EQ(own.shape, t.shape) << t.name;
    EXPECT_EQ(std::memcmp(own.data, t.data, static_cast<size_t>(t.bytes)), 0) << t.name;
  }
  EXPECT_EQ(made.tensors().size(), theirs);
  const json config = parse_json_file(folder_ / "coded/config.json");
  EXPECT_EQ(config.at("quantization_config"), quantization_);
  EXPECT_EQ(config.at("torch_dtype"), "float16");
}

TEST_F(Int8Folders, SayHowTheyRest) {
  json with = config_;
  with["quantization_config"] = quantization_;
  write("coded/", with, folder_ / "coded");
  const ModelSpec spec = resolve_model(folder_ / "coded", "").spec;
  const std::optional<PeftConfig> form = folder_form(folder_ / "coded", spec);
  ASSERT_TRUE(form);
  EXPECT_EQ(base_form(*form), "int8:4.5/o_proj") << "without the head, which rests whole anyway";
  EXPECT_FALSE(folder_form("", spec));
  const auto of = [&](const json& q) {
    with["quantization_config"] = q;
    write_atomic(folder_ / "coded/config.json", with.dump());
    return folder_form(folder_ / "coded", spec);
  };
  EXPECT_FALSE(of({{"quant_method", "gptq"}}));
  EXPECT_EQ(base_form(*of({{"quant_method", "bitsandbytes"},
                           {"load_in_4bit", true},
                           {"bnb_4bit_quant_type", "nf4"},
                           {"bnb_4bit_use_double_quant", true},
                           {"llm_int8_skip_modules", nullptr}})),
            "nf4-double");
  json wrong = quantization_;
  wrong["llm_int8_threshold"] = -1;
  expect_error(ErrorCode::data, {"llm_int8_threshold from 0 to 65504 in ", "-1", "6.0"},
               [&] { of(wrong); });
  wrong["llm_int8_threshold"] = 6;
  wrong["llm_int8_skip_modules"] = {1};
  expect_error(ErrorCode::data, {"llm_int8_skip_modules"}, [&] { of(wrong); });
}

// Modules that are one weight here rest whole or in codes together.
TEST_F(Int8Folders, SkippedModulesAreWholeWeights) {
  write("plain/", config_, folder_ / "plain");
  const ModelSpec spec = resolve_model(folder_ / "plain", "").spec;
  PeftConfig form;
  form.codec = "nf4";
  const auto coded = [&](std::vector<std::string> skip) {
    form.skip_modules = std::move(skip);
    const auto codes = block_codes(spec, form);
    const Model model(spec, parse_precision("fp32"));
    int64_t count = 0;
    for (int i = 0; i < model.params().size(); ++i)
      count += !codes->rows(model.params()[i]).empty();
    return count;
  };
  EXPECT_EQ(coded({}),
            8);  // of two layers: queries, keys and values; their output; gate and up; down
  EXPECT_EQ(coded({"down_proj"}), 6);
  EXPECT_EQ(coded({"layers.1.mlp.down_proj", "lm_head"}), 7);
  EXPECT_EQ(coded({"model.layers.0"}), 4);
  EXPECT_EQ(coded({"q_proj", "k_proj", "v_proj"}), 6);
  expect_error(ErrorCode::unsupported,
               {"llm_int8_skip_modules with all of model.layers.0.self_attn.q_proj",
                "model.layers.0.self_attn.k_proj, model.layers.0.self_attn.v_proj not among them",
                "llm_int8_skip_modules with k_proj too"},
               [&] { coded({"q_proj"}); });
  expect_error(ErrorCode::usage, {"name modules of the model", "q_prj", "q_proj"},
               [&] { coded({"q_prj"}); });
}

TEST_F(Int8Folders, RefuseWhatTransformersHasOtherwise) {
  expect_error(ErrorCode::unsupported, {"(out, in) for int8", "gpt2", "--dtype f16"},
               [&] { CodedRows(test::tiny_spec({}), "int8"); });
  write("plain/", config_, folder_ / "plain");
  ModelSpec spec = resolve_model(folder_ / "plain", "").spec;
  spec.head = HeadKind::sequence_classification;
  expect_error(ErrorCode::unsupported,
               {"a causal language model to write in int8", "a head for sequence",
                "--dtype f16, which load_in_8bit=true codes as it is read"},
               [&] { CodedRows(spec, "int8"); });
  const std::vector<float> values = {1, 7e4f};
  SafeTensor weight{
      "x.weight", SafeDType::F32, {1, 2}, reinterpret_cast<const uint8_t*>(values.data()), 8};
  std::vector<SafeSpec> specs;
  CodedRows::add_specs(specs, {"x.weight", SafeDType::F16, {1, 2}});
  const SafetensorsLayout layout({{"format", "pt"}}, specs);
  SafetensorsWriter writer(folder_ / "x.safetensors", layout);
  spec.head = HeadKind::causal_lm;
  expect_error(ErrorCode::data,
               {"weights that fp16 can hold, 65504 at most, to be coded",
                "element 1 of x.weight that is 70000", "--dtype bf16 or f32"},
               [&] { CodedRows(spec, "int8").write(writer, weight, 1); });
}

}  // namespace
}  // namespace snug
