// What a calibration chooses, the file that keeps it, and what a resume makes of pinned kernels.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/io/files.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/support/errors.h"
#include "tools/calibrate/calibration.h"
#include "tools/calibrate/roofs.h"
#include "tools/checkpoint/pinning.h"
#include "tools/costs/kernel_choices.h"
#include "tools/setup/pinned_kernels.h"
#include "tools/setup/setup.h"

namespace snug {
namespace {

using test::expect_error;

Calibration made_up(int threads = 2) {
  Calibration c;
  c.key = machine_key(threads);
  c.roofs.threads = threads;
  c.roofs.fp32_flops = 4e11;
  c.roofs.bf16_flops = 9e11;
  c.roofs.read_bytes = 5e10;
  c.roofs.copy_bytes = 3e10;
  c.roofs.stream_bytes = 4e10;
  c.seconds = 1.5;
  MeasuredProduct m;
  m.choice = {*parse_product_class("nt wide long"), DType::bf16, DType::bf16, MatmulKernel::avx2};
  m.rates = {{MatmulKernel::avx2, 2e11}, {MatmulKernel::avx512, 3e11}};
  c.products.push_back(m);
  return c;
}

TEST(Calibration, ChoosesByAMargin) {
  const MatmulKernel usual = MatmulKernel::avx512, other = MatmulKernel::avx512_bf16;
  EXPECT_EQ(fastest_kernel({{usual, 100}, {other, 102}}, usual), usual);
  EXPECT_EQ(fastest_kernel({{usual, 100}, {other, 104}}, usual), other);
  EXPECT_EQ(fastest_kernel({{other, 104}, {usual, 100}}, usual), other);
  EXPECT_EQ(fastest_kernel({{other, 90}, {usual, 100}}, usual), usual);
  EXPECT_EQ(fastest_kernel({{usual, 100}, {other, 110}, {MatmulKernel::amx_bf16, 120}}, usual),
            MatmulKernel::amx_bf16);
  EXPECT_EQ(fastest_kernel({{usual, 100}, {MatmulKernel::amx_bf16, 120}, {other, 110}}, usual),
            MatmulKernel::amx_bf16);
  EXPECT_EQ(fastest_kernel({}, usual), usual);
}

TEST(Calibration, IsReadAsItWasWritten) {
  const TempFolder folder;
  const std::string path = folder / "deep/er/calibration.json";
  const Calibration c = made_up();
  write_calibration(path, c);
  std::string ignored;
  const auto back = read_calibration(path, c.key, &ignored);
  ASSERT_TRUE(back) << ignored;
  EXPECT_EQ(ignored, "");
  EXPECT_EQ(calibration_json(*back).at("roofs"), calibration_json(c).at("roofs"));
  EXPECT_EQ(back->table().choices(), c.table().choices());
  EXPECT_EQ(back->seconds, c.seconds);
  ASSERT_EQ(back->products.size(), 1u);
  EXPECT_EQ(back->products[0].rates.size(), 2u);
  // Nothing but the file is left.
  int files = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(folder / "deep/er"))
    ++files;
  EXPECT_EQ(files, 1);
}

TEST(Calibration, NoFileIsNoRemark) {
  std::string ignored;
  EXPECT_FALSE(read_calibration("/nonexistent/file.json", machine_key(1), &ignored));
  EXPECT_FALSE(read_calibration("", machine_key(1), &ignored));
  EXPECT_EQ(ignored, "");
}

TEST(Calibration, OfAnotherMachineIsIgnoredWithAReason) {
  const TempFolder folder;
  const std::string path = folder / "c.json";
  write_calibration(path, made_up());
  const auto reason = [&](MachineKey key) {
    std::string ignored;
    EXPECT_FALSE(read_calibration(path, key, &ignored));
    EXPECT_NE(ignored.find(path), std::string::npos) << ignored;
    EXPECT_NE(ignored.find("snug calibrate"), std::string::npos) << ignored;
    return ignored;
  };
  MachineKey key = machine_key(2);
  key.cpu = "Other CPU";
  EXPECT_NE(reason(key).find("for CPU " + machine_key(2).cpu), std::string::npos);
  key = machine_key(2);
  key.instruction_set = "vax";
  EXPECT_NE(reason(key).find("is for " + machine_key(2).instruction_set), std::string::npos);
  EXPECT_NE(reason(machine_key(3)).find("2 threads"), std::string::npos);
  key = machine_key(2);
  key.build = "0";
  EXPECT_NE(reason(key).find("another build"), std::string::npos);
  key = machine_key(2);
  key.version = "9";
  EXPECT_NE(reason(key).find("another build"), std::string::npos);
}

TEST(Calibration, APlaceThatCannotBeMadeIsSaid) {
  const TempFolder folder;
  std::ofstream(folder / "file") << "x";
  EXPECT_ERROR(write_calibration(folder / "file/snug/c.json", made_up()), ErrorCode::device,
               "to create " + folder.path() + "/file/snug", "Not a directory",
               "set XDG_CACHE_HOME to a folder that can be written");
}

TEST(Calibration, DamagedFilesAreIgnoredWithAReason) {
  const TempFolder folder;
  const std::string path = folder / "c.json";
  const nlohmann::json good = calibration_json(made_up());
  const auto ignored_for = [&](const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
    std::string ignored;
    EXPECT_FALSE(read_calibration(path, machine_key(2), &ignored)) << text.substr(0, 200);
    EXPECT_NE(ignored.find(path + " "), std::string::npos) << ignored;
    EXPECT_EQ(ignored.find('\n'), std::string::npos) << "one line";
    return ignored;
  };
  const std::string whole = good.dump();
  for (const size_t length : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1})
    ignored_for(whole.substr(0, length));
  for (const char* text :
       {"[]", "null", "\"x\"", "{}", "\xff\xfe", "{\"format\": \"snug calibration\"}"})
    ignored_for(text);
  for (const auto& item : good.items()) {  // every key left out, and every key of another type
    nlohmann::json j = good;
    j.erase(item.key());
    ignored_for(j.dump());
    j[item.key()] = nlohmann::json::array({1});
    ignored_for(j.dump());
  }
  const auto with = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json j = good;
    j[nlohmann::json::json_pointer(pointer)] = value;
    return ignored_for(j.dump());
  };
  with("/format_version", 99);
  EXPECT_NE(with("/roofs/fp32_flops", -1).find("a rate of 0 or more for fp32_flops in"),
            std::string::npos);
  with("/roofs/fp32_flops", "fast");
  with("/key/threads", 0);
  with("/products/0/class", "nt wide");
  with("/products/0/dtype", "bf16");
  EXPECT_NE(with("/products/0/dtype", "f16 f16").find("a dtype that is measured, f32 or bf16, in"),
            std::string::npos);
  with("/products/0/rates", 3);
  with("/products/0/rates/avx2", nullptr);
  EXPECT_NE(with("/products/0/kernel", "reference ").find("a kernel of Snug"), std::string::npos);
  EXPECT_NE(with("/products/0/kernel", "cublaslt").find("a kernel of a CPU in"), std::string::npos);
  EXPECT_NE(with("/products/0/kernel", "amx_bf16_emulated").find("a kernel of Snug"),
            std::string::npos);
  EXPECT_NE(with("/products/0/kernel", "cuda").find("\"cuda\""), std::string::npos);
  if (!matmul_available(MatmulKernel::amx_bf16)) {
    EXPECT_NE(with("/products/0/kernel", "amx_bf16").find("this CPU lacks"), std::string::npos);
  }
  ignored_for(whole + std::string(2 << 20, ' '));  // longer than any of ours
}

