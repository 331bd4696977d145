// `snug` on the place cuda as a user runs it: train, resume, eval, generate, and what is refused.
// The same through the emulator, with the arena closed to the host:
// tests/tools/e2e/test_emulator.cpp.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

class GpuCommand : public Gpu {
 protected:
  void SetUp() override {
    Gpu::SetUp();
    if (IsSkipped()) return;
    std::string name = (fs::temp_directory_path() / "snug-gpu-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    // Tokens below 256, each of which says much of the next.
    std::ofstream out(folder_ / "tokens.bin", std::ios::binary);
    unsigned x = 1;
    for (int i = 0; i < 40000; ++i) {
      x = (x * 5 + 3 + (i % 7 == 0 ? 1 : 0)) % 256;
      out.put(static_cast<char>(x)).put(0);
    }
  }
  void TearDown() override {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }

  // Beside this program: in the build as in a bundle. Its exit code; what it said is in said().
  int snug(const std::string& arguments) {
    const std::string program = fs::read_symlink("/proc/self/exe").parent_path() / "snug";
    const int status = std::system(
        ("cd '" + folder_.string() + "' && '" + program + "' " + arguments + " >said 2>&1")
            .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string said() const { return slurp(folder_ / "said"); }

  int train(const std::string& name, const std::string& more) {
    return snug(
        "train 'model={type: gpt2, n_layer: 2, n_embd: 64, n_head: 4, n_positions: 64, vocab_size: "
        "256, resid_pdrop: 0.1}' train_data=tokens.bin eval_fraction=0.05 max_eval_samples=4 "
        "max_length=64 global_batch_size=8 per_device_train_batch_size=4 "
        "lr_scheduler_type=constant "
        "learning_rate=1e-3 logging_steps=1 output_dir=" +
        name + " " + more);
  }
  Json json(const std::string& name) const { return Json::parse(slurp(folder_ / name)); }
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> list;
    std::ifstream in(folder_ / name / "metrics.jsonl");
    for (std::string line; std::getline(in, line);)
      if (const Json j = Json::parse(line); j.contains("loss")) list.push_back(j["loss"]);
    return list;
  }

  fs::path folder_;
};

TEST_F(GpuCommand, TrainsWhatTheCpuTrainsInWhatWasPlanned) {
  ASSERT_EQ(train("gpu", "device=cuda max_steps=12"), 0) << said();
  const Json memory = json("gpu/memory.json");
  EXPECT_EQ(memory["planned_engine_bytes"], memory["measured_engine_bytes"]);
  EXPECT_EQ(memory["planned_host_bytes"], memory["measured_host_bytes"]);
  EXPECT_EQ(memory["gpu"]["constant"], true) << memory["gpu"] << " or another process came or went";
  EXPECT_LT(memory["gpu"]["free_bytes_after_arena"], memory["gpu"]["free_bytes_before_arena"]);
  EXPECT_EQ(memory["gpu"]["free_bytes_after_warm_up"], memory["gpu"]["free_bytes_after_step_10"]);
  const Json on = json("gpu/plan.json")["computes_on"];
  EXPECT_NE(on["gpu"], "") << on;
  EXPECT_EQ(on["cudnn"], "none") << "without a calibration our kernel computes attention";
  ASSERT_EQ(train("cpu", "device=cpu max_steps=12"), 0) << said();
  const std::vector<double> gpu = losses("gpu"), cpu = losses("cpu");
  ASSERT_EQ(gpu.size(), 12u);
  ASSERT_EQ(cpu.size(), 12u);
  // As on emu: 2e-5 of a step's loss, and as much again for each step before it.
  for (size_t i = 0; i < 12; ++i)
    EXPECT_NEAR(gpu[i], cpu[i], 2e-5 * static_cast<double>(i + 1) * cpu[i]) << "step " << i + 1;
}

TEST_F(GpuCommand, ResumesBitForBit) {
  for (const char* more : {"precision=bf16", "precision=fp16",
                           "precision=bf16 offload_optimizer=cpu offload=inputs"}) {
    SCOPED_TRACE(more);
    const std::string keys = std::string(more) + " device=cuda save_steps=3 overwrite=true";
    ASSERT_EQ(train("whole", keys + " max_steps=6"), 0) << said();
    ASSERT_EQ(train("run", keys + " max_steps=3"), 0) << said();
    ASSERT_EQ(
        train("run", std::string(more) + " device=cuda save_steps=3 max_steps=6 resume=latest"), 0)
        << said();
    EXPECT_EQ(losses("run"), losses("whole"));
    EXPECT_TRUE(slurp(folder_ / "run/final/model.safetensors") ==
                slurp(folder_ / "whole/final/model.safetensors"));
  }
}

// A run by what its model has beside the common shape, or with none a folder's own model.
struct KindOfRun {
  const char* name;
  const char* model;
  const char* arguments;
};

// Every block form, optimizer, adapter and place of weights.
const char* const kLlama = "type: llama, num_key_value_heads: 2";
const KindOfRun kRuns[] = {
    {"llama", kLlama, ""},
    {"qwen3", "type: qwen3, num_key_value_heads: 2, head_dim: 16", ""},
    {"gemma2",
     "type: gemma2, num_key_value_heads: 2, head_dim: 16, sliding_window: 16, "
     "query_pre_attn_scalar: 16",
     ""},
    {"gpt_neox", "type: gpt_neox", ""},
    {"olmo2", "type: olmo2", ""},
    {"phi3", "type: phi3, pad_token_id: 0", ""},
    {"bert", "type: bert", "train_data=rows.jsonl task=sequence_classification"},
    {"lion", kLlama, "optim=lion"},
    {"rmsprop", kLlama, "optim=rmsprop"},
    {"adagrad", kLlama, "optim=adagrad"},
    {"lamb", kLlama, "optim=lamb"},
    {"lars", kLlama, "optim=lars"},
    {"ademamix", kLlama, "optim=ademamix"},
    {"adafactor", kLlama, "optim=adafactor"},
    {"muon", kLlama, "optim=muon"},
    {"adam_mini", kLlama, "optim=adam_mini"},
    {"adamw_8bit", kLlama, "optim=adamw_8bit"},
    {"lion_8bit", kLlama, "optim=lion_8bit"},
    {"adamw_4bit", kLlama, "optim=adamw_4bit"},
    {"paged", kLlama, "optim=paged_adamw_8bit precision=bf16"},
    {"no_master", kLlama, "allow=[no_master] precision=bf16"},
    {"streamed", kLlama, "precision=bf16 offload_params=cpu offload_optimizer=cpu"},
    {"lora", "", "model=llama-cpu/final peft=lora lora_r=4 lora_dropout=0.1"},
    {"qlora", "", "model=llama-cpu/final peft=qlora lora_r=4 precision=bf16"},
};

TEST_F(GpuCommand, TrainsEveryKindOfRunAsTheCpuDoes) {
  std::ofstream rows(folder_ / "rows.jsonl");
  for (int i = 0, x = 1; i < 200; ++i) {
    rows << "{\"input_ids\": [";
    for (int k = 0; k < 5 + i * 7 % 50; ++k) {
      x = (x * 5 + 3 + (i % 7 == 0 ? 1 : 0)) % 256;
      rows << (k > 0 ? ", " : "") << x;
    }
    rows << "], \"label\": " << i % 3 << "}\n";
  }
  rows.close();
  for (const KindOfRun& run : kRuns) {
    SCOPED_TRACE(run.name);
    const std::string arguments = run.arguments;
    std::vector<double> loss[2];
    for (const char* device : {"cpu", "cuda"}) {
      const std::string output = std::string(run.name) + "-" + device;
      const std::string shape =
          *run.model == 0 ? ""
                          : "init=scratch 'model={" + std::string(run.model) +
                                ", vocab_size: 256, hidden_size: 48, intermediate_size: 80, "
                                "num_hidden_layers: 2, num_attention_heads: 4, "
                                "max_position_embeddings: 64}' ";
      EXPECT_EQ(snug("train train_data=tokens.bin " + shape +
                     "eval_fraction=0.05 max_eval_samples=4 max_length=64 global_batch_size=8 "
                     "per_device_train_batch_size=4 lr_scheduler_type=constant logging_steps=1 "
                     "learning_rate=1e-3 max_steps=4 device=" +
                     device + " output_dir=" + output + " " + arguments),
                0)
          << said();
      loss[device == std::string("cuda")] = losses(output);
    }
    EXPECT_EQ(loss[0].size(), 4u);
    EXPECT_EQ(loss[1].size(), 4u);
    if (loss[0].size() != 4 || loss[1].size() != 4) continue;
    const Json memory = json(std::string(run.name) + "-cuda/memory.json");
    EXPECT_EQ(memory["planned_engine_bytes"], memory["measured_engine_bytes"]);
    EXPECT_EQ(memory["planned_host_bytes"], memory["measured_host_bytes"]);
    // As above; in 16 bits one rounding of a logit.
    const bool half = arguments.find("bf16") != std::string::npos;
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(loss[1][i], loss[0][i],
                  (half ? 0x1p-9 : 2e-5 * static_cast<double>(i + 1)) * loss[0][i])
          << "step " << i + 1;
    }
  }
}

// What tuning chose is named, followed and resumed, with the same bits.
TEST_F(GpuCommand, TunesProductsOnce) {
  const std::string keys = "precision=bf16 device=cuda save_steps=3 ";
  ASSERT_EQ(train("whole", keys + "max_steps=6 matmul_autotune=true"), 0) << said();
  const Json on = json("whole/plan.json")["computes_on"];
  EXPECT_EQ(on["algorithms"].size() > 0, on["cublaslt"] != "none") << on;
  ASSERT_EQ(train("followed", keys + "max_steps=6 plan=whole/plan.json"), 0) << said();
  EXPECT_EQ(losses("followed"), losses("whole"));
  ASSERT_EQ(train("run", keys + "max_steps=3 plan=whole/plan.json"), 0) << said();
  ASSERT_EQ(train("run", keys + "max_steps=6 resume=latest"), 0) << said();
  EXPECT_EQ(losses("run"), losses("whole"));
  EXPECT_EQ(json("run/plan.json")["computes_on"]["algorithms"], on["algorithms"]);
}

// What is measured of the GPU is what its plans take.
TEST_F(GpuCommand, IsCalibrated) {
  // For this test alone, however it ends.
  struct Cache {
    explicit Cache(const fs::path& folder) { setenv("XDG_CACHE_HOME", folder.c_str(), 1); }
    ~Cache() { unsetenv("XDG_CACHE_HOME"); }
  };
  const Cache cache(folder_);
  ASSERT_EQ(snug("calibrate device=cuda --seconds 1 --json"), 0) << said();
  const std::string text = said();
  const Json c = Json::parse(text.substr(text.find('{')));
  for (const char* rate : {"fp32_flops", "tf32_flops", "bf16_flops", "read_bytes", "copy_bytes"})
    EXPECT_GT(c["roofs"][rate], 1e9) << rate;
  for (const char* ops : {"f32", "tf32", "bf16", "f16"}) EXPECT_GT(c["ops"][ops].size(), 5u) << ops;
  EXPECT_GT(c["link"]["to_device"], 1e8);
  EXPECT_GT(c["runtime"]["libraries"], 0);
  ASSERT_EQ(train("run", "device=cuda max_steps=2"), 0) << said();
  const Json plan = json("run/plan.json");
  EXPECT_EQ(plan["runtime_bytes"], c["runtime"]["planned"]);
  EXPECT_EQ(plan["runtime_calibrated"], true);
  EXPECT_EQ(plan["prediction"].get<std::string>().rfind("calibrated on ", 0), 0u);
}

TEST_F(GpuCommand, EvaluatesAsTheCpuDoes) {
  ASSERT_EQ(train("run", "device=cuda max_steps=4"), 0) << said();
  double loss[2];
  for (const int gpu : {0, 1}) {
    ASSERT_EQ(snug(std::string("eval --model run/final --data tokens.bin --max-samples 8 --json "
                               "--max-length 64 --device ") +
                   (gpu ? "cuda" : "cpu")),
              0)
        << said();
    loss[gpu] = Json::parse(said())["loss"];
  }
  EXPECT_NEAR(loss[1], loss[0], 2e-5 * loss[0]);
}

// The first process here is this one.
TEST_F(GpuCommand, SaysWhoHasTheMemory) {
  const auto device = make_device(Place::cuda);
  const int64_t free_bytes = device->memory_info().available_bytes;
  const int64_t taken = free_bytes - (int64_t{1} << 30);
  std::byte* const base = device->reserve(taken);
  EXPECT_EQ(train("run",
                  "device=cuda max_steps=1 per_device_train_batch_size=null "
                  "model.n_layer=48 model.n_embd=1600 model.n_head=25"),
            3)
      << said();
  EXPECT_NE(said().find("\n  try:   "), std::string::npos) << said();
  device->release(base, taken);
  EXPECT_EQ(train("run", "device=cuda:7"), 2) << "or there are eight GPUs: " << said();
}

}  // namespace
}  // namespace snug::test
