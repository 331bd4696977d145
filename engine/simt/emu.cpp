#include "engine/simt/emu.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/simt/emu_copies.h"
#include "engine/simt/emu_fault.h"
#include "engine/simt/emu_fiber.h"
#include "engine/simt/emu_shared.h"

namespace snug::simt::emu {
namespace {

const char* word_of(WarpOp op) {
  static constexpr const char* kWords[] = {"sync_warp",  "shuffle",      "shuffle_xor",
                                           "shuffle_up", "shuffle_down", "ballot",
                                           "mma",        "load_matrices"};
  return kWords[static_cast<int>(op)];
}

// What an operation of a whole warp does with the values of its lanes, which are pointers; null:
// what warp_op says.
using Compute = void (*)(void* const* lanes);

// One emulated thread.
struct Lane {
  enum State : uint8_t { ready, at_barrier, at_warp_op, gone };
  Fiber fiber;
  State state = ready;
  const Where* where = nullptr;  // of what it waits at; on its stack
  WarpOp op = WarpOp::sync;
  uint32_t mask = 0;
  uint64_t value = 0, result = 0;
  int operand = 0;
  int64_t barriers_before_leaving = 0;
  Copies copies;
};

// Lanes of a warp that have come to one operation.
struct Group {
  WarpOp op;
  uint32_t mask, arrived;
  const Where* where;
  Compute compute;
};

struct Warp {
  uint32_t epoch = 1;
  std::vector<Group> groups;
};

// Threads 0, 1, 2, 7 as "0-2, 7".
std::string ranges(const std::vector<int>& threads) {
  std::string text;
  for (size_t i = 0; i < threads.size();) {
    size_t end = i + 1;
    while (end < threads.size() && threads[end] == threads[end - 1] + 1) ++end;
    text += text.empty() ? "" : ", ";
    text += end - i == 1 ? fmt::format("{}", threads[i])
                         : fmt::format("{}-{}", threads[i], threads[end - 1]);
    i = end;
  }
  return (threads.size() == 1 ? "thread " : "threads ") + text;
}

class Machine {
 public:
  Machine(Queue& queue, const Dims& dims, const char* kernel, void (*body)(const void*),
          const void* arguments);
  ~Machine() { current_ = outer_; }

  static Machine& current(const char* what) {
    if (!current_ || current_->running_ < 0)
      fail(ErrorCode::internal, std::string(what) + " inside a kernel", "a call outside of one",
           "this is a defect in Snug: please report it with the command you ran");
    return *current_;
  }

  void run();
  void barrier(const Where& where);
  uint64_t warp_op(WarpOp op, uint32_t mask, uint64_t value, int operand, const Where& where,
                   Compute compute = nullptr);
  const Ids& ids() const { return ids_; }
  std::string place() const;
  Region& static_region(int id, const char* name, int64_t bytes, int granule,
                        const std::source_location& at);
  Region& dynamic_region() { return dynamic_; }
  Toucher toucher();
  static void claim_address(const void* address);
  Copies& copies() { return lanes_[static_cast<size_t>(running_)].copies; }

 private:
  static void thread_main(void* machine);
  void run_block(int64_t number);
  void make_ready(int thread) { ready_.push_back(thread); }
  int take_ready();
  void resume(int thread);
  void suspend();
  void finish(Warp& warp, size_t group, int lane0);
  void release_barrier();
  [[noreturn]] void report_stuck(const char* expected, const char* advice);
  std::string who_waits() const;
  [[noreturn]] void report_bad_address();
  uint64_t random(uint64_t below) {
    return mix64(queue_.schedule.seed * 0x9E3779B97F4A7C15ull + ++draws_) % below;
  }

  static thread_local Machine* current_;

