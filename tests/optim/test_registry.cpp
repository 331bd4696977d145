// Names, aliases and the values that are refused.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "optim/settings.h"
#include "tests/optim/optim_case.h"

namespace snug::test {
namespace {

void refused(const OptimizerConfig& c, std::initializer_list<const char*> words) {
  expect_error(ErrorCode::usage, words, [&] { make_optimizer(c); });
}

OptimizerConfig named(const char* name) {
  OptimizerConfig c;
  c.name = name;
  return c;
}

TEST(OptimRegistry, KnowsNamesAndAliases) {
  const std::vector<std::string> names = optimizer_names();
  EXPECT_EQ(names.at(0), "adamw");
  EXPECT_TRUE(std::is_sorted(names.begin() + 1, names.end()));
  EXPECT_EQ(make_optimizer({})->name(), "adamw");
  for (const char* alias : {"adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_32bit"})
    EXPECT_EQ(make_optimizer(named(alias))->name(), "adamw");
  const struct {
    const char *name, *text;
    bool paged;
  } kNames[] = {{"adamw_8bit", "adamw_8bit", false},
                {"adamw_bnb_8bit", "adamw_8bit", false},
                {"adamw_torch_8bit", "adamw_8bit", false},
                {"adamw_torch_4bit", "adamw_4bit", false},
                {"adam8bit", "adam_8bit", false},
                {"adamw_bf16", "adamw_bf16", false},
                {"rmsprop_bnb_8bit", "rmsprop_8bit", false},
                {"paged_adamw", "adamw", true},
                {"paged_adamw_32bit", "adamw", true},
                {"paged_lion_8bit", "lion_8bit", true},
                {"paged_ademamix_8bit", "ademamix_8bit", true}};
  for (const auto& row : kNames) {
    const OptimName n = optim_name(row.name);
    EXPECT_EQ(n.text(), row.text) << row.name;
    EXPECT_EQ(n.paged, row.paged) << row.name;
    EXPECT_EQ(optimizer_text(make_optimizer(named(row.name))->config()), row.text);
  }
  EXPECT_EQ(optim_name("adamw_3bit").facts, nullptr);
  EXPECT_EQ(optim_name("paged_").facts, nullptr);
  EXPECT_EQ(make_optimizer(named("adam"))->name(), "adam");
  EXPECT_EQ(make_optimizer(named("lion_32bit"))->name(), "lion");
  EXPECT_EQ(make_optimizer(named("sgd"))->name(), "sgd");
  OptimizerConfig c = named("adamw_torch");
  c.weight_decay = 0.25;
  EXPECT_EQ(make_optimizer(c)->config().weight_decay, 0.25);
}

// OptimizerNames of transformers 5.24: each is an optimizer, or refused with a reason of its own.
TEST(OptimRegistry, AnswersEveryNameOfHuggingFace) {
  const std::set<std::string> there = {"adamw_torch",
                                       "adamw_torch_fused",
                                       "ademamix",
                                       "sgd",
                                       "adagrad",
                                       "adafactor",
                                       "lion_32bit",
                                       "rmsprop",
                                       "rmsprop_bnb",
                                       "rmsprop_bnb_32bit",
                                       "adamw_torch_4bit",
                                       "adamw_torch_8bit",
                                       "adamw_bnb_8bit",
                                       "adamw_8bit",
                                       "ademamix_8bit",
                                       "lion_8bit",
                                       "paged_adamw_32bit",
                                       "paged_adamw_8bit",
                                       "paged_ademamix_32bit",
                                       "paged_ademamix_8bit",
                                       "paged_lion_32bit",
                                       "paged_lion_8bit",
                                       "rmsprop_bnb_8bit",
                                       "schedule_free_adamw",
                                       "schedule_free_sgd"};
  std::istringstream names(
      "adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused adafactor "
      "adamw_anyprecision adamw_torch_4bit adamw_torch_8bit ademamix sgd adagrad adamw_bnb_8bit "
      "adamw_8bit ademamix_8bit lion_8bit lion_32bit paged_adamw_32bit paged_adamw_8bit "
      "paged_ademamix_32bit paged_ademamix_8bit paged_lion_32bit paged_lion_8bit rmsprop "
      "rmsprop_bnb rmsprop_bnb_8bit rmsprop_bnb_32bit galore_adamw galore_adamw_8bit "
      "galore_adafactor galore_adamw_layerwise galore_adamw_8bit_layerwise "
      "galore_adafactor_layerwise lomo adalomo grokadamw schedule_free_radam "
      "schedule_free_adamw schedule_free_sgd apollo_adamw apollo_adamw_layerwise stable_adamw");
  int count = 0;
  for (std::string name; names >> name; ++count) {
    EXPECT_EQ(find_optimizer(name) != nullptr, there.contains(name)) << name;
    EXPECT_EQ(why_refused(name).empty(), there.contains(name)) << name;
  }
  EXPECT_EQ(count, 41);
}

TEST(OptimRegistry, NamesStatesAsPyTorch) {
  const std::vector<Name> adam{Name("exp_avg"), Name("exp_avg_sq")};
  EXPECT_EQ(make_optimizer(named("adam"))->state_names(), adam);
  EXPECT_EQ(make_optimizer(named("adamw"))->state_names(), adam);
  EXPECT_EQ(make_optimizer(named("lion"))->state_names(), std::vector<Name>{Name("exp_avg")});
  EXPECT_TRUE(make_optimizer(named("sgd"))->state_names().empty());
  OptimizerConfig c = named("sgd");
  c.sgd_momentum = 0.9;
  EXPECT_EQ(make_optimizer(c)->state_names(), std::vector<Name>{Name("momentum_buffer")});
}

TEST(OptimRegistry, CountsAppliedUpdatesInTheBiasCorrections) {
  StepState s = plain_state();
  s.step = 99;  // steps that were skipped do not count
  s.updates = 2;
  make_optimizer({})->prepare_step(s);
  EXPECT_EQ(s.bias_correction1, static_cast<float>(1 - 0.9 * 0.9 * 0.9));
  EXPECT_EQ(s.bias_correction2, static_cast<float>(1 - std::pow(0.999, 3)));
  make_optimizer(named("sgd"))->prepare_step(s);
  EXPECT_EQ(s.bias_correction1, 1.0f);
  EXPECT_EQ(s.bias_correction2, 1.0f);
}

TEST(OptimRegistry, RefusesFormsThatHaveNothingToRestOrWouldBreak) {
  refused(named("sgd_8bit"), {"an optimizer with states, to rest in 8bit",
                              "optim: sgd, which has none", "sgd_momentum=0.9, or optim=sgd"});
  OptimizerConfig c = named("rmsprop_8bit");
  c.args = {{"centered", 1}};
  refused(c, {"states in fp32 for centered", "centered: 1, states in 8bit", "optim=rmsprop"});
  refused(named("schedule_free_adamw_8bit"),
          {"schedule_free_adamw with states in fp32, of which its weights are made",
           "states in 8bit", "optim=schedule_free_adamw"});
  // What is small, or kept by name, is so as a whole.
  c = named("adamw_8bit");
  const ParamTable table = table_of({4095, 4096, 5000});
  c.state_in_f32 = {0, 0, 1};
  const StateSet set = make_optimizer(c)->states(table);
  EXPECT_FALSE(set.form_of(0, 0).coded());
  EXPECT_FALSE(set.form_of(0, 2).coded());
  const RestForm m = set.form_of(0, 1), v = set.form_of(1, 1);
  EXPECT_STREQ(m.codec, "dynamic8");
  EXPECT_STREQ(v.codec, "dynamic8_unsigned");
  EXPECT_EQ(m.bytes(4096) + v.bytes(4096), 4096 * 65 / 32);  // 2.03125 a parameter
  c = named("adamw_4bit");
  EXPECT_EQ(make_optimizer(c)->states(table).bytes_of(1, 4096), 4096 * 17 / 16);  // 1.0625
  EXPECT_EQ(make_optimizer(named("adamw_bf16"))->states(table).bytes_of(0, 4095), 4 * 4095);
  EXPECT_EQ(make_optimizer(named("adamw"))->states(table).bytes_of(1, 4096), 8 * 4096);
}

TEST(OptimRegistry, SaysWhereLarsIsSgd) {
  OptimizerConfig c = named("lars");
  const auto note = find_optimizer("lars")->note;
  EXPECT_NE(note(c).find("this is sgd"), std::string::npos);
  c.groups = {{1, 0.1}};
  EXPECT_EQ(note(c), "");
  c.groups.clear();
  c.weight_decay = 0.1;
  EXPECT_EQ(note(c), "");
  EXPECT_EQ(find_optimizer("sgd")->note, nullptr);
}

TEST(OptimRegistry, SuggestsTheNearestName) {
  refused(named("adamv"), {"optim to be one of adamw, adamw_torch, adamw_torch_fused, adamw_hf, ",
                           "lion, ", "optim: adamv", "did you mean optim=adamw?"});
  refused(named("SGD"), {"optim: SGD"});
  const std::string far = expect_error(ErrorCode::usage, {"optim: lookahead", "optim=adamw"},
                                       [] { make_optimizer(named("lookahead")); });
  EXPECT_EQ(far.find("did you mean"), std::string::npos) << far;
  refused(named(""), {"optim: "});
}

TEST(OptimRegistry, RefusesValuesAsPyTorchDoes) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const char* name : {"adamw", "adam", "lion", "sgd"}) {
    SCOPED_TRACE(name);
    for (const double bad : {-1.0, nan, infinity}) {
      OptimizerConfig c = named(name);
      c.learning_rate = bad;
      refused(c, {"learning_rate of at least 0", "learning_rate: ", "learning_rate=6e-4"});
      c = named(name);
      c.weight_decay = bad;
      refused(c, {"weight_decay of at least 0", "weight_decay: ", "weight_decay=0.1"});
    }
  }
  for (const char* name : {"adamw", "adam"}) {
    for (const double bad : {-0.1, 1.0, nan}) {
      OptimizerConfig c = named(name);
      c.adam_beta1 = bad;
      refused(c, {"adam_beta1 in [0, 1)", "adam_beta1: ", "adam_beta1=0.9"});
      c = named(name);
      c.adam_beta2 = bad;
      refused(c, {"adam_beta2 in [0, 1)", "adam_beta2: ", "adam_beta2=0.999"});
    }
    OptimizerConfig c = named(name);
    c.adam_epsilon = -1e-8;
    refused(c, {"adam_epsilon of at least 0", "adam_epsilon: -1e-08", "adam_epsilon=1e-8"});
    c.adam_epsilon = 0;
    c.adam_beta1 = 0;
    make_optimizer(c);
  }
  OptimizerConfig c = named("lion");
  c.adam_beta2 = 1;
  refused(c, {"adam_beta2 in [0, 1)", "adam_beta2: 1", "adam_beta2=0.99"});
  c = named("sgd");
  c.sgd_momentum = -0.5;
  refused(c, {"sgd_momentum of at least 0", "sgd_momentum: -0.5", "sgd_momentum=0.9"});
  c = named("sgd");
  c.sgd_nesterov = true;
  refused(c, {"sgd_nesterov with a momentum above 0 and zero dampening", "sgd_momentum: 0"});
  c.sgd_momentum = 0.9;
  make_optimizer(c);
  c.sgd_dampening = 0.1;
  refused(c, {"sgd_nesterov", "sgd_dampening: 0.1"});
  c.sgd_dampening = nan;
  refused(c, {"a finite sgd_dampening", "sgd_dampening: nan"});
}

