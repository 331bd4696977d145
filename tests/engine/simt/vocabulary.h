// Small kernels that use every word of engine/simt, and their launchers: compiled for the emulator
// by the tests and for devices by nvcc.
#pragma once

#include <cstdint>

namespace snug::test {

// out[b] = the sum of x over the b-th piece of `piece` elements.
template <class Queue>
void block_sums(Queue& queue, float* out, const float* x, int64_t pieces, int64_t piece,
                int threads);
// The same by a tree in dynamic shared memory.
template <class Queue>
void tree_sums(Queue& queue, float* out, const float* x, int64_t pieces, int64_t piece,
               int threads);
// Running sums over each 32 elements.
template <class Queue>
void warp_scans(Queue& queue, int* out, const int* x, int64_t n, int threads);
// y (columns, rows) = x (rows, columns) transposed, over tiles in static shared memory.
template <class Queue>
void transpose(Queue& queue, float* y, const float* x, int64_t rows, int64_t columns, int threads);
// out[0] the sum, out[1] the least, out[2] the greatest, by atomics; histogram[v % 8] counts them,
// through shared memory. total = the sum of all by the last block that comes.
template <class Queue>
void count(Queue& queue, int* out, int* histogram, int64_t* total, int* partial, unsigned* counter,
           const int* x, int64_t n, int threads);
// c (16,8) += a (16,16) b (16,8) by one product of a warp; T is bf16 or f16.
template <class T, class Queue>
void multiply(Queue& queue, float* c, const T* a, const T* b);
// c (16,16) = a (16,16) b (16,16) through loads of matrices from shared memory, those of b
// transposed or not.
template <class T, class Queue>
void multiply_loaded(Queue& queue, float* c, const T* a, const T* b, bool transposed);
// y = x in reverse within each 4 threads numbers, n a multiple of 4, by copies beside the threads; what
// is behind n counts as zeros. Added to each: x of its place.
template <class Queue>
void reverse_by_copies(Queue& queue, float* y, const float* x, int64_t n, int threads);
// Sixteen results of warp operations a lane; see the test.
template <class Queue>
void warp_words(Queue& queue, int* out, double* doubles);

}  // namespace snug::test
