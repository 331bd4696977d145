// One function per kind of file. Internal to tools/inspect.
#pragma once

#include "tools/inspect/inspect.h"

namespace snug {

using Facts = nlohmann::ordered_json;

Facts inspect_safetensors(const std::string& path, const InspectOptions& options);
Facts inspect_model(const std::string& folder, const InspectOptions& options);
Facts inspect_adapter(const std::string& folder, const InspectOptions& options);
Facts inspect_gguf(const std::string& path, const InspectOptions& options);
Facts inspect_checkpoint(const std::string& folder, const InspectOptions& options);
Facts inspect_run(const std::string& folder);
Facts inspect_tokenizer(const std::string& path);
Facts inspect_tokens(const std::string& path, const InspectOptions& options);

}  // namespace snug
