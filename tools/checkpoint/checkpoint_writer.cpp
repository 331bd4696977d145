#include "tools/checkpoint/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "layers/models/adapter_files.h"
#include "layers/models/weights.h"
#include "tools/checkpoint/arena_values.h"
#include "tools/checkpoint/output_folder.h"
#include "tools/checkpoint/saved_state.h"
#include "tools/costs/state_bytes.h"

namespace snug {

namespace fs = std::filesystem;

namespace {

constexpr size_t kPathBytes = 4096;

// Parameter by parameter, as an update goes.
SafetensorsLayout optimizer_layout(Session& session) {
  std::vector<SafeSpec> specs;
  const StateSet states = session.optimizer().states(session.model().params());
  for (const StateSpan& span : whole_parameter_spans(session.model().params())) {
    const ParamInfo& p = session.model().params()[span.param];
    for (int k = 0; k < static_cast<int>(states.names.size()); ++k) {
      const RestForm form = states.form_of(k, span.param);
      const int64_t n = states.numbers(k, span.param, p.real_elements());
      if (n == 0) continue;  // nothing is kept of it
      const Name& name = states.names[static_cast<size_t>(k)];
      specs.push_back(saved_state(name, p, form, n, false).spec);
      if (form.coded()) specs.push_back(saved_state(name, p, form, n, true).spec);
    }
    const StateStore& store = session.optimizer_state();
    for (int k = store.states(); k < store.saved(); ++k)
      specs.push_back(
          saved_state(Name(kLateGradient), p, store.form(k, span), p.real_elements(), false).spec);
  }
  SafeMetadata metadata = {{"format", "pt"}};
  if (session.optimizer().config().state != StateForm::f32)
    metadata[kStateFormKey] = to_string(session.optimizer().config().state);
  return SafetensorsLayout(std::move(metadata), std::move(specs));
}

[[noreturn]] void fail_folder(const char* what, const std::string& folder, int code) {
  fail(ErrorCode::device, fmt::format("to {} {}", what, folder),
       std::generic_category().message(code),
       code == ENOSPC || code == EDQUOT ? "free disk space, or another output_dir"
                                        : "check the rights and the health of that disk, or "
                                          "another output_dir");
}

}  // namespace

CheckpointWriter::CheckpointWriter(Session& session, std::string output_dir, int64_t keep,
                                   bool background, std::optional<WriterRank> rank)
    : session_(session),
      output_dir_(std::move(output_dir)),
      keep_(keep),
      rank_(std::move(rank)),
      weights_(session.resting()),
      names_{weights_file(session.model()), kStatesFile},
      layouts_{weights_layout(session.model(), session.model().precision().master, "", false),
               optimizer_layout(session)},
      ring_(static_cast<char*>(session.save_ring().data), session.save_ring().bytes(), background) {
  for (AtomicFile* file : {&files_[0], &files_[1], &marker_}) file->reserve(kPathBytes);
  for (std::string* path : {&folder_, &final_name_, &paths_[0], &paths_[1], &paths_[2]})
    path->reserve(kPathBytes);
  seal_.reserve(64 << 10);
  sealed_.reserve(kPathBytes);
  for (int i = 0; i < session.model().params().size(); ++i)
    groups_.push_back(row_groups(session.model(), i));
  if (!rank_) return;
  signs_ = std::make_unique<SignThread>(rank_->go_on);
  pieces_ = std::make_unique<RankPieces>(session, rank_->rank, names_, layouts_);
  for (std::string& name : names_) name = rank_file(name, rank_->rank);
}

CheckpointWriter::~CheckpointWriter() {
  leaving_ = true;  // nobody is waited for any more
}

SaveJob::Piece CheckpointWriter::gather(char* out, int64_t room) {
  if (pieces_) {
    const RankPieces::Read read = pieces_->read(out, room);
    return {read.file, read.bytes};
  }
  const ParamTable& table = session_.model().params();
  StateStore& store = session_.optimizer_state();
  while (param_ < table.size()) {
    if (!is_saved(session_.model(), static_cast<int>(param_))) {
      ++param_;
      continue;
    }
    const ParamInfo& p = table[static_cast<int>(param_)];
    const StateSpan span{static_cast<int>(param_), p.group, p.offset, p.real_elements()};
    // Tensors of its states: of codes the scales too.
    int64_t states = 0;
    int state = 0;  // which of them state_ is of, and how it rests
    bool scales = false;
    RestForm form;
    for (int k = 0; p.trainable && k < store.saved(); ++k) {
      const RestForm own = store.form(k, span);
      for (const bool second : {false, true}) {
        if (second && !own.coded()) continue;
        if (++states != state_) continue;
        state = k;
        scales = second;
        form = own;
      }
    }
    int64_t left = p.real_elements();
    if (state_ > 0) left = store.numbers(state, span);
    if (state_ > 0)
      left = scales ? form.scales(left) : form.coded() ? saved_code_bytes(form, left) : left;
    left -= element_;
    if (state_ > states || left == 0) {
      element_ = 0;
      if (++state_ > states) {
        state_ = 0;
        ++param_;
      }
      continue;
    }
    int64_t n = std::min(left, room / 4), bytes = 4;
    auto* const values = reinterpret_cast<float*>(out);
    if (state_ > 0) {
      bytes = scales ? 4 : size_of(form.dtype);
      n = std::min(left, room / bytes);
      n = read_state(out, state, span, form, scales, n);
    } else if (p.transposed_in_file && p.shape.rank() == 2) {
      View own;
      if (const View& turned = session_.save_turned(); turned.defined())
        own = read_whole(p, turned, element_ == 0);
      else
        own = weights_.rows(p.offset, p.elements());
      transposed_to_f32(values, own, p.shape[1], p.shape[0], element_, n);
    } else if (const RowGroups& groups = groups_[static_cast<size_t>(param_)]; groups.any()) {
      const int64_t width = p.real_elements() / p.rows, run = groups.rows * width;
      for (int64_t done = 0; done < n;) {
        const int64_t at = element_ + done;
        int64_t count = std::min(n - done, run - at % run);
        const int64_t from = groups.ours(at / width) * width + at % width;
        count = std::min(count, weights_.reach(p.offset + from));
        read_values(session_.context(), values + done, weights_.rows(p.offset + from, count));
        done += count;
      }
    } else {
      n = std::min(n, weights_.reach(p.offset + element_));
      read_values(session_.context(), values, weights_.rows(p.offset + element_, n));
    }
    if (state_ == 0 && no_master(session_.model().precision())) bytes = narrow_values(out, n);
    const int file = state_ == 0 ? kModel : kOptimizer;
    element_ += n;
    if (n == left) {  // at once, so that an update need not wait for the next call
      element_ = 0;
      if (++state_ > states) {
        state_ = 0;
        ++param_;
      }
    }
    return {file, n * bytes};
  }
  return {};
}

// All of a parameter, in the bytes of `room`; read there first if `anew`.
View CheckpointWriter::read_whole(const ParamInfo& p, const View& room, bool anew) {
  View all;
  weights_.each(
      p.offset, p.elements(), [&](const RestingWeights::Piece&, int64_t at, const View& v) {
        if (at == p.offset) all = v;
        auto* const to = static_cast<char*>(room.data) + (at - p.offset) * size_of(v.dtype);
        if (anew) read_beside(session_.context(), to, v);
      });
  all.shape = {p.elements()};
  all.data = room.data;
  return all;
}

// Numbers of a state from element_ on, at most n; gives how many. What fills the codes' last word is
// zero.
int64_t CheckpointWriter::read_state(char* out, int k, const StateSpan& span, const RestForm& form,
                                     bool scales, int64_t n) {
  StateStore& store = session_.optimizer_state();
  const int64_t each = scales ? form.block : form.coded() ? 8 / form.bits : 1;
  const int64_t behind = form.coded() && !scales ? form.value_bytes(span.elements) : INT64_MAX;
  if (element_ >= behind) {
    std::memset(out, 0, static_cast<size_t>(n));
    return n;
  }
  const int64_t first = span.offset + element_ * each;
  const View all = scales ? store.stored_scales(k, first) : store.stored(k, first);
  n = std::min({n, all.elements(), behind - element_});
  store.read_stored(session_.context(), out, k, first, scales, n);
  return n;
}

void CheckpointWriter::write(int file, const char* data, int64_t bytes) {
  digests_[file].add(data, bytes);
  files_[file].write(data, bytes);
  go_on();
}

// On the ring's thread: nothing here takes memory unless it fails.
void CheckpointWriter::finish() {
  const SignThread::During lasting(signs_.get());
  for (const int file : {kModel, kOptimizer}) {
    require(files_[file].size() == own_layout(file).total_bytes(), "a checkpoint of planned size");
    seal_.add(names_[file], files_[file].size(), digests_[file].digest());
    files_[file].commit();
  }
  if (!leads()) {
    marker_.open(sealed_);
    marker_.write(seal_.text());
    marker_.commit();
    ended_ = monotonic_seconds();
    return;
  }
  if (rank_) await_ranks();
  seal_.close();
  marker_.open(paths_[2]);
  marker_.write(seal_.text());
  marker_.commit();
  // A checkpoint of the same step is exchanged for it by poll().
  in_place_ = ::rename(folder_.c_str(), final_name_.c_str()) == 0;
  if (!in_place_ && errno != ENOTEMPTY && errno != EEXIST) fail_folder("rename", folder_, errno);
  if (in_place_) sync_folder(output_dir_);
  ended_ = monotonic_seconds();
}

void CheckpointWriter::write_small_files(const RunPosition& at, const Pinned& pinned,
                                         const Hyperparameters& hyperparameters,
                                         const std::function<void(const std::string&)>& extra) {
  const SignThread::During lasting(signs_.get());
  std::error_code error;
  fs::remove_all(folder_, error);
  // Not with its parents: an output_dir that is gone is not made anew behind the user's back.
  if (!fs::create_directory(folder_, error)) {
    if (error == std::errc::no_such_file_or_directory)
      fail(ErrorCode::device, fmt::format("output_dir {} to write a checkpoint to", output_dir_),
           "it is gone: renamed, removed or unmounted since the start",
           "put it back and resume=latest");
    fail_folder("create", folder_, error ? error.value() : EEXIST);
  }
  extra(folder_);
  if (pieces_) write_texts(folder_, false);
  write_json_file(folder_ + "/snug_state.json", checkpoint_state_json(at, pinned, hyperparameters));
  std::vector<fs::path> small;
  // What the checkpoint is made of, all durable by now.
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error))
    if (it->is_regular_file(error)) small.push_back(it->path());
  if (error) fail_folder("read", folder_, error.value());
  std::sort(small.begin(), small.end());
  seal_.begin(at.step);
  for (const fs::path& path : small) {
    const std::string bytes = read_file(path.string());
    seal_.add(path.filename().string(), static_cast<int64_t>(bytes.size()), fingerprint(bytes));
  }
}

