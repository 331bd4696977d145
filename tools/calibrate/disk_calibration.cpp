#include "tools/calibrate/disk_calibration.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/core/error.h"
#include "engine/device/busy.h"
#include "engine/device/mounts.h"
#include "engine/device/tier_file.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"
#include "engine/memory/context.h"
#include "tools/calibrate/calibration.h"

namespace snug {
namespace {

constexpr const char* kDiskName = "snug disk calibration";
constexpr int64_t kDiskFormat = 1;
constexpr int64_t kMostDiskFileBytes = 1 << 16;

// Memory of one window, aligned for direct transfers, with values that no disk packs away.
class DiskWindow {
 public:
  DiskWindow() : bytes_(DiskCalibration::kWindow + TierFile::kAlignment) {
    uint64_t x = 0x9E3779B97F4A7C15ull;
    for (int64_t i = 0; i + 8 <= DiskCalibration::kWindow; i += 8) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      std::memcpy(data() + i, &x, 8);
    }
  }
  std::byte* data() {
    void* at = bytes_.data();
    size_t room = bytes_.size();
    return static_cast<std::byte*>(
        std::align(TierFile::kAlignment, DiskCalibration::kWindow, at, room));
  }

 private:
  std::vector<std::byte> bytes_;
};

int64_t file_bytes(const std::string& folder) {
  const int64_t free = free_disk_bytes(folder).value_or(DiskCalibration::kMostBytes);
  const int64_t most = std::min(DiskCalibration::kMostBytes, free / 4);
  // Two halves of whole windows.
  return std::max<int64_t>(1, most / (2 * DiskCalibration::kWindow)) * 2 * DiskCalibration::kWindow;
}

double disk_rate_of(const nlohmann::json& j, const char* key, const std::string& where) {
  const double value = get_number(j, key, where);
  if (!(value > 0 && value < 1e18))
    fail(ErrorCode::data, fmt::format("a rate above 0 for {} in {}", key, where),
         fmt::format("{}", value), "measure again with snug calibrate disk=FOLDER --force");
  return value;
}

}  // namespace

std::string disk_of(const std::string& folder) {
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0) return "unknown";
  const std::string device = fmt::format("{}:{}", major(info.st_dev), minor(info.st_dev));
  for (const MountedFolder& m : mounted_folders())
    if (m.device == device) return fmt::format("{} on {} ({})", m.type, m.source, device);
  return fmt::format("device {}", device);
}

double DiskCalibration::rate() const {
  return 2 / (1 / read_bytes + 1 / written_bytes);
}

DiskCalibration calibrate_disk(const std::string& folder, double seconds) {
  const double started = monotonic_seconds(), waited = waited_seconds();
  DiskCalibration c;
  c.disk = disk_of(folder);
  c.file_bytes = file_bytes(folder);
  TierFile file(folder, c.file_bytes);
  c.direct = file.direct();
  std::vector<uint32_t> checksums(static_cast<size_t>(c.file_bytes / TierFile::kBlock));
  std::vector<std::byte> room(TierFile::kRoomBytes + TierFile::kAlignment);
  void* at = room.data();
  size_t left = room.size();
  file.use(checksums.data(), static_cast<std::byte*>(
                                 std::align(TierFile::kAlignment, TierFile::kRoomBytes, at, left)));
  const int64_t half = c.file_bytes / 2, step = DiskCalibration::kWindow;
  DiskWindow out, in;
  // What was never written reads as zero without the disk.
  for (int64_t i = 0; i < half; i += step) file.write(i, out.data(), step);

  double read_seconds = 0, write_seconds = 0;
  int64_t moved = 0;
  for (int64_t from = 0; moved == 0 || monotonic_seconds() - started < seconds; from = half - from)
    for (int64_t i = 0; i < half; i += step, moved += step) {
      const double began = monotonic_seconds();
      file.read(from + i, in.data(), step);
      const double read = monotonic_seconds();
      file.write(half - from + i, out.data(), step);
      read_seconds += read - began;
      write_seconds += monotonic_seconds() - read;
    }
  c.read_bytes = static_cast<double>(moved) / read_seconds;
  c.written_bytes = static_cast<double>(moved) / write_seconds;
  c.seconds = monotonic_seconds() - started;
  c.waited = std::max(0.0, waited_seconds() - waited) / c.seconds;
  return c;
}

std::string disk_calibration_path(const std::string& disk) {
  return calibration_file("disk-calibration-" + fingerprint_text(fingerprint(disk)));
}

nlohmann::json disk_calibration_json(const DiskCalibration& c) {
  return {{"format", kDiskName},
          {"format_version", kDiskFormat},
          {"disk", c.disk},
          {"file_bytes", c.file_bytes},
          {"direct", c.direct},
          {"read_bytes", c.read_bytes},
          {"written_bytes", c.written_bytes},
          {"seconds", c.seconds},
          {"waited", c.waited}};
}

void write_disk_calibration(const std::string& path, const DiskCalibration& c) {
  write_calibration_file(path, disk_calibration_json(c));
}

std::optional<DiskCalibration> read_disk_calibration(const std::string& path,
                                                     const std::string& disk,
                                                     std::string* ignored) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return std::nullopt;
  try {
    const nlohmann::json j = parse_json_file(path, kMostDiskFileBytes);
    require_object(j, path);
    if (get_string(j, "format", path, "") != kDiskName ||
        get_int(j, "format_version", path, 0) != kDiskFormat)
      fail(ErrorCode::data,
           fmt::format("a disk calibration of version {} in {}", kDiskFormat, path), "another file",
           "measure again with snug calibrate disk=FOLDER --force");
    DiskCalibration c;
    c.disk = get_string(j, "disk", path);
    c.file_bytes = get_int(j, "file_bytes", path, 0);
    c.direct = get_bool(j, "direct", path);
    c.read_bytes = disk_rate_of(j, "read_bytes", path);
    c.written_bytes = disk_rate_of(j, "written_bytes", path);
    c.seconds = get_number(j, "seconds", path);
    if (j.contains("waited")) c.waited = get_number(j, "waited", path);  // of newer files
    if (c.disk == disk) return c;
    *ignored = fmt::format("{} is for {}; snug calibrate disk=FOLDER measures again", path, c.disk);
  } catch (const std::exception& e) {
    std::string what = e.what();
    std::replace(what.begin(), what.end(), '\n', ' ');
    *ignored = fmt::format("{} cannot be used: {}", path, what);
  }
  return std::nullopt;
}

}  // namespace snug
