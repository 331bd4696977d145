// What a resume refuses: files that are not as they were written, other versions, states that no
// run can have. And which checkpoint `latest` is.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/fingerprint.h"
#include "tests/engine/io/temp_folder.h"
#include "tools/checkpoint/checkpoint.h"
#include "tools/checkpoint/checkpoint_seal.h"
#include "tools/checkpoint/output_lock.h"
#include "tools/checkpoint/pinning.h"
#include "tools/planner/decision_table.h"
#include "tools/session/computes_on.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

void spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void seal(const std::string& folder, int64_t step) {
  CheckpointSeal seal;
  seal.begin(step);
  fs::remove(folder + "/COMPLETE");
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string bytes = read_file(entry.path().string());
    seal.add(entry.path().filename().string(), static_cast<int64_t>(bytes.size()),
             fingerprint(bytes));
  }
  seal.close();
  spill(folder + "/COMPLETE", seal.text());
}

RunPosition position(int64_t step) {
  RunPosition at;
  at.step = at.updates = step;
  at.samples = 6 * step;
  at.elapsed = 1.5;
  at.watch.seen = step;
  return at;
}

Pinned pinned() {
  Pinned p;
  p.global_batch = 6;
  p.T = 32;
  p.decisions.micro_batch = 3;
  p.decisions.head_rows = 64;
  p.threads = 1;
  return p;
}

std::string make(const TempFolder& tmp, int64_t step) {
  const std::string folder = tmp / ("checkpoint-" + std::to_string(step));
  fs::create_directory(folder);
  spill(folder + "/model.safetensors", std::string(3000, 'm') + std::to_string(step));
  spill(folder + "/empty", "");
  spill(folder + "/snug_state.json",
        checkpoint_state_json(position(step), pinned(), {{"learning_rate", "0.1"}}).dump());
  seal(folder, step);
  return folder;
}

// The Error of reading it; nullopt if it is read.
std::optional<Error> refusal_of(const std::string& folder) {
  try {
    read_checkpoint(folder);
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

TEST(CheckpointSeal, TheMarkerIsWhatItsHeaderSays) {
  TempFolder tmp;
  const std::string folder = make(tmp, 7);
  const std::string text = read_file(folder + "/COMPLETE");
  EXPECT_EQ(text.rfind("snug checkpoint 4\nstep 7\n", 0), 0u);
  EXPECT_NE(text.find("\nef46db3751d8e999 0 empty\n"), std::string::npos)
      << "XXH64 of nothing, by its specification\n"
      << text;
  EXPECT_EQ(find_checkpoint_damage(folder), std::nullopt);
  spill(folder + "/notes.txt", "of the user: not looked at");
  EXPECT_EQ(find_checkpoint_damage(folder), std::nullopt);
}

// Every byte of small files and many of the others with one bit changed; one byte less, one more.
TEST(CheckpointSeal, AnyChangedByteIsFound) {
  TempFolder tmp;
  const std::string folder = make(tmp, 7);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string path = entry.path().string(), good = read_file(path);
    const std::string name = entry.path().filename().string();
    const auto refused = [&](const std::string& bytes) {
      spill(path, bytes);
      const auto error = refusal_of(folder);
      ASSERT_TRUE(error.has_value()) << name;
      EXPECT_EQ(error->code(), ErrorCode::data);
      EXPECT_NE(error->expected().find(path + " as it was written: "), std::string::npos)
          << error->what();
      EXPECT_NE(error->found().find("it was changed, or the disk gives back other bytes"),
                std::string::npos);
      EXPECT_NE(error->advice().find("a copy of it from elsewhere"), std::string::npos);
    };
    for (size_t i = 0; i<good.size(); i += good.size()> 800 ? 11 : 1) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << i % 8));
      refused(bytes);
    }
    refused(good + "x");
    if (!good.empty()) refused(good.substr(0, good.size() - 1));
    if (name != "COMPLETE") {
      fs::remove(path);
      const auto damage = find_checkpoint_damage(folder);
      ASSERT_TRUE(damage.has_value());
      EXPECT_EQ(damage->file, path);
      EXPECT_EQ(damage->found, "no such file");
    }
    spill(path, good);
    EXPECT_EQ(find_checkpoint_damage(folder), std::nullopt);
  }
}

