// What of memory a training run takes before its first step, and what is in it then; and what several
// ranks settle before that.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/nvml.h"
#include "layers/models/adapted_base.h"
#include "layers/models/adapter_files.h"
#include "tools/checkpoint/checkpoint.h"
#include "tools/checkpoint/pinning.h"
#include "tools/session/device_choice.h"
#include "tools/session/tell.h"
#include "tools/session/warm_up.h"
#include "tools/trainer/allocation_watch.h"
#include "tools/trainer/train_run.h"

namespace snug {

// The arena is not there yet. On a GPU the budget is of other memory.
PrepareRoom TrainRun::prepare_room() const {
  if (plan_.place == Place::cuda) return {};
  return {.budget = plan_.budget > 0 ? plan_.budget : plan_.engine_bytes + plan_.runtime_bytes,
          .set = plan_.reserve == 0};
}

void TrainRun::reserve() {
  auto factors = std::make_unique<FactorsOfBase>(*setup_.model, setup_.model_folder,
                                                 setup_.request.settings.threads);
  if (factors->count() > 0)
    tell(stdout,
         "Note: A and B of {} weights were made of them before memory is reserved; they rest in {} "
         "beside it until the first step.\n",
         factors->count(), human_bytes(factors->bytes()));
  malloc_trim(0);  // pages of the tokenisation that are free again
  const int64_t before = process_private_bytes() - factors->bytes();
  // A sanitizer's own memory, which is most of the process then, is not the run's.
  // Of a GPU the plan's runtime bytes are memory there.
  if (allocation_watch::available() && plan_.place != Place::cuda && before > plan_.runtime_bytes)
    fail(ErrorCode::out_of_memory,
         fmt::format("at most {} B of runtime memory (program, libraries, tokenizer)",
                     plan_.runtime_bytes),
         fmt::format("{} B before the arena is reserved", before),
         "report this with the tokenizer you use; fewer threads need less");
  if (plan_.place == Place::cuda) {
    const GpuRoom room = gpu_room(setup_.request.settings.gpu);
    pci_ = room.facts.pci;
    gpu_bytes_.context = room.context_bytes;
    gpu_bytes_.after_context = room.first_free_bytes;
    gpu_bytes_.before_arena = room.free_bytes;
  }
  Settings settings = setup_.request.settings;
  if (ranks_) settings.arena_file = ranks_->arena_file();
  session_ = std::make_unique<Session>(plan_.place, *setup_.model, plan_.decisions,
                                       setup_.request.optimizer, settings, &plan_.schedule,
                                       ranks_ ? ranks_->comm() : nullptr);
  session_->open();
  if (plan_.place == Place::cuda) prepare_gpu();
  clock_.lap("memory");
  if (resumed_) {
    load_checkpoint(*session_, *resumed_, setup_.model_folder, factors.get());
  } else if (!setup_.model_folder.empty()) {
    for (const std::string& warning :
         load_weights(session_->context(), *setup_.model, setup_.model_folder, session_->resting(),
                      static_cast<uint64_t>(config().seed), factors.get()))
      tell(stdout, "Warning: {}\n", warning);
    const std::vector<std::string> drawn = missing_weights(*setup_.model, setup_.model_folder);
    if (!drawn.empty())
      tell(stdout, "Note: {} has no {}: drawn anew.\n", setup_.model_folder,
           fmt::join(drawn, ", "));
    if (!config().adapter.empty())
      for (const std::string& warning :
           load_adapter(session_->context(), *setup_.model, config().adapter, session_->resting(),
                        setup_.base))
        tell(stdout, "Warning: {}\n", warning);
    session_->load();
    if (config().adapter.empty()) session_->start_adapters();
  } else {
    init_parameters(session_->context(), setup_.model->params(), session_->resting(),
                    static_cast<uint64_t>(config().seed));
    session_->load();
  }
  if (factors->count() > 0) {
    factors.reset();
    malloc_trim(0);
  }
  at_.loss_scale = session_->state().loss_scale;
  clock_.lap("weights");
}

// Whatever a GPU's memory is taken for is taken before the first step.
void TrainRun::prepare_gpu() {
  Context& c = session_->context();
  const auto free_now = [&] { return c.device().memory_info().available_bytes; };
  gpu_bytes_.after_arena = free_now();
  int most = 0;  // ops of a program, whose times step_recorder.h asks for
  for (int i = 0; i < plan_.schedule.size(); ++i)
    most = std::max(most, static_cast<int>(plan_.schedule.at(i).ops.size()));
  c.device().make_marks(1 + 2 * most);
  const bool tune = config().matmul_autotune && (!resumed_ || may_tune(*resumed_, config()));
  warm_up_gpu(*session_, plan_.computes_on, tune);
  gpu_bytes_.after_warm_up = free_now();
  const int64_t own = own_gpu_runtime();
  const std::string note = check_gpu_runtime(
      plan_.runtime_bytes, own >= 0 ? own : gpu_bytes_.runtime_bytes(plan_.engine_bytes),
      plan_.runtime_calibrated, own >= 0, device_text(plan_.place, setup_.request.settings.gpu));
  if (!note.empty()) tell(stdout, "Note: {}.\n", note);
  graphs_ = c.graphs();
}

// Bytes of the GPU that this process has beside the arena; -1: NVML does not say.
int64_t TrainRun::own_gpu_runtime() const {
  const int64_t bytes = process_gpu_bytes(pci_);
  return bytes < 0 ? -1 : bytes - session_->context().resident_bytes();
}

int64_t TrainRun::runtime_now() const {
  Context& c = session_->context();
  if (plan_.place == Place::cuda) {
    const int64_t own = own_gpu_runtime();
    return own >= 0 ? own : gpu_bytes_.runtime_bytes(plan_.engine_bytes);
  }
  // An arena that ranks share is no private memory.
  const int64_t arena = ranks_ && ranks_->arena_file() >= 0 ? 0 : c.resident_bytes();
  return process_private_bytes() - arena - c.host_resident_bytes();
}

// After a step of a run on a GPU.
void TrainRun::note_free() {
  ++own_steps_;
  if (plan_.place == Place::cuda)
    gpu_bytes_.note_step(own_steps_, session_->context().device().memory_info().available_bytes);
}

// What rank 0 found free, and the stage that it chose by it.
void TrainRun::agree_on_request() {
  PlanRequest& r = setup_.request;
  std::istringstream in(ranks_->from_lead(
      "the request", fmt::format("{} {} {} {} {} {} {}", r.budget, r.reserve, r.free_before,
                                 r.free_bytes, r.zero, r.offload_optimizer, r.use_host ? 1 : 0)));
  in >> r.budget >> r.reserve >> r.free_before >> r.free_bytes >> r.zero >> r.offload_optimizer >>
      r.use_host;
  if (r.zero == 3) r.packed_weights = WeightPacking::none;
}

// The checkpoint that rank 0 has looked at.
void TrainRun::follow_resume() {
  const std::string folder =
      ranks_->from_lead("the checkpoint", resumed_ ? resumed_->folder : std::string());
  if (!leads() && !folder.empty()) resumed_ = read_checkpoint(folder, true);
}

}  // namespace snug
