#include "tools/planner/offers.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <variant>

#include "engine/core/units.h"
#include "tools/config/keys.h"
#include "tools/planner/residence.h"

namespace snug {
namespace {

bool states_can_move(const PlanRequest& r) {
  return r.offload_optimizer != "cpu" && r.offload_optimizer != "disk" &&
         (!make_optimizer(r.optimizer)->state_names().empty() ||
          r.model->precision().separate_master());
}

bool can_stream(const PlanRequest& r) {
  return r.packed_weights.value_or(WeightPacking::none) == WeightPacking::none;
}

// With these permissions too.
std::string allow(PlanRequest& r, std::initializer_list<const char*> more) {
  const std::string text = allow_text(r.allow, more);
  for (const char* word : more)
    if (std::find(r.allow.begin(), r.allow.end(), word) == r.allow.end())
      r.allow.emplace_back(word);
  return text;
}

struct HostKey {
  const char* name;
  std::variant<std::string PlanRequest::*, LayerWords PlanRequest::*> value;
};
constexpr HostKey kSlots{"offload", &PlanRequest::offload};
constexpr HostKey kStates{"offload_optimizer", &PlanRequest::offload_optimizer};
constexpr HostKey kParams{"offload_params", &PlanRequest::offload_params};
constexpr HostKey kGradients{"offload_gradients", &PlanRequest::offload_gradients};

// The host is there for all it takes, but not for `closed`: host_memory would open what is `auto`,
// so that the keys say it.
std::string open_host(PlanRequest& r, std::initializer_list<HostKey> closed) {
  std::string text;
  const auto close = [&](const char* name, auto& value) {
    if (r.use_host || value != "auto") return;
    value = "none";
    text += fmt::format(" {}=none", name);
  };
  for (const HostKey& key : closed)
    std::visit([&](auto field) { close(key.name, r.*field); }, key.value);
  if (r.offload_update == "auto" && !r.use_host) {
    r.offload_update = "gpu";
    text += " offload_update=gpu";
  }
  r.use_host = true;
  r.host_budget = 0;
  return text + " host_memory={}";
}

// Leaves the micro-batch to the planner: no key fixes it, and the global batch stays what it was.
std::string open_micro_batch(PlanRequest& r) {
  std::string text;
  if (r.keys.product()) {
    text += fmt::format(" global_batch_size={}", r.global_batch);
    r.keys.global_size = r.global_batch;
  }
  if (r.keys.micro > 0) text += " per_device_train_batch_size=null";
  if (r.keys.accumulation > 0) text += " gradient_accumulation_steps=null";
  r.micro_batch = r.keys.micro = r.keys.accumulation = 0;
  return text;
}

// One sequence at a time, of the same global batch.
std::string one_at_a_time(PlanRequest& r) {
  std::string text = "per_device_train_batch_size=1";
  if (r.keys.accumulation > 0) {
    text += fmt::format(" gradient_accumulation_steps={}", rank_batch(r));
    r.keys.accumulation = rank_batch(r);
  }
  r.micro_batch = r.keys.micro = 1;
  return text;
}

// Half the length in the same micro-batches; a global batch in tokens has more of them. Empty: it
// cannot be cut so.
std::string half_length(PlanRequest& r) {
  const int64_t front = r.model->front().count;  // virtual tokens, of which max_length counts none
  const int64_t T = (r.T - front) / 2, tokens = r.keys.global_tokens;
  std::string text = fmt::format("max_length={}", T);
  if (tokens > 0) {
    const int64_t G = tokens / T;
    if (tokens % T != 0 || (r.micro_batch > 0 && G % r.micro_batch != 0)) return "";
    if (r.keys.global_size > 0) text += fmt::format(" global_batch_size={}", G);
    if (r.keys.accumulation > 0) {
      text += fmt::format(" gradient_accumulation_steps={}", G / r.micro_batch);
      r.keys.accumulation = G / r.micro_batch;
    }
    r.global_batch = G;
    if (r.keys.global_size > 0) r.keys.global_size = G;
  }
  r.T = front + T;
  return text;
}

// What becomes of the numbers, the least first.
enum class Effect { none, order, rounded, weights, unclipped, samples };
constexpr Effect kEffects[] = {Effect::none,    Effect::order,     Effect::rounded,
                               Effect::weights, Effect::unclipped, Effect::samples};
constexpr const char* kTexts[] = {"the same numbers",          "another order of sums",
                                  "gradients rounded to bf16", "weights rounded to bf16 at random",
                                  "gradients not clipped",     "other samples"};
const char* text_of(Effect e) {
  return kTexts[static_cast<size_t>(e)];
}

// A change to a request, in words; empty: there is nothing of the kind to change. `host_memory={}`
// stands for the host's bytes of what is then planned.
struct Row {
  std::string (*change)(PlanRequest&);
  Effect effect;
  bool back = false;  // takes back what was asked for: never beside others
};

// Cheapest first. `host_memory={}` is filled in with what the plan takes.
const Row kRows[] = {
    {[](PlanRequest& r) -> std::string {
       if (r.packed_weights.value_or(WeightPacking::none) == WeightPacking::none) return "";
       r.packed_weights = WeightPacking::none;
       return "packed_weights=none";
     },
     Effect::none},
    {[](PlanRequest& r) -> std::string {
       if (r.recompute.open()) return "";
       r.recompute = "auto";
       return "recompute=auto";
     },
     Effect::none},
    {[](PlanRequest& r) -> std::string {
       if (!r.save || save_ring_bytes(r) < 1 << 20) return "";
       r.save_buffer = 0;
       return "save_buffer=0";
     },
     Effect::none},
    {[](PlanRequest& r) -> std::string {
       if (r.eval_batch <= 1) return "";
       r.eval_batch = 1;
       return "per_device_eval_batch_size=1";
     },
     Effect::none},
    {[](PlanRequest& r) -> std::string {
       if (!states_can_move(r) || ((r.use_host || r.paged_states) && r.offload_optimizer == "auto"))
         return "";
       r.offload_optimizer = "cpu";
       return "offload_optimizer=cpu" + open_host(r, {kSlots, kParams, kGradients});
     },
     Effect::none},
    {[](PlanRequest& r) -> std::string {
       if (!r.offload.none() && (r.use_host || !r.offload.open())) return "";
       r.offload = "auto";
       return "offload=auto" + open_host(r, {kStates, kParams, kGradients});
     },
     Effect::none},
    {[](PlanRequest& r) -> std::string {
       const bool slots = r.offload.none() || (r.offload.open() && !r.use_host);
       if (!slots || !states_can_move(r)) return "";
       r.offload = "auto";
       r.offload_optimizer = "auto";
       return "offload=auto offload_optimizer=auto" + open_host(r, {kParams, kGradients});
     },
     Effect::none},
    {[](PlanRequest& r) -> std::string {
       const bool open = r.offload_params == "auto" && r.use_host;
       if (open || r.offload_params == "cpu" || !can_stream(r) || states_on_disk(r)) return "";
       const bool states = r.offload_optimizer == "none";
       r.offload_params = "cpu";
       if (states) r.offload_optimizer = "auto";
       return (states ? "offload_params=cpu offload_optimizer=auto" : "offload_params=cpu") +
              open_host(r, {kGradients});
     },
     Effect::none},
    {[](PlanRequest& r) -> std::string {
       const bool open = r.offload_gradients == "auto" && r.use_host;
       if (open || r.offload_gradients == "cpu" || r.update_in_backward.value_or(false)) return "";
       r.offload_gradients = "cpu";
       return "offload_gradients=cpu" + open_host(r, {kParams});
     },
     Effect::none},
    {[](PlanRequest& r) -> std::string {
       if (!r.use_host || r.host_budget == 0) return "";
       return open_host(r, {}).substr(1);
     },
     Effect::none},
    {[](PlanRequest& r) -> std::string {
       if (r.offload.none() || r.offload.open()) return "";
       r.offload = "none";
       return "offload=none";
     },
     Effect::none, true},
    {[](PlanRequest& r) -> std::string {
       if (r.offload_update != "cpu") return "";
       r.offload_update = "gpu";
       r.offload_optimizer = r.offload_gradients = "cpu";
       return "offload_update=gpu offload_optimizer=cpu offload_gradients=cpu";
     },
     Effect::none, true},
    {[](PlanRequest& r) -> std::string {
       const bool away = r.offload_optimizer == "cpu" || r.offload_optimizer == "disk";
       if (!away || r.offload_update == "cpu") return "";
       r.offload_optimizer = "none";
       return "offload_optimizer=none";
     },
     Effect::none, true},
    {[](PlanRequest& r) -> std::string {
       if (r.offload_params != "cpu") return "";
       r.offload_params = "none";
       return "offload_params=none";
     },
     Effect::none, true},
    {[](PlanRequest& r) -> std::string {
       if (r.offload_gradients != "cpu" || r.offload_update == "cpu") return "";
       r.offload_gradients = "none";
       return "offload_gradients=none";
     },
     Effect::none, true},
    {[](PlanRequest& r) -> std::string {
       if (!r.bitwise || (r.micro_batch > 0 && r.head_rows > 0 && !r.pinned)) return "";
       r.bitwise = false;
       return "bitwise=false";
     },
     Effect::order},
    {[](PlanRequest& r) -> std::string {
       if (r.micro_batch <= 1 || r.pinned) return "";
       return one_at_a_time(r);
     },
     Effect::order},
    {[](PlanRequest& r) -> std::string {
       if (r.head_rows <= 64 || r.pinned) return "";
       r.head_rows = r.keys.head_rows = 64;
       return "head_rows=64";
     },
     Effect::order},
    {[](PlanRequest& r) -> std::string {
       // Permissions are refused beside it.
       if (r.bitwise || !r.pinned || (r.micro_batch <= 1 && r.head_rows <= 64)) return "";
       std::string text = allow(r, {"micro_batch", "head_rows"}) + open_micro_batch(r);
       if (r.keys.head_rows > 0) text += " head_rows=null";
       r.head_rows = r.keys.head_rows = 0;
       return text;
     },
     Effect::order},
    {[](PlanRequest& r) -> std::string {
       const bool pinned = r.gradients.has_value();
       if (r.settings.target != Place::cpu) return "";  // has no kernels for them
       if (r.bitwise || (pinned ? *r.gradients != DType::f32 : r.bf16_gradients)) return "";
       r.gradients.reset();
       r.bf16_gradients = true;
       return pinned ? allow(r, {"gradients", "bf16_gradients"}) : allow(r, {"bf16_gradients"});
     },
     Effect::rounded},
    // A checkpoint has a master or none.
    {[](PlanRequest& r) -> std::string {
       if (r.bitwise || r.pinned || r.ranks > 1 || !r.without_master) return "";
       r.model = r.without_master();
       r.without_master = nullptr;
       return allow(r, {"no_master"});
     },
     Effect::weights},
    // Ranks that share more than they were told to.
    {[](PlanRequest& r) -> std::string {
       if (r.ranks == 1 || r.zero >= 3 || r.offload_embedding == "cpu") return "";
       r.zero = 3;
       r.packed_weights = WeightPacking::none;
       return "zero=3";
     },
     Effect::order},
    // Without clipping backward may consume the gradients.
    {[](PlanRequest& r) -> std::string {
       if (r.max_grad_norm == 0) return "";
       r.max_grad_norm = 0;
       return "max_grad_norm=0";
     },
     Effect::unclipped},
    // And without micro-steps that follow.
    {[](PlanRequest& r) -> std::string {
       const bool follow = r.ranks == 1 && r.micro_batch > 0 && r.micro_batch < r.global_batch;
       if (!follow || r.pinned || r.max_grad_norm > 0 || r.model->precision().loss_scaling())
         return "";
       if (r.keys.micro <= 0 && r.keys.accumulation <= 0) return "";
       return open_micro_batch(r).substr(1);
     },
     Effect::order},
    {[](PlanRequest& r) -> std::string {
       if (r.T <= 64 || r.pinned) return "";
       return half_length(r);
     },
     Effect::samples},
};

// Engine and host take from what is free of this machine. A described one has its own.
bool one_ram(const Plan& p) {
  return p.place != Place::cuda && p.free_bytes > 0;
}

// Some of the rows at once, and the plan that comes of them.
class Combination {
 public:
  Combination(const PlanRequest& request, std::shared_ptr<Recordings> recordings)
      : request_(request), recordings_(std::move(recordings)) {}

