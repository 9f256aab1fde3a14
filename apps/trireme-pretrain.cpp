// trireme-pretrain: trains the model of a deck.
#include <stdio_ext.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "checkpoint/file.hpp"
#include "convert/convert.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "deck_options.hpp"
#include "job_options.hpp"
#include "mpi_app.hpp"
#include "pretrain/console.hpp"
#include "train/startup/launch.hpp"
#include "train/startup/startup.hpp"
#include "train/trainer.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-pretrain";
constexpr const char* kUsage =
    "Usage: trireme-pretrain DECK [KEY=VALUE ...] [options]\n"
    "Trains the model that a deck describes; mpirun or srun starts the ranks.\n\n";

po::options_description all_options() {
  po::options_description options = deck_options(kPretrainMemoryUsers);
  options.add_options()  //
      ("restart",
       po::value<std::string>()->default_value("latest")->value_name("latest|never|PATH"),
       "start from the newest checkpoint of the run folder or checkpoint.local (a fresh model if "
       "there is none), from a fresh model, or from a checkpoint")  //
      ("time-limit", po::value<std::string>()->value_name("TIME"),
       "write a checkpoint and stop with exit code 75 before this time has passed");
  options.add_options()  //
      ("cluster", po::value<std::string>()->value_name("FILE"),
       "a cluster file (trireme-plan --help cluster): print the step time that it lets expect, and "
       "compare the measured one where its GPUs have a measured profile")  //
      ("verify-data",
       "read all tokens of the datasets at the start instead of a sample: their ids must be in the "
       "vocabulary, and a restart must find them as they were");
  options.add_options()  //
      ("supervise", po::value<std::string>()->implicit_value("")->value_name("LAUNCHER"),
       "start the run with LAUNCHER, such as 'mpirun -n 8', and start it again when it ends early "
       "(exit code 75, a lost rank, or 77 where the host with wrong results can be left out)")  //
      ("max-restarts", po::value<int>()->default_value(20)->value_name("N"),
       "of --supervise: how often");
  options.add(job_options()).add(profiler_options());
  return options;
}

/// Says that standard output took not all of what was printed, and forgets it: the run's own files
/// have all of it, so that this is no failure of the run.
void forgive_lost_output(const deck::Deck& deck) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  if (errno != EPIPE)
    std::fputs(
        fmt::format("{}: warning: cannot write to standard output; '{}/console.log' has it\n",
                    kProgram, deck.run.output)
            .c_str(),
        stderr);
  __fpurge(stdout);
  std::clearerr(stdout);
}

/// The deck whose checkpoint.load, if it names a checkpoint of Megatron-LM or DeepSpeed from which
/// the run will start, names the converted one in the run folder instead; appends what the
/// conversion says to `notes`. The run folder is locked.
deck::Deck with_converted_checkpoint(deck::Deck deck, std::int64_t vocabulary,
                                     const std::string& restart, std::vector<std::string>& notes) {
  const bool resumes =
      restart == "latest" && !checkpoint::list_steps(train::checkpoint_folder(deck)).empty();
  const bool starts_there = restart == "latest" || restart == "never";
  if (!deck.checkpoint.load || resumes || !starts_there ||
      !checkpoint::is_foreign(*deck.checkpoint.load))
    return deck;
  const std::filesystem::path target =
      std::filesystem::path(deck.run.output) / "converted-checkpoint.h5";
  std::filesystem::remove(target);  // of an earlier start
  std::string said = convert::megatron::import_checkpoint(
      *deck.checkpoint.load, target,
      {.deck_text = deck::print_deck(deck), .vocabulary = vocabulary});
  while (said.ends_with('\n')) said.pop_back();
  for (std::size_t at = 0; (at = said.find('\n', at)) != std::string::npos; at += 2)
    said.replace(at, 1, "; ");
  notes.push_back(said);
  deck.checkpoint.load = target.string();
  return deck;
}

/// Calls `work`; where it throws, hooks.fault gets the message. `reporter` is null but on rank 0.
template <typename Work>
train::StopReason with_fault_hook(report::Reporter* reporter, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (reporter) reporter->fault(error.what(), static_cast<int>(error.code()));
    throw;
  } catch (const std::exception& error) {
    if (reporter) reporter->fault(error.what(), static_cast<int>(ExitCode::failure));
    throw;
  }
}

