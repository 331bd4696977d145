// `snug explain`: its facts against the schedule read by hand, and its texts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/units.h"
#include "engine/io/files.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/errors.h"
#include "tests/tools/session_case.h"
#include "tests/tools/test_report_schedule.h"
#include "tools/explain/explain.h"
#include "tools/explain/run_plan.h"
#include "tools/planner/attention_choice.h"
#include "tools/planner/plan.h"

namespace snug {
namespace {

const Model& model() {
  static const Model m(test::tiny_spec({.V = 300, .P = 64, .C = 32, .L = 3, .H = 2, .F = 128}),
                       parse_precision("fp32"));
  return m;
}

PlanRequest request_of(const std::string& recompute) {
  PlanRequest r;
  r.model = &model();
  r.T = 32;
  r.global_batch = 12;
  r.micro_batch = 4;
  r.recompute = recompute;
  r.max_grad_norm = 1.0;
  return r;
}

Plan plan_with(const std::string& recompute) {
  return make_plan(request_of(recompute));
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Explain, ATensorIsWhatTheScheduleSays) {
  const Plan plan = plan_with("none");
  const ExplainFacts facts = explain(plan, model(), "h.1.fc");
  ASSERT_EQ(facts["tensors"].size(), 1u);
  EXPECT_TRUE(facts["ops"].empty());
  EXPECT_TRUE(facts["parameters"].empty());
  const ExplainFacts& t = facts["tensors"][0];
  EXPECT_EQ(t["slot"]["block"], 1);
  EXPECT_EQ(t["slot"]["policy"], "keep");
  EXPECT_EQ(t["slot"]["written_by"], "fc");
  EXPECT_EQ(t["slot"]["read_in_forward_by"], ExplainFacts({"act"}));
  ASSERT_EQ(t["lives"].size(), 2u);  // micro_first and micro_next
  for (const ExplainFacts& life : t["lives"]) {
    const Program& p = plan.schedule.at(plan.schedule.find(life["program"].get<std::string>()));
    const auto at = std::find_if(p.tensors.begin(), p.tensors.end(),
                                 [](const TensorRecord& r) { return r.name.view() == "h.1.fc"; });
    ASSERT_NE(at, p.tensors.end());
    const auto k = static_cast<size_t>(at - p.tensors.begin());
    EXPECT_EQ(life["bytes"], at->bytes);
    EXPECT_EQ(life["bytes"], 4 * 32 * 128 * 4);
    EXPECT_EQ(life["shape"], ExplainFacts({128, 128}));
    EXPECT_EQ(life["address"], p.base + p.packing.offsets[k]);
    EXPECT_EQ(life["category"], "activations");
    EXPECT_EQ(life["born"]["op"], "h.1.mlp.c_fc linear_activation_forward");
    EXPECT_EQ(life["ends"]["op"], "h.1 activation_backward");
    // The op it is born for runs while it lives, the one before does not; so at the end.
    const auto first = life["born"]["number"].get<size_t>() - 1;
    const auto last = life["ends"]["number"].get<size_t>() - 1;
    EXPECT_GT(p.ops[first].time, at->born);
    EXPECT_LE(p.ops[first - 1].time, at->born);
    EXPECT_LE(p.ops[last].time, at->died);
    EXPECT_GT(p.ops[last + 1].time, at->died);
    const int64_t peak = p.packing.peak_time;
    EXPECT_EQ(life["alive_at_peak"].get<bool>(),
              plan.schedule.at(plan.schedule.peak_program()).name == p.name && at->born <= peak &&
                  peak < at->died);
    EXPECT_EQ(life["why"], "kept for backward, which needs it up to h.1 activation_backward");
    // What shares its bytes is what overlaps in address, and none of it lives when it does.
    size_t shared = 0;
    for (size_t j = 0; j < p.tensors.size(); ++j) {
      const int64_t from = p.packing.offsets[j], to = from + p.tensors[j].bytes;
      if (j == k || to <= p.packing.offsets[k] || p.packing.offsets[k] + at->bytes <= from)
        continue;
      ++shared;
      EXPECT_TRUE(p.tensors[j].died <= at->born || at->died <= p.tensors[j].born);
    }
    const ExplainFacts& same = life["same_bytes"];
    EXPECT_EQ(static_cast<size_t>(std::count_if(
                  same.begin(), same.end(),
                  [&](const ExplainFacts& o) { return o["program"] == life["program"]; })),
              shared);
  }
}

TEST(Explain, ARecomputedSlotLivesTwice) {
  const Plan plan = plan_with("mlp");
  const ExplainFacts facts = explain(plan, model(), "h.0.fc");
  const ExplainFacts& t = facts["tensors"][0];
  EXPECT_EQ(t["slot"]["policy"], "recompute");
  bool again = false;
  for (const ExplainFacts& life : t["lives"])
    if (life["category"] == "recomputed") {
      again = true;
      EXPECT_TRUE(has(life["why"], "made again in backward, since forward dropped it")) << life;
    }
  EXPECT_TRUE(again);
  EXPECT_TRUE(has(explain_text(facts), "a slot of block 0, policy recompute: written by fc"));
}

TEST(Explain, AParameterLiesInEveryFlatTensor) {
  const Plan plan = plan_with("none");
  const ExplainFacts facts = explain(plan, model(), "h.0.mlp.c_fc.weight");
  ASSERT_EQ(facts["parameters"].size(), 1u);
  const ExplainFacts& p = facts["parameters"][0];
  EXPECT_EQ(p["elements"], 32 * 128);
  ASSERT_EQ(p["held"].size(), 4u);  // weights, gradients, two moments
  EXPECT_EQ(p["bytes"], 4 * 4 * 32 * 128);
  const Program& root = plan.schedule.at(0);
  const ParamInfo& info = model().params()[model().params().find("h.0.mlp.c_fc.weight")];
  for (const ExplainFacts& h : p["held"])
    for (size_t k = 0; k < root.tensors.size(); ++k)
      if (root.tensors[k].name.view() == h["tensor"].get<std::string>()) {
        EXPECT_EQ(h["address"], root.packing.offsets[k] + 4 * info.offset);
      }
  EXPECT_TRUE(
      has(explain_text(facts), "parameter h.0.mlp.c_fc.weight\n  (128, 32), 4096 elements"));
}

// The same bytes wherever they rest.
TEST(Explain, AParameterIsWithTheHostToo) {
  struct Place {
    const char *states, *params, *gradients;
    int host;  // tensors of a layer's parameter there
  };
  for (const Place& at : {Place{"cpu", "none", "none", 2}, Place{"cpu", "cpu", "none", 3},
                          Place{"none", "none", "cpu", 1}, Place{"cpu", "cpu", "cpu", 4}}) {
    PlanRequest r = request_of("none");
    r.offload_optimizer = at.states;
    r.offload_params = at.params;
    r.offload_gradients = at.gradients;
    const Plan plan = make_plan(r);
    const Program& root = plan.schedule.at(0);
    for (const char* name : {"h.0.mlp.c_fc.weight", "wte.weight"}) {
      const ExplainFacts facts = explain(plan, model(), name);
      const ExplainFacts& p = facts["parameters"][0];
      const ParamInfo& info = model().params()[model().params().find(name)];
      int host = 0;
      int64_t host_bytes = 0;
      for (const ExplainFacts& h : p["held"]) {
        // The host has no states of padded rows.
        const bool state =
            h["arena"] == "host" && h["tensor"].get<std::string>().starts_with("exp_avg");
        EXPECT_EQ(h["bytes"], 4 * (state ? info.real_elements() : info.elements())) << h;
        if (h["arena"] == "host") host_bytes += h["bytes"].get<int64_t>();
        host += h["arena"] == "host" ? 1 : 0;
        EXPECT_EQ(h["address"].is_null(), h["arena"] == "host") << h;
        if (h["arena"] != "device") continue;
        bool inside = false;  // of the tensor it is said to be in
        for (size_t k = 0; k < root.tensors.size(); ++k)
          if (root.tensors[k].name.view() == h["tensor"].get<std::string>())
            inside = inside || (root.packing.offsets[k] <= h["address"].get<int64_t>() &&
                                h["address"].get<int64_t>() + h["bytes"].get<int64_t>() <=
                                    root.packing.offsets[k] + root.tensors[k].bytes);
        EXPECT_TRUE(inside) << h;
      }
      EXPECT_EQ(p["host_bytes"], host_bytes) << name;
      if (std::string(name).starts_with("h.")) {
        EXPECT_EQ(host, at.host);
        EXPECT_EQ(p["held"].size(), 4u) << p;
        EXPECT_TRUE(
            has(explain_text(facts), fmt::format(" in all, {} B (", host * info.elements() * 4)));
        EXPECT_TRUE(has(explain_text(facts), "in the host's arena\n"));
      }
    }
  }
}

// A state with the host is what it is of each parameter, up to the alignment of their spans.
TEST(Explain, StatesWithTheHostAreOfRealRows) {
  const Model wide(test::tiny_spec({.V = 270, .P = 64, .C = 64, .L = 1, .H = 2, .F = 128}),
                   parse_precision("fp32"));
  PlanRequest r = request_of("none");
  r.model = &wide;
  r.offload_optimizer = "cpu";
  const Plan plan = make_plan(r);
  int64_t sum = 0;
  for (int i = 0; i < wide.params().size(); ++i) {
    const ExplainFacts facts = explain(plan, wide, wide.params()[i].name.str());
    for (const ExplainFacts& h : facts["parameters"][0]["held"])
      if (h["tensor"] == "exp_avg") sum += round_up(h["bytes"].get<int64_t>(), 256 * 4);
  }
  std::vector<int64_t> bytes;
  for (const TensorRecord& t : plan.schedule.at(0).tensors)
    if (t.name.view() == "exp_avg") bytes.push_back(t.bytes);
  EXPECT_GT(sum, 0);
  EXPECT_EQ(bytes, std::vector<int64_t>{sum});
}

// What a block leaves is the next one's input.
TEST(Explain, AnOutputGoesAsTheNextBlocksInput) {
  PlanRequest r = request_of("none");
  r.offload = "inputs";
  const Plan plan = make_plan(r);
  EXPECT_EQ(explain(plan, model(), "h.0.out")["tensors"][0]["slot"]["policy"], "offload");
  EXPECT_EQ(explain(plan, model(), "h.2.out")["tensors"][0]["slot"]["policy"], "keep");
}

TEST(Explain, OperationsByNameAndScope) {
  const Plan plan = plan_with("none");
  const ExplainFacts all = explain(plan, model(), "attention_forward");
  EXPECT_EQ(all["ops"].size(), 6u);  // three blocks, micro_first and micro_next
  for (const char* name : {"h.2 attention_forward", "h.2.attention_forward"}) {
    const ExplainFacts facts = explain(plan, model(), name);
    ASSERT_EQ(facts["ops"].size(), 2u) << name;
    EXPECT_EQ(facts["ops"][0]["makes"], ExplainFacts({"h.2.att", "h.2.lse", "attention_scratch"}));
    EXPECT_GT(facts["ops"][0]["alive_bytes"], plan.schedule.at(0).packing.height - 4096);
    EXPECT_TRUE(has(explain_text(facts), "operation h.2 attention_forward in micro_first (op "));
  }
}

TEST(Explain, PatternsAndWhatIsUnknown) {
  const Plan plan = plan_with("none");
  EXPECT_GE(explain(plan, model(), "h.?.fc")["tensors"].size(), 3u);
  EXPECT_GE(explain(plan, model(), "h.0.*")["tensors"].size(), 12u);
  const std::string text = explain_text(explain(plan, model(), "h.*"));
  EXPECT_TRUE(has(text, "more tensors; --json has them all")) << text.substr(text.size() - 200);
  test::expect_error(ErrorCode::usage,
                     {"a tensor, a parameter or an operation of this plan", "\"h.1.fcc\"",
                      "the nearest are h.1.fc, "},
                     [&] { explain(plan, model(), "h.1.fcc"); });
}

TEST(Explain, ThePeakAddsUp) {
  for (const char* recompute : {"none", "block"}) {
    const Plan plan = plan_with(recompute);
    const ExplainFacts facts = explain_peak(plan, 5);
    ASSERT_EQ(facts["holders"].size(), 5u);
    int64_t sum = facts["others"]["bytes"].get<int64_t>();
    int64_t before = INT64_MAX;
    for (const ExplainFacts& h : facts["holders"]) {
      sum += h["bytes"].get<int64_t>();
      EXPECT_LE(h["bytes"].get<int64_t>(), before);
      before = h["bytes"].get<int64_t>();
    }
    EXPECT_EQ(sum, facts["bytes"]);
    EXPECT_EQ(sum + facts["padding"].get<int64_t>(), plan.engine_bytes);
    int64_t categories = 0;
    for (const auto& [name, bytes] : facts["categories"].items())
      categories += bytes.get<int64_t>();
    EXPECT_EQ(categories, sum);
    const std::string text = explain_peak_text(facts);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7);
    EXPECT_TRUE(has(text, "peak in " + facts["program"].get<std::string>())) << text;
    EXPECT_TRUE(has(text, " others\n"));
  }
}

// The peak begins when a tensor is born, and is at the op that it is born for, whichever op was before.
TEST(Explain, ThePeakIsAtTheOpThatWhatIsBornIsFor) {
  Plan plan;
  Schedule& s = plan.schedule;
  HandRecorder(s, "root", -1, true).make("weights", "", Category::weights, 4096);
  HandRecorder r(s, "micro_first", 0, false);
  const size_t small = r.make("x", "h.0", Category::activations, 4096);
  r.op("norm_forward", "h.0", 1, 1);
  const size_t large = r.make("y", "h.1", Category::activations, 1 << 20);
  r.op("matmul_forward", "h.1", 1, 1);
  r.end(large);
  r.op("act_forward", "h.2", 1, 1);
  r.end(small);
  s.pack();
  plan.engine_bytes = s.arena_bytes();
  plan.categories = s.at_peak(&plan.padding);
  EXPECT_EQ(explain_peak(plan, 5)["op"], "h.1 matmul_forward");
  // What is born behind an op or has ended before it is not alive at it.
  const auto alive = [&](const char* op) {
    return explain(plan, model(), op)["ops"][0]["alive_bytes"].get<int64_t>();
  };
  EXPECT_EQ(alive("norm_forward"), 4096 + 4096);
  EXPECT_EQ(alive("matmul_forward"), 4096 + 4096 + (1 << 20));
  EXPECT_EQ(alive("act_forward"), 4096 + 4096);
  plan.minimum_bytes = plan.engine_bytes;
  plan.budget = 1000;
  test::expect_error(ErrorCode::out_of_memory, {"in micro_first at matmul_forward of h.1"},
                     [&] { refuse_plan(plan); });
}

// A run on a GPU is explained with the attention it had, whatever would be chosen now.
TEST(Explain, ARunsAttentionIsWhatItsPlanSays) {
  const TempFolder folder;
  const std::string config =
      "model: {type: gpt2, n_layer: 1, n_embd: 64, n_head: 1, n_positions: 64, vocab_size: 64, "
      "attn_pdrop: 0}\n"
      "device: cuda\ntarget: h100\nglobal_batch_size: 2\nthreads: 1\nprecision: bf16\n";
  write_atomic(folder / "config.resolved.yaml", config);
  for (const bool cudnn : {true, false}) {
    RunSetup made = make_setup(load_config_text(config, "run.yaml", {}));
    choose_attention(made.request, cudnn);
    const Plan plan = make_plan(made.request);
    ASSERT_TRUE(plan.fits);
    EXPECT_EQ(plan.attention == "cudnn", cudnn) << plan.attention;
    write_atomic(folder / "plan.json", plan_json(plan).dump());
    const RunPlan run = plan_of_run(folder.path());
    EXPECT_EQ(run.plan.attention, plan.attention);
    EXPECT_EQ(plan_hash(run.plan), plan_hash(plan));
  }
}

}  // namespace
}  // namespace snug
