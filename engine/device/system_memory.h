// How much memory this machine, or what this process is granted of it, has and has free.
#pragma once

#include <string>

#include "engine/device/device.h"

namespace snug {

// total      the machine's, or the smallest limit of the process's control group and those above it
// available  what the system says is available, or less: what a limited group has left, for each of
//            them. A group's page cache and what its kernel keeps of files and folders (v2 says how
//            much) count as used there, though the system takes them back when programs need
//            memory, so they are added.
// Of /proc/meminfo, and the lower of memory.max and memory.high, memory.current and memory.stat
// (v2) or memory.limit_in_bytes, memory.usage_in_bytes and memory.stat (v1) of the groups
// (cgroup.h). For tests, `root` stands before every path that is read.
MemoryInfo system_memory(const std::string& root = "");

}  // namespace snug
