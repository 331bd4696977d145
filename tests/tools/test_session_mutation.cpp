// T7: the proofs can fail. One lifetime, one workspace and one event of a whole training session
// are broken, and a block of memory is taken beside the plan; each time the checks named here must
// see it, and none of them may see anything in the honest session.
//
//   record    what runs is what was planned: ticks, bytes, events (always on)
//   T1        no block outlives its step
//   T2        the operating system's count of the process grows by the arenas
//   T4        guards behind tensors, NaN in what is not yet or no longer alive
//   T5        the same bits at twenty random places
//
// T3, the limit of the operating system, is broken by a page in tests/tools/e2e/test_enforced.cpp.
// A wait that is missing on both sides, plan and run, is broken in
// tests/engine/memory/test_residence.cpp.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <set>

#include "engine/core/error.h"
#include "tests/tools/session_case.h"
#include "tools/trainer/allocation_watch.h"

namespace snug {
namespace {

using Checks = std::set<std::string>;
// Changes a recorded schedule and packs it.
using Break = std::function<void(Schedule&, uint64_t shuffle)>;
// Called behind every op of a run.
using Touch = std::function<void(const Session&, const Schedule&, const Program&, int32_t op)>;

struct Mutation {
  Break schedule = [](Schedule& s, uint64_t shuffle) { s.pack({}, shuffle); };
  Touch touch;
};

const Model& tiny_model() {
  static const Model model(test::tiny_spec({.L = 3}), parse_precision("fp32"));
  return model;
}

test::RunOptions options(bool offload, bool checked) {
  test::RunOptions o;
  o.decisions.T = 16;
  o.decisions.micro_batch = 2;
  o.decisions.head_rows = 16;
  o.decisions.recompute = offload ? "norm2" : "norms";
  o.decisions.offload = offload ? "attention" : "none";
  o.decisions.max_grad_norm = 1.0;
  o.global_batch = 4;
  o.settings.guard_bytes = checked ? 256 : 0;
  o.settings.poison = checked;
  return o;
}

class Toucher final : public OpListener {
 public:
  Toucher(const Session& session, const Schedule& schedule, const Touch& touch)
      : session_(session), schedule_(schedule), touch_(touch) {}
  void op_done(const Program& program, int32_t op, double) override {
    if (touch_) touch_(session_, schedule_, program, op);
  }

