// Ranks that share a step: whatever each keeps, weights, states, losses and norms have the same bits;
// they are those of one rank up to the order of sums; bytes are those that were planned, on each.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/core/rng.h"
#include "engine/kernels/gradient_norm.h"
#include "layers/models/family.h"
#include "optim/kahan.h"
#include "parallel/nccl_transport.h"
#include "parallel/rank_comm.h"
#include "tests/parallel/mpi.h"
#include "tests/parallel/nccl.h"
#include "tests/parallel/ranks.h"
#include "tests/tools/session_case.h"

namespace snug {
namespace {

struct Case {
  const char* model;
  const char* precision = "fp32";
  const char* optim = "adamw";
  const char* recompute = "none";
  Place place = Place::cpu;
  double max_grad_norm = 0.5;  // clips
  bool master = true;          // of 16-bit weights
  bool kahan = false;          // without one: a compensation instead of rounding at random
  bool in_backward = false;    // updates; it cannot clip
  bool away = false;           // states and masters with each rank's host
};

constexpr const char* kGpt2 =
    R"({"type": "gpt2", "vocab_size": 97, "n_positions": 16, "n_embd": 36, "n_layer": 2, "n_head": 3,
        "n_inner": 76, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1})";
constexpr const char* kLlama =
    R"({"type": "llama", "vocab_size": 90, "hidden_size": 40, "intermediate_size": 72,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 16, "tie_word_embeddings": false})";
constexpr const char* kNeox =
    R"({"type": "gpt_neox", "vocab_size": 90, "hidden_size": 40, "intermediate_size": 72,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16})";

struct Result {
  std::vector<double> losses, norms;
  std::vector<float> weights;           // of record, by parameter
  std::vector<unsigned char> states;    // where they rest, likewise
  int64_t engine = 0;                   // planned, of a rank
  std::map<std::string, int64_t> kept;  // resident bytes, of a rank
  // The same by where it is of the whole.
  std::map<int64_t, std::vector<float>> weight_pieces;
  std::map<std::tuple<int, int64_t, bool>, std::vector<unsigned char>> state_pieces;  // scales too
};

// f(rank, group) for every rank of this process: all, as threads, or of MPI's this one alone.
using Body = std::function<void(int rank, Group& group)>;
using World = std::function<void(const Body&)>;

void fill_weights(Session& s) {
  const ParamTable& table = s.model().params();
  const RestingWeights resting = s.resting();
  for (int i = 0; i < table.size(); ++i) {
    const ParamInfo& p = table[i];
    resting.each(p.offset, p.elements(),
                 [&](const RestingWeights::Piece& piece, int64_t first, const View& at) {
                   for (int64_t k = 0; piece.own && k < at.elements(); ++k) {
                     const int64_t element = first - p.offset + k;
                     const auto key =
                         static_cast<uint64_t>(i) * 1000003u + static_cast<uint64_t>(element);
                     float v = 0.4f * (uniform_from(static_cast<uint32_t>(mix64(key))) - 0.5f);
                     if (p.init == Init::ones) v += 1.0f;
                     if (element >= p.real_elements()) v = 0.0f;
                     if (at.dtype == DType::bf16)
                       at.as<bf16>()[k] = from_f32<bf16>(v);
                     else
                       at.as<float>()[k] = v;
                   }
                 });
  }
  s.load();
}

// What ranks keep, by where it is of the whole: each adds its own.
struct Kept {
  std::mutex mutex;
  std::map<int64_t, std::vector<float>> weights;
  std::map<std::tuple<int, int64_t, bool>, std::vector<unsigned char>> states;  // scales too
};

