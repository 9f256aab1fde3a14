#include "train/checkpoints.hpp"

#include <algorithm>

#include "checkpoint/checkpoint.hpp"
#include "core/clock.hpp"
#include "deck/describe.hpp"
#include "train/startup/collective.hpp"

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

}  // namespace

bool is_milestone(const deck::Deck& deck, std::int64_t iteration) {
  const auto& every = deck.checkpoint.keep_every;
  return every && is_due(deck, *every, iteration);
}

int max_new_checkpoints(const deck::Deck& deck, const deck::Progress& now,
                        const deck::Progress& end, const std::vector<checkpoint::Step>& steps) {
  constexpr std::int64_t kMax = 64;
  if (!deck.checkpoint.keep) return 1;
  const auto replaced = std::count_if(
      steps.begin(), steps.end(),
      [&](const checkpoint::Step& step) { return !is_milestone(deck, step.iteration); });
  const std::int64_t at_once =
      std::min(std::min(*deck.checkpoint.keep, kMax) + 1 - replaced, saves_due(deck, now, end));
  return static_cast<int>(std::clamp<std::int64_t>(at_once, 1, kMax));
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
  if (deck.checkpoint.async == true && deck.checkpoint.every)
    background_ = std::make_unique<checkpoint::BackgroundSave>(
        *groups.world, backend, checkpoint::checkpoint_tensors(parameters, optimizer));
}

void RunCheckpoints::load(const std::filesystem::path& path, const RunState& state) {
  throw_collectively([&] {
    checkpoint::load(path, *groups_.world, checkpoint::checkpoint_tensors(parameters_, optimizer_),
                     &backend_);
  });
  optimizer_.set_step(state.applied_iterations);
  optimizer_.gather_weights();
  last_ = path;
  last_iteration_ = state.iteration;
}

void RunCheckpoints::preflight(const deck::Progress& now, const deck::Progress& end) {
  if (!deck_.checkpoint.every && !deck_.checkpoint.at_end) return;
  const std::filesystem::path folder = checkpoint_folder(deck_);
  int count = 1;
  if (groups_.world->rank() == 0)
    count = max_new_checkpoints(deck_, now, end, checkpoint::list_steps(folder));
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
  last_ = saved.path;
  last_iteration_ = saved.iteration;
  deletion_due_ = true;
  if (!reporter_) return;
  report::CheckpointEvent event{
      .iteration = saved.iteration,
      .path = saved.path.string(),
      .bytes = static_cast<std::int64_t>(std::filesystem::file_size(saved.path)),
      .seconds = saved.since_start.seconds()};
  if (background) event.stall_seconds = saved.stall_seconds;
  reporter_->on(event);
}

double RunCheckpoints::save(const RunState& state, device::Timers* timers) {
  InFlight saved{.iteration = state.iteration};
  saved.path = checked_path(state);
  device::timed(timers, device::Phase::save, [&] {
    throw_collectively([&] {
      checkpoint::save(saved.path, *groups_.world, state.attributes(), deck::print_deck(deck_),
                       checkpoint::checkpoint_tensors(parameters_, optimizer_), &backend_);
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
  in_flight_ = {.iteration = state.iteration};
  in_flight_.path = checked_path(state);
  device::timed(timers, device::Phase::save, [&] {
    throw_collectively([&] {
      background_->start(in_flight_.path, state.attributes(), deck::print_deck(deck_),
                         checkpoint::checkpoint_tensors(parameters_, optimizer_));
    });
  });
  return in_flight_.stall_seconds = watch.seconds();
}

std::optional<double> RunCheckpoints::advance_save(bool wait) {
  if (!background_ || !background_->in_flight()) return std::nullopt;
  try {
    if (wait)
      background_->wait();
    else if (!background_->advance())
      return std::nullopt;
  } catch (const IoError& error) {
    if (last_failed_)
      throw CollectiveError(error.code(),
                            fmt::format("{}; the last checkpoint failed, too", error.what()));
    last_failed_ = true;
    if (reporter_)
      reporter_->on(report::WarningEvent{
          .iteration = in_flight_.iteration,
          .message = fmt::format("no checkpoint: {}; training continues, and ends when the next "
                                 "one fails as well",
                                 error.what())});
    return std::nullopt;
  }
  last_failed_ = false;
  note_saved(in_flight_, /*background=*/true);
  return in_flight_.since_start.seconds();
}

void RunCheckpoints::finish_copies() {
  if (background_) background_->finish_copies();
}

void RunCheckpoints::delete_old() {
  if (!deletion_due_) return;
  deletion_due_ = false;
  if (!reporter_) return;
  try {
    checkpoint::retain(checkpoint_folder(deck_), deck_.checkpoint.keep,
                       [&](std::int64_t iteration) { return is_milestone(deck_, iteration); });
  } catch (const IoError& error) {
    // The file may belong to another user or be protected: no reason to stop training.
    reporter_->print(fmt::format("warning: {} (checkpoint.keep)", error.what()));
  }
}

}  // namespace trireme::train
