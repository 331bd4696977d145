// Products of small matrices by a warp, on tensor cores: mma.sync m16n8k16 of the PTX ISA with
// operands of 16 bits and sums in float, and ldmatrix, which loads what it takes.
//
//   mma<T>(c, a, b)    c (16,8) += a (16,16) b (16,8); T is bf16 or f16. All 32 lanes call; each
//                      holds a part, two values of T in a register, the first in the low half.
//                      With g = lane / 4 and t = lane % 4 a lane has
//                        a[i]  row g + 8 (i % 2), columns 2 t + 8 (i / 2) and the next
//                        b[i]  rows 2 t + 8 i and the next, column g
//                        c[i]  row g + 8 (i / 2), column 2 t + i % 2
//   load_matrices(r, s, i)             four 8 x 8 matrices of shared memory: lane l says where row
//                      l % 8 of matrix l / 8 begins, at 16 bytes. r[m] of a lane: row g of matrix
//                      m, columns 2 t and the next.
//   load_matrices_transposed(r, s, i)  r[m]: column g of matrix m, rows 2 t and the next.
//   pack_pair<T>(x, y) both rounded to T, x in the low half.
//
// So sums are the first operand of a next product without a move between lanes: c of columns
// 16 k to 16 k + 15 is a, once rounded in pairs.
//
// Numerics  Products are exact. The emulator adds them in order of k, rounding to float each time;
//           a device adds them in an order and with a truncation of its own, which is not more
//           exact. A row of c depends on the same row of a alone.
#pragma once

#include "engine/simt/simt.h"

#ifdef __CUDACC__
#include "engine/simt/mma_cuda.h"
#else
#include "engine/simt/mma_emu.h"
#endif
