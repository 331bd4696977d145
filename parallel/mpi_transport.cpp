#include "parallel/mpi_transport.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/core/error.h"
#include "parallel/rank_sum.h"

namespace snug {
namespace {

constexpr int64_t kMessageBytes = 8 << 20;  // of a gather, at most

}  // namespace

MpiTransport::MpiTransport(MpiGroup& group) : group_(group) {}

// MPI takes memory of its own the first time that it sends so much to so many: before the first step.
void MpiTransport::attach(Context& /*ctx*/, std::byte* /*arena*/, int64_t bytes) {
  group_.barrier("attach", static_cast<uint64_t>(bytes));
  constexpr int kRounds = 4;
  const int64_t most = staging_of(kStagingBytes, 1, size()).chunk;
  std::vector<std::byte> out(static_cast<size_t>(most)), in(static_cast<size_t>(2 * size() * most));
  for (int round = 0; round < kRounds; ++round)
    for (int64_t n = std::min<int64_t>(256, most); n <= most; n *= 4) {
      for (int half = 0; half < 2; ++half)
        for (int i = 1; i < size(); ++i) {
          Flight& flight = flights_[static_cast<size_t>(half)];
          receive(flight, in.data() + (2 * i + half) * n, n, (rank() + i) % size());
          send(flight, out.data(), n, (rank() + size() - i) % size());
        }
      for (Flight& flight : flights_) land("attach", flight);
    }
  // What comes before it is asked for waits in blocks of its own, by powers of two up to what it sends
  // unasked.
  constexpr int64_t kUnasked = 64 << 10;
  for (int64_t n = 60; n < std::min(kUnasked, most); n *= 2) {
    const int64_t fit = kStagingBytes / (n * size());
    std::vector<Flight> early(static_cast<size_t>(std::clamp<int64_t>(fit, 2, 8)));
    for (Flight& flight : early)
      for (int i = 1; i < size(); ++i) send(flight, out.data(), n, (rank() + i) % size());
    group_.barrier("attach: early");
    for (Flight& flight : early) {
      for (int i = 1; i < size(); ++i) receive(flight, in.data() + i * n, n, (rank() + i) % size());
      land("attach", flight);
    }
  }
}

void MpiTransport::receive(Flight& f, void* data, int64_t bytes, int from) {
  f.requests[static_cast<size_t>(f.count)] = group_.receive(data, bytes, from);
  f.peers[static_cast<size_t>(f.count++)] = from;
}

void MpiTransport::send(Flight& f, const void* data, int64_t bytes, int to) {
  f.requests[static_cast<size_t>(f.count)] = group_.send(data, bytes, to);
  f.peers[static_cast<size_t>(f.count++)] = to;
}

void MpiTransport::land(const char* what, Flight& f) {
  group_.await_all(what, f.requests.data(), f.peers.data(), f.count);
  f.count = 0;
}

void MpiTransport::all_gather(Context& /*ctx*/, const View& full, const View& mine) {
  group_.barrier("all_gather", static_cast<uint64_t>(full.bytes()));
  const int64_t bytes = mine.bytes();
  auto* const to = static_cast<std::byte*>(full.data);
  const auto* const own = static_cast<const std::byte*>(mine.data);
  if (own != to + rank() * bytes) std::memcpy(to + rank() * bytes, own, static_cast<size_t>(bytes));
  for (int64_t begin = 0; begin < bytes; begin += kMessageBytes) {
    const int64_t n = std::min(kMessageBytes, bytes - begin);
    for (int i = 1; i < size(); ++i) {
      const int from = (rank() + size() - i) % size();
      receive(flights_[0], to + from * bytes + begin, n, from);
    }
    // Each begins with the next one, so that not all send to one.
    for (int i = 1; i < size(); ++i) send(flights_[0], own + begin, n, (rank() + i) % size());
    land("all_gather: receive", flights_[0]);
  }
}

void MpiTransport::reduce_scatter_sum(Context& ctx, const GradView& mine, const View& full,
                                      const View& staging) {
  group_.barrier("reduce_scatter", static_cast<uint64_t>(full.bytes()));
  const int64_t piece = mine.view.elements(), each = size_of(full.dtype);
  const auto [chunk, halves] = staging_of(piece, each, size());
  require(size() == 1 || staging.elements() >= halves * (size() - 1) * chunk,
          "room for what others send");
  const auto* const from = static_cast<const std::byte*>(full.data);
  auto* const room = static_cast<std::byte*>(staging.data);
  const auto length = [&](int64_t k) { return std::min(chunk, piece - k * chunk); };
  // Where the chunk k of the rank i behind this one waits.
  const auto place = [&, chunk = chunk](int64_t k, int i) {
    return room + ((k & 1) * (size() - 1) + i - 1) * chunk * each;
  };
  const auto begin = [&, chunk = chunk](int64_t k) {
    Flight& flight = flights_[static_cast<size_t>(k & 1)];
    const int64_t n = length(k) * each, first = k * chunk * each;
    for (int i = 1; i < size(); ++i) receive(flight, place(k, i), n, (rank() + i) % size());
    for (int i = 1; i < size(); ++i) {
      const int to = (rank() + size() - i) % size();
      send(flight, from + to * piece * each + first, n, to);
    }
  };
  const View own = mine.view.reshaped({piece});
  const int64_t chunks = chunk > 0 ? (piece + chunk - 1) / chunk : 0;
  if (chunks > 0) begin(0);
  for (int64_t k = 0; k < chunks; ++k) {
    if (k + 1 < chunks) begin(k + 1);
    land("reduce_scatter: receive", flights_[static_cast<size_t>(k & 1)]);
    const std::byte* parts[kMostRanks];
    parts[rank()] = from + (rank() * piece + k * chunk) * each;
    for (int i = 1; i < size(); ++i) parts[(rank() + i) % size()] = place(k, i);
    sum_ranks({own.rows(k * chunk, length(k)), mine.add}, parts, size(), ctx.threads());
  }
}

}  // namespace snug
