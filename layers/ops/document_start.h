// Where the documents of packed windows begin and end, for ops that keep documents apart.
//
// document_start (B,T) i32: for every position of a sequence the position of the first token of its
// document, 0 for a document that began before the sequence. Its shape does not depend on the data,
// as that of cumulative lengths (cu_seqlens) would, so one plan serves every batch.
//
// document_end (B,T) i32: for every position the one after the last token of its document in the
// sequence: the first j > t with start[j] != start[t], else T. Wanted where attention looks forward
// too; made once a batch, on the device.
#pragma once

#include "engine/memory/context.h"

namespace snug {

// Throws shape or unsupported unless `starts`, `ends` is (B,T) i32.
void expect_document_start(const View& starts, int64_t B, int64_t T);
void expect_document_end(const View& ends, int64_t B, int64_t T);

// Throws data unless every position begins a document or belongs to that of the position before it,
// position 0 beginning one. Reads values: call it inside the op.
void check_document_start(const View& starts, int64_t B, int64_t T);
// Throws data unless `ends` are those of `starts`, which have been checked.
void check_document_end(const View& ends, const View& starts, int64_t B, int64_t T);

// Writes all of `ends`. Traffic: both once. Throws data as check_document_start does, where the
// host has the values; on a device starts of any value give ends in [t + 1, T]. The same bits from
// every place and any number of threads.
void document_end(Context& ctx, const View& ends, const View& starts, int64_t B, int64_t T);

}  // namespace snug
