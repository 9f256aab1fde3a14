// The options of programs that run a deck: DECK [key=value ...] and what needs neither mpirun nor a
// GPU.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "app.hpp"
#include "checkpoint/file.hpp"
#include "deck/deck.hpp"
#include "deck/load.hpp"
#include "deck/value.hpp"
#include "plan/run_plan.hpp"
#include "plan/setup.hpp"
#include "train/stage_runner.hpp"
#include "train/startup/startup.hpp"
#include "train/verify/step_verifier.hpp"

namespace trireme {

/// A deck on the command line.
struct DeckArguments {
  std::string path;
  std::vector<std::string> overrides;
  po::variables_map values;
};

/// The options that --memory belongs to, where a program has no other.
inline constexpr const char* kMemoryUsers = "--plan and --check";

/// The options that every program with a deck has. `memory_users` are those that take --memory.
inline po::options_description deck_options(const std::string& memory_users = kMemoryUsers) {
  po::options_description options("Deck");
  options.add_options()  //
      ("set", po::value<std::vector<std::string>>()->composing()->value_name("KEY=VALUE"),
       "override a key of the deck; KEY=VALUE without --set does the same, KEY= or "
       "SECTION= restores the defaults; of two for one key the last holds")                     //
      ("output", po::value<std::string>()->value_name("FOLDER"), "the run folder: run.output")  //
      ("check", "check the deck, its tokenizer and its data, and exit")                         //
      ("plan",
       "print layout, parameters, memory per rank and pipeline bubble, and whether the run fits, "
       "and exit")  //
      ("memory", po::value<std::string>()->value_name("SIZE"),
       fmt::format("memory of each GPU, or of the host that all ranks share (80GiB), for {}; "
                   "--plan takes that of this machine by default",
                   memory_users)
           .c_str())  //
      ("ranks", po::value<std::int64_t>()->value_name("N"),
       "number of ranks for --check and --plan")           //
      ("print-deck", "print the effective deck and exit")  //
      ("print-value", po::value<std::string>()->value_name("KEY"),
       "print one value of the effective deck, such as that of run.output, and exit")  //
      ("help,h",
       "print this and exit; --help deck[.SECTION[.KEY]] explains the deck, --help WORD "
       "finds keys by any name");
  add_general_options(options);
  return options;
}

/// Whether a word after --help is about the deck's keys, such as "deck.model" or "lr": not another
/// option, a deck or an override.
inline bool is_help_topic(std::string_view word) {
  const bool is_file = word.ends_with(".yaml") || word.ends_with(".yml");
  return !word.empty() && word[0] != '-' && !is_file && word.find('=') == std::string_view::npos;
}

/// Answers --help [deck...] and --version; true when there is nothing else to do.
inline bool answers_deck_help(int argc, char** argv, const char* program, const char* usage,
                              const po::options_description& options) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--help" || i + 1 == argc || !is_help_topic(argv[i + 1]))
      continue;
    if (prints_before_mpi()) print_help(deck::help(argv[i + 1]));
    return true;
  }
  if (!prints_before_mpi()) {
    return std::any_of(argv + 1, argv + argc, [](std::string_view argument) {
      return argument == "--help" || argument == "-h" || argument == "--version";
    });
  }
  return answers_help_or_version(argc, argv, program, usage, options);
}

/// Parses DECK [KEY=VALUE ...] and `options`.
inline DeckArguments parse_deck_options(int argc, char** argv, po::options_description options) {
  po::options_description all;
  all.add(options).add_options()("deck", po::value<std::vector<std::string>>());
  const po::parsed_options words =
      parse_words(argc, argv, all, po::positional_options_description().add("deck", -1));
  DeckArguments arguments{.values = values_of(words)};
  // In the order in which they were typed: of several overrides of one key the last holds.
  for (const po::option& word : words.options) {
    for (const std::string& value : word.value) {
      if (word.string_key == "deck" && arguments.path.empty())
        arguments.path = value;
      else if (word.string_key == "deck" || word.string_key == "set")
        arguments.overrides.push_back(value);
      else if (word.string_key == "output" && value.empty())
        throw UsageError("--output: must name a folder");
      else if (word.string_key == "output")
        arguments.overrides.push_back(deck::text_override("run.output", value));
    }
  }
  if (arguments.path.empty()) throw UsageError("no deck is given");
  if (arguments.path.find('=') != std::string::npos && !std::filesystem::exists(arguments.path))
    throw UsageError("the deck comes first, then '{}'", arguments.path);
  return arguments;
}

