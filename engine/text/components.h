// The parts of tokenizer.json around the model, from their JSON text. Every type not listed is
// refused (Error, unsupported) with its name and the known ones; none is ignored.
#pragma once

#include <string>
#include <vector>

#include "engine/text/pre_tokenizer.h"
#include "engine/text/unicode.h"

namespace snug {

// null, NFC, NFD, NFKC, NFKD, Sequence of these.
std::vector<NormalForm> parse_normalizer(const std::string& json, const std::string& origin);

// ByteLevel, or a Sequence of Split, Digits and at the end one ByteLevel: without ByteLevel the
// vocabulary is not one of bytes.
PreTokenizer parse_pre_tokenizer(const std::string& json, const std::string& origin);

// null, ByteLevel, TemplateProcessing, RobertaProcessing, Sequence: only checked, since encode adds
// no tokens.
void check_post_processor(const std::string& json, const std::string& origin);

// null, ByteLevel, Fuse, Sequence: only checked; decoding is always that of ByteLevel.
void check_decoder(const std::string& json, const std::string& origin);

}  // namespace snug
