// The commands that read finished or running runs once: summary, plot, export and diff.
#include <filesystem>

#include "core/files.hpp"
#include "report/commands.hpp"
#include "report/runs/comparison.hpp"
#include "report/runs/run_summary.hpp"

namespace trireme::report_app {
namespace {

using Words = std::vector<std::string>;

std::vector<report::RunHistory> read_runs(const Words& words) {
  std::vector<report::RunHistory> runs;
  for (const std::string& word : words) runs.push_back(report::read_run(word));
  return runs;
}

report::PlotAxis axis_of(const std::string& name) {
  if (name == "iterations") return report::PlotAxis::iterations;
  if (name == "samples") return report::PlotAxis::samples;
  if (name == "tokens") return report::PlotAxis::tokens;
  throw UsageError("--x {}: expected iterations, samples or tokens{}", name,
                   did_you_mean(name, {"iterations", "samples", "tokens"}));
}

}  // namespace

po::options_description summary_options() {
  po::options_description options("Options of summary");
  options.add_options()("csv", "print comma-separated values")(
      "markdown", "print a table in Markdown")("json", "print an array of objects");
  return options;
}

ExitCode summary(const po::variables_map& values, const Words& words) {
  if (words.empty()) throw UsageError("summary: no run folder and no log is given");
  const std::size_t formats = values.count("csv") + values.count("markdown") + values.count("json");
  if (formats > 1) throw UsageError("summary: --csv, --markdown and --json exclude each other");
  const report::TableFormat format = values.count("csv")        ? report::TableFormat::csv
                                     : values.count("markdown") ? report::TableFormat::markdown
                                     : values.count("json")     ? report::TableFormat::json
                                                                : report::TableFormat::text;
  std::vector<report::RunSummary> runs;
  ExitCode code = ExitCode::success;
  // A problem with one run does not hide the rows of the others.
  const auto report_problem = [&](const std::string& message, ExitCode of_message) {
    std::fputs(fmt::format("trireme-report: {}\n", message).c_str(), stderr);
    code = of_message;
  };
  for (const std::string& word : words) {
    try {
      runs.push_back(report::summarize(report::read_run(word)));
      if (runs.back().iterations == 0)
        report_problem(word + ": no training line in it", ExitCode::data);
    } catch (const Error& error) {
      report_problem(error.what(), error.code());
    }
  }
  if (!runs.empty()) print_out(report::to_table(runs, format));
  return code;
}

po::options_description plot_options() {
  po::options_description options("Options of plot");
  options.add_options()  //
      ("output,o", po::value<std::string>()->value_name("FILE.svg"), "the file to write")(
          "x", po::value<std::string>()->default_value("iterations")->value_name("AXIS"),
          "the x axis: iterations, samples or tokens")("log-loss", "logarithmic axis for the loss");
  return options;
}

ExitCode plot(const po::variables_map& values, const Words& words) {
  if (words.empty()) throw UsageError("plot: no run folder and no log is given");
  if (!values.count("output")) throw UsageError("plot: no output is given: add -o FILE.svg");
  const std::filesystem::path output = values["output"].as<std::string>();
  if (output.extension() != ".svg")
    throw UsageError("-o {}: plots are SVG files; name one such as {}", output.string(),
                     std::filesystem::path(output).replace_extension(".svg").string());
  const report::PlotAxis axis = axis_of(values["x"].as<std::string>());
  const report::Chart chart =
      report::plot_runs(read_runs(words), axis, values.count("log-loss") > 0);
  write_file_atomically(output, report::to_svg(chart));
  print_out(fmt::format("{}: {} of {}\n", output.string(), counted(chart.panels.size(), "panel"),
                        counted(words.size(), "run")));
  return ExitCode::success;
}

po::options_description export_options() {
  po::options_description options("Options of export");
  options.add_options()  //
      ("csv", "write comma-separated values (the default and only format)")(
          "output,o", po::value<std::string>()->value_name("FILE"),
          "the file to write; default: standard output");
  return options;
}

ExitCode export_values(const po::variables_map& values, const Words& words) {
  if (words.empty()) throw UsageError("export: no run folder and no log is given");
  const std::string table = report::export_csv(read_runs(words));
  if (values.count("output"))
    write_file_atomically(values["output"].as<std::string>(), table);
  else
    print_out(table);
  return ExitCode::success;
}

po::options_description diff_options() { return po::options_description("Options of diff"); }

ExitCode diff(const po::variables_map&, const Words& words) {
  if (words.size() != 2)
    throw UsageError("diff: expected two run folders or logs, not {}", words.size());
  const report::RunDifference difference =
      report::compare_runs(report::read_run(words[0]), report::read_run(words[1]));
  print_out(report::to_text(difference));
  return difference.same() ? ExitCode::success : ExitCode::failure;
}

}  // namespace trireme::report_app
