// The page and the timeline's file.
#include "report/html/page.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "../message_of.hpp"
#include "../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "report/metrics.hpp"
#include "report/runs/run_history.hpp"

namespace trireme::report {
namespace {

constexpr const char* kEvil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>";

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++found;
  return found;
}

/// A run folder with some lines, one more each time it starts.
std::filesystem::path make_run(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream file(folder / "metrics.jsonl");
  file << json_line(StartEvent{.program = "p", .command = kEvil}, 1) << '\n';
  for (int i = 1; i <= 3; ++i)
    file << json_line(TrainEvent{.iteration = i, .loss = 4.0 / i}, 1 + i) << '\n';
  file << json_line(WarningEvent{.iteration = 3, .message = kEvil}, 5) << '\n';
  file << "a line that is cut sho";
  return folder;
}

/// The data in the page.
nlohmann::json data_of(const std::string& page) {
  const std::string begin = "id=\"data\">";
  const std::size_t from = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
}

TEST(HtmlPage, ShowsTextOfRunsAsText) {
  const ScratchFolder folder;
  const auto run = make_run(folder.path() / "<img src=x onerror=alert(3)>");
  const std::string page = html_page({run});
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  // The page's own: data, library, script.
  EXPECT_EQ(count(page, "</script>"), 3u);
  const nlohmann::json data = data_of(page);
  EXPECT_EQ(data["runs"][0]["name"], "<img src=x onerror=alert(3)>");
  EXPECT_EQ(data["runs"][0]["start"]["command"], kEvil);
  EXPECT_EQ(data["runs"][0]["marks"][0]["text"], kEvil);
  EXPECT_EQ(data["runs"][0]["train"]["rows"], 3);
  // 4, 2 and 1.33 as little-endian floats.
  EXPECT_EQ(data["runs"][0]["train"]["f32"]["loss"], "AACAQAAAAECrqqo/");
}

TEST(HtmlPage, LoadsNothing) {
  const ScratchFolder folder;
  const std::string page = html_page({make_run(folder.path() / "run")});
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  for (const char* loads : {"<link", "<script src", "url(", "@import", "fetch(", "XMLHttpRequest"})
    EXPECT_EQ(page.find(loads), std::string::npos) << loads;
}

TEST(HtmlPage, TakesFoldersOfRuns) {
  const ScratchFolder folder;
  make_run(folder.path() / "a");
  make_run(folder.path() / "b");
  const nlohmann::json data = data_of(html_page({folder.path()}));
  ASSERT_EQ(data["runs"].size(), 2u);
  EXPECT_EQ(data["runs"][1]["name"], "b");
  std::filesystem::create_directories(folder.path() / "c" / "d");
  EXPECT_THROW(html_page({folder.path() / "c"}), IoError);
}

TEST(HtmlPage, LeavesOutRunsThatStartUp) {
  const ScratchFolder folder;
  make_run(folder.path() / "b");
  std::filesystem::create_directories(folder.path() / "a");
  std::ofstream(folder.path() / "a" / "metrics.jsonl") << json_line(StartEvent{}, 1) << '\n';
  const std::string problem = (folder.path() / "a").string() + ": no training line in it";
  std::string said;
  const std::string page =
      html_page({folder.path()}, nullptr, [&](const std::string& message) { said += message; });
  EXPECT_EQ(said, problem);
  ASSERT_EQ(data_of(page)["runs"].size(), 1u);
  EXPECT_EQ(data_of(page)["runs"][0]["name"], "b");
  EXPECT_EQ(message_of<DataError>([&] { html_page({folder.path() / "a"}); }), problem);
}

TEST(TraceFile, IsReadAsItWasWritten) {
  const ScratchFolder folder;
  const auto path = folder.path() / "trace.json";
  std::ofstream(path)
      << trace_head() << trace_rank_line(0, "rank 0: \"stage\" 0")
      << trace_lane_line(0, 0, "compute") << trace_lane_line(0, 1, "sends")
      << trace_span_line({.name = "forward-compute",
                          .iteration = 10,
                          .micro_batch = 2,
                          .chunk = 0,
                          .start_ms = 1.5,
                          .ms = 2.25})
      << trace_span_line({.lane = 1, .name = "send", .iteration = 10, .start_ms = 3.75, .ms = 0.5})
      << trace_tail({.first = 10,
                     .last = 10,
                     .ranks = 1,
                     .bubble = 0.25,
                     .clock_error_ms = 0.0125,
                     .simulated_bubble = 0.2});
  // As a whole it is what Perfetto reads.
  const nlohmann::json whole = nlohmann::json::parse(read_file(path));
  EXPECT_EQ(whole["traceEvents"][4]["ts"], 1500.0);
  EXPECT_EQ(whole["otherData"]["bubble"], 0.25);
  std::vector<TraceSpan> spans;
  const Trace trace = read_trace(path, [&](const TraceSpan& span) { spans.push_back(span); });
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].micro_batch, 2);
  EXPECT_EQ(spans[0].ms, 2.25);
  EXPECT_EQ(spans[1].lane, 1);
  EXPECT_EQ(trace.ranks, std::vector<std::string>{"rank 0: \"stage\" 0"});
  EXPECT_EQ(trace.figures.simulated_bubble, 0.2);
  EXPECT_EQ(trace_summary(path),
            "1 rank, iterations 10 to 10: milliseconds per iteration\n"
            "rank               forward-compute  send\n"
            "rank 0: \"stage\" 0             2.25  0.50\n"
            "bubble: 25.0% measured, 20.0% simulated with the passes' mean times; "
            "clocks of ranks within 0.013 ms\n");
  std::string csv;
  write_trace_csv(path, [&](const std::string& line) { csv += line; });
  EXPECT_EQ(csv,
            "rank,iteration,lane,name,micro_batch,chunk,start_ms,ms\n"
            "0,10,0,forward-compute,2,0,1.500000,2.250000\n0,10,1,send,,,3.750000,0.500000\n");
  const std::string content = read_file(path);
  std::ofstream(path) << content.substr(0, content.size() - 150);  // cut short
  EXPECT_NO_THROW(read_trace(path, [](const TraceSpan&) {}));
  std::ofstream(path) << "{}\n";
  EXPECT_THROW(read_trace(path, [](const TraceSpan&) {}), DataError);
}

TEST(TraceFile, AnIterationThatARewindRepeatsCountsAsTwo) {
  const ScratchFolder folder;
  const auto path = folder.path() / "trace.json";
  {
    std::ofstream file(path);
    file << trace_head();
    for (const int rewinds : {0, 1})
      file << trace_span_line({.name = "forward-compute",
                               .iteration = 10,
                               .ms = rewinds == 0 ? 2.0 : 3.0,
                               .rewinds = rewinds});
    file << trace_tail({.first = 10, .last = 10, .ranks = 1});
  }
  EXPECT_NE(trace_summary(path).find("\n0                2.50\n"), std::string::npos)
      << trace_summary(path);
}

}  // namespace
}  // namespace trireme::report