void add_own(Session& s, Kept& out) {
  const std::lock_guard lock(out.mutex);
  const ParamTable& table = s.model().params();
  const RestingWeights resting = s.resting();
  for (int i = 0; i < table.size(); ++i)
    resting.each(table[i].offset, table[i].real_elements(),
                 [&](const RestingWeights::Piece& piece, int64_t first, const View& at) {
                   std::vector<float> values;
                   for (int64_t k = 0; piece.own && k < at.elements(); ++k)
                     values.push_back(at.dtype == DType::bf16 ? to_f32(at.as<bf16>()[k])
                                                              : at.as<float>()[k]);
                   if (piece.own) out.weights.emplace(first, values);
                 });
  StateStore& store = s.optimizer_state();
  for (int k = 0; k < store.states(); ++k)
    for (const StateSpan& span : whole_parameter_spans(table)) {
      const RestForm form = store.form(k, span);
      const int64_t each = form.coded() ? 8 / form.bits : 1;
      for (int64_t done = 0; done < span.elements;) {
        const int64_t first = span.offset + done;
        const View v = store.stored(k, first);
        const int64_t n = std::min(v.elements(), (span.elements - done) / each);
        const auto add = [&](const View& view, bool scales) {
          const auto* bytes = static_cast<const unsigned char*>(view.data);
          out.states.try_emplace({k, first, scales}, bytes, bytes + view.bytes());
        };
        if (store.keeps(first)) add(v.rows(0, n), false);
        if (store.keeps(first) && form.coded())
          add(store.stored_scales(k, first).rows(0, form.scales(n * each)), true);
        done += n * each;
      }
    }
}

// What moves tensors: what the group has, with or without shared memory, or NCCL.
enum class Mover { memory, messages, nccl };

Result train_in(const World& world, Mover mover, const Case& c, int ranks, int zero, int64_t micro,
                int64_t G, int64_t steps = 3) {
  const ModelSpec spec = resolve_model("", c.model).spec;
  Precision precision = parse_precision(c.precision);
  if (!c.master) precision.master = precision.compute;
  const Model model(spec, precision, {}, {}, ranks);
  test::RunOptions o;
  o.decisions.T = 12;
  o.decisions.micro_batch = micro;
  o.decisions.head_rows = 16;
  o.decisions.recompute = c.recompute;
  o.decisions.max_grad_norm = c.max_grad_norm;
  o.decisions.update_in_backward = c.in_backward;
  o.decisions.offload_optimizer = c.away;
  o.decisions.loss_scaling.init_scale = 256;
  o.decisions.ranks = ranks;
  o.decisions.zero = zero;
  o.decisions.staged = mover != Mover::memory;
  o.decisions.eval_batch = 2;
  o.optimizer.name = c.optim;
  o.optimizer.weight_decay = 0.1;
  o.optimizer.learning_rate = 1e-2;
  if (c.kahan) {
    o.optimizer.state = StateForm::bf16;
    o.optimizer.args.emplace_back(kKahanArgument, 1.0);
  }
  o.settings.target = c.place;
  const Schedule schedule = test::plan_schedule(model, o, {.seconds = 0});
  Result result;
  result.engine = schedule.arena_bytes();
  for (const TensorRecord& t : schedule.at(schedule.find("root")).tensors)
    result.kept[to_string(t.category)] += t.bytes;
  const auto token = [&](int64_t step, int64_t sample, int64_t t) {
    const auto key = static_cast<uint64_t>((step * 1000 + sample) * 1000 + t);
    return static_cast<int32_t>(mix64(key) % static_cast<uint64_t>(spec.V));
  };
  const auto target = [&](int64_t step, int64_t sample, int64_t t) {
    return (sample + t) % (2 + sample) == 0 ? -100 : token(step, sample, t + 1);
  };
  Kept kept;
  std::atomic<bool> told{false};  // one rank of this process has, for all that are the same
  world([&](int rank, Group& group) {
    const bool tells = !told.exchange(true);
    const std::unique_ptr<Transport> transport =
        mover == Mover::nccl ? std::make_unique<NcclTransport>(group) : group.transport();
    RankComm comm(*transport);
    Session s(c.place, model, o.decisions, o.optimizer, o.settings, &schedule,
              ranks > 1 ? &comm : nullptr);
    s.open();
    EXPECT_EQ(s.context().resident_bytes() / 4096, (result.engine + 4095) / 4096);
    fill_weights(s);
    const int64_t T = o.decisions.T;
    for (int64_t step = 0; step < steps; ++step) {
      int64_t trained = 0;
      for (int64_t i = 0; i < G * T; ++i) trained += target(step, i / T, i % T) != -100;
      s.begin_window(5, step, trained);
      for (float& rate : s.state().learning_rate) rate = 1e-2f;
      s.optimizer().prepare_step(s.state());
      for (int64_t i = 0; i * ranks * micro < G; ++i) {
        const int64_t first = (i * ranks + rank) * micro;
        for (int64_t k = 0; k < micro * T; ++k) {
          const int64_t sample = first + k / T;
          s.tokens().as<int32_t>()[k] = sample < G ? token(step, sample, k % T) : 0;
          s.targets().as<int32_t>()[k] = sample < G ? target(step, sample, k % T) : -100;
        }
        s.state().first_sample = first;
        s.micro(i == 0);
      }
      s.update();
      EXPECT_EQ(s.state().found_inf, 0);
      EXPECT_EQ(s.state().loss_tokens, trained);
      ++s.state().updates;
      if (!tells) continue;
      result.losses.push_back(s.state().loss_sum / static_cast<double>(trained));
      result.norms.push_back(gradient_norm_of(s.state()));
    }
    s.begin_window(0, 0, 0);
    for (int64_t k = 0; k < 2 * T; ++k) {
      s.tokens().as<int32_t>()[k] = token(99, k / T, k % T);
      s.targets().as<int32_t>()[k] = token(99, k / T, k % T + 1);
    }
    s.evaluate();
    if (tells) result.losses.push_back(s.state().loss_sum);
    add_own(s, kept);
    if (ranks > 1) group.barrier("trained");
  });
  for (const auto& [first, values] : kept.weights)
    result.weights.insert(result.weights.end(), values.begin(), values.end());
  for (const auto& [first, bytes] : kept.states)
    result.states.insert(result.states.end(), bytes.begin(), bytes.end());
  result.weight_pieces = std::move(kept.weights);
  result.state_pieces = std::move(kept.states);
  return result;
}

