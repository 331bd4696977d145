#include "tools/trainer/offers.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/trainer/plan_search.h"

namespace snug {
namespace {

// A change to a request, in words; empty: there is nothing of the kind to change. `h` stands for
// the host's bytes of what is then planned.
struct Row {
  std::string (*change)(PlanRequest&);
  const char* effect;
};

bool states_can_move(const PlanRequest& r) {
  return r.offload_optimizer != "cpu" && (!make_optimizer(r.optimizer)->state_names().empty() ||
                                          r.model->precision().separate_master());
}

bool can_stream(const PlanRequest& r) {
  return r.packed_weights.value_or(WeightPacking::none) == WeightPacking::none;
}

// The key with what is allowed already and these: a list on the command line replaces the one of
// the file.
std::string allow_text(const PlanRequest& r, std::initializer_list<const char*> more) {
  std::vector<std::string> list = r.allow;
  for (const char* word : more)
    if (std::find(list.begin(), list.end(), word) == list.end()) list.emplace_back(word);
  return fmt::format("allow=[{}]", fmt::join(list, ","));
}

// The host is there for all it takes.
void open_host(PlanRequest& r) {
  for (std::string* where : {&r.offload_params, &r.offload_gradients})
    if (*where == "auto" && !r.use_host) *where = "none";
  r.use_host = true;
  r.host_budget = 0;
}

constexpr const char* kNone = "the same numbers";
constexpr const char* kOrder = "another order of sums";
constexpr const char* kRounded = "gradients rounded to bf16";
constexpr const char* kUnclipped = "gradients not clipped";
constexpr const char* kSamples = "other samples";

// Cheapest first. `host_memory={}` is filled in with what the plan takes.
const Row kRows[] = {
    {[](PlanRequest& r) -> std::string {
       if (r.packed_weights.value_or(WeightPacking::none) == WeightPacking::none) return "";
       r.packed_weights = WeightPacking::none;
       return "packed_weights=none";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       if (r.recompute == "auto") return "";
       r.recompute = "auto";
       return "recompute=auto";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       if (!r.save || save_ring_bytes(r) < 1 << 20) return "";
       r.save_buffer = 0;
       return "save_buffer=0";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       if (r.eval_batch <= 1) return "";
       r.eval_batch = 1;
       return "per_device_eval_batch_size=1";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       if (!states_can_move(r) || (r.use_host && r.offload_optimizer == "auto")) return "";
       r.offload_optimizer = "cpu";
       if (r.offload == "auto" && !r.use_host) r.offload = "none";
       open_host(r);
       return "offload_optimizer=cpu host_memory={}";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       if (r.offload != "none" && (r.use_host || r.offload != "auto")) return "";
       r.offload = "auto";
       if (r.offload_optimizer == "auto" && !r.use_host) r.offload_optimizer = "none";
       open_host(r);
       return "offload=auto host_memory={}";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       const bool slots = r.offload == "none" || (r.offload == "auto" && !r.use_host);
       if (!slots || !states_can_move(r)) return "";
       r.offload = r.offload_optimizer = "auto";
       open_host(r);
       return "offload=auto offload_optimizer=auto host_memory={}";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       const bool open = r.offload_params == "auto" && r.use_host;
       if (open || r.offload_params == "cpu" || !can_stream(r)) return "";
       const bool states = r.offload_optimizer == "none";
       r.offload_params = "cpu";
       if (states) r.offload_optimizer = "auto";
       open_host(r);
       return fmt::format("offload_params=cpu {}host_memory={{}}",
                          states ? "offload_optimizer=auto " : "");
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       const bool open = r.offload_gradients == "auto" && r.use_host;
       if (open || r.offload_gradients == "cpu" || r.update_in_backward.value_or(false)) return "";
       r.offload_gradients = "cpu";
       open_host(r);
       return "offload_gradients=cpu host_memory={}";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       if (!r.use_host || r.host_budget == 0) return "";
       open_host(r);
       return "host_memory={}";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       if (r.offload == "none" || r.offload == "auto") return "";
       r.offload = "none";
       return "offload=none";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       if (r.offload_optimizer != "cpu") return "";
       r.offload_optimizer = "none";
       return "offload_optimizer=none";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       if (r.offload_params != "cpu") return "";
       r.offload_params = "none";
       return "offload_params=none";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       if (r.offload_gradients != "cpu") return "";
       r.offload_gradients = "none";
       return "offload_gradients=none";
     },
     kNone},
    {[](PlanRequest& r) -> std::string {
       if (!r.bitwise || r.micro_batch > 0) return "";
       r.bitwise = false;
       return "bitwise=false";
     },
     kOrder},
    {[](PlanRequest& r) -> std::string {
       if (r.micro_batch <= 1 || r.pinned) return "";
       r.micro_batch = 1;
       return "per_device_train_batch_size=1";
     },
     kOrder},
    {[](PlanRequest& r) -> std::string {
       if (r.head_rows <= 64 || r.pinned) return "";
       r.head_rows = 64;
       return "head_rows=64";
     },
     kOrder},
    {[](PlanRequest& r) -> std::string {
       if (!r.pinned || (r.micro_batch <= 1 && r.head_rows <= 64)) return "";
       r.micro_batch = r.head_rows = 0;
       return allow_text(r, {"micro_batch", "head_rows"});
     },
     kOrder},
    {[](PlanRequest& r) -> std::string {
       const bool pinned = r.gradients.has_value();
       if (r.settings.target != Place::cpu) return "";  // has no kernels for them
       if (r.bitwise || (pinned ? *r.gradients != DType::f32 : r.bf16_gradients)) return "";
       r.gradients.reset();
       r.bf16_gradients = true;
       return pinned ? allow_text(r, {"gradients", "bf16_gradients"})
                     : allow_text(r, {"bf16_gradients"});
     },
     kRounded},
    // Without clipping backward may consume the gradients.
    {[](PlanRequest& r) -> std::string {
       if (r.max_grad_norm == 0) return "";
       r.max_grad_norm = 0;
       return "max_grad_norm=0";
     },
     kUnclipped},
    {[](PlanRequest& r) -> std::string {
       if (r.T <= 64 || r.pinned) return "";
       r.T /= 2;
       return fmt::format("max_length={}", r.T);
     },
     kSamples},
};

// The smallest that there is of a request, and whether the host has room for it.
Plan smallest(PlanRequest r) {
  r.budget = 1;
  PlanSearch search(r);
  return make_plan(r, search);
}

}  // namespace

std::vector<Offer> plan_offers(const PlanRequest& request, const Plan& refused) {
  std::vector<Offer> offers;
  // Of a plan that is followed nothing may change.
  if (request.global_batch <= 0 || !request.follow.path.empty()) return offers;
  const bool host = refused.minimum_bytes <= refused.budget || refused.budget == 0;
  for (const Row& row : kRows) {
    PlanRequest r = request;
    std::string keys = row.change(r);
    // Where the host's memory does not suffice, how much would is said already.
    if (keys.empty() || (host && keys.find("host_memory") != std::string::npos)) continue;
    // Graphs that were asked for leave nothing to the host, so both keys change.
    if (r.graphs_required && keys.find("host_memory") != std::string::npos)
      keys = "cuda_graphs=auto " + keys;
    const Plan p = smallest(r);
    Offer offer;
    offer.effect = row.effect;
    offer.minimum_bytes = p.minimum_bytes;
    offer.host_bytes = p.host_bytes;
    offer.enough = host_fits(p) && (refused.budget == 0 || p.minimum_bytes <= refused.budget);
    // Less than a hundredth helps nobody unless it is enough.
    const int64_t less = refused.minimum_bytes - p.minimum_bytes;
    const bool helps =
        host ? offer.enough : less > 0 && (offer.enough || less >= refused.minimum_bytes / 100);
    if (!host_fits(p) || !helps) continue;
    offer.keys = fmt::format(fmt::runtime(keys), p.host_bytes);
    offers.push_back(std::move(offer));
  }
  std::stable_sort(offers.begin(), offers.end(),
                   [](const Offer& a, const Offer& b) { return a.enough > b.enough; });
  return offers;
}

std::string offers_text(const Plan& p) {
  std::string text;
  for (const Offer& o : p.offers)
    text += fmt::format("{} (then memory of {} B is enough{}{}), or ", o.keys, o.minimum_bytes,
                        o.enough || p.budget == 0 ? "" : ", still more than is given",
                        o.effect == kNone ? std::string() : "; " + o.effect);
  return text;
}

}  // namespace snug
