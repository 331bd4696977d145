#include "tools/session/session.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/kernels.h"
#include "layers/models/piece_weights.h"
#include "layers/models/recompute.h"
#include "layers/ops/cache_rows.h"
#include "optim/clip.h"

namespace snug {

namespace {

Settings settings_for(Settings settings, const Decisions& decisions) {
  settings.graphs = settings.graphs && graphs_for(decisions);
  return settings;
}

}  // namespace

void add_preferences(const Session& session, int64_t batch, PreferenceSums& to) {
  const PairDecision& d = session.decisions().pairs;
  const int64_t P = batch * d.per_window;
  if (d.reward)
    return to.add_rewards(session.head_logits().rows(0, 2 * P),
                          session.head_targets().rows(0, 2 * P));
  to.add(session.pairs().rows(0, P), session.pair_logps().rows(0, P),
         d.has_reference() ? session.pair_reference().rows(0, P) : View(), d.loss);
}

Session::Session(Place place, const Model& model, const Decisions& decisions,
                 const OptimizerConfig& optimizer, const Settings& settings,
                 const Schedule* schedule, Comm* comm)
    : model_(model),
      decisions_(decisions),
      ctx_(place, settings_for(settings, decisions)),
      comm_(comm) {
  if (place == Place::plan && decisions.ranks > 1) {
    planned_comm_ = std::make_unique<RankComm>(decisions.ranks, decisions.staged);
    comm_ = planned_comm_.get();
  }
  require(
      (comm_ ? comm_->size() : 1) == decisions.ranks && model.params().ranks() == decisions.ranks,
      "a communicator and a table of as many ranks");
  if (comm_) comm_->set_in_turn(decisions.in_turn);
  require((place == Place::plan) == (schedule == nullptr), "a schedule exactly where it is run");
  optimizer_ = make_optimizer(optimizer);
  if (decisions.micro_batch > 0)
    train_pass_ = model.make_pass(parse_policies(decisions.recompute, decisions.offload, model));
  if (decisions.pairs.reference()) reference_pass_ = model.make_inference_pass();
  if (decisions.eval_batch > 0) eval_pass_ = model.make_inference_pass();
  if (decisions.kv_length > 0) {
    prefill_pass_ = model.make_inference_pass();
    decode_pass_ = model.make_inference_pass();
  }
  if (schedule) {
    schedule_ = *schedule;
  } else {
    root_ = schedule_.add(Name("root"), -1, true);
    if (!model.params().coded().empty()) schedule_.add(Name("code"), root_, false);
    schedule_.add(Name("load"), root_, false);
    if (has_norms()) schedule_.add(Name("magnitudes"), root_, false);
    if (decisions.micro_batch > 0) {
      schedule_.add(Name("micro_first"), root_, false);
      schedule_.add(Name("micro_next"), root_, false);
      for (const char* name : {"micro_only", "micro_last"})
        if (sums_in_backward(decisions)) schedule_.add(Name(name), root_, false);
      schedule_.add(Name("update"), root_, false);
      if (decisions.delayed_update) schedule_.add(Name("late"), root_, false);
      if (optimizer_->keeps_others()) {
        schedule_.add(Name("to_kept"), root_, false);
        schedule_.add(Name("to_trained"), root_, false);
      }
    }
    if (decisions.eval_batch > 0) schedule_.add(Name("eval"), root_, false);
    if (decisions.save) schedule_.add(Name("save"), root_, false);
    if (decisions.kv_length > 0) {
      const int generate = schedule_.add(Name("generate"), root_, true);
      schedule_.add(Name("prefill"), generate, false);
      schedule_.add(Name("decode"), generate, false);
      if (decisions.kv_rows > 1) schedule_.add(Name("fork"), generate, false);
    }
  }
  root_ = schedule_.find("root");
  code_ = schedule_.find("code");
  load_ = schedule_.find("load");
  magnitudes_ = schedule_.find("magnitudes");
  micro_first_ = schedule_.find("micro_first");
  micro_next_ = schedule_.find("micro_next");
  micro_only_ = schedule_.find("micro_only");
  micro_last_ = schedule_.find("micro_last");
  update_ = schedule_.find("update");
  late_ = schedule_.find("late");
  to_kept_ = schedule_.find("to_kept");
  to_trained_ = schedule_.find("to_trained");
  eval_ = schedule_.find("eval");
  save_ = schedule_.find("save");
  generate_ = schedule_.find("generate");
  prefill_program_ = schedule_.find("prefill");
  decode_program_ = schedule_.find("decode");
  fork_program_ = schedule_.find("fork");
}

Session::~Session() {
  if (comm_ && comm_ != planned_comm_.get()) comm_->detach();
}

void Session::open() {
  if (!ctx_.planning()) ctx_.reserve(schedule_);
  if (!ctx_.planning() && comm_) comm_->attach(ctx_);
  prepare_kernels(ctx_);
  ctx_.program(schedule_, root_, [&] { make_residents(); });
  if (generate_ >= 0) ctx_.program(schedule_, generate_, [&] { make_generation(); });
  if (!ctx_.planning()) {
    state() = StepState{};
    state().loss_scale =
        model_.precision().loss_scaling() ? decisions_.loss_scaling.first_scale() : 1.0f;
    state().clip_factor = 1.0f;
    state().first_bad_element = -1;
    return;
  }
  if (code_ >= 0) {
    const auto [param, k] = stores_->coded()->largest();
    code(param, k, {});
  }
  load();
  if (norms_.empty()) start_adapters();
  if (micro_first_ >= 0) {
    record_micro_steps();
    update();
    apply_late();
  }
  if (to_kept_ >= 0) {
    move_weights(WeightsMove::to_kept);
    move_weights(WeightsMove::to_trained);
  }
  if (eval_ >= 0) evaluate();
  // What is written where is nothing to the record.
  if (save_ >= 0) save_model("", SafetensorsLayout({{"format", "pt"}}, {}));
  if (generate_ >= 0) {
    prefill();
    decode();
  }
  if (fork_program_ >= 0) fork();
}

void Session::open(Part part) {
  require(ctx_.planning() && micro_first_ >= 0, "a training session on plan");
  if (part.block) block_ = schedule_.add(Name("block"), root_, false);
  ctx_.program(schedule_, root_, [&] { make_residents(); });
  if (part.block) stores_->begin(true, false);
  if (part.micro_steps) record_micro_steps();
  if (part.evaluation && eval_ >= 0) evaluate();
}

const Program& Session::record_block(const std::function<void(Context&, Runtime&)>& run) {
  require(block_ >= 0, "a session that was opened for a block");
  if (stores_->updates_in_backward()) stores_->begin(true, false);
  const Extent all = used(decisions_.micro_batch);
  Runtime rt = runtime(&stores_->gradients(), batch_document_start(all));
  rt.tokens = batch(all).tokens;
  if (!model_.spec().causal) rt.document_end = rt.document_start;  // of the same shape
  if (head_index_.defined()) rt.head_rows = head_index_.view();
  ctx_.program(schedule_, block_, [&] { run(ctx_, rt); });
  return schedule_.at(block_);
}

StorePolicy Session::store_policy() const {
  const Precision& precision = model_.precision();
  const Decisions& d = decisions_;
  StorePolicy p;
  static_cast<Homes&>(p) = d;
  p.compute = precision.compute;
  p.trains = d.micro_batch > 0;
  p.separate_master = precision.separate_master();
  p.gradients = d.gradients;
  p.states = optimizer_->states(model_.params());
  p.comm = comm_;
  p.zero = d.zero;
  return p;
}

void Session::make_residents() {
  const ParamTable& table = model_.params();
  const Precision& precision = model_.precision();
  const Decisions& d = decisions_;
  require(!d.offload_params || d.packed_weights == WeightPacking::none,
          "no packed copies of weights that rest with the host");
  require(!d.update_in_backward || (d.max_grad_norm == 0 && !precision.loss_scaling()),
          "an update in backward without clipping and loss scaling");
  stores_ = std::make_unique<Stores>(
      ctx_, table, store_policy(),
      [this](Context& ctx, const UpdateTargets& targets, const Stores::Complete& c) {
        // Of ranks span by span: all of them plan the same ones.
        for (const StateSpan& s : comm_ ? c.spans : std::span<const StateSpan>())
          sum_of_squares_and_finite(ctx, c.gradients.rows(s.offset - c.first, s.elements), state_,
                                    s.offset);
        if (!comm_) gradient_norm_add(ctx, c.gradients, c.first, c.spans, state_);
        optimizer_->update(ctx, targets, stores_->states(), state_, c.windows);
      });
  make_norms();
  if (d.packed_weights != WeightPacking::none)
    packed_ = std::make_unique<PackedWeights>(ctx_, table, precision.compute, d.packed_weights);
  if (const int64_t B = std::max(d.micro_batch, d.eval_batch); B > 0) {
    tokens_ = ctx_.tensor(Name("batch.tokens"), {B, d.T}, DType::i32, Category::batch);
    if (d.rows_per_window > 0)
      make_head_batch(B);
    else
      targets_ = ctx_.tensor(Name("batch.targets"), {B * d.T}, DType::i32, Category::batch);
    if (d.pairs.any() && !d.pairs.reward) make_pairs(B);
    if (d.packing_boundaries)
      document_start_ =
          ctx_.tensor(Name("batch.document_start"), {B, d.T}, DType::i32, Category::batch);
  }
  if (d.kv_length > 0) {
    prompt_ = ctx_.tensor(Name("prompt"), {1, d.prefill}, DType::i32, Category::batch);
    next_ = ctx_.tensor(Name("next_token"), {d.kv_rows, 1}, DType::i32, Category::batch);
    logits_ = ctx_.tensor(Name("next_logits"), {d.kv_rows, model_.spec().Vp()}, DType::f32,
                          Category::logits);
    if (d.kv_rows > 1)
      sources_ = ctx_.tensor(Name("row_sources"), {d.kv_rows, 2}, DType::i32, Category::batch);
  }
  if (d.save_ring > 0 && ctx_.by_kernels())
    save_ring_ = ctx_.host_tensor(Name("save.ring"), {d.save_ring}, DType::u8);
  else if (d.save_ring > 0)
    save_ring_ = ctx_.tensor(Name("save.ring"), {d.save_ring}, DType::u8, Category::workspace);
  state_ = ctx_.tensor(Name("step_state"), step_state_shape(), DType::u8, Category::state);
  if (ctx_.by_kernels()) make_host_side();
  if (d.delayed_update)
    make_late_step();
  else if (d.update_on_host && !ctx_.by_kernels())
    host_.state = twin("host.step_state", state_);
  make_save_room();
}

// A parameter that is turned in files is read as a whole before it is.
void Session::make_save_room() {
  const int64_t bytes = turned_bytes(model_);
  if (decisions_.save_ring > 0 && bytes > 0 && ctx_.by_kernels())
    host_.turned = ctx_.host_tensor(Name("save.turned"), {bytes / 4}, DType::f32);
}

void Session::make_head_batch(int64_t B) {
  const ModelSpec& spec = model_.spec();
  const int64_t M = B * decisions_.rows_per_window, K = spec.label_count();
  if (spec.types > 1)
    types_ = ctx_.tensor(Name("batch.types"), {B, decisions_.T}, DType::i32, Category::batch);
  head_index_ = ctx_.tensor(Name("batch.head_index"), {M}, DType::i32, Category::batch);
  const bool classes =
      spec.head != HeadKind::sequence_classification || spec.problem == Problem::single_label;
  head_targets_ = ctx_.tensor(Name("batch.head_targets"), classes ? Shape{M} : Shape{M, K},
                              classes ? DType::i32 : DType::f32, Category::batch);
  const bool masked = spec.head == HeadKind::masked_lm;
  // Of answers in pairs training says them too.
  const int64_t windows = decisions_.pairs.reward ? B : decisions_.eval_batch;
  if (windows > 0 && (!masked || decisions_.token_logits))
    head_logits_ = ctx_.tensor(Name("batch.head_logits"),
                               {windows * decisions_.rows_per_window, masked ? spec.Vp() : K},
                               DType::f32, Category::logits);
}

void Session::make_pairs(int64_t B) {
  const int64_t P = B * decisions_.pairs.per_window;
  pairs_ = ctx_.tensor(Name("batch.pairs"), {P, kPairColumns}, DType::i32, Category::batch);
  pair_logps_ = ctx_.tensor(Name("batch.pair_logps"), {P, logp_columns(decisions_.pairs.loss.kind)},
                            DType::f32, Category::batch);
  if (decisions_.pairs.has_reference())
    pair_reference_ =
        ctx_.tensor(Name("batch.pair_reference"), {P, 2}, DType::f32, Category::batch);
}

Tensor Session::twin(const char* name, const Tensor& device) {
  if (!device.defined()) return {};
  return ctx_.host_tensor(Name(name), device.view().shape, device.view().dtype);
}

void Session::make_host_side() {
  host_.state = twin("host.step_state", state_);
  host_.tokens = twin("host.tokens", tokens_);
  host_.targets = twin("host.targets", targets_);
  host_.document_start = twin("host.document_start", document_start_);
  host_.types = twin("host.types", types_);
  host_.head_index = twin("host.head_index", head_index_);
  host_.head_targets = twin("host.head_targets", head_targets_);
  host_.head_logits = twin("host.head_logits", head_logits_);
  host_.pairs = twin("host.pairs", pairs_);
  host_.pair_logps = twin("host.pair_logps", pair_logps_);
  host_.pair_reference = twin("host.pair_reference", pair_reference_);
  host_.prompt = twin("host.prompt", prompt_);
  host_.next = twin("host.next_token", next_);
  host_.logits = twin("host.next_logits", logits_);
  host_.sources = twin("host.row_sources", sources_);
}

StepState& Session::state() {
  if (!host_.state.defined()) return *step_state(state_.view());
  if (device_ahead_) ctx_.read(host_.state.view().data, state_);
  device_ahead_ = false;
  host_ahead_ = true;
  return *step_state(host_.state.view());
}

void Session::send(const Tensor& device, const Tensor& host) {
  if (host.defined() && !ctx_.planning()) ctx_.write(device, host.view().data);
}

void Session::send_state() {
  if (host_ahead_) send(state_, host_.state);
  host_ahead_ = false;
}

void Session::send_batch() {
  send_state();
  send(tokens_, host_.tokens);
  send(targets_, host_.targets);
  send(document_start_, host_.document_start);
  send(types_, host_.types);
  send(head_index_, host_.head_index);
  send(head_targets_, host_.head_targets);
  send(pairs_, host_.pairs);
  if (decisions_.pairs.cached) send(pair_reference_, host_.pair_reference);
}

void Session::read_pairs() {
  if (decisions_.pairs.reward && host_.head_logits.defined() && !ctx_.planning())
    ctx_.read(host_.head_logits.view().data, head_logits_);
  if (!host_.pairs.defined() || ctx_.planning()) return;
  ctx_.read(host_.pair_logps.view().data, pair_logps_);
  if (host_.pair_reference.defined() && !decisions_.pairs.cached)
    ctx_.read(host_.pair_reference.view().data, pair_reference_);
}

void Session::make_generation() {
  cache_ = model_.make_cache(ctx_, decisions_.kv_rows, decisions_.kv_length, decisions_.prefill);
}

RestingWeights Session::resting() {
  RestingWeights weights = stores_->resting();
  if (code_ >= 0) weights.set_sink(this);
  return weights;
}

void Session::code(int param, size_t k, const std::function<void(float*)>& fill) {
  ctx_.program(schedule_, code_, [&] { stores_->coded()->encode(ctx_, param, k, fill); });
}

void Session::load() {
  ctx_.program(schedule_, load_, [&] {
    stores_->load(ctx_);
    if (packed_) packed_->pack(ctx_, stores_->weights(), true);
  });
  none_late();
  if (!norms_.empty()) start_adapters();
  kept_ = true;  // whatever a warm-up left
}

void Session::begin_window(uint64_t seed, int64_t step, int64_t trained_tokens) {
  StepState& s = state();
  s.seed = seed;
  s.step = step;
  s.loss_sum = 0.0;
  s.loss_tokens = 0;
  s.position = 0;
  s.inverse_tokens = trained_tokens > 0 ? 1.0f / static_cast<float>(trained_tokens) : 0.0f;
}

namespace {

// The first windows of planned ones, with so many tokens each.
View in_use(const Tensor& planned, const Session::Extent& used) {
  if (!planned.defined()) return {};
  View v = planned.view();
  v.shape =
      v.shape.rank() == 1 ? Shape{used.windows * used.tokens} : Shape{used.windows, used.tokens};
  return v;
}

// Rows of a chunk where `rows` rows make as many chunks as `planned` ones, none larger than it was; 0:
// they cannot.
int64_t same_chunks(int64_t planned, int64_t rows, int64_t chunk) {
  if (rows == planned || chunk <= 0) return chunk;
  const int64_t whole = (planned - 1) / chunk;  // chunks before the last
  if (whole == 0) return rows;
  const int64_t each = std::min(chunk, (rows - 1) / whole);
  return rows - whole * each <= std::min(each, planned - whole * chunk) ? each : 0;
}

}  // namespace

Session::Extent Session::fit(bool evaluation, int64_t windows, int64_t tokens) const {
  const Decisions& d = decisions_;
  const Extent planned{evaluation ? d.eval_batch : d.micro_batch, d.T};
  Extent wanted{windows, tokens};
  require(d.packing_boundaries && windows >= 1 && windows <= planned.windows && tokens >= 1 &&
              tokens <= d.T,
          "windows of rows in use, at most those planned");
  if (ctx_.by_kernels() || model_.spec().rope.by_length(d.T)) return planned;
  const bool masked = model_.spec().head == HeadKind::masked_lm;
  int64_t& more = masked ? wanted.windows : wanted.tokens;
  while (d.head_rows > 0 && head_rows(planned.windows, wanted) == 0)
    if (++more > (masked ? planned.windows : d.T)) return planned;
  return wanted;
}

Session::Extent Session::used(int64_t B) {
  const Extent e = extent_;
  extent_ = {};
  require(e.windows <= B && e.tokens <= decisions_.T, "an extent of this program");
  return e.windows > 0 ? e : Extent{B, decisions_.T};
}

// Of a chunk, where the head makes logits in chunks: so that there are as many as planned. 0: there
// cannot be.
int64_t Session::head_rows(int64_t B, const Extent& used) const {
  const Decisions& d = decisions_;
  const HeadKind head = model_.spec().head;
  if (head == HeadKind::causal_lm) return same_chunks(B * d.T, used.places(), d.head_rows);
  if (head == HeadKind::masked_lm)
    return same_chunks(B * d.rows_per_window, used.windows * d.rows_per_window, d.head_rows);
  return d.head_rows;
}

ModelBatch Session::batch(const Extent& used) const {
  ModelBatch batch{.tokens = in_use(tokens_, used), .targets = {}};
  const int64_t R = decisions_.rows_per_window;
  if (R == 0) {
    batch.targets = in_use(targets_, used);
    if (!pairs_.defined()) return batch;
    const int64_t P = used.windows * decisions_.pairs.per_window;
    batch.pairs = {
        .pairs = pairs_.view().rows(0, P),
        .reference = pair_reference_.defined() ? pair_reference_.view().rows(0, P) : View(),
        .logps = pair_logps_.view().rows(0, P),
        .loss = decisions_.pairs.loss};
    return batch;
  }
  if (types_.defined()) batch.token_types = in_use(types_, used);
  batch.head = {.index = head_index_.view().rows(0, used.windows * R),
                .targets = head_targets_.view().rows(0, used.windows * R),
                .logits = head_logits_.view(),
                .rows_per_window = R,
                .reward = decisions_.pairs.reward};
  if (View& logits = batch.head.logits; decisions_.pairs.reward)
    logits = logits.rows(0, used.windows * R);
  return batch;
}

View Session::batch_document_start(const Extent& used) const {
  return in_use(document_start_, used);
}

Runtime Session::runtime(GradSink* gradients, const View& document_start, KvCache* cache) {
  Runtime rt{stores_->params(), gradients, state_, cache, packed_.get(), document_start};
  if (!norms_.empty()) rt.norms = &norms_;
  return rt;
}

void Session::micro(bool first_of_window, bool last_of_window) {
  const int64_t B = decisions_.micro_batch;
  const Extent used = this->used(B);
  require(!stores_->updates_in_backward() || first_of_window || ctx_.planning(),
          "one micro-step a window, to update in backward");
  train_weights();
  stores_->begin(first_of_window, last_of_window);
  send_batch();
  const bool sums = micro_last_ >= 0 && last_of_window;
  const int program = sums ? (first_of_window ? micro_only_ : micro_last_)
                           : (first_of_window ? micro_first_ : micro_next_);
  summed_ = sums;
  const bool applies = decisions_.delayed_update && first_of_window;
  ctx_.repeat(schedule_, program, [&] {
    if (applies) ctx_.host_from_here();
    if (reference_pass_) reference(*reference_pass_, B, used);
    Runtime rt = runtime(&stores_->gradients(), batch_document_start(used));
    if (stores_->updates_in_backward()) {
      gradient_norm_reset(ctx_, state_);
      clip(ctx_, state_, 0);
    }
    const ModelBatch given = batch(used);
    Tensor x = model_.forward(ctx_, rt, *train_pass_, given, PassMode::train);
    Tensor dx = model_.loss(ctx_, rt, *train_pass_, given, head_rows(B, used), std::move(x));
    model_.backward(ctx_, rt, *train_pass_, std::move(dx));
    stores_->end(ctx_);
    if (applies) update_late();
  });
  if (applies) none_late();
  device_ahead_ = true;
  read_pairs();
}

void Session::update() {
  require(micro_last_ < 0 || summed_, "an update behind a window's last micro-step");
  send_state();
  // A graph asks nobody on its way.
  if (UpdateGate* gate = stores_->gate(); gate != nullptr && ctx_.settings().graphs)
    for (int i = 0; i < model_.params().size(); ++i) gate->pass(i);
  ctx_.repeat(schedule_, update_, [&] {
    if (stores_->updates_in_backward()) {
      stores_->finish(ctx_, state_);
    } else {
      stores_->sum_ranks(ctx_);
      stores_->sum_squares(ctx_, state_);
      clip(ctx_, state_, decisions_.max_grad_norm);
      apply_gradients();
    }
    if (packed_) packed_->pack(ctx_, stores_->weights(), false);
    if (model_.precision().loss_scaling()) update_loss_scale(ctx_, state_, decisions_.loss_scaling);
  });
  if (decisions_.delayed_update) turn_late();
  device_ahead_ = true;
}

void Session::evaluate() {
  const int64_t B = decisions_.eval_batch;
  const Extent used = this->used(B);
  send_batch();
  ctx_.repeat(schedule_, eval_, [&] {
    if (reference_pass_) reference(*reference_pass_, B, used);
    Runtime rt = runtime(nullptr, batch_document_start(used));
    ModelBatch all = batch(used);
    if (View& logits = all.head.logits; logits.defined())
      logits = logits.rows(0, used.windows * decisions_.rows_per_window);
    model_.evaluate(ctx_, rt, *eval_pass_, all, head_rows(B, used));
    stores_->done_reading(ctx_);
  });
  if (host_.head_logits.defined() && !ctx_.planning() && !decisions_.pairs.reward)
    ctx_.read(host_.head_logits.view().data, head_logits_);
  device_ahead_ = true;
  read_pairs();
}

void Session::prefill(int64_t row) {
  cache_.first_row = row;
  send_state();
  send(prompt_, host_.prompt);
  ctx_.program(schedule_, prefill_program_, [&] {
    Runtime rt = runtime(nullptr, {}, &cache_);
    model_.hidden(ctx_, rt, *prefill_pass_, prompt_, PassMode::inference);
    stores_->done_reading(ctx_);
  });
}

void Session::decode() {
  cache_.first_row = 0;
  send_state();
  send(next_, host_.next);
  ctx_.repeat(schedule_, decode_program_, [&] {
    Runtime rt = runtime(nullptr, {}, &cache_);
    const Tensor h = model_.hidden(ctx_, rt, *decode_pass_, next_, PassMode::inference);
    model_.logits(ctx_, rt, logits_, h);
    stores_->done_reading(ctx_);
  });
  if (host_.logits.defined() && !ctx_.planning()) ctx_.read(host_.logits.view().data, logits_);
}

void Session::fork() {
  send_state();
  send(sources_, host_.sources);
  ctx_.program(schedule_, fork_program_, [&] {
    for (size_t l = 0; l < cache_.k.size(); ++l)
      cache_rows_copy(ctx_, cache_.k[l], cache_.v[l], sources_, state_, cache_.ring(l));
  });
}

void Session::save_model(const std::string& path, const SafetensorsLayout& layout,
                         const std::string& pieces) {
  static const Name kStaging("save.staging");
  ctx_.program(schedule_, save_, [&] {
    const int64_t bytes = save_staging_bytes(model_);
    const int64_t more = ctx_.by_kernels() ? turned_bytes(model_) : 0;
    const Tensor staging =
        ctx_.by_kernels() ? ctx_.host_tensor(kStaging, {bytes + more}, DType::u8)
                          : ctx_.tensor(kStaging, {bytes + more}, DType::u8, Category::workspace);
    if (pieces.empty())
      save_weights(ctx_, model_, layout, resting(), staging, path);
    else
      join_weights(ctx_, model_, layout, pieces, staging, path);
  });
}

}  // namespace snug
