#include "tools/checkpoint/checkpoint_seal.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"

namespace snug {
namespace {

constexpr const char* kMarker = "/COMPLETE";
constexpr std::string_view kHead = "snug checkpoint ", kEnd = " seal\n";
constexpr int64_t kLargestMarker = 1 << 20;

std::string hex(uint64_t digest) {
  return fingerprint_text(digest);
}

[[noreturn]] void fail_version(const std::string& path, const std::string& found) {
  fail(ErrorCode::data, fmt::format("a checkpoint of version {} in {}", kCheckpointVersion, path),
       found,
       "resume with the program that wrote it; its model folder can still be used as model=");
}

// What the state file says; versions before 3 say it nowhere else.
void check_state_version(const std::string& folder) {
  std::string path = folder + "/snug_state.json";
  if (!file_exists(path)) {
    path = folder + "/trainer_state.json";  // its name in version 1
    nlohmann::json j;
    if (file_exists(path)) j = parse_json_file(path);
    if (j.is_object() && j.contains("snug_version"))
      fail_version(path, fmt::format("version {}", get_int(j, "snug_version", path)));
    fail_version(folder + "/snug_state.json", "no such file: a checkpoint that Snug did not write");
  }
  int64_t version = 0;
  try {
    const nlohmann::json j = parse_json_file(path);
    require_object(j, path);
    version = get_int(j, "snug_version", path, 0);
  } catch (const Error&) {
    return;  // nothing that says a version: damaged like COMPLETE
  }
  if (version == kCheckpointVersion) return;
  fail_version(
      path, version == 0 ? "a file that Snug did not write" : fmt::format("version {}", version));
}

struct Digest {
  int64_t bytes = 0;
  uint64_t digest = 0;
};

Digest digest_file(const std::string& path) {
  constexpr int64_t kBuffer = 1 << 20;
  const auto buffer = std::make_unique_for_overwrite<char[]>(kBuffer);
  const InputFile file(path);
  file.expect_jumps(false);
  Fingerprint digest;
  Digest out;
  for (;;) {
    const int64_t n = file.read_at(out.bytes, buffer.get(), kBuffer);
    digest.add(buffer.get(), n);
    out.bytes += n;
    if (n < kBuffer) break;
  }
  out.digest = digest.digest();
  return out;
}

// "9f2c41d07e3ab586 548 config.json"
struct Line {
  uint64_t digest = 0;
  int64_t bytes = 0;
  std::string name;
};

std::optional<Line> parse_line(std::string_view text) {
  Line line;
  const char* const end = text.data() + text.size();
  auto at = std::from_chars(text.data(), end, line.digest, 16);
  if (at.ec != std::errc() || at.ptr != text.data() + 16 || at.ptr == end || *at.ptr != ' ')
    return std::nullopt;
  at = std::from_chars(at.ptr + 1, end, line.bytes);
  if (at.ec != std::errc() || at.ptr == end || *at.ptr != ' ' || line.bytes < 0)
    return std::nullopt;
  line.name.assign(at.ptr + 1, end);
  if (line.name.empty() || line.name.find('/') != std::string::npos) return std::nullopt;
  return line;
}

}  // namespace

void CheckpointSeal::begin(int64_t step) {
  text_.clear();
  fmt::format_to(std::back_inserter(text_), "{}{}\nstep {}\n", kHead, kCheckpointVersion, step);
}

void CheckpointSeal::add(std::string_view name, int64_t bytes, uint64_t digest) {
  fmt::format_to(std::back_inserter(text_), "{:016x} {} {}\n", digest, bytes, name);
}

void CheckpointSeal::close() {
  fmt::format_to(std::back_inserter(text_), "{:016x}{}", fingerprint(text_), kEnd);
}

bool checkpoint_complete(const std::string& folder) {
  return file_exists(folder + kMarker);
}

std::optional<CheckpointDamage> find_checkpoint_damage(const std::string& folder) {
  const std::string path = folder + kMarker;
  CheckpointDamage marker = {path, "a list of files with its own checksum", "another text"};
  std::string text;
  try {
    text = read_file(path, kLargestMarker);
  } catch (const Error& error) {  // a disk that fails must not hide the checkpoints before
    marker.found = "not readable: " + error.found();
    return marker;
  }
  if (!text.starts_with(kHead)) {
    check_state_version(folder);  // throws if it never was one of this version
    return marker;
  }
  // The last line holds the checksum of those before.
  const size_t tail = 16 + kEnd.size();
  const bool closed = text.size() > tail && text.ends_with(kEnd);
  const std::string_view body = std::string_view(text).substr(0, closed ? text.size() - tail : 0);
  if (!closed || hex(fingerprint(body)) != text.substr(body.size(), 16)) return marker;
  int64_t version = 0;
  std::from_chars(body.data() + kHead.size(), body.data() + body.size(), version);
  if (version != kCheckpointVersion) fail_version(path, fmt::format("version {}", version));
  size_t begin = body.find('\n') + 1;  // of "step N"
  begin = body.find('\n', begin) + 1;  // of the first file
  while (begin < body.size()) {
    const size_t end = std::min(body.find('\n', begin), body.size());
    const auto line = parse_line(body.substr(begin, end - begin));
    begin = end + 1;
    if (!line) return marker;
    const std::string file = folder + "/" + line->name;
    CheckpointDamage damage = {
        file, fmt::format("{} bytes, XXH64 {}", line->bytes, hex(line->digest)), "no such file"};
    if (!file_exists(file)) return damage;
    Digest now;
    try {
      now = digest_file(file);
    } catch (const Error& error) {
      damage.found = "not readable: " + error.found();
      return damage;
    }
    if (now.bytes == line->bytes && now.digest == line->digest) continue;
    damage.found = fmt::format("{} bytes, XXH64 {}", now.bytes, hex(now.digest));
    return damage;
  }
  return std::nullopt;
}

}  // namespace snug
