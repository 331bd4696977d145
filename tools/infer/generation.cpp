#include "tools/infer/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "engine/core/error.h"
#include "engine/text/unicode.h"
#include "layers/models/stop_tokens.h"
#include "tools/infer/text_stream.h"

namespace snug {
namespace {

constexpr int64_t kMostSequences = 256, kMostLogprobs = 100, kMostTogether = 1024;
// Prompts are sorted by length over so many batches, since a batch starts where its shortest ends.
constexpr int64_t kBatchesSorted = 16;

void check_range(const char* flag, int64_t value, int64_t low, int64_t high, int64_t example) {
  if (value < low || value > high)
    fail(ErrorCode::usage, fmt::format("{} of {} to {}", flag, low, high), std::to_string(value),
         fmt::format("{} {}", flag, example));
}

std::string bytes_of(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::string bytes;
  for (const int32_t id : ids) bytes.append(tokenizer.token_bytes(id));
  return bytes;
}

// One continuation, or the beams of a prompt, with what makes its text.
struct Job {
  explicit Job(const std::vector<std::string>& stops) : stream(stops) {}
  int64_t number = 0;  // in the order of the output
  int64_t prompt_tokens = 0;
  bool all_positions = false;  // fewer tokens than asked for: the model has no more positions
  TextStream stream;
  std::string text;
  std::unique_ptr<SampledText> sampled;
  std::unique_ptr<BeamSearch> beams;

  Continuation* continuation() const {
    return beams ? static_cast<Continuation*>(beams.get()) : sampled.get();
  }
};

class Generation {
 public:
  Generation(Inference& in, const GenerationRequest& request,
             const std::function<void(const std::string&)>& shown)
      : in_(in),
        request_(request),
        shown_(shown),
        V_(in.model->spec().V),
        // Tokens that the tokenizer cannot spell, and padding, are never drawn.
        drawable_(std::min(V_, in.tokenizer->vocab_size())),
        sampler_(drawable_, request.options.sampling),
        rules_(V_, request.options.rules) {}

  std::unique_ptr<Job> make(int64_t number, std::span<const int32_t> ids);
  void run(const std::vector<std::unique_ptr<Job>>& jobs, int64_t cached);
  // The texts of a job that has ended.
  std::vector<GeneratedText> texts(Job& job) const;

 private:
  bool stopped_by_last(std::span<const int32_t> tokens) const;