// The variables are put back, since the program's other tests may read them.
class CachePlace : public testing::Test {
 protected:
  CachePlace() : cache_(saved("XDG_CACHE_HOME")), home_(saved("HOME")) {}
  ~CachePlace() override {
    put("XDG_CACHE_HOME", cache_);
    put("HOME", home_);
  }
  static void put(const char* name, const std::optional<std::string>& value) {
    if (value)
      setenv(name, value->c_str(), 1);
    else
      unsetenv(name);
  }

 private:
  static std::optional<std::string> saved(const char* name) {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  }
  std::optional<std::string> cache_, home_;
};

TEST_F(CachePlace, FollowsTheBaseDirectorySpecification) {
  const MachineKey key = machine_key(2);
  put("XDG_CACHE_HOME", "/c");
  put("HOME", "/h");
  const std::string path = calibration_path(key);
  EXPECT_EQ(path.rfind("/c/snug/calibration-", 0), 0u) << path;
  put("XDG_CACHE_HOME", "relative");  // which the specification says to ignore
  EXPECT_EQ(calibration_path(key).rfind("/h/.cache/snug/calibration-", 0), 0u);
  put("XDG_CACHE_HOME", std::nullopt);
  EXPECT_EQ(calibration_path(key).rfind("/h/.cache/snug/calibration-", 0), 0u);
  put("HOME", std::nullopt);
  EXPECT_EQ(calibration_path(key), "");
  put("XDG_CACHE_HOME", "/c");
  EXPECT_EQ(calibration_path(key), path);
  MachineKey other = key;
  other.build = "another";  // a new build replaces the file of the old one
  EXPECT_EQ(calibration_path(other), path);
  other.threads = 3;
  EXPECT_NE(calibration_path(other), path);
}

