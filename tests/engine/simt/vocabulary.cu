#include "engine/core/units.h"
#include "engine/simt/copies.h"
#include "engine/simt/map.h"
#include "engine/simt/mma.h"
#include "engine/simt/reduce.h"
#include "tests/engine/simt/vocabulary.h"

namespace snug::test {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

__global__ void block_sums_kernel(float* out, const float* x, int64_t piece) {
  const float* x_b = x + block() * piece;
  float sum = 0.0f;
  for (int64_t i = thread(); i < piece; i += threads()) sum += x_b[i];
  const float all = block_sum(sum), greatest = block_max(sum);
  // Every thread has the same bits.
  if (!simt::all(all == shuffle(all, 0))) out[block()] = -1.0f;
  if (thread() == 0) out[block()] = greatest > all ? all : all + 0.0f * greatest;
}

__global__ void tree_sums_kernel(float* out, const float* x, int64_t piece) {
  const auto sums = dynamic_smem<float>();
  const float* x_b = x + block() * piece;
  float sum = 0.0f;
  for (int64_t i = thread(); i < piece; i += threads()) sum += x_b[i];
  sums[thread()] = sum;
  for (int half = threads() / 2; half > 0; half /= 2) {
    sync_threads();
    if (thread() < half) sums[thread()] += sums[thread() + half];
  }
  if (thread() == 0) out[block()] = sums[0];
}

__global__ void warp_scans_kernel(int* out, const int* x, int64_t n) {
  const int64_t i = block() * threads() + thread();
  const int sum = warp_scan(i < n ? x[i] : 0);
  if (i < n) out[i] = sum;
}

constexpr int kTile = 32;

__global__ void transpose_kernel(float* y, const float* x, int64_t rows, int64_t columns) {
  SHARED_ARRAY(float, tile, kTile*(kTile + 1));
  const int64_t row0 = block_y() * kTile, column0 = block() * kTile;
  for (int r = warp(); r < kTile; r += warps())
    if (row0 + r < rows && column0 + lane() < columns)
      tile[r * (kTile + 1) + lane()] = x[(row0 + r) * columns + column0 + lane()];
  sync_threads();
  for (int r = warp(); r < kTile; r += warps())
    if (column0 + r < columns && row0 + lane() < rows)
      y[(column0 + r) * rows + row0 + lane()] = tile[lane() * (kTile + 1) + r];
}

__global__ void count_kernel(int* out, int* histogram, int64_t* total, int* partial,
                             unsigned* counter, const int* x, int64_t n) {
  SHARED_ARRAY(int, bins, 8);
  if (thread() < 8) bins[thread()] = 0;
  sync_threads();
  int mine = 0;
  for (int64_t i = block() * threads() + thread(); i < n; i += blocks() * threads()) {
    atomic_add(out, x[i]);
    atomic_min(out + 1, x[i]);
    atomic_max(out + 2, x[i]);
    atomic_add(bins, x[i] % 8, 1);
    mine += x[i];
  }
  const int sum = block_sum(mine);
  sync_threads();
  if (thread() < 8) atomic_add(histogram + thread(), bins[thread()]);
  if (thread() == 0) partial[block()] = sum;
  if (!last_block(counter)) return;
  int64_t all = 0;
  for (int64_t b = thread(); b < blocks(); b += threads()) all += partial[b];
  all = warp_sum(all);
  if (lane() == 0) atomic_add(total, all);
}

__global__ void warp_words_kernel(int* out, double* doubles) {
  const int l = lane();
  const bool odd = l % 2 == 1;
  const uint32_t half = l < 16 ? 0x0000ffffu : 0xffff0000u;
  const int words[] = {shuffle(l, 5),
                       shuffle_xor(l, 3),
                       shuffle_up(l, 2),
                       shuffle_down(l, 2),
                       static_cast<int>(ballot(odd)),
                       any(l == 31),
                       any(false),
                       simt::all(true),
                       simt::all(l != 7),
                       shuffle(l, l < 16 ? 3 : 20, half),
                       static_cast<int>(ballot(odd, half)),
                       simt::all(l >= 16, half),
                       warp_sum(l),
                       static_cast<int>(warp_max(static_cast<float>(l))),
                       static_cast<int>(warp_min(static_cast<float>(l))),
                       warp_scan(1)};
  for (int i = 0; i < 16; ++i) out[i * kWarp + l] = words[i];
  const auto far = dynamic_smem<double>(32);
  Pack<double, 2> pair{{1.5 * l, l - 0.5}};
  pair.store(far, 2 * l);
  sync_warp();
  const auto next = Pack<double, 2>::load(far.part(2), 2 * (l == 31 ? 0 : l) - 2 * (l == 31));
  doubles[l] = shuffle_xor(next[0] + next[1], 1);
}

// A block for 4 threads() numbers: vectors in one group, then single numbers in another.
__global__ void reverse_by_copies_kernel(float* y, const float* x, int64_t n) {
  const int tile = 4 * threads();
  const auto vectors = dynamic_smem<float>(), numbers = vectors.part(tile);
  const int64_t first = block() * tile;
  copy_vector(vectors, 4 * thread(), x + first + 4 * thread(), first + 4 * thread() < n);
  end_copies();
  for (int i = thread(); i < tile; i += threads())
    copy_number(numbers, i, x + first + i, first + i < n);
  end_copies();
  wait_copies<1>();
  sync_threads();
  float reversed[4];
  for (int i = 0; i < 4; ++i) reversed[i] = vectors[tile - 1 - (4 * thread() + i)];
  wait_copies<0>();
  sync_threads();
  for (int i = 0; i < 4; ++i)
    if (first + 4 * thread() + i < n)
      y[first + 4 * thread() + i] = reversed[i] + numbers[4 * thread() + i];
}

// A lane takes its part of a and b from memory, as the layout has it.
template <class T>
__global__ void mma_kernel(float* c, const T* a, const T* b) {
  const int g = lane() / 4, t = lane() % 4;
  const auto pair = [](T low, T high) { return pack_pair<T>(to_f32(low), to_f32(high)); };
  uint32_t mine_a[4], mine_b[2];
  for (int i = 0; i < 4; ++i) {
    const T* at = a + (g + 8 * (i % 2)) * 16 + 2 * t + 8 * (i / 2);
    mine_a[i] = pair(at[0], at[1]);
  }
  for (int i = 0; i < 2; ++i) {
    const T* at = b + (2 * t + 8 * i) * 8 + g;
    mine_b[i] = pair(at[0], at[8]);
  }
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2];
  mma<T>(sums, mine_a, mine_b);
  for (int i = 0; i < 4; ++i) c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = sums[i];
}

