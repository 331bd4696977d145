// The run that the benchmarks time, and sums over times.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/core/rng.h"
#include "tools/bench.h"
#include "tools/calibrate/median.h"
#include "tools/planner/batch_room.h"
#include "tools/session/device_choice.h"
#include "tools/session/warm_up.h"
#include "tools/setup/rank_setup.h"

namespace snug {

double Times::median() const {
  std::vector<double> list = seconds;
  return list.empty() ? 0 : median_of(list);
}

double Times::least() const {
  return seconds.empty() ? 0 : *std::min_element(seconds.begin(), seconds.end());
}

double Times::noise() const {
  std::vector<double> part[2];
  for (size_t i = 0; i < seconds.size(); ++i) part[i % 2].push_back(seconds[i]);
  if (part[1].empty() || median() <= 0) return 0;
  return std::abs(median_of(part[0]) - median_of(part[1])) / median();
}

BenchRun::BenchRun(const RunConfig& config)
    : setup_((refuse_target(config, "bench"), refuse_ranks(config, "bench"),
              refuse_emulator(config, "bench"), make_setup(config))) {
  setup_.request.follow = {};  // of a plan its decisions alone: these programs are fewer
  setup_.request.evaluate = false;
  setup_.request.kv_length = 0;
  check_batch_room(setup_.request);
  plan_ = make_plan(setup_.request);
  if (!plan_.fits) refuse_plan(plan_);
  check_gpu_room(setup_.request.settings, plan_.engine_bytes);
  session_ =
      std::make_unique<Session>(plan_.place, *setup_.model, plan_.decisions,
                                setup_.request.optimizer, setup_.request.settings, &plan_.schedule);
  session_->open();
  if (plan_.place == Place::cuda) warm_up_gpu(*session_, plan_.computes_on, config.matmul_autotune);
  // Every sequence one document: the most that attention can cost.
  if (int32_t* starts = session_->document_start_or_null())
    std::fill_n(starts, session_->document_start().elements(), 0);
  init_parameters(session_->context(), setup_.model->params(), session_->resting(), 42);
  session_->load();
}

double BenchRun::tokens() const {
  return static_cast<double>(plan_.accumulation * plan_.decisions.micro_batch * plan_.decisions.T);
}

// Of a run with TF32 the products of f32 are held to its roof.
Roofs BenchRun::roofs() const {
  if (plan_.place == Place::cpu) return measure_roofs(plan_.threads);
  Roofs r = measure_device_roofs(plan_.place, setup_.request.settings.gpu);
  if (plan_.tf32) r.fp32_flops = r.tf32_flops;
  return r;
}

// Of a head that reads rows every place it has room for is one with a target.
void BenchRun::random_tokens(uint64_t draw) {
  const ModelSpec& spec = setup_.model->spec();
  const int64_t B = plan_.decisions.micro_batch, T = plan_.decisions.T, n = B * T;
  const auto random = [draw](int64_t i, int64_t below) {
    const uint64_t x = mix64(draw * 1000003 + static_cast<uint64_t>(i));
    return static_cast<int32_t>(x % static_cast<uint64_t>(below));
  };
  for (int64_t i = 0; i < n; ++i) session_->tokens().as<int32_t>()[i] = random(i, spec.V);
  // A pair a window, an answer each half of it.
  if (const View& pairs = session_->pairs(); pairs.defined()) {
    const int64_t most = plan_.decisions.pairs.per_window;
    std::fill_n(pairs.as<int32_t>(), pairs.elements(), -1);
    for (int64_t w = 0; w < B; ++w) {
      int32_t* to = pairs.as<int32_t>() + w * most * kPairColumns;
      for (const int64_t value :
           {w * T, w * T + T / 2, (w + 1) * T, T / 2, T - T / 2, w * T, B * (T / 2), B})
        *to++ = static_cast<int32_t>(value);
      for (int64_t t = 0; t < T; ++t)
        session_->document_start().as<int32_t>()[w * T + t] =
            static_cast<int32_t>(t / (T / 2) * (T / 2));
    }
  }
  const int64_t R = plan_.decisions.rows_per_window;
  if (R == 0) {
    for (int64_t i = 0; i < n; ++i) session_->targets().as<int32_t>()[i] = random(n + i, spec.V);
    return;
  }
  if (const View& types = session_->token_types(); types.defined())
    std::fill_n(types.as<int32_t>(), n, 0);
  for (int64_t i = 0; i < B * R; ++i)
    session_->head_index().as<int32_t>()[i] = static_cast<int32_t>(i / R * T + i % R * T / R);
  const View& targets = session_->head_targets();
  const int64_t classes = spec.head == HeadKind::masked_lm ? spec.V : spec.label_count();
  for (int64_t i = 0; i < targets.elements(); ++i)
    if (targets.dtype == DType::i32)
      targets.as<int32_t>()[i] = random(n + i, classes);
    else
      targets.as<float>()[i] = static_cast<float>(random(n + i, 2));
}

double BenchRun::step() {
  const double started = monotonic_seconds();
  session_->begin_window(42, steps_, plan_.global_batch * plan_.decisions.T);
  // Backward may update already.
  for (float& rate : session_->state().learning_rate) rate = 1e-4f;
  session_->optimizer().prepare_step(session_->state());
  for (int64_t m = 0; m < plan_.accumulation; ++m) {
    random_tokens(static_cast<uint64_t>(steps_ * plan_.accumulation + m));
    session_->state().first_sample = m * plan_.decisions.micro_batch;
    session_->micro(m == 0, m + 1 == plan_.accumulation);
  }
  session_->update();
  if (!session_->state().found_inf) ++session_->state().updates;
  ++steps_;
  return monotonic_seconds() - started;
}

namespace {

// What is alike in all blocks: behind the number of a layer. h.3.attn.c_attn: attn.c_attn; h.3: nothing;
// head: head.
std::string layer_of(std::string_view scope) {
  for (size_t begin = 0; begin < scope.size();) {
    const size_t end = std::min(scope.find('.', begin), scope.size());
    const std::string_view word = scope.substr(begin, end - begin);
    if (word.find_first_not_of("0123456789") == std::string_view::npos)
      return std::string(scope.substr(std::min(end + 1, scope.size())));
    begin = end + 1;
  }
  return std::string(scope);
}

}  // namespace

std::string product_text(const OpRow& row) {
  // Products of a weight (out, in) on rows, by the classes of engine/blas.
  const std::string_view kind(row.variant.data(), std::min<size_t>(3, row.variant.size()));
  const char* product = kind == "nt "   ? "x W^T"
                        : kind == "nn " ? "dy W"
                        : kind == "tn " ? "dy^T x"
                                        : "";
  return row.layer + (row.layer.empty() || *product == '\0' ? "" : " ") + product;
}

struct OpTimes::State {
  using Key =
      std::tuple<std::string, std::string, std::string, std::string, StreamId, int64_t, int64_t>;
  struct Entry {
    OpRow row;
    int64_t calls = 0;  // of the open window
    double seconds = 0;
  };
  std::map<Key, Entry> entries;
};

OpTimes::OpTimes() : state_(std::make_unique<State>()) {}
OpTimes::~OpTimes() = default;

void OpTimes::op_done(const Program& program, int32_t op, double seconds) {
  const OpRecord& r = program.ops[static_cast<size_t>(op)];
  const std::string layer = layer_of(r.scope.view());
  State::Entry& e = state_->entries[{program.name.str(), r.name, layer, r.variant.str(), r.stream,
                                     r.flops, r.bytes}];
  if (e.row.op.empty()) {
    e.row.program = program.name.str();
    e.row.op = r.name;
    e.row.layer = layer;
    e.row.variant = r.variant.str();
    e.row.stream = r.stream;
    e.row.flops = r.flops;
    e.row.bytes = r.bytes;
  }
  ++e.calls;
  e.seconds += seconds;
}

void OpTimes::end_window() {
  for (auto& [key, e] : state_->entries) {
    if (e.calls == 0) continue;
    e.row.calls = e.calls;
    e.row.times.seconds.push_back(e.seconds / static_cast<double>(e.calls));
    e.calls = 0;
    e.seconds = 0;
  }
}

std::vector<OpRow> OpTimes::rows() const {
  std::vector<OpRow> rows;
  for (const auto& [key, e] : state_->entries) rows.push_back(e.row);
  const auto total = [](const OpRow& r) { return r.times.median() * static_cast<double>(r.calls); };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const OpRow& a, const OpRow& b) { return total(a) > total(b); });
  return rows;
}

