// trireme-report: follows a run; summarizes, plots, exports and compares runs.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "app.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "report/follow/follower.hpp"
#include "report/html/page.hpp"
#include "report/metrics.hpp"
#include "report/runs/run_history.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-report";
constexpr const char* kUsage =
    "Usage: trireme-report follow RUN|JOBID [--once] [--every SECONDS] [--tail N]\n"
    "                             [--deck DECK [KEY=VALUE ...]]\n"
    "           shows a run's progress and answers: is it running, are the GPUs busy, is there an\n"
    "           error in any rank's output, is its deck what was asked for? Ends with the run;\n"
    "           exit code 0 unless an answer is no, else 1.\n"
    "       trireme-report summary RUN|LOG ... [--csv|--markdown|--json]\n"
    "           one line for each run folder, metrics.jsonl or log of Megatron-LM's\n"
    "       trireme-report plot RUN|LOG ... -o FILE.svg [--x iterations|samples|tokens] "
    "[--log-loss]\n"
    "           loss, learning rate and throughput as curves, several runs in one plot\n"
    "       trireme-report html RUN|LOG|FOLDER ... -o FILE.html\n"
    "           a page that needs no network: curves, events, memory, GPUs, timelines; several "
    "runs\n"
    "           compared; a FOLDER of runs, as of a sweep, with parallel coordinates\n"
    "       trireme-report trace RUN [--csv]\n"
    "           what each rank does in the iterations of log.trace, and the bubble, measured and\n"
    "           simulated; or every pass, message and collective as comma-separated values\n"
    "       trireme-report export RUN|LOG ... [--csv] [-o FILE]\n"
    "           the values of every training line and evaluation as comma-separated values\n"
    "       trireme-report diff RUN|LOG RUN|LOG\n"
    "           versions, deck keys and losses that differ; exit code 1 when decks or losses\n"
    "           differ, or no loss of both is of the same iterations, 0 when they are equal\n"
    "       trireme-report goodput RUN [--json]\n"
    "           where the time of a run went, over all its starts: useful iterations, lost ones,\n"
    "           start-up, checkpoints, between starts; by what ended the starts\n\n";

using Words = std::vector<std::string>;

// ---------------------------------------------------------------------------- follow

report::FollowTarget target_of(const po::variables_map& values, const Words& words) {
  if (words.empty()) throw UsageError("follow: no run folder and no job is given");
  report::FollowTarget target = report::find_target(words[0]);
  target.version = TRIREME_VERSION;
  const Words overrides(words.begin() + 1, words.end());
  if (values.count("deck"))
    target.asked = report::AskedDeck{values["deck"].as<std::string>(), overrides};
  else if (!overrides.empty())
    throw UsageError("follow: '{}' belongs to a --deck, and none is given", overrides[0]);
  return target;
}

po::options_description follow_options() {
  po::options_description options("Options of follow");
  options.add_options()                //
      ("once", "print once and exit")  //
      ("tail", po::value<std::int64_t>()->value_name("N"),
       "also the last N lines of console.log and of every node's files, their number of lines, and "
       "the time of the last N reported iterations")  //
      ("every", po::value<double>()->default_value(2.0, "2")->value_name("SECONDS"),
       "interval between updates")  //
      ("deck", po::value<std::string>()->value_name("DECK"),
       "the deck that was asked for, followed by its KEY=VALUEs; default: the deck of the run's "
       "command");
  return options;
}

/// Shows a run while it runs. `words` are the run or job, then overrides of --deck. Fails (exit 1)
/// where one of the four answers is bad.
ExitCode follow(const po::variables_map& values, const Words& words) {
  const double every = values["every"].as<double>();
  if (!(every >= 0.1 && every <= 86400))
    throw UsageError("--every {}: expected 0.1 to 86400 seconds", every);
  const std::int64_t lines = values.count("tail") ? values["tail"].as<std::int64_t>() : 0;
  if (lines < 0) throw UsageError("--tail {}: expected 0 or more lines", lines);
  report::Follower follower(target_of(values, words));
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  const bool colour = terminal && std::getenv("NO_COLOR") == nullptr;
  while (true) {
    const report::Page page = follower.look();
    const bool last = page.ended || values.count("once") > 0;
    const bool clears = terminal && values.count("once") == 0;
    const std::string tail =
        values.count("tail")
            ? "\n" + report::last_lines(page.folder, static_cast<std::size_t>(lines))
            : "";
    print_out((clears ? "\033[H\033[J" : "") + to_text(page, colour) + tail +
              (clears || last ? "" : "\n"));
    if (last) return page.well() ? ExitCode::success : ExitCode::failure;
    if (std::fflush(stdout) != 0) throw IoError("cannot write to standard output");
    std::this_thread::sleep_for(std::chrono::duration<double>(every));
  }
}

