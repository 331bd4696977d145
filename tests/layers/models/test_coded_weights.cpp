// A base whose files are in codes of 4 or 8 bits under the names of bitsandbytes: taken as they are where they
// rest in the same codes, decoded elsewhere; what is wrong with them is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "layers/models/coded_weights.h"
#include "quant/coder.h"
#include "tests/layers/models/peft_golden.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::expect_error;
using test::PeftGolden;
using test::PeftRun;

// The weights of the fixture's base, those that rest in codes as codes of `spec`.
void write_coded(const PeftGolden& g, const Model& model, const CodeSpec& spec,
                 const std::string& path) {
  const SafetensorsFolder files(g.decoder->path);
  std::vector<SafeSpec> specs;
  std::vector<std::pair<const SafeTensor*, bool>> tensors;
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    if (is_adapter_name(p.name.view())) continue;
    for (const SafeTensor* t : find_weight(files, model, i, g.decoder->path)) {
      tensors.emplace_back(t, p.coded());
      if (p.coded())
        add_code_specs(specs, t->name, t->shape, t->elements(), spec, "float32");
      else
        specs.push_back({t->name, t->dtype, t->shape});
    }
  }
  const SafetensorsLayout layout({{"format", "pt"}}, specs);
  SafetensorsWriter writer(path, layout);
  for (const auto& [t, coded] : tensors) {
    if (!coded) {
      writer.write(t->name, t->data, t->bytes);
      continue;
    }
    std::vector<float> values(static_cast<size_t>(t->elements()));
    convert(t->dtype, t->data, t->elements(), values.data());
    std::vector<std::byte> back;
    const Codes codes = encode_tensor(values.data(), t->elements(), DType::f32, spec, 1, back);
    write_parts(writer, t->name, codes, spec, "float32", t->shape);
  }
  writer.commit();
}

// The same in int8, as Linear8bitLt saves it; a tensor of `other` in place of the file's of that name.
using Others = std::map<std::string, std::pair<SafeSpec, std::vector<uint8_t>>>;
void write_int8(const PeftGolden& g, const Model& model, const std::string& path,
                const Others& others = {}) {
  const SafetensorsFolder files(g.decoder->path);
  Others tensors;
  const auto add = [&](const std::string& name, SafeDType dtype, const std::vector<int64_t>& shape,
                       const void* data, size_t bytes) {
    const auto* const from = static_cast<const uint8_t*>(data);
    tensors[name] = {{name, dtype, shape}, {from, from + bytes}};
  };
  for (int i = 0; i < model.params().size(); ++i) {
    const ParamInfo& p = model.params()[i];
    if (is_adapter_name(p.name.view())) continue;
    for (const SafeTensor* t : find_weight(files, model, i, g.decoder->path)) {
      if (!p.coded()) {
        add(t->name, t->dtype, t->shape, t->data, static_cast<size_t>(t->bytes));
        continue;
      }
      std::vector<f16> halves(static_cast<size_t>(t->elements()));
      convert(t->dtype, t->data, t->elements(), halves.data());
      std::vector<std::byte> back;
      const Codes codes = encode_tensor(halves.data(), t->elements(), DType::f16,
                                        CodeSpec(codec("int8"), t->shape[1]), 1, back);
      const std::string layer = t->name.substr(0, t->name.rfind('.'));
      add(t->name, SafeDType::I8, t->shape, codes.codes.data(), codes.codes.size());
      add(layer + ".SCB", SafeDType::F32, {t->shape[0]}, codes.scales.data(),
          codes.scales.size() * sizeof(float));
      const uint8_t by_rows = 0;
      add(layer + ".weight_format", SafeDType::U8, {}, &by_rows, 1);
    }
  }
  for (const auto& [name, tensor] : others) {
    tensors.erase(name);
    if (!tensor.first.name.empty()) tensors[name] = tensor;
  }
  std::vector<SafeSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back(tensor.first);
  const SafetensorsLayout layout({{"format", "pt"}}, specs);
  SafetensorsWriter writer(path, layout);
  for (const auto& [name, tensor] : tensors)
    writer.write(name, tensor.second.data(), static_cast<int64_t>(tensor.second.size()));
  writer.commit();
}

void load(PeftRun& run, const std::string& path) {
  Session& s = run.session();
  EXPECT_TRUE(load_weights(s.context(), run.model(), path, s.resting()).empty());
  run.load(run.golden().folder.path());
}

