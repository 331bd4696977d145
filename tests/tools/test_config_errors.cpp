// Every message of the configuration: expected, found with its place, what to try.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>

#include "engine/core/error.h"
#include "optim/optimizer.h"
#include "tests/engine/io/temp_folder.h"
#include "tools/config/make_schedule.h"
#include "tools/config/optimizer_name.h"
#include "tools/config/run_config.h"

namespace snug {
namespace {

struct Message {
  ErrorCode code = ErrorCode::internal;
  std::string expected, found, advice;
};

Message caught(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  try {
    load_config_text(yaml, "run.yaml", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_FALSE(error.expected().empty() || error.found().empty() || error.advice().empty())
        << error.what();
    return {error.code(), error.expected(), error.found(), error.advice()};
  }
  ADD_FAILURE() << "accepted: " << yaml;
  return {};
}

void expect_error(const std::string& yaml, const std::string& expected, const std::string& found,
                  const std::string& advice, ErrorCode code = ErrorCode::usage,
                  const std::vector<std::string>& overrides = {}) {
  const Message m = caught(yaml, overrides);
  EXPECT_EQ(m.expected, expected);
  EXPECT_EQ(m.found, found);
  EXPECT_EQ(m.advice, advice);
  EXPECT_EQ(m.code, code);
}

void expect_error_of(const std::vector<std::string>& overrides, const std::string& expected,
                     const std::string& found, const std::string& advice,
                     ErrorCode code = ErrorCode::usage) {
  expect_error("", expected, found, advice, code, overrides);
}

TEST(ConfigErrors, UnknownKeys) {
  expect_error("seed: 1\nlerning_rate: 1", "a known configuration key",
               "\"lerning_rate\" (run.yaml:2)", "did you mean learning_rate?");
  expect_error_of({"memroy=4GiB"}, "a known configuration key", "\"memroy\" (command line)",
                  "did you mean memory?");
  expect_error("xyzzy: 1", "a known configuration key", "\"xyzzy\" (run.yaml:1)",
               "snug train --help lists the keys");
  expect_error(
      "run_name: x", "a configuration key that has a meaning here", "\"run_name\" (run.yaml:1)",
      "leave it out: metrics go to files in output_dir, nowhere else; report_to says which",
      ErrorCode::unsupported);
  expect_error_of({"seed.x=1"}, "seed without a dot, since it holds no map",
                  "\"seed.x\" (command line)", "seed=7");
  expect_error_of({"model.a.b.c.d.e.f.g.h.i.j=1"}, "at most 8 dots before the =",
                  "more in \"model.a.b.c.d.e.f.g.h.i.j...\" (command line)",
                  "for example model.n_layer=6");
  std::string dots = "a.b.c.d.e.f.g.h.i.j.k";  // 40 bytes end inside of a character
  for (int i = 0; i < 9; ++i) dots += "\u00E9";
  expect_error_of({"model." + dots + "\u00E9\u00E9=1"},
                  "at most 8 dots before the =", "more in \"model." + dots + "...\" (command line)",
                  "for example model.n_layer=6");
  expect_error_of({"model..x=1"}, "a name on both sides of each dot", "\"model..x\" (command line)",
                  "for example model.n_layer=6");
  expect_error_of({"seed"}, "key=value", "\"seed\" (command line), a key without a value",
                  "seed=7");
  expect_error_of({"sed"}, "key=value", "\"sed\" (command line)",
                  "for example memory=8GiB or model.n_layer=6");
  expect_error_of({"=3"}, "key=value", "\"=3\" (command line)",
                  "for example memory=8GiB or model.n_layer=6");
}

TEST(ConfigErrors, ReportTo) {
  const std::string expected = "report_to as all, none, tensorboard, csv";
  expect_error("report_to: wandb", expected, "\"wandb\" (run.yaml:1): metrics go to files only",
               "report_to=tensorboard, whose event files others import", ErrorCode::unsupported);
  expect_error("report_to: [csv, tensorbord]", expected, "\"tensorbord\" (run.yaml:1)",
               "did you mean tensorboard?");
  expect_error("report_to: [csv, all]", "report_to: all or none alone, or a list of the others",
               "\"all\" (run.yaml:1)", "report_to=all");
  expect_error("eval_fraction: 0.1\nearly_stopping_patience: -1",
               "early_stopping_patience of at least 1", "\"-1\" (run.yaml:2)",
               "early_stopping_patience=3");
  expect_error("early_stopping_patience: 2",
               "early_stopping_patience only with eval_data or eval_fraction",
               "early_stopping_patience: 2 (run.yaml:1)", "leave early_stopping_patience out");
  expect_error("early_stopping_threshold: 0.5",
               "early_stopping_threshold only with early_stopping_patience",
               "early_stopping_threshold: 0.5 (run.yaml:1)", "leave early_stopping_threshold out");
  expect_error("loss_watchdog: kill", "loss_watchdog as one of warn, stop, off",
               "\"kill\" (run.yaml:1)", "loss_watchdog=warn");
  EXPECT_EQ(load_config_text("report_to: []", "", {}).report_to, std::vector<std::string>{"none"});
  EXPECT_EQ(load_config_text("report_to: csv", "", {}).report_to, std::vector<std::string>{"csv"});
  EXPECT_EQ(load_config_text("report_to: [tensorboard, csv]", "", {}).report_to,
            (std::vector<std::string>{"tensorboard", "csv"}));
}

TEST(ConfigErrors, RepeatedKeys) {
  expect_error("seed: 1\nlr: 1\nseed: 2", "seed once", "it twice (run.yaml:1 and run.yaml:3)",
               "remove one of them");
  expect_error("lr: 1\nlearning_rate: 2", "learning_rate once",
               "lr (run.yaml:1) and learning_rate (run.yaml:2)", "remove one of them");
  expect_error("min_lr: 1e-9\nlr_scheduler_kwargs: {min_lr: 1e-8}", "min_lr once",
               "min_lr (run.yaml:1) and lr_scheduler_kwargs.min_lr (run.yaml:2)",
               "remove one of them");
  expect_error("model: {n_layer: 1, n_layer: 2}", "n_layer once",
               "it twice (run.yaml:1 and run.yaml:1)", "remove one of them");
}

TEST(ConfigErrors, WrongTypes) {
  expect_error("\n\nmax_steps: ten", "an integer for max_steps", "\"ten\" (run.yaml:3)",
               "max_steps=1000");
  expect_error("max_steps: 1.5", "an integer for max_steps", "\"1.5\" (run.yaml:1)",
               "max_steps=1000");
  expect_error("max_steps: 99999999999999999999", "an integer for max_steps",
               "\"99999999999999999999\" (run.yaml:1)", "max_steps=1000");
  expect_error("steps: [1]", "an integer for steps", "a list (run.yaml:1)", "max_steps=1000");
  expect_error("lr: {a: 1}", "a number for lr", "a map (run.yaml:1)", "learning_rate=1.0e-3");
  expect_error("lr: 1e-3x", "a number for lr", "\"1e-3x\" (run.yaml:1)", "learning_rate=1.0e-3");
  expect_error("lr: nan", "a number for lr", "\"nan\" (run.yaml:1)", "learning_rate=1.0e-3");
  expect_error("lr: 1e999", "a number for lr", "\"1e999\" (run.yaml:1)", "learning_rate=1.0e-3");
  expect_error("learning_rate: []", "a number for learning_rate", "a list (run.yaml:1)",
               "learning_rate=1.0e-3");
  expect_error("seed: auto", "an integer for seed", "\"auto\" (run.yaml:1)", "seed=7");
  expect_error("overwrite: maybe", "true or false for overwrite", "\"maybe\" (run.yaml:1)",
               "overwrite=true");
  expect_error("output_dir: [a]", "text for output_dir", "a list (run.yaml:1)", "output_dir=run1");
  expect_error("train_data: [a, [b]]", "text or a list of texts for train_data",
               "a list (run.yaml:1)", "train_data=[corpus.txt, more/*.jsonl]");
  expect_error("memory: [1]", "a size such as 4GiB for memory", "a list (run.yaml:1)",
               "memory=4GiB");
  expect_error("memory: 0", "a size above 0 for memory", "\"0\" (run.yaml:1)", "memory=4GiB");
  expect_error("memory: 4GX", "memory as a size such as 4GiB, 256MiB, 64KiB or bytes",
               "\"4GX\" (unknown unit: B, KiB, MiB, GiB and TiB are known, GB, G and the like too) "
               "(run.yaml:1)",
               "memory=4GiB");
  for (const char* time : {"soon", "2x", "-5", "0", "m", "1h30", "[1]", "1e99", "nan", "9e9h"}) {
    const Message m = caught(std::string("max_time: ") + time);
    EXPECT_EQ(m.expected, "a time such as 90s, 2m, 1h30m or seconds for max_time") << time;
    EXPECT_EQ(m.advice, "max_time=2m");
  }
  expect_error("resume: [1]", "text for resume", "a list (run.yaml:1)", "resume=latest");
}

TEST(ConfigErrors, LongValuesAreCutBetweenCharacters) {
  std::string text = "a", shown = "a";
  while (shown.size() < 79) shown += "\u00E9";
  while (text.size() < 200) text += "\u00E9";
  EXPECT_EQ(caught("seed: " + text).found, "\"" + shown + "...\" (run.yaml:1)");
}

TEST(ConfigErrors, Ranges) {
  expect_error("max_steps: -3", "max_steps of at least 1", "\"-3\" (run.yaml:1)", "max_steps=1000");
  expect_error("eval_fraction: 1", "eval_fraction of at least 0 and below 1", "\"1\" (run.yaml:1)",
               "eval_fraction=0.05");
  expect_error("adam_epsilon: 0", "adam_epsilon above 0", "\"0\" (run.yaml:1)",
               "adam_epsilon=1.0e-6");
  expect_error("sample_prompt: x\nsample_top_p: 1.5", "sample_top_p above 0 and at most 1",
               "\"1.5\" (run.yaml:2)", "sample_top_p=0.9");
  // As the schedule says, but by the words of the user, and in a plan too.
  expect_error("warmup_steps: 1e18", "warmup_steps of at most 1e15",
               "warmup_steps: 1.0e+18 (run.yaml:1)", "warmup_steps=20");
  for (const char* key : {"max_steps", "lr_timescale", "lr_decay_steps"})
    EXPECT_EQ(caught(std::string(key) + ": 1000000000000001").expected,
              std::string(key) + " of at most 1e15");
  for (const char* key : {"learning_rate", "weight_decay", "max_grad_norm", "global_batch_size",
                          "save_steps", "threads", "seed", "warmup_steps", "num_train_epochs"})
    EXPECT_NE(caught(std::string(key) + ": -1").expected.find(key), std::string::npos);
}

TEST(ConfigErrors, Choices) {
  const std::string choices = fmt::format("optim as one of {}", fmt::join(optimizer_names(), ", "));
  expect_error("optim: admw", choices, "\"admw\" (run.yaml:1)", "did you mean adamw?");
  expect_error("optim: lomo", choices,
               "\"lomo\" (run.yaml:1), which looks at whole matrices and is not built",
               "optim=adamw", ErrorCode::unsupported);
  EXPECT_EQ(load_config_text("optim: paged_adamw_bnb_8bit", "run.yaml", {}).optim,
            "paged_adamw_8bit");
  EXPECT_EQ(
      optimizer_name(load_config_text("optim: lion\noptim_state: bf16", "run.yaml", {})).text(),
      "lion_bf16");
  expect_error("optim: lion_8bit\noptim_state: 4bit", "optim_state as the name of optim says: 8bit",
               "optim_state: 4bit (run.yaml:2), optim: lion_8bit (run.yaml:1)",
               "optim=lion optim_state=4bit");
  for (const std::string name : {"adamw", "lion", "rmsprop"})
    expect_error(fmt::format("optim: {}_32bit\noptim_state: 8bit", name),
                 "optim_state as the name of optim says: fp32",
                 fmt::format("optim_state: 8bit (run.yaml:2), optim: {}_32bit (run.yaml:1)", name),
                 fmt::format("optim={} optim_state=8bit", name));
  expect_error("allow: [no_master]", "precision: bf16 for the permission no_master",
               "allow: [no_master] (run.yaml:1), precision: fp32 (default)",
               "precision=bf16, or no_master out of allow");
  expect_error("optim: paged_lion\noffload_optimizer: none",
               "offload_optimizer: auto or cpu for an optimizer whose states may be paged",
               "optim: paged_lion (run.yaml:1), offload_optimizer: none (run.yaml:2)",
               "optim=lion, or leave offload_optimizer out");
  expect_error("optim: sgd_8bit", "sgd_momentum above 0 for states in 8bit",
               "optim: sgd_8bit (run.yaml:1), sgd_momentum: 0 (default)",
               "sgd_momentum=0.9, or optim=sgd");
  expect_error("optim: lookahead", choices, "\"lookahead\" (run.yaml:1)", "optim=adamw");
  for (const char* gpu : {"gpu", "mps"})
    expect_error(std::string("device: ") + gpu,
                 "device as one of auto, cpu, emu, cuda, cuda:0, cuda:1, cuda:2, cuda:3, cuda:4, "
                 "cuda:5, cuda:6, cuda:7",
                 std::string("\"") + gpu + "\" (run.yaml:1), no name of a device here",
                 "device=cuda for a GPU of NVIDIA's, or device=cpu", ErrorCode::unsupported);
  EXPECT_EQ(caught("task: question_answering").code, ErrorCode::unsupported);
  expect_error("device: emu\npacked_weights: both",
               "packed_weights: auto or none for device: emu or cuda, whose kernels read weights "
               "as they are",
               "packed_weights: both (run.yaml:2), device: emu (run.yaml:1)",
               "packed_weights=none");
  EXPECT_EQ(caught("device: tpu").code, ErrorCode::usage);
  expect_error("precision: tf32", "precision fp32, bf16 or fp16 for a device that is not cuda",
               "precision: tf32, a mode of the matrix units of GPUs (run.yaml:1), and device: auto "
               "(default)",
               "device=cuda or precision=fp32", ErrorCode::unsupported);
  EXPECT_EQ(load_config_text("tf32: true\ndevice: cuda", "run.yaml", {}).precision, "tf32");
  EXPECT_EQ(caught("tf32: true").code, ErrorCode::unsupported);
  expect_error("bf16: maybe", "true or false for bf16", "\"maybe\" (run.yaml:1)", "bf16=true");
  expect_error("allow: [adam8bits]",
               "allow with names among micro_batch, head_rows, kernels, gradients, "
               "update_delay, bf16_gradients, no_master, stale_update",
               "\"adam8bits\" (run.yaml:1)", "allow=[micro_batch]");
  expect_error("allow: adam8bit", "a permission that something here can use",
               "\"adam8bit\" (run.yaml:1), which is not built",
               "leave allow out; optim=adamw_8bit asks for it by name", ErrorCode::unsupported);
  expect_error("lr_scheduler_kwargs: {min_lrs: 1}",
               "lr_scheduler_kwargs with names among min_lr, min_lr_rate, num_warmup_steps, "
               "num_decay_steps, decay_type, num_cycles, power, timescale",
               "\"min_lrs\" (run.yaml:1)", "did you mean min_lr?");
  expect_error("lr_scheduler_kwargs: 3", "a map for lr_scheduler_kwargs", "\"3\" (run.yaml:1)",
               "lr_scheduler_kwargs='{min_lr_rate: 0.1}'");
}

TEST(ConfigErrors, ModelAndRecompute) {
  expect_error("model: [a]", "model as a name, a folder or a map of its config keys",
               "a list (run.yaml:1)",
               "model='{type: gpt2, n_layer: 4, n_embd: 128, n_head: 4, n_positions: 128}'");
  expect_error("model: {type: gpt2, model_type: bert}",
               "model.type and model.model_type to be the "
               "same",
               "\"gpt2\" (run.yaml:1) and \"bert\" (run.yaml:1)", "leave one of them out");
  expect_error("model: {base: [1]}", "text for model.base", "a list (run.yaml:1)",
               "model.base=gpt2");
  expect_error("recompute: [block]", "recompute as a policy or a map of layers to policies",
               "a list (run.yaml:1)", "recompute=block");
  for (const char* layers : {"a", "5-2", "1-", "-1", "99999999999999999999"})
    EXPECT_EQ(caught("recompute: {\"" + std::string(layers) + "\": block}").expected,
              "layers such as 3 or 0-5 in the map of recompute");
  expect_error("recompute: {0-5: block, 3: none}", "each layer once in the map of recompute",
               "layer 3 twice (run.yaml:1)", "recompute='{0: block}'");
  expect_error("recompute: {0: [block]}", "text for the layers of recompute", "a list (run.yaml:1)",
               "recompute: {0-5: block}");
  expect_error("offload: [block]", "offload as a policy or a map of layers to policies",
               "a list (run.yaml:1)", "offload=block");
  expect_error("offload: {0-5: block, 3: none}", "each layer once in the map of offload",
               "layer 3 twice (run.yaml:1)", "offload='{0: inputs}'");
  expect_error("offload: {b: block}", "layers such as 3 or 0-5 in the map of offload",
               "\"b\" (run.yaml:1)", "offload='{0: inputs}'");
}

TEST(ConfigErrors, Contradictions) {
  expect_error("global_batch_size: 32\nbatch_size: 4",  // 32 = 4 x 8
               "global_batch_size = per_device_train_batch_size x gradient_accumulation_steps",
               "global_batch_size: 32 (run.yaml:1), per_device_train_batch_size: 4 (run.yaml:2), "
               "gradient_accumulation_steps: 5 (command line)",
               "gradient_accumulation_steps=8", ErrorCode::usage,
               {"gradient_accumulation_steps=5"});
  expect_error("micro_batch_size: 5",
               "global_batch_size as a multiple of "
               "per_device_train_batch_size",
               "global_batch_size: 32 (default), per_device_train_batch_size: 5 (run.yaml:1)",
               "global_batch_size=35");
  expect_error("global_batch_size: 8\ngradient_accumulation_steps: 3",
               "global_batch_size as a multiple of gradient_accumulation_steps",
               "global_batch_size: 8 (run.yaml:1), gradient_accumulation_steps: 3 (run.yaml:2)",
               "global_batch_size=9");
  expect_error("global_batch_tokens: 1000\nmax_length: 256",
               "global_batch_tokens as a multiple of max_length 256",
               "global_batch_tokens: 1000 (run.yaml:1), max_length: 256 (run.yaml:2)",
               "global_batch_tokens=1024");
  expect_error("global_batch_tokens: 1024\nmax_length: 256\nglobal_batch_size: 5",
               "global_batch_tokens = global_batch_size x max_length",
               "global_batch_tokens: 1024 (run.yaml:1), global_batch_size: 5 (run.yaml:3), "
               "max_length: 256 (run.yaml:2)",
               "leave global_batch_size out");
  expect_error("global_batch_tokens: 1024\nmax_length: 256\nbatch_size: 3",
               "global_batch_size as a multiple of per_device_train_batch_size",
               "a batch of 4 samples from global_batch_tokens: 1024 (run.yaml:1), "
               "per_device_train_batch_size: 3 (run.yaml:3)",
               "global_batch_size=6");
  EXPECT_EQ(
      caught("batch_size: 9000000000000000000\ngradient_accumulation_steps: 9000000000").expected,
      "per_device_train_batch_size of at most 1048576");
  expect_error("warmup_steps: 10\nwarmup_ratio: 0.1", "warmup_steps or warmup_ratio, not both",
               "warmup_steps: 10 (run.yaml:1), warmup_ratio: 0.1 (run.yaml:2)",
               "leave warmup_ratio out");
  const std::string free = "optim: schedule_free_adamw\n";
  expect_error(free + "lr_scheduler_type: cosine",
               "lr_scheduler_type: constant for an optimizer that averages in place of a schedule",
               "optim: schedule_free_adamw (run.yaml:1), lr_scheduler_type: cosine (run.yaml:2)",
               "leave lr_scheduler_type out; warmup_steps is the optimizer's");
  expect_error(free + "warmup_ratio: 0.1", "warmup_steps as a number of steps for this optimizer",
               "optim: schedule_free_adamw (run.yaml:1), warmup_ratio: 0.1 (run.yaml:2)",
               "warmup_steps=100, or leave it out");
  expect_error(free + "warmup_steps: 5\noptim_args: warmup_steps=6",
               "warmup_steps once, as a key or in optim_args",
               "warmup_steps: 5 (run.yaml:2), optim_args: \"warmup_steps=6\" (run.yaml:3)",
               "leave it out of optim_args");
  expect_error(free + "precision: bf16\nallow: [no_master]",
               "parameters in fp32 for an optimizer that goes to its average and back",
               "optim: schedule_free_adamw (run.yaml:1), allow: [no_master] (run.yaml:3)",
               "no_master out of allow, or optim=adamw");
  expect_error(free + "warmup_steps: 2000000000",
               "warmup_steps of at most 1000000000 for this optimizer",
               "optim: schedule_free_adamw (run.yaml:1), warmup_steps: 2000000000 (run.yaml:2)",
               "warmup_steps=100, or leave it out");
  const std::string kahan =
      "precision: bf16\nallow: [no_master]\noptim_args: use_kahan_summation=true\n";
  expect_error(kahan + "optim: sgd",
               "states in bf16 for use_kahan_summation, whose compensation rests with them",
               "optim: sgd, states in fp32 (run.yaml:3)", "optim=sgd_bf16");
  EXPECT_NO_THROW(load_config_text(kahan + "optim: sgd_bf16", "run.yaml", {}));  // what is advised
  expect_error("optim: adamw_bf16\nprecision: bf16\noptim_args: use_kahan_summation=true",
               "the permission no_master for use_kahan_summation, which takes a master's place",
               "allow: [], optim_args: use_kahan_summation=true (run.yaml:3)",
               "allow=[no_master] precision=bf16");
  expect_error("min_lr: 0\nmin_lr_ratio: 0.1", "min_lr or min_lr_ratio, not both",
               "min_lr: 0 (run.yaml:1), min_lr_ratio: 0.1 (run.yaml:2)", "leave min_lr_ratio out");
  expect_error("min_lr: 0.1", "min_lr at most learning_rate",
               "min_lr: 0.1 (run.yaml:1), learning_rate: 0.0006 (default)", "leave min_lr out");
  expect_error("warmup_steps: 10.5", "warmup_steps as whole steps, or below 1 as a share",
               "warmup_steps: 10.5 (run.yaml:1)", "warmup_steps=10");
  expect_error("eval_data: a\neval_fraction: 0.1", "eval_data or eval_fraction, not both",
               "eval_data: [a] (run.yaml:1), eval_fraction: 0.1 (run.yaml:2)",
               "leave eval_fraction out");
  expect_error("resume: latest\noverwrite: true", "resume or overwrite, not both",
               "resume: latest (run.yaml:1), overwrite: true (run.yaml:2)", "leave overwrite out");
  expect_error("bitwise: true\nallow: [micro_batch]", "no permissions beside bitwise: true",
               "allow: [micro_batch] (run.yaml:2), bitwise: true (run.yaml:1)", "allow=[]");
  expect_error("optim: sgd\nsgd_nesterov: true",
               "sgd_nesterov with a momentum and without dampening",
               "sgd_nesterov: true (run.yaml:2), sgd_momentum: 0 (default), sgd_dampening: 0 "
               "(default)",
               "sgd_momentum=0.9");
}

// A schedule has the steps of its run, or shares of a time whose steps nobody knows.
TEST(ConfigErrors, SchedulesThatAreNotOfTheRun) {
  expect_error("max_time: 60\nwarmup_steps: 100",
               "warmup_steps below 1, a share of the time, where max_time alone bounds the run",
               "warmup_steps: 100 (run.yaml:2), max_time: 60s (run.yaml:1)",
               "warmup_steps=0.1, or set max_steps");
  const std::string wsd = "lr_scheduler_type: warmup_stable_decay\n";
  expect_error(wsd + "max_time: 60\nlr_decay_steps: 1",
               "lr_decay_steps below 1, a share of the time, where max_time alone bounds the run",
               "lr_decay_steps: 1 (run.yaml:3), max_time: 60s (run.yaml:2)",
               "lr_decay_steps=0.1, or set max_steps");
  expect_error("lr_scheduler_type: inverse_sqrt\nmax_time: 60\nlr_timescale: 100",
               "max_steps or num_train_epochs for lr_timescale, a count of steps",
               "lr_timescale: 100 (run.yaml:3), max_time: 60s (run.yaml:2)",
               "leave lr_timescale out, or set max_steps");
  for (const char* good :
       {"max_time: 60\nwarmup_steps: auto", "max_time: 60\nwarmup_steps: 0.5",
        "max_time: 60\nmax_steps: 500\nwarmup_steps: 100", "max_time: 60\nwarmup_ratio: 1",
        "lr_scheduler_type: inverse_sqrt\nmax_time: 60",
        "max_time: 60\nepochs: 1\nwarmup_steps: 2"})
    EXPECT_NO_THROW(load_config_text(good, "run.yaml", {})) << good;
  expect_error(wsd + "max_steps: 500\nlr_decay_steps: 0.95",
               "warmup_steps + lr_decay_steps of at most 500 steps",
               "50 + 475: warmup_steps: auto (default), lr_decay_steps: 0.95 (run.yaml:3)",
               "lr_decay_steps=0.9, or a shorter warm-up");
  expect_error(wsd + "max_steps: 500\nlr_decay_steps: 1000\nwarmup_ratio: 0.3",
               "warmup_steps + lr_decay_steps of at most 500 steps",
               "150 + 500: warmup_ratio: 0.3 (run.yaml:4), lr_decay_steps: 1000 (run.yaml:3)",
               "lr_decay_steps=350, or a shorter warm-up");
  // Four of seven are 0.571428: more than four places of it would be five steps.
  expect_error(wsd + "max_steps: 7\nlr_decay_steps: 0.9\nwarmup_steps: 3",
               "warmup_steps + lr_decay_steps of at most 7 steps",
               "3 + 7: warmup_steps: 3 (run.yaml:4), lr_decay_steps: 0.9 (run.yaml:3)",
               "lr_decay_steps=0.5714, or a shorter warm-up");
  EXPECT_NO_THROW(load_config_text(wsd + "max_steps: 7\nlr_decay_steps: 0.5714\nwarmup_steps: 3",
                                   "run.yaml", {}));
  expect_error(wsd + "max_time: 60\nwarmup_ratio: 1",
               "warmup_steps + lr_decay_steps of at most all of max_time",
               "1000 + 100 of 1000 parts: warmup_ratio: 1 (run.yaml:3), lr_decay_steps: 0.1 "
               "(default)",
               "a shorter warm-up");
  // Of epochs the steps are known when the data is.
  const RunConfig epochs = load_config_text(wsd + "epochs: 1\nlr_decay_steps: 90", "run.yaml", {});
  EXPECT_NO_THROW(schedule_config(epochs, 100));
  EXPECT_THROW(schedule_config(epochs, 98), Error);
}

// What stands before would be lost without a word.
TEST(ConfigErrors, AWholeBehindAPartOfIt) {
  expect_error("", "model before what replaces a part of it",
               "model behind model.n_layer=2 (command line), which it would drop",
               "model=... first, then model.n_layer=2", ErrorCode::usage,
               {"model.n_layer=2", "model=gpt2"});
  expect_error("", "recompute before what replaces a part of it",
               "recompute behind recompute.0-1=block (command line), which it would drop",
               "recompute=... first, then recompute.0-1=block", ErrorCode::usage,
               {"recompute.0-1=block", "recompute=none"});
  EXPECT_EQ(load_config_text("model: x", "run.yaml", {"model=gpt2", "model.n_layer=2"}).model,
            "gpt2");
}

TEST(ConfigErrors, KeysWithoutEffect) {
  const auto only_with = [](const std::string& yaml, const std::string& expected,
                            const std::string& found, const std::string& advice) {
    const Message m = caught(yaml);
    EXPECT_EQ(m.expected.find(expected), 0u) << m.expected;
    EXPECT_EQ(m.found, found);
    EXPECT_EQ(m.advice, advice);
  };
  only_with("optim: lion\nadam_epsilon: 1e-6",
            "adam_epsilon only with optim: adam, adam_mini, adamw, ",
            "adam_epsilon: 1.0e-06 (run.yaml:2)", "leave adam_epsilon out");
  only_with("optim: sgd\nadam_beta1: 0.8", "adam_beta1 only with optim: adam, adam_mini, adamw, ",
            "adam_beta1: 0.8 (run.yaml:2)", "leave adam_beta1 out");
  const std::vector<std::string> lines = {
      "sgd_momentum: 0.9",
      "optim: sgd\nsgd_dampening: 0.5",
      "lr_scheduler_type: constant\nwarmup_steps: 10",
      "lr_scheduler_type: linear\nmin_lr: 1e-6",
      "lr_decay_steps: 0.5",
      "lr_decay_type: linear",
      "lr_power: 2",
      "lr_timescale: 2",
      "lr_scheduler_type: linear\nlr_num_cycles: 2",
      "sample_tokens: 5",
      "sample_prompt: x\nsample_temperature: 0\nsample_top_k: 3",
      "max_eval_samples: 5",
      "per_device_eval_batch_size: 5",
      "eval_steps: 5",
  };
  for (const std::string& yaml : lines)
    EXPECT_NE(caught(yaml).expected.find(" only with "), std::string::npos) << yaml;
  // At its default a key may stay.
  EXPECT_NO_THROW(load_config_text("optim: sgd\nadam_beta1: 0.9", "run.yaml", {}));
  EXPECT_NO_THROW(load_config_text(resolved_yaml(load_config_text("optim: lion", "run.yaml", {})),
                                   "run.yaml", {"optim=sgd"}));
}

TEST(ConfigErrors, BrokenFiles) {
  expect_error("seed: [1", "YAML or JSON", "end of sequence flow not found (run.yaml:1)",
               "write plain keys and values, for example max_steps: 1000");
  expect_error("- a", "a configuration of keys and values", "a list (run.yaml:1)",
               "write lines such as max_steps: 1000");
  expect_error("a: 1\n---\nb: 2", "one YAML document", "a second one (run.yaml:3)",
               "remove the line ---");
  expect_error("seed: &a 1", "a configuration without YAML anchors", "an anchor (run.yaml:1)",
               "write the value out where it is used");
  expect_error("a: &x [1]\nb: *x", "a configuration without YAML anchors", "an anchor (run.yaml:1)",
               "write the value out where it is used");
  expect_error("seed: !!int 3", "a configuration without YAML tags",
               "tag:yaml.org,2002:int (run.yaml:1)",
               "write plain keys and values, for example max_steps: 1000");
  expect_error("? [a]\n: 1", "a name before the colon", "a list (run.yaml:1)",
               "write plain keys and values, for example max_steps: 1000");
  expect_error("sample_prompt: \"a\\0b\"", "text without zero bytes", "one (run.yaml:1)",
               "write plain keys and values, for example max_steps: 1000");
  const std::string longest = "seed: 7\n" + std::string((1 << 20) - 8, '#');
  EXPECT_EQ(load_config_text(longest, "run.yaml", {}).seed, 7);
  EXPECT_EQ(caught(longest + "#").expected, "a configuration of at most 1 MiB");
  const TempFolder folder;
  std::ofstream(folder / "run.yaml") << longest;
  EXPECT_EQ(load_config(folder / "run.yaml", {}).seed, 7);
  std::ofstream(folder / "run.yaml") << longest << '#';
  EXPECT_ERROR(load_config(folder / "run.yaml", {}), ErrorCode::data, "at most 1048576 bytes",
               "1048577 bytes", "the file you meant");
  std::string many = "train_data:\n";
  for (int i = 0; i < 10001; ++i) many += "- a\n";
  EXPECT_EQ(caught(many).expected, "at most 10000 values in a configuration");
  try {
    load_config("/no/such/run.yaml", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data);
    EXPECT_NE(std::string(error.what()).find("/no/such/run.yaml"), std::string::npos);
  }
}

TEST(ConfigErrors, DeepOrBrokenInputDoesNotCrash) {
  const std::string n = "at most 16 levels in a configuration";
  EXPECT_EQ(
      caught("model: {a: " + std::string(17, '[') + "1" + std::string(17, ']') + "}").expected, n);
  for (const char* open : {"[", "{a: ", "- ", "? ", "{? ", "[{", "a: {"}) {
    std::string text;
    while (text.size() < 100'000) text += open;
    caught(text);
    caught("model: " + text);
  }
  // A valid file with every byte replaced in turn: an error or a configuration, nothing else.
  const std::string good =
      "model: {type: gpt2, n_layer: 4}\nlr: 5e-5\nmemory: '4GiB'\nrecompute: {0-5: block}\n"
      "train_data: [a, \"b\\x41\"]\nmax_time: 2m # c\n";
  int accepted = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char c : std::string("\0\n\t:{}[]\"'&*!%@`?-,#\x80\xff", 21)) {
      std::string text = good;
      text[i] = c;
      try {
        resolved_yaml(load_config_text(text, "run.yaml", {}));
        ++accepted;
      } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), 2) << error.what();
      }
    }
  }
  EXPECT_GT(accepted, 10);
}

TEST(ConfigErrors, MaxLengthAboveTheModel) {
  try {
    resolve_sizes(load_config_text("max_length: 256", "run.yaml", {}), 128);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.expected(), "max_length of at most 128, the model's positions");
    EXPECT_EQ(error.found(), "max_length: 256 (run.yaml:1)");
    EXPECT_EQ(error.advice(), "max_length=128");
  }
}

}  // namespace
}  // namespace snug
