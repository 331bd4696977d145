#include "engine/memory/simulate.h"

#include <algorithm>
#include <array>

namespace snug {

std::vector<OpSpan> op_spans(const Program& program, const std::vector<double>& seconds) {
  std::vector<OpSpan> spans;
  spans.reserve(program.ops.size());
  std::array<double, kStreams> free{};  // when a stream is done with what was put there
  std::vector<double> events;           // when they happen
  size_t next = 0;
  const auto follow = [&](size_t ops) {
    for (; next < program.syncs.size() && program.syncs[next].op <= static_cast<int64_t>(ops);
         ++next) {
      const SyncRecord& sync = program.syncs[next];
      const auto event = static_cast<size_t>(sync.event);
      if (event >= events.size()) events.resize(event + 1, 0.0);
      double& stream = free[static_cast<size_t>(sync.stream)];
      if (sync.kind == SyncRecord::Kind::record)
        events[event] = stream;
      else
        stream = std::max(stream, events[event]);
    }
  };
  for (size_t k = 0; k < program.ops.size(); ++k) {
    follow(k);
    double& stream = free[static_cast<size_t>(program.ops[k].stream)];
    const double begin = stream;
    stream += k < seconds.size() ? seconds[k] : 0.0;
    spans.push_back({begin, stream});
  }
  return spans;
}

double last_end(const std::vector<OpSpan>& spans) {
  double last = 0;
  for (const OpSpan& span : spans) last = std::max(last, span.end);
  return last;
}

}  // namespace snug
