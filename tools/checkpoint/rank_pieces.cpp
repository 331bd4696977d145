#include "tools/checkpoint/rank_pieces.h"

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"
#include "engine/stores/shards.h"
#include "layers/models/adapter_files.h"
#include "tools/checkpoint/arena_values.h"
#include "tools/checkpoint/saved_state.h"
#include "tools/costs/state_bytes.h"

namespace snug {

RankPieces::RankPieces(Session& session, int rank, const std::string (&files)[2],
                       const SafetensorsLayout (&layouts)[2])
    : session_(session), rank_(rank), weights_(session.resting()) {
  const ParamTable& table = session.model().params();
  const Shards shards(table, Shards::Range::all);
  for (auto& specs : specs_) specs.resize(static_cast<size_t>(shards.ranks()));
  size_t tensor = 0;
  for (int i = 0; i < table.size(); ++i) {
    if (!is_saved(session.model(), i)) continue;
    const ParamInfo& p = table[i];
    const ShardRun& run = shards.runs()[shards.run_of(p.offset)];
    std::vector<Own> owns;
    for (int r = 0; r < shards.ranks(); ++r) {
      const int64_t first = Shards::first(run, r) - p.offset;
      const int64_t begin = std::max<int64_t>(0, first);
      const int64_t end = std::min(p.real_elements(), first + run.piece);
      if (begin < end) owns.push_back({r, begin, end});
    }
    add_weights(i, owns, layouts[kModel], tensor);
    if (p.trainable) add_states(i, owns);
  }
  for (const int file : {kModel, kOptimizer}) {
    std::vector<std::string> names;
    for (int r = 0; r < shards.ranks(); ++r) names.push_back(rank_file(files[file], r));
    for (PiecedTensor& t : tensors_[file])
      std::sort(t.pieces.begin(), t.pieces.end(),
                [](const TensorPiece& a, const TensorPiece& b) { return a.first < b.first; });
    texts_[file] = pieces_text(layouts[file].metadata(), names, tensors_[file]);
    for (int r = 0; r < shards.ranks(); ++r) {
      SafetensorsLayout layout(layouts[file].metadata(),
                               std::move(specs_[file][static_cast<size_t>(r)]));
      bytes_[file] += layout.total_bytes();
      if (r == rank_) own_.push_back(std::move(layout));
    }
    specs_[file] = {};
  }
}

// Elements [first, first + elements) of a tensor, which are a rank's.
void RankPieces::add(PiecedTensor& tensor, const Own& own, int64_t first, int64_t elements,
                     Piece piece) {
  tensor.pieces.push_back({own.rank, first, elements});
  specs_[piece.file][static_cast<size_t>(own.rank)].push_back(
      {piece_name(tensor.name, first), tensor.dtype, {elements}});
  if (own.rank != rank_) return;
  piece.bytes = bits_of(tensor.dtype) / 8;
  list_.push_back(piece);
}

void RankPieces::add_weights(int param, const std::vector<Own>& owns,
                             const SafetensorsLayout& layout, size_t& tensor) {
  const ParamInfo& p = session_.model().params()[param];
  const bool turned = p.transposed_in_file && p.shape.rank() == 2;
  const int64_t width = p.real_elements() / std::max<int64_t>(1, p.rows);
  int64_t behind = 0;  // of the parameter, what the tensors before hold
  for (const FilePiece& part : saved_pieces(session_.model(), param)) {
    const SafeSpec& spec = layout.tensors()[tensor++];
    PiecedTensor t{spec.name, spec.dtype, spec.shape, turned, {}};
    // Elements [from, from + n) of the parameter are those from `to` on of the tensor.
    const auto add_run = [&](const Own& own, int64_t from, int64_t n, int64_t to) {
      const int64_t begin = std::max(own.begin, from), end = std::min(own.end, from + n);
      if (begin < end)
        add(t, own, to + begin - from, end - begin,
            {param, kModel, -1, false, p.offset + begin, end - begin, 1, 0, 0});
    };
    for (const Own& own : owns)
      if (part.groups.any())
        for (int64_t row = 0; row < part.rows; row += part.groups.rows)
          add_run(own, behind + part.groups.ours(row) * width, part.groups.rows * width,
                  row * width);
      else
        add_run(own, behind, part.rows * width, 0);
    behind += part.rows * width;
    tensors_[kModel].push_back(std::move(t));
  }
}

void RankPieces::add_states(int param, const std::vector<Own>& owns) {
  const ParamInfo& p = session_.model().params()[param];
  const StateSet set = session_.optimizer().states(session_.model().params());
  const StateStore& store = session_.optimizer_state();
  for (int k = 0; k < store.saved(); ++k) {
    const bool late = k >= store.states();
    const RestForm form =
        late ? store.form(k, {param, p.group, p.offset, 0}) : set.form_of(k, param);
    const int64_t n = late ? p.real_elements() : set.numbers(k, param, p.real_elements());
    if (n == 0) continue;
    require(n == p.real_elements(), "states with a number of every element, to be cut");
    for (const bool scales : {false, true}) {
      if (scales && !form.coded()) continue;
      const Name name = late ? Name(kLateGradient) : set.names[static_cast<size_t>(k)];
      const SavedState saved = saved_state(name, p, form, n, scales);
      PiecedTensor t{saved.spec.name, saved.spec.dtype, saved.spec.shape, false, {}};
      const int64_t zeros = t.elements() - saved.units;  // to whole words
      for (const Own& own : owns) {
        const int64_t begin = own.begin / saved.each, end = ceil_div(own.end, saved.each);
        const int64_t more = own.end == n ? zeros : 0;
        add(t, own, begin, end - begin + more,
            {param, kOptimizer, k, scales, p.offset + own.begin, end - begin, saved.each, 0, more});
      }
      tensors_[kOptimizer].push_back(std::move(t));
    }
  }
}

void RankPieces::begin(bool weights_alone) {
  next_ = 0;
  done_ = 0;
  weights_alone_ = weights_alone;
}

int64_t RankPieces::passed() const {
  return next_ < list_.size() ? list_[next_].param : session_.model().params().size();
}

RankPieces::Read RankPieces::read(char* out, int64_t room) {
  while (next_ < list_.size() && weights_alone_ && list_[next_].file != kModel) ++next_;
  if (next_ == list_.size()) return {};
  const Piece& p = list_[next_];
  const int64_t n = read_numbers(p, out, room);
  done_ += n;
  if (done_ == p.units + p.zeros) {
    ++next_;
    done_ = 0;
  }
  return {p.file, n * p.bytes};
}

int64_t RankPieces::read_numbers(const Piece& p, char* out, int64_t room) {
  const int64_t left = p.units - done_;
  if (left <= 0) {
    const int64_t n = std::min(room / p.bytes, p.units + p.zeros - done_);
    std::memset(out, 0, static_cast<size_t>(n * p.bytes));
    return n;
  }
  Context& ctx = session_.context();
  const int64_t first = p.first + done_ * p.each;
  if (p.state < 0) {
    const int64_t n = std::min({left, room / 4, weights_.reach(first)});
    read_values(ctx, reinterpret_cast<float*>(out), weights_.rows(first, n));
    if (p.bytes == 2) narrow_values(out, n);
    return n;
  }
  StateStore& store = session_.optimizer_state();
  const View all = p.scales ? store.stored_scales(p.state, first) : store.stored(p.state, first);
  const int64_t n = std::min({left, room / p.bytes, all.elements()});
  read_beside(ctx, out, all.rows(0, n));
  return n;
}

}  // namespace snug
