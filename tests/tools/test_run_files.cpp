// The files a run writes for others while it runs: lines, CSV, TensorBoard events,
// trainer_state.json, and how they are cut at a resume.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/io/files.h"
#include "tests/engine/io/temp_folder.h"
#include "tools/trainer/run_history.h"
#include "tools/trainer/run_log.h"
#include "tools/trainer/trainer_state.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::vector<std::string> lines_of(const std::string& path) {
  LineReader in(path);
  std::vector<std::string> out;
  while (const auto line = in.next()) out.emplace_back(*line);
  return out;
}

void spill(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(RunLogs, WhatIsLeftIsOfTheStepsOfThisProcess) {
  EXPECT_EQ(remaining_seconds(10, 0, 5, 20, -1), 30);
  EXPECT_EQ(remaining_seconds(10, 10, 15, 20, -1), 10) << "resumed at step 10";
  EXPECT_EQ(remaining_seconds(10, 0, 20, 20, -1), 0);
  EXPECT_EQ(remaining_seconds(10, 0, 5, 20, 12), 12) << "max_time ends it";
  EXPECT_EQ(remaining_seconds(10, 0, 5, 20, 40), 30) << "the steps end before";
  EXPECT_EQ(remaining_seconds(10, 0, 5, 20, 0), 0);
  EXPECT_EQ(remaining_seconds(10, 0, 5, 0, 12), 12) << "steps without a number";
  EXPECT_EQ(remaining_seconds(10, 0, 5, 0, -1), -1);
  EXPECT_EQ(remaining_seconds(10, 10, 10, 20, -1), -1) << "before the first step";
  EXPECT_EQ(remaining_seconds(10, 10, 10, 20, 12), 12);
}

TEST(LineFiles, WholeLinesOnlyWhateverTheBuffer) {
  TempFolder tmp;
  const std::string path = tmp / "x";
  spill(path, "");
  EXPECT_TRUE(lines_of(path).empty());
  spill(path, "torn");
  EXPECT_TRUE(lines_of(path).empty());
  spill(path, "a\n\nb\ntorn");
  EXPECT_EQ(lines_of(path), (std::vector<std::string>{"a", "", "b"}));
  // Around the limit: the longest line that is read has kMaxLine - 1 bytes and its line break.
  const auto limit = static_cast<size_t>(LineReader::kMaxLine);
  for (const size_t n : {limit - 2, limit - 1, limit, limit + 1, 3 * limit + 5}) {
    spill(path, "before\n" + std::string(n, 'x') + "\nafter\nlast\n");
    std::vector<std::string> want = {"before", "after", "last"};
    if (n < limit) want.insert(want.begin() + 1, std::string(n, 'x'));
    EXPECT_EQ(lines_of(path), want) << n;
  }
  std::string many;
  std::vector<std::string> want;
  for (int i = 0; i < 30000; ++i) {
    want.push_back(std::string(static_cast<size_t>(i % 17), 'y') + std::to_string(i));
    many += want.back() + "\n";
  }
  spill(path, many);
  EXPECT_EQ(lines_of(path), want);
  const auto all = want;
  const auto sevens = [](std::string_view line) {
    return line.ends_with("y1")  ? LineGoes::both
           : line.ends_with('7') ? LineGoes::here
                                 : LineGoes::aside;
  };
  const int64_t moved = cut_lines(path, sevens, [&] { return tmp / "rest"; });
  std::vector<std::string> rest;
  for (const std::string& line : all)
    if (!line.ends_with('7')) rest.push_back(line);
  std::erase_if(
      want, [](const std::string& line) { return !line.ends_with('7') && !line.ends_with("y1"); });
  EXPECT_EQ(lines_of(path), want);
  EXPECT_EQ(lines_of(tmp / "rest"), rest);
  EXPECT_EQ(moved, static_cast<int64_t>(rest.size()) - 1);  // one is in both
  // Without another file they go, and without such a line it is not asked for.
  EXPECT_EQ(cut_lines(
                path, [](std::string_view) { return LineGoes::both; },
                []() -> std::string { throw std::logic_error("asked"); }),
            0);
  EXPECT_EQ(lines_of(path), want);
  EXPECT_EQ(cut_lines(path, [](std::string_view) { return LineGoes::aside; }),
            static_cast<int64_t>(want.size()));
  EXPECT_TRUE(lines_of(path).empty());
  EXPECT_EQ(cut_lines(tmp / "nothing", sevens), 0);
  EXPECT_EQ(tmp.count(), 2);
  EXPECT_ERROR(LineReader(tmp / "nothing"), ErrorCode::device, "to read", "No such file",
               "check its rights");
  EXPECT_ERROR(LineFile(tmp / "no/such", false), ErrorCode::device, "to open", "No such file",
               "output_dir");
}

TEST(LineFiles, StepOfALine) {
  EXPECT_EQ(step_of_line(R"({"step":12,"loss":1})"), 12);
  EXPECT_EQ(step_of_line(R"({"loss":1,"step": 7})"), 7);
  EXPECT_EQ(step_of_line(R"({"step":3})"), 3);
  for (const char* bad : {"", "x", "[]", R"({"step":"3"})", R"({"step":1.5,"a":1})", R"({"step":1)",
                          R"({"loss":1})", R"({"step":,})"})
    EXPECT_EQ(step_of_line(bad), std::nullopt) << bad;
}

// RFC 3720, B.4, and the check value of the CRC catalogue.
TEST(Events, Crc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8u);
}

