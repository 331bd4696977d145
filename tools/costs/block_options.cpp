#include "tools/costs/block_options.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "layers/models/recompute.h"

namespace snug {
namespace {

// The first op that copies to the host before op `end`; 0 if there is none.
size_t first_copy(const Program& p, size_t end) {
  size_t i = 0;
  while (i < end && p.ops[i].stream != kToHost) ++i;
  return i < end ? i : 0;
}

// The first op after compute's wait for the last copy to the device that was begun before op `end`.
size_t last_arrival(const Program& p, size_t end) {
  int32_t event = -1, op = -1;
  for (const SyncRecord& s : p.syncs) {
    if (s.kind == SyncRecord::Kind::record && s.stream == kToDevice &&
        s.op <= static_cast<int64_t>(end))
      event = s.event;
    if (s.kind == SyncRecord::Kind::wait && s.stream == kCompute && s.event == event) op = s.op;
  }
  return op >= 0 ? static_cast<size_t>(op) : p.ops.size();
}

// What a session of one block needs of decisions: weights and gradients stay on the device, and so
// do states unless the block is updated in its backward. Nothing of it lies beside another block.
Decisions of_a_block(Decisions d) {
  d.recompute = d.offload = {};
  d.offload_params = d.offload_gradients = false;
  d.offload_optimizer = d.offload_optimizer && d.update_in_backward;
  d.eval_batch = d.kv_length = d.save_ring = 0;
  d.save = false;
  d.in_turn = true;
  return d;
}

// A block in a session of the decisions, of which nothing but the block is recorded.
class BlockRecorder {
 public:
  // Of the block of a layer, and of that of another above it.
  BlockRecorder(const Model& model, const Decisions& d, const OptimizerConfig& optimizer,
                const Settings& settings, const CostModel& cost, int64_t layer, int64_t other = 1)
      : model_(model),
        layer_(layer),
        other_(other),
        d_(d),
        cost_(cost),
        session_(Place::plan, model, of_a_block(d), optimizer, settings) {
    session_.open({.block = true});
  }

  LayerOption record(const std::vector<SlotPolicy>& policies) {
    static const Name kX("x"), kGradient("dresidual");
    const Block& block = model_.block(layer_);
    const Dims dims{d_.micro_batch, d_.T, d_.rows_per_window};
    const Shape shape{dims.N(), model_.spec().C};
    const DType dtype = model_.precision().compute;
    Pass pass(block.body(), policies);
    size_t forward_end = 0, backward_begin = 0;
    int64_t out_bytes = 0;
    const Program& p = session_.record_block([&](Context& ctx, Runtime& rt) {
      Tensor x = ctx.tensor(kX, shape, dtype, Category::activations);
      Tensor out = block.forward(ctx, rt, pass, dims, PassMode::train, std::move(x));
      const Shape made = out.view().shape;
      out_bytes = out.view().bytes();
      forward_end = mark(ctx);
      out.reset();
      Tensor gradient = ctx.tensor(kGradient, made, dtype, Category::activations);
      backward_begin = mark(ctx);
      block.backward(ctx, rt, pass, std::move(gradient));
    });
    const auto tick = [&](size_t op) { return tick_of(p.ops[op]); };
    LayerOption option;
    option.saved = most_live_bytes(p, tick(forward_end), tick(forward_end)) -
                   round_up(out_bytes, kTensorAlignment);
    option.transient = std::max(most_live_bytes(p, 0, tick(forward_end)),
                                most_live_bytes(p, tick(backward_begin), p.ticks)) -
                       option.saved;
    for (size_t i = 0; i < p.ops.size(); ++i)
      if (i != forward_end && i != backward_begin && p.ops[i].stream == kCompute)
        option.compute += cost_.seconds(p.ops[i], dims.N());
    return option;
  }

