// snug train.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "engine/io/files.h"
#include "parallel/launch.h"
#include "parallel/rendezvous.h"
#include "tools/checkpoint/checkpoint.h"
#include "tools/cli/argument_parser.h"
#include "tools/cli/config_arguments.h"
#include "tools/cli/examples.h"
#include "tools/commands.h"
#include "tools/config/keys.h"
#include "tools/setup/rank_setup.h"
#include "tools/setup/setup.h"
#include "tools/trainer/trainer.h"

namespace snug {

namespace {

// Another launcher's word on ranks is one of the command line, before the other keys are looked at.
Arguments with_ranks(Arguments arguments, const std::optional<ForeignPlace>& place) {
  const bool said = std::any_of(arguments.begin(), arguments.end(),
                                [](const std::string& word) { return word.starts_with("ranks="); });
  if (place && !said) arguments.push_back(fmt::format("ranks={}", place->size));
  return arguments;
}

// What else it may have been meant to be: a folder beside it of nearly that name, or a key.
std::string near_word(const std::string& word) {
  namespace fs = std::filesystem;
  const fs::path path(word);
  std::vector<std::string> names;
  std::error_code error;
  const fs::path above = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (fs::directory_iterator it(above, error), end; !error && it != end; it.increment(error))
    if (file_exists((it->path() / "config.resolved.yaml").string()))
      names.push_back((path.has_parent_path() ? it->path() : it->path().filename()).string());
  std::sort(names.begin(), names.end());
  const std::vector<std::string_view> runs(names.begin(), names.end());
  std::vector<std::string_view> keys;
  for (const Key& key : config_keys()) keys.push_back(key.name);
  return suggestion(
      word, runs,
      suggestion(word, keys,
                 runs.empty() ? "snug train --example pretrain prints a configuration to begin with"
                              : "snug train " + names.front()));
}

// `snug train RUN` goes on with the run in that folder, or from one of its checkpoints: a word that
// names a folder stands for --config of its resolved configuration, and for resume=.
Arguments with_run_folder(const Arguments& arguments) {
  namespace fs = std::filesystem;
  Arguments out;
  std::string run, resume = "latest";
  bool config = false, told = false, elsewhere = false, tokenizer = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    config = config || word.starts_with("--config");
    elsewhere = elsewhere || word.starts_with("output_dir=");
    // Of a run that is overwritten nothing is read.
    tokenizer = tokenizer || word.starts_with("tokenizer=") || word == "overwrite=true";
    told = told || word.starts_with("resume=") || word.starts_with("resume_from_checkpoint=") ||
           word == "overwrite=true";
    std::error_code error;
    const bool value = i > 0 && arguments[i - 1] == "--config";
    if (value || word.starts_with("-") || word.find('=') != std::string::npos) {
      out.push_back(word);
      continue;
    }
    if (!fs::is_directory(word, error)) {
      if (!fs::exists(word, error) && find_key(word.substr(0, word.find('.'))) == nullptr)
        fail(ErrorCode::usage, "the folder of a run to go on with, --config FILE, or key=value",
             fmt::format("\"{}\", which is no folder, no file and no key", word), near_word(word));
      out.push_back(word);
      continue;
    }
    if (!run.empty())
      fail(ErrorCode::usage, "the folder of one run to go on with", run + " and " + word,
           "one of them");
    run = word;
    while (run.size() > 1 && run.ends_with('/')) run.pop_back();
    if (const fs::path path(run); file_exists(run + "/COMPLETE")) {
      resume = run;
      run = path.has_parent_path() ? path.parent_path().string() : ".";
    }
    if (!file_exists(run + "/config.resolved.yaml"))
      fail(ErrorCode::usage, "the folder of a run, with config.resolved.yaml, to go on with",
           fmt::format("{}, which has none", run),
           "--config FILE, or output_dir of a run that was begun");
  }
  if (run.empty()) return out;
  if (config)
    fail(ErrorCode::usage, "the folder of a run, which has a configuration, without --config",
         run + " and --config", "one of them; keys of another value go behind it: max_steps=2000");
  out.insert(out.begin(), {"--config", run + "/config.resolved.yaml"});
  // The run's own copy where the one that it began with is gone.
  if (!tokenizer && file_exists(run + "/tokenizer/tokenizer.json")) {
    const std::string first = load_config(run + "/config.resolved.yaml", {}).tokenizer;
    std::error_code error;
    if (!first.empty() && !fs::exists(first, error))
      out.push_back("tokenizer=" + run + "/tokenizer");
  }
  // Into another folder the run goes on from a checkpoint by its path.
  if (elsewhere && resume == "latest") resume = latest_checkpoint(run).value_or(resume);
  if (!told) out.push_back("resume=" + resume);
  return out;
}

}  // namespace

int train_command(const Arguments& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    constexpr std::string_view kFlag = "--example";
    const std::string& word = arguments[i];
    if (word != kFlag && !word.starts_with(std::string(kFlag) + "=")) continue;
    const bool behind = word == kFlag;
    const std::string name = !behind                    ? word.substr(kFlag.size() + 1)
                             : i + 1 < arguments.size() ? arguments[i + 1]
                                                        : std::string();
    fmt::print("{}", example_config(name));
    return 0;
  }
  watch_for_save();
  std::optional<ForeignPlace> place;
  if (std::getenv(kRankVariable) == nullptr) place = foreign_place();
  std::string example;
  const ConfigArguments a = parse_config_arguments(
      "train",
      "trains a model inside a memory budget; the peak is printed before a byte is reserved.",
      {"snug train --config run.yaml memory=256MiB",
       "snug train model=gpt2 train_data=corpus.txt tokenizer=tok.json output_dir=run1 memory=4GiB "
       "max_steps=1000",
       "snug train run1 max_steps=2000"},
      with_ranks(with_run_folder(arguments), place), [&](ArgumentParser& parser) {
        parser.option("--example", example, "NAME",
                      "print a commented configuration that runs: " + example_names());
      });
  if (!a.proceed) return 0;
  // The run that is to go on has a configuration.
  if (!a.config.resume.empty() && a.config_path.empty() && !a.config.is_set("model")) {
    const std::string& dir = a.config.output_dir;
    const bool there = !dir.empty() && file_exists(dir + "/config.resolved.yaml");
    fail(ErrorCode::usage, "the configuration of the run that goes on",
         fmt::format("resume: {} ({}) without --config or model", a.config.resume,
                     a.config.where("resume")),
         there ? "snug train " + dir : "snug train RUN, with the folder of the run");
  }
  refuse_target(a.config, "train");
  RunConfig config = a.config;
  if (std::getenv(kRankVariable) == nullptr) {
    if (place) adopt_ranks(config, place->size, place->said);
    check_running_ranks(config);
    if (!place) check_launcher(config);
    if (config.ranks > 1 && !place) return launch_ranks(static_cast<int>(config.ranks));
  }
  return train(config);
}

}  // namespace snug