  Machine* outer_;
  Queue& queue_;
  const Dims dims_;
  const char* kernel_;
  void (*body_)(const void*);
  const void* arguments_;
  Ids ids_{};
  uint64_t draws_ = 0;
  uint32_t block_number_ = 0, epoch_ = 0;
  int64_t barriers_ = 0;  // passed by this block
  int running_ = -1, gone_ = 0;
  int ahead_ = -1;  // a warp that goes on alone as far as it can
  std::vector<Lane> lanes_;
  std::vector<Warp> warps_;
  std::vector<int> ready_, batch_;  // batch: a round of an ordered schedule, next one last
  std::exception_ptr error_;
  const void* bad_address_ = nullptr;
  bool is_bad_ = false;
  Region dynamic_;
  std::vector<std::unique_ptr<Region>> statics_;
  int64_t static_bytes_ = 0;
};

thread_local Machine* Machine::current_ = nullptr;

std::atomic<int64_t> launches{0};

Machine::Machine(Queue& queue, const Dims& dims, const char* kernel, void (*body)(const void*),
                 const void* arguments)
    : outer_(current_),
      queue_(queue),
      dims_(dims),
      kernel_(kernel),
      body_(body),
      arguments_(arguments),
      lanes_(static_cast<size_t>(dims.threads)),
      warps_(static_cast<size_t>(dims.threads / kWarp)),
      dynamic_("", dims.shared_bytes, 4) {
  require(!outer_ || outer_->running_ < 0, "a launch outside of kernels");
  // All that a block can need, so that a launch takes the same memory however many blocks it has.
  for (Warp& warp : warps_) warp.groups.reserve(kWarp);
  for (std::vector<int>* waiting : {&ready_, &batch_}) waiting->reserve(lanes_.size());
  current_ = this;
  ids_.threads = dims.threads;
  ids_.blocks[0] = dims.blocks;
  ids_.blocks[1] = dims.blocks_y;
  ids_.blocks[2] = dims.blocks_z;
}

void Machine::run() {
  catch_bad_addresses(&Machine::claim_address);
  const int64_t count = dims_.blocks * dims_.blocks_y * dims_.blocks_z;
  ++queue_.counters.launches;
  launches.fetch_add(1, std::memory_order_relaxed);
  if (queue_.schedule.order != Order::shuffled) {
    const bool reversed = queue_.schedule.order == Order::reversed;
    for (int64_t i = 0; i < count; ++i) run_block(reversed ? count - 1 - i : i);
    return;
  }
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random(i)]);
  for (const int64_t block : order) run_block(block);
}

void Machine::run_block(int64_t number) {
  ids_.block[0] = number % dims_.blocks;
  ids_.block[1] = number / dims_.blocks % dims_.blocks_y;
  ids_.block[2] = number / dims_.blocks / dims_.blocks_y;
  ++queue_.counters.blocks;
  ++block_number_;
  ++epoch_;
  gone_ = 0;
  barriers_ = 0;
  for (int t = 0; t < dims_.threads; ++t) {
    lanes_[static_cast<size_t>(t)].state = Lane::ready;
    make_ready(t);
  }
  while (gone_ < dims_.threads) {
    if (ready_.empty() && batch_.empty()) release_barrier();
    resume(take_ready());
    if (error_) std::rethrow_exception(error_);
  }
}

int Machine::take_ready() {
  if (queue_.schedule.order == Order::shuffled) {
    size_t i = ready_.size();
    while (ahead_ >= 0 && i > 0 && ready_[i - 1] / kWarp != ahead_) --i;
    if (ahead_ >= 0 && i > 0) {
      --i;
    } else {
      i = random(ready_.size());
      ahead_ = random(8) == 0 ? ready_[i] / kWarp : -1;
    }
    const int thread = ready_[i];
    ready_[i] = ready_.back();
    ready_.pop_back();
    return thread;
  }
  if (batch_.empty()) {
    batch_.swap(ready_);
    std::sort(batch_.begin(), batch_.end());
    if (queue_.schedule.order == Order::forward) std::reverse(batch_.begin(), batch_.end());
  }
  const int thread = batch_.back();
  batch_.pop_back();
  return thread;
}

void Machine::resume(int thread) {
  Lane& lane = lanes_[static_cast<size_t>(thread)];
  running_ = ids_.thread = thread;
  if (!lane.fiber.started()) lane.fiber.start(thread_main, this);
  ++queue_.counters.switches;
  lane.fiber.resume();
  if (is_bad_) report_bad_address();
  running_ = -1;
  if (lane.state == Lane::gone) lane.fiber.drop();
}

void Machine::thread_main(void* machine) {
  auto& m = *static_cast<Machine*>(machine);
  Lane& lane = m.lanes_[static_cast<size_t>(m.running_)];
  try {
    m.body_(m.arguments_);
    lane.copies.check_none();
  } catch (...) {
    m.error_ = std::current_exception();
  }
  lane.state = Lane::gone;
  lane.barriers_before_leaving = m.barriers_;
  ++m.gone_;
}