TEST(CheckpointSeal, OtherVersionsAndForeignFolders) {
  TempFolder tmp;
  const auto says = [&](const std::string& folder, const std::string& found) {
    const auto error = refusal_of(folder);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::data);
    EXPECT_NE(error->expected().find("a checkpoint of version 4 in " + folder), std::string::npos)
        << error->what();
    EXPECT_EQ(error->found(), found);
    EXPECT_NE(error->advice().find("model="), std::string::npos);
  };
  // A newer one that is whole; changed, it is damaged and not new.
  const std::string newer = make(tmp, 1);
  std::string text = read_file(newer + "/COMPLETE");
  text = "snug checkpoint 12\nanything else\n";
  spill(newer + "/COMPLETE", text + fingerprint_text(fingerprint(text)) + " seal\n");
  says(newer, "version 12");
  // Version 2 had a COMPLETE with the step alone, version 1 its state in trainer_state.json.
  const std::string second = make(tmp, 2);
  spill(second + "/COMPLETE", "2\n");
  Json state = Json::parse(read_file(second + "/snug_state.json"));
  state["snug_version"] = 2;
  spill(second + "/snug_state.json", state.dump());
  says(second, "version 2");
  fs::remove(second + "/snug_state.json");
  spill(second + "/trainer_state.json", R"({"snug_version": 1})");
  says(second, "version 1");
  spill(second + "/trainer_state.json", R"({"global_step": 2})");
  says(second, "no such file: a checkpoint that Snug did not write");
  spill(second + "/snug_state.json", "{}");
  says(second, "a file that Snug did not write");
  // This version, and a marker that says nothing of it.
  const std::string third = make(tmp, 3);
  spill(third + "/COMPLETE", "3\n");
  EXPECT_NE(refusal_of(third)->expected().find("COMPLETE as it was written"), std::string::npos);
  fs::remove(third + "/COMPLETE");
  EXPECT_NE(refusal_of(third)->expected().find("a complete checkpoint"), std::string::npos);
}

TEST(CheckpointLatest, IsTheNewestThatIsWhole) {
  TempFolder tmp;
  EXPECT_EQ(latest_checkpoint(tmp.path()), std::nullopt);
  EXPECT_EQ(find_intact_checkpoint(tmp.path()).folder, "");
  for (const int64_t step : {2, 4, 10, 12, 14}) make(tmp, step);
  fs::create_directory(tmp / "checkpoint-16.tmp");
  EXPECT_EQ(find_intact_checkpoint(tmp.path()).folder, tmp / "checkpoint-14");
  fs::remove(tmp / "checkpoint-14/COMPLETE");
  spill(tmp / "checkpoint-12/empty", "x");
  fs::remove(tmp / "checkpoint-10/model.safetensors");
  EXPECT_EQ(latest_checkpoint(tmp.path()), tmp / "checkpoint-12");
  FoundCheckpoint found = find_intact_checkpoint(tmp.path());
  EXPECT_EQ(found.folder, tmp / "checkpoint-4");
  EXPECT_EQ(found.torn, tmp / "checkpoint-14");
  EXPECT_EQ(found.damaged.substr(0, found.damaged.find('\n')),
            (tmp / "checkpoint-12") + "/empty: 1 bytes, XXH64 " +
                fingerprint_text(fingerprint("x")) +
                "; 0 bytes, XXH64 ef46db3751d8e999 when it was written");
  EXPECT_NE(found.damaged.find("checkpoint-10/model.safetensors: no such file; 3002 bytes"),
            std::string::npos)
      << found.damaged;
  // A stranger is no damage: it is refused, not passed over.
  make(tmp, 20);
  spill(tmp / "checkpoint-20/COMPLETE", "20\n");
  spill(tmp / "checkpoint-20/snug_state.json", R"({"snug_version": 2})");
  EXPECT_THROW(find_intact_checkpoint(tmp.path()), Error);
}

