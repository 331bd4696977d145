// The folder a run writes, and what may be removed from it.
//
// Nothing is removed but what a run writes, by name, and only from a folder that holds a run: a
// config.resolved.yaml or a metrics.jsonl. Whatever else lies in such a folder stays.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace snug {

// A folder that goes away again, with the parents that were made for it, unless it is kept. Throws
// usage if it cannot be made.
class NewFolder {
 public:
  explicit NewFolder(const std::string& path);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  void keep() { made_.clear(); }

 private:
  std::filesystem::path made_;  // the topmost folder that was not there
};

// Looks, writes nothing. Throws usage unless a new run may be written to `dir`: it is not there, or
// is empty but for the tokens of a start that was broken off, or, with `overwrite`, holds a run.
void check_new_output(const std::string& dir, bool overwrite);
// Throws usage unless `checkpoint` lies in `dir` and what a resume replaces there is a run's.
void check_resumed_output(const std::string& dir, const std::string& checkpoint);

// Where the tokens of a start lie until they take the place of those that may be there.
std::string new_tokens_folder(const std::string& dir);
// Puts them there; an empty folder (token files are used where they are) goes.
void adopt_new_tokens(const std::string& dir);

// Removes what a run wrote.
void remove_old_run(const std::string& dir);
// Removes the checkpoints after `step` and torn writes: going on from `step` makes other ones.
// Returns the names of the complete ones, or an empty text.
std::string remove_later_checkpoints(const std::string& dir, int64_t step);

// `built` takes the name `path`; a folder of that name is removed after that, so that at every
// moment one of the two is there. Throws device.
void replace_folder(const std::string& built, const std::string& path);

// A word of a shell command: quoted if the shell would cut or change it.
std::string shell_word(const std::string& text);

}  // namespace snug
