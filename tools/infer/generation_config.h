// What a folder's generation_config.json says of how texts are made.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/infer/generation.h"

namespace snug {

// Takes over what the file asks for, but for what `given` names (flags of snug generate, "--top-k").
// Sampling is greedy unless it says do_sample; absent values are transformers'. Returns one line
// that says what was taken. Throws data for values of another kind, and for keys that ask for
// something that is not there, all at once.
std::string use_generation_config(const std::string& folder,
                                  const std::function<bool(const char* flag)>& given,
                                  GenerationRequest& request);

}  // namespace snug
