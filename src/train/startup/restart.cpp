#include "train/startup/startup.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <tuple>

#include "checkpoint/file.hpp"
#include "checkpoint/local/shard.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/philox.hpp"
#include "core/text.hpp"
#include "deck/load.hpp"
#include "plan/setup.hpp"
#include "train/run_state.hpp"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

/// Notes in `point` where the learning rate and the weight decay of `deck` differ at the position
/// of `state` from those of the deck `before`: most schedules count samples, so that with another
/// batch.global the same iterations are another part of them, and ramps end with the run.
void compare_schedules(const deck::Deck& before, const deck::Deck& deck, const RunState& state,
                       RestartPoint& point) {
  const auto compare = [&](const char* what, const auto& schedule) {
    const auto value = [&](const deck::Deck& of) {
      return schedule(of).at(plan::counts_samples(of) ? state.applied_samples
                                                      : state.applied_iterations);
    };
    const double old_value = value(before), new_value = value(deck);
    if (old_value == new_value) return;
    point.notes.push_back(
        fmt::format("changed: the {} after iteration {}: {:.4g} by the checkpoint's deck, {:.4g} "
                    "by this one (its schedule counts {})",
                    what, state.iteration, old_value, new_value,
                    plan::counts_samples(deck) ? "samples" : "iterations"));
  };
  compare("learning rate", plan::learning_rate);
  const auto ramps = [](const deck::Deck& of) {
    return of.schedule.weight_decay.type != deck::RampType::constant;
  };
  if (ramps(before) || ramps(deck)) compare("weight decay", plan::weight_decay);
}

/// Renames an old run folder, unless a run is using it, to the first free of <folder>.1,
/// <folder>.2, ... A checkpoint of `point` that lies in it moves along.
void move_aside(const fs::path& folder, RestartPoint& point) {
  const FolderLock lock(folder);
  std::error_code error;
  // Without a slash at the end, after which the new name would lie inside.
  const fs::path name = folder.has_filename() ? folder : folder.parent_path();
  fs::path target;
  for (int number = 1; target.empty() || fs::exists(target); ++number)
    target = fmt::format("{}.{}", name.string(), number);
  fs::path inside;
  if (point.checkpoint) inside = fs::relative(*point.checkpoint, name, error);
  fs::rename(name, target, error);
  if (error) throw IoError("cannot move '{}' aside: {}", name.string(), error.message());
  if (!inside.empty() && *inside.begin() != "..") point.checkpoint = target / inside;
  point.notes.push_back(fmt::format("moved the old run folder to '{}'", target.string()));
}

/// Whether `checkpoint` lies in the run folder.
bool is_own(const fs::path& checkpoint, const deck::Deck& deck) {
  std::error_code absent;
  return fs::equivalent(fs::absolute(checkpoint).parent_path(), checkpoint_folder(deck), absent);
}

/// The checkpoint that `restart`, as find_restart() takes it, asks for; empty for a fresh start.
std::optional<checkpoint::Latest> find_checkpoint(const deck::Deck& deck,
                                                  const std::string& restart) {
  if (restart == "latest") {
    if (auto latest = checkpoint::find_latest(checkpoint_folder(deck))) return latest;
  } else if (restart != "never") {
    const std::string word = did_you_mean(restart, {"latest", "never"});
    if (!word.empty() && !std::filesystem::exists(restart))
      throw UsageError("--restart {}: neither latest, never nor a path{}", restart, word);
    checkpoint::Latest named = checkpoint::locate(restart);
    if (!is_own(named.path, deck) && !checkpoint::list_steps(checkpoint_folder(deck)).empty())
      throw UsageError(
          "--restart {}: the run folder '{}' has its own checkpoints; leave the option out "
          "to resume from them, or choose another run.output",
          restart, deck.run.output);
    return named;
  }
  if (deck.checkpoint.load) return checkpoint::locate(*deck.checkpoint.load);
  return std::nullopt;
}

