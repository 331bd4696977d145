#include "layers/models/front_tokens.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "layers/adapters/kinds.h"
#include "layers/models/family.h"

namespace snug {

PeftModel resolve_front(const ModelSpec& spec, const PeftConfig& config) {
  const AdapterMethod& method = adapter_method(config.method);
  if (spec.head != HeadKind::causal_lm)
    fail(ErrorCode::unsupported,
         fmt::format("a causal language model for peft: {}, whose tokens lie in front of texts",
                     method.name),
         fmt::format("a head for {}", to_string(spec.head)), "peft=lora");
  const int64_t n = config.num_virtual_tokens;
  if (n < 1 || n >= spec.P)
    fail(
        ErrorCode::usage,
        fmt::format("num_virtual_tokens between 1 and {}, below the model's positions", spec.P - 1),
        std::to_string(n), fmt::format("num_virtual_tokens={}", std::min<int64_t>(20, spec.P - 1)));
  PeftModel result;
  const std::string embedding = find_family(spec.family, "model").embedding;
  const std::string table = embedding.substr(0, embedding.rfind('.'));
  LinearAdapter& adapter = result.adapters[table];
  adapter.kind = &method.kind(config);
  adapter.table = true;
  adapter.in = spec.C;
  adapter.front = n;
  adapter.first_tokens = config.prompt_init_tokens;
  AdapterPiece piece;
  piece.name = table;
  piece.rows = n;
  adapter.pieces.push_back(piece);
  result.frozen = [](std::string_view name) { return !is_adapter_name(name); };
  finish_peft(spec, config, result);
  return result;
}

}  // namespace snug
