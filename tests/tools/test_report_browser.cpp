// The report in a real browser: headless Chromium or Chrome, where one is installed. What is looked
// at is measured by a script that a copy of the page gets; the page itself has no such thing.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/io/files.h"
#include "tests/tools/session_case.h"
#include "tests/tools/test_report_schedule.h"
#include "tools/report/report.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The first of the usual names on PATH; empty if there is none.
std::string find_browser() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"})
      if (const std::string file = folder + "/" + name; access(file.c_str(), X_OK) == 0)
        return file;
  return "";
}

// Before anything of the page runs.
constexpr const char* kEars = R"js(<script>
var faults = [];
window.addEventListener("error", function (e) { faults.push(e.message + " at " + e.lineno); });
</script>)js";

// After it: what can be seen and done, as JSON in an attribute of the root.
constexpr const char* kProbe = R"js(<script>
function key(element, name) {
  element.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true, cancelable: true}));
}
function text(id) { var e = document.getElementById(id); return e ? e.textContent : null; }
var found = {width: innerWidth, scroll: document.documentElement.scrollWidth, wide: [], over: [],
  headings: [], data: {}, odd: [], tabs: [], unnamed: []};
document.querySelectorAll("body *").forEach(function (e) {
  var box = e.getBoundingClientRect();
  if (box.width && box.right > innerWidth + 0.5 && !e.closest(".scroll"))
    found.wide.push(e.tagName + "." + e.getAttribute("class") + " to " + box.right);
  if (e.tabIndex >= 0) found.tabs.push(e.id || e.tagName);
});
document.querySelectorAll(".plot").forEach(function (plot) {
  var labels = Array.prototype.slice.call(plot.querySelectorAll(".yt,.xt,.seg,.lv,.name,.peak"));
  labels.forEach(function (a, i) {
    var p = a.getBoundingClientRect();
    labels.slice(i + 1).forEach(function (b) {
      var q = b.getBoundingClientRect();
      var w = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      var h = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (w > 1 && h > 3) found.over.push(a.textContent + " / " + b.textContent);
    });
  });
});
document.querySelectorAll("svg").forEach(function (e) {
  if (!e.getAttribute("aria-label")) found.unnamed.push(e.parentNode.className);
});
document.querySelectorAll("h1,h2").forEach(function (e) { found.headings.push(e.textContent); });
document.querySelectorAll("tr").forEach(function (row) {
  var name = row.querySelector("th"), value = row.querySelector("data");
  if (name && value && !(name.textContent in found.data))
    found.data[name.textContent] = +value.getAttribute("value");
});
document.querySelectorAll("data").forEach(function (e) {
  if (e.textContent.replace(/,/g, "") !== e.getAttribute("value")) found.odd.push(e.textContent);
});
var stack = document.getElementById("stack"), map = document.getElementById("map");
found.where = [text("where")];
stack.focus();
key(stack, "ArrowRight");
found.where.push(text("where"));
key(stack, "Home");
found.where.push(text("where"));
key(stack, "Escape");
found.where.push(text("where"));
found.cursors = document.querySelectorAll(".cursor").length;
found.about = [text("about")];
map.focus();
found.ring = getComputedStyle(map).outlineStyle;
["", "ArrowUp", "ArrowUp", "ArrowRight", "ArrowLeft", "ArrowDown", "Home"].forEach(function (name) {
  if (name) key(map, name);
  found.about.push(text("about"));
});
key(map, "Escape");
found.about.push(text("about"));
var box = map.querySelector("rect.edge");
box.dispatchEvent(new PointerEvent("pointermove", {bubbles: true}));
found.pointed = text("about");
found.titles = map.querySelectorAll("title").length;
var colours = getComputedStyle(document.body);
found.colours = [colours.color, colours.backgroundColor];
found.faults = faults;
document.documentElement.setAttribute("data-found", encodeURIComponent(JSON.stringify(found)));
</script>)js";

std::string decoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

class SlowReportBrowser : public testing::Test {
 protected:
  void SetUp() override {
    browser_ = find_browser();
    if (browser_.empty()) GTEST_SKIP() << "no chromium, chromium-browser or google-chrome on PATH";
    char folder[] = "/tmp/snug_browser_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  void TearDown() override {
    std::error_code error;
    if (!folder_.empty()) fs::remove_all(folder_, error);
  }

