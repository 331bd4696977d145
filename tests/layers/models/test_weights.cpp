// Initialisation, and weights on their way into files and back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "layers/models/freeze.h"
#include "layers/models/peft.h"
#include "layers/models/weights.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/errors.h"
#include "tests/support/folders.h"

namespace snug {
namespace {

ModelSpec spec_of(bool tied = true) {
  return resolve_model("", std::string(R"({"type": "gpt2", "vocab_size": 200, "n_positions": 24,
    "n_embd": 40, "n_head": 4, "n_layer": 3, "n_inner": 300, "tie_word_embeddings": )") +
                               (tied ? "true}" : "false}"))
      .spec;
}
// Matrices of more than 65536 elements, stored as they are and transposed: they are written in
// several blocks, none of which divides the rows.
ModelSpec large_spec() {
  return resolve_model("", R"({"type": "gpt2", "vocab_size": 600, "n_positions": 24,
    "n_embd": 160, "n_head": 4, "n_layer": 1, "n_inner": 700})")
      .spec;
}

// Host memory for the flat parameter range.
struct Flat {
  explicit Flat(const Model& model, float fill = 7.0f)
      : values(static_cast<size_t>(model.params().flat_elements()), fill) {
    view.data = values.data();
    view.shape = {model.params().flat_elements()};
    view.dtype = DType::f32;
    view.place = Place::cpu;
    view.name = Name("flat");
  }
  std::vector<float> values;
  View view;
};

// Runs save_weights as training does: recorded, packed, run.
void save(const Model& model, const Flat& flat, const std::string& path, DType dtype) {
  const SafetensorsLayout layout = weights_layout(model, dtype);
  Schedule schedule;
  schedule.add(Name("save"), -1, false);
  for (const Place place : {Place::plan, Place::cpu}) {
    Context ctx(place, {.threads = 1, .guard_bytes = 256, .poison = true});
    if (place == Place::cpu) {
      schedule.pack();
      ctx.reserve(schedule);
    }
    ctx.program(schedule, 0, [&] {
      const Tensor staging =
          ctx.tensor(Name("staging"), {save_staging_bytes(model)}, DType::u8, Category::workspace);
      save_weights(ctx, model, layout, flat.view, staging, path);
    });
  }
}

bool equal(const Flat& a, const Flat& b) {
  return std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0;
}

TEST(InitParameters, MeansDeviationsAndPadding) {
  // Wide enough for statistics: 4 standard errors of the mean and of the deviation are allowed.
  const ModelSpec spec =
      resolve_model("", R"({"type": "gpt2", "vocab_size": 1000, "n_positions": 64,
    "n_embd": 64, "n_head": 4, "n_layer": 8})")
          .spec;
  const Model model(spec, parse_precision("fp32"));
  Flat flat(model);
  init_parameters(model.params(), flat.view, 42, 1);
  int normals = 0, scaled = 0;
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    const std::string name = p.name.str();
    const float* w = flat.values.data() + p.offset;
    const int64_t n = p.real_elements();
    double sum = 0, squares = 0;
    for (int64_t j = 0; j < n; ++j) {
      sum += static_cast<double>(w[j]);
      squares += static_cast<double>(w[j]) * static_cast<double>(w[j]);
    }
    const auto count = static_cast<double>(n);
    if (name.ends_with(".bias")) {
      EXPECT_EQ(squares, 0.0) << name;
    } else if (name.find("ln_") != std::string::npos) {
      EXPECT_EQ(sum, count) << name;
      EXPECT_EQ(squares, count) << name;
    } else {
      // GPT-2: 0.02, and 0.02 / sqrt(2 L) where a projection ends in the residual stream.
      const bool residual = name.ends_with("c_proj.weight");
      const double std = residual ? 0.02 / std::sqrt(2.0 * 8) : 0.02;
      EXPECT_NEAR(sum / count, 0.0, 4 * std / std::sqrt(count)) << name;
      EXPECT_NEAR(std::sqrt(squares / count) / std, 1.0, 4 / std::sqrt(2 * count)) << name;
      ++normals;
      scaled += residual;
    }
    // Rows V..Vp and the gap to the next parameter.
    const int64_t end = i + 1 < model.params().size() ? model.params()[i + 1].offset
                                                      : model.params().flat_elements();
    for (int64_t j = p.offset + n; j < end; ++j)
      ASSERT_EQ(flat.values[static_cast<size_t>(j)], 0.0f) << name;
  }
  EXPECT_EQ(normals, 2 + 8 * 4);
  EXPECT_EQ(scaled, 8 * 2);
  EXPECT_EQ(model.params()[0].shape[0] - model.params()[0].rows, 24) << "there was padding to test";
}