TEST(CodedWeights, AreTakenAsTheyAreOrDecoded) {
  for (const char* name : {"j", "k", "l"}) {
    const PeftGolden g(name);
    PeftConfig config = g.config;
    PeftRun plain(g);
    const double loss = plain.step();
    const std::vector<float> gradients = plain.gradients();
    const TempFolder folder;
    const std::string path = folder / "model.safetensors";
    const CodeSpec spec(codec(config.codec), 64, config.doubled);
    write_coded(g, plain.model(), spec, path);
    // Over the same codes, over a base that rests whole, and over other codes.
    PeftRun same(g);
    load(same, path);
    EXPECT_EQ(same.step(), loss) << name;
    EXPECT_EQ(same.gradients(), gradients) << name;
    config.codec = "";
    const PeftModel whole = resolve_peft(g.spec(), config);
    PeftRun decoded(g, whole);
    load(decoded, path);
    EXPECT_EQ(decoded.step(), loss) << name;
    EXPECT_EQ(decoded.gradients(), gradients) << name;
    config.codec = "fp4";
    config.doubled = !config.doubled;
    const PeftModel others = resolve_peft(g.spec(), config);
    PeftRun coded_again(g, others);
    load(coded_again, path);
    EXPECT_NE(coded_again.step(), loss) << name;
  }
}

TEST(CodedWeights, RowsOfInt8AreTakenAsTheyAreOrDecoded) {
  for (const char* name : {"eb", "ec", "ee"}) {  // ec: whose rows lie in another order here
    const PeftGolden g(name);
    PeftRun plain(g), same(g);
    const double loss = plain.step();
    const std::vector<float> gradients = plain.gradients();
    const TempFolder folder;
    const std::string path = folder / "model.safetensors";
    write_int8(g, plain.model(), path);
    load(same, path);
    EXPECT_EQ(same.step(), loss) << name;
    EXPECT_EQ(same.gradients(), gradients) << name;
    // Over weights that rest whole: the same ones, whose inputs nobody rounds.
    PeftConfig config = g.config;
    config.codec = "";
    const PeftModel whole = resolve_peft(g.spec(), config);
    PeftRun decoded(g, whole);
    load(decoded, path);
    const double unrounded = decoded.step();
    EXPECT_NE(unrounded, loss) << name;
    EXPECT_LT(std::fabs(unrounded - loss) / loss, 0.02) << name;
  }
}

TEST(CodedWeights, WhatIsWrongWithRowsOfInt8IsSaid) {
  const PeftGolden g("eb");
  PeftRun run(g);
  const TempFolder folder;
  const std::string layer = "model.layers.0.self_attn.q_proj";
  const auto with = [&](const std::string& name, const SafeSpec& spec, size_t bytes,
                        uint8_t value = 0) {
    return [&, name, spec, bytes, value] {
      const std::string path = folder / "bad.safetensors";
      write_int8(g, run.model(), path,
                 {{layer + name, {spec, std::vector<uint8_t>(bytes, value)}}});
      load_weights(run.session().context(), run.model(), path, run.session().resting());
    };
  };
  expect_error(
      ErrorCode::data,
      {"rows of int8 with a tensor model.layers.0.self_attn.q_proj.SCB of F32, a number a row",
       "model.layers.0.self_attn.q_proj.weight of dtype I8 without one",
       "the folder as it was saved"},
      with(".SCB", {}, 0));
  expect_error(ErrorCode::data,
               {"model.layers.0.self_attn.q_proj.SCB of F32, a number a row", "(3) of F32 beside"},
               with(".SCB", {layer + ".SCB", SafeDType::F32, {3}}, 12));
  expect_error(ErrorCode::unsupported,
               {"model.layers.0.self_attn.q_proj.weight_format that is 0, rows of int8", "1",
                "load_in_8bit=true"},
               with(".weight_format", {layer + ".weight_format", SafeDType::U8, {}}, 1, 1));
  EXPECT_NO_THROW(with(".weight_format", {}, 0)());
  // What merges or converts a base wants it whole.
  const std::string path = folder / "good.safetensors";
  write_int8(g, run.model(), path);
  const SafetensorsFolder good(path);
  expect_error(ErrorCode::unsupported,
               {"weights that are no codes in ", "model.layers.0.self_attn.q_proj.weight in int8",
                "the base in full precision, which load_in_8bit=true of a run codes itself"},
               [&] {
                 for (int i = 0; i < run.model().params().size(); ++i)
                   if (run.model().params()[i].coded()) find_weight(good, run.model(), i, path);
               });
}

