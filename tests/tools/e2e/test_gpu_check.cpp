// tools/gpu_check.sh with programs that only pretend: what it asks of them, what it makes of their
// answers, when it fails. What the real ones say needs a GPU.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/support/folders.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

class GpuCheck : public testing::Test {
 protected:
  GpuCheck() {
    for (const char* folder : {"path", "bin"}) fs::create_directory(w_.path(folder));
    spill(w_.path("COMMIT"), "abc123\n");
    fs::copy_file(source_folder() + "/tools/gpu_check.sh", w_.path("gpu_check.sh"));
    script("path/nvidia-smi",
           "case $1 in -L) echo 'GPU 0: Made-up GPU (UUID: GPU-1)' ;; *) echo '1755 MHz' ;; esac");
    gpus_ = "echo 'GPU 0: Made-up GPU (UUID: GPU-1)'; echo 'GPU 1: Made-up GPU (UUID: GPU-2)'";
    script("bin/bench_gpu", "echo 'Made-up GPU'");
    for (const char* tests :
         {"test_gpu", "test_engine_kernels", "test_quant", "test_optim", "test_layers_ops"})
      script(std::string("bin/") + tests, "echo '[  PASSED  ] 7 tests.'");
    script("python", "exit 1");
    trainer(77, 77, "true");
  }

  void script(const std::string& name, const std::string& body) {
    spill(w_.path(name), "#!/bin/sh\n" + body + "\n");
    ::chmod(w_.path(name).c_str(), 0755);
  }
  // A `snug` that leaves what a run leaves, and the arguments it got.
  void trainer(int planned, int measured, const std::string& constant) {
    script("bin/snug", R"sh(for a; do case $a in
  output_dir=*) out=${a#output_dir=} ;;
  train_data=*) test "$(wc -c <"${a#*=}")" = 8388608 || exit 9 ;;
esac; done
mkdir -p "$out"
echo "$*" >>)sh" + w_.path("arguments") +
                           R"sh(
for t in 1 2 600 500 400; do
  echo "{\"step\":1,\"loss\":2.0,\"tokens_per_second\":$t.5,\"x\":1}"
done >"$out/metrics.jsonl"
echo '{ "gpu": { "constant": )sh" +
                           constant + R"sh( },
 "planned_runtime_bytes": 9, "measured_runtime_bytes": 9,
 "measured_engine_bytes": )sh" +
                           std::to_string(measured) + R"sh(,
 "planned_engine_bytes": )sh" +
                           std::to_string(planned) + R"sh(}' >"$out/memory.json"
echo '{"decisions": {"micro_batch": 32, "x": 1}}' >"$out/plan.json"
mkdir -p "$out/ranks/1" && cp "$out/memory.json" "$out/ranks/1")sh");
  }
  Outcome check(const std::vector<std::string>& more) {
    std::string command = "PATH=" + w_.path("path") + ":$PATH bash " + w_.path("gpu_check.sh") +
                          " --report " + w_.path("report.md") + " --python " + w_.path("python");
    for (const std::string& word : more) command += " " + word;
    return shell(command);
  }

  Workspace w_;
  std::string gpus_;  // a machine with two
};

TEST_F(GpuCheck, TrainsBothModelsAndReportsTheMedian) {
  const Outcome o = check({"--only", "train"});
  EXPECT_EQ(o.code, 0) << o.out << o.err;
  const std::string report = slurp(w_.path("report.md"));
  for (const char* line : {"| commit | abc123 |", "| GPT-2 124M | Snug | 500 | 32 | 77 |",
                           "| GPT-2 1558M | Snug | 500 | 32 | 77 |",
                           "| `snug train` GPT-2 124M | passed | planned = reserved = 77 B; free "
                           "memory constant: true",
                           "PyTorch: not run"})
    EXPECT_NE(report.find(line), std::string::npos) << line << "\n" << report;
  const std::string asked = slurp(w_.path("arguments"));
  for (const char* key : {"device=cuda", "precision=bf16", "n_layer: 48", "global_batch_size=512"})
    EXPECT_NE(asked.find(key), std::string::npos) << asked;
}

// With two, ranks too.
TEST_F(GpuCheck, TrainsRanksWhereThereAreTwo) {
  check({"--only", "train"});
  EXPECT_NE(slurp(w_.path("report.md")).find("| ranks on GPUs, by NCCL | not run: one GPU |"),
            std::string::npos);
  script("path/nvidia-smi", gpus_);
  EXPECT_EQ(check({"--only", "train"}).code, 0);
  const std::string report = slurp(w_.path("report.md"));
  for (const char* precision : {"fp32", "bf16", "fp16"})
    EXPECT_NE(report.find(std::string("| `snug train` on two GPUs, ") + precision +
                          ", stages 0 to 3 | passed | losses alike; runtime 9 B of 9 B"),
              std::string::npos)
        << report;
  const std::string asked = slurp(w_.path("arguments"));
  for (const char* key : {"ranks=2 zero=0", "ranks=2 zero=3", "precision=fp16"})
    EXPECT_NE(asked.find(key), std::string::npos) << asked;
  trainer(77, 78, "true");
  EXPECT_EQ(check({"--only", "train"}).code, 1);
  EXPECT_NE(slurp(w_.path("report.md")).find("two GPUs, fp32, stages 0 to 3 | FAILED (zero 3"),
            std::string::npos);
}