  // Two layers run the same way, in the order of Model::backward.
  StackOption record_pair(const std::vector<SlotPolicy>& policies) {
    static const Name kX("x"), kGradient("dresidual");
    const Dims dims{d_.micro_batch, d_.T, d_.rows_per_window};
    const Shape shape{dims.N(), model_.spec().C};
    const DType dtype = model_.precision().compute;
    Offload offload(2, static_cast<int>(policies.size()));
    Pass below(model_.block(layer_).body(), policies, &offload, 0);
    Pass above(model_.block(other_).body(), policies, &offload, 1);
    size_t first_end = 0, forward_end = 0, settled = 0, fetching = 0, fetched = 0, asked = 0;
    size_t last_begin = 0;
    int64_t out_bytes = 0, dx_bytes = 0;
    const Program& p = session_.record_block([&](Context& ctx, Runtime& rt) {
      Tensor x = ctx.tensor(kX, shape, dtype, Category::activations);
      x = model_.block(layer_).forward(ctx, rt, below, dims, PassMode::train, std::move(x));
      out_bytes = round_up(x.view().bytes(), kTensorAlignment);
      first_end = mark(ctx);
      x = model_.block(other_).forward(ctx, rt, above, dims, PassMode::train, std::move(x));
      forward_end = mark(ctx);
      offload.settle();
      settled = mark(ctx);
      const Shape made = x.view().shape;
      x.reset();
      Tensor gradient = ctx.tensor(kGradient, made, dtype, Category::activations);
      dx_bytes = round_up(gradient.view().bytes(), kTensorAlignment);
      fetching = mark(ctx);
      above.fetch(ctx);
      fetched = mark(ctx);
      below.fetch(ctx);
      asked = mark(ctx);
      gradient = model_.block(other_).backward(ctx, rt, above, std::move(gradient));
      last_begin = mark(ctx);
      gradient = model_.block(layer_).backward(ctx, rt, below, std::move(gradient));
    });
    const auto tick = [&](size_t op) { return tick_of(p.ops[op]); };
    const auto live = [&](size_t op) { return most_live_bytes(p, tick(op), tick(op)); };
    StackOption o;
    o.saved = (live(settled) - out_bytes) / 2;
    o.forward = most_live_bytes(p, 0, tick(first_end));
    o.forward_after = most_live_bytes(p, tick(first_end), tick(forward_end)) - o.saved;
    o.leaving = live(first_end) - o.saved - out_bytes;
    o.coming = live(fetched) - live(fetching);
    o.backward = most_live_bytes(p, tick(last_begin), p.ticks);
    for (const TensorRecord& t : p.tensors)
      if (t.residence == Residence::host) o.host += round_up(t.bytes, kHostAlignment);
    o.host /= 2;
    record_sent(p, below, tick(first_end), tick(forward_end), dims, o);
    // Beyond them the link carries what updates in backward take: nothing of it is counted, so that
    // the seconds stay a bound from below.
    const size_t sent = first_copy(p, settled), arrived = last_arrival(p, asked);
    for (size_t i = 0; i < p.ops.size(); ++i) {
      const OpRecord& op = p.ops[i];
      if (i == first_end || i == forward_end || i == settled || i == fetching || i == fetched ||
          i == asked || i == last_begin)
        continue;
      if (i > asked && op.stream != kCompute) continue;
      const double seconds = cost_.seconds(op, dims.N());
      if (op.stream == kCompute && i < sent) o.before_sent += seconds;
      if (op.stream == kCompute && i >= arrived) o.after_arrival += seconds;
      if (op.stream == kToHost)
        o.to_host += seconds / 2;
      else if (op.stream == kToDevice)
        o.to_device += seconds / 2;
      else if (i < forward_end)
        o.forward_seconds += seconds / 2;
      else
        o.backward_seconds += seconds / 2;
    }
    // Of one of the two, and the halves of both: sums in another order.
    o.before_sent = std::min(o.before_sent, o.forward_seconds);
    o.after_arrival = std::min(o.after_arrival, o.backward_seconds);
    return o;
  }