Result train(const Case& c, int ranks, int zero, int64_t micro, int64_t G, int64_t steps = 3) {
  return train_in([&](const Body& f) { test::on_ranks(ranks, f); }, Mover::memory, c, ranks, zero,
                  micro, G, steps);
}

void expect_same(const Result& a, const Result& b) {
  EXPECT_TRUE(test::same_bits(a.losses, b.losses));
  EXPECT_TRUE(test::same_bits(a.norms, b.norms));
  EXPECT_TRUE(test::same_bits(a.weights, b.weights));
  // Scales of pieces follow their codes, so what is read is in another order where pieces are.
  EXPECT_EQ(a.states.size(), b.states.size());
}

// Up to the order of sums.
void expect_close(const Result& a, const Result& b, bool wide) {
  for (size_t i = 0; i < b.losses.size(); ++i)
    EXPECT_NEAR(a.losses[i] / b.losses[i], 1, wide ? 1e-6 : 2e-3) << i;
  for (size_t i = 0; i < b.norms.size(); ++i)
    EXPECT_NEAR(a.norms[i] / b.norms[i], 1, wide ? 1e-5 : 2e-2) << i;
}

void check(const Case& c, int ranks, int64_t micro, int64_t G) {
  SCOPED_TRACE(std::string(c.model).substr(0, 24) + " " + c.precision + " " + c.optim + " " +
               c.recompute +
               (c.master  ? ""
                : c.kahan ? " kahan"
                          : " no master") +
               ", ranks " + std::to_string(ranks));
  const bool once = micro * ranks >= G;  // one micro-step a window
  const bool wide = !std::strcmp(c.precision, "fp32");
  const Result plain = train(c, ranks, 0, micro, G);
  for (const int zero : {1, 2, 3}) {
    SCOPED_TRACE("zero " + std::to_string(zero));
    const Result r = train(c, ranks, zero, micro, G);
    if (once || zero == 1) {
      expect_same(r, plain);
      if (!std::strcmp(c.optim, "adamw")) {
        EXPECT_TRUE(test::same_bits(r.states, plain.states));
      }
    } else {
      // Micro-steps are added after ranks are: another order of sums, the same from 2 to 3.
      expect_close(r, plain, wide);
      if (zero == 3) expect_same(r, train(c, ranks, 2, micro, G));
    }
    const auto less = [&](const char* what) { return r.kept.at(what) < plain.kept.at(what); };
    EXPECT_TRUE(less("optimizer"));
    EXPECT_EQ(less("gradients"), zero >= 2);
    EXPECT_EQ(less("weights"), zero >= 3);
  }
  expect_close(plain, train(c, 1, 0, micro, G), wide);
}

