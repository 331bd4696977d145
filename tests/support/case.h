// Runs a piece of engine code as training runs it: recorded on the place plan, packed, then held to
// the record in a reserved arena; and again in every mode that must not change a bit.
//
//   const Outputs out = run_in_all_modes([&](Case& c) {
//     const View x = c.input("x", {n, c}, dtype, values);
//     const View y = c.output("y", {n, c}, dtype);
//     op_forward(c.ctx(), y, x);
//   });
//   EXPECT_TRUE(close(out["y"], reference, tolerance(dtype, 1)));
//
// The body runs several times, on plan too, so it must not read tensors itself.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/isa.h"
#include "engine/memory/context.h"
#include "engine/memory/step_state.h"
#include "tests/support/values.h"

namespace snug::test {

struct Output {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;

  Values values() const { return load_values(bytes.data(), dtype, shape.elements()); }
};

class Outputs {
 public:
  // The values of an output; a test failure and empty if there is none of this name.
  Values operator[](const std::string& name) const {
    for (const Output& o : all)
      if (o.name == name) return o.values();
    ADD_FAILURE() << "no output named " << name;
    return {};
  }
  // The step state after the run; the case must have made one.
  StepState state() const {
    StepState s{};
    for (const Output& o : all)
      if (o.name == "step_state") std::memcpy(&s, o.bytes.data(), sizeof(s));
    return s;
  }
  bool operator==(const Outputs& other) const {
    if (all.size() != other.all.size()) return false;
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].name != other.all[i].name || all[i].bytes != other.all[i].bytes) return false;
    return true;
  }

  std::vector<Output> all;
  int64_t planned_bytes = 0;  // of the arena
  int64_t flops = 0;          // what the recorded ops reported
  int64_t bytes_moved = 0;
  std::vector<std::string> ops;  // their names, in order
  // FLOPs and bytes of all ops of a name.
  std::map<std::string, std::pair<int64_t, int64_t>> costs;
};

// The tensors of one run of a body.
class Case {
 public:
  explicit Case(Context& ctx) : ctx_(ctx) {}
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  Context& ctx() { return ctx_; }

  // A tensor that holds `values`, rounded to the dtype.
  View input(const char* name, Shape shape, DType dtype, const Values& values) {
    return make(name, shape, dtype, &values, nullptr, false);
  }
  // A tensor of undefined contents, read back after the body.
  View output(const char* name, Shape shape, DType dtype) {
    return make(name, shape, dtype, nullptr, nullptr, true);
  }
  // A tensor that holds `values` and is read back.
  View inout(const char* name, Shape shape, DType dtype, const Values& values) {
    return make(name, shape, dtype, &values, nullptr, true);
  }
  // The step state: filled and read back.
  View step_state(const StepState& state) {
    return make("step_state", step_state_shape(), DType::u8, nullptr, &state, true);
  }

  // Copies what is to be read back, then ends all tensors, last made first.
  std::vector<Output> finish() {
    std::vector<Output> outputs;
    for (const Made& m : made_) {
      if (!m.read || ctx_.planning()) continue;
      const View& v = m.tensor.view();
      Output o{v.name.str(), v.dtype, v.shape, std::vector<std::byte>(v.bytes())};
      if (!o.bytes.empty()) ctx_.read(o.bytes.data(), v);
      outputs.push_back(std::move(o));
    }
    while (!made_.empty()) made_.pop_back();
    return outputs;
  }

 private:
  struct Made {
    Tensor tensor;
    bool read;
  };

  View make(const char* name, Shape shape, DType dtype, const Values* values, const void* raw,
            bool read) {
    Tensor t = ctx_.tensor(Name(name), shape, dtype, Category::workspace);
    const View v = t;
    if (values) {
      require(static_cast<int64_t>(values->size()) == v.elements(),
              "a test to give as many values as the tensor has elements");
      if (!ctx_.planning()) {
        std::vector<std::byte> bytes(static_cast<size_t>(v.bytes()));
        store_values(bytes.data(), dtype, *values);
        ctx_.write(v, bytes.data());
      }
    }
    if (raw && !ctx_.planning()) ctx_.write(v, raw);
    made_.push_back({std::move(t), read});
    return v;
  }

