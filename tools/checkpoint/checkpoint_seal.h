// COMPLETE, the marker that a checkpoint is whole: written last, it lists every file with its size
// and the XXH64 of its bytes, and ends with the XXH64 of its own text before.
//
//   snug checkpoint 4
//   step 500
//   9f2c41d07e3ab586 548 config.json
//   ...
//   e01b7d3c5a9f2046 seal
//
// A checkpoint is used only if all of it is as it was written: a byte that a disk, a copy or an
// editor changed is found before training goes on from it. Files that are not listed are no part of
// the checkpoint and are not looked at.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace snug {

// 3: masks of dropout had a word of the generator for each number. 2: optimizer state in the order
// of states, COMPLETE without a list. 1: state in trainer_state.json.
inline constexpr int64_t kCheckpointVersion = 4;

class CheckpointSeal {
 public:
  // After reserve() nothing here takes memory of the heap while the text stays below that.
  void reserve(size_t bytes) { text_.reserve(bytes); }
  void begin(int64_t step);
  // Lines alone, of a rank whose files another seals with its own.
  void begin_part() { text_.clear(); }
  void add_part(std::string_view lines) { text_ += lines; }
  void add(std::string_view name, int64_t bytes, uint64_t digest);
  void close();  // after the last file
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The file COMPLETE is there: the checkpoint was written to its end.
bool checkpoint_complete(const std::string& folder);

// What is wrong with a complete checkpoint: the file, what it was when it was written, what it is.
struct CheckpointDamage {
  std::string file, written, found;
};

// Reads every listed file whole, with a buffer of fixed size. Nothing: all is as it was written.
// Throws data if the folder holds the checkpoint of another version or of another program.
std::optional<CheckpointDamage> find_checkpoint_damage(const std::string& folder);

}  // namespace snug
