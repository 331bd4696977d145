// RankPieces: of a run whose ranks share what they keep, which pieces of the two large files of a
// checkpoint each rank writes (engine/io/safetensors_pieces.h): those of the flat range that are its own at
// every stage, weights that all ranks have included, so that each writes as much as another.
#pragma once

#include <string>
#include <vector>

#include "engine/io/safetensors_pieces.h"
#include "tools/session/session.h"

namespace snug {

class RankPieces {
 public:
  static constexpr int kModel = 0, kOptimizer = 1;
  // `files`: the names of the two; `layouts`: of each as a whole.
  RankPieces(Session& session, int rank, const std::string (&files)[2],
             const SafetensorsLayout (&layouts)[2]);

  // Of this rank's file.
  const SafetensorsLayout& layout(int file) const { return own_[static_cast<size_t>(file)]; }
  // Bytes of all ranks' files of it.
  int64_t bytes(int file) const { return bytes_[file]; }
  // What pieces_path() of it is to hold, of all ranks.
  const std::string& text(int file) const { return texts_[file]; }

  // Begins anew: all this rank writes, or the weights alone.
  void begin(bool weights_alone);
  // Every parameter below was read whole.
  int64_t passed() const;
  // The next numbers, `room` bytes at most, as they lie in the file; of what it was begun with, parameter by
  // parameter, and of each file in its order. No bytes: nothing is left.
  struct Read {
    int file = 0;
    int64_t bytes = 0;
  };
  Read read(char* out, int64_t room);

 private:
  struct Piece {
    int param;
    int file;
    int state;      // -1: weights
    bool scales;    // of a state
    int64_t first;  // in the flat range
    int64_t units;  // that rest: numbers, or bytes of codes
    int64_t each;   // elements of one
    int64_t bytes;  // of one in the file
    int64_t zeros;  // behind them
  };
  struct Own {  // elements [begin, end) of a parameter that are a rank's
    int rank;
    int64_t begin, end;
  };
  void add_weights(int param, const std::vector<Own>& owns, const SafetensorsLayout& layout,
                   size_t& tensor);
  void add_states(int param, const std::vector<Own>& owns);
  void add(PiecedTensor& tensor, const Own& own, int64_t first, int64_t elements, Piece piece);
  int64_t read_numbers(const Piece& piece, char* out, int64_t n);

  Session& session_;
  int rank_;
  RestingWeights weights_;
  std::vector<Piece> list_;
  std::vector<std::vector<SafeSpec>> specs_[2];  // of each rank, until the layouts are made
  std::vector<PiecedTensor> tensors_[2];
  std::vector<SafetensorsLayout> own_;
  int64_t bytes_[2] = {};
  std::string texts_[2];
  size_t next_ = 0;
  int64_t done_ = 0;  // of its units and zeros
  bool weights_alone_ = false;
};

}  // namespace snug
