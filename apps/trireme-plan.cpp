// trireme-plan: searches the layout of a deck on a cluster.
#include <filesystem>

#include "app.hpp"
#include "core/files.hpp"
#include "deck/load.hpp"
#include "deck/value.hpp"
#include "plan/output.hpp"
#include "plan/setup.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-plan";
constexpr const char* kUsage =
    "Usage: trireme-plan DECK [KEY=VALUE ...] --cluster CLUSTER.yaml [options]\n"
    "Times layouts of a deck's model on the GPUs of a cluster without using them, and prints the\n"
    "fastest that fit. --help cluster explains cluster files.\n\n";

po::options_description all_options() {
  po::options_description options("Plan");
  options.add_options()                                                         //
      ("cluster", po::value<std::string>()->value_name("FILE"), "the cluster")  //
      ("set", po::value<std::vector<std::string>>()->composing()->value_name("KEY=VALUE"),
       "override a key of the deck; KEY=VALUE without --set does the same")                    //
      ("top", po::value<int>()->default_value(10)->value_name("N"), "layouts in the ranking")  //
      ("keep", po::value<std::vector<std::string>>()->composing()->value_name("KEY"),
       "a key that keeps the deck's value, such as parallel.tensor; may be given several times")  //
      ("budget", po::value<double>()->value_name("DOLLARS"),
       "what the whole run may cost; needs prices in the cluster file")                  //
      ("json", "print JSON")                                                             //
      ("csv", "print the ranking as comma-separated values: FASOP's columns, and more")  //
      ("write-deck", po::value<std::string>()->value_name("FILE"),
       "write the deck with the best layout; with --given-layout the deck's own with its best "
       "partition")  //
      ("write-job", po::value<std::string>()->value_name("FILE"),
       "write a Slurm job that trains the deck of --write-deck; 'trireme-pretrain DECK "
       "--print-job' "
       "has more options")  //
      ("timeline", po::value<std::string>()->value_name("FILE"),
       "write the simulated step of the deck's own layout as a timeline that Perfetto opens, a row "
       "for each stage; as RUN/trace.json also for 'trireme-report trace RUN'")  //
      ("given-layout", "write the deck's own layout with its best partition");
  options.add(general_options());
  return options;
}

/// The keys that --keep takes.
const std::vector<std::string_view>& kept_keys() {
  static const std::vector<std::string_view> keys = {
      "parallel.tensor",   "parallel.pipeline",   "parallel.data",
      "parallel.schedule", "parallel.interleave", "parallel.sequence",
      "parallel.zero",     "batch.micro",         "recompute.granularity"};
  return keys;
}

plan::SearchOptions search_options(const po::variables_map& values, const plan::Cluster& cluster) {
  plan::SearchOptions options{.top = values["top"].as<int>(), .progress = progress_output(values)};
  if (options.top < 1 || options.top > 1000)
    throw UsageError("--top {}: must be from 1 to 1000", options.top);
  if (values.count("budget")) {
    options.budget = values["budget"].as<double>();
    if (!(*options.budget > 0)) throw UsageError("--budget {}: must be above 0", *options.budget);
    if (!cluster.has_prices())
      throw UsageError("--budget needs the price of every kind of node in the cluster file");
  }
  if (values.count("keep")) options.fixed = values["keep"].as<std::vector<std::string>>();
  for (const std::string& key : options.fixed)
    if (std::ranges::find(kept_keys(), key) == kept_keys().end())
      throw UsageError("--keep {}: not a key that is searched{}", key,
                       did_you_mean(key, kept_keys()));
  return options;
}

/// Sets parallel.data of the deck's own layout, and times it.
void time_given(deck::Deck deck, std::int64_t vocab, plan_app::Answer& answer) {
  const plan::Cluster& cluster = *answer.cluster;
  const plan::NodeOrder order = plan::all_nodes(cluster);
  try {
    const std::int64_t of_copy = deck.parallel.tensor * deck.parallel.pipeline;
    const std::int64_t copies = std::max<std::int64_t>(cluster.gpus() / of_copy, 1);
    deck::resolve_world_size(deck, of_copy * deck.parallel.data.value_or(copies));
    answer.given = plan::time_layout(deck, vocab, cluster, order);
    answer.repartition = plan::repartition(deck, vocab, cluster, order);
  } catch (const deck::InvalidDeck& error) {
    answer.given_problem = error.lines().front().text;  // the search runs all the same
  } catch (const DeckError& error) {
    answer.given_problem = error.what();
  }
}