TEST(InitParameters, DependsOnTheSeedAloneAndNoTwoParametersAreEqual) {
  const Model model(spec_of(false), parse_precision("fp32"));
  Flat one(model), two(model), other(model);
  init_parameters(model.params(), one.view, 42, 1);
  init_parameters(model.params(), two.view, 42, 3);
  init_parameters(model.params(), other.view, 43, 1);
  EXPECT_TRUE(equal(one, two)) << "threads";
  EXPECT_FALSE(equal(one, other));
  const ParamTable& t = model.params();
  for (int i = 0; i < t.size(); ++i)
    for (int j = 0; j < i; ++j)
      if (t[i].init == Init::normal && t[j].init == Init::normal) {
        // Scaled alike or not, the first draws differ in ratio.
        const float *a = one.values.data() + t[i].offset, *b = one.values.data() + t[j].offset;
        EXPECT_GT(std::fabs(a[0] * b[1] - a[1] * b[0]), 1e-12f) << t[i].name.view();
      }
}

// Norms begin as the identity: Gemma's weights, to which one is added, at zero.
TEST(InitParameters, NormsBeginAsTheIdentity) {
  for (const bool offset : {false, true}) {
    const std::string type = offset ? "gemma" : "llama";
    const ModelSpec spec =
        resolve_model("", "{\"type\": \"" + type +
                              "\", \"vocab_size\": 8, \"hidden_size\": 8, \"head_dim\": 4, "
                              "\"intermediate_size\": 8, \"num_hidden_layers\": 1, "
                              "\"num_attention_heads\": 2, \"num_key_value_heads\": 1}")
            .spec;
    const Model model(spec, parse_precision("fp32"));
    Flat flat(model);
    init_parameters(model.params(), flat.view, 1, 1);
    int norms = 0;
    for (int i = 0; i < model.params().size(); ++i) {
      const ParamInfo& p = model.params()[i];
      if (p.name.view().find("ln_") == std::string_view::npos) continue;
      ++norms;
      EXPECT_EQ(flat.values[static_cast<size_t>(p.offset)], offset ? 0.0f : 1.0f) << p.name.view();
    }
    EXPECT_EQ(norms, 3);
  }
}

TEST(Weights, RoundTripIsExact) {
  for (const bool tied : {true, false}) {
    const TempFolder folder;
    const Model model(spec_of(tied), parse_precision("fp32"));
    Flat flat(model), back(model);
    init_parameters(model.params(), flat.view, 1, 1);
    save(model, flat, folder / "model.safetensors", DType::f32);
    for (const int threads : {1, 2}) {
      EXPECT_TRUE(load_weights(model, folder.path(), back.view, threads).empty());
      EXPECT_TRUE(equal(flat, back)) << (tied ? "tied" : "untied");
    }
    // One named file is as good as its folder.
    back = Flat(model);
    load_weights(model, folder / "model.safetensors", back.view, 1);
    EXPECT_EQ(back.values, flat.values);
    // The file is transformers': its names, (in, out) matrices, no padding, no second tied head.
    const SafetensorsReader file(folder / "model.safetensors");
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.at("transformer.wte.weight").shape, (std::vector<int64_t>{200, 40}));
    EXPECT_EQ(file.at("transformer.h.1.attn.c_attn.weight").shape, (std::vector<int64_t>{40, 120}));
    EXPECT_EQ(file.at("transformer.h.1.mlp.c_proj.weight").shape, (std::vector<int64_t>{300, 40}));
    EXPECT_EQ(file.at("transformer.h.2.mlp.c_fc.bias").shape, (std::vector<int64_t>{300}));
    EXPECT_EQ(file.find("lm_head.weight") == nullptr, tied);
    EXPECT_EQ(file.tensors().size(), 2u + 3 * 12 + 2 + (tied ? 0 : 1));
    // Element (out, in) of ours is (in, out) of the file's.
    const ParamInfo& p = model.params()[model.params().find("h.1.attn.c_attn.weight")];
    float value;
    std::memcpy(&value, file.at("transformer.h.1.attn.c_attn.weight").data + (5 * 120 + 77) * 4, 4);
    EXPECT_EQ(value, flat.values[static_cast<size_t>(p.offset + 77 * 40 + 5)]);
  }
}

