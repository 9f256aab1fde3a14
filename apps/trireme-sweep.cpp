// trireme-sweep: trains a deck many times, as its sweep section says.
#include <tuple>

#include "core/files.hpp"
#include "deck_options.hpp"
#include "plan/job.hpp"
#include "sweep/sweep.hpp"
#include "train/startup/startup.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-sweep";
constexpr const char* kUsage =
    "Usage: trireme-sweep [run] DECK [KEY=VALUE ...] [options]\n"
    "       trireme-sweep status DECK [KEY=VALUE ...]\n"
    "       trireme-sweep table DECK [KEY=VALUE ...] [--csv | --markdown | --json] [--beside "
    "FILE]\n"
    "Trains every run of the deck's sweep section that is not finished; '--help deck.sweep' "
    "explains it.\n\n";

po::options_description all_options() {
  po::options_description options("Options");
  options.add_options()  //
      ("set", po::value<std::vector<std::string>>()->composing()->value_name("KEY=VALUE"),
       "override a key of every run, or with sweep.KEY=VALUE one of the sweep; KEY=VALUE without "
       "--set does the same")  //
      ("output", po::value<std::string>()->value_name("FOLDER"),
       "the folder of the sweep: run.output")  //
      ("jobs", po::value<std::string>()->value_name("N"),
       "runs at a time: sweep.jobs")  //
      ("ranks", po::value<std::string>()->value_name("N"),
       "ranks of a run whose parallel.data is auto: sweep.ranks")  //
      ("launcher", po::value<std::string>()->value_name("WORDS"),
       "arguments in front of the program, with {ranks}: sweep.launcher")  //
      ("max-ranks", po::value<int>()->value_name("N"),
       "maximum ranks of a run on this machine; default: the number of GPUs, or of cores")  //
      ("memory", po::value<std::string>()->value_name("SIZE"),
       "memory of each GPU, or of each host on which a run's ranks compute (80GiB): runs that do "
       "not fit are refused")                                               //
      ("print", "print the runs, or with --submit the job, and exit")       //
      ("submit", "submit Slurm arrays instead of running on this machine")  //
      ("sbatch", po::value<std::string>()->value_name("WORDS"),
       "further arguments of sbatch: sweep.sbatch")  //
      ("csv", "print the table as CSV")              //
      ("markdown", "print the table as Markdown")    //
      ("json", "print the table as JSON")            //
      ("beside", po::value<std::string>()->value_name("FILE"),
       "CSV file whose columns are appended to the table, by the name of the run")  //
      ("help,h", "print this and exit; --help deck[.SECTION[.KEY]] explains the deck");
  add_general_options(options);
  return options;
}

enum class Task { run, status, table };

struct Arguments {
  Task task = Task::run;
  DeckArguments deck;

  bool has(const char* option) const { return deck.values.count(option) > 0; }
};

/// Options that stand for keys of the sweep become overrides; the first word may name the task.
Arguments parse(int argc, char** argv) {
  Arguments arguments;
  std::vector<char*> words(argv, argv + argc);
  if (argc > 1) {
    const std::string_view first = argv[1];
    const bool named = first == "run" || first == "status" || first == "table";
    if (named) words.erase(words.begin() + 1);
    arguments.task = first == "status" ? Task::status : first == "table" ? Task::table : Task::run;
  }
  arguments.deck = parse_deck_options(static_cast<int>(words.size()), words.data(), all_options());
  const std::string& deck = arguments.deck.path;
  if (!std::filesystem::exists(deck) && deck.find_first_of("./") == std::string::npos)
    throw UsageError("'{}' is neither a deck nor run, status or table{}", deck,
                     did_you_mean(deck, {"run", "status", "table"}));
  for (const char* key : {"jobs", "ranks"})
    if (arguments.has(key))
      arguments.deck.overrides.push_back(
          fmt::format("sweep.{}={}", key, arguments.deck.values[key].as<std::string>()));
  for (const std::string key : {"launcher", "sbatch"})
    if (arguments.has(key.c_str()))
      arguments.deck.overrides.push_back(
          deck::text_override("sweep." + key, arguments.deck.values[key].as<std::string>()));
  const int formats = arguments.has("csv") + arguments.has("markdown") + arguments.has("json");
  if ((formats > 0 || arguments.has("beside")) && arguments.task != Task::table)
    throw UsageError("--csv, --markdown, --json and --beside are options of 'table'");
  if (formats > 1) throw UsageError("choose one of --csv, --markdown and --json");
  if (arguments.has("max-ranks"))
    if (const int ranks = arguments.deck.values["max-ranks"].as<int>(); ranks < 1)
      throw UsageError("--max-ranks {}: expected 1 or more", ranks);
  if (arguments.has("max-ranks") && arguments.has("submit"))
    throw UsageError("--max-ranks limits this machine; it has no effect with --submit");
  if (arguments.has("sbatch") && !arguments.has("submit"))
    throw UsageError("--sbatch goes with --submit");
  for (const char* option : {"submit", "print", "memory"})
    if (arguments.has(option) && arguments.task != Task::run)
      throw UsageError("--{} goes with 'run'", option);
  return arguments;
}

/// trireme-pretrain in this program's folder, or in the PATH.
std::filesystem::path trainer() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto sibling = self.parent_path() / "trireme-pretrain";
  return !error && std::filesystem::exists(sibling) ? sibling : "trireme-pretrain";
}