TEST(RankSessions, StagesHaveTheSameBitsAndOneRanksNumbers) {
  check({kGpt2}, 2, 2, 4);
  check({kGpt2, "bf16"}, 3, 1, 3);
  check({kLlama, "fp16", "adamw_8bit"}, 2, 2, 3);
  check({kNeox, "fp32", "lion", "block"}, 3, 2, 5);
}

TEST(RankSessions, SeveralMicroStepsAWindow) {
  check({kGpt2, "fp32", "adamw", "block"}, 2, 1, 5);
  check({kLlama, "bf16"}, 3, 1, 7);
}

// What the seed rounds an element by depends on its place in the whole range, not in a piece.
TEST(RankSessions, WeightsWithoutAMaster) {
  Case c{kGpt2, "bf16"};
  c.master = false;
  check(c, 2, 1, 2);
  check({kLlama, "bf16", "adamw_8bit", "none", Place::cpu, 0.5, false}, 3, 1, 3);
  check({kNeox, "bf16", "adamw", "none", Place::cpu, 0.5, false, true}, 2, 1, 2);
}

// A block's gradients are summed, applied and gone as backward leaves it: the bits are those of ranks that
// keep them, of one rank those of itself. Norms are summed in the order of backward.
TEST(RankSessions, UpdatesInBackward) {
  const auto check_case = [](Case c, int ranks) {
    SCOPED_TRACE(std::string(c.precision) + " " + c.optim + ", ranks " + std::to_string(ranks));
    c.max_grad_norm = 0;
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE("zero " + std::to_string(zero));
      c.in_backward = false;
      const Result behind = train(c, ranks, zero, 2, 2 * ranks - 1);
      c.in_backward = true;
      const Result in = train(c, ranks, zero, 2, 2 * ranks - 1);
      EXPECT_TRUE(test::same_bits(in.losses, behind.losses));
      EXPECT_TRUE(test::same_bits(in.weights, behind.weights));
      EXPECT_TRUE(test::same_bits(in.states, behind.states));
      for (size_t i = 0; i < in.norms.size(); ++i)
        EXPECT_NEAR(in.norms[i] / behind.norms[i], 1, 1e-12);
      if (zero < 2) {
        EXPECT_LT(in.kept.at("gradients"), behind.kept.at("gradients"));
      }
    }
  };
  check_case({kGpt2, "fp32", "adamw", "block"}, 2);
  check_case({kLlama, "bf16", "adamw_8bit"}, 3);
  Case c{kNeox, "bf16"};
  c.master = false;
  check_case(c, 2);
}

// With the host of each rank: the bits are those of states that stay, whatever is summed when.
TEST(RankSessions, StatesWithTheHost) {
  const auto check_case = [](Case c, int ranks) {
    SCOPED_TRACE(std::string(c.precision) + " " + c.optim + ", ranks " + std::to_string(ranks));
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE("zero " + std::to_string(zero));
      c.away = false;
      const Result here = train(c, ranks, zero, 1, 2 * ranks);
      c.away = true;
      const Result away = train(c, ranks, zero, 1, 2 * ranks);
      EXPECT_TRUE(test::same_bits(away.losses, here.losses));
      EXPECT_TRUE(test::same_bits(away.norms, here.norms));
      EXPECT_TRUE(test::same_bits(away.weights, here.weights));
      EXPECT_TRUE(test::same_bits(away.states, here.states));
      EXPECT_FALSE(away.kept.contains("optimizer") || away.kept.contains("master"));
    }
  };
  check_case({kGpt2, "fp32", "adamw", "block"}, 2);
  check_case({kLlama, "bf16"}, 3);
  check_case({kNeox, "bf16", "adamw", "none", Place::cpu, 0.5, false}, 2);
  Case c{kGpt2, "fp16", "lion"};
  c.place = Place::emu;
  check_case(c, 2);
}

