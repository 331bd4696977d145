// A base whose files are in 4-bit codes under the names of bitsandbytes: taken as they are where they
// rest in the same codes, decoded elsewhere; what is wrong with them is refused.
#include <gtest/gtest.h>

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
