// Whether a tokenizer may be given a long text in pieces: it may if it gives the pieces, one after
// the other, the ids it gives the whole. The pieces are cut where engine/data cuts them:
//   after a single line break between two visible characters, the second no slash
//   before a single space between two visible characters
// (visible: not White_Space). Each step of a tokenizer says what it does to such a place; where a
// step may make a difference the answer is no, so that yes can be trusted.
#pragma once

namespace snug {

// What is left of the place of a cut after the normaliser.
enum class CutPlace {
  lost,   // text may be added, removed or matched across it
  white,  // white space stands beside it, and nothing is known of what else does
  exact   // as it was cut
};

}  // namespace snug
