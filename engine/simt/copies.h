// Copies from global to shared memory that go on beside the work of the thread that begins them:
// cp.async of the PTX ISA.
//
//   copy_vector(s, i, p, there)  16 bytes from p go to element i of s and on, both at multiples of 16
//                      bytes; zeros where not `there`, and p is not read.
//   copy_number(s, i, p, there)  the same of one element of 4 bytes.
//   end_copies()       what was begun since the last call is one group of this thread; it may be
//                      empty.
//   wait_copies<N>()   waits for all groups of this thread but its last N. The other threads see what
//                      came behind the next sync_threads().
//
// Contents are undefined from the beginning of a copy until then, and a kernel does not end before it
// has waited for all of them.
#pragma once

#include "engine/simt/simt.h"

#ifdef __CUDACC__
#include "engine/simt/copies_cuda.h"
#else
#include "engine/simt/copies_emu.h"
#endif
