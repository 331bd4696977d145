// MpiTransport: ranks that send each other what they need, by Open MPI as the mover of bytes. Sums are made
// here, of what was received, as those of the other transports are (rank_sum.h).
//
//   all_gather       wait for all; send the own piece to each, receive each other's at its place
//   reduce_scatter   wait for all; chunk by chunk, send each its span and receive what the others have of
//                    the own one into `staging`, one half of which is summed while the other fills
//
// Nobody reads another's memory, so what is sent may be changed as soon as a call returns.
#pragma once

#include <array>

#include "parallel/mpi_group.h"
#include "parallel/rank_comm.h"

namespace snug {

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(MpiGroup& group);
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  bool shares_memory() const override { return false; }
  void attach(Context& ctx, std::byte* arena, int64_t bytes) override;
  void all_gather(Context& ctx, const View& full, const View& mine) override;
  void reduce_scatter_sum(Context& ctx, const GradView& mine, const View& full,
                          const View& staging) override;
  void exchange(const char* what, void* out, const void* mine, int64_t bytes) override {
    group_.exchange(what, out, mine, bytes);
  }

 private:
  // Messages of a chunk: to and from each other rank.
  struct Flight {
    std::array<MpiGroup::Request, 2 * kMostRanks> requests;
    std::array<int, 2 * kMostRanks> peers;
    int count = 0;
  };
  void receive(Flight& flight, void* data, int64_t bytes, int from);
  void send(Flight& flight, const void* data, int64_t bytes, int to);
  void land(const char* what, Flight& flight);

  MpiGroup& group_;
  std::array<Flight, 2> flights_;
};

}  // namespace snug