  // Opens a copy of the page, so many pixels wide, and gives what the probe found.
  Json look(std::string html, bool dark = false, int width = 1280) {
    html.insert(html.find("<meta"), kEars);
    html.insert(html.rfind("</body>"), kProbe);
    const std::string page = folder_ + "/page.html", out = folder_ + "/dom.html";
    write_atomic(page, html);
    const std::string command = fmt::format(
        "timeout 240 '{}' --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage "
        "--user-data-dir='{}/profile' --window-size={},1000 --virtual-time-budget=5000 {} "
        "--dump-dom 'file://{}' > '{}' 2> '{}/log'",
        browser_, folder_, width, dark ? "--blink-settings=preferredColorScheme=0" : "", page, out,
        folder_);
    EXPECT_EQ(std::system(command.c_str()), 0) << read_file(folder_ + "/log");
    const std::string dom = read_file(out);
    const std::string mark = "data-found=\"";
    const size_t at = dom.find(mark);
    if (at == std::string::npos) {
      ADD_FAILURE() << "the probe did not come to its end; the page begins " << dom.substr(0, 300);
      return Json::object();
    }
    const size_t begin = at + mark.size();
    return Json::parse(decoded(dom.substr(begin, dom.find('"', begin) - begin)));
  }

  std::string browser_, folder_;
};

ReportRun whole_run(const Plan& plan) {
  ReportRun run;
  run.title = "a run";
  for (int i = 0; i < 60; ++i) {
    run.metrics.push_back({i * 10, 8 - 0.1 * i, 1e-3, 1.5, 1000.0 + i, 0.5 * i});
    run.memory_samples.emplace_back(0.5 * i, plan.engine_bytes);
  }
  run.evals = {{100, 7.5}, {400, 4.25}};
  run.measured_engine_bytes = plan.engine_bytes;
  run.measured_runtime_bytes = plan.runtime_bytes - 1;
  run.allocations_after_start = 0;
  run.samples = {{100, "To be"}, {400, "To be\nor not"}};
  run.finished = true;
  run.written = "2026-11-27T01:00:00Z";
  run.best_step = run.final_step = 400;
  run.best_value = 4.25;
  run.legs = {{.engine_bytes = plan.engine_bytes,
               .budget = plan.budget,
               .machine = "a machine",
               .when = "2026-11-26T01:00:00Z",
               .sentence = "Eight sequences at once."},
              {.from_step = 290,
               .step = 300,
               .seconds = 15,
               .engine_bytes = plan.engine_bytes,
               .machine = "another machine",
               .when = "2026-11-27T00:00:00Z",
               .sentence = "Eight sequences in two micro-batches."}};
  run.op_times = predicted_times(plan, op_seconds, "rates of a test");
  for (int64_t k = 0; k < 6; ++k)
    run.ladder.push_back({plan.budget * (4 + k) / 6, plan.engine_bytes * (4 + k) / 6, 1 + k,
                          k < 3 ? "block" : "none", 900.0 + 40 * static_cast<double>(k),
                          "What this rung does, said in a sentence of some length.", k == 2});
  return run;
}

void expect_sound(const Json& found, int width = 1280) {
  ASSERT_TRUE(found.contains("faults"));
  EXPECT_EQ(found["faults"], Json::array());
  EXPECT_EQ(found["width"], width);
  EXPECT_LE(found["scroll"].get<int>(), width);
  EXPECT_EQ(found["wide"], Json::array());
  EXPECT_EQ(found["over"], Json::array());
  EXPECT_EQ(found["odd"], Json::array());
  EXPECT_EQ(found["unnamed"], Json::array());
}