void Machine::suspend() {
  lanes_[static_cast<size_t>(running_)].fiber.suspend();
}

void Machine::barrier(const Where& where) {
  Lane& lane = lanes_[static_cast<size_t>(running_)];
  lane.state = Lane::at_barrier;
  lane.where = &where;
  suspend();
}

// Nobody can go on: either all who are left wait at one barrier, or the kernel is wrong.
void Machine::release_barrier() {
  const Where* first = nullptr;
  bool same = true;
  for (const Lane& lane : lanes_) {
    if (lane.state == Lane::at_warp_op)
      report_stuck("every lane of the mask at one warp operation",
                   "take the operation out of the branch and choose its value instead");
    if (lane.state != Lane::at_barrier) continue;
    if (!first) first = lane.where;
    same = same && *first == *lane.where;
  }
  if (!same)
    report_stuck("every thread of the block at one barrier",
                 "take the barrier out of the branch or the loop that not all threads run alike");
  for (size_t w = 0; gone_ > 0 && w < warps_.size(); ++w) {
    const Lane* warp = &lanes_[w * kWarp];
    bool some = false, all = true;
    for (int i = 0; i < kWarp; ++i) {
      const bool gone = warp[i].state == Lane::gone;
      some = some || (gone && warp[i].barriers_before_leaving > 0);
      all = all && gone == (warp[0].state == Lane::gone);
    }
    if (some || !all)
      report_stuck("threads to leave before a barrier in whole warps, and before the first one",
                   "let all threads come to the barrier and predicate the work instead");
  }
  ++barriers_;
  ++epoch_;
  for (int t = 0; t < dims_.threads; ++t) {
    Lane& lane = lanes_[static_cast<size_t>(t)];
    if (lane.state != Lane::at_barrier) continue;
    lane.state = Lane::ready;
    make_ready(t);
  }
}

uint64_t Machine::warp_op(WarpOp op, uint32_t mask, uint64_t value, int operand, const Where& where,
                          Compute compute) {
  const int thread = running_, in_warp = thread % kWarp;
  Lane& lane = lanes_[static_cast<size_t>(thread)];
  if (!(mask >> in_warp & 1))
    fault("a warp operation by the lanes of its mask",
          fmt::format("lane {} and mask {:#010x} at {}", in_warp, mask, to_string(where.at)),
          "let every lane that calls be in the mask");
  lane.value = value;
  lane.operand = operand;
  Warp& warp = warps_[static_cast<size_t>(thread / kWarp)];
  size_t g = 0;
  for (; g < warp.groups.size(); ++g) {
    const Group& group = warp.groups[g];
    if (group.op == op && group.mask == mask && *group.where == where && group.compute == compute)
      break;
  }
  if (g == warp.groups.size()) warp.groups.push_back({op, mask, 0, &where, compute});
  Group& group = warp.groups[g];
  group.arrived |= 1u << in_warp;
  if (group.arrived == mask) {
    finish(warp, g, thread - in_warp);
    return lane.result;
  }
  lane.state = Lane::at_warp_op;
  lane.op = op;
  lane.mask = mask;
  lane.where = &where;
  suspend();
  return lane.result;
}

// All lanes have come: computes their results and lets the others go on.
void Machine::finish(Warp& warp, size_t g, int lane0) {
  const Group group = warp.groups[g];
  Lane* lanes = &lanes_[static_cast<size_t>(lane0)];
  if (group.compute) {
    void* values[kWarp];
    for (int i = 0; i < kWarp; ++i) values[i] = reinterpret_cast<void*>(lanes[i].value);
    group.compute(values);
  }
  uint32_t votes = 0;
  for (int i = 0; i < kWarp; ++i)
    if ((group.mask >> i & 1) && lanes[i].value != 0) votes |= 1u << i;
  for (int i = 0; i < kWarp; ++i) {
    if (group.compute || !(group.mask >> i & 1)) continue;
    const int operand = lanes[i].operand;
    int source = i;
    bool known = operand >= 0 && operand < kWarp;
    if (group.op == WarpOp::shuffle) source = operand;
    if (group.op == WarpOp::shuffle_xor) source = i ^ operand;
    if (group.op == WarpOp::shuffle_up) source = i - operand < 0 ? i : i - operand;
    if (group.op == WarpOp::shuffle_down) source = i + operand >= kWarp ? i : i + operand;
    known = known && (group.mask >> (source & 31) & 1);
    if (!known)
      fault(fmt::format("{} from a lane of the mask {:#010x}", word_of(group.op), group.mask),
            fmt::format("lane {} asking with {} at {}", i, operand, to_string(group.where->at)),
            "a value of another lane is undefined on a device");
    lanes[i].result = group.op == WarpOp::ballot ? votes : lanes[source].value;
  }
  if (group.op == WarpOp::sync) ++warp.epoch;
  warp.groups.erase(warp.groups.begin() + static_cast<std::ptrdiff_t>(g));
  for (int i = 0; i < kWarp; ++i) {
    if (!(group.mask >> i & 1) || lane0 + i == running_) continue;
    lanes[i].state = Lane::ready;
    make_ready(lane0 + i);
  }
}

