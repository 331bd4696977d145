#include "tools/infer/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/error.h"

namespace snug {
namespace {

// Where a continuation stands in the session.
struct Seat {
  Continuation* text;
  int64_t row, rows, length;  // length of the prompt
  bool done = false;
};

int64_t front_of(const Session& session) {
  return session.model().front().count;
}

std::vector<Seat> seats_of(Session& session, std::span<Continuation* const> texts) {
  const int64_t length = text_room(session), most = session.decisions().kv_rows;
  std::vector<Seat> seats;
  int64_t row = 0;
  for (Continuation* text : texts) {
    const auto count = static_cast<int64_t>(text->prompt().size());
    if (count < 1)
      fail(ErrorCode::usage, "a prompt of at least one token", "an empty prompt",
           "--prompt \"Once upon a time\"");
    if (count > length)
      fail(ErrorCode::usage, fmt::format("a prompt of at most {} tokens", length),
           fmt::format("{} tokens", count), "a shorter prompt, or a model with more positions");
    seats.push_back({text, row, text->rows(), count + front_of(session)});
    row += text->rows();
  }
  require(row <= most, "as many rows as were planned");
  return seats;
}

// What is fed at a place: virtual tokens, then those of the prompt.
int32_t token_at(const Session& session, std::span<const int32_t> prompt, int64_t place) {
  const FrontTokens front = session.model().front();
  return place < front.count ? static_cast<int32_t>(front.first + place)
                             : prompt[static_cast<size_t>(place - front.count)];
}

void feed_prompt(Session& session, std::span<const int32_t> prompt, int64_t first, int64_t count,
                 int64_t row) {
  const int64_t length = session.decisions().kv_length, chunk = session.decisions().prefill;
  auto* tokens = session.prompt().as<int32_t>();
  for (int64_t at = first; at < count; at += chunk) {
    // The last chunk may begin before `at`, if the cache ends, and end beyond `count`: both write
    // what is there already or will be written again before anything sees it.
    const int64_t begin = std::min(at, length - chunk), real = std::min(chunk, count - begin);
    for (int64_t i = 0; i < real; ++i) tokens[i] = token_at(session, prompt, begin + i);
    std::fill(tokens + real, tokens + chunk, prompt[0]);
    session.state().position = begin;
    session.prefill(row);
  }
}

// Row `row` continues from `from`, from the beginning or what they do not share already.
void set_source(Session& session, int64_t row, int64_t from, int64_t first) {
  auto* source = session.sources().as<int32_t>() + 2 * row;
  source[0] = static_cast<int32_t>(from);
  source[1] = static_cast<int32_t>(first);
}

void stay(Session& session) {
  for (int64_t row = 0; row < session.decisions().kv_rows; ++row) set_source(session, row, row, 0);
}

// The other rows of a prompt get what its first row was fed.
void copy_prompts(Session& session, const std::vector<Seat>& seats, int64_t count) {
  bool any = false;
  for (const Seat& p : seats)
    for (int64_t i = 1; i < p.rows; ++i, any = true) set_source(session, p.row + i, p.row, 0);
  if (!any) return;
  session.state().position = count;
  session.fork();
  stay(session);
}

}  // namespace

int64_t text_room(const Session& session) {
  return session.decisions().kv_length - front_of(session);
}

void decode_together(Session& session, std::span<Continuation* const> texts, int64_t cached) {
  std::vector<Seat> seats = seats_of(session, texts);
  if (seats.empty()) return;
  const int64_t length = session.decisions().kv_length, rows = session.decisions().kv_rows;
  int64_t position = length;
  for (const Seat& p : seats) position = std::min(position, p.length - 1);
  if (cached > 0) cached += front_of(session);
  require(cached == 0 || (rows == 1 && seats.size() == 1 && cached <= position),
          "a cache of one prompt");
  // No room for a chunk: token by token.
  if (session.decisions().prefill > length) position = cached;
  for (const Seat& p : seats) feed_prompt(session, p.text->prompt(), cached, position, p.row);
  if (rows > 1) {
    stay(session);
    copy_prompts(session, seats, position);
  }

  auto* const next = session.next_token().as<int32_t>();
  std::fill(next, next + rows, 0);  // what rows without work are fed
  const int64_t stride = session.logits().shape[1];
  std::vector<int32_t> source(static_cast<size_t>(rows));
  for (bool working = true; working; ++position) {
    for (const Seat& p : seats)
      if (position < p.length)
        std::fill_n(next + p.row, p.rows, token_at(session, p.text->prompt(), position));
    session.state().position = position;
    session.decode();
    working = false;
    bool moved = false;
    for (Seat& p : seats) {
      if (p.done) continue;
      if (position + 1 >= p.length) {
        const float* logits = session.logits().as<float>() + p.row * stride;
        for (int64_t i = 0; i < p.rows; ++i)
          source[static_cast<size_t>(i)] = static_cast<int32_t>(i);
        p.done = !p.text->step(logits, stride, next + p.row, source.data());
        if (!p.done && position + 1 >= length) {
          p.text->no_room();
          p.done = true;
        }
        for (int64_t i = 0; rows > 1 && i < p.rows; ++i) {
          const int64_t from = p.done ? i : source[static_cast<size_t>(i)];
          set_source(session, p.row + i, p.row + from, p.length);
          moved = moved || from != i;
        }
      }
      working = working || !p.done;
    }
    if (moved && working) {
      session.state().position = position + 1;
      session.fork();
    }
  }
}

void append_chances(const float* logits, int64_t vocab_size, int32_t token, int64_t most,
                    std::vector<TokenChance>& out) {
  const double norm = log_sum_exp(logits, vocab_size);
  const auto chance = [&](int64_t id) {
    return TokenChance{static_cast<int32_t>(id),
                       static_cast<float>(static_cast<double>(logits[id]) - norm)};
  };
  const auto order = [&](int64_t id) {
    return std::isnan(logits[id]) ? -std::numeric_limits<float>::infinity() : logits[id];
  };
  out.push_back(chance(token));
  // The likeliest by insertion: K is small, and few tokens come near.
  const size_t begin = out.size();
  for (int64_t id = 0; id < vocab_size && most > 0; ++id) {
    const bool full = static_cast<int64_t>(out.size() - begin) == most;
    const float x = order(id);
    if (full && !(x > order(out.back().id))) continue;
    if (full) out.pop_back();
    size_t at = out.size();
    while (at > begin && x > order(out[at - 1].id)) --at;
    out.insert(out.begin() + static_cast<int64_t>(at), chance(id));
  }
}

SampledText::SampledText(Sampler& sampler, TokenRules& rules, int64_t vocab_size,
                         std::span<const int32_t> prompt, const GenerationOptions& options,
                         Draw draw, std::function<bool(int32_t)> each)
    : sampler_(sampler),
      rules_(rules),
      vocab_size_(vocab_size),
      options_(options),
      draw_(draw),
      each_(std::move(each)),
      tokens_(prompt.begin(), prompt.end()),
      prompt_(prompt.size()) {
  // Room for a text of common length; what a caller wants beyond that is not known to fit anyway.
  const auto room = static_cast<size_t>(std::min<int64_t>(options.max_new_tokens, 4096));
  tokens_.reserve(prompt_ + room);
  if (options.logprobs >= 0) chances_.reserve(room * static_cast<size_t>(options.logprobs + 1) + 1);
  if (rules.active()) scores_.resize(static_cast<size_t>(vocab_size));
}

bool SampledText::step(const float* logits, int64_t, int32_t* next, int32_t*) {
  const auto made = static_cast<int64_t>(tokens_.size() - prompt_);
  if (made >= options_.max_new_tokens) return false;
  const float* scores = logits;
  if (rules_.active()) {
    std::copy_n(logits, vocab_size_, scores_.begin());
    rules_.apply(scores_.data(), tokens_, made);
    const auto finite = [](float x) { return std::isfinite(x); };
    const int64_t drawn = sampler_.vocab_size();
    if (std::none_of(scores_.begin(), scores_.begin() + drawn, finite) &&
        std::any_of(logits, logits + drawn, finite)) {
      end_ = GenerationEnd::no_token;
      return false;
    }
    scores = scores_.data();
  }
  draw_.token = static_cast<uint64_t>(made);
  const int32_t token = sampler_.next(scores, draw_);
  if (rules_.stops(token)) {
    end_ = GenerationEnd::stop_token;
    return false;
  }
  tokens_.push_back(token);
  if (options_.logprobs >= 0)
    append_chances(logits, vocab_size_, token, options_.logprobs, chances_);
  *next = token;
  if (each_ && !each_(token)) {
    end_ = GenerationEnd::stopped;
    return false;
  }
  return made + 1 < options_.max_new_tokens;
}

GenerationEnd generate(Session& session, Sampler& sampler, std::span<const int32_t> prompt,
                       const GenerationOptions& options, const std::function<bool(int32_t)>& each) {
  const int64_t V = session.model().spec().V;
  TokenRules rules(V, options.rules);
  SampledText text(sampler, rules, V, prompt, options, {}, each);
  Continuation* const one = &text;
  decode_together(session, {&one, 1});
  return text.end();
}

}  // namespace snug