  Context& ctx_;
  std::vector<Made> made_;
};

using Body = std::function<void(Case&)>;

struct RunOptions {
  int repeats = 1;                 // of the program in one arena; the outputs are those of the last
  uint64_t shuffle = 0;            // not 0: a random valid packing
  OpListener* listener = nullptr;  // of the run
};

// Records the body on plan, packs, reserves, runs it on cpu, or where settings.target says. Fails
// the test unless the operating system reports exactly the planned bytes as resident. Errors of the
// body pass through.
inline Outputs run_on_plan_and_cpu(const Settings& settings, const Body& body,
                                   const RunOptions& options = {}) {
  Schedule schedule;
  const int program = schedule.add(Name("case"), -1, false);
  Context plan(Place::plan, settings);
  plan.program(schedule, program, [&] {
    Case c(plan);
    body(c);
    c.finish();
  });
  schedule.pack({.seconds = 0}, options.shuffle);

  Outputs outputs;
  outputs.planned_bytes = schedule.arena_bytes();
  outputs.flops = schedule.at(program).flops();
  outputs.bytes_moved = schedule.at(program).bytes_moved();
  for (const OpRecord& op : schedule.at(program).ops) {
    outputs.ops.emplace_back(op.name);
    auto& [flops, bytes] = outputs.costs[op.name];
    flops += op.flops;
    bytes += op.bytes;
  }
  Context cpu(settings.target, settings);
  cpu.reserve(schedule);
  cpu.set_listener(options.listener);
  for (int r = 0; r < options.repeats; ++r)
    cpu.program(schedule, program, [&] {
      Case c(cpu);
      body(c);
      outputs.all = c.finish();
    });
  EXPECT_EQ(cpu.resident_bytes(), outputs.planned_bytes) << "measured and planned bytes differ";
  return outputs;
}

struct Mode {
  const char* name;
  Settings settings;
  RunOptions options;
};

inline std::vector<Mode> modes_of_cases() {
  std::vector<Mode> modes;
  Settings guarded, two_threads, all;
  guarded.guard_bytes = 256;
  guarded.poison = true;
  two_threads.threads = 2;
  all = guarded;
  all.threads = 3;
  modes.push_back({"guards and poison", guarded, {}});
  modes.push_back({"two threads", two_threads, {.repeats = 2, .shuffle = 0}});
  modes.push_back({"three threads, random placement", all, {.repeats = 1, .shuffle = 12345}});
  return modes;
}

// Runs the body plainly, then in every mode of the list and without AVX-512 (engine/core/isa.h),
// which must give the same bits. Returns the outputs of the plain run.
inline Outputs run_in_all_modes(const Body& body) {
  const Outputs plain = run_on_plan_and_cpu({}, body);
  std::vector<Mode> modes = modes_of_cases();
  modes.push_back({"AVX-512 without its bf16 and bytes", {}, {}});
  modes.push_back({"without AVX-512", {}, {}});
  for (const Mode& mode : modes) {
    std::optional<WithoutAvx512> narrow;
    std::optional<PlainAvx512> no_more;
    if (&mode == &modes.back()) narrow.emplace();
    if (&mode == &modes.back() - 1) no_more.emplace();
    const Outputs other = run_on_plan_and_cpu(mode.settings, body, mode.options);
    for (size_t i = 0; i < plain.all.size(); ++i)
      EXPECT_TRUE(plain.all[i].bytes == other.all.at(i).bytes)
          << "output " << plain.all[i].name << " changes in the mode \"" << mode.name << "\"";
  }
  return plain;
}

}  // namespace snug::test