 private:
  const Session& session_;
  const Schedule& schedule_;
  const Touch& touch_;
};

Schedule broken_schedule(const test::RunOptions& o, const Mutation& m, uint64_t shuffle) {
  Session plan(Place::plan, tiny_model(), o.decisions, o.optimizer, o.settings);
  plan.open();
  m.schedule(plan.schedule(), shuffle);
  return plan.schedule();
}

// Loss and gradients of a window, or the broken promise; empty: none.
struct Result {
  std::vector<float> values;
  std::string broken;
};

Result window(const test::RunOptions& o, const Mutation& m, uint64_t shuffle = 0) {
  Result r;
  const Schedule schedule = broken_schedule(o, m, shuffle);
  test::SessionRun run(tiny_model(), o, schedule);
  Toucher toucher(run.session(), schedule, m.touch);
  run.session().context().set_listener(&toucher);
  try {
    const auto loss = static_cast<float>(run.gradients_of(0));
    r.values = run.gradients();
    r.values.push_back(loss);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::internal) << e.what();
    r.broken = e.what();
  }
  return r;
}

int64_t anonymous_bytes() {
  std::ifstream in("/proc/self/smaps_rollup");
  std::string word;
  for (int64_t kib = 0; in >> word;)
    if (word == "Anonymous:" && in >> kib) return kib * 1024;
  return -1;
}

// The checks that see something.
Checks failing(const Mutation& m, bool offload = false) {
  Checks seen;
  const Mutation honest;
  const test::RunOptions plain = options(offload, false), checked = options(offload, true);
  const Result truth = window(plain, honest);
  EXPECT_EQ(truth.broken, "");

  if (!window(plain, m).broken.empty()) {
    seen.insert("record");
    return seen;  // nothing runs that was not planned: the others never come to be asked
  }
  // T1, and T2 with it: both watch a run from its start. A sanitizer keeps what was freed and
  // counts it nowhere, so there is no heap to subtract.
  if (allocation_watch::available()) {
    const Schedule schedule = broken_schedule(plain, m, 0);
    {  // stacks, lazy pages, the watch's own table
      test::SessionRun warm(tiny_model(), plain, schedule);
      allocation_watch::start();
      warm.gradients_of(0);
      allocation_watch::step_done();
      allocation_watch::stop();
    }
    const auto heap = [] {  // in use; the pages of what is free go back first
      malloc_trim(0);
      const auto info = mallinfo2();
      return static_cast<int64_t>(info.uordblks + info.hblkhd);
    };
    const int64_t small = heap();
    const int64_t before = anonymous_bytes(), breaches = allocation_watch::breaches();
    test::SessionRun run(tiny_model(), plain, schedule);
    Toucher toucher(run.session(), schedule, m.touch);
    run.session().context().set_listener(&toucher);
    allocation_watch::start();
    run.gradients_of(0);
    allocation_watch::step_done();
    allocation_watch::stop();
    if (allocation_watch::breaches() > breaches) seen.insert("T1");
    const int64_t arenas = schedule.arena_bytes() + schedule.host_bytes();
    const int64_t grown_heap = std::max<int64_t>(0, heap() - small);
    if (anonymous_bytes() - before > arenas + grown_heap + (int64_t{128} << 10)) seen.insert("T2");
  }
  {
    const Result r = window(checked, m);
    if (!r.broken.empty() || !test::same_bits(r.values, truth.values)) seen.insert("T4");
  }
  for (uint64_t shuffle = 1; shuffle <= 20; ++shuffle) {
    const Result r = window(plain, m, shuffle);
    if (!r.broken.empty() || !test::same_bits(r.values, truth.values)) seen.insert("T5");
  }
  return seen;
}

TensorRecord& tensor_of(Schedule& s, const char* program, const std::string& name) {
  for (TensorRecord& t : s.at(s.find(program)).tensors)
    if (t.name.view() == name) return t;
  ADD_FAILURE() << "no tensor " << name << " in " << program;
  return s.at(0).tensors.at(0);
}

TEST(SessionMutation, TheHonestSessionPassesEveryCheck) {
  EXPECT_EQ(failing({}), Checks());
  EXPECT_EQ(failing({}, true), Checks());
}

// A lifetime: the plan believes that a saved activation dies when it is born, and says so.
TEST(SessionMutation, AReleaseThatIsPlannedTooEarly) {
  Mutation m;
  m.schedule = [](Schedule& s, uint64_t shuffle) {
    TensorRecord& t = tensor_of(s, "micro_first", "h.0.fc");
    t.died = t.born + 1;
    s.pack({}, shuffle);
  };
  EXPECT_EQ(failing(m), Checks{"record"});
}

// The same, and the record keeps the true end, as if the packer had been wrong: others lie in the
// bytes while they are needed.
TEST(SessionMutation, BytesThatAreGivenAwayTooEarly) {
  if (!allocation_watch::available()) GTEST_SKIP() << "T1 and T2 are not counted with a sanitizer";
  for (const char* name : {"h.0.fc", "h.1.qkv", "h.2.mid"}) {
    Mutation m;
    m.schedule = [name](Schedule& s, uint64_t shuffle) {
      TensorRecord& t = tensor_of(s, "micro_first", name);
      const int64_t died = t.died;
      ASSERT_GT(died, t.born + 1) << name;
      t.died = t.born + 1;
      s.pack({}, shuffle);
      t.died = died;
    };
    EXPECT_EQ(failing(m), (Checks{"T4", "T5"})) << name;
  }
}

// All of them, one after the other: what then shares a byte with another is seen by T4 and what
// does not is not accused. The recomputed outputs of the norms alone live on unread: they end
// behind the sum of the bias's gradient, which comes after the product that reads them.
TEST(SessionMutation, EveryLifetimeIsNeeded) {
  const test::RunOptions checked = options(false, true);
  const Result truth = window(checked, {});
  const Schedule honest = broken_schedule(checked, {}, 0);
  const Program& p = honest.at(honest.find("micro_first"));
  int shared = 0;
  for (size_t i = 0; i < p.tensors.size(); ++i) {
    bool overlap = false;
    Mutation m;
    m.schedule = [&](Schedule& s, uint64_t) {
      Program& program = s.at(s.find("micro_first"));
      const int64_t died = program.tensors[i].died;
      program.tensors[i].died = std::min(died, program.tensors[i].born + 1);
      s.pack();
      program.tensors[i].died = died;
      try {
        check_packing(intervals_of(program), program.packing.offsets, kTensorAlignment);
      } catch (const Error&) {
        overlap = true;
      }
    };
    const Result r = window(checked, m);
    const bool seen = !r.broken.empty() || !test::same_bits(r.values, truth.values);
    const std::string_view name = p.tensors[i].name.view();
    const bool unread = p.tensors[i].category == Category::recomputed &&
                        (name.ends_with(".norm1") || name.ends_with(".norm2"));
    EXPECT_TRUE(seen == overlap || (unread && !seen))
        << name << ": shares bytes " << overlap << ", seen " << seen;
    shared += overlap;
  }
  EXPECT_GT(shared, 20) << "the mutations do something";
}

// A workspace: the record has less than what is asked for.
TEST(SessionMutation, AWorkspaceThatIsRecordedTooSmall) {
  Mutation m;
  m.schedule = [](Schedule& s, uint64_t shuffle) {
    Program& p = s.at(s.find("micro_first"));
    const auto work = std::find_if(p.tensors.begin(), p.tensors.end(), [](const TensorRecord& t) {
      return t.category == Category::workspace && t.bytes > 4;
    });
    ASSERT_NE(work, p.tensors.end());
    work->bytes -= 4;
    s.pack({}, shuffle);
  };
  EXPECT_EQ(failing(m), Checks{"record"});
}

// An op touches more than it recorded: 64 bytes behind the end of what it was given.
TEST(SessionMutation, AnOpThatTouchesMoreThanItRecorded) {
  if (!allocation_watch::available()) GTEST_SKIP() << "T1 and T2 are not counted with a sanitizer";
  Mutation m;
  m.touch = [](const Session& session, const Schedule& schedule, const Program& program,
               int32_t op) {
    if (program.name.view() != "micro_first") return;
    const Program& root = schedule.at(schedule.find("root"));
    const int64_t guard = const_cast<Session&>(session).context().settings().guard_bytes;
    for (size_t i = 0; i < program.tensors.size(); ++i) {
      const TensorRecord& t = program.tensors[i];
      if (t.name.view() != "h.1.fc" || t.first_op != op) continue;
      std::byte* base = nullptr;  // of the arena, by what the host fills
      for (size_t k = 0; k < root.tensors.size(); ++k)
        if (root.tensors[k].name.view() == session.tokens().name.view())
          base =
              static_cast<std::byte*>(session.tokens().data) - root.base - root.packing.offsets[k];
      ASSERT_NE(base, nullptr);
      const int64_t end = program.base + program.packing.offsets[i] + t.bytes - guard;
      if (end + 64 <= schedule.arena_bytes()) std::memset(base + end, 0x7f, 64);
    }
  };
  EXPECT_EQ(failing(m), (Checks{"T4", "T5"}));
}

// An event: each wait of the first micro-batch in turn is not in the plan.
TEST(SessionMutation, AWaitThatIsNotPlanned) {
  const Schedule honest = broken_schedule(options(true, false), {}, 0);
  const Program& p = honest.at(honest.find("micro_first"));
  int waits = 0;
  for (size_t i = 0; i < p.syncs.size(); ++i) {
    if (p.syncs[i].kind != SyncRecord::Kind::wait) continue;
    Mutation m;
    m.schedule = [i](Schedule& s, uint64_t shuffle) {
      auto& syncs = s.at(s.find("micro_first")).syncs;
      syncs.erase(syncs.begin() + static_cast<std::ptrdiff_t>(i));
      s.pack({}, shuffle);
    };
    const Result r = window(options(true, false), m);
    EXPECT_NE(r.broken.find("program micro_first to do what was planned"), std::string::npos)
        << i << " " << r.broken;
    ++waits;
  }
  EXPECT_GE(waits, 9) << "out, back and the joins of three layers";
}

TEST(SessionMutation, ABlockOfTheHeapThatOutlivesItsStep) {
  if (!allocation_watch::available()) GTEST_SKIP() << "not counted with a sanitizer";
  std::vector<std::unique_ptr<char[]>> kept;
  kept.reserve(1000);
  Mutation m;
  m.touch = [&](const Session&, const Schedule&, const Program& program, int32_t op) {
    if (program.name.view() == "micro_first" && op == 3)
      kept.push_back(std::make_unique<char[]>(8192));
  };
  EXPECT_EQ(failing(m), Checks{"T1"});
}

TEST(SessionMutation, PagesBesideTheArena) {
  if (!allocation_watch::available()) GTEST_SKIP() << "not counted with a sanitizer";
  if (anonymous_bytes() < 0) GTEST_SKIP() << "no /proc/self/smaps_rollup";
  // Of another arena, so that neither the heap nor the watch knows of it.
  Schedule schedule;
  const int root = schedule.add(Name("root"), -1, true);
  {
    Context plan(Place::plan, {});
    Tensor t;
    plan.program(schedule, root,
                 [&] { t = plan.tensor(Name("t"), {1 << 20}, DType::u8, Category::weights); });
  }
  schedule.pack();
  std::vector<std::unique_ptr<Context>> kept;
  kept.reserve(100);
  Mutation m;
  m.touch = [&](const Session&, const Schedule&, const Program& program, int32_t op) {
    if (program.name.view() != "micro_first" || op != 3) return;
    kept.push_back(std::make_unique<Context>(Place::cpu, Settings{}));
    kept.back()->reserve(schedule);
  };
  EXPECT_TRUE(failing(m).contains("T2"));
}

}  // namespace
}  // namespace snug