  // Of those of `rows` that change anything; a later one says the last word of a key. False: none
  // does.
  bool make(const std::vector<size_t>& rows) {
    PlanRequest r = request_;
    std::vector<std::pair<std::string, std::string>> keys;
    used_.clear();
    effects_.clear();
    for (const size_t row : rows) {
      const std::string text = kRows[row].change(r);
      if (text.empty()) continue;
      used_.push_back(row);
      effects_.insert(kRows[row].effect);
      for (size_t at = 0; at < text.size();) {
        const size_t space = std::min(text.find(' ', at), text.size());
        const size_t equals = text.find('=', at);
        const std::string key = text.substr(at, equals - at);
        const auto same = [&](const auto& k) { return k.first == key; };
        std::erase_if(keys, same);
        keys.emplace_back(key, text.substr(equals + 1, space - equals - 1));
        at = space + 1;
      }
    }
    if (used_.empty()) return false;
    // Graphs that were asked for leave nothing to the host, so both keys change.
    const auto is_host = [](const auto& k) { return k.first == "host_memory"; };
    if (r.graphs_required && std::any_of(keys.begin(), keys.end(), is_host))
      keys.insert(keys.begin(), {"cuda_graphs", "auto"});
    keys_ = std::move(keys);
    changed_ = std::move(r);
    PlanSearch search(changed_, recordings());
    least_ = search.least();
    runtime_ = runtime_bytes_of(changed_);
    // By bounds of both arenas: what no bound allows is not packed.
    int64_t bytes = kNoLimit;
    for (const PlanSearch::Choice& c : least_)
      if (fits(c.engine_bytes, c.host_bytes)) bytes = std::min(bytes, c.engine_bytes);
    bound_ = bytes < kNoLimit ? bytes + runtime_ : kNoLimit;
    packed_.reset();
    return true;
  }
  // No less than this is enough; kNoLimit: the host has no room.
  int64_t bound() const { return bound_; }
  bool asks_host(size_t row) const {
    PlanRequest r = request_;
    return kRows[row].change(r).find("host_memory") != std::string::npos;
  }
  bool asks_slots(size_t row) const {
    PlanRequest r = request_;
    return !kRows[row].change(r).empty() && !(r.offload == request_.offload);
  }
  const std::vector<size_t>& used() const { return used_; }
  // As packed; kNoLimit: the host has no room.
  int64_t minimum() {
    pack();
    return fits(packed_->engine, packed_->host) ? packed_->engine + runtime_ : kNoLimit;
  }
  // Where both arenas are RAM of this machine, what only moves from one to the other is no help.
  bool saves(const Plan& refused) {
    pack();
    return packed_->host == 0 || !one_ram(refused) ||
           packed_->engine + runtime_ + packed_->host < refused.minimum_bytes + refused.host_bytes;
  }
  Offer offer(bool enough) {
    pack();
    std::string text;
    for (const auto& [key, value] : keys_)
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", key,
                          value == "{}" ? std::to_string(packed_->host) : value);
    std::vector<const char*> texts;
    for (const Effect e : effects_)
      if (e != Effect::none || effects_.size() == 1) texts.push_back(text_of(e));
    return {text, fmt::format("{}", fmt::join(texts, ", ")), packed_->engine + runtime_,
            packed_->host, enough};
  }

