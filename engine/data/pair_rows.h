// Records of preferences as rows of tokens (row_reader.h, kind causal): an answer that was chosen and one
// that was rejected behind the same prompt. A row is both, one after the other: token types 0 and 1,
// and trained what is not of the prompt.
//
// Records    {"prompt": ..., "chosen": ..., "rejected": ...}, all texts or all lists of messages, those
//            also with "tools" and "chat_template_kwargs"; without "prompt" it is what the beginnings of the two have
//            in common: messages, or characters less a blank before the first that differs. Or tokens:
//            {"prompt_ids": [...], "chosen_ids": [...], "rejected_ids": [...]}. Of rewards "margin", a number
//            (0 where it is not there), and tokens may have no prompt_ids.
// Tokens     As TRL 1.16.0 has them (trl/trainer/dpo_trainer.py, _prepare_dataset): of messages by the
//            chat template; of texts prompt and answer together with what the tokenizer puts around texts,
//            an end token behind those that do not end with one. The prompt is what
//            its own tokens (with the beginning of an assistant's turn) and those of both rows have in
//            common at the beginning; all behind it is trained.
// Lengths    At most max_length tokens of each, cut at the end. Pairs whose prompt fills it are left
//            out: nothing of them would be trained. Of means an answer of one token with nothing before it
//            is refused: its mean is over no token. Of rewards nothing is cut, as TRL has it
//            (trl/trainer/reward_trainer.py): pairs of which one is longer are left out.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/chat_rows.h"

namespace snug {

// What is made of pairs: log probabilities of answers, their means over tokens, or a reward of each whole
// sequence, in which nothing is a prompt.
enum class PairUse : uint8_t { answers, means, rewards };

class PairRows {
 public:
  // `chats` outlives it; null: tokens alone are read.
  PairRows(const ChatRows* chats, int64_t max_length, PairUse use = PairUse::answers)
      : chats_(chats), max_length_(max_length), use_(use) {}
  PairUse use() const { return use_; }

  // As ChatRows::read. A pair that is left out has no ids.
  void read(const nlohmann::json& tree, std::string_view text, const std::string& where,
            RowRecord& out) const;
  // Of what decides the tokens beside the tokenizer.
  uint64_t fingerprint() const;

 private:
  using Ids = std::vector<int32_t>;
  Ids encode(const std::string& text, bool ends) const;
  void take_rewarded(const nlohmann::ordered_json& tree, const Ids& chosen, const Ids& rejected,
                     const std::string& where, RowRecord& out) const;

  const ChatRows* chats_;
  int64_t max_length_;
  PairUse use_;
};

}  // namespace snug