// Both at once: a block's states come while its gradients are summed.
TEST(RankSessions, StatesWithTheHostUpdatedInBackward) {
  for (const int zero : {0, 2, 3}) {
    Case c{kLlama, "bf16", "adamw", "block", Place::cpu, 0};
    const Result here = train(c, 2, zero, 2, 4);
    c.away = c.in_backward = true;
    const Result away = train(c, 2, zero, 2, 4);
    EXPECT_TRUE(test::same_bits(away.losses, here.losses)) << zero;
    EXPECT_TRUE(test::same_bits(away.weights, here.weights)) << zero;
    EXPECT_TRUE(test::same_bits(away.states, here.states)) << zero;
  }
}

TEST(RankSessions, OnTheEmulatedPlace) {
  Case c{kGpt2};
  c.place = Place::emu;
  check(c, 2, 1, 2);
}

TEST(SlowRankSessions, EveryBlockFormPrecisionAndRankCount) {
  for (const char* model : {kGpt2, kLlama, kNeox})
    for (const char* precision : {"fp32", "bf16", "fp16"})
      for (const char* optim : {"adamw", "adamw_8bit"})
        for (const int ranks : {2, 3, 4, 7}) check({model, precision, optim}, ranks, 1, ranks);
}

// What one rank finds not finite, all skip; losses and squares are summed from rank 0 on.
TEST(RankSessions, WhatARankFindsAllKnow) {
  constexpr int kSize = 3;
  Schedule schedule;
  schedule.add(Name("root"), -1, true);
  schedule.add(Name("step"), 0, false);
  const auto record = [&](Context& ctx, Comm& comm, auto&& set) {
    Tensor state;
    ctx.program(schedule, 0, [&] {
      state = ctx.tensor(Name("state"), step_state_shape(), DType::u8, Category::state);
    });
    set(state.view());
    ctx.program(schedule, 1, [&] { comm.sum_step(ctx, state); });
    return state;
  };
  Context plan(Place::plan, {});
  RankComm planned(kSize, false);
  record(plan, planned, [](const View&) {});
  schedule.pack();
  test::on_ranks(kSize, [&](int rank, Group& group) {
    const auto transport = group.transport();
    RankComm comm(*transport);
    Context ctx(Place::cpu, {});
    ctx.reserve(schedule);
    const Tensor state = record(ctx, comm, [&](const View& v) {
      StepState& s = *step_state(v) = StepState{};
      s.loss_sum = 1 + rank;
      s.loss_tokens = 10 * (1 + rank);
      s.grad_square_sum = 100 * (1 + rank);
      s.found_inf = rank == 1;
      s.first_bad_element = rank == 0 ? -1 : 50 - rank;
    });
    const StepState& s = *step_state(state.view());
    EXPECT_EQ(s.loss_sum, 6);
    EXPECT_EQ(s.loss_tokens, 60);
    EXPECT_EQ(s.grad_square_sum, 600);
    EXPECT_EQ(s.found_inf, 1);
    EXPECT_EQ(s.first_bad_element, 48);
    group.barrier("read");
  });
}

