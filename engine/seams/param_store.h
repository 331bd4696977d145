// ParamStore: how a layer gets its weights. A layer acquires a parameter, uses the view, and
// releases it; a second acquire in backward or in a recompute is normal. A plain store's bytes
// are always there; a streamed one brings those of a part of the table at a time.
#pragma once

#include "engine/memory/context.h"
#include "engine/seams/parameter.h"
#include "engine/seams/weight_codes.h"

namespace snug {

class ParamStore {
 public:
  virtual ~ParamStore() = default;
  virtual const ParamTable& table() const = 0;
  // The parameter in the compute dtype, valid until release.
  virtual View acquire(Context& ctx, int param) = 0;
  virtual void release(Context& ctx, int param) = 0;
  // The same of a weight whose codes products read as they are, in place of acquire(), which decodes
  // it; none of any other.
  virtual Int8Weight acquire_int8(Context& /*ctx*/, int /*param*/) { return {}; }
  // The weights of a part of the table (ParamInfo::part) are wanted next: a streamed store begins
  // to bring them. And they are not wanted before they are fetched again.
  virtual void fetch_part(Context&, int /*part*/) {}
  virtual void drop_part(Context&, int /*part*/) {}
};

}  // namespace snug
