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
// Single     Of single answers {"prompt": ..., "completion": ..., "label": true or false}, desirable or not;
//            tokens under "prompt_ids" and "completion_ids". A pair is two of them, the chosen first. A row is
//            one answer behind its prompt, of token type 0, desirable, or 1. Of mismatched ones it is the prompt
//            with the answer of the record before, of the first with that of the last; of pairs chosen follow
//            chosen and rejected rejected ones. TRL takes those of a batch (trl/trainer/kto_trainer.py).
// Lengths    At most max_length tokens of each, cut at the end. Pairs whose prompt fills it are left
//            out: nothing of them would be trained. Of means an answer of one token with nothing before it
//            is refused: its mean is over no token. Of rewards nothing is cut, as TRL has it
//            (trl/trainer/reward_trainer.py): pairs of which one is longer are left out.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/chat_rows.h"

namespace snug {

// What is made of pairs: log probabilities of answers, their means over tokens, a reward of each whole
// sequence, in which nothing is a prompt, or single answers, and prompts with those of others.
enum class PairUse : uint8_t { answers, means, rewards, single, mismatched };

// The last answers that were read: of chosen ones, of rejected ones, of those with a label. A reader of
// mismatched rows goes on from what one of single rows left of the same files.
struct OtherAnswers {
  std::array<std::vector<int32_t>, 3> ids;
  std::array<std::string, 3> records;  // by their place and text: a line may hold several
};

class PairRows {
 public:
  // `chats` outlives it; null: tokens alone are read. Of single answers `others` outlives it too.
  PairRows(const ChatRows* chats, int64_t max_length, PairUse use = PairUse::answers,
           OtherAnswers* others = nullptr)
      : chats_(chats), max_length_(max_length), use_(use), others_(others) {}
  PairUse use() const { return use_; }
  bool single() const { return use_ == PairUse::single || use_ == PairUse::mismatched; }

  // Rows that a record is: of single answers a pair is two.
  int rows(const nlohmann::json& tree) const;
  // As ChatRows::read, row `row` of the record. A pair that is left out has no ids.
  void read(const nlohmann::json& tree, std::string_view text, const std::string& where,
            RowRecord& out, int row = 0) const;
  // Of what decides the tokens beside the tokenizer.
  uint64_t fingerprint() const;

 private:
  using Ids = std::vector<int32_t>;
  Ids encode(const std::string& text, bool ends) const;
  void take_rewarded(const nlohmann::ordered_json& tree, const Ids& chosen, const Ids& rejected,
                     const std::string& where, RowRecord& out) const;
  void take_single(const nlohmann::ordered_json& tree, const Ids& prompt, const Ids& ids,
                   size_t form, const std::string& where, const std::string& record,
                   RowRecord& out) const;

  const ChatRows* chats_;
  int64_t max_length_;
  PairUse use_;
  OtherAnswers* others_;
};

}  // namespace snug