/// Notes in `point` that the run resumes with other training data than the checkpoint's; throws
/// unless `changes` of the deck show that the user wants it.
void compare_training_data(const RunState& before, const TrainingData& now,
                           const fs::path& checkpoint, const std::vector<deck::Change>& changes,
                           RestartPoint& point) {
  if (!before.tokenizer.empty() && !now.tokenizer.empty() && before.tokenizer != now.tokenizer)
    point.notes.push_back(fmt::format("changed: the tokenizer: {} in the checkpoint, {} now",
                                      before.tokenizer, now.tokenizer));
  // A checkpoint without training, such as an imported model, has seen no documents.
  const bool known = before.consumed_samples > 0 && !before.train_documents.empty();
  if (!known || now.documents.empty()) return;
  const bool same_documents = before.train_documents == now.documents;
  const std::string changed = same_documents ? changed_file(before.train_tokens, now) : "";
  if (same_documents && changed.empty()) return;
  const bool renamed = std::ranges::any_of(changes, [](const deck::Change& change) {
    return change.key == "data.train" || change.key == "data.corpora";
  });
  if (!renamed && same_documents)
    throw DataError(
        "'{}' holds other tokens than those that '{}' was trained on, in documents of the same "
        "lengths; put the dataset back, give this one another name to resume with it, or begin "
        "afresh (--restart never, without checkpoint.load)",
        changed, checkpoint.string());
  if (!renamed)
    throw DataError(
        "data.train has other documents than those that '{}' was trained on, under the same name; "
        "put the dataset back, give these documents another name to resume with them, or begin "
        "afresh (--restart never, without checkpoint.load)",
        checkpoint.string());
  point.notes.push_back("changed: the documents of data.train");
}

/// Judges `changes` for a run that starts from weights that no run has trained yet, such as an
/// imported model: data, seeds, optimizer and schedule are this run's own. What the weights compute
/// stays, except that samples may have another length, and rotary positions may be extended.
void judge_for_untrained(const deck::Deck& deck, std::vector<deck::Change>& changes) {
  const auto is_of = [](const deck::Change& change, const char* section) {
    return change.key.starts_with(section);
  };
  std::erase_if(changes, [&](const deck::Change& change) {
    return !is_of(change, "model.") && !is_of(change, "data.tokenizer.");
  });
  const bool rotary = deck.model.position.theta.has_value();
  for (deck::Change& change : changes)
    if (is_of(change, "data.tokenizer.") || change.key == "model.sequence" ||
        (rotary && (change.key == "model.positions" || is_of(change, "model.position."))))
      change.rule = deck::RestartRule::warn;
}

/// Fills in the progress of `point`, whose checkpoint has `header`, and notes what has changed
/// since.
void compare_runs(const deck::Deck& deck, const TrainingData& training_data,
                  const checkpoint::Header& header, RestartPoint& point) {
  const RunState before = RunState::from(header);
  point.progress = before.progress();
  deck::Deck old_deck = deck_of(header, header.path);
  const checkpoint::TensorInfo* words = header.find("model/embedding/word");
  if (words && deck.model.vocab) old_deck.model.vocab = words->shape[0];  // maybe a tokenizer's
  auto changes = deck::compare_for_restart(old_deck, deck);
  if (before.is_untrained()) judge_for_untrained(deck, changes);
  deck::refuse_immutable_changes(changes);
  for (const deck::Change& change : changes)
    if (change.rule != deck::RestartRule::free)
      point.notes.push_back("changed: " + describe(change));
  if (!before.is_untrained()) compare_schedules(old_deck, deck, before, point);
  compare_training_data(before, training_data, header.path, changes, point);
}

/// The checkpoint that `restart` asks for, compared with `deck` and `training_data`.
RestartPoint compare_with_checkpoint(const deck::Deck& deck, const std::string& restart,
                                     const TrainingData& training_data) {
  RestartPoint point;
  if (const auto found = find_checkpoint(deck, restart)) {
    point.checkpoint = found->path;
    if (!found->note.empty()) point.notes.push_back(found->note);
    compare_runs(deck, training_data, checkpoint::read_header(*point.checkpoint), point);
  }
  return point;
}

}  // namespace

deck::Deck deck_of(const checkpoint::Header& header, const fs::path& path) {
  return deck::parse(header.deck, path.string() + ":/deck", {}, {.need_data = false});
}

fs::path checkpoint_folder(const deck::Deck& deck) {
  return fs::path(deck.run.output) / "checkpoints";
}

RestartPoint find_restart(const deck::Deck& deck, const std::string& restart,
                          const TrainingData& training_data) {
  RestartPoint point = compare_with_checkpoint(deck, restart, training_data);
  // Last: where the run cannot start, the old one stays.
  const fs::path folder = deck.run.output;
  if (restart == "never" &&
      (fs::exists(folder / "metrics.jsonl") || fs::exists(checkpoint_folder(deck))))
    move_aside(folder, point);
  return point;
}