// What tensorboard 2.21 writes for the same event (its Event message and its RecordWriter).
TEST(Events, BytesAreTensorBoards) {
  const auto hex = [](const std::string& bytes) {
    std::string out;
    for (const char c : bytes) {
      constexpr const char* kDigits = "0123456789abcdef";
      out += kDigits[static_cast<uint8_t>(c) >> 4];
      out += kDigits[static_cast<uint8_t>(c) & 15];
    }
    return out;
  };
  const std::string event = scalar_event(1.5, 300, {{"train/loss", 2.5}, {"lr", 0.001}});
  EXPECT_EQ(
      hex(event),
      "09000000000000f83f10ac022a1e0a110a0a747261696e2f6c6f737315000020400a090a026c72156f12833a");
  EXPECT_EQ(hex(event_record(event)),
            "2c00000000000000f4aecc4509000000000000f83f10ac022a1e0a110a0a747261696e2f6c6f7373150000"
            "20400a090a026c72156f12833afd009eb2");
  EXPECT_EQ(event_step(event), 300);
  EXPECT_EQ(event_step(""), 0);
  for (size_t n = 1; n < event.size(); ++n) event_step(std::string_view(event).substr(0, n));
  EXPECT_EQ(event_step("\x10"), std::nullopt);
  EXPECT_EQ(event_step("\x0b"), std::nullopt);
  EXPECT_EQ(event_step("\x2a\x05xx"), std::nullopt);
}

// The bytes that tensorboard 2.20's own messages have (event_pb2.Event with a value of the text
// plugin, SerializeToString).
TEST(Events, TextIsATensorOfStrings) {
  std::string hex;
  for (const char c : text_event(1.5, 3, "sample", "hi"))
    hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  EXPECT_EQ(hex,
            "09000000000000f83f10032a220a200a0673616d706c65420c0807120412020801420268694a080a060a04"
            "74657874");
  EXPECT_EQ(event_step(text_event(1.5, 3, "sample", "hi")), 3);
}

struct Record {
  int64_t step;
  std::string rest;  // the event without its time
};
std::vector<Record> records_of(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<Record> out;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    uint32_t crc = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&crc, bytes.data() + at + 8, 4);
    EXPECT_EQ(crc, masked_crc32c(std::string_view(bytes).substr(at, 8)));
    const std::string event = bytes.substr(at + 12, length);
    std::memcpy(&crc, bytes.data() + at + 12 + length, 4);
    EXPECT_EQ(crc, masked_crc32c(event));
    out.push_back({*event_step(event), event.substr(9)});
    at += 16 + length;
  }
  return out;
}

