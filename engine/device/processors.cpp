#include "engine/device/processors.h"

#include <fmt/format.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include "engine/core/openmp.h"
#include "engine/device/cgroup.h"

namespace snug {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// The whole text as a number, or nothing.
std::optional<int64_t> whole_number(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  const bool negative = text.front() == '-';
  int64_t value = 0;
  for (const char c : text.substr(negative ? 1 : 0)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  if (negative && text.size() == 1) return std::nullopt;
  return negative ? -value : value;
}

// Quota over period; 0: no limit, or not what the kernel writes.
double ratio(std::string_view quota, std::string_view period) {
  const auto q = whole_number(quota), p = whole_number(period);
  return q && p && *q > 0 && *p > 0 ? static_cast<double>(*q) / static_cast<double>(*p) : 0.0;
}

double quota_v2(const std::string& folder, std::string* file) {
  *file = folder + "/cpu.max";
  std::istringstream in(first_line(*file));
  std::string quota, period;
  return in >> quota >> period ? ratio(quota, period) : 0.0;
}

double quota_v1(const std::string& folder, std::string* file) {
  *file = folder + "/cpu.cfs_quota_us";
  return ratio(first_line(*file), first_line(folder + "/cpu.cfs_period_us"));
}

// "0-2,7" begins with 0.
std::optional<int64_t> first_of_list(const std::string& text) {
  return whole_number(text.substr(0, text.find_first_of(",-")));
}

}  // namespace

int Processors::threads() const {
  int limit = cores;
  if (quota > 0 && quota < static_cast<double>(cores))
    limit = static_cast<int>(std::ceil(quota - 1e-9));
  return std::max(1, limit);
}

std::string Processors::text() const {
  std::string s = fmt::format("{} core{}", cores, cores == 1 ? "" : "s");
  if (quota > 0 && quota < static_cast<double>(cores))
    s += fmt::format(", {:.3g} of them granted by {}", quota, quota_file);
  return s;
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  // Where OpenMP binds its threads the first one is bound already; its places say what there was.
  if (omp_get_proc_bind() != omp_proc_bind_false && omp_get_num_places() > 0) {
    for (int place = 0; place < omp_get_num_places(); ++place) {
      std::vector<int> ids(static_cast<size_t>(omp_get_place_num_procs(place)));
      if (!ids.empty()) omp_get_place_proc_ids(place, ids.data());
      cpus.insert(cpus.end(), ids.begin(), ids.end());
    }
  } else {
    for (int most = 1024; most <= (1 << 20); most *= 4) {
      cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(most));
      if (set == nullptr) break;
      const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
      CPU_ZERO_S(bytes, set);
      const bool known = sched_getaffinity(0, bytes, set) == 0;
      const bool small = !known && errno == EINVAL;  // the machine has more than `most`
      for (int cpu = 0; known && cpu < most; ++cpu)
        if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
      CPU_FREE(set);
      if (!small) break;
    }
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  if (cpus.empty())
    for (int cpu = 0; cpu < std::max(1, omp_get_num_procs()); ++cpu) cpus.push_back(cpu);
  return cpus;
}

std::string processor_name(const std::string& root) {
  std::ifstream in(root + "/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name")) {
      const size_t colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  return "unknown";
}

double cgroup_quota(const std::string& root, std::string* file) {
  double least = 0;
  for (const CgroupFolder& group : cgroup_folders(root, "cpu")) {
    std::string where;
    const double quota = group.v2 ? quota_v2(group.path, &where) : quota_v1(group.path, &where);
    if (quota > 0 && (least <= 0 || quota < least)) {
      least = quota;
      *file = where.substr(root.size());
    }
  }
  return least;
}

Processors find_processors(const std::string& root, std::vector<int> cpus) {
  Processors p;
  p.cpus = cpus.empty() ? allowed_cpus() : std::move(cpus);
  std::set<int64_t> cores;
  for (const int cpu : p.cpus) {
    const std::string folder = fmt::format("{}/sys/devices/system/cpu/cpu{}/topology/", root, cpu);
    auto first = first_of_list(first_line(folder + "core_cpus_list"));
    if (!first) first = first_of_list(first_line(folder + "thread_siblings_list"));
    cores.insert(first.value_or(cpu));
  }
  p.cores = std::max(1, static_cast<int>(cores.size()));
  p.quota = cgroup_quota(root, &p.quota_file);
  return p;
}

double process_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

int64_t process_peak_bytes() {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;)
    if (word == "VmHWM:") {
      int64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  return 0;
}

double seconds_since_start() {
  // proc(5): field 22, counted after the name, which ends with the last parenthesis.
  const std::string stat = first_line("/proc/self/stat");
  const size_t name = stat.rfind(')');
  if (name == std::string::npos) return 0;
  std::istringstream in(stat.substr(name + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i)
    if (!(in >> field)) return 0;
  const auto ticks = whole_number(field);
  timespec now{};
  if (!ticks || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const double began = static_cast<double>(*ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return std::max(
      0.0, static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - began);
}

std::string boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(in, text);
  return text;
}

}  // namespace snug
