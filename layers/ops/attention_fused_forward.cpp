#include "layers/ops/attention_fused_forward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/units.h"
#include "layers/ops/attention_pack.h"
#include "layers/ops/dropout_mask.h"

namespace snug {
namespace {

constexpr int64_t kBlock = kAttentionBlock, kHalf = kBlock / 2;
constexpr int64_t kGroups = kBlock / kFusedTile;  // of queries of a block
// Keys and values that are in scratch at once: of all keys, up to 512 KiB at D = 64. Then a block
// of queries meets them all before the next one begins; with more keys the queries of a piece stay,
// be they one block or several, and meet the parts of the keys one after another.
constexpr int64_t kMostKeyBlocks = 32, kMostTogether = 8;

struct Query {
  float *turned, *out, *top, *sum;
  int32_t* sees;  // the first key of each query, then the end of them
};
struct Scratch {
  Query q[kMostTogether];
  float *rows, *columns, *k, *v, *s, *p, *factor;
  uint16_t* keep;
  int64_t queries, key_blocks;  // at once
  bool stay;                    // the queries, while parts of the keys come and go
  int64_t units, tall;          // of D, in tiles
  int64_t floats;

  int64_t k_ld() const { return units * kFusedTile; }
  float* k_block(int64_t n) const { return k + n * kBlock * k_ld(); }
  float* v_block(int64_t n) const { return v + n * tall * kFusedTile * kHalf; }
};

Scratch make_scratch(float* data, const AttentionSpec& spec, int64_t together, int64_t keys) {
  ScratchPieces pieces(data);
  Scratch s{};
  s.units = ceil_div(units_of(spec.D, true), kFusedTile);
  s.tall = ceil_div(spec.D, kFusedTile);
  s.key_blocks = std::min(kMostKeyBlocks, ceil_div(keys, kBlock));
  s.stay = s.key_blocks * kBlock < keys;
  s.queries = s.stay ? together : 1;
  for (int64_t i = 0; i < s.queries; ++i) {
    s.q[i].turned = pieces.take(s.k_ld() * kBlock);
    s.q[i].out = pieces.take(s.tall * kFusedTile * kBlock);
    s.q[i].top = pieces.take(kBlock);
    s.q[i].sum = pieces.take(kBlock);
    s.q[i].sees = reinterpret_cast<int32_t*>(pieces.take(2 * kBlock));
  }
  s.rows = pieces.take(kBlock * s.k_ld());
  s.columns = pieces.take(kHalf * round_up(spec.D, 8));
  s.k = pieces.take(s.key_blocks * kBlock * s.k_ld());
  s.v = pieces.take(s.key_blocks * s.tall * kFusedTile * kHalf);
  s.s = pieces.take(2 * kBlock * kFusedTile);
  s.p = pieces.take(kBlock * kFusedTile);
  s.factor = pieces.take(kBlock);
  s.keep = spec.dropout > 0 ? reinterpret_cast<uint16_t*>(pieces.take(kBlock * kAttentionWords / 2))
                            : nullptr;
  s.floats = pieces.used();
  return s;
}

class Piece {
 public:
  Piece(const AttentionFused& fused, const AttentionSpec& spec, const ForwardHead<bf16>& head,
        const Scratch& scratch, const ForwardHead<bf16>* ahead)
      : fused_(fused),
        spec_(spec),
        h_(head),
        ahead_(ahead),
        s_(scratch),
        scale_(spec),
        seen_(head.seen(spec)) {
    pass_.units = s_.units;
    pass_.tall = s_.tall;
    pass_.k_ld = s_.k_ld();
    pass_.v_ld = kHalf;
    pass_.factor2 = scale_.factor2;
    pass_.s = s_.s;
    pass_.p = s_.p;
    pass_.keep = s_.keep;
    pass_.key = h_.key;
    pass_.sample = h_.sample;
    pass_.threshold = dropout_threshold(spec.dropout);
  }