// A file in which no two numbers are alike is read and written as it was: no field stands for another.
TEST(CheckpointState, EveryFieldComesBackAsItself) {
  TempFolder tmp;
  const std::string folder = make(tmp, 900);
  Json j = Json::parse(R"({
    "global_step": 900, "updates": 801, "untrained_steps": 42, "samples": 5400,
    "elapsed_seconds": 1234.5, "window_loss": 77.25, "window_tokens": 4321, "window_steps": 31,
    "window_pairs": 64, "start_eval_loss": 5.125, "best_eval_loss": 3.25, "best_eval_step": 640,
    "evals_without_gain": 3, "best_saved_loss": 3.5, "best_saved_step": 620,
    "metric_for_best_model": "eval_f1", "greater_is_better": true, "start_metric": 0.25,
    "best_metric": 0.875, "best_saved_metric": 0.75, "evaluation_due": true,
    "loss_scaling": {"loss_scale": 512.0, "growth_tracker": 19, "init_scale": 2048.0},
    "hyperparameters": {"learning_rate": "0.1", "weight_decay": "0.2"},
    "loss_watch": {"seen": 790, "lowest": 2.125, "lowest_step": 788, "norm_said": 701,
                   "loss_said": 702, "norm_unsaid": 5, "loss_unsaid": 6, "diverged": true},
    "pinned": {"seed": 101, "data_seed": 102, "train_tokens": 103, "train_samples": 104,
               "data": "of data", "global_batch": 6, "max_length": 32, "packing_boundaries": true,
               "micro_batch": 3, "head_rows": 64, "gradients": "bf16", "threads": 2,
               "precision": "fp16", "optimizer": "of optim", "instruction_set": "of isa",
               "recompute": "of recompute", "attention": "of attention",
               "matmul_autotune": true, "model": "of model", "frozen": "of frozen",
               "adapters": "of adapters", "base": "of base"}})");
  const Json empty = Json::parse(read_file(folder + "/snug_state.json"));
  j["snug_version"] = empty["snug_version"];
  for (const char* key : {"kernels", "computes_on"}) j["pinned"][key] = empty["pinned"][key];
  double number = 10'000;
  for (const char* key : {"window_preferences", "window_rewards"})
    for (size_t i = 0; i < empty[key].size(); ++i) j[key].push_back(number++);
  for (const char* key : {"losses", "norms"})
    for (size_t i = 0; i < empty["loss_watch"][key].size(); ++i)
      j["loss_watch"][key].push_back(number++);
  for (const char* part : {"pinned", "loss_watch"})
    for (const auto& item : empty[part].items())
      EXPECT_TRUE(j[part].contains(item.key()))
          << "a field that this test has to have: " << item.key();
  for (const auto& item : empty.items()) EXPECT_TRUE(j.contains(item.key())) << item.key();
  spill(folder + "/snug_state.json", j.dump());
  seal(folder, 900);
  const Checkpoint c = read_checkpoint(folder);
  const Json again = checkpoint_state_json(c.position, c.pinned, c.hyperparameters);
  EXPECT_EQ(again, j) << Json::diff(j, again).dump(1);
  // What is read is read into its own field.
  EXPECT_EQ(c.position.best_metric, 0.875);
  EXPECT_EQ(c.position.best_saved_metric, 0.75);
  EXPECT_EQ(c.position.watch.norm_said, 701);
  EXPECT_EQ(c.position.window_steps, 31);
  EXPECT_EQ(c.position.untrained, 42);
  EXPECT_EQ(c.pinned.data_seed, 102);
}

