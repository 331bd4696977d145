#include "tools/inspect/machine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "engine/core/units.h"
#include "engine/device/device.h"
#include "engine/device/mounts.h"
#include "engine/device/processors.h"
#include "tools/inspect/libraries.h"
#include "tools/planner/plan.h"

namespace snug {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// A value of /proc/meminfo in bytes; -1 if it is not there.
int64_t meminfo(const std::string& root, const std::string& name) {
  std::ifstream in(root + "/proc/meminfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name + ":"))
      return std::strtoll(line.c_str() + name.size() + 1, nullptr, 10) * 1024;
  return -1;
}

Finding examine_cpu(const std::string& root) {
  Finding f{.name = "cpu"};
  const std::string model = processor_name(root);
  const std::vector<std::string> features = cpu_features();
  f.facts = {{"model", model}, {"features", features}};
  f.text = fmt::format("{}; {}", model, fmt::join(features, ", "));
  const auto has = [&](const char* name) {
    for (const std::string& feature : features)
      if (feature == name) return true;
    return false;
  };
  if (!has("AVX2") || !has("FMA")) {
    f.level = Level::problem;
    f.advice = "a processor with AVX2 and FMA (any of the last ten years)";
  } else if (!has("AVX-512")) {
    f.level = Level::note;
    f.advice = "nothing to do: matrix products use AVX2, the narrower vectors";
  }
  return f;
}

int64_t limit_of(decltype(RLIMIT_AS) which) {
  struct rlimit limit {};
  if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
}

std::string amount(int64_t bytes) {
  return bytes < 0 ? "unlimited" : human_bytes(bytes);
}

// The name that decides how characters are shown, as setlocale(3) picks it.
std::string locale_name() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* const value = std::getenv(variable); value && *value) return value;
  return "";
}

}  // namespace

Finding examine_processors(const std::string& root) {
  Finding f{.name = "processors"};
  const Processors p = find_processors(root);
  f.text = fmt::format("{} for this process; {} thread{} by default", p.text(), p.threads(),
                       p.threads() == 1 ? "" : "s");
  f.facts = {{"cpus", p.cpus.size()},
             {"cores", p.cores},
             {"quota", p.quota > 0 ? nlohmann::ordered_json(p.quota) : nullptr},
             {"threads", p.threads()}};
  if (p.quota > 0 && p.quota < p.cores) {
    f.level = Level::note;
    f.advice = fmt::format("{} grants less than the cores that are there; raise it to use them",
                           p.quota_file);
  }
  return f;
}

Finding examine_memory(int64_t total, int64_t available, int64_t limit) {
  Finding f{.name = "memory"};
  f.text = fmt::format("{} of {} available", human_bytes(available), human_bytes(total));
  if (limit > 0) f.text += fmt::format("; the control group allows {}", human_bytes(limit));
  f.facts = {{"total_bytes", total},
             {"available_bytes", available},
             {"cgroup_limit_bytes", limit > 0 ? nlohmann::ordered_json(limit) : nullptr}};
  // What any plan sets aside for the program, before the first tensor.
  const int64_t least = declared_runtime_bytes(1, 0);
  if (available < least) {
    f.level = Level::problem;
    f.advice = fmt::format(
        "close other programs, or raise the limit: a run needs {} for the program alone",
        human_bytes(least));
  } else if (available < kGiB) {
    f.level = Level::note;
    f.advice = "small models only; snug plan says what fits";
  }
  return f;
}

Finding examine_swap(const std::string& root) {
  Finding f{.name = "swap"};
  const int64_t total = meminfo(root, "SwapTotal"), left = meminfo(root, "SwapFree");
  f.facts = {{"total_bytes", total >= 0 ? nlohmann::ordered_json(total) : nullptr},
             {"free_bytes", left >= 0 ? nlohmann::ordered_json(left) : nullptr}};
  if (total <= 0) {
    f.text = total < 0 ? "unknown" : "none";
    return f;
  }
  f.text = fmt::format("{} of {} used", human_bytes(total - left), human_bytes(total));
  if (total - left > total / 4) {
    f.level = Level::note;
    f.advice = "memory is or was short: a run whose pages are swapped out is many times slower";
  }
  return f;
}

