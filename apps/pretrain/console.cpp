#include "pretrain/console.hpp"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/system/process.hpp"
#include "train/startup/launch.hpp"

namespace trireme {
namespace {

/// "a (4 ranks), b (4 ranks)"; `distinct` gets each host once, in rank order.
std::string host_list(const std::vector<std::string>& hosts, std::vector<std::string>& distinct) {
  for (const std::string& host : hosts)
    if (std::find(distinct.begin(), distinct.end(), host) == distinct.end())
      distinct.push_back(host);
  std::string text;
  for (const std::string& host : distinct)
    text += fmt::format("{}{} (ranks: {})", text.empty() ? "" : ", ", host,
                        std::count(hosts.begin(), hosts.end(), host));
  return text;
}

report::ModelInfo model_info(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                             const plan::RunPlan& plan) {
  const deck::Model& model = deck.model;
  return {.layers = model.layers,
          .hidden = model.hidden,
          .sequence = model.sequence,
          .vocab = vocabulary.size,
          .parameters_without_embeddings = plan.parameters_without_embeddings,
          .flops_per_token = model::flops_per_token(deck, vocabulary.size),
          .flops_formula = model::family_of(deck).flops_formula,
          .recomputes = deck.recompute.granularity == deck::Granularity::full};
}

/// `command` for a run of twice the length, which replaces the one it gives; of twice what is done
/// where that is more, as in a run that resumed with a shorter length.
std::string twice_as_long(std::string command, const deck::Train& train,
                          const train::RunState& done) {
  const char* key = train.samples ? "train.samples" : "train.iterations";
  const std::int64_t length = train.samples ? *train.samples : *train.iterations;
  const std::string given = fmt::format(" {}={}", key, length);
  if (const std::size_t at = (command + ' ').find(given + ' '); at != std::string::npos) {
    command.erase(at, given.size());
    constexpr std::string_view kSet = " --set";
    if (std::string_view(command).substr(0, at).ends_with(kSet))
      command.erase(at - kSet.size(), kSet.size());
  }
  return fmt::format("{} {}={}", command, key,
                     2 * std::max(length, train.samples ? done.consumed_samples : done.iteration));
}

}  // namespace

std::string command_line(int argc, char** argv, int ranks, bool with_restart) {
  std::string text = train::launch_words(train::read_launch_info(), ranks, {argv, argv + argc});
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    if (!with_restart && word.starts_with("--restart")) {
      i += word == "--restart";
      continue;
    }
    if (!text.empty()) text += ' ';
    text += shell_word(word);
  }
  return text;
}

bool prints_to_terminal() {
  if (::isatty(STDOUT_FILENO) != 1) return false;
  if (!std::getenv("OMPI_COMM_WORLD_SIZE")) return true;
  std::error_code unknown;
  const std::string output =
      std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", ::getppid()), unknown).string();
  return output.starts_with("/dev/pts/") || output.starts_with("/dev/tty");
}

void introduce(const Start& start, const char* program, const deck::Deck& deck,
               const plan::Vocabulary& vocabulary, const DeckArguments& arguments,
               const std::string& command, const std::vector<std::string>& hosts,
               const std::string& devices) {
  const plan::RunPlan plan = plan::plan_run(deck, vocabulary.size);
  std::vector<std::string> distinct;
  const std::string host_text = host_list(hosts, distinct);
  std::vector<int> rank_hosts;
  for (const std::string& host : hosts)
    rank_hosts.push_back(
        static_cast<int>(std::find(distinct.begin(), distinct.end(), host) - distinct.begin()));
  report::Reporter& reporter = *start.reporter;
  reporter.print(fmt::format("{} {}\ncommand    {}\nhosts      {}, {}", program, TRIREME_VERSION,
                             command, host_text, devices));
  std::string text = plan::to_text(plan) + train::describe_data(deck, vocabulary);
  text += fmt::format("run folder {}\n", deck.run.output);
  if (!start.lock->holds())
    text += "run folder its file system has no locks: nothing keeps a second run out of it\n";
  text += start.restart.local
              ? fmt::format("restart    from the local checkpoint in {}, iteration {}",
                            start.restart.local->path.string(), start.restart.progress.iteration)
          : start.restart.checkpoint
              ? fmt::format("restart    from {}, iteration {}", start.restart.checkpoint->string(),
                            start.restart.progress.iteration)
              : "restart    no checkpoint: a fresh model";
  // Such as after the folder was deleted, perhaps to begin afresh.
  if (start.restart.local && !start.restart.checkpoint)
    text +=
        "\nrestart    the run folder has no checkpoint; a fresh model starts with --restart never";
  for (const std::string& note : start.data_notes) text += "\ndataset    " + note;
  for (const std::string& note : start.restart.notes) text += "\nrestart    " + note;
  reporter.print(text);
  const deck::Progress end = deck::end_of_run(deck, start.restart.progress);
  std::error_code unknown;  // the folder may be gone; then it stays ""
  reporter.on(
      report::StartEvent{.program = program,
                         .version = TRIREME_VERSION,
                         .command = command,
                         .directory = std::filesystem::current_path(unknown).string(),
                         .deck = arguments.path,
                         .overrides = arguments.overrides,
                         .device = std::string(name_of(deck.run.device)),
                         .length = {.iterations = end.iteration, .samples = end.samples},
                         .layout = {.tensor = plan.layout.tensor,
                                    .pipeline = plan.layout.pipeline,
                                    .data = plan.layout.data},
                         .partition = fmt::format("{}", fmt::join(plan.layout.partition, "-")),
                         .hosts = distinct,
                         .rank_hosts = rank_hosts,
                         .parameters = plan.parameters,
                         .model = model_info(deck, vocabulary, plan),
                         .iteration = start.restart.progress.iteration});
}

void conclude(report::Reporter& reporter, train::StopReason stop, const train::Trainer& trainer,
              const deck::Deck& deck, const std::string& command, double seconds) {
  reporter.on(report::StopEvent{.reason = describe(stop),
                                .iteration = trainer.state().iteration,
                                .exit_code = static_cast<int>(exit_code(stop))});
  std::string text =
      fmt::format("{} of {} iterations are done; this run took {} and {} at most on rank 0",
                  trainer.state().iteration, trainer.total_iterations(), human_duration(seconds),
                  human_bytes(static_cast<double>(process_memory().peak)));
  if (trainer.last_checkpoint())
    text += fmt::format("\ncheckpoint {}", trainer.last_checkpoint()->string());
  if (stop == train::StopReason::finished)
    text += "\ncontinue   " + twice_as_long(command, deck.train, trainer.state());
  else if (stop != train::StopReason::diverged)
    text += "\ncontinue   " + command;
  reporter.print(text);
}

}  // namespace trireme