std::string Machine::who_waits() const {
  struct Party {
    const Lane* like;
    std::vector<int> threads;
  };
  std::vector<Party> parties;
  for (int t = 0; t < dims_.threads; ++t) {
    const Lane& lane = lanes_[static_cast<size_t>(t)];
    const auto alike = [&](const Party& p) {
      if (p.like->state != lane.state) return false;
      if (lane.state == Lane::gone) return true;
      if (lane.state == Lane::at_warp_op && (p.like->op != lane.op || p.like->mask != lane.mask))
        return false;
      return *p.like->where == *lane.where;
    };
    const auto found = std::find_if(parties.begin(), parties.end(), alike);
    if (found == parties.end()) {
      parties.push_back({&lane, {t}});
    } else {
      found->threads.push_back(t);
    }
  }
  std::string text;
  for (const Party& p : parties) {
    text += "\n    " + ranges(p.threads) + (p.threads.size() == 1 ? " has" : " have");
    if (p.like->state == Lane::gone) {
      text += " left the kernel";
      continue;
    }
    text += " come to ";
    text += p.like->state == Lane::at_barrier ? "sync_threads" : word_of(p.like->op);
    if (p.like->state == Lane::at_warp_op && p.like->mask != 0xffffffffu)
      text += fmt::format(" of mask {:#010x}", p.like->mask);
    text += " at " + to_string(p.like->where->at);
  }
  return text;
}

void Machine::report_stuck(const char* expected, const char* advice) {
  fail(ErrorCode::internal, expected, "in " + place() + who_waits(), advice);
}

std::string Machine::place() const {
  std::string text = std::string(kernel_) + ", block ";
  text += dims_.blocks_y * dims_.blocks_z == 1
              ? fmt::format("{}", ids_.block[0])
              : fmt::format("({},{},{})", ids_.block[0], ids_.block[1], ids_.block[2]);
  if (running_ >= 0)
    text += fmt::format(", thread {} (lane {} of warp {})", running_, running_ % kWarp,
                        running_ / kWarp);
  return text + ", schedule " + to_string(queue_.schedule);
}

Region& Machine::static_region(int id, const char* name, int64_t bytes, int granule,
                               const std::source_location& at) {
  if (static_cast<size_t>(id) >= statics_.size()) statics_.resize(static_cast<size_t>(id) + 1);
  auto& region = statics_[static_cast<size_t>(id)];
  if (!region) {
    region = std::make_unique<Region>(name, bytes, granule);
    static_bytes_ += bytes;
    const int64_t all = static_bytes_ + dims_.shared_bytes;
    if (static_bytes_ > kMaxStaticShared || all > kMaxShared)
      fault(fmt::format("at most {} bytes of declared shared memory, {} with the dynamic part",
                        kMaxStaticShared, kMaxShared),
            fmt::format("{} bytes, {} with the dynamic part, where {} is declared at {}",
                        static_bytes_, all, name, to_string(at)),
            "use smaller tiles, or dynamic shared memory");
  }
  return *region;
}

Toucher Machine::toucher() {
  ++queue_.counters.shared_accesses;
  const int warp = running_ / kWarp;
  return {block_number_, epoch_, warps_[static_cast<size_t>(warp)].epoch, warp, running_ % kWarp};
}

