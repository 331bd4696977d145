// RankComm: collectives as recorded ops over a Transport, which moves the bytes. On the place plan there
// is none, and what is recorded is that of any rank.
//
// Sums   in fp32, rank 0 first, whatever the transport; bf16 is widened, summed and rounded once. So a
//        sum is the same on every rank, in every run and over every transport.
// Bytes  of N ranks and a tensor of M bytes, that a rank reads from others: all_gather and
//        reduce_scatter M (N - 1) / N, all_reduce twice that.
#pragma once

#include "engine/seams/comm.h"

namespace snug {

// Of one rank. Calls come in one order on all ranks and return when its part is done and no other rank
// still reads what this one may now change. Throws collective where another rank is gone, late, or at
// another call.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void attach(std::byte* arena, int64_t bytes) = 0;
  virtual void all_gather(const View& full, const View& mine, int threads) = 0;
  virtual void reduce_scatter_sum(const GradView& mine, const View& full, int threads) = 0;
  virtual void all_reduce_sum(const View& x, int threads) = 0;
  // out[r] = what rank r gave: `bytes` of each, kMostExchanged at most.
  static constexpr int64_t kMostExchanged = 512;
  virtual void exchange(const char* what, void* out, const void* mine, int64_t bytes) = 0;
};

// Of a recorded op that is a collective of `ranks`: bytes that a rank reads from others; -1: it is none.
int64_t received_bytes(const OpRecord& op, int ranks);

class RankComm final : public Comm {
 public:
  explicit RankComm(int size) : size_(size) {}  // of a plan
  explicit RankComm(Transport& transport)
      : transport_(&transport), rank_(transport.rank()), size_(transport.size()) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void attach(std::byte* arena, int64_t bytes) override;
  void all_gather(Context& ctx, const View& full, const View& mine) override;
  void reduce_scatter_sum(Context& ctx, const GradView& mine, const View& full) override;
  void all_reduce_sum(Context& ctx, const View& x) override;
  void sum_step(Context& ctx, const View& state) override;

 private:
  void check(Context& ctx, const View& full, const View& piece) const;

  Transport* transport_ = nullptr;
  int rank_ = 0, size_ = 1;
};

}  // namespace snug