Finding examine_huge_pages(const std::string& root) {
  Finding f{.name = "huge pages"};
  const std::string line = first_line(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t open = line.find('['), close = line.find(']');
  const bool known = open != std::string::npos && close != std::string::npos && close > open;
  const std::string mode = known ? line.substr(open + 1, close - open - 1) : "unknown";
  f.text = "transparent huge pages: " + mode;
  f.facts = {{"transparent", mode}};
  if (mode == "never") {
    f.level = Level::note;
    f.advice =
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: large tensors then take fewer "
        "address translations";
  }
  return f;
}

Finding examine_overcommit(const std::string& root) {
  Finding f{.name = "overcommit"};
  const std::string mode = first_line(root + "/proc/sys/vm/overcommit_memory");
  f.facts = {{"mode", mode}};
  f.text = mode == "2"    ? "2: the system grants no more than it can back"
           : mode.empty() ? "unknown"
                          : mode + ": usual";
  if (mode == "2") {
    f.level = Level::note;
    f.advice = "a reservation counts at once; keep memory= below the commit limit";
  }
  return f;
}

Finding examine_disk(const std::string& folder, std::optional<int64_t> free_bytes) {
  Finding f{.name = "disk"};
  char resolved[4096];
  const char* const path = realpath(folder.c_str(), resolved);
  const std::string shown = path ? path : folder;
  if (!free_bytes) free_bytes = free_disk_bytes(folder);
  const bool known = free_bytes.has_value();
  const int64_t left = free_bytes.value_or(-1);
  f.facts = {{"folder", shown},
             {"free_bytes", known ? nlohmann::ordered_json(left) : nullptr},
             {"writable", false}};
  // As a run writes: a new file, made durable, removed.
  std::string name = folder + "/.snug-doctor-XXXXXX";
  std::string reason;
  int code = 0;
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) {
    reason = std::strerror(errno);
  } else {
    const std::string block(kMiB, 'x');
    size_t done = 0;
    while (done < block.size() && reason.empty()) {
      const ssize_t n = write(fd, block.data() + done, block.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        reason = std::strerror(code = errno);
      else
        done += static_cast<size_t>(n);
    }
    if (reason.empty() && fsync(fd) != 0) reason = std::strerror(errno);
    close(fd);
    unlink(name.c_str());
  }
  f.facts["writable"] = reason.empty() || code == EFBIG;
  f.text = fmt::format("{}: {}", shown,
                       known ? human_bytes(left) + " free" : std::string("free space unknown"));
  if (code == EFBIG) {
    // The folder is fine; what stands in the way is under "limits".
    f.level = Level::note;
    f.text += fmt::format(", can be written up to the file size limit of {}",
                          amount(limit_of(RLIMIT_FSIZE)));
    f.advice = "ulimit -f unlimited";
  } else if (!reason.empty()) {
    f.level = Level::problem;
    f.text += ", cannot be written: " + reason;
    f.advice = "start in another folder, or output_dir= in one that can be written";
  } else if (known && left < 4 * kGiB) {
    f.level = Level::note;
    f.text += ", can be written";
    f.advice =
        "a checkpoint takes up to 12 bytes a parameter; save_total_limit=2 keeps the newest two";
  } else {
    f.text += ", can be written";
  }
  return f;
}

Finding examine_limits(int64_t address_space, int64_t file_size, int64_t files) {
  Finding f{.name = "limits"};
  f.text = fmt::format("address space {}, file size {}, open files {}", amount(address_space),
                       amount(file_size), files < 0 ? "unlimited" : std::to_string(files));
  const auto value = [](int64_t v) {
    return v < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(v);
  };
  f.facts = {{"address_space_bytes", value(address_space)},
             {"file_size_bytes", value(file_size)},
             {"open_files", value(files)}};
  std::vector<std::string> advice;
  if (address_space >= 0) advice.emplace_back("ulimit -v unlimited, or memory= below it");
  if (file_size >= 0) advice.emplace_back("ulimit -f unlimited: a larger checkpoint fails");
  if (files >= 0 && files < 64) advice.emplace_back("ulimit -n 256: shards and logs stay open");
  if (!advice.empty()) f.level = Level::note;
  if ((files >= 0 && files < 24) || (address_space >= 0 && address_space < 512 * kMiB) ||
      (file_size >= 0 && file_size < kMiB))
    f.level = Level::problem;
  f.advice = fmt::format("{}", fmt::join(advice, "; "));
  return f;
}

Finding examine_locale(const std::string& name, bool terminal) {
  Finding f{.name = "terminal"};
  std::string lower;
  for (const char c : name) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool utf8 =
      lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos;
  f.text = fmt::format("{}; locale {}", terminal ? "a terminal" : "no terminal: plain lines",
                       name.empty() ? "not set" : name);
  f.facts = {{"terminal", terminal}, {"locale", name}, {"utf8", utf8}};
  if (terminal && !utf8) {
    f.level = Level::note;
    f.advice = "export LC_ALL=C.UTF-8: text and pictures are written in UTF-8";
  }
  return f;
}

std::vector<Finding> examine_machine(const MachineOptions& options) {
  const std::string& root = options.root;
  std::vector<Finding> out;
  out.push_back(examine_cpu(root));
  out.push_back(examine_processors(root));
  const MemoryInfo memory = make_device(Place::cpu)->memory_info();
  const int64_t machine = meminfo(root, "MemTotal");
  out.push_back(examine_memory(machine > 0 ? machine : memory.total_bytes, memory.available_bytes,
                               memory.total_bytes < machine ? memory.total_bytes : 0));
  out.push_back(examine_swap(root));
  out.push_back(examine_huge_pages(root));
  out.push_back(examine_overcommit(root));
  Finding libraries{.name = "libraries", .facts = nlohmann::ordered_json::object()};
  for (const auto& [name, version] : library_versions()) {
    libraries.facts[name] = version;
    libraries.text += fmt::format("{}{} {}", libraries.text.empty() ? "" : ", ", name, version);
  }
  out.push_back(libraries);
  out.push_back(examine_cuda());
  out.push_back(examine_disk(options.folder));
  out.push_back(
      examine_limits(limit_of(RLIMIT_AS), limit_of(RLIMIT_FSIZE), limit_of(RLIMIT_NOFILE)));
  out.push_back(examine_locale(locale_name(), isatty(STDOUT_FILENO) == 1));
  return out;
}

std::string machine_text(const std::vector<Finding>& findings) {
  constexpr const char* kLevels[] = {"OK", "note", "problem"};
  std::string out;
  int problems = 0;
  for (const Finding& f : findings) {
    out += fmt::format("{:<8} {:<11} {}\n", kLevels[static_cast<int>(f.level)], f.name, f.text);
    if (!f.advice.empty()) out += fmt::format("{:<20} -> {}\n", "", f.advice);
    problems += f.level == Level::problem;
  }
  return out + (problems == 0 ? "Nothing stands in the way of training.\n"
                : problems == 1
                    ? "1 problem stands in the way of training.\n"
                    : fmt::format("{} problems stand in the way of training.\n", problems));
}

nlohmann::ordered_json machine_json(const std::vector<Finding>& findings) {
  constexpr const char* kLevels[] = {"ok", "note", "problem"};
  nlohmann::ordered_json out = {{"problems", 0}, {"checks", nlohmann::ordered_json::array()}};
  int problems = 0;
  for (const Finding& f : findings) {
    problems += f.level == Level::problem;
    nlohmann::ordered_json row = {{"name", f.name},
                                  {"level", kLevels[static_cast<int>(f.level)]},
                                  {"text", f.text},
                                  {"advice", f.advice}};
    row["facts"] = f.facts;
    out["checks"].push_back(std::move(row));
  }
  out["problems"] = problems;
  return out;
}

}  // namespace snug