// Updates by the host beside those of the device: the same losses; one step late others, but the first.
TEST_F(GpuCheck, UpdatesByTheHost) {
  EXPECT_EQ(check({"--only", "train"}).code, 0);
  EXPECT_NE(
      slurp(w_.path("report.md"))
          .find("updated by the host, 16 Ki tokens a step | passed | tokens/s: device 500, host "
                "500, late 500 |"),
      std::string::npos)
      << slurp(w_.path("report.md"));
  const std::string asked = slurp(w_.path("arguments"));
  EXPECT_NE(asked.find("offload_update=cpu allow=[stale_update]"), std::string::npos) << asked;
  const std::string good = slurp(w_.path("bin/snug"));
  for (const auto& [end, which] :
       {std::pair("offload_update=cpu", "FAILED (host: losses"),
        std::pair("stale_update]", "FAILED (late: begins with losses")}) {
    spill(w_.path("bin/snug"), good + "case \"$*\" in *'" + end +
                                   "') sed -i s/2.0/3.0/ \"$out/metrics.jsonl\" ;; esac\n");
    EXPECT_EQ(check({"--only", "train"}).code, 1);
    EXPECT_NE(slurp(w_.path("report.md")).find(which), std::string::npos)
        << slurp(w_.path("report.md"));
  }
}

TEST_F(GpuCheck, FailsWhereMemoryIsNotAsPlanned) {
  trainer(77, 78, "true");
  EXPECT_EQ(check({"--only", "train"}).code, 1);
  EXPECT_NE(slurp(w_.path("report.md")).find("FAILED (planned 77 B, reserved 78 B"),
            std::string::npos);
  trainer(77, 77, "false");
  EXPECT_EQ(check({"--only", "train"}).code, 1);
  script("bin/snug", "echo 'no such device' >&2; exit 2");
  const Outcome o = check({"--only", "train"});
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(slurp(w_.path("report.md")).find("no such device"), std::string::npos);
}

// What is measured is part of the report, and the plans of what follows use it.
TEST_F(GpuCheck, BenchmarksAndCalibrates) {
  script("bin/bench_gpu", "echo \"| op $1 |\"");
  script("bin/snug", "echo \"$* in $XDG_CACHE_HOME\"");
  const Outcome o = check({"--only", "ops"});
  EXPECT_EQ(o.code, 0) << o.out << o.err;
  std::string report = slurp(w_.path("report.md"));
  EXPECT_NE(report.find("| op cuda |"), std::string::npos) << report;
  EXPECT_NE(report.find("calibrate device=cuda --force in /"), std::string::npos) << report;
  script("bin/snug", "echo 'no clock' >&2; exit 1");
  EXPECT_EQ(check({"--only", "ops"}).code, 1);
  report = slurp(w_.path("report.md"));
  EXPECT_NE(report.find("| `snug calibrate device=cuda` | FAILED | | |"), std::string::npos);
  EXPECT_NE(report.find("no clock"), std::string::npos) << report;
}

// A test that was skipped where there is a GPU is none that passed.
TEST_F(GpuCheck, CountsTests) {
  EXPECT_EQ(check({"--only", "tests"}).code, 0);
  EXPECT_NE(slurp(w_.path("report.md")).find("7 passed, 0 failed, 0 skipped"), std::string::npos);
  script("bin/test_quant", "test \"$SNUG_TEST_KERNELS_ON\" = cuda && echo '[  PASSED  ] 2 tests.'");
  EXPECT_EQ(check({"--only", "tests"}).code, 0);
  EXPECT_NE(
      slurp(w_.path("report.md")).find("| kernels of test_quant on the GPU | passed | 2 passed"),
      std::string::npos);
  script("bin/test_gpu", "echo '[  PASSED  ] 7 tests.'; echo '[  SKIPPED ] 1 test.'");
  EXPECT_EQ(check({"--quick"}).code, 1);
}

TEST_F(GpuCheck, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(check({"--only", "everything"}).code, 2);
  EXPECT_EQ(check({"--slow"}).code, 2);
  script("path/nvidia-smi", "echo 'No devices were found'");
  const Outcome o = check({});
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.err.find("found: No devices were found"), std::string::npos) << o.err;
}

}  // namespace
}  // namespace snug::e2e
