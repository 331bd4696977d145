// Fibers: the threads of an emulated block take turns on one thread of the system, each on a stack
// of its own. Switching saves what the x86-64 calling convention preserves and nothing else.
//
// AddressSanitizer is told of every switch, so its reports name the kernel's line and its view of
// a stack stays right. A fiber that never comes to its end may be dropped: its stack is used again.
#pragma once

#include <cstddef>
#include <vector>

namespace snug::simt::emu {

// Below each stack lies a page that nobody may touch.
inline constexpr size_t kStackBytes = 128 * 1024;

// Takes `count` stacks for fibers of the calling thread and touches their upper pages.
void prepare_stacks(size_t count);

class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls body(argument), which ends in leave() and never returns.
  void start(void (*body)(void*), void* argument);
  // Runs the fiber until it suspends or leaves; called outside of any fiber.
  void resume();
  // Back to who resumed; called on the fiber.
  void suspend();
  [[noreturn]] void leave();
  // Gives the stack back, whatever was on it. Not on the fiber itself.
  void drop();

  bool started() const { return stack_ != nullptr; }
  bool holds(const void* address) const;  // on the stack, or on the page that guards it

 private:
  friend struct FiberStart;
  std::byte* stack_ = nullptr;
  void* pointer_ = nullptr;  // stack pointer while suspended
  void* resumer_ = nullptr;  // stack pointer of who resumed
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool left_ = false;
  // AddressSanitizer's notes on both stacks.
  void *fake_stack_ = nullptr, *resumer_fake_stack_ = nullptr;
  const void* resumer_bottom_ = nullptr;
  size_t resumer_bytes_ = 0;
};

}  // namespace snug::simt::emu
