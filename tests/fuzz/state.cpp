// snug_state.json of a checkpoint: any bytes are refused with their place, or read.
#include "tests/fuzz/fuzz.h"
#include "tools/checkpoint/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug::fuzz;
  put("COMPLETE", "");
  put("snug_state.json", text_of(data, size));
  holds([] {
    const snug::Checkpoint c = snug::read_checkpoint(folder(), true);  // its checksums aside
    check(c.position.step >= 0 && c.position.samples >= 0, "a position that is not negative");
    check(c.pinned.T >= 1 && c.pinned.decisions.micro_batch >= 1 &&
              c.pinned.decisions.micro_batch <= c.pinned.global_batch,
          "pinned sizes that can be");
  });
  return 0;
}