/// Checks data and tasks, locks the run folder and finds where the run starts, before anything is
/// written. Fills in options.training_data and `start`, but not its reporter. On rank 0.
void find_start(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                const po::variables_map& values, Start& start, train::TrainerOptions& options) {
  const auto scan = values.count("verify-data") ? data::TokenScan::all : data::TokenScan::sample;
  train::describe_data(deck, vocabulary);  // throws when a split is too small
  start.data_notes = train::check_datasets(deck, vocabulary, scan, progress_output(values));
  train::check_tasks(deck);
  const std::string restart = values["restart"].as<std::string>();
  const auto lock = [&] {
    if (!start.lock) start.lock = std::make_unique<train::FolderLock>(deck.run.output);
  };
  // First, so that a run that is about to end has written its last checkpoint; "never" moves the
  // folder aside.
  std::error_code unreadable;  // the lock will say why
  if (restart != "never" && std::filesystem::exists(deck.run.output, unreadable)) lock();
  options.training_data =
      train::identify_training_data(deck, vocabulary, scan, progress_output(values));
  if (deck.checkpoint.load && checkpoint::is_foreign(*deck.checkpoint.load)) lock();
  std::vector<std::string> notes;
  const deck::Deck starting = with_converted_checkpoint(deck, vocabulary.size, restart, notes);
  if (restart == "never") start.lock.reset();  // find_restart() takes it to move the folder aside
  start.restart = train::find_restart(starting, restart, options.training_data);
  start.restart.notes.insert(start.restart.notes.begin(), notes.begin(), notes.end());
  lock();
}

/// Makes the run folder that of a run from start.restart: its deck, checkpoints and files, and
/// start.reporter. Fills in options.finished. On rank 0.
void open_run_folder(const deck::Deck& deck, const po::variables_map& values, Start& start,
                     train::TrainerOptions& options) {
  const std::filesystem::path folder = deck.run.output;
  write_file_atomically(folder / "deck.yaml", deck::print_deck(deck));
  train::RestartPoint& point = start.restart;
  const bool resumes = point.checkpoint || point.local;
  train::supersede_newer(deck, point);
  if (!resumes) train::remove_rank_files(deck.run.output);
  if (deck.log.rank_files || deck.log.gpu_every) train::make_rank_folder(deck.run.output);
  if (deck.log.rank_files) train::keep_rank_output(deck.run.output, /*rank=*/0);
  const deck::Progress end = deck::end_of_run(deck, point.progress);
  options.finished = point.progress.iteration == end.iteration &&
                     report::finished_at(folder / "metrics.jsonl", end.iteration);
  start.reporter = std::make_unique<report::Reporter>(report::ReporterOptions{
      .folder = folder,
      .run = {.iterations = end.iteration, .samples = end.samples},
      .restart = resumes ? std::optional(point.progress.iteration) : std::nullopt,
      .tensorboard = deck.log.tensorboard.enable,
      .dialect = deck.log.tensorboard.dialect,
      .flush_every = deck.log.tensorboard.flush_every,
      .short_lines = deck.log.console == deck::ConsoleLine::brief && prints_to_terminal(),
      .quiet = values.count("quiet") > 0,
      .prometheus = deck.log.prometheus,
      .hooks = deck.hooks,
      .name = deck.run.name});
}

