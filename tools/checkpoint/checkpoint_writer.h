// Writes checkpoints while training goes on.
//
// begin() writes the small files at once; weights and optimizer state go through the session's ring
// (save_ring.h) parameter by parameter, each before its next update. Then the files are made
// durable, COMPLETE is written, and the folder takes its name. At most one checkpoint is on its
// way: the next waits for it. All bytes are those of step `position.step`, whatever training did
// meanwhile.
//
// Of ranks that share what they keep each has a writer, for its own pieces (rank_pieces.h):
//
//   rank 0   makes the folder | meet | its pieces | waits for the others' lines | COMPLETE, the name
//   rank 1                    | meet | its pieces | rank-1.sealed: its lines of COMPLETE
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/io/fingerprint.h"
#include "engine/io/safetensors.h"
#include "layers/models/family.h"
#include "tools/checkpoint/checkpoint.h"
#include "tools/checkpoint/checkpoint_seal.h"
#include "tools/checkpoint/rank_pieces.h"
#include "tools/checkpoint/save_ring.h"
#include "tools/checkpoint/sign_thread.h"

namespace snug {

// A writer of several, one a rank.
struct WriterRank {
  int rank = 0, size = 1;
  std::function<void()> meet;  // all are here
  // This one goes on: told with every piece that is written, while others are waited for, and while files are
  // made durable. From any thread; takes no memory.
  std::function<void()> go_on;
  // Why there is no use in waiting for `rank`, which is waited for since `began` (monotonic_seconds()): a rank
  // is gone, or this one has not gone on for too long; empty: wait. From any thread.
  std::function<std::string(int rank, double began)> gone;
};

class CheckpointWriter final : private SaveJob {
 public:
  // `keep`: checkpoints that stay, the newest and the best; 0: all. `background` false: begin()
  // does all of it. Everything that writing takes is made here.
  // `rank`: each writes its own pieces, and all begin and wait at the same steps.
  CheckpointWriter(Session& session, std::string output_dir, int64_t keep, bool background,
                   std::optional<WriterRank> rank = std::nullopt);
  ~CheckpointWriter() override;
  // Bytes on disk of the two large files, in pieces of those of all ranks; of a rank that follows of its own.
  int64_t bytes() const {
    if (leads() && pieces_) return pieces_->bytes(kModel) + pieces_->bytes(kOptimizer);
    return own_layout(kModel).total_bytes() + own_layout(kOptimizer).total_bytes();
  }
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

  // Whether the files are written in pieces; then all ranks write theirs of the weights to a folder that
  // is there, for whoever puts them together (Session::save_model).
  bool in_pieces() const { return pieces_ != nullptr; }
  void write_weights(const std::string& folder);
  void remove_pieces(const std::string& folder) const;

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
  int64_t gathered() const override { return pieces_ ? pieces_->passed() : param_; }
  bool leads() const { return !rank_ || rank_->rank == 0; }
  const SafetensorsLayout& own_layout(int file) const {
    return pieces_ ? pieces_->layout(file) : layouts_[file];
  }
  void set_sealed(int rank);
  void await_ranks();
  [[noreturn]] void fail_rank(int rank, const std::string& why, const char* more) const;
  void go_on() const {
    if (rank_) rank_->go_on();
  }
  void write_texts(const std::string& folder, bool weights_alone) const;
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
  std::optional<WriterRank> rank_;
  std::unique_ptr<SignThread> signs_;  // of ranks
  std::atomic<bool> leaving_{false};
  RestingWeights weights_;
  std::string names_[2];  // of the files
  SafetensorsLayout layouts_[2];
  std::unique_ptr<RankPieces> pieces_;  // of ranks
  std::vector<RowGroups> groups_;       // of each parameter's rows in files

  // Of the one on its way.
  AtomicFile files_[2], marker_;
  Fingerprint digests_[2];
  CheckpointSeal seal_;
  std::string folder_, final_name_, paths_[3];
  std::string sealed_;                           // where a rank leaves its lines
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