// Runs with loss scaling have one more object; those of others, older ones too, are read without.
TEST(CheckpointState, LossScalingComesBackAndIsBounded) {
  TempFolder tmp;
  const std::string folder = make(tmp, 9);
  EXPECT_EQ(read_checkpoint(folder).position.loss_scale, 1.0f);
  Json older = Json::parse(read_file(folder + "/snug_state.json"));
  older.erase("loss_scaling");
  const auto write = [&](const Json& j) {
    spill(folder + "/snug_state.json", j.dump());
    seal(folder, 9);
  };
  write(older);
  EXPECT_EQ(refusal_of(folder), std::nullopt);

  RunPosition at = position(9);
  at.updates = 4;
  at.loss_scale = 0x1.8p-3f;
  at.growth_tracker = 3;
  Pinned p = pinned();
  p.precision = "fp16";
  p.init_scale = 4096;
  const Json good = checkpoint_state_json(at, p, {{"learning_rate", "0.1"}});
  write(good);
  const Checkpoint c = read_checkpoint(folder);
  EXPECT_EQ(c.position.loss_scale, 0x1.8p-3f);
  EXPECT_EQ(c.position.growth_tracker, 3);
  EXPECT_EQ(c.position.updates, 4);
  EXPECT_EQ(c.pinned.init_scale, 4096);
  EXPECT_EQ(checkpoint_state_json(c.position, c.pinned, c.hyperparameters), good);
  const auto refused = [&](const std::function<void(Json&)>& change, const char* part) {
    Json j = good;
    change(j);
    write(j);
    const auto error = refusal_of(folder);
    ASSERT_TRUE(error.has_value()) << part;
    EXPECT_EQ(error->code(), ErrorCode::data) << part;
    EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << error->what();
  };
  refused([](Json& j) { j.erase("loss_scaling"); }, "loss_scale");
  refused([](Json& j) { j["loss_scaling"] = 3; }, "loss_scaling");
  for (const double scale : {0.0, -2.0, 1e300})
    refused([&](Json& j) { j["loss_scaling"]["loss_scale"] = scale; }, "a loss_scale above 0 in");
  refused([](Json& j) { j["loss_scaling"]["growth_tracker"] = -1; }, "growth_tracker");
  refused([](Json& j) { j["loss_scaling"]["growth_tracker"] = int64_t{1} << 31; },
          "growth_tracker");
}

// Of a run whose updates are one step late: the numbers of the one that is still to come.
TEST(CheckpointState, AnUpdateThatIsLateComesBackAndIsBounded) {
  TempFolder tmp;
  const std::string folder = make(tmp, 9);
  Json good = Json::parse(read_file(folder + "/snug_state.json"));
  EXPECT_EQ(good["late_update"], nullptr);
  EXPECT_FALSE(read_checkpoint(folder).position.late.has_value());
  const float third = 1.0f / 3;
  good["late_update"] = {{"pending", true},
                         {"seed", 42},
                         {"step", 8},
                         {"updates", 7},
                         {"learning_rates", {third, third, 0.25f, 0.25f}},
                         {"bias_correction1", third},
                         {"bias_correction2", 1e-3f},
                         {"loss_scale", 0x1p15f},
                         {"clip_factor", third}};
  const auto write = [&](const Json& j) {
    spill(folder + "/snug_state.json", j.dump());
    seal(folder, 9);
  };
  write(good);
  const Checkpoint c = read_checkpoint(folder);
  ASSERT_TRUE(c.position.late.has_value());
  EXPECT_EQ(c.position.late->clip_factor, third);
  EXPECT_EQ(c.position.late->learning_rate[1], third);
  EXPECT_EQ(c.position.late->bias_correction2, 1e-3f);
  EXPECT_EQ(c.position.late->step, 8);
  EXPECT_EQ(c.position.late->found_inf, 0);
  EXPECT_EQ(checkpoint_state_json(c.position, c.pinned, c.hyperparameters), good);
  const auto refused = [&](const std::function<void(Json&)>& change, const char* part) {
    Json j = good;
    change(j["late_update"]);
    write(j);
    const auto error = refusal_of(folder);
    ASSERT_TRUE(error.has_value()) << part;
    EXPECT_EQ(error->code(), ErrorCode::data) << part;
    EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << error->what();
  };
  refused([](Json& j) { j = 3; }, "late_update");
  refused([](Json& j) { j.erase("pending"); }, "pending");
  refused([](Json& j) { j["updates"] = 10; }, "updates");
  refused([](Json& j) { j["learning_rates"] = {1, 2}; }, "4 numbers for learning_rates in");
  refused([](Json& j) { j.erase("learning_rates"); }, "4 numbers for learning_rates in");
  refused([](Json& j) { j["loss_scale"] = 0; }, "a loss_scale above 0 in");
}

