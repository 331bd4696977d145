// How many processors and how much memory a process may use, read from the folders of made-up
// machines.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/device/processors.h"
#include "engine/device/system_memory.h"

namespace snug {
namespace {

// A root directory with the files of a machine.
class Machine {
 public:
  Machine() {
    std::string pattern = (std::filesystem::temp_directory_path() / "snug-machine-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  ~Machine() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Machine& file(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
    return *this;
  }
  Machine& cores(const std::vector<std::string>& siblings, const char* name = "core_cpus_list") {
    for (size_t cpu = 0; cpu < siblings.size(); ++cpu)
      file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + name,
           siblings[cpu] + "\n");
    return *this;
  }
  // A process in `group` of a hierarchy of version 2 mounted at /sys/fs/cgroup.
  Machine& v2(const std::string& group, const std::string& top = "/") {
    file("/proc/self/cgroup", "0::" + group + "\n");
    return file("/proc/self/mountinfo",
                "22 1 0:21 / /proc rw,nosuid shared:5 - proc proc rw\n"
                "31 23 0:26 " +
                    top + " /sys/fs/cgroup ro,nosuid shared:9 - cgroup2 cgroup2 rw\n");
  }
  Machine& v1(const std::string& group, const std::string& top = "/") {
    file("/proc/self/cgroup", "9:cpuset:/other\n3:cpu,cpuacct:" + group + "\n0::/\n");
    return file("/proc/self/mountinfo",
                "36 31 0:32 /other /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                "32 31 0:29 " +
                    top +
                    " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup "
                    "rw,cpu,cpuacct\n");
  }
  const std::string& root() const { return root_; }
  double quota() {
    where_.clear();
    return cgroup_quota(root_, &where_);
  }
  const std::string& where() const { return where_; }