TEST(CodedWeights, Int8HoldsWhatFp16Holds) {
  const PeftGolden g("eb");
  PeftRun run(g);
  const TempFolder folder;
  const std::string path = folder / "model.safetensors",
                    name = "model.layers.1.mlp.down_proj.weight";
  const SafetensorsReader source(g.decoder->path);
  const SafeTensor& t = source.at(name);
  std::vector<float> values(static_cast<size_t>(t.elements()), 0.25f);
  values[3] = 70000;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
  write_int8(g, run.model(), path,
             {{name, {{name, SafeDType::F32, t.shape}, {bytes, bytes + 4 * values.size()}}}});
  expect_error(
      ErrorCode::data,
      {"weights that fp16 can hold, 65504 at most",
       "element 3 of model.layers.1.mlp.down_proj.weight",
       "load_in_4bit=true in place of load_in_8bit"},
      [&] { load_weights(run.session().context(), run.model(), path, run.session().resting()); });
}

// Over int8: without outliers all of it; else an outlier is a row's own here, where bitsandbytes takes its column
// out of the codes of all rows. These models have many: each of some hundred columns may have one in some row.
TEST(CodedWeights, Int8IsNearTheProductOfBitsandbytes) {
  for (const char* name : {"ea", "eb", "ec", "ed", "ee"}) {
    const PeftGolden g(name);
    PeftRun run(g);
    const double theirs = g.numbers("bnb_loss")[0];
    EXPECT_LT(std::fabs(run.step() - theirs) / theirs, g.config.int8_threshold == 0 ? 1e-6 : 1e-3)
        << name;
  }
}

TEST(CodedWeights, FormsOfABaseAreWords) {
  for (const char* form : {"full", "nf4", "fp4-double", "int8", "int8:0", "int8:4.5", "nf4/o_proj",
                           "int8:4.5/down_proj,o_proj"}) {
    PeftConfig config;
    set_base_form(config, form, "there");
    EXPECT_EQ(base_form(config), form);
  }
  for (const char* form :
       {"int8:", "int8:-1", "int8:x", "int8:1e9", "nf4:6", "int4", "int8/", "int8/a,", "full/a"})
    expect_error(ErrorCode::usage, {"full, nf4, nf4-double, fp4, fp4-double, int8 in there", form},
                 [&] {
                   PeftConfig config;
                   set_base_form(config, form, "there");
                 });
}

TEST(CodedWeights, WhatIsWrongWithThemIsSaid) {
  const PeftGolden g("k");
  PeftRun run(g);
  const CodeSpec spec(codec("nf4"), 64, true);
  const TempFolder folder;
  const std::string path = folder / "model.safetensors";
  write_coded(g, run.model(), spec, path);
  const SafetensorsFolder good(path);
  expect_error(ErrorCode::unsupported,
               {"weights that are no codes in ", "model.layers.0.self_attn.q_proj.weight in nf4",
                "snug quant FILE --decode"},
               [&] {
                 for (int i = 0; i < run.model().params().size(); ++i)
                   if (run.model().params()[i].coded()) find_weight(good, run.model(), i, path);
               });
  // The tensors of one weight, without some.
  const auto without = [&](const std::string& suffix) {
    std::vector<SafeSpec> specs;
    for (const SafeTensor* t : good.tensors())
      if (t->name != "model.layers.0.self_attn.q_proj.weight" + suffix)
        specs.push_back({t->name, t->dtype, t->shape});
    const std::string bad = folder / "bad.safetensors";
    const SafetensorsLayout layout({{"format", "pt"}}, specs);
    SafetensorsWriter writer(bad, layout);
    for (const SafeSpec& s : specs)
      writer.write(s.name, good.at(s.name).data, good.at(s.name).bytes);
    writer.commit();
    return [&run, bad] {
      load_weights(run.session().context(), run.model(), bad, run.session().resting());
    };
  };
  expect_error(ErrorCode::data,
               {"model.layers.0.self_attn.q_proj.weight.nested_absmax beside", "none"},
               without(".nested_absmax"));
  expect_error(ErrorCode::data, {"model.layers.0.self_attn.q_proj.weight.absmax beside", "none"},
               without(".absmax"));
  expect_error(ErrorCode::data,
               {"or codes with a tensor model.layers.0.self_attn.q_proj.weight.quant_state.",
                "of dtype U8 without one"},
               without(".quant_state.bitsandbytes__nf4"));
  expect_error(ErrorCode::data, {"codes of a tensor ", "of shape (3,5)", "as its state says"}, [&] {
    check_codes(good, good.at("model.layers.0.self_attn.q_proj.weight"), {3, 5}, false, true, path);
  });
  expect_error(ErrorCode::unsupported, {"stores as (out, in)", "stored as (in, out)", "peft=qlora"},
               [&] {
                 check_codes(good, good.at("model.layers.0.self_attn.q_proj.weight"), {3, 5}, true,
                             true, path);
               });
}

}  // namespace
}  // namespace snug
