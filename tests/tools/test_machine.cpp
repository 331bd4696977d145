// snug doctor's lines, each over made-up files or values.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/engine/io/temp_folder.h"
#include "tools/inspect/machine.h"
#include "tools/planner/plan.h"

namespace snug {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

void put(const TempFolder& root, const std::string& path, const std::string& text) {
  const std::string full = root.path() + path;
  std::filesystem::create_directories(std::filesystem::path(full).parent_path());
  std::ofstream(full) << text;
}

void expect_finding(const Finding& f, Level level, const std::string& text,
                    const std::string& advice) {
  EXPECT_EQ(static_cast<int>(f.level), static_cast<int>(level)) << f.text;
  EXPECT_NE(f.text.find(text), std::string::npos) << f.text;
  if (advice.empty()) {
    EXPECT_EQ(f.advice, "");
  }
  EXPECT_NE(f.advice.find(advice), std::string::npos) << f.advice;
  EXPECT_TRUE(f.level == Level::ok || !f.advice.empty());
}

TEST(Machine, HugePages) {
  TempFolder root;
  const std::string file = "/sys/kernel/mm/transparent_hugepage/enabled";
  expect_finding(examine_huge_pages(root.path()), Level::ok, "unknown", "");
  put(root, file, "always [madvise] never\n");
  expect_finding(examine_huge_pages(root.path()), Level::ok, ": madvise", "");
  put(root, file, "always madvise [never]\n");
  expect_finding(examine_huge_pages(root.path()), Level::note, ": never", "echo madvise >");
  put(root, file, "]nonsense[\n");
  expect_finding(examine_huge_pages(root.path()), Level::ok, "unknown", "");
}

TEST(Machine, SwapAndOvercommit) {
  TempFolder root;
  expect_finding(examine_swap(root.path()), Level::ok, "unknown", "");
  put(root, "/proc/meminfo", "MemTotal: 100 kB\nSwapTotal:       0 kB\nSwapFree:  0 kB\n");
  expect_finding(examine_swap(root.path()), Level::ok, "none", "");
  put(root, "/proc/meminfo", "SwapTotal: 4096 kB\nSwapFree:  3072 kB\n");
  expect_finding(examine_swap(root.path()), Level::ok, "1.00 MiB of 4.00 MiB used", "");
  put(root, "/proc/meminfo", "SwapTotal: 4096 kB\nSwapFree:  3071 kB\n");
  expect_finding(examine_swap(root.path()), Level::note, "of 4.00 MiB used", "many times slower");
  expect_finding(examine_overcommit(root.path()), Level::ok, "unknown", "");
  put(root, "/proc/sys/vm/overcommit_memory", "1\n");
  expect_finding(examine_overcommit(root.path()), Level::ok, "1: usual", "");
  put(root, "/proc/sys/vm/overcommit_memory", "2\n");
  expect_finding(examine_overcommit(root.path()), Level::note, "no more than it can back",
                 "below the commit limit");
}

TEST(Machine, Memory) {
  expect_finding(examine_memory(8 * kGiB, 4 * kGiB, 0), Level::ok, "4.00 GiB of 8.00 GiB", "");
  expect_finding(examine_memory(8 * kGiB, kGiB - 1, 2 * kGiB), Level::note,
                 "the control group allows 2.00 GiB", "small models only");
  const int64_t least = declared_runtime_bytes(1, 0);
  expect_finding(examine_memory(8 * kGiB, least, 0), Level::note, "17.00 MiB of", "small");
  expect_finding(examine_memory(8 * kGiB, least - 1, 0), Level::problem, "of 8.00 GiB",
                 "a run needs 17.00 MiB for the program alone");
}

TEST(Machine, Processors) {
  TempFolder root;
  Finding f = examine_processors(root.path());
  EXPECT_EQ(static_cast<int>(f.level), static_cast<int>(Level::ok));
  EXPECT_GE(f.facts["threads"], 1);
  EXPECT_EQ(f.facts["quota"], nullptr);
  put(root, "/proc/self/cgroup", "0::/\n");
  put(root, "/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
  put(root, "/sys/fs/cgroup/cpu.max", "50000 100000\n");
  f = examine_processors(root.path());
  expect_finding(f, Level::note, "0.5 of them", "/sys/fs/cgroup/cpu.max grants less");
  EXPECT_EQ(f.facts["threads"], 1);
}

TEST(Machine, Disk) {
  TempFolder folder;
  const Finding good = examine_disk(folder.path());
  EXPECT_NE(static_cast<int>(good.level), static_cast<int>(Level::problem)) << good.text;
  EXPECT_EQ(good.facts["writable"], true);
  EXPECT_TRUE(good.text.ends_with("can be written")) << good.text;
  EXPECT_EQ(folder.count(), 0) << "the test of writing leaves nothing";
  expect_finding(examine_disk(folder.path(), 4 * kGiB), Level::ok, "4.00 GiB free, can be", "");
  expect_finding(examine_disk(folder.path(), 4 * kGiB - 1), Level::note, "free, can be written",
                 "save_total_limit=2");
  EXPECT_EQ(examine_disk(folder.path(), 12345).facts["free_bytes"], 12345);
  expect_finding(examine_disk(folder / "none"), Level::problem, "No such file", "another folder");
  expect_finding(examine_disk("/proc"), Level::problem, "cannot be written", "another folder");
}

TEST(Machine, Limits) {
  expect_finding(examine_limits(-1, -1, 1024), Level::ok, "address space unlimited", "");
  expect_finding(examine_limits(-1, -1, -1), Level::ok, "open files unlimited", "");
  expect_finding(examine_limits(kGiB, -1, 1024), Level::note, "address space 1.00 GiB",
                 "ulimit -v unlimited");
  expect_finding(examine_limits(-1, kGiB, 1024), Level::note, "file size 1.00 GiB", "ulimit -f");
  expect_finding(examine_limits(-1, -1, 63), Level::note, "open files 63", "ulimit -n 256");
  expect_finding(examine_limits(-1, -1, 23), Level::problem, "open files 23", "ulimit -n");
  expect_finding(examine_limits(512 * kMiB - 1, -1, 64), Level::problem, "", "ulimit -v");
  expect_finding(examine_limits(-1, kMiB - 1, 64), Level::problem, "", "ulimit -f");
}

TEST(Machine, LocaleAndCuda) {
  expect_finding(examine_locale("en_US.UTF-8", true), Level::ok, "a terminal; locale en_US", "");
  expect_finding(examine_locale("C.utf8", true), Level::ok, "C.utf8", "");
  expect_finding(examine_locale("", false), Level::ok, "plain lines; locale not set", "");
  expect_finding(examine_locale("POSIX", true), Level::note, "POSIX", "C.UTF-8");
  const Finding cuda = examine_cuda();
  EXPECT_NE(static_cast<int>(cuda.level), static_cast<int>(Level::problem));
  EXPECT_NE(cuda.text.find("this build trains "), std::string::npos) << cuda.text;
}

TEST(Machine, TheWholeAsTextAndJson) {
  TempFolder folder;
  std::vector<Finding> all = examine_machine({.folder = folder.path()});
  EXPECT_EQ(all.size(), 11u);
  for (const Finding& f : all) {
    EXPECT_FALSE(f.text.empty()) << f.name;
    EXPECT_NE(machine_text(all).find(f.name), std::string::npos);
  }
  EXPECT_EQ(machine_json(all)["problems"], 0) << machine_text(all);
  EXPECT_NE(machine_text(all).find("Nothing stands in the way"), std::string::npos);
  all[0].level = Level::problem;
  EXPECT_NE(machine_text(all).find("problem  cpu"), std::string::npos);
  EXPECT_NE(machine_text(all).find("1 problem stands in the way"), std::string::npos);
  all[1].level = Level::problem;
  EXPECT_NE(machine_text(all).find("2 problems stand"), std::string::npos);
  const auto json = machine_json(all);
  EXPECT_EQ(json["problems"], 2);
  EXPECT_EQ(json["checks"][0]["level"], "problem");
  EXPECT_TRUE(json["checks"][0]["facts"].contains("features"));
}

}  // namespace
}  // namespace snug
