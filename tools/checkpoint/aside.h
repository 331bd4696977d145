// What lies behind the checkpoint that a resume goes on from: the run goes on as if it had not
// been, and it is kept.
//
//   output_dir/aside-N/     N the first free number
//     checkpoint-*          the checkpoints after that step
//     metrics.jsonl ...     the lines logged after it; runs/ the events
//     final, report.html, config.resolved.yaml ...    of a run that was further
// A checkpoint of it can be gone on from in another output_dir. overwrite removes it with its run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace snug {

class Aside {
 public:
  explicit Aside(std::string output_dir) : output_dir_(std::move(output_dir)) {}

  // Makes the folder when it is first asked for. Throws device.
  const std::string& folder();
  // Whether it was.
  bool used() const { return !folder_.empty(); }
  // Moves output_dir/name there, or copies the file. What is not there is no matter. Throws device.
  void move(const std::string& name);
  void copy(const std::string& name);
  // Names what was put there by other hands.
  void note(std::string text) { kept_.push_back(std::move(text)); }
  // "run/aside-1: checkpoint-30, final, 25 lines of metrics.jsonl"; empty if it was not used.
  std::string text() const;

 private:
  std::string output_dir_, folder_;
  std::vector<std::string> kept_;
};

// Sets the checkpoints after `step` aside, and what else tells of a run that was further: final,
// reports, its configuration.
void set_later_aside(Aside& aside, const std::string& output_dir, int64_t step);

}  // namespace snug