std::optional<fs::path> local_folder(const deck::Deck& deck) {
  if (!deck.checkpoint.local.path) return std::nullopt;
  const std::string output = fs::absolute(deck.run.output).lexically_normal().string();
  return fs::path(*deck.checkpoint.local.path) /
         fmt::format("{}-{:016x}", deck.run.name, name_hash(output.c_str()));
}

namespace {

/// Whether the ranks of a run with the deck `before` hold the same parts of weights and optimizer
/// state as those of a run with `now`, if the model is the same. They are fp32 in every precision.
bool have_same_parts(const deck::Deck& before, const deck::Deck& now) {
  const auto parts = [](const deck::Deck& of) {
    const deck::Parallel& parallel = of.parallel;
    const bool has_momentum = of.optimizer.momentum.value_or(0.0) > 0.0;  // SGD without: no state
    return std::tuple(parallel.tensor, parallel.data, parallel.pipeline, parallel.partition,
                      parallel.interleave, parallel.zero > 0, parallel.bucket, of.optimizer.type,
                      has_momentum);
  };
  return parts(before) == parts(now);
}

}  // namespace

void find_local_restart(const deck::Deck& deck, comm::MpiCommunicator& world,
                        const std::string& restart, const TrainingData& training_data,
                        RestartPoint& point) {
  const auto folder = local_folder(deck);
  if (!folder) return;
  auto newest = static_cast<double>(point.progress.iteration);
  world.broadcast(&newest, sizeof newest, 0);
  std::string note;
  std::optional<checkpoint::ShardHeader> found;
  if (restart == "latest")
    found = checkpoint::find_shards(
        *folder, world, static_cast<std::int64_t>(newest),
        [&](const checkpoint::ShardHeader& shard) {
          // Another model is refused below.
          return have_same_parts(
              deck::parse(shard.deck, folder->string(), {}, {.need_data = false}), deck);
        },
        note);
  if (!note.empty()) point.notes.push_back(note);
  if (found) {
    point.local = checkpoint::Header{
        .attributes = found->attributes, .deck = found->deck, .tensors = {}, .path = *folder};
    on_rank_zero(world, [&] {
      std::erase_if(point.notes, [](const std::string& note) {  // of the other checkpoint
        return note.starts_with("changed:");
      });
      compare_runs(deck, training_data, *point.local, point);
      return std::string();
    });
    point.progress = RunState::from(*point.local).progress();
    newest = static_cast<double>(point.progress.iteration);
  }
  double last = 0;  // of all nodes
  for (const auto& [name, path] : checkpoint::list_shards(*folder))
    last = std::max(last, static_cast<double>(name.iteration));
  last = world.all_reduce(last, comm::Reduce::max);
  // Those that this start cannot use stay until the run has saved and trains on: its layout may be
  // a mistake. A start that leaves them out on purpose must not find them again.
  const bool stay = restart == "latest";
  if (last > newest && world.rank() == 0)
    point.notes.push_back(
        fmt::format("the local checkpoints after iteration {}, up to {}, are deleted{}", newest,
                    last, stay ? " once this run has saved and trains on" : ""));
  world.barrier();  // no rank looks for shards any more
  checkpoint::remove_unfinished_shards(*folder);
  if (stay) return;
  checkpoint::remove_shards(
      *folder, [&](std::int64_t iteration) { return static_cast<double>(iteration) > newest; });
}

void supersede_newer(const deck::Deck& deck, RestartPoint& point) {
  if (!point.checkpoint || !is_own(*point.checkpoint, deck)) return;
  const std::int64_t iteration = point.progress.iteration;
  const fs::path path = fs::absolute(*point.checkpoint);
  // A run that rewound after a spike (train.spike.back) was killed before it had deleted them.
  // After its next save, which `latest` names, newer ones are none of these.
  const RunState state = RunState::from(checkpoint::read_header(path));
  if (deck.checkpoint.keep && state.abandoned > iteration) {
    const fs::path latest = path.parent_path() / "latest";
    std::error_code absent;
    if (fs::exists(latest, absent) && read_file(latest) == path.filename().string() + '\n')
      checkpoint::delete_steps(path.parent_path(), iteration + 1, state.abandoned);
  }
  if (const int newer = checkpoint::supersede_newer(path, iteration); newer > 0)
    point.notes.push_back(fmt::format(
        "resuming from iteration {}: {} newer {} renamed to '*.superseded'; delete what "
        "is not needed",
        iteration, newer, newer == 1 ? "checkpoint is" : "checkpoints are"));
}