 private:
  std::string root_, where_;
};

TEST(Processors, NothingKnownIsNoLimit) {
  Machine m;
  EXPECT_EQ(m.quota(), 0.0);
  const Processors p = find_processors(m.root(), {0, 1, 2});
  EXPECT_EQ(p.cores, 3);
  EXPECT_EQ(p.threads(), 3);
  EXPECT_EQ(p.text(), "3 cores");
}

TEST(Processors, HardwareThreadsOfACoreCountOnce) {
  Machine m;
  m.cores({"0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"});
  EXPECT_EQ(find_processors(m.root(), {0, 1, 2, 3, 4, 5, 6, 7}).cores, 4);
  EXPECT_EQ(find_processors(m.root(), {4, 5}).cores, 2);  // the second threads of two cores
  EXPECT_EQ(find_processors(m.root(), {0, 4}).cores, 1);
  EXPECT_EQ(find_processors(m.root(), {0, 4}).text(), "1 core");
}

TEST(Processors, OlderNamesAndRangesOfSiblings) {
  Machine m;
  m.cores({"0-1", "0-1", "2-3", "2-3"}, "thread_siblings_list");
  EXPECT_EQ(find_processors(m.root(), {0, 1, 2, 3}).cores, 2);
}

TEST(Processors, ATopologyThatMakesNoSenseCountsEveryCpu) {
  Machine m;
  m.cores({"", "x", "-", "99999999999999999999"});
  EXPECT_EQ(find_processors(m.root(), {0, 1, 2, 3}).cores, 4);
}

TEST(Processors, QuotaOfTheSecondVersion) {
  Machine m;
  m.v2("/").file("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(m.quota(), 1.5);
  EXPECT_EQ(m.where(), "/sys/fs/cgroup/cpu.max");
  const Processors p = find_processors(m.root(), {0, 1, 2, 3});
  EXPECT_EQ(p.threads(), 2);  // rounded up
  EXPECT_EQ(p.text(), "4 cores, 1.5 of them granted by /sys/fs/cgroup/cpu.max");
  EXPECT_EQ(find_processors(m.root(), {0}).threads(), 1);
}

TEST(Processors, WholeQuotasAreNotRoundedUp) {
  Machine m;
  m.v2("/").file("/sys/fs/cgroup/cpu.max", "300000 100000");
  EXPECT_EQ(find_processors(m.root(), {0, 1, 2, 3}).threads(), 3);
  m.file("/sys/fs/cgroup/cpu.max", "10000 100000");
  EXPECT_EQ(find_processors(m.root(), {0, 1, 2, 3}).threads(), 1);
}

TEST(Processors, MaxIsNoLimit) {
  Machine m;
  m.v2("/").file("/sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(m.quota(), 0.0);
  EXPECT_EQ(find_processors(m.root(), {0, 1}).threads(), 2);
}

TEST(Processors, TheSmallestQuotaAlongThePathBinds) {
  Machine m;
  m.v2("/a/b/c")
      .file("/sys/fs/cgroup/a/cpu.max", "200000 100000")
      .file("/sys/fs/cgroup/a/b/cpu.max", "max 100000")
      .file("/sys/fs/cgroup/a/b/c/cpu.max", "600000 100000");
  EXPECT_DOUBLE_EQ(m.quota(), 2.0);
  EXPECT_EQ(m.where(), "/sys/fs/cgroup/a/cpu.max");
  m.file("/sys/fs/cgroup/a/b/c/cpu.max", "50000 100000");
  EXPECT_DOUBLE_EQ(m.quota(), 0.5);
  EXPECT_EQ(m.where(), "/sys/fs/cgroup/a/b/c/cpu.max");
  m.file("/sys/fs/cgroup/x/cpu.max", "10000 100000");  // not on the path
  EXPECT_DOUBLE_EQ(m.quota(), 0.5);
}

TEST(Processors, NamesOfGroupsMayHoldDotsAndBlanks) {
  Machine m;
  m.v2("/a..b/c d", "/a..b").file("/sys/fs/cgroup/c d/cpu.max", "50000 100000");
  EXPECT_DOUBLE_EQ(m.quota(), 0.5);
  m.v2("/a b/c", "/a\\040b").file("/sys/fs/cgroup/c/cpu.max", "30000 100000");
  EXPECT_DOUBLE_EQ(m.quota(), 0.3);
  m.v2("/a\\b", "/a\\134b").file("/sys/fs/cgroup/cpu.max", "20000 100000");
  EXPECT_DOUBLE_EQ(m.quota(), 0.2);
  EXPECT_EQ(m.where(), "/sys/fs/cgroup/cpu.max");
}

TEST(Processors, QuotaOfTheFirstVersion) {
  Machine m;
  m.v1("/user/job")
      .file("/sys/fs/cgroup/cpu,cpuacct/user/job/cpu.cfs_quota_us", "250000\n")
      .file("/sys/fs/cgroup/cpu,cpuacct/user/job/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(m.quota(), 2.5);
  EXPECT_EQ(m.where(), "/sys/fs/cgroup/cpu,cpuacct/user/job/cpu.cfs_quota_us");
  m.file("/sys/fs/cgroup/cpu,cpuacct/user/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(m.quota(), 0.0);
  m.file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000\n")
      .file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "50000\n");
  EXPECT_DOUBLE_EQ(m.quota(), 2.0);
}

// A container without a view of its own: its group is what is mounted, under the host's path.
TEST(Processors, AContainersOwnGroupAtTheMount) {
  Machine m;
  m.v1("/docker/abc", "/docker/abc")
      .file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000")
      .file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(m.quota(), 1.0);
  m.v1("/docker/abc/sub", "/docker/abc");
  m.file("/sys/fs/cgroup/cpu,cpuacct/sub/cpu.cfs_quota_us", "50000")
      .file("/sys/fs/cgroup/cpu,cpuacct/sub/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(m.quota(), 0.5);
  m.v1("/docker/abcd", "/docker/abc");  // a name that only begins alike
  EXPECT_DOUBLE_EQ(m.quota(), 1.0);
  m.v2("/../../elsewhere").file("/sys/fs/cgroup/cpu.max", "70000 100000");
  EXPECT_DOUBLE_EQ(m.quota(), 0.7);
}

// Files where a path that is put together wrongly would find them.
TEST(Processors, OtherGroupsDoNotBind) {
  Machine m;
  m.v1("/docker/abcd", "/docker/abc")
      .file("/sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_quota_us", "100000")
      .file("/sys/fs/cgroup/cpu,cpuacctd/cpu.cfs_quota_us", "100000")
      .file("/sys/fs/cgroup/cpu,cpuacctd/cpu.cfs_period_us", "100000")
      .file("/sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "100000")
      .file("/sys/fs/cgroup/cpuset/cpu.cfs_period_us", "100000");
  EXPECT_EQ(m.quota(), 0.0) << m.where();
  m.v2("/../elsewhere").file("/sys/fs/elsewhere/cpu.max", "70000 100000");
  EXPECT_EQ(m.quota(), 0.0) << m.where();
}

TEST(Processors, WithoutAListOfMountsTheUsualPlacesAreAsked) {
  Machine m;
  m.file("/sys/fs/cgroup/cpu.max", "100000 100000");
  EXPECT_DOUBLE_EQ(m.quota(), 1.0);
  Machine old;
  old.file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000")
      .file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000");
  EXPECT_DOUBLE_EQ(old.quota(), 2.0);
}

TEST(Processors, FilesThatMakeNoSenseSetNoLimit) {
  for (const char* text : {"", "\n", "100000", "max", "a b", "0 100000", "100000 0", "-5 100000",
                           "1e5 100000", "100000 -1", "99999999999999999999 1", "- -"}) {
    Machine m;
    m.v2("/").file("/sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(m.quota(), 0.0) << '"' << text << '"';
  }
  Machine m;
  m.file("/proc/self/cgroup", ":\n\n0\n::::\n3:cpu\n" + std::string(4096, ':'))
      .file("/proc/self/mountinfo", "\n - \n1 2 3\n1 2 3 / /x - cgroup2\n - cgroup2 a b\n");
  EXPECT_EQ(m.quota(), 0.0);
}

TEST(Processors, ThisProcess) {
  const std::vector<int> cpus = allowed_cpus();
  ASSERT_FALSE(cpus.empty());
  const Processors p = find_processors();
  EXPECT_GE(p.threads(), 1);
  EXPECT_LE(p.threads(), static_cast<int>(cpus.size()));
  EXPECT_EQ(p.cpus, cpus);
}

// In a thread of its own, so that the program's other tests keep their processors.
TEST(Processors, FollowsTheAffinity) {
  const std::vector<int> all = allowed_cpus();
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(all.back()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(allowed_cpus(), std::vector<int>{all.back()});
    EXPECT_EQ(find_processors().threads(), 1);
  }).join();
}

TEST(Process, CountsItsTimeAndPages) {
  const double before = process_cpu_seconds();
  volatile double sum = 0;
  while (process_cpu_seconds() < before + 0.01) sum = sum + 1;
  EXPECT_GT(process_cpu_seconds(), before);
  EXPECT_GT(process_peak_bytes(), int64_t{1} << 20);
  // Between a clock that starts before and one that starts after, however long the sleep becomes.
  const auto seconds = [](auto since) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  };
  const auto outer = std::chrono::steady_clock::now();
  const double age = seconds_since_start();
  const auto inner = std::chrono::steady_clock::now();
  EXPECT_GT(age, 0);
  EXPECT_LT(age, 600);
  usleep(30000);
  const double least = seconds(inner), passed = seconds_since_start() - age, most = seconds(outer);
  EXPECT_GE(passed, least - 0.001);
  EXPECT_LE(passed, most + 0.001);
}

// A machine of 16 GiB of which 12 are free.
void sixteen(Machine& m) {
  m.file("/proc/meminfo",
         "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   12582912 kB\n");
}
constexpr int64_t kGiB = int64_t{1} << 30;

TEST(SystemMemory, WithoutALimitItIsTheMachines) {
  Machine m;
  sixteen(m);
  EXPECT_EQ(system_memory(m.root()).total_bytes, 16 * kGiB);
  EXPECT_EQ(system_memory(m.root()).available_bytes, 12 * kGiB);
  m.v2("/job")
      .file("/sys/fs/cgroup/job/memory.max", "max\n")
      .file("/sys/fs/cgroup/job/memory.current", "1073741824\n");
  EXPECT_EQ(system_memory(m.root()).total_bytes, 16 * kGiB);
  EXPECT_EQ(system_memory(m.root()).available_bytes, 12 * kGiB);
}

TEST(SystemMemory, TheGroupAndThoseAboveItBind) {
  Machine m;
  sixteen(m);
  m.v2("/slice/job")
      .file("/sys/fs/cgroup/slice/job/memory.max", "4294967296\n")
      .file("/sys/fs/cgroup/slice/job/memory.current", "1073741824\n")
      .file("/sys/fs/cgroup/slice/job/memory.stat",
            "anon 5\ninactive_file 268435456\nactive_file 134217728\nslab_reclaimable 134217728\n"
            "slab_unreclaimable 77\n");
  EXPECT_EQ(system_memory(m.root()).total_bytes, 4 * kGiB);
  EXPECT_EQ(system_memory(m.root()).available_bytes, 3 * kGiB + kGiB / 2);  // given up
  // A group above it that has less left, though its limit is higher.
  m.file("/sys/fs/cgroup/slice/memory.max", "8589934592\n")
      .file("/sys/fs/cgroup/slice/memory.current", "6442450944\n");
  EXPECT_EQ(system_memory(m.root()).total_bytes, 4 * kGiB);
  EXPECT_EQ(system_memory(m.root()).available_bytes, 2 * kGiB);
  // Above its limit for a moment: nothing is left.
  m.file("/sys/fs/cgroup/slice/memory.current", "9589934592\n");
  EXPECT_EQ(system_memory(m.root()).available_bytes, 0);
}

TEST(SystemMemory, WhereAGroupIsSlowedDownBindsAsWell) {
  Machine m;
  sixteen(m);
  m.v2("/job")
      .file("/sys/fs/cgroup/job/memory.max", "max\n")
      .file("/sys/fs/cgroup/job/memory.high", "4294967296\n")
      .file("/sys/fs/cgroup/job/memory.current", "1073741824\n");
  EXPECT_EQ(system_memory(m.root()).total_bytes, 4 * kGiB);
  EXPECT_EQ(system_memory(m.root()).available_bytes, 3 * kGiB);
  m.file("/sys/fs/cgroup/job/memory.max", "2147483648\n");  // the lower of the two
  EXPECT_EQ(system_memory(m.root()).total_bytes, 2 * kGiB);
  m.file("/sys/fs/cgroup/job/memory.high", "max\n");
  EXPECT_EQ(system_memory(m.root()).total_bytes, 2 * kGiB);
}

// Of a container: its own group is the top of what is mounted.
TEST(SystemMemory, AContainersLimitIsAtTheTop) {
  Machine m;
  sixteen(m);
  m.v2("/")
      .file("/sys/fs/cgroup/memory.max", "2147483648\n")
      .file("/sys/fs/cgroup/memory.current", "0\n");
  EXPECT_EQ(system_memory(m.root()).total_bytes, 2 * kGiB);
  EXPECT_EQ(system_memory(m.root()).available_bytes, 2 * kGiB);
}

TEST(SystemMemory, OfTheFirstVersion) {
  Machine m;
  sixteen(m);
  m.file("/proc/self/cgroup", "9:cpuset:/other\n4:memory:/job\n0::/\n")
      .file("/proc/self/mountinfo",
            "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
      .file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
      .file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "7\n")
      .file("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "3221225472\n")
      .file("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1073741824\n")
      .file("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 9\ntotal_inactive_file 4096\n");
  EXPECT_EQ(system_memory(m.root()).total_bytes, 3 * kGiB);
  EXPECT_EQ(system_memory(m.root()).available_bytes, 2 * kGiB + 4096);
}

}  // namespace
}  // namespace snug
