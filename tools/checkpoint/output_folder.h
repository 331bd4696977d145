// The folder a run writes, and what may be removed from it.
//
// Nothing is removed but what a run writes, by name, and only from a folder that holds a run, a
// config.resolved.yaml or a metrics.jsonl, or nothing but files of a run that were never whole.
// Whatever else lies in such a folder stays.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/checkpoint/output_lock.h"

namespace snug {

// Behind the name of a checkpoint that is not as it was written, which a resume keeps aside.
inline constexpr std::string_view kDamagedEnd = ".damaged";
// Before the number of a folder of aside.h.
inline constexpr std::string_view kAsidePrefix = "aside-";

// A folder that goes away again, with the parents that were made for it as far as they are empty,
// unless it is kept. A folder that another process made meanwhile stays. Throws usage if it cannot
// be made, or if `lock` is given and another process holds it.
class NewFolder {
 public:
  explicit NewFolder(const std::string& path, OutputLock* lock = nullptr);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  void keep() { made_.clear(); }

 private:
  std::vector<std::filesystem::path> made_;  // the innermost first
  bool whole_ = false;                       // that one is `path`, and goes with what is in it
};

// Whether there is a run in it, whole or not.
bool holds_run(const std::string& dir);
// Looks, writes nothing. Throws usage unless a new run may be written to `dir`: it is not there, or
// is empty but for a lock, and torn files and the tokens of a start that was broken off, or, with
// `overwrite`, holds a run. `own_input` is what the new run reads of that run (run_input.h), which
// is then not overwritten, nor is that advised; empty: nothing.
void check_new_output(const std::string& dir, bool overwrite, const std::string& own_input);
// Whether `checkpoint` is a folder in `dir`.
bool lies_in(const std::string& checkpoint, const std::string& dir);
// Throws usage unless what a resume replaces in `dir` is a run's.
void check_resumed_output(const std::string& dir);
// Throws usage unless `dir` may take a run that goes on from a `checkpoint` of another folder.
void check_forked_output(const std::string& dir, const std::string& checkpoint);

// Where the tokens of a start lie until they take the place of those that may be there.
std::string new_tokens_folder(const std::string& dir);
std::string tokens_folder(const std::string& dir);
// Puts them there; an empty folder (token files are used where they are) goes. Those that were
// there go too, unless `keep`, and then there may be no new ones.
void adopt_new_tokens(const std::string& dir, bool keep);

// Removes what is torn of files that a run writes.
void remove_torn_files(const std::string& dir);
// What overwrite removes from a folder that holds a run, there or not, in that order.
std::vector<std::filesystem::path> files_of_old_run(const std::string& dir);
// Removes what a run wrote, whole or torn; without a run what is torn.
void remove_old_run(const std::string& dir);
// Removes torn writes, of single files too, and returns the names of the complete checkpoints after
// `step`, by their steps.
std::vector<std::string> later_checkpoints(const std::string& dir, int64_t step);

// `built` takes the name `path`, durably; a folder of that name is removed after that, so that at
// every moment one of the two is there. Throws device.
void replace_folder(const std::string& built, const std::string& path);

// A word of a shell command: quoted if the shell would cut or change it.
std::string shell_word(const std::string& text);

}  // namespace snug
