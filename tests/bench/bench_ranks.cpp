// What collectives of ranks that share memory take, beside what copying takes on the same cores at the
// same time: bench_ranks [ranks] [MiB]. A line each, medians of seven rounds that take turns.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/memory/context.h"
#include "parallel/local_transport.h"

namespace {

using namespace snug;  // NOLINT: a program of one file

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int64_t mib = argc > 2 ? std::atoll(argv[2]) : 256;
  const int64_t n = (mib << 20) / 4 / ranks * ranks, piece = n / ranks;
  constexpr int kRounds = 7;
  std::vector<double> copy, gather, reduce;
  auto groups = LocalGroup::of_threads(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      LocalGroup& group = *groups[static_cast<size_t>(r)];
      LocalTransport t(group);
      Context ctx(Place::cpu, {});
      std::vector<float> memory(static_cast<size_t>(2 * n), 1.0f);
      t.attach(ctx, reinterpret_cast<std::byte*>(memory.data()), 2 * n * 4);
      const auto view = [&](int64_t begin, int64_t count) {
        return View{memory.data() + begin, {count}, DType::f32, Place::cpu, Name("x")};
      };
      const auto timed = [&](std::vector<double>& out, auto&& f) {
        group.barrier("begin");
        const double began = monotonic_seconds();
        f();
        group.barrier("end");
        if (r == 0) out.push_back(monotonic_seconds() - began);
      };
      for (int round = 0; round < kRounds; ++round) {
        // Each rank copies as much as an all_gather has it copy.
        timed(copy,
              [&] { std::memcpy(memory.data() + n, memory.data(), static_cast<size_t>(n) * 4); });
        timed(gather, [&] { t.all_gather(ctx, view(n, n), view(0, piece)); });
        timed(reduce, [&] {
          t.reduce_scatter_sum(ctx, {view(r * piece, piece), false}, view(0, n), {});
        });
      }
    });
  for (std::thread& thread : threads) thread.join();
  const double bytes = static_cast<double>(n) * 4 * ranks;
  const auto line = [&](const char* what, const std::vector<double>& seconds, double moved,
                        double roof) {
    const double rate = moved / median(seconds) / 1e9;
    fmt::print("{:<16}{:>8.1f} GB/s  {:>5.0f} % of copying\n", what, rate, 100 * rate / roof);
    return rate;
  };
  fmt::print("{} ranks of one thread, tensors of {} MiB; read and written bytes a second\n", ranks,
             mib);
  const double roof = 2 * bytes / median(copy) / 1e9;
  line("copy", copy, 2 * bytes, roof);
  line("all_gather", gather, 2 * bytes, roof);
  line("reduce_scatter", reduce, bytes + bytes / ranks, roof);
  return 0;
}
