#include "engine/simt/emu_fault.h"

#include <signal.h>

#include <array>
#include <cstddef>
#include <mutex>

#include "engine/core/sanitizers.h"

namespace snug::simt::emu {

#if SNUG_ADDRESS_SANITIZER
void catch_bad_addresses(void (*)(const void*)) {}
#else
namespace {

void (*claim_address)(const void*) = nullptr;
struct sigaction before_segv, before_bus;

void on_signal(int signal, siginfo_t* info, void*) {
  claim_address(info->si_addr);
  // Not ours: put back what was there; the instruction faults again on return.
  sigaction(signal, signal == SIGBUS ? &before_bus : &before_segv, nullptr);
}

// The overflowed stack cannot hold the handler.
struct SignalStack {
  std::array<std::byte, 64 * 1024> bytes;
  stack_t before{};
  SignalStack() {
    stack_t mine{};
    mine.ss_sp = bytes.data();
    mine.ss_size = bytes.size();
    sigaltstack(&mine, &before);
  }
  ~SignalStack() { sigaltstack(&before, nullptr); }
};

}  // namespace

void catch_bad_addresses(void (*claim)(const void*)) {
  static std::once_flag once;
  std::call_once(once, [claim] {
    claim_address = claim;
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    // The handler may leave by a switch of stacks, so the signal must not stay blocked.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &before_segv);
    sigaction(SIGBUS, &action, &before_bus);
  });
  static thread_local SignalStack stack;
}
#endif

}  // namespace snug::simt::emu