  void run(int64_t i0, int64_t rows) const {
    const int64_t end = visible(i0 + rows), chunk = s_.key_blocks * kBlock;
    const bool stay = s_.stay;
    for (int64_t i = 0; stay && i < rows; i += kBlock)
      load_queries(s_.q[i / kBlock], i0 + i, std::min(kBlock, rows - i));
    for (int64_t j0 = first_keys(i0); j0 < end; j0 += chunk) {
      const int64_t last = std::min(end, j0 + chunk);
      for (int64_t j = j0; j < last; j += kBlock)
        load_keys((j - j0) / kBlock, j, std::min(kBlock, h_.keys - j));
      for (int64_t i = 0; i < rows; i += kBlock) {
        const int64_t n = std::min(kBlock, rows - i);
        const Query& q = s_.q[stay ? i / kBlock : 0];
        if (!stay) load_queries(q, i0 + i, n);
        meet(q, i0 + i, n, j0, last);
        if (!stay) store(q, i0 + i, n);
      }
    }
    // Nobody sees a key: nothing above ran.
    const bool none = first_keys(i0) >= end;
    for (int64_t i = 0; (stay || none) && i < rows; i += kBlock) {
      const Query& q = s_.q[stay ? i / kBlock : 0];
      if (!stay) load_queries(q, i0 + i, std::min(kBlock, rows - i));
      store(q, i0 + i, std::min(kBlock, rows - i));
    }
  }

 private:
  // Keys that the queries before `end` see.
  int64_t visible(int64_t end) const { return seen_.end(end - 1); }
  int64_t first_keys(int64_t i0) const { return seen_.first_block(i0); }

  void load_keys(int64_t n, int64_t j0, int64_t keys) const {
    const int64_t D = spec_.D, ld = round_up(D, 8);
    pack_rows(s_.k_block(n), s_.k_ld(), h_.keys_at(j0), h_.kv_stride, keys, D, true);
    clear_rows(s_.k_block(n), s_.k_ld(), keys, kBlock);
    pack_columns(s_.columns, ld, h_.values_at(j0), h_.kv_stride, keys, D, true);
    turn_block(s_.v_block(n), s_.columns, ld, units_of(keys, true), D, kHalf, kHalf);
  }

  void load_queries(const Query& q, int64_t i0, int64_t rows) const {
    const int64_t ld = s_.k_ld();
    pack_rows(s_.rows, ld, h_.q + i0 * h_.q_stride, h_.q_stride, rows, spec_.D, true);
    if (scale_.flip) flip_signs(s_.rows, rows * ld, true);
    for (int64_t i = 0; i < rows; i += kFusedTile)
      turn_block(q.turned + i * ld, s_.rows + i * ld, ld, std::min(kFusedTile, rows - i), ld,
                 kFusedTile, kFusedTile);
    // Finite: a query may see nothing of its first blocks of keys, and inf - inf is no number.
    std::fill_n(q.top, kBlock, std::numeric_limits<float>::lowest());
    std::fill_n(q.sum, kBlock, 0.0f);
    std::fill_n(q.out, s_.tall * kFusedTile * kBlock, 0.0f);
    for (int64_t i = 0; i < kBlock; ++i) {
      q.sees[i] = i < rows ? static_cast<int32_t>(seen_.first(i0 + i)) : 0;
      q.sees[kBlock + i] = i < rows ? static_cast<int32_t>(seen_.end(i0 + i)) : 0;
    }
  }