// c = a b by loads of matrices alone: a as it lies, b from rows of its columns (transposed = false)
// or from its rows.
constexpr int kMatrixRow = 24;
template <class T>
__global__ void mma_loaded_kernel(float* c, const T* a, const T* b, bool transposed) {
  const auto tile = dynamic_smem<T>();
  const auto other = tile.part(16 * kMatrixRow);
  for (int i = lane(); i < 256; i += kWarp) tile[i / 16 * kMatrixRow + i % 16] = a[i];
  for (int i = lane(); i < 256; i += kWarp) {
    const int k = i / 16, n = i % 16;  // two matrices of eight columns
    other[transposed ? k * kMatrixRow + n : n * kMatrixRow + k] = b[i];
  }
  sync_warp();
  uint32_t mine_a[4], both[4];
  const int rows = lane() % 16 * kMatrixRow + lane() / 16 * 8;
  load_matrices(mine_a, tile, rows);
  if (transposed)
    load_matrices_transposed(both, other, rows);
  else
    load_matrices(both, other, (lane() % 8 + lane() / 16 * 8) * kMatrixRow + lane() / 8 % 2 * 8);
  for (int n = 0; n < 2; ++n) {
    float sums[4] = {};
    mma<T>(sums, mine_a, {both[2 * n], both[2 * n + 1]});
    for (int i = 0; i < 4; ++i)
      c[(lane() / 4 + 8 * (i / 2)) * 16 + 8 * n + lane() % 4 * 2 + i % 2] = sums[i];
  }
}

}  // namespace