// Every tensor of a published file is written with the bits it was read with, whatever its rows' order
// and whatever it shares a parameter with.
TEST(Weights, DecodersAreWrittenAsTheyWereRead) {
  for (char name = 'a'; name <= 'x'; ++name) {
    const std::string path = source_folder() + "/tests/golden/decoder_" + name + ".safetensors";
    const SafetensorsReader file(path);
    const nlohmann::json config = parse_json(file.metadata().at("config"), path);
    const Model model(
        find_family(config.at("model_type").get<std::string>(), path).parse(config, path, false),
        parse_precision("fp32"));
    const TempFolder folder;
    Flat read(model), again(model);
    load_weights(model, path, read.view, 1);
    save(model, read, folder / "model.safetensors", DType::f32);
    load_weights(model, folder.path(), again.view, 1);
    EXPECT_TRUE(equal(read, again)) << name;
    const SafetensorsReader written(folder / "model.safetensors");
    for (const SafeTensor& t : written.tensors()) {
      const SafeTensor& from = file.at(t.name);
      ASSERT_EQ(t.shape, from.shape) << t.name;
      EXPECT_EQ(std::memcmp(t.data, from.data, static_cast<size_t>(t.bytes)), 0) << t.name;
    }
  }
}

// bias: false of GPT-2: files may lack the biases, ours have them as zeros, and others are refused.
TEST(Weights, BiasesThatAConfigSaysAreNotThere) {
  const std::string path = "config.json";
  const Family& family = find_family("gpt2", path);
  nlohmann::json config = family.write(spec_of(), "float32");
  EXPECT_FALSE(config.contains("bias"));
  config["bias"] = false;
  const ModelSpec spec = family.parse(config, path, false);
  EXPECT_TRUE(spec.zero_biases);
  EXPECT_EQ(family.write(spec, "float32")["bias"], false);
  const Model model(spec, parse_precision("fp32"), resolve_freeze(spec, {}).says);
  for (int i = 0; i < model.params().size(); ++i)
    EXPECT_NE(model.params()[i].trainable, model.params()[i].name.view().ends_with(".bias"));
  Flat flat(model), back(model);
  init_parameters(model.params(), flat.view, 1, 1);
  const TempFolder whole, bare;
  save(model, flat, whole / "model.safetensors", DType::f32);
  {
    const SafetensorsReader file(whole / "model.safetensors");
    EXPECT_EQ(file.tensors().size(), 2u + 3 * 12 + 2) << "as transformers has them";
    std::vector<SafeSpec> specs;
    for (const SafeTensor& t : file.tensors())
      if (!t.name.ends_with(".bias")) specs.push_back({t.name, t.dtype, t.shape});
    const SafetensorsLayout layout({{"format", "pt"}}, specs);
    SafetensorsWriter writer(bare / "model.safetensors", layout);
    for (const SafeSpec& s : specs)
      writer.write(s.name, file.at(s.name).data, file.at(s.name).bytes);
    writer.commit();
  }
  EXPECT_TRUE(load_weights(model, bare.path(), back.view, 1).empty());
  EXPECT_TRUE(equal(flat, back));
  EXPECT_TRUE(missing_weights(model, bare.path()).empty());
  const Model biased(spec_of(), parse_precision("fp32"));
  test::expect_error(ErrorCode::data,
                     {"a tensor transformer.h.0.ln_1.bias", "\"bias\": false in its config.json"},
                     [&] { load_weights(biased, bare.path(), back.view, 1); });
  const ParamInfo& one = model.params()[model.params().find("h.1.mlp.c_fc.bias")];
  flat.values[static_cast<size_t>(one.offset + 3)] = 0.5f;
  save(model, flat, whole / "model.safetensors", DType::f32);
  test::expect_error(ErrorCode::data,
                     {"biases of zero in", "a value in transformer.h.1.mlp.c_fc.bias that is not",
                      "bias: true in its config.json"},
                     [&] { load_weights(model, whole.path(), back.view, 1); });
  PeftConfig peft;
  peft.bias = "all";
  test::expect_error(ErrorCode::usage,
                     {"no bias to be trained of a model whose config says bias: false",
                      "transformer.h.0.ln_1.bias", "model.bias=true, or bias=none"},
                     [&] { resolve_peft(spec, peft); });
  test::expect_error(ErrorCode::usage,
                     {"parameters that can be trained as what unfreeze matches", "bias: false",
                      "names of weights"},
                     [&] {
                       resolve_freeze(spec, {"h.0", "h.0.*bias"});
                     });
}

