// The emulator: runs the blocks of a launch one after another, the threads of a block as fibers on
// the calling thread, and is stricter than any device. Kernels see it through simt_emu.h; tests and
// launchers choose the schedule here.
//
// What it reports, always with kernel, block, thread and schedule, as Error of code internal:
//   - threads of a block that wait at different barriers, or at one that others will never reach
//   - a warp operation that a lane of its mask does not reach, or that names a lane outside it
//   - a thread that leaves before a barrier, unless its whole warp does so before the first one
//   - shared memory: outside its bounds, read before it is written (of every block anew), touched
//     by two threads with no barrier in between
//   - a vector access that is not aligned; an address outside all memory; a stack overflow
//   - a copy that nobody waits for (engine/simt/copies.h)
// Barriers and warp operations are compared by file, line and column of the call.
//
// Schedules decide which thread goes on whenever one waits (shuffled: now and then a warp runs
// ahead alone), and the order of blocks. A right kernel gives the same bits under all of them.
//
// What it cannot show: speed, coalescing, bank conflicts, weak memory order, races in global
// memory within one schedule, an endless loop.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "engine/simt/dims.h"

namespace snug {
struct WorkList;
}

namespace snug::simt::emu {

enum class Order : uint8_t { forward, reversed, shuffled };

struct Schedule {
  Order order = Order::forward;
  uint64_t seed = 0;  // of shuffled
};
std::string to_string(const Schedule& schedule);  // "shuffled, SNUG_SIMT_SEED=7"

// Forward, reversed, and shuffled with the seed in the environment variable SNUG_SIMT_SEED, or 1.
// Throws usage if that is no number.
std::vector<Schedule> test_schedules();

struct Counters {
  int64_t launches = 0, blocks = 0, switches = 0, shared_accesses = 0;
};
// Of all queues of this process: did an op come to its kernels?
int64_t launches_so_far();

// Where a launch goes: the counterpart of a stream. It runs at once, or is captured.
struct Queue {
  Schedule schedule;
  Counters counters;
  // Not null: launches are put there, with their arguments, and run when the list is.
  WorkList* capture = nullptr;
};

// A place in a kernel. `part` tells apart the steps of one call into engine/simt.
struct Where {
  Where(std::source_location location) : at(location) {}  // NOLINT: default arguments convert
  Where part(int step) const {
    Where w = *this;
    w.number = number * 256 + step;
    return w;
  }
  std::source_location at;
  int number = 0;
};
bool operator==(const Where& a, const Where& b);
std::string to_string(const std::source_location& at);  // "file:line:column"

// Runs body(arguments) once per thread. Throws what a thread throws or does wrong; the rest of the
// grid is then not run.
void run_grid(Queue& queue, const Dims& dims, const char* kernel, void (*body)(const void*),
              const void* arguments);

// Takes what launches from the calling thread keep, which they otherwise take when they need it:
// the stacks of a block of kPreparedThreads, touched as deep as kernels go. What a launch takes
// beside that, to note who touched shared memory, it gives back.
inline constexpr int kPreparedThreads = 256;
void prepare();
// More than what stays and what a launch with all the shared memory of a block takes meanwhile.
inline constexpr int64_t kPreparedBytes = int64_t{16} << 20;

// For the thread that runs now; each throws internal outside of a kernel.

struct Ids {
  int thread, threads;
  int64_t block[3], blocks[3];
};
const Ids& ids();

void barrier(const Where& where);

enum class WarpOp : uint8_t {
  sync,
  shuffle,
  shuffle_xor,
  shuffle_up,
  shuffle_down,
  ballot,
  mma,
  load_matrices
};
// Waits for all lanes of the mask. Shuffles give the value of the lane that the operand says,
// ballot the lanes whose value is not 0.
uint64_t warp_op(WarpOp op, uint32_t mask, uint64_t value, int operand, const Where& where);
// Waits for all 32 lanes, then runs compute once on what each of them passed, in their order.
void whole_warp(WarpOp op, void* mine, void (*compute)(void* const* lanes), const Where& where);

// Throws internal; adds kernel, block, thread and schedule to `found`.
[[noreturn]] void fault(const std::string& expected, const std::string& found,
                        const std::string& advice);

// Shared memory, by region: one per declaration and one for the dynamic part.
class Region;
enum class Use : uint8_t { read, write, atomic };
// The region of declaration `id` in this block; granule is the size of its elements.
Region& static_region(int id, const char* name, int64_t bytes, int granule,
                      const std::source_location& at);
Region& dynamic_region();
int64_t region_bytes(const Region& region);
// A pointer to bytes that this thread may use in this way now.
void* use_shared(Region& region, int64_t offset, int64_t bytes, Use use,
                 const std::source_location& at);
int next_declaration();  // a number per SHARED_ARRAY

// Copies of engine/simt/copies.h: at most 16 bytes, zeros where `from` is null.
void begin_copy(Region& region, int64_t offset, int bytes, const void* from,
                const std::source_location& at);
void end_copies();
void wait_copies(int groups_left);

}  // namespace snug::simt::emu
