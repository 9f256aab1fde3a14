// Other ways to start a deck. --print-job: as a job for a scheduler; --profile: under Nsight
// Systems or Nsight Compute.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "core/system/process.hpp"
#include "deck/value.hpp"
#include "deck_options.hpp"
#include "plan/job.hpp"

namespace trireme {

/// The options of a program that can write its own job.
inline po::options_description job_options() {
  const auto number = [] { return po::value<std::int64_t>()->value_name("N"); };
  po::options_description options("Job");
  options.add_options()  //
      ("print-job", po::value<std::string>()->value_name("slurm|mpirun"),
       "print a script that starts this deck: nodes, ranks, GPUs and time follow from its "
       "layout")  //
      ("gpus-per-node", po::value<std::string>()->value_name("KINDS"),
       "GPUs per node, also with their type (a10:4), or several kinds of nodes "
       "(1*a100:8,2*a10:4); default: cluster.kinds, else 8; 0 runs on CPUs")       //
      ("nodes", number(), "number of nodes; default: the minimum for the GPUs")    //
      ("cpus-per-rank", number(), "cores per rank; default 8 with a GPU, else 1")  //
      ("image", po::value<std::string>()->value_name("FILE"),
       "run in this enroot image; default: cluster.image")  //
      ("partition", po::value<std::string>()->value_name("NAME"),
       "Slurm's partition; default: cluster.partition")  //
      ("account", po::value<std::string>()->value_name("NAME"),
       "Slurm's account; default: cluster.account")                                        //
      ("qos", po::value<std::string>()->value_name("NAME"), "Slurm's quality of service")  //
      ("option", po::value<std::vector<std::string>>()->value_name("WORD"),
       "a further #SBATCH option, such as --option=--exclusive; may be repeated")  //
      ("time", po::value<std::string>()->value_name("TIME"),
       "time limit; default: cluster.time, else estimated, at most a day");
  return options;
}

namespace job_detail {

/// The value of an option that is a number of at least `least`. Throws UsageError.
inline std::optional<std::int64_t> number(const po::variables_map& values, const char* name,
                                          std::int64_t least) {
  constexpr std::int64_t kMax = 1 << 20;
  if (!values.count(name)) return std::nullopt;
  const auto value = values[name].as<std::int64_t>();
  if (value < least || value > kMax)
    throw UsageError("--{} {}: must be from {} to {}", name, value, least, kMax);
  return value;
}

/// Throws UsageError if `text` has a newline, which would begin a new line of the script.
inline void require_one_line(const char* what, const std::string& text) {
  if (text.find_first_of("\n\r") != std::string::npos)
    throw UsageError("--print-job: the name of {} has a line break, which a script cannot hold: {}",
                     what, shell_word(text));
}

/// The text of an option. Throws UsageError where it would break the script's lines.
inline std::optional<std::string> text(const po::variables_map& values, const char* name) {
  if (!values.count(name)) return std::nullopt;
  const auto value = values[name].as<std::string>();
  if (value.empty() || value.find('\n') != std::string::npos)
    throw UsageError("--{}: must be one line of text", name);
  return value;
}

/// Throws UsageError for an option of sbatch that the job's own lines give: they would win.
inline void refuse_own_line(const std::string& option) {
  constexpr std::pair<const char*, const char*> kOwn[] = {{"--nodes", "--nodes"},
                                                          {"-N", "--nodes"},
                                                          {"--time", "--time"},
                                                          {"-t", "--time"},
                                                          {"--gpus-per-node", "--gpus-per-node"},
                                                          {"--partition", "--partition"},
                                                          {"-p", "--partition"},
                                                          {"--account", "--account"},
                                                          {"-A", "--account"},
                                                          {"--qos", "--qos"},
                                                          {"-q", "--qos"},
                                                          {"--cpus-per-task", "--cpus-per-rank"},
                                                          {"-c", "--cpus-per-rank"},
                                                          {"--ntasks-per-node", "--ranks"},
                                                          {"--ntasks", "--ranks"},
                                                          {"-n", "--ranks"},
                                                          {"--job-name", "run.name=NAME"},
                                                          {"-J", "run.name=NAME"}};
  const std::string name = option.substr(0, option.find_first_of("= "));
  for (const auto& [theirs, ours] : kOwn)
    if (name == theirs)
      throw UsageError("--option {}: the job has this line; give {} instead", shell_word(option),
                       ours);
}

/// The lines of #SBATCH that --qos and --option ask for. Throws UsageError.
inline std::vector<std::string> further_options(const po::variables_map& values) {
  std::vector<std::string> options;
  if (const auto qos = text(values, "qos")) options.push_back("--qos=" + *qos);
  if (!values.count("option")) return options;
  for (const std::string& option : values["option"].as<std::vector<std::string>>()) {
    if (!option.starts_with("-") || option.find_first_of("\n\r") != std::string::npos)
      throw UsageError(
          "--option {}: expected one of sbatch's options, such as --option=--exclusive",
          shell_word(option));
    refuse_own_line(option);
    options.push_back(option);
  }
  return options;
}

inline plan::JobRequest request(const DeckArguments& arguments) {
  const po::variables_map& values = arguments.values;
  const std::string launcher = values["print-job"].as<std::string>();
  if (launcher != "slurm" && launcher != "mpirun")
    throw UsageError("--print-job {}: must be slurm or mpirun", launcher);
  if (values.count("time-limit"))
    throw UsageError("--time-limit: a job's limit is its --time, before which it is signalled");
  if (values["restart"].as<std::string>() != "latest")
    throw UsageError(
        "--restart {}: a job resumes from its newest checkpoint when it is started again; to begin "
        "with another one, set checkpoint.load",
        values["restart"].as<std::string>());
  plan::JobRequest request{
      .launcher = launcher == "slurm" ? plan::Launcher::slurm : plan::Launcher::mpirun,
      .nodes = number(values, "nodes", 1),
      .ranks = number(values, "ranks", 1),
      .cpus_per_rank = number(values, "cpus-per-rank", 1),
      .image = text(values, "image"),
      .partition = text(values, "partition"),
      .account = text(values, "account"),
      .options = further_options(values),
      .folder = std::filesystem::current_path().string(),
      .program = program_path(),
      .deck = arguments.path,
      .overrides = arguments.overrides};
  for (const char* option : {"profile", "iterations"})
    if (const auto value = text(values, option))
      request.overrides.push_back(fmt::format("--{}={}", option, *value));
  require_one_line("this folder", request.folder);
  require_one_line("the program", request.program);
  require_one_line("the deck", request.deck);
  // Loading says what is wrong with a folder.
  if (std::filesystem::exists(request.deck) && !std::filesystem::is_regular_file(request.deck) &&
      !std::filesystem::is_directory(request.deck))
    throw UsageError("'{}' is gone when the job starts: --print-job needs a deck in a file",
                     request.deck);
  for (const char* option : {"partition", "account", "qos", "option"})
    if (values.count(option) && request.launcher == plan::Launcher::mpirun)
      throw UsageError("--{}: mpirun knows none; use --print-job slurm", option);
  if (const auto time = text(values, "time")) {
    request.seconds = deck::read_time_option("--time", *time);
    if (*request.seconds < 60) throw UsageError("--time {}: must be a minute at least", *time);
  }
  return request;
}

/// The kinds of nodes of --gpus-per-node, else of the deck. Throws UsageError.
inline std::vector<deck::NodeKind> kinds(const DeckArguments& arguments, const deck::Deck& deck) {
  if (!arguments.values.count("gpus-per-node"))
    return deck.cluster.kinds.value_or(std::vector<deck::NodeKind>{{.gpus = 8}});
  deck::Item item;
  item.kind = deck::Item::Kind::scalar;
  item.text = arguments.values["gpus-per-node"].as<std::string>();
  try {
    return deck::Codec<std::vector<deck::NodeKind>>::read(item, {});
  } catch (const deck::BadValue& problem) {
    throw UsageError("--gpus-per-node {}: {}", item.text, problem.what());
  }
}

/// Fills in what the deck's cluster section says and the options do not. Throws UsageError.
inline void add_cluster(plan::JobRequest& request, const deck::Cluster& cluster) {
  const bool slurm = request.launcher == plan::Launcher::slurm;
  const auto one_line = [](const char* key, const std::optional<std::string>& value) {
    if (value) require_one_line(key, *value);
    return value;
  };
  if (!request.image) request.image = one_line("cluster.image", cluster.image);
  if (!request.partition && slurm)
    request.partition = one_line("cluster.partition", cluster.partition);
  if (!request.account && slurm) request.account = one_line("cluster.account", cluster.account);
  request.modules = one_line("cluster.modules", cluster.modules);
  if (!request.seconds && cluster.time) request.seconds = deck::in_seconds(*cluster.time);
  if (request.seconds && *request.seconds < 60)
    throw UsageError("cluster.time: must be a minute at least");
  if (request.image && !slurm)
    throw UsageError("--image: mpirun starts no containers; use --print-job slurm");
  if (request.image && request.folder.find_first_of(" \t,:") != std::string::npos)
    throw UsageError(
        "--image: pyxis cannot mount '{}': print the job in a folder whose path has no "
        "space, comma or colon",
        request.folder);
  if (request.image)
    request.image = std::filesystem::absolute(*request.image).lexically_normal().string();
}

/// Sets the nodes of the request. Throws UsageError.
inline void set_nodes(plan::JobRequest& request, const std::vector<deck::NodeKind>& kinds) {
  if (kinds.size() > 1) {
    if (request.nodes) throw UsageError("--nodes: each kind of nodes has its own, 2*a10:4");
    if (request.ranks) throw UsageError("--ranks: each GPU of several kinds of nodes has a rank");
    request.kinds = kinds;
    return;
  }
  request.gpus_per_node = kinds.front().gpus;
  request.gpu = kinds.front().gpu;
  if (!request.nodes) request.nodes = kinds.front().nodes;
}

/// Resolves run.device = auto for the job's hosts and adds it to the command as an override.
inline void name_device(plan::JobRequest& request, deck::Device device) {
  auto& words = request.overrides;
  const auto add = [&](const std::string& word) {
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  };
  add(fmt::format("run.device={}", name_of(device)));
  // Several kinds of nodes were requested: ranks must not refuse to run on mixed GPUs.
  if (request.kinds.size() > 1) add("run.mixed_gpus=true");
}

}  // namespace job_detail

/// Answers --print-job; true when there is nothing else to do. Needs neither MPI nor a GPU.
inline bool answers_print_job(const DeckArguments& arguments) {
  if (!arguments.values.count("print-job")) {
    for (const char* option : {"gpus-per-node", "nodes", "cpus-per-rank", "image", "partition",
                               "account", "qos", "option", "time"})
      if (arguments.values.count(option)) throw UsageError("--{} belongs to --print-job", option);
    return false;
  }
  plan::JobRequest request = job_detail::request(arguments);
  const auto load = [&](deck::Device automatic) {
    return deck::load(arguments.path, arguments.overrides,
                      {.need_data = false, .automatic = automatic});
  };
  deck::Deck deck = load(deck::Device::cuda);
  const std::vector<deck::NodeKind> kinds = job_detail::kinds(arguments, deck);
  const bool asked_for_host = kinds.front().gpus == 0;
  if (asked_for_host) deck = load(deck::Device::host);
  job_detail::add_cluster(request, deck.cluster);
  job_detail::set_nodes(request, kinds);
  if (deck.run.device == deck::Device::host) {
    request.gpus_per_node = 0;
    request.gpu.clear();
    request.kinds.clear();
  }
  if (deck.run.device == deck::Device::cuda && asked_for_host)
    throw UsageError("--gpus-per-node 0: the deck says run.device = cuda");
  job_detail::name_device(request, deck.run.device);
  const std::int64_t ranks = plan::ranks_for(deck, request);
  try {
    deck::resolve_world_size(deck, ranks);
  } catch (const deck::InvalidDeck& error) {
    throw DeckError("--print-job: {}; the job has {} (--gpus-per-node, --nodes, --ranks)",
                    error.lines().front().text, counted(ranks, "rank"));
  }
  const std::int64_t vocab = plan::planned_vocabulary(deck);
  const double flops = model::flops_per_token(deck, vocab);
  plan::Job job = plan::make_job(deck, request, flops);
  const auto node_ranks = static_cast<int>(job.components.front().ranks_per_node);
  const plan::Verdict verdict = plan::judge(deck, vocab, plan::plan_run(deck, vocab, node_ranks),
                                            asked_memory(arguments.values, deck), node_ranks);
  if (verdict.fits == false) throw DeckError("--print-job: {}", verdict.text);
  job.memory = verdict.text;
  if (prints_before_mpi()) print_out(plan::to_script(job));
  return true;
}

// ---- --profile: a rank starts itself again

/// The options of a program that profiles itself.
inline po::options_description profiler_options() {
  po::options_description options("Profiler");
  options.add_options()  //
      ("profile", po::value<std::string>()->value_name("nsys|ncu"),
       "run each rank under Nsight Systems or Nsight Compute; reports go to RUN/profile")  //
      ("iterations", po::value<std::string>()->value_name("A-B"),
       "of --profile: the iterations that are recorded (nsys: all, ncu: 10-10)");
  return options;
}

/// The iterations that --profile records; none without it. Throws UsageError.
inline std::optional<deck::IterationRange> profiled_iterations(const po::variables_map& values) {
  if (!values.count("profile")) {
    if (values.count("iterations")) throw UsageError("--iterations belongs to --profile nsys|ncu");
    return std::nullopt;
  }
  const auto tool = values["profile"].as<std::string>();
  if (tool != "nsys" && tool != "ncu") throw UsageError("--profile {}: expected nsys or ncu", tool);
  if (!values.count("iterations"))
    return tool == "ncu" ? std::optional(deck::IterationRange{10, 10}) : std::nullopt;
  deck::Item item;
  item.kind = deck::Item::Kind::scalar;
  item.text = values["iterations"].as<std::string>();
  try {
    const auto ranges = deck::Codec<std::vector<deck::IterationRange>>::read(item, {});
    if (ranges.size() == 1) return ranges.front();
  } catch (const deck::BadValue&) {
  }
  throw UsageError("--iterations {}: expected the first and the last one, such as 10-12",
                   item.text);
}

/// The words in front of the program that record `iterations`: those in the NVTX range "profile".
inline std::vector<std::string> profiler_words(
    const std::string& tool, const std::string& folder,
    const std::optional<deck::IterationRange>& iterations) {
  const std::string file = fmt::format("{}/profile/{}-%h-%p", folder, tool);
  if (tool == "ncu") return {"ncu", "--nvtx", "--nvtx-include", "profile/", "--export=" + file};
  std::vector<std::string> words = {"nsys", "profile", "--trace=cuda,nvtx,mpi"};
  if (iterations)
    for (const char* word :
         {"--capture-range=nvtx", "--nvtx-capture=profile", "--capture-range-end=stop"})
      words.push_back(word);
  words.push_back("--output=" + file);
  return words;
}

/// With --profile replaces this process by the profiler, which starts the program again; returns in
/// that one, and without --profile. Throws UsageError, DeckError, IoError.
inline void start_profiler(int argc, char** argv, const DeckArguments& arguments) {
  constexpr const char* kUnderProfiler = "TRIREME_UNDER_PROFILER";
  const auto iterations = profiled_iterations(arguments.values);
  if (!arguments.values.count("profile") || std::getenv(kUnderProfiler)) return;
  const deck::Deck deck =
      deck::load(arguments.path, arguments.overrides, {.automatic = train::automatic_device()});
  if (iterations && deck.run.device == deck::Device::host)
    throw UsageError("--iterations: NVTX ranges are those of GPUs, but run.device is host");
  std::filesystem::create_directories(std::filesystem::path(deck.run.output) / "profile");
  const auto tool = arguments.values["profile"].as<std::string>();
  std::vector<std::string> words = profiler_words(tool, deck.run.output, iterations);
  words.push_back(program_path());
  words.insert(words.end(), argv + 1, argv + argc);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::setenv(kUnderProfiler, "1", 1);
  ::setenv("NSYS_NVTX_PROFILER_REGISTER_ONLY", "0", 1);  // the range's name is not registered
  ::execvp(pointers[0], pointers.data());
  throw IoError("--profile: '{}' cannot be started: install Nsight, or load its module", tool);
}

}  // namespace trireme