TEST(Weights, LargeMatricesAreWrittenInBlocks) {
  const TempFolder folder;
  const Model model(large_spec(), parse_precision("fp32"));
  Flat flat(model), back(model);
  EXPECT_LE(save_staging_bytes(model), 256 << 10);
  init_parameters(model.params(), flat.view, 4, 1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    save(model, flat, folder / "model.safetensors", dtype);
    load_weights(model, folder.path(), back.view, 1);
    for (size_t i = 0; i < flat.values.size(); ++i) {
      const float expected =
          dtype == DType::f32 ? flat.values[i] : to_f32(from_f32<bf16>(flat.values[i]));
      ASSERT_EQ(back.values[i], expected) << to_string(dtype) << " element " << i;
    }
  }
}

TEST(Weights, Bf16FilesHoldTheNearestValues) {
  const TempFolder folder;
  const Model model(spec_of(false), parse_precision("bf16"));
  Flat flat(model), back(model);
  init_parameters(model.params(), flat.view, 2, 1);
  save(model, flat, folder / "model.safetensors", DType::bf16);
  EXPECT_EQ(SafetensorsReader(folder / "model.safetensors").at("transformer.wpe.weight").dtype,
            SafeDType::BF16);
  load_weights(model, folder.path(), back.view, 2);
  int64_t rounded = 0;
  for (size_t i = 0; i < flat.values.size(); ++i) {
    ASSERT_EQ(back.values[i], to_f32(from_f32<bf16>(flat.values[i]))) << i;
    rounded += back.values[i] != flat.values[i];
  }
  EXPECT_GT(rounded, 1000);
}

// Straight into bf16 weights: the same values as through fp32, gaps and padding included.
TEST(Weights, LoadIntoBf16) {
  const TempFolder folder;
  const Model model(spec_of(false), parse_precision("bf16"));
  Flat flat(model), wide(model);
  init_parameters(model.params(), flat.view, 5, 1);
  std::vector<bf16> narrow(flat.values.size());
  View view = flat.view;
  view.data = narrow.data();
  view.dtype = DType::bf16;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    save(model, flat, folder / "model.safetensors", dtype);
    load_weights(model, folder.path(), wide.view, 1);
    for (const int threads : {1, 2}) {
      std::fill(narrow.begin(), narrow.end(), bf16{0x7fc0});
      EXPECT_TRUE(load_weights(model, folder.path(), view, threads).empty());
      for (size_t i = 0; i < narrow.size(); ++i)
        ASSERT_EQ(narrow[i].bits, from_f32<bf16>(wide.values[i]).bits)
            << to_string(dtype) << " element " << i;
    }
  }
}

// Into f16 the same, and what it cannot hold is refused by name.
TEST(Weights, LoadIntoF16) {
  const TempFolder folder;
  const Model model(spec_of(false), parse_precision("fp16"));
  Flat flat(model), wide(model);
  init_parameters(model.params(), flat.view, 5, 1);
  std::vector<f16> narrow(flat.values.size());
  View view = flat.view;
  view.data = narrow.data();
  view.dtype = DType::f16;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    save(model, flat, folder / "model.safetensors", dtype);
    load_weights(model, folder.path(), wide.view, 1);
    std::fill(narrow.begin(), narrow.end(), f16{0x7e00});
    EXPECT_TRUE(load_weights(model, folder.path(), view, 2).empty());
    for (size_t i = 0; i < narrow.size(); ++i)
      ASSERT_EQ(narrow[i].bits, from_f32<f16>(wide.values[i]).bits)
          << to_string(dtype) << " element " << i;
  }
  for (const float large : {65520.0f, -1e9f, std::numeric_limits<float>::infinity()}) {
    flat.values[static_cast<size_t>(model.params()[1].offset)] = large;
    save(model, flat, folder / "model.safetensors", DType::f32);
    test::expect_error(ErrorCode::data,
                       {"weights that fp16 can hold, 65504 at most", "wpe.weight",
                        folder.path().c_str(), "precision=bf16, or fp32"},
                       [&] { load_weights(model, folder.path(), view, 1); });
  }
}

