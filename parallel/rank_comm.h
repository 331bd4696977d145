// RankComm: collectives as recorded ops over a Transport, which moves the bytes. On the place plan there
// is none, and what is recorded is that of any rank.
//
// Sums   in fp32, rank 0 first, whatever the transport; bf16 is widened, summed and rounded once. So a
//        sum is the same on every rank, in every run and over every transport.
// Bytes  of N ranks and a tensor of M bytes, that a rank reads from others: all_gather and
//        reduce_scatter M (N - 1) / N, all_reduce twice that.
// Room   of ranks that share no memory: what others send of a sum waits in a planned tensor of
//        kStagingBytes at most (about; of many ranks 256 elements of each), in two halves of which one
//        is filled while the other is summed. What is gathered comes to its place.
#pragma once

#include <array>

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
  // Before the first of the others: of an arena that is reserved.
  virtual void attach(Context& ctx, std::byte* arena, int64_t bytes) = 0;
  // Behind the last: that context ends.
  virtual void detach() noexcept {}
  virtual void all_gather(Context& ctx, const View& full, const View& mine) = 0;
  // `staging`: staging_of()'s elements, of full's dtype, or no tensor if shares_memory().
  virtual void reduce_scatter_sum(Context& ctx, const GradView& mine, const View& full,
                                  const View& staging) = 0;
  // By these two, of spans of x.
  void all_reduce_sum(Context& ctx, const View& x, const View& staging);
  virtual bool shares_memory() const = 0;
  // Of transports on devices: the stream that they put their work on, the ops' own if not said.
  virtual void set_stream(StreamId) {}
  // Whether it moves what the host cannot read, on the device's streams.
  virtual bool on_device() const { return false; }
  // out[r] = what rank r gave: `bytes` of each, Group::kMostExchanged at most.
  virtual void exchange(const char* what, void* out, const void* mine, int64_t bytes) = 0;
};

// Where a rank's N - 1 others send what it sums: of the whole piece, or twice of chunks of it.
inline constexpr int64_t kStagingBytes = 4 << 20;
struct Staging {
  int64_t chunk;  // elements of a rank's piece
  int halves;     // 1: the chunk is the piece
};
Staging staging_of(int64_t piece, int64_t element_bytes, int ranks);

// Of a recorded op that is a collective of `ranks`: bytes that a rank reads from others; -1: it is none.
int64_t received_bytes(const OpRecord& op, int ranks);

class RankComm final : public Comm {
 public:
  // Of a plan; `staged`: for a transport whose ranks share no memory.
  explicit RankComm(int size, bool staged) : size_(size), staged_(staged) {}
  explicit RankComm(Transport& transport)
      : transport_(&transport),
        rank_(transport.rank()),
        size_(transport.size()),
        staged_(!transport.shares_memory()) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void attach(Context& ctx) override;
  void detach() noexcept override {
    if (transport_) transport_->detach();
  }
  void set_in_turn(bool in_turn) override;
  bool in_turn() const override { return in_turn_; }
  Flight begin_all_gather(Context& ctx, const View& full, const View& mine, Tensor* of) override;
  Flight begin_reduce_scatter(Context& ctx, const GradView& mine, const View& full,
                              Tensor* of) override;
  Flight begin_all_reduce(Context& ctx, const View& x, Tensor* of) override;
  void sum_step(Context& ctx, const View& state) override;

 private:
  // What a stream does when it comes to it.
  struct Call {
    enum class Kind : uint8_t { none, all_gather, reduce_scatter, all_reduce, sum_step };
    Kind kind = Kind::none;
    Context* ctx = nullptr;
    View full = {}, mine = {}, room = {};
    bool add = false;
  };
  static constexpr int64_t kMostBegun = 64;  // that no stream has come to yet

  void check(Context& ctx, const View& full, const View& piece) const;
  Tensor staging(Context& ctx, const View& full) const;
  // Records it, and has it done there.
  void begin(Context& ctx, const char* name, OpCost cost, Call call, Tensor* of, Flight& flight);
  void run(const Call& call);
  void sum_steps(const Call& call);

  Transport* transport_ = nullptr;
  int rank_ = 0, size_ = 1;
  bool staged_ = false, in_turn_ = true;
  std::array<Call, kMostBegun> calls_;
  int64_t begun_ = 0;
};

}  // namespace snug