TEST_F(SlowReportBrowser, APageOfAPlanSaysItsNumbers) {
  const Model model(test::tiny_spec({.V = 300, .P = 64, .C = 32, .L = 4, .H = 2, .F = 128}),
                    parse_precision("fp32"));
  PlanRequest r;
  r.model = &model;
  r.T = 32;
  r.global_batch = 12;
  r.micro_batch = 3;
  r.budget = int64_t{64} << 20;
  const Plan plan = make_plan(r);
  const Json found = look(report_html(plan, ReportRun{}));
  expect_sound(found);
  const Json json = plan_json(plan);
  EXPECT_EQ(found["data"]["engine"], json["engine_bytes"]);
  EXPECT_EQ(found["data"]["runtime"], json["runtime_bytes"]);
  EXPECT_EQ(found["data"]["budget"], json["budget_bytes"]);
  EXPECT_EQ(found["data"]["minimum"], json["minimum_bytes"]);
  EXPECT_EQ(found["data"]["lower bound"], json["packing"]["lower_bound"]);
  EXPECT_EQ(found["data"]["padding"], json["categories"]["padding"]);
  for (const Json& holder : json["peak"]["holders"])
    EXPECT_EQ(found["data"][holder["name"].get<std::string>()], holder["bytes"]);
  EXPECT_EQ(found["headings"],
            Json({"A Snug run", "Memory over one step", "Address map", "Programs"}));
}

TEST_F(SlowReportBrowser, APageOfARunIsReadAndOperated) {
  const Plan plan = hand_plan();
  const std::string html = report_html(plan, whole_run(plan));
  const Json found = look(html);
  expect_sound(found);
  EXPECT_EQ(found["headings"],
            Json({"a run", "Learning", "Samples", "Planned against measured",
                  "Memory over one step", "Address map", "Programs", "The ladder"}));
  // Stack and map come in the order of the page, and what unfolds.
  ASSERT_GE(found["tabs"].size(), 4u);
  const auto stack = std::find(found["tabs"].begin(), found["tabs"].end(), "stack");
  EXPECT_NE(std::find(stack, found["tabs"].end(), "map"), found["tabs"].end());

  const auto where = found["where"].get<std::vector<std::string>>();
  EXPECT_EQ(where[0].substr(0, 12), "At the peak:");
  EXPECT_EQ(where[1].substr(0, 14), "At the cursor:");
  EXPECT_NE(where[2], where[1]);
  EXPECT_EQ(where[3], where[0]);
  EXPECT_EQ(found["cursors"], 2);  // the same moment in stack and map

  // The largest tensor first; keys walk to others; Home comes back; Escape leaves.
  const auto about = found["about"].get<std::vector<std::string>>();
  EXPECT_EQ(found["ring"], "solid");
  EXPECT_EQ(about[0].substr(0, 19), "No tensor is chosen");
  EXPECT_NE(about[1], about[0]);
  EXPECT_NE(about[2], about[1]);
  EXPECT_NE(about[3], about[2]);
  EXPECT_EQ(about[7], about[1]);
  EXPECT_EQ(about[8], about[0]);
  for (size_t i = 1; i < 8; ++i) {
    EXPECT_EQ(std::count(about[i].begin(), about[i].end(), '\n'), 4) << about[i];
    EXPECT_NE(about[i].find("at address "), std::string::npos) << about[i];
  }
  const auto pointed = found["pointed"].get<std::string>();
  EXPECT_EQ(std::count(pointed.begin(), pointed.end(), '\n'), 4) << pointed;
  EXPECT_EQ(found["titles"], 0);  // one explanation at a time

  const Json dark = look(html, true);
  expect_sound(dark);
  EXPECT_NE(dark["colours"], found["colours"]);
  // A half of a laptop's screen, and less.
  for (const int width : {900, 600}) {
    expect_sound(look(html, false, width), width);
    expect_sound(look(report_html(plan, ReportRun{}), false, width), width);
  }
}

TEST_F(SlowReportBrowser, TheProbeSeesFaults) {
  const Plan plan = hand_plan(1);
  std::string html = report_html(plan, ReportRun{});
  html.insert(html.find("<h2>"),
              "<div style=\"width:2000px\">wide</div><div class=\"plot\" style=\"height:40px\">"
              "<span class=\"lv\" style=\"top:20px\">one</span>"
              "<span class=\"lv\" style=\"top:22px\">two</span></div>"
              "<data value=\"5\">6</data><script>nothing();</script>");
  const Json found = look(html);
  EXPECT_EQ(found["faults"].size(), 1u);
  EXPECT_GT(found["scroll"].get<int>(), 1280);
  EXPECT_FALSE(found["wide"].empty());
  EXPECT_EQ(found["over"], Json({"one / two"}));
  EXPECT_EQ(found["odd"], Json({"6"}));
}

}  // namespace
}  // namespace snug