// ---------------------------------------------------------------------------- runs compared

std::vector<report::RunHistory> read_runs(const Words& words) {
  std::vector<report::RunHistory> runs;
  for (const std::string& word : words) runs.push_back(report::read_run(word));
  return runs;
}

/// Says on standard error what is wrong with one of several runs.
void warn(const std::string& message) {
  std::fputs(fmt::format("{}: {}\n", kProgram, message).c_str(), stderr);
}

/// Throws DataError for a file that is neither a log nor a run: it has no line of a run.
void require_lines(const report::RunHistory& run) {
  if (run.train.empty() && run.validation.empty() && run.deck.empty())
    throw DataError("{}: no training line in it", run.name);
}

/// The file that -o names. Throws UsageError when `command` was given none, or one of another kind.
std::filesystem::path picture_of(const po::variables_map& values, const char* command,
                                 const char* what, const std::string& ending) {
  if (!values.count("output"))
    throw UsageError("{}: no output is given: add -o FILE{}", command, ending);
  const std::filesystem::path output = values["output"].as<std::string>();
  if (output.extension() != ending)
    throw UsageError("-o {}: {}; name one such as {}", output.string(), what,
                     std::filesystem::path(output).replace_extension(ending).string());
  return output;
}

report::PlotAxis axis_of(const std::string& name) {
  if (name == "iterations") return report::PlotAxis::iterations;
  if (name == "samples") return report::PlotAxis::samples;
  if (name == "tokens") return report::PlotAxis::tokens;
  throw UsageError("--x {}: expected iterations, samples or tokens{}", name,
                   did_you_mean(name, {"iterations", "samples", "tokens"}));
}

po::options_description summary_options() {
  po::options_description options("Options of summary");
  options.add_options()("csv", "print comma-separated values")(
      "markdown", "print a table in Markdown")("json", "print an array of objects");
  return options;
}

