#include "engine/text/components.h"

#include "engine/core/error.h"
#include "engine/text/json_text.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

constexpr const char* kNormalizers =
    "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, BertNormalizer, Strip, Replace, Prepend, Nmt, "
    "Precompiled or Sequence";
constexpr const char* kPreTokenizers =
    "ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, BertPreTokenizer, "
    "Metaspace, CharDelimiterSplit, FixedLength or Sequence";
constexpr const char* kPostProcessors =
    "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing or Sequence";
constexpr const char* kDecoders =
    "ByteLevel, WordPiece, Metaspace, ByteFallback, Fuse, Strip, Replace, BPEDecoder or Sequence";
constexpr const char* kRepair = "repair the file or export the tokenizer again";

[[noreturn]] void unknown(const char* part, const char* known, const std::string& found,
                          const std::string& origin) {
  fail(ErrorCode::unsupported, std::string(part) + " of type " + known,
       origin + ": " + part + " of type \"" + found + "\"",
       "use a tokenizer made of the known parts, or export this one without it");
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

// A pattern {"Regex": ...} or {"String": ...}.
struct Pattern {
  std::string text;
  bool regex = false;
};
Pattern parse_pattern(const Json& component, const char* type, const std::string& origin) {
  const Json& pattern = json_member(component, "pattern", origin);
  if (pattern.is_object() && pattern.contains("Regex")) {
    return {json_string(pattern, "Regex", origin), true};
  }
  if (pattern.is_object() && pattern.contains("String")) {
    return {json_string(pattern, "String", origin), false};
  }
  fail(ErrorCode::data, std::string("a ") + type + " pattern {\"Regex\": ...} or {\"String\": ...}",
       origin + ": " + json_brief(pattern), kRepair);
}

std::string decode_base64(const std::string& text, const std::string& where) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=' || c == '\n') continue;
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) {
      fail(ErrorCode::data, "a precompiled_charsmap in base64",
           where + ": character code " + std::to_string(static_cast<unsigned char>(c)), kRepair);
    }
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xFF);
  }
  return out;
}

