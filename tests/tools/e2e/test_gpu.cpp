// device: cuda as a user without a usable GPU meets it, and what `snug doctor` says of a GPU. With
// one: tests/gpu.
#include <gtest/gtest.h>

#include <set>

#include "engine/device/device.h"
#include "tests/support/folders.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

// Nothing is reserved or written before it is known that there is a GPU.
TEST(CudaDevice, IsRefusedWhereThereIsNone) {
  const Workspace w;
  if (run({"plan", "model=gpt2", "device=cuda"}).code == 0) GTEST_SKIP() << "there is a GPU";
  for (const char* device : {"device=cuda", "device=cuda:3"}) {
    const Outcome o = w.train("run", {device});
    EXPECT_EQ(o.code, 2) << o.err;
    EXPECT_NE(o.err.find("\n  found: "), std::string::npos) << o.err;
    // A GPU that the build has no code for is refused with what to build.
    EXPECT_TRUE(o.err.find("device=cpu") != std::string::npos ||
                o.err.find("SNUG_CUDA_ARCHITECTURES") != std::string::npos)
        << o.err;
    EXPECT_FALSE(exists(w.path("run")));
    if (!kCudaBuilt) {
      EXPECT_NE(
          o.err.find("unsupported: expected a build with the place cuda\n  found: one without "
                     "it\n  try:   install the CUDA Toolkit and configure with "
                     "-DSNUG_CUDA=ON, or use device=cpu"),
          std::string::npos)
          << o.err;
    }
  }
  for (const char* command : {"plan", "bench"})
    EXPECT_EQ(run({command, "model=gpt2", "device=cuda"}).code, 2) << command;
}

// A described device needs no GPU here: what a plan for kernels costs is known everywhere.
TEST(CudaDevice, IsPlannedForADescribedOne) {
  const std::vector<std::string> words = {
      "plan",           "model=gpt2",      "target=h100",
      "precision=bf16", "max_length=1024", "global_batch_size=512",
      "--json"};
  const Outcome o = run(words), asked = run(joined(words, {"device=cuda"}));
  ASSERT_EQ(o.code, 0) << o.err;
  const Json plan = Json::parse(o.out);
  EXPECT_EQ(Json::parse(asked.out)["hash"], plan["hash"]) << "which a GPU is without being told";
  const Json cpu = Json::parse(run({"plan", "model=gpt2", "target=cpu-8", "--json"}).out);
  EXPECT_EQ(cpu["decisions"]["device"], "cpu");
  EXPECT_EQ(plan["decisions"]["device"], "cuda");
  EXPECT_EQ(plan["fits"], true);
  EXPECT_GT(plan["host_bytes"], 0) << "the host's side of batches and checkpoints";
  EXPECT_EQ(plan["computes_on"], nullptr) << "of a described device";
  EXPECT_EQ(plan["runtime_calibrated"], false);
  std::set<std::string> kernels;
  for (const Json& k : plan["decisions"]["kernels"]) kernels.insert(k["kernel"]);
  EXPECT_EQ(kernels, std::set<std::string>{"cublaslt"});
}

// What the keys of a GPU choose is planned without one: products at the rate of tf32, attention
// with cuDNN's workspace, and graphs where nothing rests with the host.
TEST(CudaDevice, IsPlannedWithWhatItsKeysChoose) {
  const auto plan = [](const std::vector<std::string>& more) {
    const Outcome o =
        run(joined({"plan", "model=gpt2", "device=cuda", "target=h100", "model.n_layer=4",
                    "model.attn_pdrop=0", "global_batch_size=64", "--json"},
                   more));
    EXPECT_EQ(o.code, 0) << o.err;
    return Json::parse(o.out);
  };
  const Json full = plan({}), rounded = plan({"precision=tf32"});
  EXPECT_EQ(full["made_for"]["precision"], "fp32");
  EXPECT_EQ(rounded["made_for"]["precision"], "tf32");
  EXPECT_LT(rounded["predicted_step_seconds"], 0.7 * full["predicted_step_seconds"].get<double>());

  const Json own = plan({"precision=bf16"}),
             cudnn = plan({"precision=bf16", "attn_implementation=cudnn"});
  EXPECT_EQ(own["decisions"]["attention"], "cuda");
  EXPECT_EQ(cudnn["decisions"]["attention"], "cudnn");
  EXPECT_EQ(own["graphs"], true);
  EXPECT_EQ(plan({"cuda_graphs=off"})["graphs"], false);
  EXPECT_EQ(plan({"offload_optimizer=cpu"})["graphs"], false);
  EXPECT_EQ(plan({"cuda_graphs=on", "max_grad_norm=0"})["decisions"]["update"], "behind backward");
}

TEST(CudaDevice, IsNotCalibratedWhereThereIsNone) {
  const Outcome o = run({"calibrate", "device=cuda"});
  if (o.code == 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(o.code, 2) << o.err;
  EXPECT_NE(o.err.find("\n  found: "), std::string::npos) << o.err;
}

TEST(Doctor, SaysWhatAGpuHasAndDoes) {
  const Environment libraries("LD_LIBRARY_PATH", binary_folder() + "/lib/fake_gpu");
  struct Case {
    const char *does, *words;
    Json utilisation, watts;
  };
  for (const Case& c : {Case{"", ", 87 % busy, 512 W of 700, SM at 1755 MHz", 87, 512.4},
                        {"idle", ", 0 % busy, 0 W of 0, SM at 0 MHz", 0, 0.0},
                        {"silent", "", nullptr, nullptr}}) {
    SCOPED_TRACE(c.does);
    const Environment does("FAKE_NVML", c.does);
    const Outcome o = run({"doctor", "--json"});
    ASSERT_EQ(o.code, 0) << o.err;
    const Json said = Json::parse(o.out);
    const auto check = std::find_if(said["checks"].begin(), said["checks"].end(),
                                    [](const Json& j) { return j["name"] == "cuda"; });
    ASSERT_NE(check, said["checks"].end()) << "no line about cuda: " << o.out;
    const std::string words = std::string(
                                  "driver for CUDA 13.0, 1 device; 0: Made-up GPU, 80.00 GiB, "
                                  "compute capability 9.0, 30.00 GiB of 80.00 GiB used") +
                              c.words + "; ";
    EXPECT_NE((*check)["text"].get<std::string>().find(words), std::string::npos)
        << (*check)["text"];
    const Json gpu = (*check)["facts"]["devices"][0];
    EXPECT_EQ(gpu["pci"], "0000:3B:00.0");
    EXPECT_EQ(gpu["used_bytes"], int64_t{30} << 30);
    EXPECT_EQ(gpu["free_bytes"], int64_t{50} << 30);
    EXPECT_EQ(gpu["utilisation"], c.utilisation);
    EXPECT_EQ(gpu["watts"], c.watts);
  }
}

}  // namespace
}  // namespace snug::e2e