 private:
  // What was recorded of one model is nothing to another.
  const std::shared_ptr<Recordings>& recordings() const {
    return changed_.model == request_.model ? recordings_ : of_other_model_;
  }
  bool fits(int64_t engine, int64_t host) const {
    Plan p;
    p.place = changed_.settings.target;
    p.host_budget = changed_.host_budget;
    p.free_bytes = changed_.free_bytes;
    p.engine_bytes = engine;
    p.host_bytes = host;
    return host_fits(p);
  }
  // The smallest that the host has room for, as make_plan finds it.
  void pack() {
    if (packed_) return;
    PlanSearch search(changed_, recordings());
    for (const PlanSearch::Choice& c : least_) {
      const bool good = packed_ && fits(packed_->engine, packed_->host);
      if (good && c.engine_bytes >= packed_->engine) break;
      if (good && search.packed_at_least(c.decisions) >= packed_->engine) continue;
      const Recordings::Packed next = search.packed(c.decisions);
      const bool better = fits(next.engine, next.host);
      if (!packed_ || (better && !good) || (better == good && next.engine < packed_->engine))
        packed_ = next;
    }
  }

  const PlanRequest& request_;
  std::shared_ptr<Recordings> recordings_, of_other_model_ = std::make_shared<Recordings>();
  std::vector<size_t> used_;
  std::set<Effect> effects_;
  std::vector<std::pair<std::string, std::string>> keys_;
  PlanRequest changed_;
  std::vector<PlanSearch::Choice> least_;
  int64_t runtime_ = 0, bound_ = 0;
  std::optional<Recordings::Packed> packed_;
};

// The cheapest of several rows together: where no row that changes the numbers as little is enough,
// all of those at once, less what is not needed. If nothing is, what comes nearest of them.
std::optional<Offer> offer_together(Combination& rows, const std::vector<size_t>& single, bool host,
                                    size_t cheapest, const Plan& refused) {
  int64_t target = refused.budget == 0 ? kNoLimit - 1 : refused.budget;
  const auto good = [&](const std::vector<size_t>& list) {
    return rows.make(list) && rows.bound() <= target && rows.minimum() <= target &&
           rows.saves(refused);
  };
  const auto up_to = [&](Effect most, bool hosts) {
    // Where the host is what is short, none that takes more of it.
    std::vector<size_t> list;
    for (const size_t row : single)
      if (kRows[row].effect <= most && ((hosts && !host) || !rows.asks_host(row)))
        list.push_back(row);
    return list;
  };
  std::vector<size_t> all;
  for (const Effect most : kEffects) {
    if (static_cast<size_t>(most) >= cheapest) break;
    for (const bool hosts : {true, false})
      if (all.empty() && !(hosts && (host || one_ram(refused))) && good(up_to(most, hosts)))
        all = rows.used();
  }
  if (all.empty()) {
    // Other samples are the user's to choose.
    if (host || cheapest <= static_cast<size_t>(Effect::samples) ||
        !rows.make(up_to(Effect::unclipped, !one_ram(refused))) || rows.minimum() >= kNoLimit)
      return std::nullopt;
    all = rows.used();
    target = rows.minimum() + rows.minimum() / 100;
  }
  for (size_t i = all.size(); i-- > 0;) {
    std::vector<size_t> fewer = all;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (!fewer.empty() && good(fewer)) all = rows.used();
    i = std::min(i, all.size());
  }
  if (all.size() < 2 || !good(all)) return std::nullopt;
  if (!host && rows.minimum() >= refused.minimum_bytes) return std::nullopt;
  return rows.offer(refused.budget == 0 || rows.minimum() <= refused.budget);
}

}  // namespace

