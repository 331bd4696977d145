// From the configuration's keys to the learning-rate schedule.
#pragma once

#include "optim/schedule.h"
#include "tools/config/run_config.h"

namespace snug {

// Steps of the schedule where the clock alone (max_time) bounds the run: the part of the time that
// is over gives the step.
constexpr int64_t kClockSteps = 1000;
// True for such a run.
bool clock_alone(const RunConfig& config);

// In place of a count of steps: at the end of every epoch.
inline constexpr int64_t kEachEpoch = -1;

// Steps of a run over `samples` in batches of `global_batch`: what max_steps and num_train_epochs
// allow, whichever is less, and at least 1; 0: neither is set, and the clock alone bounds the run.
int64_t total_steps(const RunConfig& config, int64_t samples, int64_t global_batch);

// The step of the schedule after `updates` of them, or where the clock alone bounds the run
// (`total_steps` 0) after `elapsed` seconds.
int64_t schedule_step(const RunConfig& config, int64_t total_steps, int64_t updates,
                      double elapsed);

// The schedule of a run of `total_steps` optimizer steps. min_lr turns cosine into
// cosine_with_min_lr. Throws usage where the warm-up and the last phase of warmup_stable_decay are
// longer than the run.
ScheduleConfig schedule_config(const RunConfig& config, int64_t total_steps);

// What is worth a warning before a run of `total_steps` (0: the clock bounds it): a rate of 0 in
// all of them, or a warm-up that does not end. Empty: neither.
std::string idle_rates(const RunConfig& config, int64_t total_steps);

}  // namespace snug