TEST_F(CachePlace, ARunUsesTheFileOfItsThreads) {
  const TempFolder folder;
  put("XDG_CACHE_HOME", folder.path());
  std::string ignored;
  EXPECT_TRUE(calibrated_kernels(2, &ignored).empty());
  write_calibration(calibration_path(machine_key(2)), made_up(2));
  EXPECT_EQ(calibrated_kernels(2, &ignored).choices(), made_up().table().choices());
  EXPECT_TRUE(calibrated_kernels(3, &ignored).empty());
  EXPECT_EQ(ignored, "");
}

// Beside a GPU the host's ops cost what they do on its own.
TEST_F(CachePlace, AHostBesideAGpuHasTheRatesOfItsThreads) {
  const TempFolder folder;
  put("XDG_CACHE_HOME", folder.path());
  for (const int threads : {1, 2, 16}) {
    const CostModel host = host_cost(threads, DType::f32),
                    own = CostModel::uncalibrated(plan_instruction_set(), threads);
    EXPECT_EQ(host.text(), own.text());
    EXPECT_EQ(host.rates().fp32_matrix, own.rates().fp32_matrix) << threads;
    EXPECT_EQ(host.rates().vector, own.rates().vector) << threads;
  }
  EXPECT_EQ(host_cost(16, DType::f32).rates().fp32_matrix,
            16 * host_cost(1, DType::f32).rates().fp32_matrix);
  write_calibration(calibration_path(machine_key(2)), made_up(2));
  EXPECT_NE(host_cost(2, DType::f32).text().find("calibrated on this machine"), std::string::npos)
      << host_cost(2, DType::f32).text();
  EXPECT_EQ(host_cost(2, DType::f32).rates().memory, made_up(2).roofs.copy_bytes);
}

TEST(SlowCalibration, MeasuresEveryProductOfTraining) {
  const Calibration c = calibrate(1, 0);
  EXPECT_EQ(c.products.size(), 36u);  // three layouts of six sizes, in fp32 and bf16
  EXPECT_EQ(c.table().choices().size(), 36u);
  for (const MeasuredProduct& m : c.products) {
    EXPECT_TRUE(matmul_available(m.choice.kernel));
    for (const KernelRate& r : m.rates) EXPECT_GT(r.flops, 1e7) << to_string(m.choice);
  }
  EXPECT_GT(c.roofs.fp32_flops, 1e9);
  EXPECT_GT(c.roofs.copy_bytes, 1e8);
}

TEST(Choices, TextsOfErrors) {
  const auto parse = [](const char* text) {
    return
        [text] { static_cast<void>(parse_choices(nlohmann::json::parse(text), "file / kernels")); };
  };
  expect_error(ErrorCode::data, {"a list of kernels in file / kernels"}, parse("3"));
  expect_error(ErrorCode::data, {"file / kernels / 0"}, parse("[3]"));
  expect_error(ErrorCode::data, {"class", "file / kernels / 0"}, parse("[{}]"));
  expect_error(ErrorCode::data, {"a class of products in file / kernels / 0", "\"nt\""},
               parse(R"([{"class": "nt", "dtype": "f32 f32", "kernel": "avx2"}])"));
  expect_error(ErrorCode::data, {"a dtype f32, bf16 or f16", "\"f64\""},
               parse(R"([{"class": "nt wide long", "dtype": "f32 f64", "kernel": "avx2"}])"));
  expect_error(ErrorCode::data, {"a kernel of Snug", "\"magic\""},
               parse(R"([{"class": "nt wide long", "dtype": "f32 f32", "kernel": "magic"}])"));
}

