#include "engine/text/components.h"

#include "engine/core/error.h"
#include "engine/text/json_text.h"

namespace snug {
namespace {

constexpr const char* kNormalizers = "NFC, NFD, NFKC, NFKD or Sequence";
constexpr const char* kPreTokenizers = "ByteLevel, Split, Digits or Sequence";
constexpr const char* kPostProcessors =
    "ByteLevel, TemplateProcessing, RobertaProcessing or Sequence";
constexpr const char* kDecoders = "ByteLevel, Fuse or Sequence";

[[noreturn]] void unknown(const char* part, const char* known, const std::string& found,
                          const std::string& origin) {
  fail(ErrorCode::unsupported, std::string(part) + " of type " + known,
       origin + ": " + part + " of type \"" + found + "\"",
       "use a byte-level BPE tokenizer (GPT-2, Llama 3, Qwen or o200k form)");
}

std::string type_of(const Json& component, const std::string& origin) {
  return json_string(component, "type", origin);
}

// The members of a Sequence.
const Json& sequence(const Json& component, const char* key, const std::string& origin) {
  const Json& list = json_member(component, key, origin);
  if (!list.is_array()) {
    fail(ErrorCode::data, std::string("a list \"") + key + "\" in a Sequence",
         origin + ": " + list.type_name(), "repair the file or export the tokenizer again");
  }
  return list;
}

void add_normalizer(const Json& component, const std::string& origin,
                    std::vector<NormalForm>& out) {
  if (component.is_null()) return;
  const std::string type = type_of(component, origin);
  if (type == "Sequence") {
    for (const Json& c : sequence(component, "normalizers", origin)) add_normalizer(c, origin, out);
  } else if (type == "NFC") {
    out.push_back(NormalForm::nfc);
  } else if (type == "NFD") {
    out.push_back(NormalForm::nfd);
  } else if (type == "NFKC") {
    out.push_back(NormalForm::nfkc);
  } else if (type == "NFKD") {
    out.push_back(NormalForm::nfkd);
  } else {
    unknown("normalizer", kNormalizers, type, origin);
  }
}

SplitBehavior parse_behavior(const std::string& name, const std::string& origin) {
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  fail(ErrorCode::unsupported,
       "a Split behavior among Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous",
       origin + ": \"" + name + "\"", "correct \"behavior\" in the pre_tokenizer");
}

void add_split(const Json& component, const std::string& origin, PreTokenizer& out) {
  const SplitBehavior behavior = parse_behavior(json_string(component, "behavior", origin), origin);
  const bool invert = json_bool(component, "invert", false, origin);
  const Json& pattern = json_member(component, "pattern", origin);
  if (pattern.is_object() && pattern.contains("Regex")) {
    out.add_pattern(json_string(pattern, "Regex", origin), behavior, invert,
                    origin + ": pre_tokenizer");
  } else if (pattern.is_object() && pattern.contains("String")) {
    out.add_literal(json_string(pattern, "String", origin), behavior, invert);
  } else {
    fail(ErrorCode::data, "a Split pattern {\"Regex\": ...} or {\"String\": ...}",
         origin + ": " + json_brief(pattern), "repair the pre_tokenizer of the file");
  }
}

void add_pre_tokenizer(const Json& component, const std::string& origin, bool& byte_level,
                       PreTokenizer& out) {
  if (component.is_null()) return;
  const std::string type = type_of(component, origin);
  if (type == "Sequence") {
    for (const Json& c : sequence(component, "pretokenizers", origin)) {
      add_pre_tokenizer(c, origin, byte_level, out);
    }
    return;
  }
  if (type != "ByteLevel" && type != "Split" && type != "Digits") {
    unknown("pre_tokenizer", kPreTokenizers, type, origin);
  }
  if (byte_level) {
    fail(ErrorCode::unsupported, "ByteLevel as the last pre_tokenizer",
         origin + ": \"" + type + "\" after it", "move ByteLevel to the end of the Sequence");
  }
  if (type == "Split") {
    add_split(component, origin, out);
  } else if (type == "Digits") {
    out.add_digits(json_bool(component, "individual_digits", false, origin));
  } else {
    byte_level = true;
    if (json_bool(component, "add_prefix_space", true, origin)) out.add_prefix_space();
    if (json_bool(component, "use_regex", true, origin)) out.add_gpt2();
  }
}

void check_types(const Json& component, const char* part, const char* list, const char* known_text,
                 const std::vector<std::string>& known, const std::string& origin) {
  if (component.is_null()) return;
  const std::string type = type_of(component, origin);
  if (type == "Sequence") {
    for (const Json& c : sequence(component, list, origin)) {
      check_types(c, part, list, known_text, known, origin);
    }
    return;
  }
  for (const std::string& name : known) {
    if (type == name) return;
  }
  unknown(part, known_text, type, origin);
}

}  // namespace

std::vector<NormalForm> parse_normalizer(const std::string& json, const std::string& origin) {
  std::vector<NormalForm> out;
  add_normalizer(parse_json(json, origin), origin, out);
  return out;
}

PreTokenizer parse_pre_tokenizer(const std::string& json, const std::string& origin) {
  PreTokenizer out;
  bool byte_level = false;
  add_pre_tokenizer(parse_json(json, origin), origin, byte_level, out);
  if (!byte_level) {
    fail(ErrorCode::unsupported, "a byte-level vocabulary (pre_tokenizer with ByteLevel)",
         origin + ": a pre_tokenizer without ByteLevel",
         "use a byte-level BPE tokenizer (GPT-2, Llama 3, Qwen or o200k form)");
  }
  return out;
}

void check_post_processor(const std::string& json, const std::string& origin) {
  check_types(parse_json(json, origin), "post_processor", "processors", kPostProcessors,
              {"ByteLevel", "TemplateProcessing", "RobertaProcessing"}, origin);
}

void check_decoder(const std::string& json, const std::string& origin) {
  check_types(parse_json(json, origin), "decoder", "decoders", kDecoders, {"ByteLevel", "Fuse"},
              origin);
}

}  // namespace snug
