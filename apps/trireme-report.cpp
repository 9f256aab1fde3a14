// trireme-report: follows a run; summarizes, plots, exports and compares runs.
#include "report/commands.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-report";
constexpr const char* kUsage =
    "Usage: trireme-report follow RUN|JOBID [--once] [--every SECONDS] [--deck DECK [KEY=VALUE "
    "...]]\n"
    "           shows a run's progress and answers: is it running, are the GPUs busy, is there an\n"
    "           error in any rank's output, is its deck what was asked for? Ends with the run;\n"
    "           exit code 0 unless an answer is no, else 1.\n"
    "       trireme-report summary RUN|LOG ... [--csv|--markdown|--json]\n"
    "           one line for each run folder, metrics.jsonl or log of Megatron-LM's\n"
    "       trireme-report plot RUN|LOG ... -o FILE.svg [--x iterations|samples|tokens] "
    "[--log-loss]\n"
    "           loss, learning rate and throughput as curves, several runs in one plot\n"
    "       trireme-report export RUN|LOG ... [--csv] [-o FILE]\n"
    "           the values of every training line and evaluation as comma-separated values\n"
    "       trireme-report diff RUN|LOG RUN|LOG\n"
    "           versions, deck keys and losses that differ; exit code 1 when decks or losses\n"
    "           differ, 0 when they are equal\n\n";

using Words = std::vector<std::string>;

constexpr report_app::Command kCommands[] = {
    {"follow", report_app::follow_options, report_app::follow},
    {"summary", report_app::summary_options, report_app::summary},
    {"plot", report_app::plot_options, report_app::plot},
    {"export", report_app::export_options, report_app::export_values},
    {"diff", report_app::diff_options, report_app::diff},
};

/// Calls the command with its options and its other words.
ExitCode call(const report_app::Command& command, int argc, char** argv) {
  po::options_description options = command.options();
  options.add_options()("words", po::value<Words>());
  const po::variables_map values =
      parse_options(argc, argv, options, po::positional_options_description().add("words", -1));
  return command.run(values, values.count("words") > 0 ? values["words"].as<Words>() : Words());
}

ExitCode run(int argc, char** argv) {
  po::options_description all;
  std::vector<std::string_view> names;
  for (const report_app::Command& command : kCommands) {
    const po::options_description options = command.options();
    if (!options.options().empty()) all.add(options);
    names.push_back(command.name);
  }
  all.add(general_options());
  if (answers_help_or_version(argc, argv, kProgram, kUsage, all)) return ExitCode::success;

  const std::string word = argc > 1 ? argv[1] : "";
  for (const report_app::Command& command : kCommands)
    if (word == command.name) return call(command, argc - 1, argv + 1);
  throw UsageError("{}: expected follow, summary, plot, export or diff{}",
                   word.empty() ? "no command is given" : "unknown command '" + word + "'",
                   did_you_mean(word, names));
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