void add_normalizer(const Json& component, const std::string& origin, Normalizer& out) {
  if (component.is_null()) return;
  const std::string type = type_of(component, origin);
  if (type == "Sequence") {
    for (const Json& c : sequence(component, "normalizers", origin)) add_normalizer(c, origin, out);
  } else if (type == "NFC") {
    out.add_form(NormalForm::nfc);
  } else if (type == "NFD") {
    out.add_form(NormalForm::nfd);
  } else if (type == "NFKC") {
    out.add_form(NormalForm::nfkc);
  } else if (type == "NFKD") {
    out.add_form(NormalForm::nfkd);
  } else if (type == "Lowercase") {
    out.add_lowercase();
  } else if (type == "StripAccents") {
    out.add_strip_accents();
  } else if (type == "Nmt") {
    out.add_nmt();
  } else if (type == "Strip") {
    out.add_strip(json_bool(component, "strip_left", true, origin),
                  json_bool(component, "strip_right", true, origin));
  } else if (type == "BertNormalizer") {
    BertRules rules;
    rules.clean_text = json_bool(component, "clean_text", true, origin);
    rules.handle_chinese_chars = json_bool(component, "handle_chinese_chars", true, origin);
    rules.lowercase = json_bool(component, "lowercase", true, origin);
    rules.strip_accents = json_bool(component, "strip_accents", rules.lowercase, origin);
    out.add_bert(rules);
  } else if (type == "Prepend") {
    out.add_prepend(json_string(component, "prepend", origin));
  } else if (type == "Replace") {
    const Pattern pattern = parse_pattern(component, "Replace", origin);
    const std::string content = json_string(component, "content", origin);
    if (pattern.regex) {
      out.add_replace_pattern(pattern.text, content, origin + ": normalizer");
    } else {
      out.add_replace(pattern.text, content);
    }
  } else if (type == "Precompiled") {
    const std::string where = origin + ": normalizer";
    // An empty map changes nothing.
    std::string blob = decode_base64(json_string(component, "precompiled_charsmap", origin), where);
    if (!blob.empty()) out.add_precompiled(std::move(blob), where);
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
  const Pattern pattern = parse_pattern(component, "Split", origin);
  if (pattern.regex) {
    out.add_pattern(pattern.text, behavior, invert, origin + ": pre_tokenizer");
  } else {
    out.add_literal(pattern.text, behavior, invert);
  }
}

// Old files say add_prefix_space where new ones have a scheme.
PreTokenizer::Prepend prepend_of(const Json& component, const std::string& origin) {
  const Json& scheme = json_member(component, "prepend_scheme", origin);
  if (scheme.is_null()) {
    return json_bool(component, "add_prefix_space", true, origin) ? PreTokenizer::Prepend::always
                                                                  : PreTokenizer::Prepend::never;
  }
  const std::string name = json_string(component, "prepend_scheme", origin);
  if (name == "always") return PreTokenizer::Prepend::always;
  if (name == "first") return PreTokenizer::Prepend::first;
  if (name == "never") return PreTokenizer::Prepend::never;
  fail(ErrorCode::unsupported, "a prepend_scheme among always, first, never",
       origin + ": \"" + name + "\"", "correct \"prepend_scheme\" of the Metaspace");
}

std::string one_character(const Json& component, const char* key, const std::string& origin) {
  std::string text = json_string(component, key, origin);
  if (text.empty() || decode_utf8(text, 0).length != text.size()) {
    fail(ErrorCode::data, std::string("one character as \"") + key + "\"",
         origin + ": " + json_brief(json_member(component, key, origin)), kRepair);
  }
  return text;
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
  const bool known = type == "ByteLevel" || type == "Split" || type == "Digits" ||
                     type == "Whitespace" || type == "WhitespaceSplit" || type == "Punctuation" ||
                     type == "BertPreTokenizer" || type == "Metaspace" ||
                     type == "CharDelimiterSplit" || type == "FixedLength";
  if (!known) unknown("pre_tokenizer", kPreTokenizers, type, origin);
  if (byte_level) {
    fail(ErrorCode::unsupported, "ByteLevel as the last pre_tokenizer",
         origin + ": \"" + type + "\" after it", "move ByteLevel to the end of the Sequence");
  }
  if (type == "Split") {
    add_split(component, origin, out);
  } else if (type == "Digits") {
    out.add_digits(json_bool(component, "individual_digits", false, origin));
  } else if (type == "Whitespace") {
    out.add_whitespace();
  } else if (type == "WhitespaceSplit") {
    out.add_whitespace_split();
  } else if (type == "Punctuation") {
    const std::string behavior = json_string(component, "behavior", origin);
    out.add_punctuation(behavior.empty() ? SplitBehavior::isolated
                                         : parse_behavior(behavior, origin));
  } else if (type == "BertPreTokenizer") {
    out.add_bert();
  } else if (type == "CharDelimiterSplit") {
    out.add_literal(one_character(component, "delimiter", origin), SplitBehavior::removed, false);
  } else if (type == "FixedLength") {
    out.add_fixed_length(
        static_cast<size_t>(get_int_in(component, "length", origin, 1, 1 << 20, 5)));
  } else if (type == "Metaspace") {
    out.add_metaspace(one_character(component, "replacement", origin),
                      prepend_of(component, origin), json_bool(component, "split", true, origin));
  } else {
    byte_level = true;
    if (json_bool(component, "add_prefix_space", true, origin)) out.add_prefix_space();
    if (json_bool(component, "use_regex", true, origin)) out.add_gpt2();
  }
}

using Part = PostProcessor::Part;

int32_t small_int(const Json& object, const char* key, const std::string& origin) {
  return static_cast<int32_t>(get_int_in(object, key, origin, 0, INT32_MAX, 0));
}

// ["[SEP]", 102]
Part token_pair(const Json& component, const char* key, int32_t type_id,
                const std::string& origin) {
  const Json& pair = json_member(component, key, origin);
  if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() ||
      !pair[1].is_number_unsigned() || pair[1].get<uint64_t>() > INT32_MAX) {
    fail(ErrorCode::data, std::string("\"") + key + "\": [token, id] in the post_processor",
         origin + ": " + json_brief(pair), kRepair);
  }
  return {.ids = {pair[1].get<int32_t>()}, .type_id = type_id};
}

std::vector<Part> template_parts(const Json& component, const char* key, bool pair,
                                 const std::string& origin) {
  std::vector<Part> out;
  for (const Json& item : sequence(component, key, origin)) {
    if (item.is_object() && item.contains("SpecialToken")) {
      const Json& special = item["SpecialToken"];
      const std::string name = json_string(special, "id", origin);
      const Json& entry =
          json_member(json_member(component, "special_tokens", origin), name.c_str(), origin);
      Part part{.type_id = small_int(special, "type_id", origin)};
      for (const Json& id : sequence(entry, "ids", origin)) {
        if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
          fail(ErrorCode::data, "ids of special_tokens in the post_processor",
               origin + ": \"" + name + "\": " + json_brief(id), kRepair);
        }
        part.ids.push_back(id.get<int32_t>());
      }
      out.push_back(std::move(part));
    } else if (item.is_object() && item.contains("Sequence")) {
      const Json& text = item["Sequence"];
      const std::string id = json_string(text, "id", origin);
      if (id != "A" && (id != "B" || !pair)) {
        fail(ErrorCode::data, pair ? "a Sequence A or B in \"pair\"" : "a Sequence A in \"single\"",
             origin + ": \"" + id + "\"", kRepair);
      }
      out.push_back({.kind = id == "A" ? Part::Kind::first : Part::Kind::second,
                     .type_id = small_int(text, "type_id", origin)});
    } else {
      fail(ErrorCode::data, "SpecialToken or Sequence in a TemplateProcessing",
           origin + ": " + json_brief(item), kRepair);
    }
  }
  return out;
}

