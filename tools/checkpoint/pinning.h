// What a checkpoint pins because it changes numbers, and what a resume does about a difference:
// pinned keys are refused unless a permission unpins them; what may change (threads,
// hyperparameters) is said.
#pragma once

#include <string>

#include "tools/checkpoint/checkpoint.h"
#include "tools/setup/run_data.h"
#include "tools/setup/setup.h"

namespace snug {

// What this run pins. Before planning the decisions, and before reading the data the data, are
// those of default objects.
Pinned make_pinned(const RunSetup& setup, const Decisions& decisions, const RunData& data,
                   const std::string& data_fingerprint);

// XXH64 of the tokens the samples are cut from, whatever the width they are stored with: all of
// them up to 2^24 (64 MiB as int32), above that 64 evenly spaced pieces of 2^18 and the sizes.
std::string data_fingerprint(const WindowDataset& data, bool documents = false);

// The device of the checkpoint's run, as what computed its attention says.
Place ran_on(const Pinned& pinned);
// Takes over the decisions of the checkpoint. Throws usage naming the first pinned key that is not
// as it was.
void apply_pins(const Checkpoint& checkpoint, RunSetup& setup);
// What takes memory and is not the planner's to choose, in words; empty: these permissions unpin
// it.
std::string pinned_text(const Checkpoint& checkpoint, const std::vector<std::string>& allow);
// The position in the data means something in the same data only. Throws usage.
void check_data(const Checkpoint& checkpoint, const Pinned& now);

// Keys of the optimizer and its schedule, as text. They may change at a resume.
Hyperparameters hyperparameters(const RunConfig& config, int64_t total_steps);
// What of them is not as it was, in words ("with learning_rate 0.02 instead of 0.01"), also what
// only one of the two has. What older checkpoints did not name, of a schedule that is still the
// same, is no change.
std::vector<std::string> changes(const Hyperparameters& before, const Hyperparameters& now);
// How the rate goes on at a resume if its schedule or base changed so that it jumps, by a hundredth
// or more, in words with both numbers; empty: it does not, or there is no step before or after.
std::string rate_change(const Checkpoint& checkpoint, const RunConfig& now, int64_t total_steps);
// Prints a line for each.
void note_changes(const Checkpoint& checkpoint, const Hyperparameters& now);

// On a GPU the model of it and its libraries are pinned, and the algorithms that were measured for
// products, which `now` takes over: throws usage on others, and where autotuning is asked for that
// was not asked for before, unless allow: [kernels] is given.
void check_computes_on(const Checkpoint& checkpoint, ComputesOn& now, const RunConfig& config);
// Whether a resumed run measures algorithms: what its checkpoint did not measure stays as it is,
// even where this plan would have something to measure.
bool may_tune(const Checkpoint& checkpoint, const RunConfig& config);

// Attention follows the device too: throws usage if this one computes it in another form than the
// checkpoint's, unless allow: [kernels] is given.
void check_attention(const Checkpoint& c, const std::string& now, const RunConfig& config);

}  // namespace snug
