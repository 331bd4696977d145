#include "layers/models/front_tokens.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "layers/adapters/kinds.h"
#include "layers/models/family.h"

namespace snug {

int64_t front_width(const ModelSpec& spec, const AdapterMethod& method) {
  return method.front_keys ? spec.G * spec.D : spec.C;
}

PeftModel resolve_front(const ModelSpec& spec, const PeftConfig& config) {
  const AdapterMethod& method = adapter_method(config.method);
  if (spec.head != HeadKind::causal_lm)
    fail(ErrorCode::unsupported,
         fmt::format("a causal language model for peft: {}, whose tokens lie in front of texts",
                     method.name),
         fmt::format("a head for {}", to_string(spec.head)), "peft=lora");
  const int64_t n = config.num_virtual_tokens;
  const int64_t most = std::min(spec.P - 1, spec.V);
  if (n < 1 || n > most)
    fail(ErrorCode::usage,
         most < spec.V
             ? fmt::format("num_virtual_tokens between 1 and {}, below the model's positions", most)
             : fmt::format("num_virtual_tokens between 1 and {}, the model's tokens", most),
         std::to_string(n), fmt::format("num_virtual_tokens={}", std::min<int64_t>(20, most)));
  PeftModel result;
  const std::string embedding = find_family(spec.family, "model").embedding;
  const std::string table = embedding.substr(0, embedding.rfind('.'));
  LinearAdapter& adapter = result.adapters[table];
  adapter.kind = &method.kind(config);
  adapter.table = true;
  adapter.in = spec.C;
  adapter.front = n;
  adapter.first_tokens = config.prompt_init_tokens;
  adapter.front_keys = method.front_keys;
  adapter.layers = spec.L;
  adapter.keys_width = 2 * spec.G * spec.D;
  if (config.encoded)
    adapter.encoder =
        config.encoder_hidden_size > 0 ? config.encoder_hidden_size : front_width(spec, method);
  AdapterPiece piece;
  piece.name = table;
  piece.rows = n;
  method.settle(config, 0, piece, adapter);
  adapter.pieces.push_back(piece);
  result.frozen = [](std::string_view name) { return !is_adapter_name(name); };
  finish_peft(spec, config, result);
  return result;
}

}  // namespace snug
