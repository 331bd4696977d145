#include "engine/seams/parameter.h"

#include "engine/core/error.h"
#include "engine/core/units.h"

namespace snug {

int ParamTable::add(ParamInfo info) {
  if (info.rows == 0 && info.shape.rank() > 0) info.rows = info.shape[0];
  require(info.shape.rank() == 0 || (info.rows >= 0 && info.rows <= info.shape[0]),
          "no more real rows than a parameter has");
  require(find(info.name.view()) < 0, "one parameter of each name");
  info.offset = flat_;
  flat_ += round_up(info.elements(), kSpanAlignment);
  params_.push_back(info);
  return size() - 1;
}

int64_t ParamTable::real_elements() const {
  int64_t sum = 0;
  for (const ParamInfo& p : params_) sum += p.real_elements();
  return sum;
}

int ParamTable::find(std::string_view name) const {
  for (int i = 0; i < size(); ++i)
    if ((*this)[i].name.view() == name) return i;
  return -1;
}

}  // namespace snug
