// Text generation with a session's prefill and decode programs: prompt in, tokens out, one at a
// time.
#pragma once

#include <functional>
#include <span>

#include "tools/trainer/sampler.h"
#include "tools/trainer/session.h"

namespace snug {

struct GenerationOptions {
  int64_t max_new_tokens = 64;
  int32_t stop_token = -1;  // -1: none
  SamplingOptions sampling;
};

// Why it ended.
enum class GenerationEnd : uint8_t { length, stop_token, stopped, cache_full };

// Feeds the prompt (at least one token; all of it must fit in the KV cache, else a usage error),
// then samples until a limit. `each` receives every new token and returns false to stop.
GenerationEnd generate(Session& session, Sampler& sampler, std::span<const int32_t> prompt,
                       const GenerationOptions& options, const std::function<bool(int32_t)>& each);

}  // namespace snug