/// Throws UsageError unless the options go together.
void require_consistent(const po::variables_map& values) {
  if (!values.count("cluster"))
    throw UsageError("--cluster FILE is missing, such as inputs/clusters/h200x8-nodes.yaml");
  if (values.count("json") && values.count("csv"))
    throw UsageError("--json and --csv: choose one of them");
  for (const char* option : {"given-layout", "write-job"})
    if (values.count(option) && !values.count("write-deck"))
      throw UsageError("--{} needs --write-deck", option);
}

/// Writes the files of --write-deck, --write-job and --timeline. Throws DeckError where there is no
/// layout for them.
void write_files(int argc, char** argv, const po::variables_map& values, std::int64_t vocab,
                 const plan_app::Answer& answer) {
  if (values.count("write-deck")) {
    const bool own = values.count("given-layout") > 0;
    const plan::TimedLayout* layout = own && answer.repartition ? &*answer.repartition
                                      : !own && !answer.search.ranked.empty()
                                          ? &answer.search.ranked.front()
                                          : nullptr;
    if (!layout)
      throw DeckError("{}: no deck was written", own && !answer.given
                                                     ? answer.given_problem
                                                     : plan_app::why_no_layout(answer));
    std::string command = kProgram;
    for (int i = 1; i < argc; ++i) command += " " + shell_word(argv[i]);
    const std::string file = values["write-deck"].as<std::string>();
    write_file_atomically(file, plan_app::to_deck(*layout, *answer.cluster, command));
    if (values.count("write-job"))
      write_file_atomically(values["write-job"].as<std::string>(),
                            plan_app::to_job(*layout, *answer.cluster, vocab, file));
  }
  if (values.count("timeline")) {
    if (!answer.given) throw DeckError("{}: no timeline was written", answer.given_problem);
    write_file_atomically(values["timeline"].as<std::string>(),
                          plan_app::to_timeline(*answer.given, *answer.cluster, vocab));
  }
}

ExitCode run(int argc, char** argv) {
  const po::options_description options = all_options();
  for (int i = 1; i + 1 < argc; ++i)
    if (std::string_view(argv[i]) == "--help" && std::string_view(argv[i + 1]) == "cluster") {
      print_help(plan::cluster_help());
      return ExitCode::success;
    }
  if (answers_help_or_version(argc, argv, kProgram, kUsage, options)) return ExitCode::success;
  po::options_description all;
  all.add(options).add_options()("deck", po::value<std::vector<std::string>>());
  const po::parsed_options words =
      parse_words(argc, argv, all, po::positional_options_description().add("deck", -1));
  const po::variables_map values = values_of(words);
  std::string path;
  std::vector<std::string> overrides;
  for (const po::option& word : words.options)
    for (const std::string& value : word.value) {
      if (word.string_key == "deck" && path.empty())
        path = value;
      else if (word.string_key == "deck" || word.string_key == "set")
        overrides.push_back(value);
    }
  if (path.empty()) throw UsageError("no deck is given");
  require_consistent(values);
  const auto file = values["cluster"].as<std::string>();
  std::vector<std::string> outputs;
  for (const char* option : {"write-deck", "write-job", "timeline"})
    if (values.count(option)) outputs.push_back(output_of(values, option, {path, file}, outputs));

  const deck::Deck deck =
      deck::load(path, overrides, {.need_data = false, .automatic = deck::Device::cuda});
  if (deck.run.device != deck::Device::cuda)
    throw DeckError("run.device = host: clusters have GPUs (give run.device=cuda)");
  if (!std::filesystem::exists(file))
    throw IoError(
        "there is no cluster file '{}': inputs/clusters has some, such as h200x8-nodes.yaml; "
        "'trireme-plan --help cluster' lists the keys",
        file);
  const plan::Cluster cluster = plan::load_cluster(file);
  const plan::SearchOptions wanted = search_options(values, cluster);
  const std::int64_t vocab = plan::planned_vocabulary(deck);
  plan_app::Answer answer{.cluster = &cluster, .iterations = deck::total_iterations(deck)};
  time_given(deck, vocab, answer);
  deck::Deck base = answer.given ? answer.given->deck : deck;
  if (!answer.given && !cluster.has_links()) throw DeckError("{}", answer.given_problem);
  answer.search = plan::search_layouts(base, vocab, cluster, wanted);

  write_files(argc, argv, values, vocab, answer);
  print_out(values.count("json")  ? plan_app::to_json(answer)
            : values.count("csv") ? plan_app::to_csv(answer)
                                  : plan_app::to_text(answer));
  return answer.search.ranked.empty() ? ExitCode::deck : ExitCode::success;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
