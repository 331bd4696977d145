// What a plan knows of one tensor, parameter or operation, and of its peak: the facts behind the
// picture, for `snug explain`. Facts are JSON first; the text is made of it, so both say the same.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/planner/plan.h"

namespace snug {

using ExplainFacts = nlohmann::ordered_json;

// Tensors, parameters and operations whose name fits `pattern`, where * and ? stand for any text
// and any character; an operation also as "h.3 matmul" or "h.3.matmul". Throws usage, with the
// nearest names, if nothing fits. `model` is the one the plan was made for.
//   {"query", "engine_bytes", "peak": {"program", "op", "bytes"},
//    "tensors": [{"name", "slot": {...} or null, "lives": [{"program", "category", "bytes",
//                 "address", "born", "ends", "why", "alive_at_peak", "same_bytes": [..], ...}]}],
//    "parameters": [{"name", "shape", "bytes", "host_bytes",
//                    "held": [{"tensor", "arena", "address" (null on the host), "bytes"}]}],
//    "ops": [{"program", "op", "index", "flops", "bytes", "alive_bytes", "makes", "ends"}]}
ExplainFacts explain(const Plan& plan, const Model& model, const std::string& pattern);

// The moment that sets the height of the arena, and the `most` largest tensors alive then.
ExplainFacts explain_peak(const Plan& plan, size_t most = 20);

// For people: at most `most` entries of each kind, and how many more there are.
std::string explain_text(const ExplainFacts& facts, size_t most = 8);
std::string explain_peak_text(const ExplainFacts& facts);

}  // namespace snug