TEST(CheckpointState, ComesBackAndIsBounded) {
  TempFolder tmp;
  const std::string folder = make(tmp, 9);
  const Json good = Json::parse(read_file(folder + "/snug_state.json"));
  const Checkpoint c = read_checkpoint(folder);
  EXPECT_EQ(checkpoint_state_json(c.position, c.pinned, c.hyperparameters), good);
  const auto refused = [&](const std::function<void(Json&)>& change, const char* part,
                           const char* found) {
    Json j = good;
    change(j);
    spill(folder + "/snug_state.json", j.dump());
    seal(folder, 9);  // as one who edits it and knows how
    const auto error = refusal_of(folder);
    ASSERT_TRUE(error.has_value()) << part;
    EXPECT_EQ(error->code(), ErrorCode::data) << part;
    EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << error->what();
    EXPECT_NE(error->found().find(found), std::string::npos) << error->what();
    EXPECT_FALSE(error->advice().empty());
    EXPECT_NE(error->expected().find("snug_state.json"), std::string::npos) << error->what();
  };
  const int64_t huge = INT64_MAX;
  for (const char* key : {"global_step", "updates", "samples", "window_tokens", "window_steps",
                          "best_eval_step", "best_saved_step", "evals_without_gain"}) {
    refused([&](Json& j) { j[key] = huge; }, key, "9223372036854775807");
    refused([&](Json& j) { j[key] = -7; }, key, "-7");
    refused([&](Json& j) { j[key] = "five"; }, key, "five");
    refused([&](Json& j) { j.erase(key); }, key, "");
  }
  for (const char* key :
       {"seen", "lowest_step", "norm_said", "loss_said", "norm_unsaid", "loss_unsaid"}) {
    refused([&](Json& j) { j["loss_watch"][key] = huge; }, key, "9223372036854775807");
    refused([&](Json& j) { j["loss_watch"][key] = INT64_MIN; }, key, "-9223372036854775808");
  }
  for (const char* key : {"elapsed_seconds", "window_loss", "best_eval_loss", "best_saved_loss",
                          "evaluation_due", "loss_watch"})
    refused([&](Json& j) { j[key] = "x"; }, key, "x");
  for (const char* key : {"start_eval_loss", "start_metric", "best_metric", "best_saved_metric"})
    refused([&](Json& j) { j[key] = "x"; }, key, "x");
  refused([&](Json& j) { j["metric_for_best_model"] = 7; }, "metric_for_best_model", "7");
  refused([&](Json& j) { j["greater_is_better"] = 7; }, "greater_is_better", "7");
  refused([&](Json& j) { j["window_rewards"] = 7; }, "2 numbers of window_rewards in", "7");
  refused([&](Json& j) { j["untrained_steps"] = 1; }, "untrained_steps", "1");  // all were applied
  refused([&](Json& j) { j["untrained_steps"] = -1; }, "untrained_steps", "-1");
  refused([&](Json& j) { j["loss_watch"]["losses"].erase(3); }, "128 numbers for losses", "");
  refused([&](Json& j) { j["loss_watch"]["norms"] = "none"; }, "128 numbers for norms", "none");
  refused([&](Json& j) { j.erase("pinned"); }, "pinned", "");
  refused([&](Json& j) { j["pinned"]["micro_batch"] = 7; }, "micro_batch", "7");
  refused([&](Json& j) { j["pinned"]["head_rows"] = 0; }, "head_rows", "0");
  refused([&](Json& j) { j["pinned"]["gradients"] = "f16"; }, "gradients f32 or bf16", "f16");
  refused([&](Json& j) { j["pinned"]["gradients"] = 7; }, "gradients", "7");
  refused([&](Json& j) { j["samples"] = 53; }, "samples = global_step x global_batch",
          "53 samples at step 9, 6 a step of 32 tokens");
  refused([&](Json& j) { j["pinned"]["global_batch"] = huge; },
          "samples = global_step x global_batch", "9223372036854775807 a step");
  refused([&](Json& j) { j["pinned"]["max_length"] = huge; },
          "samples = global_step x global_batch", "of 9223372036854775807 tokens");
  // Nothing overflows, and yet no run is so long.
  refused([&](Json& j) { j["pinned"]["max_length"] = (int64_t{1} << 60) / 54 + 1; },
          "below 2^60 tokens", "54 samples at step 9, 6 a step of 21350398233460130 tokens");
}