void CheckpointWriter::begin(const RunPosition& at, const Pinned& pinned,
                             const Hyperparameters& hyperparameters,
                             const std::function<void(const std::string&)>& extra) {
  require(!open_, "wait() before the next begin()");
  began_ = monotonic_seconds();
  stall_before_ = ring_.update_stall();
  step_ = at.step;
  best_step_ = at.best_saved_step;
  final_name_.clear();
  fmt::format_to(std::back_inserter(final_name_), "{}/{}{}", output_dir_, kCheckpointPrefix,
                 at.step);
  folder_.assign(final_name_).append(".tmp");
  paths_[0].assign(folder_).append("/").append(names_[kModel]);
  paths_[1].assign(folder_).append("/").append(names_[kOptimizer]);
  paths_[2].assign(folder_).append("/COMPLETE");
  if (leads())
    write_small_files(at, pinned, hyperparameters, extra);
  else
    seal_.begin_part();
  if (rank_) {
    set_sealed(rank_->rank);
    rank_->meet();
    pieces_->begin(false);
  }
  param_ = state_ = element_ = 0;
  in_place_ = false;
  marker_.abandon();  // of one that failed, like the others
  for (const int file : {kModel, kOptimizer}) {
    files_[file].abandon();
    files_[file].open(paths_[file]);
    digests_[file] = {};
    const std::string& header = own_layout(file).header();
    write(file, header.data(), static_cast<int64_t>(header.size()));
  }
  open_ = true;
  ring_.start(*this);
  stall_ = monotonic_seconds() - began_;
}

