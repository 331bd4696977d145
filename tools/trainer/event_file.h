// TensorBoard event files: records of the protocol buffer tensorflow.Event.
//
//   record  u64 length | u32 masked CRC-32C of the length | bytes | u32 masked CRC-32C of the bytes
//   Event   1 double wall_time, 2 int64 step, 3 string file_version, 5 Summary, 7 SessionLog
//   Summary 1 repeated Value: 1 string tag, 2 float simple_value
// The mask is (crc >> 15 | crc << 17) + 0xa282ead8. Format: tensorflow/core/lib/io/record_writer.h,
// tensorflow/core/util/event.proto and framework/summary.proto. Numbers are little endian.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tools/trainer/line_file.h"

namespace snug {

// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78) of the bytes.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

// The step of an Event; 0 if it has none, nothing if the bytes are no Event.
std::optional<int64_t> event_step(std::string_view event);

using Scalars = std::initializer_list<std::pair<const char*, double>>;
// An Event with a Summary of these values, and any bytes as a record.
std::string scalar_event(double wall_time, int64_t step, Scalars values);
// An Event whose one value is a text, as TensorBoard's text plugin reads it.
std::string text_event(double wall_time, int64_t step, std::string_view tag, std::string_view text);
std::string event_record(std::string_view event);

class EventFile {
 public:
  // Cuts the newest file in `folder`, if there is one, after the last whole record of steps up to
  // `step`. What comes behind goes to a file of that name in `aside`, unless that is empty.
  static void cut(const std::string& folder, int64_t step, const std::string& aside = "");

  // In `folder` (made if need be): a new file events.out.tfevents.<time>.<host>.snug; or, with
  // keep_until_step of 0 or more, the newest one of that name, cut after the last record of these
  // steps, then a SessionLog START, which makes a viewer that read more forget it. A torn record
  // and all after it go. Throws device.
  EventFile(const std::string& folder, int64_t keep_until_step);

  // One event with a scalar per tag, of now or another time in seconds since 1970. Values that are
  // not finite are written as they are.
  void scalars(int64_t step, Scalars values, double time = -1);
  // One event of a text in UTF-8, which is shown as it is: a block of code in Markdown's sense.
  void text(int64_t step, std::string_view tag, std::string_view text, double time = -1);
  void sync() { file_->sync(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::unique_ptr<LineFile> file_;
};

}  // namespace snug
