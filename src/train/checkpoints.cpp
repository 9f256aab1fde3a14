#include "train/trainer.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/elements.hpp"
#include "checkpoint/local/shard.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "deck/load.hpp"
#include "train/startup/startup.hpp"

namespace trireme::train {
namespace {

/// Whether `iteration` comes to a multiple of `every`.
bool is_due(const deck::Deck& deck, const deck::Length& every, std::int64_t iteration) {
  const deck::BatchSizes batches(deck.batch);
  return deck::reaches(every, batches.advance({}, iteration - 1), batches.advance({}, iteration));
}

/// How many checkpoints the deck asks for between `now` and `end`.
std::int64_t saves_due(const deck::Deck& deck, const deck::Progress& now,
                       const deck::Progress& end) {
  const auto& every = deck.checkpoint.every;
  const bool last = deck.checkpoint.at_end && !(every && is_due(deck, *every, end.iteration));
  if (!every) return last;
  const deck::BatchSizes batches(deck.batch);
  return batches.times_reached(*every, end) - batches.times_reached(*every, now) + last;
}

/// checkpoint.async, which left out means: on GPUs, where the copies take at most half of each
/// node's free memory. On CPUs the thread that writes takes time from the ranks. Collective.
bool saves_asynchronously(const deck::Deck& deck, const device::Backend& backend,
                          comm::MpiCommunicator& world,
                          const std::vector<checkpoint::LocalTensor>& tensors) {
  if (deck.checkpoint.async) return *deck.checkpoint.async;
  if (backend.is_host_memory()) return false;
  double bytes = 0.0;
  for (const checkpoint::LocalTensor& tensor : tensors)
    for (const checkpoint::Piece& piece : tensor.pieces)
      if (piece.owner)
        bytes += static_cast<double>(count_elements(piece.slabs)) *
                 static_cast<double>(size_of(tensor.dtype));
  const double on_node = bytes * comm::node_local_size(world);
  const bool fits = on_node <= 0.5 * static_cast<double>(available_memory());
  return world.all_reduce(fits, comm::Reduce::min) > 0.0;
}

/// The nodes of the ranks; throws CollectiveError unless there are several, with as many ranks
/// each. Collective.
std::vector<int> partner_nodes(comm::MpiCommunicator& world) {
  const std::vector<int> nodes = checkpoint::nodes_of(world);
  const int count = *std::max_element(nodes.begin(), nodes.end()) + 1;
  const auto first = std::count(nodes.begin(), nodes.end(), 0);
  bool equal = count > 1;
  for (int node = 1; node < count; ++node)
    equal = equal && std::count(nodes.begin(), nodes.end(), node) == first;
  if (!equal)
    throw CollectiveError(ExitCode::deck,
                          "checkpoint.local.partner needs two nodes or more, with as many ranks on "
                          "each; leave it out here");
  return nodes;
}

/// Makes new files in `folder` be striped over so many storage targets (checkpoint.stripes).
void set_stripes(const std::filesystem::path& folder, std::int64_t stripes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError("cannot create '{}': {}", folder.string(), error.message());
  const std::string command =
      fmt::format("lfs setstripe -c {} {}", stripes, shell_word(folder.string()));
  if (const int status = std::system(command.c_str()); status != 0)
    throw IoError(
        "checkpoint.stripes = {}: '{}' failed; leave the key out unless '{}' is on Lustre", stripes,
        command, folder.string());
}

}  // namespace

bool is_milestone(const deck::Deck& deck, const checkpoint::Step& step) {
  const auto& every = deck.checkpoint.keep_every;
  if (!every) return false;
  if (every->unit == deck::Unit::iterations)
    return deck::reaches(*every, {.iteration = step.iteration - 1}, {.iteration = step.iteration});
  try {
    const checkpoint::Header header = checkpoint::read_header(step.path);
    const deck::Deck writer = deck_of(header, step.path);
    const deck::Progress now = RunState::from(header).progress();
    return deck::reaches(*every, before_last_iteration(writer.batch, now), now);
  } catch (const Error&) {
    return true;
  }
}

int max_new_checkpoints(const deck::Deck& deck, const deck::Progress& now,
                        const deck::Progress& end, std::int64_t replaced) {
  constexpr std::int64_t kMax = 64;
  if (!deck.checkpoint.keep) return 1;
  const std::int64_t at_a_time =
      std::min(std::min(*deck.checkpoint.keep, kMax) + 1 - replaced, saves_due(deck, now, end));
  return static_cast<int>(std::clamp<std::int64_t>(at_a_time, 1, kMax));
}

RunCheckpoints::RunCheckpoints(const deck::Deck& deck, comm::Groups& groups,
                               device::Backend& backend, const model::ParameterStore& parameters,
                               optim::Optimizer& optimizer, report::Reporter* reporter,
                               const FolderLock* lock)
    : deck_(deck),
      groups_(groups),
      backend_(backend),
      parameters_(parameters),
      optimizer_(optimizer),
      reporter_(reporter),
      lock_(lock) {
  const auto tensors = checkpoint::checkpoint_tensors(parameters, optimizer);
  const bool local = deck.checkpoint.local.path.has_value();
  async_ = deck.checkpoint.every && saves_asynchronously(deck, backend, *groups.world, tensors);
  if (deck.checkpoint.local.partner) partners_ = partner_nodes(*groups.world);
  if (async_ || local)
    background_ =
        std::make_unique<checkpoint::BackgroundSave>(*groups.world, backend, tensors, local);
}

void RunCheckpoints::load(const std::filesystem::path& path, const RunState& state) {
  const Stopwatch watch;
  auto tensors = checkpoint::checkpoint_tensors(parameters_, optimizer_);
  // Weights that no run has trained have moments of zero, those of this optimizer: the file need
  // not have any, nor be of the same one.
  if (state.is_untrained()) {
    std::erase_if(tensors, [](const checkpoint::LocalTensor& tensor) {
      return !tensor.name.starts_with("model/");
    });
    for (const optim::OptimizerState& moments : optimizer_.states()) backend_.zero(moments.tensor);
  }
  throw_collectively([&] { checkpoint::load(path, *groups_.world, tensors, &backend_); });
  if (reporter_)
    reporter_->print(fmt::format(
        "  successfully loaded checkpoint of iteration {:7d} from {} ({} in {:.2f} s)",
        state.iteration, path.string(),
        human_bytes(static_cast<double>(std::filesystem::file_size(path))), watch.seconds()));
  optimizer_.set_step(state.applied_iterations);
  optimizer_.gather_weights();
  last_ = path;
  last_iteration_ = state.iteration;
}

void RunCheckpoints::load_local(const RunState& state) {
  throw_collectively([&] {
    comm::agree(*groups_.world, [&] {
      comm::WatchedWork work = groups_.world->work("reading a local checkpoint", /*minimum=*/60.0);
      const auto folder = *local_folder(deck_);
      const auto path = checkpoint::find_shard(folder, state.iteration, groups_.world->rank());
      if (!path)
        throw IoError("the local checkpoint of iteration {} is gone from '{}'", state.iteration,
                      folder.string());
      checkpoint::read_shard(*path, checkpoint::checkpoint_tensors(parameters_, optimizer_),
                             &backend_, [&] { work.note_progress(); });
    });
  });
  optimizer_.set_step(state.applied_iterations);
  optimizer_.gather_weights();
}

void RunCheckpoints::preflight_local() {
  const auto folder = local_folder(deck_);
  if (!folder) return;
  constexpr double kSets = 3;  // of a node's shards: the two that stay, and the one that is written
  const int rank = groups_.world->rank();
  std::int64_t bytes = 0;
  for (const checkpoint::LocalTensor& tensor :
       checkpoint::checkpoint_tensors(parameters_, optimizer_))
    for (const checkpoint::Piece& piece : tensor.pieces)
      bytes += count_elements(piece.slabs) * static_cast<std::int64_t>(size_of(tensor.dtype));
  if (!partners_.empty()) bytes *= 2;
  const double of_node =
      groups_.world->split_by_node()->all_reduce(static_cast<double>(bytes), comm::Reduce::sum);
  std::filesystem::path part;
  std::error_code ignored;
  const auto reserve = [&] {
    // Also of another layout: they are deleted when the first save is complete.
    double there = 0;
    for (const auto& [name, path] : checkpoint::list_shards(*folder))
      there += static_cast<double>(std::filesystem::file_size(path, ignored));
    // In proportion to what each rank writes: stages differ in size.
    const double sets = std::clamp(kSets - there / of_node, 1.0, kSets);
    try {
      part = checkpoint::create_part(checkpoint::shard_path(*folder, 0, rank));
      checkpoint::reserve_space(part, static_cast<std::int64_t>(sets * static_cast<double>(bytes)));
    } catch (const IoError& error) {
      throw IoError("checkpoint.local: {} ({})", error.what(), process_identity());
    }
  };
  // All ranks of a node have reserved what they need before one gives it back.
  try {
    throw_collectively([&] { comm::agree(*groups_.world, reserve); });
  } catch (...) {
    if (!part.empty()) std::filesystem::remove(part, ignored);
    throw;
  }
  std::filesystem::remove(part, ignored);
}

void RunCheckpoints::preflight(const deck::Progress& now, const deck::Progress& end) {
  preflight_local();
  if (!deck_.checkpoint.every && !deck_.checkpoint.at_end) return;
  const std::filesystem::path folder = checkpoint_folder(deck_);
  if (const auto& stripes = deck_.checkpoint.stripes)
    on_rank_zero(*groups_.world, [&] {
      set_stripes(folder, *stripes);
      return std::string();
    });
  int count = 1;
  if (groups_.world->rank() == 0) {
    const auto replaced = std::ranges::count_if(
        checkpoint::list_steps(folder), [&](const checkpoint::Step& step) { return !keeps(step); });
    // A compressed file is written next to the one that is not.
    count = max_new_checkpoints(deck_, now, end, replaced) + (compression() > 0);
  }
  throw_collectively([&] {
    checkpoint::preflight_save(checkpoint::step_path(folder, now.iteration), *groups_.world,
                               deck::print_deck(deck_),
                               checkpoint::checkpoint_tensors(parameters_, optimizer_), count);
  });
}

std::filesystem::path RunCheckpoints::checked_path(const RunState& state) {
  on_rank_zero(*groups_.world, [&] {
    if (lock_) lock_->check();
    return std::string();
  });
  return checkpoint::step_path(checkpoint_folder(deck_), state.iteration);
}

void RunCheckpoints::note_saved(const InFlight& saved, bool background) {
  // Of a local checkpoint no other program knows: the run still has to save at its end.
  if (!saved.local) {
    last_ = saved.path;
    last_iteration_ = saved.iteration;
    deletion_due_ = true;
  }
  unused_local_after_ = saved.iteration;
  if (!reporter_) return;
  std::error_code gone;  // a user may have moved it away by now
  const std::uintmax_t bytes = std::filesystem::file_size(saved.path, gone);
  report::CheckpointEvent event{.iteration = saved.iteration,
                                .path = saved.path.string(),
                                .bytes = gone ? 0 : static_cast<std::int64_t>(bytes),
                                .seconds = saved.since_start.seconds()};
  if (background) {
    event.update_wait_seconds = background_->waited_seconds();
    event.stall_seconds = saved.stall_seconds + event.update_wait_seconds;
  }
  reporter_->on(event);
}

double RunCheckpoints::save(const RunState& state, device::Timers* timers) {
  InFlight saved{.iteration = state.iteration};
  saved.path = checked_path(state);
  device::timed(timers, device::Phase::save, [&] {
    throw_collectively([&] {
      checkpoint::save(saved.path, *groups_.world, state.attributes(), deck::print_deck(deck_),
                       checkpoint::checkpoint_tensors(parameters_, optimizer_), &backend_,
                       compression());
    });
  });
  note_saved(saved, /*background=*/false);
  return saved.since_start.seconds();
}

double RunCheckpoints::start_save(const RunState& state, device::Timers* timers) {
  constexpr double kNoticeable = 1.0;  // seconds
  const Stopwatch watch;
  if (background_->in_flight()) {
    advance_save(/*wait=*/true);
    if (reporter_ && watch.seconds() >= kNoticeable)
      reporter_->on(report::WarningEvent{
          .iteration = state.iteration,
          .message = fmt::format("training waited {:.1f} s for the checkpoint of iteration {}: "
                                 "storage is slower than checkpoint.every asks for",
                                 watch.seconds(), in_flight_.iteration)});
  }
  const Stopwatch start;
  in_flight_ = {.iteration = state.iteration};
  in_flight_.path = checked_path(state);
  device::timed(timers, device::Phase::save, [&] {
    throw_collectively([&] {
      background_->start(in_flight_.path, state.attributes(), deck::print_deck(deck_),
                         checkpoint::checkpoint_tensors(parameters_, optimizer_), compression());
    });
  });
  in_flight_.stall_seconds = start.seconds();
  return watch.seconds();
}

double RunCheckpoints::start_local(const RunState& state) {
  if (background_->in_flight()) {
    if (reporter_ && !std::exchange(left_out_local_, true))
      reporter_->on(report::WarningEvent{
          .iteration = state.iteration,
          .message = fmt::format("no local checkpoint of iteration {}: that of iteration {} is "
                                 "still being written. Later ones are left out likewise",
                                 state.iteration, in_flight_.iteration)});
    return 0.0;
  }
  const int rank = groups_.world->rank();
  in_flight_ = {.iteration = state.iteration, .local = true};
  own_local_.insert(state.iteration);
  const std::filesystem::path folder = *local_folder(deck_);
  in_flight_.path = checkpoint::shard_path(folder, state.iteration, rank);
  const Stopwatch watch;
  throw_collectively([&] {
    background_->start_local(folder,
                             {.iteration = state.iteration,
                              .rank = rank,
                              .ranks = groups_.world->size(),
                              .attributes = state.attributes(),
                              .deck = deck::print_deck(deck_)},
                             checkpoint::checkpoint_tensors(parameters_, optimizer_), partners_);
  });
  return in_flight_.stall_seconds = watch.seconds();
}

std::optional<double> RunCheckpoints::advance_save(bool wait) {
  if (!background_ || !background_->in_flight()) return std::nullopt;
  try {
    if (wait) {
      const Stopwatch watch;
      background_->wait(published_);
      in_flight_.stall_seconds += watch.seconds();
    } else if (!background_->advance()) {
      // No rank tells the others that it has published, when it hangs before the next iteration.
      if (background_->publishes()) published_();
      return std::nullopt;
    }
    published_();
  } catch (const IoError& error) {
    note_failed(error);
    return std::nullopt;
  }
  (in_flight_.local ? local_failed_ : shared_failed_) = false;
  note_saved(in_flight_, /*background=*/true);
  return in_flight_.since_start.seconds();
}

void RunCheckpoints::note_failed(const IoError& error) {
  const bool again = std::exchange(in_flight_.local ? local_failed_ : shared_failed_, true);
  // A run continues without local checkpoints as long as it writes shared ones.
  const bool spare = in_flight_.local && deck_.checkpoint.every;
  if (again && !spare)
    throw CollectiveError(error.code(),
                          fmt::format("{}; the last checkpoint failed, too", error.what()));
  if (again || !reporter_) return;
  const std::string message =
      spare ? fmt::format(
                  "no local checkpoint: {}; training continues with those of "
                  "checkpoint.every. The next ones that fail are not reported",
                  error.what())
            : fmt::format(
                  "no checkpoint: {}; training continues, and ends when the next one fails "
                  "as well",
                  error.what());
  reporter_->on(report::WarningEvent{.iteration = in_flight_.iteration, .message = message});
}

std::optional<std::filesystem::path> RunCheckpoints::earlier(std::int64_t back,
                                                             std::int64_t iteration) {
  const std::string path = on_rank_zero(*groups_.world, [&] {
    std::vector<checkpoint::Step> steps = checkpoint::list_steps(checkpoint_folder(deck_));
    std::erase_if(steps, [&](const auto& step) { return step.iteration > iteration; });
    if (steps.empty()) return std::string();
    return steps[std::max<std::int64_t>(std::ssize(steps) - back, 0)].path.string();
  });
  return path.empty() ? std::nullopt : std::optional<std::filesystem::path>(path);
}

void RunCheckpoints::save_rewound(const RunState& state) {
  // Newer local checkpoints first: a start prefers them to the one that is written here.
  if (const auto folder = local_folder(deck_))
    background_->remove_newer_shards(*folder, state.iteration);
  save(state, /*timers=*/nullptr);
  on_rank_zero(*groups_.world, [&] {
    const bool deletes = deck_.checkpoint.keep.has_value();
    checkpoint::supersede_newer(*last_, state.iteration, deletes);
    return std::string();
  });
}

void RunCheckpoints::delete_unused_local() {
  const auto saved = std::exchange(unused_local_after_, std::nullopt);
  const auto folder = local_folder(deck_);
  if (!saved || !folder) return;
  checkpoint::remove_shards(*folder, [&](std::int64_t iteration) {
    return iteration > *saved && !own_local_.contains(iteration);
  });
  own_local_.erase(own_local_.begin(), own_local_.upper_bound(*saved));
}

void RunCheckpoints::finish_copies() {
  if (background_) background_->finish_copies();
}

bool RunCheckpoints::keeps(const checkpoint::Step& step) {
  const auto [known, is_new] = milestones_.try_emplace(step.iteration);
  if (is_new) {
    const comm::WatchedWork work =
        groups_.world->work(fmt::format("reading '{}'", step.path.string()), 60.0);
    known->second = is_milestone(deck_, step);
  }
  return known->second;
}

void RunCheckpoints::delete_old() {
  // While a checkpoint is compressed no other can be looked into: later.
  if (!deletion_due_ || (background_ && background_->publishes())) return;
  deletion_due_ = false;
  if (!reporter_) return;
  try {
    checkpoint::retain(checkpoint_folder(deck_), deck_.checkpoint.keep,
                       [&](const checkpoint::Step& step) { return keeps(step); });
  } catch (const IoError& error) {
    // The file may belong to another user or be protected: no reason to stop training.
    reporter_->print(fmt::format("warning: {} (checkpoint.keep)", error.what()));
  }
}

}  // namespace trireme::train