/// How runs are started; inside a Slurm job one rank has a launcher, too, or it would be taken for
/// one of the job's tasks that lost the others. What is only printed shows the deck itself: its
/// copy is not made.
sweep::Launch launch_of(const sweep::PlannedSweep& planned, const Arguments& arguments) {
  const std::string& given = planned.section.launcher;
  const bool in_slurm = arguments.has("submit");
  const bool uses_copy = in_slurm || !arguments.has("print");
  const auto& image = planned.runs.front().deck.cluster.image;
  std::string srun = sweep::kSrun;
  if (in_slurm && given.empty() && image)
    for (const std::string& option :
         plan::container_options(std::filesystem::absolute(*image).lexically_normal().string(),
                                 std::filesystem::current_path().string()))
      srun += ' ' + option;
  const bool in_image = srun != sweep::kSrun;
  sweep::Launch launch{
      // In the image it is on PATH.
      .program = in_image ? std::filesystem::path("trireme-pretrain") : trainer(),
      .deck = uses_copy ? sweep::deck_copy(planned) : planned.deck_path,
      .launcher = !given.empty() ? given
                  : in_slurm     ? srun
                                 : sweep::kMpirun,
      .alone_on_one_rank = given.empty() && !in_slurm && std::getenv("SLURM_JOB_ID") == nullptr,
      .quiet = arguments.has("quiet")};
  sweep::check_launch(planned, launch);
  return launch;
}

void print_plan(const sweep::PlannedSweep& planned, const sweep::Launch& launch) {
  std::vector<std::string> commands;
  for (const sweep::PlannedRun& run : planned.runs)
    commands.push_back(sweep::shell_line(sweep::run_words(planned, run, launch)));
  print_out(sweep::plan_text(planned, sweep::all_statuses(planned), commands));
}

/// What is said where the memory of a job's nodes is not known.
std::string unknown_memory(const sweep::PlannedSweep& planned) {
  const auto largest =
      std::ranges::max_element(planned.runs, {}, [](auto& run) { return run.need.bytes; });
  return fmt::format(
      "memory: a rank of run '{}' needs {}, that of the nodes is not known here: --memory SIZE "
      "compares\n",
      largest->name(), human_bytes(static_cast<double>(largest->need.bytes)));
}

ExitCode run_sweep(const Arguments& arguments) {
  const bool submits = arguments.has("submit");
  const sweep::Machine machine = sweep::this_machine();
  sweep::CheckOptions options{.to_run = !arguments.has("print")};
  if (arguments.has("max-ranks")) options.max_ranks = arguments.deck.values["max-ranks"].as<int>();
  if (!submits) options.machine = machine;
  if (arguments.has("memory"))
    options.memory = [&](const deck::Deck& deck) {
      return asked_memory(arguments.deck.values, deck);
    };
  const auto planned = sweep::plan_sweep(arguments.deck.path, arguments.deck.overrides, options);
  const sweep::Launch launch = launch_of(planned, arguments);
  const auto& [jobs, words] = std::tie(planned.section.jobs, planned.section.sbatch);
  if (arguments.has("print")) {
    if (submits)
      print_out(sweep::submission_text(planned, launch, jobs, words));
    else
      print_plan(planned, launch);
    return ExitCode::success;
  }
  const train::FolderLock lock(planned.folder);
  if (submits) {
    const auto statuses =
        sweep::all_statuses(planned, sweep::read_queue(planned, /*must_answer=*/false));
    const bool is_complete = std::ranges::none_of(
        statuses, [](const sweep::Status& status) { return sweep::is_to_do(status.state); });
    if (!options.memory && !is_complete) print_out(unknown_memory(planned));
    print_out(sweep::submit(planned, launch, jobs, words));
    return ExitCode::success;
  }
  return sweep::run_locally(planned, machine, launch, static_cast<int>(jobs.value_or(1)));
}

ExitCode show(const Arguments& arguments) {
  sweep::CheckOptions options{.to_run = false, .machine = sweep::this_machine()};
  if (arguments.has("max-ranks")) options.max_ranks = arguments.deck.values["max-ranks"].as<int>();
  const auto planned = sweep::plan_sweep(arguments.deck.path, arguments.deck.overrides, options);
  const auto statuses =
      sweep::all_statuses(planned, sweep::read_queue(planned, /*must_answer=*/false));
  if (arguments.task == Task::status) {
    print_out(sweep::status_text(planned, statuses));
    return ExitCode::success;
  }
  sweep::ExtraColumns extra;
  if (arguments.has("beside")) {
    const auto path = arguments.deck.values["beside"].as<std::string>();
    extra = sweep::read_extra_columns(read_file(path), path, planned);
  }
  const auto format = arguments.has("csv")        ? TableFormat::csv
                      : arguments.has("markdown") ? TableFormat::markdown
                      : arguments.has("json")     ? TableFormat::json
                                                  : TableFormat::text;
  print_out(sweep::table(planned, statuses, format, extra));
  return ExitCode::success;
}

ExitCode run(int argc, char** argv) {
  const po::options_description options = all_options();
  if (answers_deck_help(argc, argv, kProgram, kUsage, options)) return ExitCode::success;
  const Arguments arguments = parse(argc, argv);
  return arguments.task == Task::run ? run_sweep(arguments) : show(arguments);
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
