// Where the documents of packed windows begin, for ops that keep documents apart.
//
// document_start (B,T) i32: for every position of a sequence the position of the first token of its
// document, 0 for a document that began before the sequence. Its shape does not depend on the data,
// as that of cumulative lengths (cu_seqlens) would, so one plan serves every batch.
#pragma once

#include "engine/core/view.h"

namespace snug {

// Throws shape or unsupported unless `starts` is (B,T) i32.
void expect_document_start(const View& starts, int64_t B, int64_t T);

// Throws data unless every position begins a document or belongs to that of the position before it,
// position 0 beginning one. Reads values: call it inside the op.
void check_document_start(const View& starts, int64_t B, int64_t T);

}  // namespace snug