TEST(Events, AResumeCutsAndGoesOn) {
  TempFolder tmp;
  const auto write = [](EventFile& file, int from, int to) {
    for (int step = from; step <= to; ++step)
      file.scalars(step, {{"train/loss", 1.0 / step}, {"lr", 0.5 * step}});
  };
  std::string whole, parts;
  {
    EventFile file(tmp / "whole", -1);
    write(file, 1, 10);
    whole = file.path();
  }
  EXPECT_NE(whole.find("/events.out.tfevents."), std::string::npos);
  {
    EventFile file(tmp / "parts", -1);
    write(file, 1, 8);
    file.sync();
    parts = file.path();
  }
  const std::string bytes = read_file(parts);
  for (const int torn : {0, 1, 5, 60, 90}) {  // bytes off the end
    spill(parts, bytes.substr(0, bytes.size() - static_cast<size_t>(torn)));
    {
      EventFile file(tmp / "parts", 5);
      EXPECT_EQ(file.path(), parts);
      write(file, 6, 10);
    }
    std::vector<Record> a = records_of(whole), b = records_of(parts);
    ASSERT_EQ(b.size(), a.size() + 1);
    // The one more says that everything from step 6 on is new.
    EXPECT_EQ(b[6].step, 6);
    EXPECT_EQ(b[6].rest, std::string("\x10\x06\x3a\x02\x08\x01", 6));
    b.erase(b.begin() + 6);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].rest, b[i].rest) << i;
  }
  // Damage inside: the rest goes, what is before stays.
  std::string damaged = bytes;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 4);
  spill(parts, damaged);
  EventFile::cut(tmp / "parts", 100);
  const size_t left = records_of(parts).size();
  EXPECT_GT(left, 2u);
  EXPECT_LT(left, 7u);
  // A length of almost 2^64 must not be believed.
  std::string huge(8, '\xff');
  const uint32_t crc = masked_crc32c(huge);
  huge.append(reinterpret_cast<const char*>(&crc), 4).append(20, 'x');
  spill(parts, huge);
  EventFile::cut(tmp / "parts", 100);
  EXPECT_EQ(read_file(parts), "");
  {
    EventFile file(tmp / "parts", 3);  // begins again in the same file
    write(file, 4, 4);
  }
  EXPECT_EQ(records_of(parts).size(), 3u);
  EventFile::cut(tmp / "nothing", 3);
  EXPECT_FALSE(fs::exists(tmp / "nothing"));
}

// TensorBoard shows a text as Markdown, which takes lines behind four spaces as they are.
TEST(Events, EveryLineOfATextIsShownAsItIs) {
  TempFolder tmp;
  EventFile file(tmp.path(), -1);
  file.text(3, "config", "a: 1\nbc: 2\n\nd", 7.0);
  file.sync();
  const std::vector<Record> records = records_of(file.path());
  EXPECT_EQ(records.back().step, 3);
  EXPECT_NE(records.back().rest.find("    a: 1\n    bc: 2\n    \n    d\n"), std::string::npos)
      << records.back().rest;
}

StepMetrics step_metrics(int64_t step) {
  StepMetrics m;
  m.step = step;
  m.loss = 3.0 / static_cast<double>(step);
  m.learning_rate = 0.25;
  m.grad_norm = step == 2 ? std::nan("") : 1.5;
  m.tokens_per_second = 100;
  m.step_seconds = 0.5;
  m.elapsed = static_cast<double>(step);
  m.epoch = static_cast<double>(step) / 8;
  m.tokens_seen = step * 32;
  m.memory_bytes = 4096;
  return m;
}

