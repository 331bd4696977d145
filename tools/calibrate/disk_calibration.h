// What `snug calibrate disk=FOLDER` measured of a disk, and the file that keeps it.
//
// Measured  a TierFile there, as states rest in one: windows of kWindow bytes past the page cache, checksums
//           included, in turn read from one half of the file and written to the other, as an update does.
// File      disk-calibration-KEY.json beside calibration.h's. It holds for one file system, by its type,
//           source and device number, and for any build.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace snug {

// The file system that a folder is on: "ext4 on /dev/nvme0n1p2 (259:2)".
std::string disk_of(const std::string& folder);

struct DiskCalibration {
  std::string disk;
  int64_t file_bytes = 0;
  bool direct = false;                       // past the page cache
  double read_bytes = 0, written_bytes = 0;  // bytes/s of either way
  double seconds = 0;                        // it took
  double waited = 0;  // the share of that in which other work had the processors

  static constexpr int64_t kWindow = int64_t{1} << 20;
  static constexpr int64_t kMostBytes = int64_t{256}
                                        << 20;  // of the file, and a quarter of what is free

  // Of traffic that is read and written in equal parts: the harmonic mean.
  double rate() const;
};

// `seconds`: about how long; the whole file goes each way once at least. Throws device: where the folder
// cannot be written to, or has no room.
DiskCalibration calibrate_disk(const std::string& folder, double seconds);

std::string disk_calibration_path(const std::string& disk);
nlohmann::json disk_calibration_json(const DiskCalibration& c);
void write_disk_calibration(const std::string& path, const DiskCalibration& c);
// As read_calibration.
std::optional<DiskCalibration> read_disk_calibration(const std::string& path,
                                                     const std::string& disk, std::string* ignored);

}  // namespace snug