void add_post_processor(const Json& component, const std::string& origin, PostProcessor& out) {
  if (component.is_null()) return;
  const std::string type = type_of(component, origin);
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const Json& c : sequence(component, "processors", origin)) {
      add_post_processor(c, origin, out);
    }
    return;
  }
  if (type != "TemplateProcessing" && type != "BertProcessing" && type != "RobertaProcessing") {
    unknown("post_processor", kPostProcessors, type, origin);
  }
  if (!out.empty()) {
    fail(ErrorCode::unsupported, "one post_processor that adds tokens",
         origin + ": \"" + type + "\" after another one", "join them into one TemplateProcessing");
  }
  const Part a{.kind = Part::Kind::first};
  if (type == "TemplateProcessing") {
    out = PostProcessor(template_parts(component, "single", false, origin),
                        template_parts(component, "pair", true, origin));
  } else if (type == "BertProcessing") {
    const Part b{.kind = Part::Kind::second, .type_id = 1};
    const Part cls = token_pair(component, "cls", 0, origin),
               sep = token_pair(component, "sep", 0, origin),
               last = token_pair(component, "sep", 1, origin);
    out = PostProcessor({cls, a, sep}, {cls, a, sep, b, last});
  } else {
    const Part b{.kind = Part::Kind::second};
    const Part cls = token_pair(component, "cls", 0, origin),
               sep = token_pair(component, "sep", 0, origin);
    out = PostProcessor({cls, a, sep}, {cls, a, sep, sep, b, sep});
  }
}

void add_decoder(const Json& component, const std::string& origin, Decoder& out) {
  if (component.is_null()) return;
  const std::string type = type_of(component, origin);
  if (type == "Sequence") {
    for (const Json& c : sequence(component, "decoders", origin)) add_decoder(c, origin, out);
  } else if (type == "ByteLevel") {
    out.add_byte_level();
  } else if (type == "WordPiece") {
    out.add_word_piece(get_string(component, "prefix", origin, "##"),
                       json_bool(component, "cleanup", true, origin));
  } else if (type == "Metaspace") {
    out.add_metaspace(one_character(component, "replacement", origin),
                      prepend_of(component, origin) != PreTokenizer::Prepend::never);
  } else if (type == "ByteFallback") {
    out.add_byte_fallback();
  } else if (type == "Fuse") {
    out.add_fuse();
  } else if (type == "Strip") {
    out.add_strip(one_character(component, "content", origin),
                  get_int_in(component, "start", origin, 0, INT32_MAX, 0),
                  get_int_in(component, "stop", origin, 0, INT32_MAX, 0));
  } else if (type == "Replace") {
    const Pattern pattern = parse_pattern(component, "Replace", origin);
    const std::string content = json_string(component, "content", origin);
    if (pattern.regex) {
      out.add_replace_pattern(pattern.text, content, origin + ": decoder");
    } else {
      out.add_replace(pattern.text, content);
    }
  } else if (type == "BPEDecoder") {
    out.add_bpe(get_string(component, "suffix", origin, "</w>"));
  } else {
    unknown("decoder", kDecoders, type, origin);
  }
}

}  // namespace

Normalizer parse_normalizer(const std::string& json, const std::string& origin) {
  Normalizer out;
  add_normalizer(parse_json(json, origin), origin, out);
  return out;
}

PreTokenizer parse_pre_tokenizer(const std::string& json, const std::string& origin,
                                 bool& byte_level) {
  PreTokenizer out;
  byte_level = false;
  add_pre_tokenizer(parse_json(json, origin), origin, byte_level, out);
  return out;
}

PostProcessor parse_post_processor(const std::string& json, const std::string& origin) {
  PostProcessor out;
  add_post_processor(parse_json(json, origin), origin, out);
  return out;
}

Decoder parse_decoder(const std::string& json, const std::string& origin) {
  Decoder out;
  add_decoder(parse_json(json, origin), origin, out);
  return out;
}

}  // namespace snug
