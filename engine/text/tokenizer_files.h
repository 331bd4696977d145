// What the readers of tokenizer files share. Only .cpp files of this folder include it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "engine/text/json_text.h"
#include "engine/text/special_tokens.h"
#include "engine/text/tokenizer_spec.h"

namespace snug {

inline constexpr const char* kEndOfText = "<|endoftext|>";
inline constexpr const char* kRepairFile = "repair the file or export the tokenizer again";
inline constexpr const char* kSaveAsJson =
    "save the tokenizer as tokenizer.json (save_pretrained of transformers)";

// An id as a file gives it; one that 32 bits cannot hold becomes -1, which Tokenizer::build refuses
// by name. `what` names it in the message.
int32_t id_of(const Json& value, const std::string& what, const std::string& origin);
// {"token": id, ...}
void read_vocab(const Json& vocab, const std::string& origin, TokenizerSpec& spec);
// "a b": tokens written this way hold no space, so exactly one separates the two.
void add_merge_line(std::string_view line, const std::string& where, TokenizerSpec& spec);

// True for a folder that has one of the two forms below.
bool holds_vocabulary_files(const std::filesystem::path& folder);
// A folder without tokenizer.json: vocab.json and merges.txt, or vocab.txt, and what the class that
// its config names makes of them. `tokens` takes the class's own special tokens. Throws unsupported
// for a class that is not known.
void read_vocabulary_files(const std::filesystem::path& folder, SpecialTokens& tokens,
                           TokenizerSpec& spec);

}  // namespace snug
