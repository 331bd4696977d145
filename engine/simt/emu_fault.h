// Bad addresses of emulated threads. A device reports an illegal address; on the host the system
// sends a signal, and this turns it into the emulator's report. AddressSanitizer's own report,
// which knows the line, comes first where it is built in.
#pragma once

namespace snug::simt::emu {

// From now on, calls claim(address) when a thread of this process touches an address it may not.
// claim runs on a stack of its own and does not return if an emulated thread did it. If it returns,
// what was installed before decides. Each thread that emulates calls this.
void catch_bad_addresses(void (*claim)(const void* address));

}  // namespace snug::simt::emu
