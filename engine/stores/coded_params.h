// CodedParamStore: frozen weights that rest in codes (seams/weight_codes.h) beside a store of all
// others. Each is decoded into a tensor of the program when it is acquired, which ends with its
// release: one linear layer at a time, in forward, recomputation and backward, the same bits.
//
//   acquire(w)   codes of w -> w (out,in) in the dtype that layers read   workspace
//   release(w)   that tensor ends
//
// What products read as it rests (seams/weight_codes.h) is decoded for backward alone.
//
// The codes rest on the device; or with the host, and those of a part of the table (a block) come
// while it runs, a part ahead, as streamed_params.h has it.
#pragma once

#include <functional>
#include <vector>

#include "engine/seams/param_store.h"
#include "engine/seams/weight_codes.h"
#include "engine/stores/part_runs.h"

namespace snug {

class CodedParamStore final : public ParamStore {
 public:
  // Call inside the root program. `others`: what is not in codes; it outlives this store.
  CodedParamStore(Context& ctx, const ParamTable& table, DType dtype, ParamStore& others,
                  bool with_host);
  const ParamTable& table() const override { return table_; }
  View acquire(Context& ctx, int param) override;
  void release(Context& ctx, int param) override;
  Int8Weight acquire_int8(Context& ctx, int param) override;
  void fetch_part(Context& ctx, int part) override;
  void drop_part(Context& ctx, int part) override;

  // In a program: codes tensor k of a parameter, whose values `fill` writes. One staging of a tensor
  // in f32 is planned; where the host cannot write it, `fill` gets a block of the host's own.
  void encode(Context& ctx, int param, size_t k, const std::function<void(float*)>& fill);
  // Between programs: the bytes of tensor k, coded before.
  void put(Context& ctx, int param, size_t k, const void* bytes);
  // The parameter and its tensor with the most elements: what a plan of encode() is made for.
  std::pair<int, size_t> largest() const;

 private:
  struct Run : DeviceCopy {  // first and elements: bytes of the coded range
    int part = -1;
    Tensor own;  // with the host; undefined: all is in codes_
  };
  View codes_of(const ParamInfo& p, bool resting) const;
  View resting(int param, size_t k) const;  // the codes of one tensor

  const ParamTable& table_;
  DType dtype_;
  ParamStore& others_;
  int64_t most_bytes_ = 0;  // of one tensor
  Tensor codes_;            // of all, on the device
  std::vector<Run> runs_;   // with the host, by part
  std::vector<Tensor> decoded_;
};

}  // namespace snug
