// How many threads a computation should use here: one for every core this process may run on, and
// no more than its control group is granted time for.
//
// Sources   sched_getaffinity(2); cpu.max (v2) or cpu.cfs_quota_us and cpu.cfs_period_us (v1) of
//           the group and of every group above it that can be seen, the smallest of which binds;
//           /sys/devices/system/cpu/cpuN/topology (kernel documentation: cgroup-v2.rst,
//           sched-bwc.rst, cputopology.rst).
// Errors    none: what is missing or makes no sense sets no limit.
//
// Hardware threads of one core share its arithmetic units, which the products keep busy alone, so a
// core counts once. Threads are not bound to cores: on a quiet machine that gained nothing, and
// beside another busy process a step took up to three times as long
// (tests/bench/results/threads.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace snug {

struct Processors {
  std::vector<int> cpus;   // the numbers of those this process may use, ascending
  int cores = 1;           // physical ones among them
  double quota = 0;        // processors' worth of time the control group grants; 0: no limit
  std::string quota_file;  // where the quota is stated

  // min(cores, quota rounded up), at least 1. Rounded up because half a processor's time would
  // otherwise be left: the threads run until the period's share is used, then all of them wait.
  int threads() const;
  std::string text() const;  // "2 cores", "4 cores, 1.5 of them granted by /sys/fs/cgroup/cpu.max"
};

// The numbers of the CPUs this process may run on, whatever OpenMP bound its first thread to.
std::vector<int> allowed_cpus();

// For tests, `root` stands before every path that is read; an empty `cpus` asks the system.
Processors find_processors(const std::string& root = "", std::vector<int> cpus = {});

// "Intel(R) Xeon(R) Platinum 8488C", as /proc/cpuinfo has it; "unknown" if it does not say.
std::string processor_name(const std::string& root = "");

// The smallest quota along the group's path, in processors; 0: none. `file` gets where it is.
double cgroup_quota(const std::string& root, std::string* file);

// Of the machine since it was started: /proc/sys/kernel/random/boot_id; empty if the system does not say.
std::string boot_id();

// Processor time this process has used, all threads, and its largest resident size (VmHWM).
double process_cpu_seconds();
int64_t process_peak_bytes();
// Seconds since the system started this process, to 10 ms, the linking of libraries included; 0 if
// the system does not say.
double seconds_since_start();

}  // namespace snug