// Open MPI moves bytes alone: a rank of it has the bits of its piece that threads of one process have.
void check_mpi(MpiGroup& group, const Case& c) {
  const int ranks = group.size();
  const World world = [&](const Body& f) { f(group.rank(), group); };
  for (int zero = 0; zero <= 3; ++zero) {
    SCOPED_TRACE(std::string(c.model).substr(0, 24) + " " + c.precision + " " + c.optim +
                 ", zero " + std::to_string(zero));
    const int64_t windows = c.in_backward ? ranks : 2 * ranks - 1;
    const Result here = train(c, ranks, zero, 1, windows);
    const Result apart = train_in(world, Mover::messages, c, ranks, zero, 1, windows);
    EXPECT_TRUE(test::same_bits(apart.losses, here.losses));
    EXPECT_TRUE(test::same_bits(apart.norms, here.norms));
    EXPECT_FALSE(apart.weight_pieces.empty() || apart.state_pieces.empty());
    EXPECT_EQ(apart.state_pieces.size() < here.state_pieces.size(), zero > 0);
    for (const auto& [first, values] : apart.weight_pieces)
      EXPECT_TRUE(test::same_bits(values, here.weight_pieces.at(first))) << first;
    for (const auto& [at, bytes] : apart.state_pieces)
      EXPECT_TRUE(bytes == here.state_pieces.at(at)) << std::get<1>(at);
  }
}

TEST(MpiSessions, HaveTheBitsOfThoseThatShareMemory) {
  NEEDS_MPIRUN();
  for (const int size : {2, 3, 4})
    test::on_mpi(size, [](MpiGroup& group) {
      for (const char* precision : {"fp32", "bf16", "fp16"})
        for (const char* optim : {"adamw", "adamw_8bit"})
          check_mpi(group, {group.size() == 3 ? kLlama : kGpt2, precision, optim});
      Case c{kNeox, "bf16"};  // what is summed in 16 bits
      c.master = false;
      c.max_grad_norm = 0;
      c.in_backward = true;
      check_mpi(group, c);
    });
}

// Kernels, NCCL's bytes and the same sums: the bits are those of ranks that read each other's memory.
void check_nccl(const Case& c, int ranks, int64_t windows) {
  test::use_fake_nccl();
  for (int zero = 0; zero <= 3; ++zero) {
    SCOPED_TRACE(std::string(c.model).substr(0, 24) + " " + c.precision + " " + c.optim +
                 ", ranks " + std::to_string(ranks) + ", zero " + std::to_string(zero));
    const Result here = train(c, ranks, zero, 1, windows, 2);
    const Result apart = train_in([&](const Body& f) { test::on_ranks(ranks, f); }, Mover::nccl, c,
                                  ranks, zero, 1, windows, 2);
    expect_same(apart, here);
    EXPECT_TRUE(test::same_bits(apart.states, here.states));
    EXPECT_FALSE(here.losses.empty() || here.weights.empty() || here.states.empty());
  }
}

TEST(RankSessions, NcclHasTheBitsOfSharedMemory) {
  Case c{kGpt2};
  c.place = Place::emu;
  check_nccl(c, 2, 3);  // two micro-steps a window
  c.model = kLlama, c.precision = "bf16", c.optim = "adamw_8bit";
  check_nccl(c, 3, 3);
}

TEST(SlowRankSessions, NcclOfEveryPrecisionAndRankCount) {
  for (const char* precision : {"fp32", "bf16", "fp16"})
    for (const char* optim : {"adamw", "adamw_8bit"})
      for (const int ranks : {2, 3, 4}) {
        Case c{ranks == 3 ? kLlama : kGpt2, precision, optim};
        c.place = Place::emu;
        check_nccl(c, ranks, ranks + 1);
      }
}

// States, gradients and weights of all ranks together are little more than those of one.
TEST(RankSessions, PiecesAddUpToTheWhole) {
  const Case c{
      R"({"type": "gpt2", "vocab_size": 512, "n_positions": 64, "n_embd": 256, "n_layer": 2,
                   "n_head": 4})"};
  const Result one = train(c, 1, 0, 1, 1, 0);
  for (const int ranks : {2, 4}) {
    const Result r = train(c, ranks, 3, 1, ranks, 0);
    for (const char* what : {"weights", "gradients", "optimizer"})
      EXPECT_LT(static_cast<double>(r.kept.at(what) * ranks),
                1.02 * static_cast<double>(one.kept.at(what)))
          << what;
  }
}

}  // namespace
}  // namespace snug
