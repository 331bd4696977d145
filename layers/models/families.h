// The families that are built, one file each.
#pragma once

#include "layers/models/family.h"

namespace snug {

extern const Family kGpt2Family;        // gpt2.cpp
extern const Family kBertFamily;        // bert.cpp
extern const Family kRobertaFamily;     // roberta.cpp
extern const Family kDistilBertFamily;  // distilbert.cpp
extern const Family kLlamaFamily;       // llama.cpp, with its kin
extern const Family kMistralFamily;
extern const Family kQwen2Family;
extern const Family kQwen3Family;
extern const Family kGemmaFamily;  // gemma.cpp
extern const Family kGemma2Family;
extern const Family kGemma3Family;
extern const Family kNeoxFamily;     // neox.cpp
extern const Family kOlmo2Family;    // olmo2.cpp
extern const Family kPhi3Family;     // phi3.cpp
extern const Family kSmollm3Family;  // smollm3.cpp

}  // namespace snug