TEST(PinnedKernels, AreTakenOver) {
  const std::vector<KernelChoice> pinned = {
      {*parse_product_class("nt wide long"), DType::bf16, DType::bf16, MatmulKernel::avx2},
      {*parse_product_class("tn wide long"), DType::f32, DType::f32, MatmulKernel::reference}};
  EXPECT_EQ(pinned_kernels(pinned, "checkpoint-1", {}).choices(), pinned);
  EXPECT_TRUE(pinned_kernels({}, "checkpoint-1", {}).empty());
  // What a run on a GPU pins comes back too, and asks nothing of a CPU.
  std::vector<KernelChoice> gpu = pinned;
  gpu.push_back(
      {*parse_product_class("nt wide long"), DType::f16, DType::f16, MatmulKernel::cublaslt});
  EXPECT_EQ(parse_choices(choices_json(gpu), "a plan"), gpu);
  EXPECT_EQ(pinned_kernels(gpu, "checkpoint-1", {}).choices(), pinned);
}

TEST(PinnedKernels, ThatThisMachineLacksAreRefusedUnlessAnotherHasTheirBits) {
  const ProductClass c = *parse_product_class("nt wide long");
  if (!matmul_available(MatmulKernel::amx_bf16))
    expect_error(
        ErrorCode::usage,
        {"a CPU with the kernel amx_bf16 for bf16 products, as checkpoint-1 pins it",
         plan_instruction_set(), "allow=[gradients,kernels] to go on"},
        [&] {
          static_cast<void>(pinned_kernels({{c, DType::bf16, DType::bf16, MatmulKernel::amx_bf16}},
                                           "checkpoint-1", {"gradients"}));
        });
  const auto fp32 =
      pinned_kernels({{c, DType::f32, DType::f32, MatmulKernel::avx512}}, "checkpoint-1", {})
          .choices();
  ASSERT_EQ(fp32.size(), 1u);
  EXPECT_TRUE(matmul_available(fp32[0].kernel));
  EXPECT_TRUE(same_bits(fp32[0].kernel, MatmulKernel::avx512));
}

TEST(Threads, AWarningOnlyBeyondWhatTheProcessMayUse) {
  Processors p;
  p.cpus = {0, 1, 2, 3};
  p.cores = 2;
  EXPECT_EQ(threads_warning(2, p), "");
  EXPECT_EQ(threads_warning(4, p), "");  // hardware threads of its cores
  EXPECT_EQ(threads_warning(5, p),
            "threads=5 is more than this process may use at once (2 cores): they will take turns");
  p.quota = 1.5;
  p.quota_file = "/sys/fs/cgroup/cpu.max";
  EXPECT_EQ(threads_warning(2, p), "");
  EXPECT_EQ(threads_warning(3, p),
            "threads=3 is more than this process may use at once (2 cores, 1.5 of them granted by "
            "/sys/fs/cgroup/cpu.max): they will take turns");
}

TEST(Threads, AreThoseOfTheProcessUnlessSet) {
  EXPECT_EQ(resolve_threads(0), find_processors().threads());
  EXPECT_EQ(resolve_threads(1), 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(resolve_threads(1024), 1024);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("Warning: threads=1024"),
            std::string::npos);
  expect_error(ErrorCode::usage, {"threads of at most 1024", "1025"},
               [] { static_cast<void>(resolve_threads(1025)); });
}

// Of a product that the arithmetic bounds its arithmetic, of a copy its traffic.
TEST(Roofs, AShareIsThatOfTheNearerOne) {
  Roofs roofs;
  roofs.fp32_flops = 100e9;
  roofs.bf16_flops = 400e9;
  roofs.read_bytes = roofs.copy_bytes = roofs.stream_bytes = 10e9;
  EXPECT_NEAR(roof_share(roofs, 50e9, 1e9, 1.0, false), 0.5, 1e-12);
  EXPECT_NEAR(roof_share(roofs, 50e9, 1e9, 1.0, true), 0.125, 1e-12);
  EXPECT_NEAR(roof_share(roofs, 1e9, 9e9, 1.0, false), 0.9, 1e-12);
  EXPECT_EQ(roof_share(roofs, 1e9, 9e9, 0.0, false), 0);
}

}  // namespace
}  // namespace snug
