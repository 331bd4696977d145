// The parts of tokenizer.json around the model, from their JSON text. Every type not listed is
// refused (Error, unsupported) with its name and the known ones; none is ignored.
#pragma once

#include <string>

#include "engine/text/decoder.h"
#include "engine/text/normalizer.h"
#include "engine/text/post_processor.h"
#include "engine/text/pre_tokenizer.h"

namespace snug {

// null, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, BertNormalizer, Strip, Replace, Prepend,
// Nmt, Precompiled, Sequence of these.
Normalizer parse_normalizer(const std::string& json, const std::string& origin);

// null, ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, BertPreTokenizer,
// Metaspace, CharDelimiterSplit, FixedLength, Sequence of these. ByteLevel only as the last:
// it turns text into bytes. byte_level tells whether it is there.
PreTokenizer parse_pre_tokenizer(const std::string& json, const std::string& origin,
                                 bool& byte_level);

// null, ByteLevel (which moves offsets only), TemplateProcessing, BertProcessing,
// RobertaProcessing, Sequence with at most one of the three that add tokens.
PostProcessor parse_post_processor(const std::string& json, const std::string& origin);

// null, ByteLevel, WordPiece, Metaspace, ByteFallback, Fuse, Strip, Replace, BPEDecoder, Sequence.
Decoder parse_decoder(const std::string& json, const std::string& origin);

}  // namespace snug