// Tensors of a file, to be written again under other names, in other files.
struct Copy {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
  SafeDType dtype = SafeDType::F32;
};
std::vector<Copy> tensors_of(const std::string& path) {
  const SafetensorsReader file(path);
  std::vector<Copy> copies;
  for (const SafeTensor& t : file.tensors())
    copies.push_back({t.name, t.shape, {t.data, t.data + t.bytes}});
  return copies;
}
void write(const std::string& path, const std::vector<Copy>& copies) {
  std::vector<SafeSpec> specs;
  for (const Copy& c : copies) specs.push_back({c.name, c.dtype, c.shape});
  const SafetensorsLayout layout({{"format", "pt"}}, specs);
  SafetensorsWriter writer(path, layout);
  for (const Copy& c : copies)
    writer.write(c.name, c.bytes.data(), static_cast<int64_t>(c.bytes.size()));
  writer.commit();
}
std::string without_prefix(const std::string& name) {
  const std::string prefix = "transformer.";
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

class WeightFiles : public testing::Test {
 protected:
  WeightFiles() : model_(spec_of(), parse_precision("fp32")), flat_(model_), back_(model_) {
    init_parameters(model_.params(), flat_.view, 3, 1);
    save(model_, flat_, folder_ / "model.safetensors", DType::f32);
    copies_ = tensors_of(folder_ / "model.safetensors");
  }
  std::vector<std::string> load() { return load_weights(model_, folder_.path(), back_.view, 1); }

  TempFolder folder_;
  Model model_;
  Flat flat_, back_;
  std::vector<Copy> copies_;
};

TEST_F(WeightFiles, NamesWithAndWithoutThePrefix) {
  for (Copy& c : copies_) c.name = without_prefix(c.name);
  write(folder_ / "model.safetensors", copies_);
  EXPECT_TRUE(load().empty());
  EXPECT_TRUE(equal(flat_, back_));
}

TEST_F(WeightFiles, ShardsAreReadThroughTheirIndex) {
  std::filesystem::remove(folder_ / "model.safetensors");
  const std::vector<Copy> first(copies_.begin(), copies_.begin() + 11),
      second(copies_.begin() + 11, copies_.end());
  const char* names[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
  write(folder_ / names[0], first);
  write(folder_ / names[1], second);
  nlohmann::json map = nlohmann::json::object();
  for (const Copy& c : first) map[c.name] = names[0];
  for (const Copy& c : second) map[c.name] = names[1];
  write_json_file(folder_ / "model.safetensors.index.json",
                  {{"metadata", {{"total_size", 1}}}, {"weight_map", map}});
  EXPECT_TRUE(load().empty());
  EXPECT_TRUE(equal(flat_, back_));
  std::filesystem::remove(folder_ / names[1]);
  EXPECT_ERROR(load(), ErrorCode::data, names[1], "no such file", "missing shard");
}

TEST_F(WeightFiles, KnownLeftoversAreSilentAndStrangersAreReported) {
  copies_.push_back({"transformer.h.0.attn.bias", {1, 1, 2, 2}, std::vector<uint8_t>(16)});
  copies_.push_back({"transformer.h.0.attn.masked_bias", {}, std::vector<uint8_t>(4)});
  copies_.push_back({"lm_head.weight", {200, 40}, copies_.front().bytes});
  write(folder_ / "model.safetensors", copies_);
  EXPECT_TRUE(load().empty());
  EXPECT_TRUE(equal(flat_, back_));
  copies_.push_back({"transformer.h.7.mlp.c_fc.bias", {300}, std::vector<uint8_t>(1200)});
  write(folder_ / "model.safetensors", copies_);
  const std::vector<std::string> warnings = load();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("transformer.h.7.mlp.c_fc.bias is not part of the model"),
            std::string::npos);
  EXPECT_NE(warnings[0].find(folder_.path()), std::string::npos);
}

// Whose config calls the head tied; what the files hold decides.
class TiedFolder : public WeightFiles {
 protected:
  TiedFolder() { save_model_config(model_, folder_.path(), DType::f32); }
  ModelSource settled() {
    write(folder_ / "model.safetensors", copies_);
    ModelSource source = resolve_model(folder_.path(), "");
    notes_ = settle_head(source);
    return source;
  }
  std::vector<std::string> notes_;
};

TEST_F(TiedFolder, AHeadOfTheSameBytesIsNothingOfItsOwn) {
  copies_.push_back({"lm_head.weight", {200, 40}, copies_.front().bytes});
  EXPECT_TRUE(settled().spec.tied);
  EXPECT_TRUE(notes_.empty());
}

TEST_F(TiedFolder, AHeadThatDiffersIsKeptAndThatIsSaid) {
  ASSERT_EQ(copies_.front().name, "transformer.wte.weight");
  std::vector<uint8_t> other = copies_.front().bytes;
  other[other.size() - 1] ^= 0x40;  // the last element alone
  copies_.push_back({"lm_head.weight", {200, 40}, other});
  const ModelSource source = settled();
  EXPECT_FALSE(source.spec.tied);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("lm_head.weight differs from transformer.wte.weight"), std::string::npos)
      << notes_[0];
  // Both are read, each from its own tensor.
  const Model untied(source.spec, parse_precision("fp32"));
  Flat flat(untied);
  EXPECT_TRUE(load_weights(untied, folder_.path(), flat.view, 1).empty());
  const ParamInfo& head = untied.params()[untied.params().find("lm_head.weight")];
  EXPECT_EQ(std::memcmp(flat.values.data() + head.offset, other.data(), other.size()), 0);
  EXPECT_EQ(std::memcmp(flat.values.data(), copies_.front().bytes.data(), other.size()), 0);
  // A tied model that reads them all the same says what it leaves.
  ASSERT_EQ(load().size(), 1u);
  // What is written of it is read as it is.
  TempFolder out;
  save(untied, flat, out / "model.safetensors", DType::f32);
  save_model_config(untied, out.path(), DType::f32);
  ModelSource again = resolve_model(out.path(), "");
  EXPECT_TRUE(settle_head(again).empty());
  EXPECT_FALSE(again.spec.tied);
}