TEST(OptimRegistry, RefusesSettingsItWouldIgnore) {
  OptimizerConfig c = named("adamw");
  c.sgd_momentum = 0.9;
  refused(c, {"only settings that adamw uses", "sgd_momentum: 0.9, a setting of sgd", "optim=sgd"});
  c = named("adam");
  c.sgd_nesterov = true;
  refused(c, {"only settings that adam uses", "sgd_nesterov"});
  c = named("adam");
  c.sgd_dampening = 0.1;
  refused(c, {"sgd_dampening: 0.1"});
  c = named("lion");
  c.adam_epsilon = 1e-6;
  refused(c, {"only settings that lion uses", "adam_epsilon: 1e-06, a setting of adamw"});
  c = named("lion");
  c.sgd_momentum = 0.9;
  refused(c, {"only settings that lion uses", "sgd_momentum: 0.9, a setting of sgd"});
  c = named("sgd");
  c.adam_beta1 = 0.8;
  refused(c, {"only settings that sgd uses", "adam_beta1: 0.8, a setting of adamw"});
  c = named("sgd");
  c.adam_beta2 = 0.8;
  refused(c, {"adam_beta2: 0.8"});
  c = named("sgd");
  c.adam_epsilon = 1e-6;
  refused(c, {"adam_epsilon: 1e-06"});
  c = named("sgd");
  c.sgd_dampening = 0.1;
  refused(c, {"without momentum it does nothing", "sgd_dampening: 0.1"});
}

}  // namespace
}  // namespace snug::test