// Before the start had a field of its own it could be the best evaluation.
TEST(CheckpointState, OfOlderOnesTheStartIsNoStep) {
  const TempFolder tmp;
  const std::string folder = make(tmp, 9);
  Json j = Json::parse(read_file(folder + "/snug_state.json"));
  for (const char* key : {"start_eval_loss", "untrained_steps", "metric_for_best_model"})
    j.erase(key);
  j["best_eval_loss"] = 2.5;
  j["best_eval_step"] = 0;
  j["best_saved_loss"] = 4.0;
  j["best_saved_step"] = 6;
  spill(folder + "/snug_state.json", j.dump());
  seal(folder, 9);
  RunPosition at = read_checkpoint(folder).position;
  EXPECT_EQ(at.start_eval_loss, 2.5);
  EXPECT_EQ(at.best_eval_loss, 4.0);
  EXPECT_EQ(at.best_eval_step, 6);
  EXPECT_EQ(at.untrained, 0);
  EXPECT_EQ(at.best_by, "eval_loss");
  EXPECT_FALSE(at.greater_is_better);
  EXPECT_EQ(at.start_metric, 2.5);
  EXPECT_EQ(at.best_metric, 4.0);
  EXPECT_EQ(at.best_saved_metric, 4.0);
  j["best_eval_loss"] = 4.0;
  j["best_eval_step"] = 6;
  spill(folder + "/snug_state.json", j.dump());
  seal(folder, 9);
  at = read_checkpoint(folder).position;
  EXPECT_EQ(at.start_eval_loss, -1);
  EXPECT_EQ(at.best_eval_loss, 4.0);
  EXPECT_EQ(at.best_eval_step, 6);
}

// Before the flag was pinned, algorithms that were measured said it.
TEST(CheckpointState, OfOlderOnesWhatWasMeasuredSaysThatItWas) {
  for (const bool measured : {false, true})
    for (const char* said : {"", "true", "false"}) {
      const TempFolder tmp;
      const std::string folder = make(tmp, 9);
      Json j = Json::parse(read_file(folder + "/snug_state.json"));
      Json& p = j["pinned"];
      ComputesOn on{"a GPU", "13.1.0", "none", {}};
      if (measured) on.algorithms.emplace_back();
      p["computes_on"] = computes_on_json(on);
      p.erase("matmul_autotune");
      if (*said != '\0') p["matmul_autotune"] = std::string_view(said) == "true";
      spill(folder + "/snug_state.json", j.dump());
      seal(folder, 9);
      EXPECT_EQ(read_checkpoint(folder).pinned.matmul_autotune,
                *said == '\0' ? measured : std::string_view(said) == "true")
          << measured << said;
    }
}

// What is pinned is said with a plan that does not fit, less what a permission unpins.
TEST(CheckpointState, WhatIsPinnedIsSaidUnlessItIsAllowed) {
  const TempFolder tmp;
  const Checkpoint c = read_checkpoint(make(tmp, 9));
  const auto holds = [&](const std::vector<std::string>& allow, const char* words) {
    return pinned_text(c, allow).find(words) != std::string::npos;
  };
  const Decisions& d = c.pinned.decisions;
  int rows = 0;
  for (const Decision& row : decision_table()) {
    if (row.at_resume != AtResume::pinned || row.key == nullptr) continue;
    ++rows;
    const std::string words = row.in_words(d);
    EXPECT_TRUE(holds({}, words.c_str())) << words;
    EXPECT_FALSE(holds({row.name}, words.c_str())) << words;
  }
  EXPECT_GE(rows, 2);
  EXPECT_NE(pinned_text(c, {}).find(c.folder + " pins"), std::string::npos);
}

