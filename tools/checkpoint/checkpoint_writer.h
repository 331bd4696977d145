// Writes checkpoints while training goes on.
//
// begin() writes the small files at once; weights and optimizer state go through the session's ring
// (save_ring.h) parameter by parameter, each before its next update. Then the files are made
// durable, COMPLETE is written, and the folder takes its name. At most one checkpoint is on its
// way: the next waits for it. All bytes are those of step `position.step`, whatever training did
// meanwhile.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/io/fingerprint.h"
#include "engine/io/safetensors.h"
#include "layers/models/family.h"
#include "tools/checkpoint/checkpoint.h"
#include "tools/checkpoint/checkpoint_seal.h"
#include "tools/checkpoint/save_ring.h"

namespace snug {

class CheckpointWriter final : private SaveJob {
 public:
  // `keep`: checkpoints that stay, the newest and the best; 0: all. `background` false: begin()
  // does all of it. Everything that writing takes is made here.
  // Of several ranks the one that writes reads what the others have; `passed`: SaveRing.
  CheckpointWriter(Session& session, std::string output_dir, int64_t keep, bool background,
                   std::atomic<int64_t>* passed = nullptr);
  ~CheckpointWriter() override;
  // Bytes on disk of the two large files.
  int64_t bytes() const { return layouts_[0].total_bytes() + layouts_[1].total_bytes(); }
  // What holds updates back while one is on its way.
  UpdateGate& gate() { return ring_; }
  // Asked before checkpoints are replaced or removed: throws if the folder is none of ours.
  void set_guard(std::function<void()> guard) { guard_ = std::move(guard); }
  // Where the next ones go.
  void set_output_dir(std::string output_dir) { output_dir_ = std::move(output_dir); }

  // Begins checkpoint-<step>, after the one before it has ended; `extra` adds files (config,
  // tokenizer), each made durable, to the folder under construction. Throws device on a full disk,
  // also if it was the one before that met it; all others stay.
  void begin(const RunPosition& position, const Pinned& pinned,
             const Hyperparameters& hyperparameters,
             const std::function<void(const std::string&)>& extra);
  // What became of the last one: nothing before its end, and once after it. Removes those beyond
  // the limit. Throws what writing met.
  struct Saved {
    std::string folder;
    int64_t bytes = 0;
    double seconds = 0, stall = 0;  // from begin() to its end; of these, training waited
  };
  std::optional<Saved> poll();
  // Waits for the end first.
  std::optional<Saved> wait();

  // Of all so far.
  int64_t written() const { return written_; }
  double write_seconds() const { return total_seconds_; }
  double stall_seconds() const { return total_stall_; }

 private:
  static constexpr int kModel = 0, kOptimizer = 1;

  Piece gather(char* out, int64_t room) override;
  View read_whole(const ParamInfo& p, const View& room, bool anew);
  int64_t read_state(char* out, int k, const StateSpan& span, const RestForm& form, bool scales,
                     int64_t n);
  int64_t gathered() const override { return param_; }
  void write(int file, const char* data, int64_t bytes) override;
  void finish() override;
  void write_small_files(const RunPosition& position, const Pinned& pinned,
                         const Hyperparameters& hyperparameters,
                         const std::function<void(const std::string&)>& extra);
  void remove_old() const;

  Session& session_;
  std::string output_dir_;
  std::function<void()> guard_;
  int64_t keep_;
  RestingWeights weights_;
  SafetensorsLayout layouts_[2];
  std::vector<RowGroups> groups_;  // of each parameter's rows in files

  // Of the one on its way.
  AtomicFile files_[2], marker_;
  Fingerprint digests_[2];
  CheckpointSeal seal_;
  std::string folder_, final_name_, paths_[3];
  int64_t param_ = 0, state_ = 0, element_ = 0;  // what gather() takes next; state 0: the weights
  int64_t step_ = 0, best_step_ = -1;
  bool open_ = false;      // begun, and poll() did not tell of it yet
  bool in_place_ = false;  // the folder has its name
  double began_ = 0, ended_ = 0, stall_ = 0, stall_before_ = 0;
  int64_t written_ = 0;
  double total_seconds_ = 0, total_stall_ = 0;
  SaveRing ring_;  // last: its thread ends before what it uses
};

}  // namespace snug
