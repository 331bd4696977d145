// StateStore: how an optimizer gets its state. It serves spans of the flat parameter range with a
// table (parameter, shape, group, offset), so an optimizer never sees where the state lives, in
// which dtype it rests, or how many ranks share it. A span is a parameter, or a piece of one where
// the store has no room for a whole one; matrix optimizers ask for whole parameters.
//
// An update goes through windows in order, all or those of a part of the table, and through the
// spans of one at a time:
//   select; for each window: open, acquire its spans, the op, release them, close
#pragma once

#include <span>
#include <vector>

#include "engine/memory/context.h"
#include "engine/seams/parameter.h"
#include "engine/seams/rest_form.h"

namespace snug {

struct StateSpan {
  int param;         // index in the table
  int group;         // optimizer group
  int64_t offset;    // first element in the flat range, multiple of 256
  int64_t elements;  // padded rows left out: they are never updated
};

// Windows [first, last) of a store; a negative last: all.
struct WindowRange {
  int first = 0, last = -1;
};

class StateStore {
 public:
  virtual ~StateStore() = default;
  virtual const std::vector<StateSpan>& spans() const = 0;
  virtual int states() const = 0;
  // Consecutive spans whose states can be had at the same time.
  virtual int windows() const { return 1; }
  virtual std::span<const StateSpan> window(int) const { return spans(); }
  // Which windows are opened next, in order.
  virtual void select(WindowRange) {}
  virtual void open(Context&, int /*window*/) {}
  virtual void close(Context&, int /*window*/) {}
  // Whether what an open window has is the host's, whose work its update is then (Context::OnHost).
  virtual bool on_host() const { return false; }
  // Whether close() writes what rests, changed or not.
  virtual bool writes_back() const { return false; }
  // How state `k` of a span rests. All states of a span have values of as many bits in blocks of as
  // many elements.
  virtual RestForm form(int /*k*/, const StateSpan&) const { return {}; }
  // Rows of a span of which states have a number for every row and then one for every column, in place
  // of one an element (StateSet::rows); else 0. And how many numbers state `k` of it has.
  virtual int64_t rows(const StateSpan&) const { return 0; }
  virtual int64_t numbers(int /*k*/, const StateSpan& s) const {
    const int64_t r = rows(s);
    return r > 0 ? r + s.elements / r : s.elements;
  }
  // State `k` of a span as it rests, valid until release; changes are kept by release. Values: f32
  // or bf16, or the bytes (u8) of codes, whose blocks begin with the span. Asked again before that
  // it gives the same view and does nothing else; the three below too.
  virtual View acquire(Context& ctx, int k, const StateSpan& span) = 0;
  // Of codes their scales, f32, one a block; else undefined.
  virtual View acquire_scales(Context&, int /*k*/, const StateSpan&) { return {}; }
  virtual void release(Context& ctx, int k, const StateSpan& span) = 0;
  // The fp32 parameters of a span, where the store has these too; else undefined.
  virtual View acquire_master(Context&, const StateSpan&) { return {}; }
  // Where the updated parameters of a span are also written, rounded to its dtype, in a store that
  // has the weights that layers read too; undefined: nowhere. In others UpdateTargets says it.
  virtual bool has_weights() const { return false; }
  virtual View acquire_weights(Context&, const StateSpan&) { return {}; }
  // What checkpoints have of a parameter: its states, and behind them a gradient that is still to be
  // applied where updates are late. Of the three functions of `k` below and of form() and numbers() it is
  // one more.
  virtual int saved() const { return states(); }
  // For checkpoints, between programs: state `k` where it rests, from element `first` of the flat
  // range on, as far as it lies in one piece. Of codes their bytes, and the scales from the block of
  // `first` on; it then begins a block.
  virtual View stored(int k, int64_t first) const = 0;
  virtual View stored_scales(int /*k*/, int64_t /*first*/) const { return {}; }
  // The first n of them to the host's memory, from any thread and one at a time; and back. Where states
  // rest that no pointer reaches (on disk) this alone does, and the views above have no data.
  virtual void read_stored(Context& ctx, void* to, int k, int64_t first, bool scales,
                           int64_t n) const;
  virtual void write_stored(Context& ctx, const void* from, int k, int64_t first, bool scales,
                            int64_t n);
  // Whether that is here; else it is another rank's, and the views above have no data.
  virtual bool keeps(int64_t /*first*/) const { return true; }
};

// One span per trained parameter, in order of offsets.
std::vector<StateSpan> whole_parameter_spans(const ParamTable& table);

}  // namespace snug