// A folder that is named with a slash at its end is known by what stands in its place: a file too.
TEST(OutputLock, IsLostToWhateverTakesThePlaceOfTheFolder) {
  for (const char* end : {"", "/", "//", "/."})
    for (const char* taken : {"a folder", "a file", "another run"}) {
      SCOPED_TRACE(std::string("run") + end + " to " + taken);
      const TempFolder tmp;
      fs::create_directory(tmp / "run");
      OutputLock lock;
      lock.take((tmp / "run") + end);
      ASSERT_TRUE(lock.held());
      EXPECT_FALSE(lock.lost());
      fs::rename(tmp / "run", tmp / "moved");
      EXPECT_FALSE(lock.lost()) << "nothing is there";
      if (taken == std::string("a file"))
        spill(tmp / "run", "");
      else
        fs::create_directory(tmp / "run");
      OutputLock other;
      if (taken == std::string("another run")) other.take(tmp / "run");
      EXPECT_TRUE(lock.lost());
      lock.release();
      EXPECT_EQ(fs::exists(tmp / "run/.lock"), other.held()) << "another's is not removed";
    }
}

// What changed of the optimizer and its schedule, in words.
std::vector<std::string> changed(const std::vector<std::string>& before,
                                 const std::vector<std::string>& now, int64_t steps_before = 500,
                                 int64_t steps_now = 500,
                                 const std::vector<std::string>& unknown = {}) {
  Hyperparameters old = hyperparameters(load_config("", before), steps_before);
  for (const std::string& key : unknown) old.erase(key);
  return changes(old, hyperparameters(load_config("", now), steps_now));
}

using Strings = std::vector<std::string>;

TEST(ResumeNotes, EveryKeyOfTheScheduleIsLookedAt) {
  const std::string wsd = "lr_scheduler_type=warmup_stable_decay";
  EXPECT_EQ(changed({}, {}), Strings{});
  EXPECT_EQ(
      changed({}, {"learning_rate=0.1", "warmup_steps=7"}),
      (Strings{"with learning_rate 0.1 instead of 0.0006", "with warmup_steps 7 instead of 50"}));
  EXPECT_EQ(changed({wsd}, {wsd, "lr_decay_steps=0.2"}),
            Strings{"with lr_decay_steps 100 instead of 50"});
  EXPECT_EQ(changed({wsd}, {wsd, "lr_decay_type=linear"}),
            (Strings{"with lr_decay_type linear instead of cosine",
                     "without lr_num_cycles, which was auto"}));
  EXPECT_EQ(changed({}, {"lr_num_cycles=2"}), Strings{"with lr_num_cycles 2 instead of auto"});
  EXPECT_EQ(
      changed({"lr_scheduler_type=polynomial"}, {"lr_scheduler_type=polynomial", "lr_power=2"}),
      Strings{"with lr_power 2 instead of 1"});
  EXPECT_EQ(changed({"lr_scheduler_type=inverse_sqrt"},
                    {"lr_scheduler_type=inverse_sqrt", "lr_timescale=9"}),
            Strings{"with lr_timescale 9 instead of auto"});
}

TEST(ResumeNotes, WhatOnlyOneOfTheTwoHasIsSaid) {
  EXPECT_EQ(changed({"max_time=60"}, {"max_steps=500"}, 0, 500),
            (Strings{"with a schedule over 500 steps instead of max_time 60 s",
                     "with warmup_steps 50 instead of 0.1"}));
  EXPECT_EQ(changed({"max_steps=500"}, {"max_time=60"}, 500, 0),
            (Strings{"with a schedule over max_time 60 s instead of 500 steps",
                     "with warmup_steps 0.1 instead of 50"}));
  EXPECT_EQ(changed({"max_time=60"}, {"max_time=90"}, 0, 0),
            Strings{"with max_time 90 instead of 60"});
  EXPECT_EQ(changed({"lr_scheduler_type=linear"}, {"lr_scheduler_type=polynomial"}),
            (Strings{"with lr_power 1, which had no meaning before",
                     "with lr_scheduler_type polynomial instead of linear"}));
}