  // One block of queries and the keys [j0, end) that are in scratch.
  void meet(const Query& q, int64_t i0, int64_t rows, int64_t j0, int64_t end) const {
    FusedForwardUnit units[kMostKeyBlocks * kGroups];
    int64_t n = 0;
    for (int64_t j = j0; j < end; j += kBlock)
      for (int64_t i = 0; i < rows; i += kFusedTile) {
        // First keys and ends ascend with the query.
        const int64_t last = std::min(i + kFusedTile, rows) - 1;
        const int64_t seen = q.sees[kBlock + last] - j;
        if (seen <= 0 || q.sees[i] >= j + kBlock) continue;
        const int64_t keys = std::min(kBlock, round_up(seen, kFusedTile));
        const bool all = q.sees[last] <= j && q.sees[kBlock + i] >= j + keys;
        FusedForwardUnit& u = units[n++];
        u.k = s_.k_block((j - j0) / kBlock);
        u.v = s_.v_block((j - j0) / kBlock);
        u.q = q.turned + i * s_.k_ld();
        u.out = q.out + i * s_.tall * kFusedTile;
        u.top = q.top + i;
        u.sum = q.sum + i;
        u.sees = all ? nullptr : q.sees + i;
        u.first_key = static_cast<int32_t>(j);
        u.keys = static_cast<int32_t>(keys);
        u.query = static_cast<uint32_t>(h_.first_pos + i0 + i);
        u.channel = static_cast<uint32_t>((h_.head << 20) + j);
      }
    FusedForward pass = pass_;
    if (ahead_ && n > 0 && ahead_->q_stride == ahead_->kv_stride) {
      pass.ahead[0] = reinterpret_cast<const char*>(ahead_->q + i0 * ahead_->q_stride);
      pass.ahead[1] = reinterpret_cast<const char*>(ahead_->k + i0 * ahead_->q_stride);
      pass.ahead[2] = reinterpret_cast<const char*>(ahead_->v + i0 * ahead_->q_stride);
      pass.ahead_stride = 2 * ahead_->q_stride;
      pass.ahead_bytes = 2 * spec_.D;
      pass.ahead_rows = rows;
      pass.ask = ceil_div(rows, n);
    }
    fused_.forward(pass, units, n);
  }

  void store(const Query& q, int64_t i0, int64_t rows) const {
    const float kept = dropout_kept(spec_.dropout);
    for (int64_t i = 0; i < rows; ++i) {
      const bool blind = q.sum[i] == 0.0f;
      if (h_.lse)
        h_.lse[i0 + i] =
            blind ? 0.0f : static_cast<float>(q.top[i] * ScoreScale::kLn2 + std::log(q.sum[i]));
      s_.factor[i] = blind ? 0.0f : kept / q.sum[i];
    }
    for (int64_t i = 0; i < rows; i += kFusedTile)
      store_turned(h_.out + (i0 + i) * h_.out_stride, h_.out_stride,
                   q.out + i * s_.tall * kFusedTile, std::min(kFusedTile, rows - i), spec_.D,
                   s_.factor + i, kFusedTile);
  }

  const AttentionFused& fused_;
  const AttentionSpec& spec_;
  const ForwardHead<bf16>& h_;
  const ForwardHead<bf16>* ahead_;  // what this thread is likely to begin next, or null
  const Scratch& s_;
  ScoreScale scale_;
  SeenKeys seen_;
  FusedForward pass_{};
};

}  // namespace

int64_t fused_forward_together(const AttentionSpec& spec, int64_t B, int64_t queries, int64_t keys,
                               int threads) {
  const int64_t most = keys > kMostKeyBlocks * kBlock ? kMostTogether : kMostKeyBlocks;
  return blocks_together(B * spec.H, ceil_div(queries, kBlock), threads, most);
}

int64_t fused_forward_floats(const AttentionSpec& spec, int64_t B, int64_t queries, int64_t keys,
                             int threads) {
  return make_scratch(nullptr, spec, fused_forward_together(spec, B, queries, keys, threads), keys)
      .floats;
}

void fused_forward_piece(const AttentionFused& fused, const AttentionSpec& spec,
                         const ForwardHead<bf16>& head, const ForwardHead<bf16>* ahead,
                         float* scratch, int64_t together, int64_t most_keys, int64_t i0,
                         int64_t rows) {
  const Scratch s = make_scratch(scratch, spec, together, most_keys);
  Piece(fused, spec, head, s, ahead).run(i0, rows);
}

}  // namespace snug