std::vector<KindRow> op_kinds(const std::vector<OpRow>& rows,
                              const std::function<double(const OpRow&)>& predicted) {
  std::map<std::string, KindRow> kinds;
  for (const OpRow& r : rows) {
    KindRow& k = kinds[r.op];
    const auto calls = static_cast<double>(r.calls);
    k.op = r.op;
    k.calls += r.calls;
    k.seconds += calls * r.times.median();
    k.predicted += calls * predicted(r);
  }
  std::vector<KindRow> list;
  for (auto& [op, k] : kinds) list.push_back(std::move(k));
  std::stable_sort(list.begin(), list.end(),
                   [](const KindRow& a, const KindRow& b) { return a.seconds > b.seconds; });
  return list;
}

nlohmann::json roofs_json(const Roofs& roofs) {
  nlohmann::json j = {{"threads", roofs.threads},       {"fp32_flops", roofs.fp32_flops},
                      {"bf16_flops", roofs.bf16_flops}, {"read_bytes", roofs.read_bytes},
                      {"copy_bytes", roofs.copy_bytes}, {"stream_bytes", roofs.stream_bytes}};
  j["device"] = roofs.device.empty() ? nlohmann::json() : nlohmann::json(roofs.device);
  if (!roofs.device.empty()) j["tf32_flops"] = roofs.tf32_flops;
  return j;
}

bool narrow_product(const Roofs& roofs, std::string_view variant) {
  return variant.find("bf16 bf16") != std::string_view::npos ||
         (!roofs.device.empty() && variant.find("f16 f16") != std::string_view::npos);
}

}  // namespace snug
