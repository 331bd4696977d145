#include "tools/checkpoint/saved_state.h"

#include "tools/checkpoint/checkpoint.h"
#include "tools/costs/state_bytes.h"

namespace snug {

std::vector<int64_t> saved_shape(const ParamInfo& p) {
  std::vector<int64_t> shape;
  for (int i = 0; i < p.shape.rank(); ++i) shape.push_back(i == 0 ? p.rows : p.shape[i]);
  return shape;
}

SavedState saved_state(const Name& state, const ParamInfo& p, const RestForm& form, int64_t n,
                       bool scales) {
  SavedState s;
  s.spec.name = checkpoint_state_name(state, p);
  if (scales) {
    s.spec.name += ".absmax";
    s.units = form.scales(n);
    s.each = form.block;
    s.spec.shape = {s.units};
  } else if (form.coded()) {
    s.spec.dtype = SafeDType::U8;
    s.spec.shape = {saved_code_bytes(form, n)};
    s.units = form.value_bytes(n);
    s.each = 8 / form.bits;
  } else {
    s.spec.dtype = form.dtype == DType::bf16 ? SafeDType::BF16 : SafeDType::F32;
    s.spec.shape = n == p.real_elements() ? saved_shape(p) : std::vector<int64_t>{n};
    s.units = n;
  }
  return s;
}

}  // namespace snug
