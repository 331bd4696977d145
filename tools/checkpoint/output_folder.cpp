#include "tools/checkpoint/output_folder.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "tools/checkpoint/checkpoint.h"

namespace snug {

namespace fs = std::filesystem;

namespace {

constexpr const char* kTokens = "data";
constexpr const char* kNewTokens = "data.new";
constexpr const char* kWritten[] = {"config.resolved.yaml",
                                    "plan.json",
                                    "metrics.jsonl",
                                    "metrics.csv",
                                    "trace.json",
                                    "trainer_state.json",
                                    "runs",
                                    "memory.json",
                                    "report.html",
                                    "report-story.html",
                                    "final",
                                    "final.tmp",
                                    "final.old",
                                    "tokenizer",
                                    "ranks",
                                    kReferenceFile,
                                    kTokens,
                                    kNewTokens};

bool there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error)
    fail(ErrorCode::device, fmt::format("to remove {}", path.string()), error.message(),
         "another output_dir");
}

void refuse_file(const std::string& dir) {
  std::error_code error;
  if (fs::exists(dir, error) && !fs::is_directory(dir, error))
    fail(ErrorCode::usage, "output_dir as a folder", fmt::format("{}, which is a file", dir),
         "another output_dir");
}

// Names in `dir` of checkpoints, of their unfinished writes and of those that a resume kept aside,
// with their steps.
struct Entry {
  fs::path path;
  int64_t step;
  bool torn, damaged;
};

std::vector<Entry> checkpoints_of(const std::string& dir) {
  std::vector<Entry> list;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    std::string name = entry.path().filename().string();
    bool torn = false;
    const bool damaged = name.ends_with(kDamagedEnd);
    for (const std::string_view end :
         {std::string_view(".tmp"), std::string_view(".old"), kDamagedEnd})
      if (name.ends_with(end)) {
        name.resize(name.size() - end.size());
        torn = !damaged;
        break;
      }
    if (const auto step = checkpoint_step(name))
      list.push_back({entry.path(), *step, torn || !there(entry.path() / "COMPLETE"), damaged});
  }
  return list;
}

bool written_by_a_run(const std::string& name) {
  return std::find(std::begin(kWritten), std::end(kWritten), name) != std::end(kWritten);
}

// A folder of aside.h with nothing of others in it.
bool is_aside(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  std::error_code error;
  if (!name.starts_with(kAsidePrefix) ||
      name.find_first_not_of("0123456789", kAsidePrefix.size()) != std::string::npos ||
      !fs::is_directory(entry.symlink_status(error)))
    return false;
  for (const auto& inner : fs::directory_iterator(entry.path(), error)) {
    std::string held = inner.path().filename().string();
    if (held.ends_with(kDamagedEnd)) held.resize(held.size() - kDamagedEnd.size());
    if (!written_by_a_run(held) && !checkpoint_step(held)) return false;
  }
  return !error;
}

// "report.html.tmp-4711-3": what AtomicFile leaves of a run's file where power or a kill ends it.
bool is_torn_file(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  const size_t end = name.rfind(".tmp-");
  if (end == std::string::npos || !written_by_a_run(name.substr(0, end))) return false;
  std::error_code error;
  return name.find_first_not_of("0123456789-", end + 5) == std::string::npos &&
         entry.is_regular_file(error);
}

// Whether there is more than a lock, torn files and the tokens of a start that was broken off.
bool is_used(const std::string& dir) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error))
    if (entry.path().filename() != kNewTokens && entry.path().filename() != kLockName &&
        !is_torn_file(entry))
      return true;
  return false;
}

}  // namespace

bool holds_run(const std::string& dir) {
  return file_exists(dir + "/config.resolved.yaml") || file_exists(dir + "/metrics.jsonl");
}

NewFolder::NewFolder(const std::string& path, OutputLock* lock) {
  std::error_code error;
  fs::path leaf = path;
  if (!leaf.has_filename()) leaf = leaf.parent_path();
  std::vector<fs::path> missing;
  for (fs::path at = leaf; !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
    missing.push_back(at);
    if (!at.has_relative_path()) break;
  }
  std::vector<fs::path> made;
  error.clear();
  while (!missing.empty() && !error) {
    // False without an error: another process made it, and may be using it.
    if (fs::create_directory(missing.back(), error)) made.insert(made.begin(), missing.back());
    missing.pop_back();
  }
  if (!error) fs::create_directories(path, error);  // says what is in the way
  if (error) {
    std::error_code ignored;
    for (const fs::path& folder : made) fs::remove(folder, ignored);
    fail(ErrorCode::usage, "output_dir that can be created",
         fmt::format("{}: {}", path, error.message()), "another output_dir");
  }
  if (lock) lock->take(path);  // a folder that another has locked meanwhile stays
  whole_ = !made.empty() && made.front() == leaf;
  made_ = std::move(made);
}

NewFolder::~NewFolder() {
  std::error_code error;
  if (whole_ && !made_.empty()) fs::remove_all(made_.front(), error);
  // Runs that were started beside this one may be in the parents.
  for (const fs::path& folder : made_) fs::remove(folder, error);
}

