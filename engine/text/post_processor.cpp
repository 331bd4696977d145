#include "engine/text/post_processor.h"

namespace snug {
namespace {

void append(TokenSequence& out, std::span<const int32_t> ids, int32_t type_id) {
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  out.type_ids.resize(out.ids.size(), type_id);
}

}  // namespace

TokenSequence PostProcessor::single(std::span<const int32_t> a) const {
  TokenSequence out;
  if (!set_) append(out, a, 0);
  for (const Part& part : single_) {
    append(out, part.kind == Part::Kind::special ? std::span<const int32_t>(part.ids) : a,
           part.type_id);
  }
  return out;
}

TokenSequence PostProcessor::pair(std::span<const int32_t> a, std::span<const int32_t> b) const {
  TokenSequence out;
  if (!set_) {
    append(out, a, 0);
    append(out, b, 1);
  }
  for (const Part& part : pair_) {
    const bool special = part.kind == Part::Kind::special;
    append(out,
           special                          ? std::span<const int32_t>(part.ids)
           : part.kind == Part::Kind::first ? a
                                            : b,
           part.type_id);
  }
  return out;
}

}  // namespace snug