 private:
  // What the second of two layers sends, and how what the first sent ends meanwhile.
  void record_sent(const Program& p, const Pass& pass, int64_t first, int64_t end, Dims dims,
                   StackOption& o) const {
    const Body& body = model_.block(layer_).body();
    struct Leaving {
      StackOption::Sent sent;
      int64_t begun = 0, over = 0;
    };
    std::vector<Leaving> list;
    for (int i = 0; i < body.slots(); ++i) {
      if (!pass.offloaded(i)) continue;
      const Name name = body.producer(i) < 0 ? Name("x") : body.slot(i).name;
      Leaving leaving{.sent = {.slot = i}};
      for (const TensorRecord& t : p.tensors) {
        if (!(t.name == name) || t.born > first || t.died <= first) continue;
        if (t.residence == Residence::host) {
          leaving.begun = t.born;
        } else {
          leaving.sent.bytes = round_up(t.bytes, kTensorAlignment);
          leaving.over = t.died;
        }
      }
      require(leaving.over > 0, "what is sent to be on its way until the next layer");
      for (const OpRecord& op : p.ops)
        if (op.stream == kCompute && tick_of(op) >= leaving.over && tick_of(op) < end)
          leaving.sent.seconds_left += cost_.seconds(op, dims.N());
      list.push_back(leaving);
    }
    std::sort(list.begin(), list.end(),
              [](const Leaving& a, const Leaving& b) { return a.begun < b.begun; });
    int64_t still = 0;
    for (const Leaving& l : list) {
      o.sent.push_back(l.sent);
      still += l.sent.bytes;
    }
    require(still == o.leaving, "what leaves to be what was sent");
    std::sort(list.begin(), list.end(),
              [](const Leaving& a, const Leaving& b) { return a.over < b.over; });
    int64_t from = first;
    for (const Leaving& l : list) {
      if (l.over > end) break;
      if (l.over > from)
        o.stretches.push_back({most_live_bytes(p, from, l.over - 1) - o.saved - still, -1});
      else
        o.stretches.push_back({0, -1});
      o.stretches.back().until = l.sent.slot;
      still -= l.sent.bytes;
      from = l.over;
    }
    o.stretches.push_back({most_live_bytes(p, from, end) - o.saved - still, -1});
  }

  // An op that is none: where in the record we are.
  static size_t mark(Context& ctx) {
    const Op op(ctx, "mark", {});
    return ctx.current()->ops.size() - 1;
  }

