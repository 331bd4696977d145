#include "engine/data/split_file.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/units.h"

namespace snug {
namespace {

constexpr int64_t kBlock = 512;  // document ends read at a time: 4 KiB of the stack
// Apart from the order of the samples, which the same seed fixes.
constexpr uint64_t kHeldOutSalt = 0x68656c646f757421u;

}  // namespace

HeldOut::HeldOut(int64_t documents, int64_t held, uint64_t seed)
    : held_(held), order_(std::max<int64_t>(1, documents), seed ^ kHeldOutSalt) {
  require(held >= 0 && held <= documents, "no more documents held out than there are");
}

SplitFile::SplitFile(TokenFile file, int64_t first, const HeldOut& held, int64_t entries)
    : file_(std::move(file)), first_(first), held_(held) {
  require(file_.documents() >= 0 || held.count() == 0, "documents to hold out");
  stride_ = std::max<int64_t>(1, ceil_div(documents(), std::max<int64_t>(1, entries)));
  anchors_.reserve(static_cast<size_t>(ceil_div(documents(), stride_)));
  std::array<int64_t, kBlock> end;
  int64_t before = 0;
  for (int64_t d = 0; d < documents(); d += kBlock) {
    const int64_t count = std::min(kBlock, documents() - d);
    ends(d, count, end.data());
    for (int64_t i = 0; i < count; ++i) {
      if ((d + i) % stride_ == 0) anchors_.push_back({{sizes_[0], sizes_[1]}});
      sizes_[held_(first_ + d + i) ? 1 : 0] += end[static_cast<size_t>(i)] - before;
      before = end[static_cast<size_t>(i)];
    }
  }
}

void SplitFile::ends(int64_t first, int64_t count, int64_t* out) const {
  if (file_.documents() > 0)
    file_.document_ends(first, count, out);
  else
    *out = file_.size();  // one document
}

template <class F>
void SplitFile::walk(Part part, int64_t begin, int64_t count, const F& visit) const {
  const int p = static_cast<int>(part);
  require(begin >= 0 && count >= 0 && begin <= sizes_[p] - count, "a range inside the text");
  if (count == 0) return;
  // The last anchor that begins at or before `begin`.
  const auto it = std::upper_bound(anchors_.begin(), anchors_.end(), begin,
                                   [&](int64_t at, const Anchor& a) { return at < a.begin[p]; });
  const int64_t anchor = it - anchors_.begin() - 1;
  int64_t document = anchor * stride_;
  int64_t at = anchors_[static_cast<size_t>(anchor)].begin[p];  // of the document in the text
  int64_t from = 0;                                             // and in the file
  if (document > 0) ends(document - 1, 1, &from);
  std::array<int64_t, kBlock> end;
  while (true) {
    const int64_t block = std::min({kBlock, stride_ + 64, documents() - document});
    ends(document, block, end.data());
    for (int64_t i = 0; i < block; ++i, ++document) {
      const int64_t to = end[static_cast<size_t>(i)], length = to - from;
      if (held_(first_ + document) == (part == Part::held)) {
        const int64_t skip = std::max<int64_t>(0, begin - at);
        if (skip < length) {
          const int64_t n = std::min(length - skip, count);
          visit(from + skip, n);
          begin += n;
          count -= n;
          if (count == 0) return;
        }
        at += length;
      }
      from = to;
    }
    require(document < documents(), "documents that hold the text");
  }
}

void SplitFile::copy(Part part, int64_t begin, int64_t count, int32_t* out) const {
  if (part == Part::train && held_.count() == 0) {
    file_.copy(begin, count, out);
    return;
  }
  int64_t from = 0, held = 0;  // a stretch not read yet
  walk(part, begin, count, [&](int64_t place, int64_t n) {
    if (place != from + held) {
      file_.copy(from, held, out);
      out += held;
      from = place;
      held = 0;
    }
    held += n;
  });
  file_.copy(from, held, out);
}

void SplitFile::positions(Part part, int64_t begin, int64_t count, int32_t* out) const {
  walk(part, begin, count, [&](int64_t, int64_t n) {
    for (int64_t i = 0; i < n; ++i) *out++ = static_cast<int32_t>(i);
  });
}

void SplitFile::document_starts(Part part, int64_t begin, int64_t count, int32_t* out) const {
  int64_t at = 0;
  walk(part, begin, count, [&](int64_t, int64_t n) {
    std::fill_n(out + at, n, static_cast<int32_t>(at));
    at += n;
  });
}

int64_t SplitFile::documents_begin(Part part, int64_t begin, int64_t count) const {
  require(begin >= 1, "a token before the first");
  int64_t pieces = 0;
  walk(part, begin - 1, count + 1, [&](int64_t, int64_t) { ++pieces; });
  return pieces - 1;  // the first holds the token before
}

}  // namespace snug
