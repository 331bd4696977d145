// Runs kernels in the emulator under every schedule, on tensors whose end abuts a page that nobody
// may touch. Includes no kernel vocabulary: launchers are linked.
//
//   const Outputs out = run_in_all_schedules([&](EmuCase& c) {
//     const View x = c.input("x", {n}, dtype, values), y = c.output("y", {n}, dtype);
//     cast_on(c.queue(), y, x);
//   });
#pragma once

#include <sys/mman.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string_view>

#include "engine/core/units.h"
#include "engine/simt/emu.h"
#include "tests/support/case.h"

namespace snug::test {

// Bytes at a multiple of 16 (plus `shift`), followed by less than 16 that must not change, then by
// a page without access. Unwritten bytes are all ones: NaN.
class GuardedBytes {
 public:
  GuardedBytes(int64_t bytes, int64_t shift)
      : bytes_(bytes),
        used_(static_cast<size_t>(round_up(bytes + shift, 16))),
        pages_((used_ + kPage - 1) / kPage * kPage) {
    void* base =
        mmap(nullptr, pages_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(base != MAP_FAILED, "memory for a test");
    base_ = static_cast<std::byte*>(base);
    require(mprotect(base_ + pages_, kPage, PROT_NONE) == 0, "a guard page");
    std::memset(base_, 0xff, pages_);
    data_ = base_ + pages_ - used_ + shift;
  }
  ~GuardedBytes() { munmap(base_, pages_ + kPage); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::byte* data() const { return data_; }
  // Nothing was written between the tensor and the page, or just before the tensor.
  bool intact() const {
    const auto clean = [](const std::byte* from, const std::byte* to) {
      return std::all_of(from, to, [](std::byte b) { return b == std::byte{0xff}; });
    };
    return clean(data_ + bytes_, base_ + pages_) && clean(base_, data_);
  }

 private:
  static constexpr size_t kPage = 4096;
  int64_t bytes_;
  size_t used_, pages_;
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
};

// The tensors of one run; as Case, but at once and in the emulator.
class EmuCase {
 public:
  // shifted: tensors begin one element past a multiple of 16 bytes.
  EmuCase(simt::emu::Schedule schedule, bool shifted) : queue_{schedule, {}}, shifted_(shifted) {}

  simt::emu::Queue& queue() { return queue_; }

  View input(const char* name, Shape shape, DType dtype, const Values& values) {
    return make(name, shape, dtype, &values, false);
  }
  View output(const char* name, Shape shape, DType dtype) {
    return make(name, shape, dtype, nullptr, true);
  }
  View inout(const char* name, Shape shape, DType dtype, const Values& values) {
    return make(name, shape, dtype, &values, true);
  }
  View step_state(const StepState& state) {
    const View v = make("step_state", step_state_shape(), DType::u8, nullptr, true, false);
    std::memcpy(v.data, &state, sizeof(state));
    return v;
  }

  std::vector<Output> finish() {
    std::vector<Output> outputs;
    for (const Made& m : made_) {
      const View& v = m.view;
      EXPECT_TRUE(m.bytes->intact()) << "a write beside " << describe(v);
      if (!m.read) continue;
      Output o{v.name.str(), v.dtype, v.shape, std::vector<std::byte>(v.bytes())};
      if (!o.bytes.empty()) std::memcpy(o.bytes.data(), v.data, o.bytes.size());
      outputs.push_back(std::move(o));
    }
    return outputs;
  }

 private:
  struct Made {
    View view;
    std::unique_ptr<GuardedBytes> bytes;
    bool read;
  };

  View make(const char* name, Shape shape, DType dtype, const Values* values, bool read,
            bool may_shift = true) {
    const int64_t bytes = shape.elements() * size_of(dtype);
    auto owner = std::make_unique<GuardedBytes>(bytes, shifted_ && may_shift ? size_of(dtype) : 0);
    const View v{owner->data(), shape, dtype, Place::cpu, Name(name)};
    if (values) {
      require(static_cast<int64_t>(values->size()) == v.elements(),
              "a test to give as many values as the tensor has elements");
      store_values(v.data, dtype, *values);
    }
    made_.push_back({v, std::move(owner), read});
    return v;
  }

  simt::emu::Queue queue_;
  bool shifted_;
  std::vector<Made> made_;
};

// Runs the body once per schedule; all must give the same bits. Returns the outputs.
inline Outputs run_in_all_schedules(const std::function<void(EmuCase&)>& body,
                                    bool shifted = false) {
  Outputs first;
  for (const simt::emu::Schedule& schedule : simt::emu::test_schedules()) {
    EmuCase c(schedule, shifted);
    body(c);
    Outputs now;
    now.all = c.finish();
    if (schedule.order == simt::emu::Order::forward) {
      first = std::move(now);
      continue;
    }
    for (size_t i = 0; i < first.all.size(); ++i)
      EXPECT_TRUE(first.all[i].bytes == now.all.at(i).bytes)
          << "output " << first.all[i].name << " changes under the schedule "
          << to_string(schedule);
  }
  return first;
}

// Sees that every op of a run on the place emu comes to its kernels: one that computed as on the
// CPU would give right numbers too. Three have none: what the device copies and fills itself, and
// targets that the host looks at.
class EveryOpLaunches final : public OpListener {
 public:
  void op_done(const Program& program, int32_t op, double) override {
    const std::string_view name = program.ops[static_cast<size_t>(op)].name;
    const bool kernel = name != "copy" && name != "fill_zero" && name != "head_loss_targets";
    const int64_t now = simt::emu::launches_so_far();
    EXPECT_EQ(now > before_, kernel) << name;
    before_ = now;
    ++ops;
  }
  int ops = 0;

 private:
  int64_t before_ = simt::emu::launches_so_far();
};

// The place whose kernels tests hold to the CPU: emu, or with SNUG_TEST_KERNELS_ON=cuda in the
// environment the GPU, so that every such test is one of silicon too (tools/gpu_check.sh).
inline Place kernel_place() {
  static const std::string_view on = [] {
    const char* const text = std::getenv("SNUG_TEST_KERNELS_ON");
    return text == nullptr ? std::string_view("emu") : std::string_view(text);
  }();
  require(on == "cuda" || on == "emu", "SNUG_TEST_KERNELS_ON as cuda or emu");
  return on == "cuda" ? Place::cuda : Place::emu;
}

// The body on the place of kernels with `settings` else. In the emulator the test fails if an op
// launches nothing.
inline Outputs run_on_emu(const Body& body, Settings settings = {}) {
  settings.target = kernel_place();
  if (settings.target == Place::cuda) return run_on_plan_and_cpu(settings, body);
  EveryOpLaunches launches;
  Outputs outputs = run_on_plan_and_cpu(settings, body, {.listener = &launches});
  EXPECT_GT(launches.ops, 0);
  return outputs;
}

// Blocks that tests of launchers use: one warp, two, four.
inline constexpr int kBlockSizes[] = {32, 64, 128};

// For bodies that serve both places:
//   [&](auto& c) { if constexpr (kEmulated<std::decay_t<decltype(c)>>) ...; else ...; }
template <class C>
inline constexpr bool kEmulated = std::is_same_v<C, EmuCase>;

// The same bytes; on a GPU any NaN for a NaN, for sign and payload of one that arises are the
// processor's.
inline bool equal_bits(const Output& a, const Output& b) {
  if (a.bytes == b.bytes) return true;
  if (kernel_place() != Place::cuda || a.bytes.size() != b.bytes.size() || a.dtype != b.dtype)
    return false;
  const Values x = a.values(), y = b.values();
  const auto size = static_cast<size_t>(size_of(a.dtype));
  for (size_t i = 0; i < x.size(); ++i)
    if (std::memcmp(&a.bytes[i * size], &b.bytes[i * size], size) != 0 &&
        !(std::isnan(x[i]) && std::isnan(y[i])))
      return false;
  return true;
}

// Output by output, the same bytes.
inline void expect_equal_bits(const Outputs& a, const Outputs& b) {
  ASSERT_EQ(a.all.size(), b.all.size());
  for (size_t i = 0; i < a.all.size(); ++i) {
    EXPECT_EQ(a.all[i].name, b.all[i].name);
    EXPECT_TRUE(equal_bits(a.all[i], b.all[i])) << "output " << a.all[i].name << " differs";
  }
}

}  // namespace snug::test