void require_same_model(const deck::Deck& deck, const fs::path& checkpoint) {
  const checkpoint::Header header = checkpoint::read_header(checkpoint);
  auto changes = deck::compare_for_restart(deck_of(header, checkpoint), deck);
  if (RunState::from(header).is_untrained()) judge_for_untrained(deck, changes);
  std::erase_if(changes, [](const deck::Change& change) {
    return !change.key.starts_with("model.") || change.key == "model.sequence";
  });
  deck::refuse_immutable_changes(changes);
}

std::string tokenizer_problem(const checkpoint::Header& header,
                              const tokenizer::TokenizerIdentity& now) {
  if (!header.attributes.contains("tokenizer")) return "";
  const auto& before = header.get<std::string>("tokenizer");
  if (before == tokenizer::to_text(now)) return "";
  return fmt::format("'{}' was trained with the tokenizer {}, but this one is {}: ids may differ",
                     header.path.string(), before, tokenizer::to_text(now));
}

RestartPoint check_restart(deck::Deck deck, const std::string& restart) {
  // The run converts it first.
  if (deck.checkpoint.load && checkpoint::is_foreign(*deck.checkpoint.load))
    deck.checkpoint.load.reset();
  return compare_with_checkpoint(deck, restart, {});
}

void require_possible_folder(const fs::path& folder) {
  std::error_code unreadable;  // making the folder will say why
  fs::path existing = fs::absolute(folder, unreadable);
  while (!fs::exists(existing, unreadable) && existing.has_relative_path()) {
    if (fs::is_symlink(fs::symlink_status(existing, unreadable)))
      throw IoError(
          "cannot make the run folder '{}': '{}' is a link to nothing; choose another "
          "run.output",
          folder.string(), existing.string());
    existing = existing.parent_path();
  }
  if (fs::exists(existing, unreadable) && !fs::is_directory(existing, unreadable))
    throw IoError("cannot make the run folder '{}': '{}' is a file; choose another run.output",
                  folder.string(), existing.string());
}

FolderLock::FolderLock(const fs::path& folder) : folder_(folder) {
  require_possible_folder(folder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw IoError("cannot make the run folder '{}': {}", folder.string(), error.message());
  const fs::path path = folder / ".lock";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
  directory_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const Stopwatch watch;
  const int reason = acquire(file_, watch);
  holds_ = reason != ENOSYS && reason != EOPNOTSUPP && reason != ENOLCK;
  if (!holds_) return;
  // Not every file system locks folders (NFS does not): then the file alone counts.
  const bool taken = reason == EWOULDBLOCK ||
                     (reason == 0 && directory_ >= 0 && acquire(directory_, watch) == EWOULDBLOCK);
  if (reason == 0 && !taken) return;
  close();
  if (taken)
    throw IoError(
        "another run is using the run folder '{}'; wait for it, or choose another run.output",
        folder.string());
  throw IoError("cannot lock '{}': {}", path.string(), std::strerror(reason));
}

FolderLock::~FolderLock() { close(); }

int FolderLock::acquire(int file, const Stopwatch& watch) const {
  // A program that only asks whether a run is active takes the lock for an instant, and the ranks
  // of a launcher that was killed end within seconds.
  constexpr double kTimeout = 5.0;
  while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    if (reason != EWOULDBLOCK || watch.seconds() >= kTimeout) return reason;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return 0;
}

void FolderLock::check() const {
  struct stat own {
  }, found{};
  const auto is_other = [&](int file, const fs::path& path, bool may_be_absent) {
    if (file < 0 || ::fstat(file, &own) != 0) return false;
    if (::stat(path.c_str(), &found) != 0) return !may_be_absent;
    return own.st_dev != found.st_dev || own.st_ino != found.st_ino;
  };
  if (is_other(directory_, folder_, /*may_be_absent=*/false))
    throw IoError(
        "the run folder '{}' was renamed, deleted or replaced while the run was writing to it; "
        "move it back and run again",
        folder_.string());
  if (is_other(file_, folder_ / ".lock", /*may_be_absent=*/true))
    throw IoError(
        "'{}' was replaced: another run may be using the run folder; end one of them and run again",
        (folder_ / ".lock").string());
}

void FolderLock::close() {
  for (const int file : {file_, directory_})
    if (file >= 0) ::close(file);
}

}  // namespace trireme::train
