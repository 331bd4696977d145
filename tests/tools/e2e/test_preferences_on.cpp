// Preferences learned by an adapter that has learned some already: beside what it was, as TRL has a model of PEFT.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/e2e/preference_runs.h"

namespace snug::e2e {
namespace {

using PreferencesOn = PreferenceRuns;

// An adapter that has learned goes on beside what it was: with the base for its reference it would begin
// with the rewards that it has.
TEST_F(PreferencesOn, AnAdapterGoesOnBesideWhatItWas) {
  w_.trained("first", with());
  const Json learned = w_.metrics("first").back();
  EXPECT_GT(learned["eval_rewards/margins"].get<double>(), 0.1);
  const std::vector<std::string> on = {
      "peft=null",    "target_modules=null", "lora_r=null", "adapter=" + w_.path("first/final"),
      "save_steps=5", "logging_steps=1",     "max_steps=8"};
  const Outcome o = w_.trained("run", with(on));
  expect_planned_is_measured(w_, "run");
  EXPECT_NE(
      (o.out + o.err)
          .find("the reference is the model with " + w_.path("first/final") + " as the run begins"),
      std::string::npos)
      << o.out << o.err;
  EXPECT_NE(o.out.find("reference: log probabilities of 12 pairs"), std::string::npos) << o.out;
  const std::vector<Json> lines = w_.metrics("run");
  EXPECT_NEAR(lines.front()["eval_loss"].get<double>(), std::log(2.0), 1e-6);
  EXPECT_EQ(lines.front()["eval_rewards/margins"], 0.0);
  EXPECT_NEAR(lines.front()["eval_logps/chosen"].get<double>(),
              learned["eval_logps/chosen"].get<double>(), 1e-4);
  EXPECT_LT(lines.back()["eval_loss"].get<double>(), 0.6);
  expect_goes_on("run", "parts", on, "adapter_model.safetensors");
  // Said or not, it is the same run.
  w_.trained("said", with(joined(on, {"precompute_ref_log_probs=true"})));
  EXPECT_EQ(w_.curve("said"), w_.curve("run"));
  // Single answers, those of others among them, and a loss without a reference.
  for (const char* loss : {"loss_type=kto", "loss_type=simpo"}) {
    const Outcome other = w_.trained(loss, with(joined(on, {loss})));
    EXPECT_EQ(other.out.find("reference: log probabilities") != std::string::npos,
              std::string_view(loss).ends_with("kto"))
        << other.out;
  }
}

}  // namespace
}  // namespace snug::e2e
