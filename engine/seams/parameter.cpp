#include "engine/seams/parameter.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/seams/weight_codes.h"

namespace snug {

int ParamTable::add(ParamInfo info) {
  if (info.rows == 0 && info.shape.rank() > 0) info.rows = info.shape[0];
  require(info.shape.rank() == 0 || (info.rows >= 0 && info.rows <= info.shape[0]),
          "no more real rows than a parameter has");
  require(find(info.name.view()) < 0, "one parameter of each name");
  if (frozen_ && frozen_(info.name.view())) info.trainable = false;
  const int added = size();
  if (codes_ && !info.trainable) info.code_rows = codes_->rows(info);
  if (!info.code_rows.empty()) {
    for (const int64_t rows : info.code_rows)
      info.code_bytes += codes_->bytes(rows, info.elements() / info.shape[0]);
    info.offset = coded_bytes_;
    params_.push_back(std::move(info));
    coded_.push_back(added);
    coded_bytes_ += round_up(params_.back().code_bytes, kSpanAlignment);
    ends_.push_back(coded_bytes_);
    return added;
  }
  params_.push_back(info);
  // Trained ones, frozen ones, frozen tables.
  const auto kind = [](const ParamInfo& p) { return p.trainable ? 0 : (p.frozen_table() ? 2 : 1); };
  auto at = by_offset_.insert(std::find_if(by_offset_.begin(), by_offset_.end(),
                                           [&](int i) { return kind((*this)[i]) > kind(info); }),
                              added);
  ends_.push_back(0);
  flat_ = 0;
  // The one before may have been the last of its run.
  if (at != by_offset_.begin()) flat_ = (*this)[*--at].offset;
  for (; at != by_offset_.end(); ++at) {
    ParamInfo& p = params_[static_cast<size_t>(*at)];
    p.offset = flat_;
    flat_ += round_up(p.elements(), kSpanAlignment);
    const auto next = at + 1;
    if (next == by_offset_.end() || (*this)[*next].part != p.part ||
        kind((*this)[*next]) != kind(p))
      flat_ = round_up(flat_, kSpanAlignment * ranks_);
    ends_[static_cast<size_t>(*at)] = flat_;
  }
  if (info.trainable) trained_ = end_of(added);
  return added;
}

int64_t ParamTable::tables_first() const {
  for (const int i : by_offset_)
    if ((*this)[i].frozen_table()) return (*this)[i].offset;
  return flat_;
}

int64_t ParamTable::real_elements() const {
  int64_t sum = 0;
  for (const ParamInfo& p : params_) sum += p.real_elements();
  return sum;
}

int64_t ParamTable::real_trained_elements() const {
  int64_t sum = 0;
  for (const ParamInfo& p : params_) sum += p.trainable ? p.real_elements() : 0;
  return sum;
}

int ParamTable::find(std::string_view name) const {
  for (int i = 0; i < size(); ++i)
    if ((*this)[i].name.view() == name) return i;
  return -1;
}

View parameter_view(const View& flat, const ParamInfo& info) {
  require(!info.coded(), "a parameter of the flat range");
  View v = flat.rows(info.offset, info.elements()).reshaped(info.shape);
  v.name = info.name;
  return v;
}

RestingWeights::RestingWeights(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  std::sort(pieces_.begin(), pieces_.end(),
            [](const Piece& a, const Piece& b) { return a.first < b.first; });
}

const RestingWeights::Piece& RestingWeights::at_element(int64_t first) const {
  const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), first,
                                      [](int64_t f, const Piece& p) { return f < p.first; });
  require(after != pieces_.begin() && first <= (after - 1)->first + (after - 1)->view.elements(),
          "an element of the flat range");
  return *(after - 1);
}

View RestingWeights::rows(int64_t first, int64_t n) const {
  const Piece& piece = at_element(first);
  require(first + n <= piece.first + piece.view.elements(), "elements of one piece");
  return piece.view.rows(first - piece.first, n);
}

CodeSink& RestingWeights::sink() const {
  require(sink_ != nullptr, "a sink for what rests in codes");
  return *sink_;
}

int64_t RestingWeights::reach(int64_t first) const {
  const Piece& piece = at_element(first);
  return piece.first + piece.view.elements() - first;
}

bool RestingWeights::whole(int64_t first, int64_t n) const {
  const Piece& piece = at_element(first);
  return piece.own && first + n <= piece.first + piece.view.elements();
}

int64_t RestingWeights::bytes() const {
  int64_t sum = 0;
  for (const Piece& p : pieces_) sum += p.view.bytes();
  return sum;
}

}  // namespace snug