TEST(RunLogs, LinesCsvAndEventsAreCutTogether) {
  TempFolder tmp;
  testing::internal::CaptureStdout();
  const auto write = [](RunLog& log, int from, int to) {
    for (int step = from; step <= to; ++step) {
      log.step(step_metrics(step));
      if (step % 2 == 0)
        log.evaluation({.step = step, .tokens = 9, .loss = 2, .perplexity = 7.5, .seconds = 1});
    }
    log.sync();
  };
  const RunSinks all{.csv = true, .tensorboard = true};
  {
    RunLog log(tmp.path(), -1, all);
    write(log, 1, 6);
  }
  const auto csv = lines_of(tmp / "metrics.csv");
  ASSERT_EQ(csv.size(), 10u);
  EXPECT_EQ(csv[0].substr(0, 25), "step,epoch,loss,learning_");
  EXPECT_TRUE(csv[1].starts_with("1,0.125000,3,0.25,1.5,100.0,0.500000,1.000,32,4096,,,,,20"))
      << csv[1];
  EXPECT_EQ(csv[2].substr(0, 30), "2,0.250000,1.5,0.25,,100.0,0.5") << "not finite: an empty cell";
  EXPECT_TRUE(csv[3].starts_with("2,0.000000,,,,,,,,,2,7.5,1.000,9,20")) << csv[3];
  const size_t commas = static_cast<size_t>(std::count(csv[0].begin(), csv[0].end(), ','));
  for (const std::string& line : csv)
    EXPECT_EQ(static_cast<size_t>(std::count(line.begin(), line.end(), ',')), commas);
  EXPECT_EQ(Json::parse(lines_of(tmp / "metrics.jsonl")[1])["grad_norm"], nullptr);
  Aside aside(tmp.path());
  const auto lines = lines_of(tmp / "metrics.jsonl");
  {
    RunLog log(tmp.path(), 3, all, &aside);
    write(log, 4, 5);
  }
  const auto steps = [&](const std::string& name) {
    std::vector<int64_t> out;
    for (const std::string& line : lines_of(tmp / name))
      if (name.ends_with("csv") ? line[0] != 's' : true)
        out.push_back(name.ends_with("csv") ? std::stoll(line) : *step_of_line(line));
    return out;
  };
  const std::vector<int64_t> want = {1, 2, 2, 3, 4, 4, 5};
  EXPECT_EQ(steps("metrics.jsonl"), want);
  EXPECT_EQ(steps("metrics.csv"), want);
  EXPECT_EQ(lines_of(tmp / "metrics.csv")[0], csv[0]);
  const std::string events = fs::directory_iterator(tmp / "runs")->path().string();
  const auto event_steps = [&] {
    std::vector<int64_t> out;
    for (const Record& r : records_of(events))
      if (r.rest.find("\x3a\x02\x08\x01") == std::string::npos && r.step > 0) out.push_back(r.step);
    return out;
  };
  EXPECT_EQ(event_steps(), want);
  // What was behind step 3 is whole beside it.
  EXPECT_EQ(aside.text(), tmp / "aside-1: 5 lines of metrics");
  EXPECT_EQ(lines_of(tmp / "aside-1/metrics.jsonl"),
            std::vector<std::string>(lines.begin() + 4, lines.end()));
  std::vector<std::string> later(csv.begin() + 5, csv.end());
  later.insert(later.begin(), csv[0]);
  EXPECT_EQ(lines_of(tmp / "aside-1/metrics.csv"), later);
  const auto behind = records_of(tmp / ("aside-1/runs" + events.substr(events.rfind('/'))));
  ASSERT_EQ(behind.size(), 6u);
  EXPECT_NE(behind[0].rest.find("brain.Event:2"), std::string::npos);
  for (size_t i = 1; i < behind.size(); ++i)
    EXPECT_EQ(behind[i].step, *step_of_line(lines[i + 3])) << i;
  // Of the mark of a resume alone nothing is made.
  {
    Aside other(tmp.path());
    { RunLog log(tmp.path(), 5, all, &other); }
    { RunLog log(tmp.path(), 5, all, &other); }
    EXPECT_EQ(other.text(), "");
  }
  EXPECT_FALSE(fs::exists(tmp / "aside-2"));
  // Asked for nothing: what is there is cut all the same, and nothing is added.
  {
    RunLog log(tmp.path(), 2, {});
    write(log, 3, 3);
  }
  EXPECT_EQ(steps("metrics.jsonl"), (std::vector<int64_t>{1, 2, 2, 3}));
  EXPECT_EQ(steps("metrics.csv"), (std::vector<int64_t>{1, 2, 2}));
  EXPECT_EQ(event_steps(), (std::vector<int64_t>{1, 2, 2}));
  testing::internal::GetCapturedStdout();
}