ExitCode pretrain(int argc, char** argv, const DeckArguments& arguments,
                  train::TrainerOptions options, std::unique_ptr<comm::MpiCommunicator> world) {
  const train::PreparedDeck prepared =
      train::prepare_deck(*world, arguments.path, arguments.overrides, deck::resolve_world_size);
  const deck::Deck& deck = prepared.deck;
  const auto& vocabulary = prepared.vocabulary;

  if (arguments.values.count("cluster"))
    options.expected = plan::expected_step(
        deck, vocabulary.size, plan::load_cluster(arguments.values["cluster"].as<std::string>()));
  const std::string command = command_line(argc, argv, world->size(), /*with_restart=*/true);
  const std::string again = command_line(argc, argv, world->size(), /*with_restart=*/false);
  const std::vector<std::string> hosts = world->all_gather_text(host_name());
  // What the machine lacks is found before anything is written.
  train::Devices devices = train::make_devices(deck, std::move(world));
  train::require_memory(deck, vocabulary.size, *devices.backend, devices.groups);
  Start start;
  train::on_rank_zero(*devices.groups.world, [&] {
    find_start(deck, vocabulary, arguments.values, start, options);
    return std::string();
  });
  train::find_local_restart(deck, *devices.groups.world,
                            arguments.values["restart"].as<std::string>(), options.training_data,
                            start.restart);
  train::check_shared_folder(*devices.groups.world, deck.run.output);
  const std::string found = train::on_rank_zero(*devices.groups.world, [&] {
    open_run_folder(deck, arguments.values, start, options);
    introduce(start, kProgram, deck, vocabulary, arguments, command, hosts, devices.description);
    if (options.expected) start.reporter->print(plan::describe(*options.expected));
    return start.restart.checkpoint ? start.restart.checkpoint->string() : std::string();
  });
  const int rank = devices.groups.world->rank();
  if (deck.log.rank_files && rank > 0) train::keep_rank_output(deck.run.output, rank);
  options.restart = start.restart;
  if (!found.empty()) options.restart.checkpoint = found;
  options.lock = start.lock.get();

  std::optional<train::Timeline> timeline;
  if (!deck.log.trace.iterations.empty())
    options.timeline = &timeline.emplace(deck, devices.groups, *devices.backend);
  std::optional<train::Trainer> made;
  const train::StopReason stop = with_fault_hook(start.reporter.get(), [&] {
    made.emplace(deck, vocabulary, devices.groups, *devices.backend, start.reporter.get(), options);
    return made->run();
  });
  const train::Trainer& trainer = *made;
  if (start.reporter)
    conclude(*start.reporter, stop, trainer, deck, again, options.since_start.seconds());
  forgive_lost_output(deck);
  if (!trainer.diagnosis().empty())
    throw train::CollectiveError(exit_code(stop), trainer.diagnosis());
  return exit_code(stop);
}

/// Starts the run, again and again, from a process that is no rank.
ExitCode supervise(int argc, char** argv, const DeckArguments& arguments,
                   std::optional<double> time_limit) {
  if (comm::launched_ranks() > 1)
    throw UsageError(
        "--supervise starts the ranks: --supervise='mpirun -n {}', without a launcher "
        "before trireme-pretrain",
        comm::launched_ranks());
  const int restarts = arguments.values["max-restarts"].as<int>();
  if (restarts < 0) throw UsageError("--max-restarts {}: expected 0 or more", restarts);
  std::istringstream launcher(arguments.values["supervise"].as<std::string>());
  const std::vector<std::string> words{std::istream_iterator<std::string>(launcher), {}};
  const auto command = [&](bool with_restart) {
    std::vector<std::string> all = words;
    for (std::string& word : train::supervised_words(argc, argv, with_restart)) all.push_back(word);
    return all;
  };
  const deck::Deck deck =
      deck::load(arguments.path, arguments.overrides, {.automatic = train::automatic_device()});
  catch_stop_signals();
  std::vector<std::string> again = command(/*with_restart=*/false);
  // Until the run has saved, it begins with the checkpoint that is named.
  const auto& restart = arguments.values["restart"].as<std::string>();
  if (restart != "latest" && restart != "never")
    again.push_back(deck::text_override("checkpoint.load", restart));
  return train::supervise({.command = command(/*with_restart=*/true),
                           .again = again,
                           .folder = deck.run.output,
                           .max_restarts = restarts,
                           .time_limit = time_limit});
}

ExitCode run(int argc, char** argv) {
  const po::options_description options = all_options();
  if (answers_deck_help(argc, argv, kProgram, kUsage, options)) return ExitCode::success;
  const DeckArguments arguments = parse_deck_options(argc, argv, options);
  train::TrainerOptions trainer_options;
  if (arguments.values.count("time-limit"))
    trainer_options.time_limit =
        deck::read_time_option("--time-limit", arguments.values["time-limit"].as<std::string>());
  if (!arguments.values.count("supervise") && !arguments.values["max-restarts"].defaulted())
    throw UsageError("--max-restarts belongs to --supervise");
  if (answers_print_job(arguments) || answers_deck_questions(arguments, own_answers(arguments)))
    return ExitCode::success;
  if (arguments.values.count("supervise"))
    return supervise(argc, argv, arguments, trainer_options.time_limit);
  start_profiler(argc, argv, arguments);
  trainer_options.profiled = profiled_iterations(arguments.values);
  catch_stop_signals();  // before MPI starts, which takes a while: Slurm may be early
  return run_on_ranks(kProgram, [&](auto world) {
    return pretrain(argc, argv, arguments, trainer_options, std::move(world));
  });
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  if (const auto code = trireme::train::relay_if_asked(argc, argv)) return *code;
  return trireme::run_mpi_app(trireme::kProgram, argc, argv, trireme::run);
}
