// tokenizer.json and a text: any file is refused or loads; then any text is encoded and any ids are
// decoded, in pieces as whole where the tokenizer says so, and a saved one is the same again.
#include "engine/text/tokenizer.h"

#include "engine/text/tokenizer_spec.h"
#include "engine/text/unicode.h"
#include "tests/fuzz/fuzz.h"

namespace snug::fuzz {
namespace {

using Ids = std::vector<int32_t>;

constexpr size_t kMostText = 4096;
constexpr std::string_view kText =
    "The boat's 12 oars, \xc3\xa9t\xc3\xa9!\n\n  \xed\x95\x9c\xea\xb8\x80 <|endoftext|>\tx\n<unk>";

bool visible(std::string_view text, size_t at) {
  return at < text.size() && !is_white_space(decode_utf8(text, at).code);
}

// The first place where a text may be cut (piece_cuts.h), or its end. Ill-formed text has none.
size_t clean_place(std::string_view text) {
  for (size_t at = 1; at + 1 < text.size(); ++at) {
    if ((text[at] != ' ' && text[at - 1] != '\n') || (at == 1 && text[0] == '\n')) continue;
    const size_t end = text[at] == ' ' ? at : at - 1;  // of what stands before the white space
    size_t before = end - 1;
    while (before > 0 && (static_cast<uint8_t>(text[before]) & 0xC0) == 0x80) --before;
    const size_t behind = text[at] == ' ' ? at + 1 : at;
    if (visible(text, before) && visible(text, behind) && text[behind] != '/') return at;
  }
  return text.size();
}

void use(const Tokenizer& t, std::string_view text) {
  Ids ids = {-7};
  if (!holds([&] { t.encode(text, ids); })) {
    check(ids == Ids{-7}, "ids as they were before a text that is refused");
    return;
  }
  check(ids[0] == -7, "ids appended to what was there");
  ids.erase(ids.begin());
  for (const int32_t id : ids) check(id >= 0 && id < t.vocab_size(), "ids inside the vocabulary");
  const std::string valid = sanitize_utf8(text);
  check(t.encode(valid) == ids, "ill-formed text read as sanitize_utf8 leaves it");
  if (t.safe_in_pieces()) {
    const size_t at = clean_place(valid);
    Ids pieces = t.encode(std::string_view(valid).substr(0, at));
    t.encode(std::string_view(valid).substr(at), pieces);
    check(pieces == ids, "the ids of the whole from its pieces");
  }
  for (const bool skip : {false, true}) holds([&] { t.decode(ids, skip); });
  for (const int32_t id : ids) {
    check(!t.token_text(id).empty(), "a text for every id that encode gives");
    t.token_bytes(id);
  }
  t.with_special_tokens(ids);
  t.with_special_tokens(ids, ids);
  holds([&] { t.decode(Ids{-1, 0, 1, 2, INT32_MAX, 3}); });
}

}  // namespace
}  // namespace snug::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug::fuzz;
  const auto parts = parts_of(text_of(data, size), 3);
  const std::string path = put("tokenizer.json", parts[0]);
  drop("tokenizer_config.json");
  if (!parts[2].empty()) put("tokenizer_config.json", parts[2]);
  holds([&] {
    const snug::Tokenizer t = snug::Tokenizer::load(path);
    const std::string_view text = parts[1].empty() ? kText : parts[1].substr(0, kMostText);
    use(t, text);
    const std::string again_path = folder() + "/again.json";
    must("a saved tokenizer loads and is the same", [&] {
      t.save_json(again_path);
      const snug::Tokenizer again = snug::Tokenizer::load(again_path);
      check(again.fingerprint() == t.fingerprint(), "the fingerprint of a saved tokenizer");
      check(again.vocab_size() == t.vocab_size(), "the vocabulary of a saved tokenizer");
    });
  });
  return 0;
}