// Values count, not how they are stored: bf16 is the upper half of an f32.
TEST_F(TiedFolder, AHeadOfTheSameValuesInAnotherDtypeIsNothingOfItsOwn) {
  std::vector<uint8_t>& table = copies_.front().bytes;
  std::vector<uint8_t> head;
  for (size_t i = 0; i < table.size(); i += 4) {
    table[i] = table[i + 1] = 0;
    head.insert(head.end(), {table[i + 2], table[i + 3]});
  }
  copies_.push_back({"lm_head.weight", {200, 40}, head, SafeDType::BF16});
  EXPECT_TRUE(settled().spec.tied);
  EXPECT_TRUE(notes_.empty());
  copies_.back().bytes[head.size() - 1] ^= 0x40;  // the last element alone
  EXPECT_FALSE(settled().spec.tied);
  EXPECT_EQ(notes_.size(), 1u);
}

TEST_F(TiedFolder, AHeadOfAnotherShapeIsRefused) {
  copies_.push_back({"lm_head.weight", {100, 80}, copies_.front().bytes});
  EXPECT_ERROR(settled(), ErrorCode::data,
               "lm_head.weight of shape (200,40) in " + folder_.path() +
                   ", as the embedding that it is tied to",
               "(100,80)", "config.json and the weights belong together");
}