std::optional<CheckpointWriter::Saved> CheckpointWriter::poll() {
  if (!open_ || ring_.busy()) return std::nullopt;
  open_ = false;
  ring_.rethrow();
  const double now = monotonic_seconds();
  if (leads()) {
    const SignThread::During lasting(signs_.get());
    if (guard_) guard_();
    if (!in_place_) replace_folder(folder_, final_name_);
    remove_old();
  }
  stall_ += monotonic_seconds() - now + ring_.update_stall() - stall_before_;
  const Saved saved = {final_name_, bytes(), ended_ - began_, stall_};
  ++written_;
  total_seconds_ += saved.seconds;
  total_stall_ += saved.stall;
  if (!leads()) return std::nullopt;  // for rank 0 to say, when all are through
  return saved;
}

std::optional<CheckpointWriter::Saved> CheckpointWriter::wait() {
  if (!open_) return std::nullopt;
  const double now = monotonic_seconds();
  ring_.wait();
  stall_ += monotonic_seconds() - now;
  return poll();
}

// Of `keep_` checkpoints one is the best; the newest stays in any case.
void CheckpointWriter::remove_old() const {
  if (keep_ <= 0) return;
  std::vector<int64_t> steps;
  for (const int64_t step : checkpoint_steps(output_dir_))
    if (step != step_ &&
        checkpoint_complete(fmt::format("{}/{}{}", output_dir_, kCheckpointPrefix, step)))
      steps.push_back(step);
  int64_t room = keep_ - 1;
  const bool best = std::find(steps.begin(), steps.end(), best_step_) != steps.end();
  if (best) room = std::max<int64_t>(0, room - 1);
  for (size_t i = steps.size(); i-- > 0;) {
    if (steps[i] == best_step_ || room-- > 0) continue;
    const std::string folder = fmt::format("{}/{}{}", output_dir_, kCheckpointPrefix, steps[i]);
    std::error_code error;
    fs::remove(folder + "/COMPLETE", error);  // first: half a checkpoint must not look whole
    fs::remove_all(folder, error);
  }
}

}  // namespace snug