/// The value of --ranks. Throws UsageError.
inline std::optional<std::int64_t> asked_ranks(const DeckArguments& arguments) {
  constexpr std::int64_t kMax = 1 << 20;
  if (!arguments.values.count("ranks")) return std::nullopt;
  const auto ranks = arguments.values["ranks"].as<std::int64_t>();
  if (ranks < 1 || ranks > kMax) throw UsageError("--ranks {}: must be from 1 to {}", ranks, kMax);
  return ranks;
}

/// The value of --memory, for `deck`. Throws UsageError.
inline std::optional<plan::AvailableMemory> asked_memory(const po::variables_map& values,
                                                         const deck::Deck& deck) {
  if (!values.count("memory")) return std::nullopt;
  const bool on_gpus = deck.run.device == deck::Device::cuda;
  return plan::AvailableMemory{
      plan::parse_memory("--memory", values["memory"].as<std::string>()),
      on_gpus ? "that each GPU has (--memory)" : "that a host has (--memory)"};
}

/// Fits a deck to a number of ranks.
using ResolveLayout = std::function<void(deck::Deck&, std::int64_t ranks)>;

/// Fits the deck to --ranks, or without it to the fewest ranks it can run on.
inline deck::Deck load_for_planning(const DeckArguments& arguments, bool need_data,
                                    const ResolveLayout& resolve = deck::resolve_world_size) {
  deck::Deck deck = deck::load(arguments.path, arguments.overrides,
                               {.need_data = need_data, .automatic = train::automatic_device()});
  const std::int64_t model_ranks = deck.parallel.tensor * deck.parallel.pipeline;
  const auto asked = asked_ranks(arguments);
  resolve(deck, asked ? *asked : model_ranks * deck.parallel.data.value_or(1));
  return deck;
}

/// Warnings about values that are allowed but rarely intended, one sentence each.
inline std::vector<std::string> doubts_about(const deck::Deck& deck,
                                             const plan::Vocabulary& vocabulary) {
  constexpr double kMaxAdaptivePeak = 0.1;
  constexpr std::int64_t kManyEpochs = 1000;
  std::vector<std::string> doubts;
  const double peak = deck.schedule.peak.value_or(0);
  if (deck.optimizer.type != deck::OptimizerType::sgd && peak > kMaxAdaptivePeak)
    doubts.push_back(fmt::format(
        "schedule.peak = {:g} diverges with optimizer.type = {}: 1e-4 to 1e-2 are usual", peak,
        name_of(deck.optimizer.type)));
  const train::SplitData data = train::summarize_data(deck, vocabulary, data::Split::train);
  for (std::size_t i = 0; i < data.summary.datasets.size(); ++i)
    if (data.summary.datasets[i].epochs >= kManyEpochs)
      doubts.push_back(
          fmt::format("train.iterations read '{}' {} times: more text, or fewer iterations",
                      data.names[i], data.summary.datasets[i].epochs));
  const std::int64_t iterations = deck::total_iterations(deck);
  const auto never = [&](const char* key, std::int64_t from) {
    if (from > iterations)
      doubts.push_back(
          fmt::format("{} begins at iteration {}, but the run ends at {}", key, from, iterations));
  };
  if (!deck.log.trace.iterations.empty())
    never("log.trace.iterations", deck.log.trace.iterations.front().first);
  if (deck.train.spike.above) never("train.spike", deck.train.spike.window.value_or(0) + 1);
  const std::int64_t ranks = plan::layout(deck).ranks(),
                     cores = std::thread::hardware_concurrency();
  if (deck.run.device == deck::Device::host && cores > 0 && ranks > cores)
    doubts.push_back(fmt::format("{} share the {} of this machine: they take turns",
                                 counted(ranks, "rank"), counted(cores, "core")));
  return doubts;
}