TEST_F(TiedFolder, WhicheverIsThereStandsForBoth) {
  copies_.front().name = "lm_head.weight";
  const ModelSource source = settled();
  EXPECT_TRUE(source.spec.tied);
  EXPECT_TRUE(notes_.empty());
  EXPECT_TRUE(load().empty());
  EXPECT_TRUE(equal(flat_, back_));
  // An untied model has no embedding there.
  const Model untied(spec_of(false), parse_precision("fp32"));
  Flat flat(untied);
  EXPECT_ERROR(load_weights(untied, folder_.path(), flat.view, 1), ErrorCode::data,
               "transformer.wte.weight", "none of that name", "config.json");
}

TEST_F(TiedFolder, AHeadInAnotherShardCounts) {
  std::vector<uint8_t> other(200 * 40 * 4);
  write(folder_ / "model-00001-of-00002.safetensors", copies_);
  write(folder_ / "model-00002-of-00002.safetensors", {{"lm_head.weight", {200, 40}, other}});
  nlohmann::json map = {{"lm_head.weight", "model-00002-of-00002.safetensors"}};
  for (const Copy& c : copies_) map[c.name] = "model-00001-of-00002.safetensors";
  write_json_file(folder_ / "model.safetensors.index.json",
                  {{"metadata", {{"total_size", 1}}}, {"weight_map", map}});
  std::filesystem::remove(folder_ / "model.safetensors");
  ModelSource source = resolve_model(folder_.path(), "");
  EXPECT_EQ(settle_head(source).size(), 1u);
  EXPECT_FALSE(source.spec.tied);
}

TEST_F(WeightFiles, AMissingTensorIsNamed) {
  std::erase_if(copies_, [](const Copy& c) { return c.name == "transformer.h.1.ln_2.bias"; });
  write(folder_ / "model.safetensors", copies_);
  EXPECT_ERROR(load(), ErrorCode::data, "transformer.h.1.ln_2.bias in " + folder_.path(),
               "none of that name", "config.json and the weights belong together");
  // An untied model wants its head.
  const Model untied(spec_of(false), parse_precision("fp32"));
  Flat flat(untied);
  save(model_, flat_, folder_ / "model.safetensors", DType::f32);
  EXPECT_ERROR(load_weights(untied, folder_.path(), flat.view, 1), ErrorCode::data,
               "lm_head.weight", "none of that name", "config.json");
}

TEST_F(WeightFiles, AWrongShapeIsShownBesideTheRightOne) {
  for (Copy& c : copies_)
    if (c.name == "transformer.h.0.mlp.c_fc.weight") c.shape = {300, 40};
  write(folder_ / "model.safetensors", copies_);
  EXPECT_ERROR(load(), ErrorCode::data, "transformer.h.0.mlp.c_fc.weight of shape (40,300)",
               "(300,40)", "config.json and the weights belong together");
}

TEST_F(WeightFiles, IntegersAreNotWeights) {
  std::vector<SafeSpec> specs;
  for (const Copy& c : copies_)
    specs.push_back(
        {c.name, c.name == "transformer.wpe.weight" ? SafeDType::I32 : SafeDType::F32, c.shape});
  const SafetensorsLayout layout({{"format", "pt"}}, specs);
  SafetensorsWriter writer(folder_ / "model.safetensors", layout);
  for (const Copy& c : copies_)
    writer.write(c.name, c.bytes.data(), static_cast<int64_t>(c.bytes.size()));
  writer.commit();
  EXPECT_ERROR(load(), ErrorCode::unsupported, "F64, F32, F16 or BF16",
               "transformer.wpe.weight of dtype I32", "convert");
}

TEST_F(WeightFiles, NoFileNoWeights) {
  std::filesystem::remove(folder_ / "model.safetensors");
  EXPECT_ERROR(load(), ErrorCode::data, "model.safetensors", "", "");
}

TEST_F(WeightFiles, ConfigBesideTheWeightsReadsBack) {
  save_model_config(model_, folder_.path(), DType::bf16);
  const ModelSource s = resolve_model(folder_.path(), "");
  EXPECT_EQ(s.spec.C, 40);
  EXPECT_EQ(s.spec.F, 300);
  EXPECT_EQ(parse_json_file(folder_ / "config.json").at("torch_dtype"), "bfloat16");
  EXPECT_TRUE(parse_json_file(folder_ / "generation_config.json").at("eos_token_id").is_null());
  EXPECT_TRUE(load().empty());
}

}  // namespace
}  // namespace snug