  Inference& in_;
  const GenerationRequest& request_;
  const std::function<void(const std::string&)>& shown_;
  int64_t V_, drawable_;
  Sampler sampler_;
  TokenRules rules_;
};

std::unique_ptr<Job> Generation::make(int64_t number, std::span<const int32_t> ids) {
  auto made = std::make_unique<Job>(request_.stops);
  Job* const job = made.get();
  job->number = number;
  const Tokenizer& tokenizer = *in_.tokenizer;
  job->prompt_tokens = static_cast<int64_t>(ids.size());
  if (request_.beam_search()) {
    GenerationOptions options = request_.options;
    // The last token is not fed to the model.
    const int64_t room = text_room(*in_.session) - job->prompt_tokens + 1;
    job->all_positions = options.max_new_tokens > room;
    options.max_new_tokens = std::min(options.max_new_tokens, room);
    std::function<bool(std::span<const int32_t>)> stops;
    if (!request_.stops.empty())
      stops = [this](std::span<const int32_t> tokens) { return stopped_by_last(tokens); };
    job->beams = std::make_unique<BeamSearch>(rules_, V_, drawable_, ids, options, request_.beams,
                                              std::move(stops));
    return made;
  }
  const Draw draw = {.prompt = static_cast<uint64_t>(number / request_.sequences),
                     .sequence = static_cast<uint32_t>(number % request_.sequences)};
  job->sampled = std::make_unique<SampledText>(
      sampler_, rules_, V_, ids, request_.options, draw, [this, job, &tokenizer](int32_t token) {
        const std::string piece = job->stream.add(tokenizer.token_bytes(token));
        job->text += piece;
        if (shown_ && !piece.empty()) shown_(piece);
        return !job->stream.stopped();
      });
  return made;
}

// Whether the text's last token completes a stop string; what was before it holds none.
bool Generation::stopped_by_last(std::span<const int32_t> tokens) const {
  size_t longest = 0, first = tokens.size() - 1;
  for (const std::string& stop : request_.stops) longest = std::max(longest, stop.size());
  for (size_t before = 0; first > 0 && before + 1 < longest;)
    before += in_.tokenizer->token_bytes(tokens[--first]).size();
  return find_stop(bytes_of(*in_.tokenizer, tokens.subspan(first)), request_.stops) !=
         std::string::npos;
}

void Generation::run(const std::vector<std::unique_ptr<Job>>& jobs, int64_t cached) {
  std::vector<Continuation*> list;
  for (const auto& job : jobs) list.push_back(job->continuation());
  decode_together(*in_.session, list, cached);
  for (const auto& job : jobs) {
    const std::string rest = job->stream.rest();
    job->text += rest;
    if (shown_ && !rest.empty()) shown_(rest);
  }
}

std::vector<GeneratedText> Generation::texts(Job& job) const {
  std::vector<GeneratedText> out;
  if (!job.beams) {
    const std::span<const int32_t> ids = job.sampled->ids();
    out.push_back({.prompt = job.number / request_.sequences,
                   .sequence = job.number % request_.sequences,
                   .prompt_tokens = job.prompt_tokens,
                   .ids = {ids.begin(), ids.end()},
                   .text = std::move(job.text),
                   .end = job.sampled->end(),
                   .chances = job.sampled->chances()});
    return out;
  }
  for (const BeamText& t : job.beams->texts()) {
    if (static_cast<int64_t>(out.size()) == request_.sequences) break;
    std::string text = bytes_of(*in_.tokenizer, t.ids);
    text.resize(std::min(text.size(), find_stop(text, request_.stops)));
    const bool full = t.end == GenerationEnd::length && job.all_positions;
    out.push_back({.prompt = job.number,
                   .sequence = static_cast<int64_t>(out.size()),
                   .prompt_tokens = job.prompt_tokens,
                   .ids = t.ids,
                   .text = sanitize_utf8(text),
                   .end = full ? GenerationEnd::cache_full : t.end,
                   .score = t.score,
                   .chances = t.chances});
  }
  return out;
}

}  // namespace

void check_generation(const GenerationRequest& r) {
  const GenerationOptions& o = r.options;
  if (o.max_new_tokens < 1)
    fail(ErrorCode::usage, "--max-new-tokens of at least 1", std::to_string(o.max_new_tokens),
         "--max-new-tokens 64");
  check_sampling(o.sampling);
  check_rules(o.rules);
  if (o.rules.min_new_tokens > o.max_new_tokens)
    fail(ErrorCode::usage,
         fmt::format("--min-new-tokens of at most --max-new-tokens, {}", o.max_new_tokens),
         std::to_string(o.rules.min_new_tokens),
         fmt::format("--max-new-tokens {}", o.rules.min_new_tokens));
  for (const std::string& stop : r.stops)
    if (stop.empty() || !is_valid_utf8(stop))
      fail(ErrorCode::usage, "--stop as text of at least one character",
           stop.empty() ? "an empty one" : "bytes that are not UTF-8", "--stop \"User:\"");
  check_range("--num-beams", r.beams.beams, 1, kMostSequences, 4);
  check_range("--num-return-sequences", r.sequences, 1, kMostSequences, 3);
  if (r.batch_size != 0) check_range("--batch-size", r.batch_size, 1, kMostTogether, 8);
  if (o.logprobs != -1) check_range("--logprobs", o.logprobs, 0, kMostLogprobs, 5);
  // Beyond it the power of a length is no number any more.
  if (!(std::abs(r.beams.length_penalty) <= 50))
    fail(ErrorCode::usage, "--length-penalty of -50 to 50",
         fmt::format("{}", r.beams.length_penalty), "--length-penalty 1");
  if (r.beam_search() && r.sequences > r.beams.beams)
    fail(ErrorCode::usage,
         fmt::format("--num-return-sequences of at most --num-beams, {}", r.beams.beams),
         std::to_string(r.sequences), fmt::format("--num-beams {}", r.sequences));
  if (!r.beam_search() && r.sequences > 1 && o.sampling.temperature == 0.0)
    fail(ErrorCode::usage, "a --temperature above 0 or --num-beams for --num-return-sequences",
         fmt::format("{} sequences of greedy search, which are all the same", r.sequences),
         fmt::format("--temperature 0.8, or --num-beams {}", r.sequences));
}

std::vector<int32_t> stop_tokens(const std::string& folder, const ModelSpec& spec,
                                 const Tokenizer& tokenizer) {
  if (auto ids = model_stop_tokens(folder, spec)) return std::move(*ids);
  const auto eos = tokenizer.eos_id();
  return eos ? std::vector<int32_t>{*eos} : std::vector<int32_t>{};
}

int64_t wanted_rows(const GenerationRequest& r, int64_t prompts) {
  const int64_t all = r.beam_search() ? prompts : prompts * r.sequences;
  const int64_t usual = std::max<int64_t>(1, 8 / r.unit());
  return std::min(all, r.batch_size > 0 ? r.batch_size : usual) * r.unit();
}

void generate_texts(Inference& in, const GenerationRequest& request, int64_t count,
                    const std::function<std::vector<int32_t>(int64_t)>& ids,
                    const std::function<void(const GeneratedText&)>& done,
                    const std::function<void(const std::string&)>& shown, int64_t cached) {
  Generation generation(in, request, shown);
  const int64_t each = request.beam_search() ? 1 : request.sequences, all = count * each;
  const int64_t together = in.plan.decisions.kv_rows / request.unit();
  const int64_t window = together * kBatchesSorted;
  for (int64_t begin = 0; begin < all; begin += window) {
    const int64_t size = std::min(window, all - begin);
    std::vector<std::vector<int32_t>> prompts;
    const int64_t first = begin / each;
    for (int64_t p = first; p * each < begin + size; ++p) prompts.push_back(ids(p));
    const auto prompt = [&](int64_t number) -> const std::vector<int32_t>& {
      return prompts[static_cast<size_t>(number / each - first)];
    };
    std::vector<int64_t> order(static_cast<size_t>(size));
    std::iota(order.begin(), order.end(), begin);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return prompt(a).size() < prompt(b).size(); });
    std::vector<std::vector<GeneratedText>> texts(static_cast<size_t>(size));
    size_t told = 0;  // those before it were handed out
    for (int64_t at = 0; at < size; at += together) {
      std::vector<std::unique_ptr<Job>> jobs;
      for (int64_t i = at; i < std::min(size, at + together); ++i) {
        const int64_t number = order[static_cast<size_t>(i)];
        jobs.push_back(generation.make(number, prompt(number)));
      }
      generation.run(jobs, cached);
      for (const auto& job : jobs)
        texts[static_cast<size_t>(job->number - begin)] = generation.texts(*job);
      for (; told < texts.size() && !texts[told].empty(); ++told) {
        for (const GeneratedText& text : texts[told]) done(text);
        texts[told] = {};
      }
    }
  }
}

}  // namespace snug