// Checkpoints from before a key was noted have nothing to say of it.
TEST(ResumeNotes, OfOlderCheckpointsNothingIsSaidThatDidNotChange) {
  const std::string wsd = "lr_scheduler_type=warmup_stable_decay";
  EXPECT_EQ(changed({wsd}, {wsd}, 500, 500, {"lr_decay_steps", "lr_decay_type", "lr_num_cycles"}),
            Strings{});
  EXPECT_EQ(changed({"max_time=60"}, {"max_time=60"}, 0, 0, {"warmup_steps", "lr_num_cycles"}),
            Strings{});
}

// What a resume says of the rate: of a run that was at `updates` of `steps_before` steps, or
// `elapsed` seconds into max_time.
std::string jump(const std::vector<std::string>& before, int64_t steps_before, int64_t updates,
                 const std::vector<std::string>& now, int64_t steps_now, double elapsed = 0) {
  Checkpoint c;
  c.position.step = c.position.updates = updates;
  c.position.elapsed = elapsed;
  c.hyperparameters = hyperparameters(load_config("", before), steps_before);
  return rate_change(c, load_config("", now), steps_now);
}

TEST(ResumeNotes, ARateThatJumpsIsSaidWithBothNumbers) {
  const Strings linear = {"learning_rate=1e-3", "lr_scheduler_type=linear", "warmup_steps=0"};
  EXPECT_EQ(jump(linear, 10, 10, linear, 20),
            "the learning rate jumps from 0.0001 at step 10 to 0.0005 at step 11");
  EXPECT_EQ(jump(linear, 10, 5, linear, 7),
            "the learning rate jumps from 0.0006 at step 5 to 0.0002857 at step 6");
  Strings other = linear;
  other.emplace_back("learning_rate=2e-3");
  EXPECT_EQ(jump(linear, 10, 5, other, 10),
            "the learning rate jumps from 0.0006 at step 5 to 0.001 at step 6");
  // Cosine to a least rate, whose type in the schedule is another; the clock; one for the other.
  const Strings cosine = {"learning_rate=1e-3", "warmup_steps=0", "min_lr=1e-4"};
  EXPECT_EQ(jump(cosine, 4, 4, cosine, 8),
            "the learning rate jumps from 0.0002318 at step 4 to 0.00055 at step 5");
  EXPECT_EQ(jump(cosine, 2, 2, cosine, 4), "") << "from 0.00055 to the same";
  const Strings minute = {"learning_rate=1e-3", "lr_scheduler_type=linear", "warmup_ratio=0",
                          "max_time=60"},
                two = {"learning_rate=1e-3", "lr_scheduler_type=linear", "warmup_ratio=0",
                       "max_time=120"};
  EXPECT_EQ(jump(minute, 0, 7, two, 0, 54),
            "the learning rate jumps from 0.0001 at step 7 to 0.00055 at step 8");
  EXPECT_EQ(jump(minute, 0, 7, linear, 14, 54),
            "the learning rate jumps from 0.0001 at step 7 to 0.0005 at step 8");
}

TEST(ResumeNotes, OfARateThatGoesOnNothingIsSaid) {
  const Strings linear = {"learning_rate=1e-3", "lr_scheduler_type=linear", "warmup_steps=3"};
  EXPECT_EQ(jump(linear, 10, 5, linear, 10), "");
  EXPECT_EQ(jump(linear, 10, 2, linear, 20), "") << "the same warm-up";
  EXPECT_EQ(jump(linear, 1000, 500, linear, 1001), "") << "by less than a hundredth";
  EXPECT_EQ(jump(linear, 10, 0, linear, 20), "") << "no step before";
  EXPECT_EQ(jump(linear, 10, 5, linear, 5), "") << "none after";
  const Strings still = {"lr_scheduler_type=constant"};
  EXPECT_EQ(jump(still, 10, 10, still, 20), "");
  const Strings wsd = {"lr_scheduler_type=warmup_stable_decay", "warmup_steps=2",
                       "lr_decay_steps=4"};
  EXPECT_EQ(jump(wsd, 20, 10, wsd, 40), "") << "in the stable phase";
  const Strings minute = {"lr_scheduler_type=linear", "max_time=60"};
  EXPECT_EQ(jump(minute, 0, 7, minute, 0, 54), "");
}

}  // namespace
}  // namespace snug
