// LocalTransport: ranks that can read each other's arenas, as those of one machine do (local_group.h). There
// are no buffers in between: all ranks have one schedule, so a tensor of another rank lies where this
// one's does, and is read there.
//
//   all_gather       wait for all; copy each other's piece; wait for all
//   reduce_scatter   wait for all; sum the ranks' spans, element by element; wait for all
//
// The second wait is for those who still read what this rank may change next.
#pragma once

#include "parallel/local_group.h"
#include "parallel/rank_comm.h"

namespace snug {

class LocalTransport final : public Transport {
 public:
  explicit LocalTransport(LocalGroup& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  void attach(Context& ctx, std::byte* arena, int64_t bytes) override;
  void all_gather(Context& ctx, const View& full, const View& mine) override;
  void reduce_scatter_sum(Context& ctx, const GradView& mine, const View& full,
                          const View& staging) override;
  bool shares_memory() const override { return true; }
  void exchange(const char* what, void* out, const void* mine, int64_t bytes) override {
    group_.exchange(what, out, mine, bytes);
  }

 private:
  // Where rank's tensor of this name and shape is.
  const std::byte* theirs(int rank, const View& mine) const;
  void sum(const GradView& mine, const View& full, int threads);

  LocalGroup& group_;
  std::byte* arena_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace snug
