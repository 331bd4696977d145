// Bad inputs: plans that are not followed.
#include "engine/io/fingerprint.h"
#include "tests/tools/e2e/bad_input.h"

namespace snug::e2e {
namespace {

// One value changed by one who knows how the seal is made, so that the change itself is looked at.
Make resealed(const std::string& pointer, const Json& value) {
  return [=](const Workspace& w) {
    Json plan = w.json("p.json");
    plan[Json::json_pointer(pointer)] = value;
    plan.erase("seal");
    Json sealed = plan;
    sealed.erase("planning_seconds");
    plan["seal"] = fingerprint_text(fingerprint(sealed.dump()));
    spill(w.path("p.json"), plan.dump());
  };
}

}  // namespace

// The plan of @run: one thread, no evaluation, 6 sequences at once. What a row adds comes last.
std::vector<BadRow> bad_plans() {
  const Make plan = copy("run/plan.json", "p.json");
  std::vector<BadRow> rows;
  const auto refuse = [&](const char* name, const std::vector<std::string>& keys,
                          const std::string& says, const std::vector<Make>& changes = {},
                          int code = 2) {
    BadRow row{name, {"...", "eval_fraction=0", "plan=@p.json"}, says, {plan}, code};
    row.words.insert(row.words.end(), keys.begin(), keys.end());
    row.files.insert(row.files.end(), changes.begin(), changes.end());
    rows.push_back(row);
  };
  const auto differs = [](const std::string& key, const std::string& before,
                          const std::string& now) {
    return usage(key + " as in the plan @p.json: " + before, now,
                 "the " + key + " it was made with, or plan=null to plan anew");
  };
  const auto contradicts = [](const std::string& key, const std::string& before,
                              const std::string& now) {
    return usage(key + " as in the plan @p.json: " + before, now + " (command line)",
                 "leave " + key + " out, or plan=null to plan anew");
  };
  const std::string again = "the file as snug plan --json or a run wrote it, or plan=null";

  // The file.
  refuse("plan: missing", {"plan=@none.json"},
         data("a readable file @none.json", "No such file or directory",
              "check the path; relative paths start at the current folder"));
  rows.back() = follows(rows.back(), {"...", "eval_fraction=0", "plan=@run/plan.json"});
  refuse("plan: cut", {},
         data("valid JSON", "@p.json:<*>: syntax error<*>",
              "correct the file; a JSON checker shows the place"),
         {cut("p.json", 40)});
  refuse("plan: a list", {}, data("a plan in @p.json", "a list of 1 values", again),
         {file("p.json", "[1]")});
  refuse(
      "plan: another JSON", {"plan=@run/memory.json"},
      data("a plan in @run/memory.json", "JSON without format_version, seal and decisions", again));
  refuse("plan: before plans were read", {},
         data("a plan in @p.json",
              "a plan without a seal, of a version of Snug that did not read plans", again),
         {file("p.json", "{\"hash\": \"0123\", \"decisions\": {}}")});
  refuse("plan: newer", {},
         data("a plan of format 1 in @p.json", "format 2",
              "the version of Snug that wrote it, or plan=null to plan anew"),
         {resealed("/format_version", 2)});
  const std::string edited =
      data("the plan @p.json as Snug wrote it", "its text was changed: the seal is that of another",
           "keys beside the plan (recompute=block memory=2GiB) and snug plan --json for another "
           "plan, or plan=null");
  refuse("plan: edited decision", {}, edited, {json("p.json", "/decisions/recompute", "block")});
  refuse("plan: edited bytes", {}, edited, {json("p.json", "/engine_bytes", 4096)});
  refuse("plan: edited hash", {}, edited, {json("p.json", "/hash", "0000000000000000")});
  refuse("plan: does not fit", {},
         usage("a plan that fits in @p.json", "<*>", "snug plan --json with memory that suffices"),
         {resealed("/fits", false)});
  rows.back() = follows(rows.back(), {"...", "eval_fraction=0", "plan=@run/plan.json"});
  refuse("plan: of a described device", {},
         usage("a plan made for this machine in @p.json", "one for rtx4090",
               "snug plan --json without target"),
         {resealed("/target", "rtx4090")});
  rows.back() = follows(rows.back(), {"...", "eval_fraction=0", "plan=@run/plan.json"});
  refuse("plan: a micro-batch of none", {},
         data("an integer from 1 to 1099511627776 for micro_batch in @p.json / decisions", "0",
              "correct the value of micro_batch"),
         {resealed("/decisions/micro_batch", 0)});
  refuse("plan: copies of another kind", {},
         data("packed_weights none, forward or both in @p.json / decisions", "\"some\"", again),
         {resealed("/decisions/packed_weights", "some")});

  // Another model, configuration, machine.
  refuse("plan: model", {"model.n_layer=1"},
         usage("model as in the plan @p.json: the same shapes and numerics", "another model",
               "the model keys it was made with, or plan=null to plan anew"));
  refuse("plan: precision", {"precision=bf16"}, differs("precision", "fp32", "bf16"));
  refuse("plan: optimizer", {"optim=sgd"}, differs("optim", "adamw", "sgd"));
  refuse("plan: length", {"max_length=16"}, differs("max_length", "32", "16"));
  refuse("plan: batch", {"global_batch_size=12"}, differs("global_batch_size", "6", "12"));
  refuse("plan: documents", {"packing_boundaries=true"},
         differs("packing_boundaries", "false", "true"));
  refuse("plan: evaluation", {"eval_fraction=0.1"},
         differs("eval_data or eval_fraction", "none", "some"));
  refuse("plan: clipping", {"max_grad_norm=0"}, differs("max_grad_norm", "above 0", "0"));
  refuse("plan: ring", {"save_buffer=0"}, differs("save_buffer", "<*> B", "<*> B"));
  refuse("plan: sample", {"sample_prompt=the cat"},
         differs("sample_prompt and sample_tokens", "none", "<*> tokens"));
  refuse("plan: instructions", {},
         usage("a CPU with instructions as in the plan @p.json: sse", "<*>",
               "the machine it was made on, or plan=null to plan anew"),
         {resealed("/decisions/instruction_set", "sse")});
  refuse("plan: threads", {},
         usage("threads as in the plan @p.json: 3", "1", "threads=3, or plan=null to plan anew"),
         {resealed("/decisions/threads", 3)});
  rows.back() = follows(rows.back(), {"...", "eval_fraction=0", "plan=@p.json", "threads=3"}, {},
                        "the programs of the plan @p.json");
  refuse("plan: attention", {},
         usage("attention as in the plan @p.json: f32 f32 other", "<*>",
               "the machine it was made on, or plan=null to plan anew"),
         {resealed("/decisions/attention", "f32 f32 other")});
  refuse("plan: other programs", {},
         usage("the programs of the plan @p.json: hash 0000000000000000",
               "hash <*>: this configuration, or this version of Snug, records others",
               "the configuration it was made with, or plan=null to plan anew"),
         {resealed("/hash", "0000000000000000")});
  refuse("plan: gradients with the host that backward consumes", {},
         data("update behind backward for offload_gradients cpu in @p.json / decisions",
              "\"in backward\"", again),
         {resealed("/decisions/offload_gradients", "cpu"),
          resealed("/decisions/update", "in backward")});

  refuse("plan: updates by the host of states that are not there", {},
         data("offload_optimizer cpu and offload_gradients cpu for offload_update cpu in @p.json / "
              "decisions",
              "offload_optimizer none, offload_gradients cpu", again),
         {resealed("/decisions/offload_update", "cpu"),
          resealed("/decisions/offload_gradients", "cpu")});
  refuse("plan: updates one step late that are the device's", {},
         data("offload_update cpu and offload_params none for updates one step late in @p.json / "
              "decisions",
              "offload_update gpu, offload_params none", again),
         {resealed("/decisions/update_delay", "one step late")});
  refuse(
      "plan: states on disk of updates in backward", {},
      data("update behind backward and offload_params none for offload_optimizer disk in @p.json / "
           "decisions",
           "update in backward, offload_params none", again),
      {resealed("/decisions/offload_optimizer", "disk"),
       resealed("/decisions/update", "in backward")});
  refuse("plan: weights with the host without the optimizer's state", {},
         data("offload_optimizer cpu and packed_weights none for offload_params cpu in @p.json / "
              "decisions",
              "offload_optimizer none, packed_weights none", again),
         {resealed("/decisions/offload_params", "cpu")});
  refuse("plan: weights with the host and copies of them", {},
         data("offload_optimizer cpu and packed_weights none for offload_params cpu in @p.json / "
              "decisions",
              "offload_optimizer cpu, packed_weights both", again),
         {resealed("/decisions/offload_params", "cpu"),
          resealed("/decisions/offload_optimizer", "cpu"),
          resealed("/decisions/packed_weights", "both")});
  refuse("plan: updates in backward of gradients that are clipped", {},
         data("update behind backward for max_grad_norm above 0, loss scaling or several "
              "micro-steps in @p.json / decisions",
              "\"in backward\"", again),
         {resealed("/decisions/update", "in backward")});

  // Keys beside it.
  refuse("plan and recompute", {"recompute=block"}, contradicts("recompute", "none", "block"));
  refuse("plan and offload", {"offload=inputs"}, contradicts("offload", "none", "inputs"));
  refuse("plan and offload_optimizer", {"offload_optimizer=cpu"},
         contradicts("offload_optimizer", "none", "cpu"));
  refuse("plan and offload_params", {"offload_params=cpu"},
         contradicts("offload_params", "none", "cpu"));
  refuse("plan and offload_gradients", {"offload_gradients=cpu"},
         contradicts("offload_gradients", "none", "cpu"));
  refuse("plan and head_rows", {"head_rows=64"}, contradicts("head_rows", "192", "64"));
  refuse("plan and micro-batch", {"per_device_train_batch_size=2"},
         contradicts("per_device_train_batch_size", "6", "2"));
  refuse("plan and accumulation", {"gradient_accumulation_steps=3"},
         contradicts("gradient_accumulation_steps", "1", "3"));
  refuse("plan and packed_weights", {"packed_weights=both"},
         contradicts("packed_weights", "none", "both"));
  refuse("plan and bitwise", {"bitwise=true", "global_batch_size=6"},
         usage("bitwise as in the plan @p.json: false, since it cuts a batch into micro-batches of "
               "3 and chunks of 96 rows",
               "true (command line)", "bitwise=false, or plan=null to plan anew"),
         {resealed("/decisions/micro_batch", 3), resealed("/decisions/head_rows", 96)});
  rows.back() = follows(rows.back(), {"...", "eval_fraction=0", "plan=@p.json", "bitwise=false"},
                        {}, "the programs of the plan @p.json");
  refuse("plan and target", {"target=rtx4090"},
         usage("plan or target, not both",
               "plan: @p.json (command line), target: rtx4090 (command line)", "leave target out"));
  rows.back().words[0] = "plan";  // not "...": train has no target
  rows.back().words.insert(rows.back().words.begin() + 1, "model=gpt2");
  rows.back() = follows(rows.back(), {"plan", "model=gpt2", "eval_fraction=0", "plan=@p.json"}, {},
                        "as in the plan @p.json");
  refuse("plan and --sweep", {},
         usage("--sweep without a plan to follow, since it plans for each budget",
               "plan: @p.json (command line)", "plan=null"));
  rows.back().words = {"plan",
                       "model={type: gpt2, n_layer: 2, n_embd: 32, n_head: 4, n_positions: 64, "
                       "resid_pdrop: 0.1, embd_pdrop: 0.1, attn_pdrop: 0.1}",
                       "tokenizer=@tok.json",
                       "max_length=32",
                       "global_batch_size=6",
                       "threads=1",
                       "plan=@p.json",
                       "--sweep",
                       "32MiB,64MiB"};
  refuse("plan and memory", {"memory=8MiB"},
         too_small("memory of at least <*> B (<*>): <*> B of engine and <*> B of runtime",
                   "memory of 8388608 B (<*>); the smallest plan holds at its peak: <*>",
                   "memory=<*>, or plan=null to plan anew"),
         {}, 3);
  return rows;
}

}  // namespace snug::e2e