void check_new_output(const std::string& dir, bool overwrite, const std::string& own_input) {
  refuse_file(dir);
  if (!is_used(dir)) return;
  const bool run = holds_run(dir);
  if (overwrite && !run)
    fail(ErrorCode::usage, "an output_dir that is empty or holds a run",
         fmt::format("{} with other files in it, which overwrite would mix with a run's", dir),
         "another output_dir");
  if (overwrite && !own_input.empty())
    fail(ErrorCode::usage,
         fmt::format("input outside of the run in {}, which overwrite removes", dir), own_input,
         "another output_dir");
  if (overwrite) return;
  std::string advice = "another output_dir";
  if (run && own_input.empty()) advice = "overwrite=true, or " + advice;
  if (run && latest_checkpoint(dir))
    advice = (own_input.empty() ? "resume=latest, " : "resume=latest, or ") + advice;
  fail(ErrorCode::usage, "an output_dir that does not exist or is empty",
       fmt::format("{} with files in it", dir), advice);
}

bool lies_in(const std::string& checkpoint, const std::string& dir) {
  std::error_code error;
  const fs::path whole = fs::canonical(checkpoint, error);
  return !error && fs::equivalent(whole.parent_path(), dir, error) && !error;
}

void check_forked_output(const std::string& dir, const std::string& checkpoint) {
  refuse_file(dir);
  if (!is_used(dir)) return;
  std::error_code error;
  const fs::path whole = fs::canonical(checkpoint, error);
  const std::string home = (error ? fs::path(checkpoint) : whole).parent_path().string();
  fail(
      ErrorCode::usage,
      fmt::format("an output_dir that does not exist or is empty, to go on from {} in", checkpoint),
      fmt::format("{} with files in it", dir),
      fmt::format("another output_dir{}, or model={} to start a new run from its weights",
                  holds_run(home) && !is_aside(fs::directory_entry(home))
                      ? fmt::format(", output_dir={} to go on there", shell_word(home))
                      : "",
                  shell_word(checkpoint)));
}

void check_resumed_output(const std::string& dir) {
  refuse_file(dir);
  if (holds_run(dir)) return;
  for (const char* name : kWritten)
    if (there(fs::path(dir) / name))
      fail(ErrorCode::usage,
           fmt::format("a run in output_dir ({}): config.resolved.yaml or metrics.jsonl", dir),
           fmt::format("neither, and a {} that a resume would replace", name),
           "the folder the run was written to");
}

std::string new_tokens_folder(const std::string& dir) {
  return dir + "/" + kNewTokens;
}

std::string tokens_folder(const std::string& dir) {
  return dir + "/" + kTokens;
}

void adopt_new_tokens(const std::string& dir, bool keep) {
  const fs::path built = new_tokens_folder(dir), tokens = tokens_folder(dir);
  std::error_code error;
  if (!keep) remove_tree(tokens);
  if (fs::is_empty(built, error))
    fs::remove(built, error);
  else
    fs::rename(built, tokens, error);
  if (error)
    fail(ErrorCode::device, fmt::format("to rename {} to {}", built.string(), tokens.string()),
         error.message(), "another output_dir");
}

void remove_torn_files(const std::string& dir) {
  std::vector<fs::path> torn;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error))
    if (is_torn_file(entry)) torn.push_back(entry.path());
  for (const fs::path& path : torn) remove_tree(path);
}

std::vector<fs::path> files_of_old_run(const std::string& dir) {
  std::vector<fs::path> all;
  std::error_code error;
  for (const Entry& entry : checkpoints_of(dir)) all.push_back(entry.path);
  for (const auto& entry : fs::directory_iterator(dir, error))
    if (is_aside(entry)) all.push_back(entry.path());
  for (const std::string name : kWritten)
    if (name != kNewTokens && name != "config.resolved.yaml") all.push_back(fs::path(dir) / name);
  // Last what says that the folder holds a run: what power interrupts can be done again.
  all.push_back(fs::path(dir) / "config.resolved.yaml");
  return all;
}

void remove_old_run(const std::string& dir) {
  remove_torn_files(dir);
  if (!holds_run(dir)) return;
  for (const fs::path& path : files_of_old_run(dir)) remove_tree(path);
}

std::vector<std::string> later_checkpoints(const std::string& dir, int64_t step) {
  std::vector<std::string> names;
  remove_torn_files(dir);
  for (const Entry& entry : checkpoints_of(dir)) {
    if (entry.damaged) continue;
    if (entry.torn)
      remove_tree(entry.path);
    else if (entry.step > step)
      names.push_back(entry.path.filename().string());
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return checkpoint_step(a) < checkpoint_step(b);
  });
  return names;
}

void replace_folder(const std::string& built, const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  // What is removed is gone for good, so that its successor's name is made durable before.
  const auto durable = [&] { sync_folder(parent.empty() ? "." : parent); };
  std::error_code error;
  if (!there(path)) {
    fs::rename(built, path, error);
    if (!error) durable();
  } else if (renameat2(AT_FDCWD, built.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    durable();
    fs::remove_all(built, error);  // now the old one
    error.clear();
  } else {  // not every file system can exchange
    const std::string aside = path + ".old";
    remove_tree(aside);
    fs::rename(path, aside, error);
    if (!error) fs::rename(built, path, error);
    if (!error) durable();
    if (!error) remove_tree(aside);
  }
  if (error)
    fail(ErrorCode::device, fmt::format("to rename {} to {}", built, path), error.message(),
         "another output_dir");
}

std::string shell_word(const std::string& text) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:=@%+";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'')
      word += "'\\''";
    else
      word += c;
  }
  return word + "'";
}

}  // namespace snug
