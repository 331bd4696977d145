// Parameters that stay as they are: no gradient, master or state, nothing saved for a gradient that
// nobody wants, no backward below what is trained; what is trained has the gradients of the run in
// which everything is, and the same bits in every home.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "layers/models/freeze.h"
#include "tests/support/errors.h"
#include "tests/tools/session_case.h"

namespace snug {
namespace {

using test::expect_error;

constexpr int64_t kLayers = 3;

ModelSpec spec_of_case(bool tied = true) {
  return test::tiny_spec({.L = kLayers, .tied = tied});
}

Decisions decisions_of(const char* recompute = "none") {
  Decisions d;
  d.T = 16;
  d.micro_batch = 2;
  d.head_rows = 32;
  d.recompute = recompute;
  return d;
}

// Values of every parameter by name, the same whatever lies where.
void fill(Session& s) {
  const ParamTable& table = s.model().params();
  const RestingWeights resting = s.resting();
  for (int i = 0; i < table.size(); ++i) {
    const ParamInfo& p = table[i];
    const View at = resting.rows(p.offset, p.elements());
    for (int64_t k = 0; k < p.real_elements(); ++k) {
      const auto key = static_cast<uint64_t>(i) * 1000003u + static_cast<uint64_t>(k);
      float v = 0.4f * (uniform_from(static_cast<uint32_t>(mix64(key))) - 0.5f);
      if (p.init == Init::ones) v += 1.0f;
      if (at.dtype == DType::f32)
        at.as<float>()[k] = v;
      else
        at.as<bf16>()[k] = from_f32<bf16>(v);
    }
  }
  s.load();
}

struct Trained {
  std::map<std::string, std::vector<float>> gradients, weights;  // of what is trained
  std::map<std::string, std::vector<float>> frozen;
  double loss = 0;
};

// Two steps of one micro-batch of SGD, so that an update shows in the second.
Trained train(const Model& model, const Decisions& d, const char* optim, Schedule* kept = nullptr,
              Place place = Place::cpu) {
  test::RunOptions o;
  o.settings.target = place;
  o.decisions = d;
  o.optimizer.name = optim;
  o.global_batch = 2;
  o.settings.threads = 2;
  const Schedule schedule = test::plan_schedule(model, o, {.seconds = 0});
  if (kept) *kept = schedule;
  Session s(place, model, d, o.optimizer, o.settings, &schedule);
  s.open();
  fill(s);
  const ParamTable& table = model.params();
  Trained t;
  for (int step = 0; step < 2; ++step) {
    s.begin_window(7, step, 2 * d.T);
    for (int64_t i = 0; i < 2 * d.T; ++i) {
      const auto key = static_cast<uint64_t>(step * 1000 + i);
      s.tokens().as<int32_t>()[i] = static_cast<int32_t>(mix64(key) % 97);
      s.targets().as<int32_t>()[i] = static_cast<int32_t>(mix64(key + 1) % 97);
    }
    for (float& rate : s.state().learning_rate) rate = 0.05f;
    s.optimizer().prepare_step(s.state());
    s.micro(true);
    if (!d.update_in_backward)
      for (int i = 0; i < table.size(); ++i)
        if (table[i].trainable) {
          const View g = s.gradient(i);
          auto& list = t.gradients[table[i].name.str()];
          list.assign(g.as<float>(), g.as<float>() + table[i].real_elements());
        }
    s.update();
    ++s.state().updates;
  }
  t.loss = s.state().loss_sum;
  const RestingWeights resting = s.resting();
  for (int i = 0; i < table.size(); ++i) {
    const ParamInfo& p = table[i];
    const View at = resting.rows(p.offset, p.elements());
    std::vector<float> values;
    for (int64_t k = 0; k < p.real_elements(); ++k)
      values.push_back(at.dtype == DType::f32 ? at.as<float>()[k] : to_f32(at.as<bf16>()[k]));
    (p.trainable ? t.weights : t.frozen)[p.name.str()] = std::move(values);
  }
  return t;
}

FreezeRules last_block() {
  return {".", "h.2.|ln_f"};
}

int64_t bytes_of(const Schedule& s, Category category) {
  int64_t sum = 0;
  for (const TensorRecord& t : s.at(0).tensors) sum += t.category == category ? t.bytes : 0;
  return sum;
}

struct Case {
  const char* name;
  const char* precision;
  Decisions decisions;
};

std::vector<Case> cases() {
  std::vector<Case> list = {{"Fp32", "fp32", decisions_of()},
                            {"Bf16", "bf16", decisions_of()},
                            {"Recompute", "bf16", decisions_of("block")},
                            {"InBackward", "bf16", decisions_of()},
                            {"StatesAway", "bf16", decisions_of()},
                            {"Streamed", "bf16", decisions_of()},
                            {"StreamedFp32", "fp32", decisions_of()},
                            {"GradientsAway", "fp32", decisions_of()},
                            {"SlotsAway", "fp32", decisions_of("norms")},
                            {"NoMaster", "no_master", decisions_of("block")},
                            {"NoMasterAway", "no_master", decisions_of()},
                            {"NoMasterInBackward", "no_master", decisions_of()},
                            {"TablesAway", "bf16", decisions_of()},
                            {"TablesAndBlocksAway", "bf16", decisions_of("block")},
                            {"TablesAwayFp32", "fp32", decisions_of()}};
  list[3].decisions.update_in_backward = true;
  for (const int i : {4, 5, 6}) list[static_cast<size_t>(i)].decisions.offload_optimizer = true;
  for (const int i : {5, 6}) list[static_cast<size_t>(i)].decisions.offload_params = true;
  list[10].decisions.offload_optimizer = list[10].decisions.offload_params = true;
  list[10].decisions.offload_gradients = list[11].decisions.update_in_backward = true;
  list[7].decisions.offload_gradients = true;
  list[8].decisions.offload = "inputs+qkv";
  for (const int i : {12, 13, 14}) list[static_cast<size_t>(i)].decisions.offload_tables = true;
  list[13].decisions.offload_optimizer = list[13].decisions.offload_params = true;
  return list;
}

class FrozenIn : public testing::TestWithParam<Case> {};

TEST_P(FrozenIn, TrainsTheSameBitsInEveryHomeAndLeavesTheRest) {
  const Precision precision = test::precision_of(GetParam().precision);
  const ModelSpec spec = spec_of_case(!GetParam().decisions.offload_tables);
  const Model part(spec, precision, resolve_freeze(spec, last_block()).says);
  ASSERT_EQ(part.first_backward(), 2);
  const Trained a = train(part, GetParam().decisions, "adamw");
  const Trained plain = train(part, decisions_of(), "adamw");
  ASSERT_GT(a.weights.size(), 10u);
  EXPECT_EQ(a.loss, plain.loss);
  for (const auto& [name, values] : a.weights) EXPECT_EQ(values, plain.weights.at(name)) << name;
  for (const auto& [name, values] : a.gradients)
    EXPECT_EQ(values, plain.gradients.at(name)) << name;
  // What is frozen is as it was.
  Schedule schedule;
  const test::RunOptions o{.decisions = decisions_of(), .optimizer = {}, .settings = {}};
  schedule = test::plan_schedule(part, o, {.seconds = 0});
  Session untouched(Place::cpu, part, decisions_of(), {}, {}, &schedule);
  untouched.open();
  fill(untouched);
  for (int i = 0; i < part.params().size(); ++i) {
    const ParamInfo& p = part.params()[i];
    if (p.trainable) continue;
    const View at = untouched.resting().rows(p.offset, p.elements());
    for (int64_t k = 0; k < p.real_elements(); ++k)
      ASSERT_EQ(at.dtype == DType::f32 ? at.as<float>()[k] : to_f32(at.as<bf16>()[k]),
                a.frozen.at(p.name.str())[static_cast<size_t>(k)])
          << p.name.view();
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, FrozenIn, testing::ValuesIn(cases()),
                         [](const auto& c) { return std::string(c.param.name); });

// A frozen table that no product reads, with the host: the device reads a row a token over the link,
// and holds none of it. Kernels read it there too.
TEST(Frozen, ATableOfRowsMayRestWithTheHost) {
  for (const bool tied : {false, true}) {
    const ModelSpec spec = spec_of_case(tied);
    const Model part(spec, parse_precision("bf16"), resolve_freeze(spec, last_block()).says);
    Decisions away = decisions_of();
    away.offload_tables = true;
    Schedule here, there;
    const Trained a = train(part, decisions_of(), "adamw", &here),
                  b = train(part, away, "adamw", &there),
                  c = train(part, away, "adamw", nullptr, Place::emu),
                  d = train(part, decisions_of(), "adamw", nullptr, Place::emu);
    EXPECT_EQ(a.weights, b.weights);
    EXPECT_EQ(a.frozen, b.frozen);
    EXPECT_EQ(c.weights, d.weights);
    EXPECT_EQ(c.loss, d.loss);
    // 97 rows are padded to 128. A head that is tied to the table reads all of it.
    const int64_t table = tied ? 0 : 2 * 128 * 24, rows = tied ? 0 : 2 * 2 * 16 * 24;
    EXPECT_EQ(bytes_of(here, Category::weights) - bytes_of(there, Category::weights), table);
    EXPECT_EQ(bytes_of(there, Category::offload) - bytes_of(here, Category::offload), table);
    const Program &near = here.at(here.find("micro_first")),
                  &far = there.at(there.find("micro_first"));
    ASSERT_EQ(near.ops.size(), far.ops.size());
    int64_t crossing = 0;
    for (size_t i = 0; i < far.ops.size(); ++i) {
      EXPECT_EQ(near.ops[i].bytes, far.ops[i].bytes);
      EXPECT_EQ(near.ops[i].link_bytes, 0);
      crossing += far.ops[i].link_bytes;
    }
    EXPECT_EQ(crossing, rows);
  }
}

// Of one step, before any update shows: the gradients of the run in which everything is trained.
TEST(Frozen, GradientsAreThoseOfTheRunThatTrainsAll) {
  const ModelSpec spec = spec_of_case();
  for (const char* precision : {"fp32", "bf16"})
    for (const FreezeRules& rules :
         {last_block(), FreezeRules{"h.0-1.", ""}, FreezeRules{".", "bias"},
          FreezeRules{"ln_|c_fc", ""}, FreezeRules{"wte|wpe", ""}, FreezeRules{".", "wpe"},
          FreezeRules{"h.1.", ""}, FreezeRules{".", "ln_f"}}) {
      SCOPED_TRACE(rules.freeze + " but " + rules.unfreeze);
      const Model whole(spec, parse_precision(precision));
      const Model part(spec, parse_precision(precision), resolve_freeze(spec, rules).says);
      test::RunOptions o{.decisions = decisions_of(), .optimizer = {}, .settings = {}};
      std::map<std::string, std::vector<float>> all;
      for (const Model* model : {&whole, &part}) {
        const Schedule schedule = test::plan_schedule(*model, o, {.seconds = 0});
        Session s(Place::cpu, *model, o.decisions, o.optimizer, o.settings, &schedule);
        s.open();
        fill(s);
        s.begin_window(7, 0, 2 * o.decisions.T);
        for (int64_t i = 0; i < 2 * o.decisions.T; ++i) {
          s.tokens().as<int32_t>()[i] = static_cast<int32_t>(mix64(static_cast<uint64_t>(i)) % 97);
          s.targets().as<int32_t>()[i] = static_cast<int32_t>((i * 7 + 3) % 97);
        }
        s.micro(true);
        int compared = 0;
        for (int i = 0; i < model->params().size(); ++i) {
          const ParamInfo& p = model->params()[i];
          if (!p.trainable) continue;
          const View g = s.gradient(i);
          const std::vector<float> values(g.as<float>(), g.as<float>() + p.real_elements());
          if (model == &whole)
            all[p.name.str()] = values;
          else
            EXPECT_EQ(values, all.at(p.name.str())) << precision << " " << p.name.view();
          ++compared;
        }
        EXPECT_GT(compared, 0);
      }
    }
}

TEST(Frozen, ThePlanHasNothingOfIt) {
  const ModelSpec spec = spec_of_case();
  const Model part(spec, parse_precision("bf16"), resolve_freeze(spec, last_block()).says);
  Schedule schedule;
  train(part, decisions_of(), "adamw", &schedule);
  const int64_t trained = part.params().trained_elements();
  EXPECT_LT(trained, part.params().flat_elements() / 2);
  EXPECT_EQ(bytes_of(schedule, Category::weights), 2 * part.params().flat_elements());
  EXPECT_EQ(bytes_of(schedule, Category::master), 4 * trained);
  EXPECT_EQ(bytes_of(schedule, Category::gradients), 4 * trained);
  EXPECT_EQ(bytes_of(schedule, Category::optimizer), 8 * trained);
  const Program& micro = schedule.at(schedule.find("micro_first"));
  // Backward: nothing below the last block, and of that no gradient of its input.
  const auto backward = [&](const TensorRecord& t, const char* prefix) {
    return t.name.view().starts_with(prefix);
  };
  for (const TensorRecord& t : micro.tensors) {
    EXPECT_FALSE(backward(t, "h.0.d") || backward(t, "h.1.d") || backward(t, "embedding.d"))
        << t.name.view();
    // What the blocks below make ends before the last block begins.
    if (!backward(t, "h.0.")) continue;
    const auto last = std::find_if(micro.tensors.begin(), micro.tensors.end(),
                                   [&](const TensorRecord& u) { return backward(u, "h.2."); });
    ASSERT_NE(last, micro.tensors.end());
    EXPECT_LE(t.died, last->born) << t.name.view();
  }
}

// With nothing below that is trained, the input of a linear layer is saved for its weight alone.
TEST(Frozen, AFrozenLinearSavesNoInput) {
  const ModelSpec spec = spec_of_case();
  const auto kept = [&](const FreezeRules& rules) {
    const Model model(spec, parse_precision("fp32"), resolve_freeze(spec, rules).says);
    const Body& body = model.block(1).body();
    std::vector<std::string> names;
    for (int s = 0; s < body.slots(); ++s)
      if (body.backward_reader(s) >= 0) names.push_back(body.slot(s).name.str());
    return names;
  };
  const std::vector<std::string> all = kept({"h.1.mlp.c_fc.weight", ""}),
                                 none = kept({"h.1.mlp.c_fc|h.1.mlp.c_proj|h.1.ln_2", ""});
  const auto has = [](const std::vector<std::string>& list, const char* name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  EXPECT_FALSE(has(all, "h.1.norm2")) << "read for the weight of c_fc alone";
  EXPECT_TRUE(has(all, "h.1.act"));
  EXPECT_FALSE(has(none, "h.1.act")) << "read for the weight of c_proj alone";
  EXPECT_TRUE(has(none, "h.1.fc")) << "the slope of the activation";
}

TEST(Freeze, RulesFindNamesOfFilesAndOfTheTable) {
  const ModelSpec spec = spec_of_case();
  const auto frozen = [&](const FreezeRules& rules) {
    const Frozen f = resolve_freeze(spec, rules);
    const Model model(spec, parse_precision("fp32"), f.says);
    EXPECT_EQ(f.trained, model.params().real_trained_elements());
    EXPECT_EQ(f.all, model.params().real_elements());
    std::vector<std::string> names;
    for (int i = 0; i < model.params().size(); ++i)
      if (!model.params()[i].trainable) names.push_back(model.params()[i].name.str());
    return names;
  };
  EXPECT_EQ(frozen({"wte|wpe", ""}), (std::vector<std::string>{"wte.weight", "wpe.weight"}));
  EXPECT_EQ(frozen({"transformer.wte", ""}), (std::vector<std::string>{"wte.weight"}));
  EXPECT_EQ(frozen({"h.0-1.", ""}).size(), 2 * frozen({"h.2.", ""}).size());
  EXPECT_EQ(frozen({"h.0-2.ln_1", ""}).size(), 6u);
  EXPECT_EQ(frozen({"h.1-1", ""}).size(), frozen({"h.1.", ""}).size());
  // A range is whole numbers: 1 is no beginning of 12 or 13, whatever ends the range.
  const ModelSpec deep = resolve_model("", R"({"type": "gpt2", "vocab_size": 64, "n_positions": 8,
      "n_embd": 8, "n_head": 2, "n_layer": 14})")
                             .spec;
  for (const char* two : {"h.1-2", "(h.1-2)", "h.1-2|h.1-2", "(h.1-2).", "h.1-2.", "h.1-2\\."}) {
    const Frozen f = resolve_freeze(deep, {two, ""});
    EXPECT_EQ(f.all - f.trained, 2 * (12 * 8 * 8 + 13 * 8)) << two;
  }
  EXPECT_EQ(frozen({".",
                    "."
                    "ln_f"})
                .size(),
            frozen({"^(?!.*ln_f)", ""}).size());
  EXPECT_TRUE(frozen({}).empty());
}

TEST(Freeze, MistakesAreNamed) {
  const ModelSpec spec = spec_of_case();
  const auto refused = [&](const FreezeRules& rules, std::initializer_list<const char*> parts) {
    expect_error(ErrorCode::usage, parts, [&] { resolve_freeze(spec, rules); });
  };
  refused({"h.(", ""}, {"a regular expression over parameter names as freeze", "h.( ("});
  refused({"wte", "[z"}, {"a regular expression over parameter names as unfreeze"});
  refused({"layers.0", ""}, {"freeze to match the name of a parameter", "layers.0",
                             "transformer.wte.weight, transformer.wpe.weight"});
  refused({"wte", "head"}, {"unfreeze to match the name of a parameter", "head"});
  refused({"", "wte"},
          {"unfreeze beside freeze", "unfreeze: wte alone", "freeze=. unfreeze='wte'"});
  refused({".", ""}, {"a parameter that is trained", "freeze: .", "unfreeze=h.2."});
  refused({"h.2-1.", ""}, {"a range of layers in freeze that goes up", "2-1", "1-2"});
}

// Rows of one parameter that stand in several tensors of a file.
TEST(Freeze, WhatIsOneParameterIsFrozenAsOne) {
  const ModelSpec spec = resolve_model("", R"({"type": "llama", "vocab_size": 64, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
        "max_position_embeddings": 32})")
                             .spec;
  expect_error(ErrorCode::usage,
               {"q_proj.weight and model.layers.0.self_attn.k_proj.weight frozen together",
                "q_proj.weight alone", "a pattern for both"},
               [&] {
                 resolve_freeze(spec, {"q_proj", ""});
               });
  EXPECT_EQ(resolve_freeze(spec, {"(q|k|v)_proj", ""}).all -
                resolve_freeze(spec, {"(q|k|v)_proj", ""}).trained,
            3 * 32 * 32);
}

}  // namespace
}  // namespace snug
