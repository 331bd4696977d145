// Comm: collectives as recorded ops. A program written against it runs on one rank or many. All
// ranks issue the same collectives in the same order.
#pragma once

#include "engine/memory/context.h"

namespace snug {

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // x becomes the sum over ranks, in rank order.
  virtual void all_reduce_sum(Context& ctx, const View& x) = 0;
  // Rank r's span of `full` (size() equal spans) becomes everybody's.
  virtual void all_gather(Context& ctx, const View& full) = 0;
  // Every rank's span of `full` becomes the sum of that span over ranks.
  virtual void reduce_scatter_sum(Context& ctx, const View& full) = 0;
  virtual void broadcast(Context& ctx, const View& x, int root) = 0;
};

// One rank: every collective is the identity and costs nothing.
class SoloComm final : public Comm {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce_sum(Context&, const View&) override {}
  void all_gather(Context&, const View&) override {}
  void reduce_scatter_sum(Context&, const View&) override {}
  void broadcast(Context&, const View&, int) override {}
};

}  // namespace snug