// What a checkpoint knows of the log is the log of a run that goes on from it elsewhere.
TEST(RunLogs, TheLogOfACheckpointIsRestored) {
  TempFolder tmp;
  testing::internal::CaptureStdout();
  for (const bool scaling : {false, true}) {
    const RunSinks all{.csv = true, .tensorboard = true, .loss_scaling = scaling};
    const std::string a = tmp / (scaling ? "a1" : "a"), b = tmp / (scaling ? "b1" : "b");
    for (const std::string& folder : {a, b}) fs::create_directory(folder);
    {
      RunLog log(a, -1, all);
      for (int step = 1; step <= 6; ++step) {
        StepMetrics m = step_metrics(step);
        m.epoch = 12345.678901;
        m.loss = 1.0 / 3;
        m.step_seconds = 2e-6;
        if (scaling) m.loss_scale = step == 3 ? 0.0625 : 65536;
        if (scaling) m.skipped_steps = step / 3;
        log.step(m);
        if (step % 2 == 0)
          log.evaluation({.step = step, .tokens = 9, .loss = 2e-7, .perplexity = 7.5});
      }
    }
    fs::create_directory(a + "/checkpoint-4");
    write_trainer_state(a + "/checkpoint-4/trainer_state.json", a + "/metrics.jsonl", {.step = 4});
    restore_log(a + "/checkpoint-4", b, all);
    for (const auto& [name, count] : {std::pair("/metrics.jsonl", 6), {"/metrics.csv", 7}}) {
      auto want = lines_of(a + name);
      want.resize(static_cast<size_t>(count));
      EXPECT_EQ(lines_of(b + name), want);
    }
    const auto events = [](const std::string& run) {
      return records_of(fs::directory_iterator(run + "/runs")->path().string());
    };
    const auto want = events(a), found = events(b);
    ASSERT_EQ(found.size(), scaling ? 15u : 7u);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].rest, want[i].rest) << i;
    // Nothing was asked for but lines; a checkpoint without a log has none.
    fs::create_directory(b + "/lines");
    restore_log(a + "/checkpoint-4", b + "/lines", {});
    EXPECT_EQ(lines_of(b + "/lines/metrics.jsonl"), lines_of(b + "/metrics.jsonl"));
    restore_log(a, b + "/lines/none", {});
    for (const char* name : {"/lines/metrics.csv", "/lines/runs", "/lines/none"})
      EXPECT_FALSE(fs::exists(b + name)) << name;
  }
  testing::internal::GetCapturedStdout();
}

TEST(RunLogs, ReportTo) {
  EXPECT_TRUE(run_sinks({"all"}).csv && run_sinks({"all"}).tensorboard);
  EXPECT_FALSE(run_sinks({"none"}).csv || run_sinks({"none"}).tensorboard);
  EXPECT_TRUE(run_sinks({"csv"}).csv);
  EXPECT_FALSE(run_sinks({"csv"}).tensorboard);
  EXPECT_TRUE(run_sinks({"csv", "tensorboard"}).tensorboard);
}

TEST(TrainerState, HoldsTheLogUpToItsStep) {
  TempFolder tmp;
  std::string log;
  for (int step = 1; step <= 3000; ++step)  // more than one piece of writing
    log +=
        "{\"step\":" + std::to_string(step) + ",\"loss\":2.5,\"time\":\"2026-01-01T00:00:00Z\"}\n";
  spill(tmp / "metrics.jsonl", log + "{\"step\":3001,\"lo");
  const auto state = [&](const TrainerStateInfo& info) {
    write_trainer_state(tmp / "state.json", tmp / "metrics.jsonl", info);
    return Json::parse(read_file(tmp / "state.json"));
  };
  Json j = state({.step = 2500,
                  .max_steps = 4000,
                  .epoch = 0.625,
                  .num_train_epochs = 1,
                  .logging_steps = 1,
                  .eval_steps = 20,
                  .save_steps = 30,
                  .train_batch_size = 4,
                  .tokens_seen = 77,
                  .best_metric = 1.25,
                  .best_step = 2000});
  ASSERT_EQ(j["log_history"].size(), 2500u);
  EXPECT_EQ(j["log_history"][2499]["step"], 2500);
  EXPECT_EQ(j["global_step"], 2500);
  EXPECT_EQ(j["max_steps"], 4000);
  EXPECT_EQ(j["epoch"], 0.625);
  EXPECT_EQ(j["num_train_epochs"], 1.0);
  EXPECT_EQ(j["logging_steps"], 1);
  EXPECT_EQ(j["eval_steps"], 20);
  EXPECT_EQ(j["save_steps"], 30);
  EXPECT_EQ(j["train_batch_size"], 4);
  EXPECT_EQ(j["num_input_tokens_seen"], 77);
  EXPECT_EQ(j["best_metric"], 1.25);
  EXPECT_EQ(j["best_global_step"], 2000);
  fs::remove(tmp / "metrics.jsonl");
  j = state({});
  EXPECT_TRUE(j["log_history"].empty());
  EXPECT_EQ(j["best_metric"], nullptr);
  EXPECT_EQ(j["best_global_step"], nullptr);
}

}  // namespace
}  // namespace snug
