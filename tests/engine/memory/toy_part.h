// A toy part of five stages, for the tests of passes:
//
//   x -> a (+ stat, for backward only) -> b -> c -> d -> y
//             \_________________________/^
//
// a = 2x + 1, stat = sum of x, b = a * a + s, c = b / 3, d = c + a, y = 0.5 d. `s` is a number of
// the environment.
#pragma once

#include <string>
#include <vector>

#include "engine/memory/pass.h"

namespace snug::test {

struct Environment {
  float s = 0.7f;
  std::vector<std::string> ran;  // stages, in order
};

struct Toy {
  Body body;
  int x, a, stat, b, c, d, y;

  Toy() {
    const auto rows = [](Dims dims) -> Shape { return {dims.N(), 10}; };
    const auto slot = [&](const char* name) {
      return body.add_slot(
          {Name(std::string("toy.") + name), DType::f32, Category::activations, rows});
    };
    x = slot("x");
    a = slot("a");
    stat = body.add_slot({Name("toy.stat"), DType::f32, Category::workspace,
                          [](Dims dims) -> Shape { return {dims.N()}; }});
    b = slot("b");
    c = slot("c");
    d = slot("d");
    y = slot("y");
    stage("stage_a", {x}, {a, stat}, [this](Pass& p, float, int64_t i) {
      p.view(a).as<float>()[i] = 2 * at(p, x, i) + 1;
      float& sum = p.view(stat).as<float>()[i / 10];
      sum = (i % 10 ? sum : 0) + at(p, x, i);
    });
    stage("stage_b", {a}, {b}, [this](Pass& p, float s, int64_t i) {
      p.view(b).as<float>()[i] = at(p, a, i) * at(p, a, i) + s;
    });
    stage("stage_c", {b}, {c},
          [this](Pass& p, float, int64_t i) { p.view(c).as<float>()[i] = at(p, b, i) / 3; });
    stage("stage_d", {c, a}, {d}, [this](Pass& p, float, int64_t i) {
      p.view(d).as<float>()[i] = at(p, c, i) + at(p, a, i);
    });
    stage("stage_y", {d}, {y},
          [this](Pass& p, float, int64_t i) { p.view(y).as<float>()[i] = at(p, d, i) * 0.5f; });
  }

  static float at(Pass& p, int slot, int64_t i) { return p.view(slot).as<float>()[i]; }

  template <class F>
  void stage(const char* name, std::vector<int> inputs, std::vector<int> outputs, F f) {
    body.add_stage(
        {Name(name), std::move(inputs), outputs, [name, f, outputs](Context& ctx, Pass& p) {
           auto& e = p.environment<Environment>();
           e.ran.push_back(name);
           const Op op(ctx, name, {});
           if (!op.run()) return;
           const int64_t n = p.view(outputs[0]).elements();
           for (int64_t i = 0; i < n; ++i) f(p, e.s, i);
         }});
  }

  std::vector<SlotPolicy> all(SlotPolicy policy) const {
    return std::vector<SlotPolicy>(static_cast<size_t>(body.slots()), policy);
  }
  // "a:keep" for the letters given, recompute for the rest.
  std::vector<SlotPolicy> keep_only(const std::vector<int>& slots) const {
    std::vector<SlotPolicy> p = all(SlotPolicy::recompute);
    for (const int s : slots) p[static_cast<size_t>(s)] = SlotPolicy::keep;
    return p;
  }
};

}  // namespace snug::test
