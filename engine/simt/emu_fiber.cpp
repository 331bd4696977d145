#include "engine/simt/emu_fiber.h"

#include <sys/mman.h>

#include <cstdint>

#include "engine/core/error.h"
#include "engine/core/sanitizers.h"

#if SNUG_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Stores the stack pointer at *save and goes on at the stack `to`, as left by an earlier call or by
// Fiber::start. A jump, for a return that does not match its call is always predicted wrong.
extern "C" void snug_simt_switch(void** save, void* to);
asm(R"(
  .text
  .globl snug_simt_switch
  .type snug_simt_switch, @function
snug_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
  .size snug_simt_switch, .-snug_simt_switch
)");

namespace snug::simt::emu {
namespace {

constexpr size_t kGuard = 4096;
constexpr size_t kWarm = 5 * kGuard;  // a start up to 12 KiB below the top, and 8 KiB of frames

thread_local Fiber* starting = nullptr;

// Stacks that no fiber uses, last used first: a kernel without barriers runs on one warm stack.
class StackPool {
 public:
  ~StackPool() {
    for (std::byte* stack : free_) munmap(stack - kGuard, kGuard + kStackBytes);
  }
  std::byte* take() {
    if (!free_.empty()) {
      std::byte* stack = free_.back();
      free_.pop_back();
      return stack;
    }
    void* base = mmap(nullptr, kGuard + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED || mprotect(base, kGuard, PROT_NONE) != 0)
      fail(ErrorCode::device, "memory for the stack of an emulated thread", "none left",
           "use blocks of fewer threads");
    return static_cast<std::byte*>(base) + kGuard;
  }
  void give(std::byte* stack) { free_.push_back(stack); }
  void prepare(size_t count) {
    free_.reserve(count);
    std::vector<std::byte*> taken;
    while (taken.size() < count) {
      std::byte* const stack = take();
      for (size_t at = kStackBytes - kWarm; at < kStackBytes; at += kGuard)
        static_cast<volatile std::byte*>(stack)[at] = std::byte{0};
      taken.push_back(stack);
    }
    for (std::byte* stack : taken) give(stack);
  }

 private:
  std::vector<std::byte*> free_;
};
thread_local StackPool pool;

}  // namespace

struct FiberStart {
  [[noreturn]] static void run() {
    Fiber* f = starting;
#if SNUG_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(nullptr, &f->resumer_bottom_, &f->resumer_bytes_);
#endif
    f->body_(f->argument_);
    f->leave();
  }
};

void prepare_stacks(size_t count) {
  pool.prepare(count);
}

Fiber::~Fiber() {
  drop();
}

void Fiber::start(void (*body)(void*), void* argument) {
  if (!stack_) stack_ = pool.take();
  body_ = body;
  argument_ = argument;
  left_ = false;
  fake_stack_ = nullptr;
  // Stacks lie at equal distances, so their tops would share a few sets of the cache: each starts
  // 192 bytes lower than its neighbour.
  const uintptr_t top = reinterpret_cast<uintptr_t>(stack_) + kStackBytes;
  const uintptr_t color = (reinterpret_cast<uintptr_t>(stack_) / (kGuard + kStackBytes)) % 64 * 192;
  auto* word = reinterpret_cast<void**>((top - color - 64) & ~uintptr_t{15});
  word[1] = nullptr;  // where a backtrace ends
  word[0] = reinterpret_cast<void*>(&FiberStart::run);
  for (int i = 1; i <= 6; ++i) word[-i] = nullptr;  // the preserved registers
  pointer_ = word - 6;
}

void Fiber::resume() {
  starting = this;
#if SNUG_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&resumer_fake_stack_, stack_, kStackBytes);
#endif
  snug_simt_switch(&resumer_, pointer_);
#if SNUG_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(resumer_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::suspend() {
#if SNUG_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&fake_stack_, resumer_bottom_, resumer_bytes_);
#endif
  snug_simt_switch(&pointer_, resumer_);
#if SNUG_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::leave() {
  left_ = true;
#if SNUG_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(nullptr, resumer_bottom_, resumer_bytes_);
#endif
  snug_simt_switch(&pointer_, resumer_);
  __builtin_unreachable();
}

void Fiber::drop() {
  if (!stack_) return;
#if SNUG_ADDRESS_SANITIZER
  if (!left_) __asan_unpoison_memory_region(stack_, kStackBytes);  // red zones it left behind
#endif
  pool.give(stack_);
  stack_ = nullptr;
}

bool Fiber::holds(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  return stack_ && at >= stack_ - kGuard && at < stack_ + kStackBytes;
}

}  // namespace snug::simt::emu