/// Whether the deck's run fits into --memory; empty without the option. Throws DeckError where it
/// does not.
inline std::string check_memory(const DeckArguments& arguments, const deck::Deck& deck,
                                std::int64_t vocab) {
  const auto available = asked_memory(arguments.values, deck);
  if (!available) return "";
  const plan::Verdict verdict = plan::judge(deck, vocab, plan::plan_run(deck, vocab), available);
  if (verdict.fits == false) throw DeckError("--check: {}", verdict.text);
  return fmt::format("memory     {}\n", verdict.text);
}

/// What a program adds to the answers, in lines, given the deck with its ranks and its vocabulary;
/// and how its layout and its options differ.
struct OwnAnswers {
  std::function<std::string(const deck::Deck&, std::int64_t)> plan = {}, check = {};
  ResolveLayout resolve = deck::resolve_world_size;
  const char* memory_users = kMemoryUsers;
};

/// Answers --check, --plan and --print-deck; true when there is nothing else to do. Throws
/// UsageError for --ranks without a question: a run has those that its launcher starts.
inline bool answers_deck_questions(const DeckArguments& arguments, const OwnAnswers& own = {}) {
  const auto asked = [&](const char* option) { return arguments.values.count(option) > 0; };
  if (!asked("check") && !asked("plan") && !asked("print-deck") && !asked("print-value")) {
    if (const auto ranks = asked_ranks(arguments))
      throw UsageError(
          "--ranks {0} belongs to --check and --plan; a launcher starts ranks: mpirun -n {0}, or "
          "srun -n {0}",
          *ranks);
    if (arguments.values.count("memory"))
      throw UsageError("--memory belongs to {}: a run looks at its machine", own.memory_users);
    return false;
  }
  if (!prints_before_mpi()) return true;
  if (asked("print-deck") || asked("print-value")) {
    const deck::Deck deck =
        deck::load(arguments.path, arguments.overrides,
                   {.need_data = false, .automatic = train::automatic_device()});
    if (asked("print-deck")) print_out(deck::print_deck(deck));
    if (asked("print-value"))
      print_out(deck::print_value(deck, arguments.values["print-value"].as<std::string>()) + "\n");
  }
  if (asked("plan")) {
    const deck::Deck deck = load_for_planning(arguments, /*need_data=*/false, own.resolve);
    const std::int64_t vocab = plan::planned_vocabulary(deck);
    const plan::RunPlan plan = plan::plan_run(deck, vocab);
    const auto asked_for = asked_memory(arguments.values, deck);
    const plan::Verdict verdict =
        plan::judge(deck, vocab, plan, asked_for ? asked_for : train::memory_here(deck));
    print_out(plan::to_text(plan) + (own.plan ? own.plan(deck, vocab) : "") +
              fmt::format("verdict    {}\n", verdict.text));
  }
  if (asked("check")) {
    const deck::Deck deck = load_for_planning(arguments, /*need_data=*/true, own.resolve);
    const plan::Vocabulary vocabulary = plan::vocabulary(deck);
    if (deck.train.verify.inject) train::BitFlip::parse(*deck.train.verify.inject);
    std::string text = own.check ? own.check(deck, vocabulary.size) : "";
    text += check_memory(arguments, deck, vocabulary.size);
    text += train::describe_data(deck, vocabulary);
    for (const std::string& note : train::check_datasets(deck, vocabulary, data::TokenScan::all,
                                                         progress_output(arguments.values)))
      text += fmt::format("{:<10} {}\n", "dataset", note);
    for (const std::string& note : train::check_tasks(deck))
      text += fmt::format("{:<10} {}\n", "task", note);
    for (const std::string& doubt : doubts_about(deck, vocabulary))
      text += fmt::format("{:<10} {}\n", "warning", doubt);
    print_out(text);
    print_out(fmt::format("{}: no errors; ranks: {}, iterations: {}, vocabulary: {}\n",
                          arguments.path, plan::layout(deck).ranks(), deck::total_iterations(deck),
                          vocabulary.size));
  }
  return true;
}

}  // namespace trireme
