// Keys of what may be the host's beside a device, behind `offload` in the list of all: those that a
// plan decides about (asked.h), and what they need.
#include "tools/config/keys.h"

namespace snug {

std::vector<Key> host_keys() {
  using C = RunConfig;
  using K = KeyKind;
  const std::vector<Key> of_disk = {
      // clang-format off
      {.name = "offload_disk", .section = "machine", .kind = K::text, .field = &C::offload_disk,
       .doc = "the folder of that file, on the fastest disk there is: it is made at the start, as large as the plan "
              "says, has no name and goes with the process, however it ends; null: output_dir",
       .example = "/nvme/scratch", .unset = "null", .aliases = "nvme_path"},
      {.name = "disk_bandwidth", .section = "machine", .kind = K::bytes, .field = &C::disk_bandwidth,
       .doc = "bytes a second that the disk reads or writes, of which the plan's prediction is made; memory.json "
              "says what a run found. auto: what snug calibrate disk=FOLDER measured there; else 500 MB are assumed",
       .example = "2GiB", .unset = "auto"},
      // clang-format on
  };
  std::vector<Key> keys;
  for (const AskedKey& key : kAskedKeys) {
    keys.push_back({.name = key.name,
                    .section = "machine",
                    .kind = K::choice,
                    .field = key.field,
                    .doc = key.doc,
                    .example = key.example,
                    .aliases = key.aliases,
                    .choices = key.choices});
    if (key.field == &C::offload_optimizer) keys.insert(keys.end(), of_disk.begin(), of_disk.end());
  }
  return keys;
}

}  // namespace snug
