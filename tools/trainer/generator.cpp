#include "tools/trainer/generator.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/error.h"

namespace snug {

GenerationEnd generate(Session& session, Sampler& sampler, std::span<const int32_t> prompt,
                       const GenerationOptions& options, const std::function<bool(int32_t)>& each) {
  const int64_t length = session.decisions().kv_length, chunk = session.decisions().prefill;
  const auto count = static_cast<int64_t>(prompt.size());
  if (count < 1)
    fail(ErrorCode::usage, "a prompt of at least one token", "an empty prompt",
         "--prompt \"Once upon a time\"");
  if (count > length)
    fail(ErrorCode::usage, fmt::format("a prompt of at most {} tokens", length),
         fmt::format("{} tokens", count), "a shorter prompt, or a model with more positions");
  StepState& state = session.state();
  state.position = 0;
  // Whole chunks, then the rest token by token: no padded tail enters the cache.
  int64_t at = 0;
  for (; at + chunk <= count; at += chunk) {
    std::copy_n(prompt.begin() + at, chunk, session.prompt().as<int32_t>());
    session.prefill();
    state.position += chunk;
  }
  int32_t* next = session.next_token().as<int32_t>();
  for (; at < count; ++at) {
    *next = prompt[static_cast<size_t>(at)];
    session.decode();
    ++state.position;
  }
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const int32_t token = sampler.next(session.logits().as<float>(), static_cast<uint64_t>(i));
    if (token == options.stop_token) return GenerationEnd::stop_token;
    if (!each(token)) return GenerationEnd::stopped;
    if (i + 1 == options.max_new_tokens) break;
    if (state.position >= length) return GenerationEnd::cache_full;
    *next = token;
    session.decode();
    ++state.position;
  }
  return GenerationEnd::length;
}

}  // namespace snug
