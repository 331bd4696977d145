// The one header of a kernel source: the dialect of CUDA that nvcc compiles for a device and the
// C++ compiler compiles for the emulator, from the same .cu file (engine/simt/README.md).
//
// Kernels     __global__ void name_kernel(plain values and pointers); __device__ helpers.
//             launch(queue, {.blocks = .., .threads = .., .shared_bytes = ..}, "name", kernel, ...)
//             runs one; zero blocks run nothing. Sizes past what compute capability 8.0 can do, and
//             errors of the device, throw Error of code device.
//             A large argument that threads index is a `const __grid_constant__ Constant<T>`: c->x;
//             launch takes the T. All arguments together have at most 32,764 bytes.
//             __launch_bounds__(threads, blocks) behind __global__ void: at most so many threads, and
//             registers for so many blocks on a multiprocessor.
// Indices     thread(), threads(): in the block; block(), blocks(): along x, also block_y() ...;
//             lane(), warp(), warps().
// Shared      SHARED_ARRAY(T, name, n) declares Shared<T> name of n elements, for the block.
//             dynamic_smem<T>(byte_offset = 0) is the dynamic part from there on.
//             Shared<T>: s[i] reads and writes, s.part(i) goes on from element i. Contents are
//             undefined when a block begins.
// Barriers    sync_threads(): all threads of the block. sync_warp(): all lanes.
// Warps       shuffle(v, lane), shuffle_xor(v, mask), shuffle_up(v, d), shuffle_down(v, d): 4 or 8
//             bytes; ballot, any, all of a bool; count_bits of a word. All 32 lanes by default;
//             `lanes` names fewer, and those all call. Reductions are in engine/simt/reduce.h.
// Atomics     atomic_add, atomic_min, atomic_max, atomic_exchange, atomic_cas on 4- and 8-byte
//             integers in global or shared memory; they give the value before. fence() orders
//             writes of this thread before its later ones for all blocks.
// Vectors     Pack<T, N>::load(p), .store(p), of global memory or of shared memory at an index: one
//             access of sizeof(T) N bytes, aligned to that or to 16 bytes.
// Numbers     bf16 and f16 are storage: to_f32, from_f32<T> (engine/core/dtype.h), the same bits
//             everywhere. No product and sum is fused unless fma() says so.
// Products    of small matrices by a warp, on tensor cores: engine/simt/mma.h.
// Math        exp, exp2, log, tanh, erf, sqrt, rsqrt, fma, min, max, abs on float. sqrt and
//             division are IEEE; exp, exp2, log, tanh and erf within 2 ulp, not the same bits on
//             both sides.
//
// Each side has its own inline namespace, so both copies of a kernel fit in one program.
#pragma once

#ifdef __CUDACC__
#include "engine/simt/simt_cuda.h"
#else
#include "engine/simt/simt_emu.h"
#endif

#include "engine/simt/math.h"
#include "engine/simt/pack.h"
