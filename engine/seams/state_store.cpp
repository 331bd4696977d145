#include "engine/seams/state_store.h"

namespace snug {

std::vector<StateSpan> whole_parameter_spans(const ParamTable& table) {
  std::vector<StateSpan> spans;
  for (int i = 0; i < table.size(); ++i)
    if (table[i].trainable)
      spans.push_back({i, table[i].group, table[i].offset, table[i].real_elements()});
  return spans;
}

}  // namespace snug
