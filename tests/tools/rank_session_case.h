// Sessions of several ranks that train a small model: what they end with, whatever each keeps, wherever it rests
// and whoever moves it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
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
#include "tests/parallel/ranks.h"
#include "tests/tools/session_case.h"

namespace snug::test {

struct RankCase {
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
  bool in_turn = false;        // collectives
  StreamMode streams = StreamMode::immediate;
  bool strict = false;  // bytes that nobody may read or write tell, at random places
  // With each rank's host too: weights of blocks, gradients of blocks; and it updates.
  bool params_away = false, gradients_away = false, host_updates = false;
  bool late = false;  // which are one step late
};

inline constexpr const char* kGpt2 =
    R"({"type": "gpt2", "vocab_size": 97, "n_positions": 16, "n_embd": 36, "n_layer": 2, "n_head": 3,
        "n_inner": 76, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1})";
inline constexpr const char* kLlama =
    R"({"type": "llama", "vocab_size": 90, "hidden_size": 40, "intermediate_size": 72,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 16, "tie_word_embeddings": false})";
inline constexpr const char* kNeox =
    R"({"type": "gpt_neox", "vocab_size": 90, "hidden_size": 40, "intermediate_size": 72,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16})";

struct RankResult {
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
using RankBody = std::function<void(int rank, Group& group)>;
using RankWorld = std::function<void(const RankBody&)>;

inline void fill_rank_weights(Session& s) {
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

inline void add_own(Session& s, Kept& out) {
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

inline RankResult train_in(const RankWorld& world, Mover mover, const RankCase& c, int ranks,
                           int zero, int64_t micro, int64_t G, int64_t steps = 3) {
  const ModelSpec spec = resolve_model("", c.model).spec;
  Precision precision = parse_precision(c.precision);
  if (!c.master) precision.master = precision.compute;
  const Model model(spec, precision, {}, {}, ranks);
  RunOptions o;
  o.decisions.T = 12;
  o.decisions.micro_batch = micro;
  o.decisions.head_rows = 16;
  o.decisions.recompute = c.recompute;
  o.decisions.max_grad_norm = c.max_grad_norm;
  o.decisions.update_in_backward = c.in_backward;
  o.decisions.offload_optimizer = c.away;
  o.decisions.offload_params = c.params_away;
  o.decisions.offload_gradients = c.gradients_away;
  o.decisions.update_on_host = c.host_updates;
  o.decisions.delayed_update = c.late;
  o.decisions.loss_scaling.init_scale = 256;
  o.decisions.ranks = ranks;
  o.decisions.zero = zero;
  o.decisions.staged = mover != Mover::memory;
  o.decisions.in_turn = c.in_turn;
  o.decisions.eval_batch = 2;
  o.optimizer.name = c.optim;
  o.optimizer.weight_decay = 0.1;
  o.optimizer.learning_rate = 1e-2;
  if (c.kahan) {
    o.optimizer.state = StateForm::bf16;
    o.optimizer.args.emplace_back(kKahanArgument, 1.0);
  }
  o.settings.target = c.place;
  o.settings.streams = c.streams;
  o.settings.poison = c.strict;
  o.settings.guard_bytes = c.strict ? 256 : 0;
  o.shuffle = c.strict ? 5 : 0;
  const Schedule schedule = plan_schedule(model, o, {.seconds = 0});
  RankResult result;
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
    fill_rank_weights(s);
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
        s.micro(i == 0, (i + 1) * ranks * micro >= G);
      }
      s.update();
      EXPECT_EQ(s.state().found_inf, 0);
      EXPECT_EQ(s.state().loss_tokens, trained);
      ++s.state().updates;
      if (!tells) continue;
      result.losses.push_back(s.state().loss_sum / static_cast<double>(trained));
      result.norms.push_back(gradient_norm_of(s.state()));
    }
    if (c.late) s.apply_late();
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

inline RankResult train_ranks(const RankCase& c, int ranks, int zero, int64_t micro, int64_t G,
                              int64_t steps = 3) {
  return train_in([&](const RankBody& f) { on_ranks(ranks, f); }, Mover::memory, c, ranks, zero,
                  micro, G, steps);
}

inline void expect_same(const RankResult& a, const RankResult& b) {
  EXPECT_TRUE(same_bits(a.losses, b.losses));
  EXPECT_TRUE(same_bits(a.norms, b.norms));
  EXPECT_TRUE(same_bits(a.weights, b.weights));
  // Scales of pieces follow their codes, so what is read is in another order where pieces are.
  EXPECT_EQ(a.states.size(), b.states.size());
}

// Up to the order of sums.
inline void expect_close(const RankResult& a, const RankResult& b, bool wide) {
  for (size_t i = 0; i < b.losses.size(); ++i)
    EXPECT_NEAR(a.losses[i] / b.losses[i], 1, wide ? 1e-6 : 2e-3) << i;
  for (size_t i = 0; i < b.norms.size(); ++i)
    EXPECT_NEAR(a.norms[i] / b.norms[i], 1, wide ? 1e-5 : 2e-2) << i;
}

}  // namespace snug::test