template <class Queue>
void reverse_by_copies(Queue& queue, float* y, const float* x, int64_t n, int threads) {
  launch(queue,
         {.blocks = (n + 4 * threads - 1) / (4 * threads),
          .threads = threads,
          .shared_bytes = int64_t{8} * threads * 4},
         "reverse_by_copies", reverse_by_copies_kernel, y, x, n);
}
template void reverse_by_copies(simt::Queue&, float*, const float*, int64_t, int);

template <class T, class Queue>
void multiply(Queue& queue, float* c, const T* a, const T* b) {
  launch(queue, {.blocks = 1, .threads = 32}, "mma", mma_kernel<T>, c, a, b);
}
template <class T, class Queue>
void multiply_loaded(Queue& queue, float* c, const T* a, const T* b, bool transposed) {
  launch(queue, {.blocks = 1, .threads = 32, .shared_bytes = 2 * 16 * kMatrixRow * 2}, "mma_loaded",
         mma_loaded_kernel<T>, c, a, b, transposed);
}
template void multiply(simt::Queue&, float*, const bf16*, const bf16*);
template void multiply(simt::Queue&, float*, const f16*, const f16*);
template void multiply_loaded(simt::Queue&, float*, const bf16*, const bf16*, bool);
template void multiply_loaded(simt::Queue&, float*, const f16*, const f16*, bool);

template <class Queue>
void block_sums(Queue& queue, float* out, const float* x, int64_t pieces, int64_t piece,
                int threads) {
  launch(queue, {.blocks = pieces, .threads = threads}, "block_sums", block_sums_kernel, out, x,
         piece);
}

template <class Queue>
void tree_sums(Queue& queue, float* out, const float* x, int64_t pieces, int64_t piece,
               int threads) {
  launch(queue,
         {.blocks = pieces, .threads = threads, .shared_bytes = threads * int64_t{sizeof(float)}},
         "tree_sums", tree_sums_kernel, out, x, piece);
}

template <class Queue>
void warp_scans(Queue& queue, int* out, const int* x, int64_t n, int threads) {
  launch(queue, {.blocks = ceil_div(n, threads), .threads = threads}, "warp_scans",
         warp_scans_kernel, out, x, n);
}

template <class Queue>
void transpose(Queue& queue, float* y, const float* x, int64_t rows, int64_t columns, int threads) {
  launch(
      queue,
      {.blocks = ceil_div(columns, kTile), .threads = threads, .blocks_y = ceil_div(rows, kTile)},
      "transpose", transpose_kernel, y, x, rows, columns);
}

template <class Queue>
void count(Queue& queue, int* out, int* histogram, int64_t* total, int* partial, unsigned* counter,
           const int* x, int64_t n, int threads) {
  launch(queue, {.blocks = 3, .threads = threads, .blocks_y = 1, .blocks_z = 1}, "count",
         count_kernel, out, histogram, total, partial, counter, x, n);
}

template <class Queue>
void warp_words(Queue& queue, int* out, double* doubles) {
  launch(queue, {.blocks = 1, .threads = 32, .shared_bytes = 32 + 64 * 8}, "warp_words",
         warp_words_kernel, out, doubles);
}

template void block_sums(simt::Queue&, float*, const float*, int64_t, int64_t, int);
template void tree_sums(simt::Queue&, float*, const float*, int64_t, int64_t, int);
template void warp_scans(simt::Queue&, int*, const int*, int64_t, int);
template void transpose(simt::Queue&, float*, const float*, int64_t, int64_t, int);
template void count(simt::Queue&, int*, int*, int64_t*, int*, unsigned*, const int*, int64_t, int);
template void warp_words(simt::Queue&, int*, double*);

}  // namespace snug::test