// In the handler of a signal: abandons the emulated thread that did it. An address of another
// thread of the process, or of the emulator itself, is not claimed.
void Machine::claim_address(const void* address) {
  Machine* m = current_;
  if (!m || m->running_ < 0) return;
  m->bad_address_ = address;
  m->is_bad_ = true;
  m->lanes_[static_cast<size_t>(m->running_)].fiber.leave();
}

void Machine::report_bad_address() {
  const Lane& lane = lanes_[static_cast<size_t>(running_)];
  if (lane.fiber.holds(bad_address_))
    fault(fmt::format("a stack of at most {} bytes", kStackBytes), "a stack overflow",
          "keep large arrays in shared memory");
  fault("addresses inside the tensors of the launch",
        fmt::format("an access to {}, which nothing owns", bad_address_),
        "check the bounds; a build with SNUG_SANITIZE=ON names the line");
}

}  // namespace

std::string to_string(const Schedule& s) {
  if (s.order == Order::forward) return "forward";
  if (s.order == Order::reversed) return "reversed";
  return fmt::format("shuffled, SNUG_SIMT_SEED={}", s.seed);
}

std::vector<Schedule> test_schedules() {
  uint64_t seed = 1;
  if (const char* text = std::getenv("SNUG_SIMT_SEED")) {
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, seed);
    if (error != std::errc{} || stop != end || text == end)
      fail(ErrorCode::usage, "a whole number in SNUG_SIMT_SEED", fmt::format("\"{}\"", text),
           "set it to the seed of a report, or unset it");
  }
  return {{Order::forward, 0}, {Order::reversed, 0}, {Order::shuffled, seed}};
}

int64_t launches_so_far() {
  return launches.load(std::memory_order_relaxed);
}

void prepare() {
  catch_bad_addresses(&Machine::claim_address);
  prepare_stacks(kPreparedThreads);
}

bool operator==(const Where& a, const Where& b) {
  return a.at.line() == b.at.line() && a.at.column() == b.at.column() && a.number == b.number &&
         (a.at.file_name() == b.at.file_name() ||
          std::strcmp(a.at.file_name(), b.at.file_name()) == 0);
}

std::string to_string(const std::source_location& at) {
  return fmt::format("{}:{}:{}", at.file_name(), at.line(), at.column());
}

void run_grid(Queue& queue, const Dims& dims, const char* kernel, void (*body)(const void*),
              const void* arguments) {
  check_dims(kernel, dims);
  if (!dims.empty()) Machine(queue, dims, kernel, body, arguments).run();
}

const Ids& ids() {
  return Machine::current("a thread index").ids();
}

void barrier(const Where& where) {
  Machine::current("sync_threads").barrier(where);
}

uint64_t warp_op(WarpOp op, uint32_t mask, uint64_t value, int operand, const Where& where) {
  return Machine::current(word_of(op)).warp_op(op, mask, value, operand, where);
}

void whole_warp(WarpOp op, void* mine, void (*compute)(void* const* lanes), const Where& where) {
  Machine::current(word_of(op))
      .warp_op(op, 0xffffffffu, reinterpret_cast<uint64_t>(mine), 0, where, compute);
}

void fault(const std::string& expected, const std::string& found, const std::string& advice) {
  fail(ErrorCode::internal, expected, found + "\n    in " + Machine::current("a fault").place(),
       advice);
}

Region& static_region(int id, const char* name, int64_t bytes, int granule,
                      const std::source_location& at) {
  return Machine::current("SHARED_ARRAY").static_region(id, name, bytes, granule, at);
}

Region& dynamic_region() {
  return Machine::current("dynamic_smem").dynamic_region();
}

int64_t region_bytes(const Region& region) {
  return region.bytes();
}

void* use_shared(Region& region, int64_t offset, int64_t bytes, Use use,
                 const std::source_location& at) {
  return region.use(offset, bytes, use, Machine::current("shared memory").toucher(), at);
}

void begin_copy(Region& region, int64_t offset, int bytes, const void* from,
                const std::source_location& at) {
  std::memset(use_shared(region, offset, bytes, Use::write, at), 0xff, static_cast<size_t>(bytes));
  Machine::current("a copy").copies().begin(region, offset, bytes, from, at);
}

void end_copies() {
  Machine::current("end_copies").copies().end();
}

void wait_copies(int groups_left) {
  Machine::current("wait_copies").copies().wait(groups_left);
}

int next_declaration() {
  static std::atomic<int> next{0};
  return next++;
}

}  // namespace snug::simt::emu