std::vector<Offer> plan_offers(const PlanRequest& request, const Plan& refused,
                               const std::shared_ptr<Recordings>& recordings) {
  std::vector<Offer> offers;
  // Of a plan that is followed nothing may change.
  if (request.global_batch <= 0 || !request.follow.path.empty()) return offers;
  const bool host = refused.minimum_bytes <= refused.budget || refused.budget == 0;
  Combination rows(request, recordings);
  const int64_t budget = refused.budget == 0 ? kNoLimit - 1 : refused.budget;
  const auto enough = [&] { return rows.bound() <= budget && rows.minimum() <= budget; };
  auto cheapest = static_cast<size_t>(Effect::samples) + 1;  // of what is enough alone
  std::vector<size_t> single;                                // that may stand beside others
  for (size_t row = 0; row < std::size(kRows); ++row) {
    // Slots of ranks stay.
    if (request.ranks > 1 && rows.asks_slots(row)) continue;
    if (!kRows[row].back) single.push_back(row);
    // Where the host's memory does not suffice, how much would is said already.
    if ((host && rows.asks_host(row)) || !rows.make({row}) || rows.bound() >= kNoLimit) continue;
    // Less than a hundredth helps nobody unless it is enough.
    const auto less = [&](int64_t bytes) { return refused.minimum_bytes - bytes; };
    const auto helps = [&](int64_t bytes) {
      return less(bytes) > 0 && (bytes <= budget || less(bytes) >= refused.minimum_bytes / 100);
    };
    if (host ? !enough() : !helps(rows.bound()) || !helps(rows.minimum())) continue;
    if (!rows.saves(refused)) continue;
    offers.push_back(rows.offer(enough()));
    if (enough()) cheapest = std::min(cheapest, static_cast<size_t>(kRows[row].effect));
  }
  if (auto together = offer_together(rows, single, host, cheapest, refused))
    offers.push_back(std::move(*together));
  std::stable_sort(offers.begin(), offers.end(),
                   [](const Offer& a, const Offer& b) { return a.enough > b.enough; });
  return offers;
}

std::string offers_text(const Plan& p) {
  const auto lines = [&](bool enough) {
    std::string text;
    for (const Offer& o : p.offers) {
      if (o.enough != enough) continue;
      text += fmt::format("\n           {} (then memory of {} B, {}, is enough", o.keys,
                          o.minimum_bytes, human_bytes(o.minimum_bytes));
      if (o.host_bytes > 0 && one_ram(p))
        text += fmt::format("; both are RAM here: {} B, {}", o.minimum_bytes + o.host_bytes,
                            human_bytes(o.minimum_bytes + o.host_bytes));
      if (o.effect != text_of(Effect::none)) text += "; " + o.effect;
      text += ")";
    }
    return text;
  };
  std::string text;
  if (const std::string enough = lines(true); !enough.empty())
    text += (p.budget > 0 ? "with the memory that is given:" : "one of these:") + enough +
            "\n         or ";
  if (const std::string near = lines(false); !near.empty())
    text += "what comes nearer, but takes more than is given:" + near + "\n         or ";
  return text + p.advice;
}

}  // namespace snug
