#include "report/runs/run_summary.hpp"

#include "report/commands.hpp"

namespace trireme::report_app {

po::options_description summary_options() {
  po::options_description options("Options of summary");
  options.add_options()("csv", "print comma-separated values")(
      "markdown", "print a table in Markdown")("json", "print an array of objects");
  return options;
}

ExitCode summary(const po::variables_map& values, const std::vector<std::string>& words) {
  if (words.empty()) throw UsageError("summary: no run folder and no log is given");
  const std::size_t formats = values.count("csv") + values.count("markdown") + values.count("json");
  if (formats > 1) throw UsageError("summary: --csv, --markdown and --json exclude each other");
  const report::TableFormat format = values.count("csv")        ? report::TableFormat::csv
                                     : values.count("markdown") ? report::TableFormat::markdown
                                     : values.count("json")     ? report::TableFormat::json
                                                                : report::TableFormat::text;
  std::vector<report::RunSummary> runs;
  ExitCode code = ExitCode::success;
  // Where something is wrong with one, the others' rows are worth having.
  const auto complain = [&](const std::string& message, ExitCode of_message) {
    std::fputs(fmt::format("trireme-report: {}\n", message).c_str(), stderr);
    code = of_message;
  };
  for (const std::string& word : words) {
    try {
      runs.push_back(report::summarize(std::filesystem::path(word)));
      if (runs.back().iterations == 0) complain(word + ": no training line in it", ExitCode::data);
    } catch (const Error& error) {
      complain(error.what(), error.code());
    }
  }
  if (!runs.empty()) print_out(report::to_table(runs, format));
  return code;
}

}  // namespace trireme::report_app