/// Runs and logs in one table.
ExitCode summary(const po::variables_map& values, const Words& words) {
  if (words.empty()) throw UsageError("summary: no run folder and no log is given");
  const std::size_t formats = values.count("csv") + values.count("markdown") + values.count("json");
  if (formats > 1) throw UsageError("summary: --csv, --markdown and --json exclude each other");
  const TableFormat format = values.count("csv")        ? TableFormat::csv
                             : values.count("markdown") ? TableFormat::markdown
                             : values.count("json")     ? TableFormat::json
                                                        : TableFormat::text;
  std::vector<report::RunSummary> runs;
  ExitCode code = ExitCode::success;
  // A problem with one run does not hide the rows of the others.
  const auto report_problem = [&](const std::string& message, ExitCode of_message) {
    warn(message);
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

/// `runs` without those that have no training line, such as those that start up, which are named on
/// standard error; all of them where none has one.
std::vector<report::RunHistory> plottable(std::vector<report::RunHistory> runs) {
  const auto is_empty = [](const report::RunHistory& run) { return run.train.empty(); };
  if (std::ranges::all_of(runs, is_empty)) return runs;
  for (const report::RunHistory& run : runs)
    if (is_empty(run)) warn(run.name + ": no training line in it");
  std::erase_if(runs, is_empty);
  return runs;
}

/// Curves of runs and logs as an SVG.
ExitCode plot(const po::variables_map& values, const Words& words) {
  if (words.empty()) throw UsageError("plot: no run folder and no log is given");
  const std::filesystem::path output = picture_of(values, "plot", "plots are SVG files", ".svg");
  const report::PlotAxis axis = axis_of(values["x"].as<std::string>());
  const report::Chart chart =
      report::plot_runs(plottable(read_runs(words)), axis, values.count("log-loss") > 0);
  write_file_atomically(output, report::to_svg(chart));
  print_out(fmt::format("{}: {} of {}\n", output.string(), counted(chart.panels.size(), "panel"),
                        counted(chart.names.size(), "run")));
  return ExitCode::success;
}

po::options_description html_options() {
  po::options_description options("Options of html");
  options.add_options()("output,o", po::value<std::string>()->value_name("FILE.html"),
                        "the file to write");
  return options;
}

/// Runs as a page.
ExitCode html(const po::variables_map& values, const Words& words) {
  if (words.empty()) throw UsageError("html: no run folder and no log is given");
  const std::filesystem::path output = picture_of(values, "html", "a page is HTML", ".html");
  const std::string page =
      report::html_page({words.begin(), words.end()}, progress_output(values), warn);
  write_file_atomically(output, page);
  print_out(
      fmt::format("{}: {}\n", output.string(), human_bytes(static_cast<double>(page.size()))));
  return ExitCode::success;
}

po::options_description trace_options() {
  po::options_description options("Options of trace");
  options.add_options()("csv", "print every pass, message and collective as a row");
  return options;
}

/// What is in a trace.json, for people or programs.
ExitCode trace(const po::variables_map& values, const Words& words) {
  if (words.size() != 1) throw UsageError("trace: expected a run folder or a trace.json");
  std::filesystem::path path = words[0];
  if (std::filesystem::is_directory(path)) {
    path /= "trace.json";
    if (!std::filesystem::exists(path))
      throw IoError(
          "'{}' is not there: the run's deck has no log.trace.iterations, or none of "
          "them is done",
          path.string());
  }
  if (values.count("csv"))
    report::write_trace_csv(path, [](const std::string& line) { print_out(line); });
  else
    print_out(report::trace_summary(path));
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

/// The values of all training lines.
ExitCode export_values(const po::variables_map& values, const Words& words) {
  if (words.empty()) throw UsageError("export: no run folder and no log is given");
  const std::vector<report::RunHistory> runs = read_runs(words);
  for (const report::RunHistory& run : runs) require_lines(run);
  const std::string table = report::export_csv(runs);
  if (values.count("output"))
    write_file_atomically(output_of(values, "output", with_run_files(words)), table);
  else
    print_out(table);
  return ExitCode::success;
}

po::options_description diff_options() { return po::options_description("Options of diff"); }

/// The differences of two runs. Exit code 1 when decks or losses differ or cannot be compared,
/// else 0.
ExitCode diff(const po::variables_map&, const Words& words) {
  if (words.size() != 2)
    throw UsageError("diff: expected two run folders or logs, not {}", words.size());
  const std::vector<report::RunHistory> runs = read_runs(words);
  for (const report::RunHistory& run : runs) require_lines(run);
  const report::RunDifference difference = report::compare_runs(runs[0], runs[1]);
  print_out(report::to_text(difference));
  return difference.same() ? ExitCode::success : ExitCode::failure;
}

po::options_description goodput_options() {
  po::options_description options("Options of goodput");
  options.add_options()("json", "print one JSON object");
  return options;
}

/// Where the time of a run went.
ExitCode goodput(const po::variables_map& values, const Words& words) {
  if (words.size() != 1) throw UsageError("goodput: expected one run folder");
  if (!std::filesystem::exists(std::filesystem::path(words[0]) / "metrics.jsonl"))
    throw IoError("'{}' is no run folder: it has no metrics.jsonl", words[0]);
  const std::vector<report::RunStart> starts = report::read_starts(words[0]);
  print_out(values.count("json") ? report::goodput_json(starts) : report::goodput_text(starts));
  return ExitCode::success;
}

// ---------------------------------------------------------------------------- commands

/// A command: its options, and the function that gets their values and the other words.
struct Command {
  const char* name;
  po::options_description (*options)();
  ExitCode (*run)(const po::variables_map& values, const Words& words);
};

constexpr Command kCommands[] = {
    {"follow", follow_options, follow}, {"summary", summary_options, summary},
    {"plot", plot_options, plot},       {"export", export_options, export_values},
    {"diff", diff_options, diff},       {"html", html_options, html},
    {"trace", trace_options, trace},    {"goodput", goodput_options, goodput},
};

/// Calls the command with its options and its other words.
ExitCode call(const Command& command, int argc, char** argv) {
  po::options_description options = command.options();
  options.add_options()("words", po::value<Words>());
  const po::variables_map values =
      parse_options(argc, argv, options, po::positional_options_description().add("words", -1));
  return command.run(values, values.count("words") > 0 ? values["words"].as<Words>() : Words());
}

ExitCode run(int argc, char** argv) {
  po::options_description all;
  std::vector<std::string_view> names;
  for (const Command& command : kCommands) {
    const po::options_description options = command.options();
    if (!options.options().empty()) all.add(options);
    names.push_back(command.name);
  }
  all.add(general_options());
  if (answers_help_or_version(argc, argv, kProgram, kUsage, all)) return ExitCode::success;

  const std::string word = argc > 1 ? argv[1] : "";
  for (const Command& command : kCommands)
    if (word == command.name) return call(command, argc - 1, argv + 1);
  throw UsageError("{}: expected follow, summary, plot, html, trace, export, diff or goodput{}",
                   word.empty() ? "no command is given" : "unknown command '" + word + "'",
                   did_you_mean(word, names));
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
