// The families that are built, one file each.
#pragma once

#include "layers/models/family.h"

namespace snug {

extern const Family kGpt2Family;        // gpt2.cpp
extern const Family kBertFamily;        // bert.cpp
extern const Family kRobertaFamily;     // roberta.cpp
extern const Family kDistilBertFamily;  // distilbert.cpp
extern const GgufFamily kGpt2Gguf;      // gpt2_gguf.cpp

}  // namespace snug
