// trireme-report: follows a run, sums up runs.
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
    "           one line for each run folder, metrics.jsonl or log of Megatron-LM's\n\n";

using Words = std::vector<std::string>;

/// Calls `command` with its options and its other words.
ExitCode dispatch(int argc, char** argv, po::options_description options,
                  ExitCode (*command)(const po::variables_map&, const Words&)) {
  options.add_options()("words", po::value<Words>());
  const po::variables_map values =
      parse_options(argc, argv, options, po::positional_options_description().add("words", -1));
  return command(values, values.count("words") > 0 ? values["words"].as<Words>() : Words());
}

ExitCode run(int argc, char** argv) {
  po::options_description all;
  all.add(report_app::follow_options()).add(report_app::summary_options()).add(general_options());
  if (answers_help_or_version(argc, argv, kProgram, kUsage, all)) return ExitCode::success;

  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "follow")
    return dispatch(argc - 1, argv + 1, report_app::follow_options(), report_app::follow);
  if (command == "summary")
    return dispatch(argc - 1, argv + 1, report_app::summary_options(), report_app::summary);
  throw UsageError("{}: expected follow or summary{}",
                   command.empty() ? "no command is given" : "unknown command '" + command + "'",
                   did_you_mean(command, {"follow", "summary"}));
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
