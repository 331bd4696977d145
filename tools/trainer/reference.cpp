// The reference of a run that has no second model beside its own: log probabilities of the pairs by the
// weights that the run began with, computed before its first step and kept in output_dir.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/io/files.h"
#include "engine/io/safetensors.h"
#include "tools/checkpoint/output_folder.h"
#include "tools/session/tell.h"
#include "tools/trainer/train_run.h"

namespace snug {
namespace {

using Files = std::vector<RowData::ReferenceFile>;

// (rows, 2) of each file of rows.
void write_reference(const std::string& path, const std::string& data, const Files& files,
                     const std::vector<std::vector<float>>& of_files) {
  std::vector<SafeSpec> specs;
  for (size_t i = 0; i < of_files.size(); ++i)
    specs.push_back({.name = files[i].name,
                     .dtype = SafeDType::F32,
                     .shape = {static_cast<int64_t>(of_files[i].size() / 2), 2}});
  const SafetensorsLayout layout({{"format", "pt"}, {"data", data}}, specs);
  SafetensorsWriter writer(path, layout);
  for (size_t i = 0; i < of_files.size(); ++i)
    writer.write(files[i].name, of_files[i].data(),
                 static_cast<int64_t>(of_files[i].size() * sizeof(float)));
  writer.commit();
}

std::vector<std::vector<float>> read_reference(const std::string& path, const std::string& data,
                                               const Files& files) {
  const auto refuse = [&](const std::string& found) {
    fail(ErrorCode::data, fmt::format("the reference of this run's pairs in {}", path), found,
         "the file as the run wrote it, or another output_dir without resume");
  };
  if (!file_exists(path)) refuse("no such file");
  const SafetensorsReader file(path);
  const auto of = file.metadata().find("data");
  if (of == file.metadata().end() || of->second != data) refuse("that of other pairs");
  std::vector<std::vector<float>> all;
  for (const auto& [name, rows] : files) {
    const SafeTensor* const t = file.find(name);
    if (!t || t->dtype != SafeDType::F32 || t->shape != std::vector<int64_t>{rows, 2})
      refuse(fmt::format("no tensor {} of shape ({},2)", name, rows));
    all.emplace_back(static_cast<size_t>(2 * rows));
    std::memcpy(all.back().data(), t->data, static_cast<size_t>(t->bytes));
  }
  return all;
}

}  // namespace

void TrainRun::learn_reference() {
  if (!plan_.decisions.pairs.cached) return;
  const std::string path = lead_dir_ + "/" + kReferenceFile;
  const Files files = data_.rows->reference_files();
  const std::string fingerprint = data_.rows->reference_fingerprint();
  if (resumed_) {
    const std::string from = fork_ ? resumed_->folder + "/../" + std::string(kReferenceFile) : path;
    std::vector<std::vector<float>> all = read_reference(from, fingerprint, files);
    if (fork_ && leads()) write_reference(path, fingerprint, files, all);
    return data_.rows->set_reference(std::move(all), *session_);
  }
  const double started = monotonic_seconds();
  const StepState saved = session_->state();
  std::vector<std::vector<float>> all = data_.rows->compute_reference(*session_);
  session_->state() = saved;
  if (leads()) write_reference(path, fingerprint, files, all);
  data_.rows->set_reference(std::move(all), *session_);
  log_->say(fmt::format(
      "  reference: log probabilities of {} by the weights of the start ({})",
      count_of(std::max_element(files.begin(), files.end(),
                                [](const auto& a, const auto& b) { return a.rows < b.rows; })
                   ->rows,
               plan_.decisions.pairs.noun()),
      human_seconds(monotonic_seconds() - started)));
}

}  // namespace snug