  const Model& model_;
  const int64_t layer_, other_;
  const Decisions& d_;
  const CostModel& cost_;
  Session session_;
};

}  // namespace

int64_t forward_behind(const StackOption& before, const StackOption& own) {
  int64_t still = 0, most = own.forward;
  for (const StackOption::Sent& s : before.sent) still += s.bytes;
  for (const StackOption::Stretch& stretch : own.stretches) {
    most = std::max(most, stretch.most + still);
    for (const StackOption::Sent& s : before.sent)
      if (s.slot == stretch.until) still -= s.bytes;
  }
  return most;
}

double seconds_after_sent(const StackOption& before, const StackOption& own) {
  if (before.sent.empty()) return 0;
  for (const StackOption::Sent& s : own.sent)
    if (s.slot == before.sent.back().slot) return std::min(s.seconds_left, own.forward_seconds);
  return 0;
}

int64_t tick_of(const OpRecord& op) {
  return op.time - 1;
}

int64_t most_live_bytes(const Program& program, int64_t first, int64_t last) {
  std::vector<std::pair<int64_t, int64_t>> events;
  events.reserve(2 * program.tensors.size());
  int64_t live = 0;
  for (const TensorRecord& t : program.tensors) {
    if (t.born > last || t.died <= first || t.residence != Residence::device) continue;
    const int64_t bytes = round_up(t.bytes, kTensorAlignment);
    if (t.born <= first)
      live += bytes;
    else
      events.emplace_back(t.born, bytes);
    if (t.died <= last) events.emplace_back(t.died, -bytes);
  }
  std::sort(events.begin(), events.end());  // an end before a birth at the same tick
  int64_t most = live;
  for (const auto& [time, bytes] : events) most = std::max(most, live += bytes);
  return most;
}

const std::vector<LayerWords>& presets() {
  static const std::vector<LayerWords> words = {"none", "norms", "norms+mlp", "mlp+attention+norms",
                                                "block"};
  return words;
}

int64_t ModelOptions::layers(size_t kind) const {
  return std::count(of_layer.begin(), of_layer.end(), static_cast<int>(kind));
}

LayerProblem ModelOptions::problem() const {
  LayerProblem p;
  for (const BlockOptions& kind : kinds) p.kinds.push_back(kind.options);
  p.layers = of_layer;
  return p;
}

int64_t ModelOptions::saved() const {
  int64_t bytes = 0;
  for (size_t k = 0; k < kinds.size(); ++k) bytes += layers(k) * kinds[k].options.back().saved;
  return bytes;
}

int64_t ModelOptions::saved(size_t preset) const {
  int64_t bytes = 0;
  for (size_t k = 0; k < kinds.size(); ++k) bytes += layers(k) * kinds[k].presets[preset].saved;
  return bytes;
}

namespace {

// Slots of rows of at most half the width of the model.
bool narrow(const Body& body, const std::vector<int>& slots, int64_t C) {
  for (const int slot : slots)
    if (body.slot(slot).shape({1, 1})[1] * 2 > C) return false;
  return !slots.empty();
}

bool before_scale(const Body& body, const std::vector<int>& slots) {
  return !slots.empty() && body.slot(slots.front()).name.view().ends_with("_unscaled");
}

// Of sets so far those that no other one beats in bytes and time, at most kMostSets of them, evenly by
// the bytes that they save; the first, which is empty, always.
void leave_best(std::vector<LayerOption>& all, std::vector<std::vector<SlotPolicy>>& ways) {
  std::vector<int> list = efficient_options(all);
  if (list.front() != 0) list.insert(list.begin(), 0);
  if (list.size() > kMostSets) {
    std::stable_sort(list.begin() + 1, list.end(), [&](int a, int b) {
      return all[static_cast<size_t>(a)].saved > all[static_cast<size_t>(b)].saved;
    });
    for (size_t i = 0; i < kMostSets; ++i) list[i] = list[i * (list.size() - 1) / (kMostSets - 1)];
    list.resize(kMostSets);
  }
  std::vector<LayerOption> options;
  std::vector<std::vector<SlotPolicy>> policies;
  for (const int i : list) {
    options.push_back(all[static_cast<size_t>(i)]);
    policies.push_back(std::move(ways[static_cast<size_t>(i)]));
  }
  all = std::move(options);
  ways = std::move(policies);
}

BlockOptions record_options_of(const Model& model, const Decisions& decisions,
                               const OptimizerConfig& optimizer, const Settings& settings,
                               const CostModel& cost, int64_t layer, size_t most_groups) {
  BlockRecorder recorder(model, decisions, optimizer, settings, cost, layer);
  const Body& body = model.block(layer).body();
  const Dims dims{decisions.micro_batch, decisions.T, decisions.rows_per_window};
  std::vector<std::vector<int>> groups;  // by stage: slots that come and go together
  for (size_t s = 0; s + 1 < body.stages().size(); ++s) {
    groups.emplace_back();
    for (const int slot : body.stages()[s].outputs)
      if (body.slot(slot).shape(dims).rank() > 1) groups.back().push_back(slot);
    // Of an adapter: too narrow to be worth twice as many ways; or what is scaled,
    // from which the next stage's is made for next to nothing. The preset block drops both too.
    if (narrow(body, groups.back(), model.spec().C) || before_scale(body, groups.back()))
      groups.pop_back();
  }
  std::vector<LayerOption> all;
  std::vector<std::vector<SlotPolicy>> ways;  // of all of them; few need a name
  BlockOptions kept;
  const auto add = [&](std::vector<SlotPolicy> policies) {
    ++kept.recorded;
    all.push_back(recorder.record(policies));
    ways.push_back(std::move(policies));
  };
  // The first pass assigns gradients; those that count add to them, as most micro-steps do.
  recorder.record(std::vector<SlotPolicy>(static_cast<size_t>(body.slots()), SlotPolicy::keep));
  add(std::vector<SlotPolicy>(static_cast<size_t>(body.slots()), SlotPolicy::keep));
  for (size_t g = 0; g < groups.size(); ++g) {
    if (g >= most_groups) leave_best(all, ways);
    const size_t before = all.size();
    for (size_t i = 0; i < before; ++i) {
      std::vector<SlotPolicy> policies = ways[i];
      for (const int slot : groups[g]) policies[static_cast<size_t>(slot)] = SlotPolicy::recompute;
      add(std::move(policies));
    }
  }
  const auto policies_of = [&](const LayerWords& name) {
    return parse_policies(name, {}, model)[static_cast<size_t>(layer)];
  };
  add(policies_of(presets().back()));
  std::vector<int> list = efficient_options(all);
  if (list.front() != 0) list.insert(list.begin(), 0);
  for (const int i : list) {
    kept.options.push_back(all[static_cast<size_t>(i)]);
    kept.names.push_back(recompute_text(ways[static_cast<size_t>(i)], body));
  }
  for (size_t i = 0; i < kPresets; ++i)
    kept.presets[i] = recorder.record(policies_of(presets()[i]));
  return kept;
}

// Whether two layers take the same bytes and seconds: of one kind, and the same is trained in them.
bool alike(const Model& model, int64_t a, int64_t b) {
  if (!(model.spec().kind(a) == model.spec().kind(b))) return false;
  const Body &x = model.block(a).body(), &y = model.block(b).body();
  if (x.stages().size() != y.stages().size() || x.slots() != y.slots()) return false;
  for (int s = 0; s < x.slots(); ++s)  // ranks of adapters
    if (x.slot(s).shape({1, 1}).elements() != y.slot(s).shape({1, 1}).elements()) return false;
  for (size_t s = 0; s < x.stages().size(); ++s)
    if (x.runs_backward(static_cast<int>(s)) != y.runs_backward(static_cast<int>(s))) return false;
  for (int s = 0; s < x.slots(); ++s)
    if (x.gradient_wanted(s) != y.gradient_wanted(s) ||
        x.backward_reader(s) != y.backward_reader(s))
      return false;
  return true;
}

}  // namespace

ModelOptions record_block_options(const Model& model, const Decisions& decisions,
                                  const OptimizerConfig& optimizer, const Settings& settings,
                                  const CostModel& cost, size_t most_groups) {
  ModelOptions options;
  options.below = model.first_backward();
  std::vector<int64_t> first;  // layer of each kind
  for (int64_t l = options.below; l < model.spec().L; ++l) {
    const auto same = std::find_if(first.begin(), first.end(),
                                   [&](int64_t other) { return alike(model, other, l); });
    options.of_layer.push_back(static_cast<int>(same - first.begin()));
    if (same != first.end()) continue;
    first.push_back(l);
    options.kinds.push_back(
        record_options_of(model, decisions, optimizer, settings, cost, l, most_groups));
  }
  return options;
}

namespace {

// Two layers of one kind, of the one that takes the fewest seconds of those that there are two of, or the
// first two; and the share of their seconds that no layer takes less of.
struct Pair {
  int64_t layer = 0, other = 1;
  double share = 1;
};
Pair quickest_pair(const ModelOptions& ways) {
  Pair pair{ways.below, ways.below + 1};
  if (ways.kinds.size() == 1) return pair;
  double least = INFINITY;
  for (size_t k = 0; k < ways.kinds.size(); ++k) {
    std::vector<int64_t> layers;
    for (size_t l = 0; l < ways.of_layer.size(); ++l)
      if (ways.of_layer[l] == static_cast<int>(k))
        layers.push_back(ways.below + static_cast<int64_t>(l));
    const double seconds = ways.kinds[k].presets.front().seconds();
    if (layers.size() < 2 || seconds >= least) continue;
    least = seconds;
    pair = {layers[0], layers[1]};
  }
  const auto kind = [&](int64_t layer) -> const BlockOptions& {
    return ways.kinds[static_cast<size_t>(ways.of_layer[static_cast<size_t>(layer - ways.below)])];
  };
  for (size_t i = 0; i < kPresets; ++i) {
    const double own =
        (kind(pair.layer).presets[i].seconds() + kind(pair.other).presets[i].seconds()) / 2;
    for (const BlockOptions& any : ways.kinds)
      pair.share = std::min(pair.share, any.presets[i].seconds() / own);
  }
  return pair;
}

bool beats(const StackOption& b, const StackOption& a) {
  return b.saved <= a.saved && b.forward <= a.forward && b.forward_after <= a.forward_after &&
         b.leaving <= a.leaving && b.backward <= a.backward && b.coming <= a.coming &&
         b.host <= a.host && b.forward_seconds <= a.forward_seconds &&
         b.backward_seconds <= a.backward_seconds && b.to_host <= a.to_host &&
         b.to_device <= a.to_device && b.before_sent <= a.before_sent &&
         b.after_arrival <= a.after_arrival;
}

// What may be offloaded under a way to recompute, in words: the slots of a row of numbers a token
// that it leaves, one by one, all, and all but the input.
std::vector<LayerWords> offload_words(const Model& model, const LayerWords& recompute, Dims dims) {
  const Body& body = model.block(0).body();
  const std::vector<SlotPolicy> policies = parse_policies(recompute, {}, model).front();
  std::vector<std::string> words;
  const int out = body.find_slot("out");
  for (int slot = 0; slot < body.slots(); ++slot) {
    const Shape shape = body.slot(slot).shape(dims);
    if (slot == out || shape.rank() != 2 || policies[static_cast<size_t>(slot)] != SlotPolicy::keep)
      continue;
    if (narrow(body, {slot}, model.spec().C)) continue;
    const std::string_view name = body.slot(slot).name.view();
    const std::string_view last = name.substr(name.rfind('.') + 1);
    words.emplace_back(last == "x" ? "inputs" : last);
  }
  std::vector<LayerWords> texts(words.begin(), words.end());
  const auto join = [&](size_t first) {
    std::string text;
    for (size_t i = first; i < words.size(); ++i) text += (text.empty() ? "" : "+") + words[i];
    return text;
  };
  if (words.size() > 1) texts.emplace_back(join(0));
  if (words.size() > 2) texts.emplace_back(join(1));
  return texts;
}

}  // namespace

bool layers_save_alike(const Model& model) {
  const Body& last = model.block(model.spec().L - 1).body();
  for (int64_t l = model.first_backward(); l < model.spec().L; ++l) {
    const Body& body = model.block(l).body();
    if (body.slots() != last.slots()) return false;
    for (int s = 0; s < last.slots(); ++s)
      if ((body.backward_reader(s) >= 0) != (last.backward_reader(s) >= 0)) return false;
  }
  return true;
}

StackOptions record_stack_options(const Model& model, const Decisions& decisions,
                                  const OptimizerConfig& optimizer, const Settings& settings,
                                  const CostModel& cost, const ModelOptions& ways) {
  require(model.backward_layers() >= 2, "a stack of two layers or more");
  const Pair pair = quickest_pair(ways);
  BlockRecorder recorder(model, decisions, optimizer, settings, cost, pair.layer, pair.other);
  // Names of any kind: they say what a layer of every kind can do.
  std::vector<LayerWords> recompute = ways.kinds.front().names;
  for (const BlockOptions& kind : ways.kinds)
    for (const LayerWords& name : kind.names)
      if (std::find(recompute.begin(), recompute.end(), name) == recompute.end())
        recompute.push_back(name);
  const auto record = [&](const LayerWords& again, const LayerWords& away) {
    StackOption o =
        recorder.record_pair(parse_policies(again, away, model)[static_cast<size_t>(pair.layer)]);
    o.recompute = again;
    o.offload = away;
    if (pair.share < 1) {
      for (double* seconds :
           {&o.forward_seconds, &o.backward_seconds, &o.before_sent, &o.after_arrival})
        *seconds *= pair.share;
      for (StackOption::Sent& sent : o.sent) sent.seconds_left *= pair.share;
    }
    return o;
  };
  record({}, {});  // gradients are assigned; those that count are added to
  const Dims dims{decisions.micro_batch, decisions.T, decisions.rows_per_window};
  StackOptions options;
  options.below = model.first_backward();
  std::vector<StackOption> all;
  for (const LayerWords& again : recompute) {
    options.kept.push_back(record(again, {}));
    for (const LayerWords& away : offload_words(model, again, dims))
      all.push_back(record(again, away));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    bool beaten = false;
    for (size_t j = 0; j < all.size() && !beaten; ++j)
      beaten = i != j && beats(all[j], all[i]) && (j < i || !beats(all[i], all[j]));
    if (!beaten) options.away.push_back(all[i]);
  }
  return options;
}

}  // namespace snug
