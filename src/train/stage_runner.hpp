// Runs micro-batches of a dataset through this rank's stage, and evaluates: the validation and
// test splits, and tasks on texts (evaluate.tasks), while a run trains and at its end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"
#include "data/dataset.hpp"
#include "deck/deck.hpp"
#include "device/timers.hpp"
#include "evaluate/tasks.hpp"
#include "model/stage/pipeline_stage.hpp"
#include "pipeline/schedule.hpp"
#include "report/reporter.hpp"
#include "train/run_state.hpp"
#include "train/training_log.hpp"

namespace trireme::train {

class PassObserver;

/// Summed over the whole global batch.
struct LossSum {
  double loss = 0.0;    ///< negative log-likelihood in nats
  double tokens = 0.0;  ///< labels that counted
  /// The same of sentence labels, for models with sentence classes.
  double sentence_loss = 0.0;
  double sentences = 0.0;
  double correct = 0.0;  ///< sentence labels that the model predicts; counted by evaluations alone

  LossSum& operator+=(const LossSum& other);
  /// Loss per token; 0 when no label counted.
  double mean() const { return tokens > 0.0 ? loss / tokens : 0.0; }
  /// Loss per sentence label; 0 when none counted.
  double sentence_mean() const { return sentences > 0.0 ? sentence_loss / sentences : 0.0; }
  /// Share of the sentence labels that the model predicts; 0 when none counted.
  double sentence_accuracy() const { return sentences > 0.0 ? correct / sentences : 0.0; }
};

/// The stage of this rank, fed with micro-batches of token ids.
class StageRunner final : public pipeline::StageWork {
 public:
  /// Makes the stage, with memory for `slots` micro-batches; `overlap` as of execute(). The groups,
  /// the backend and the parameters must outlive this.
  StageRunner(comm::Groups& groups, device::Backend& backend, const model::StageConfig& config,
              const model::ParameterStore& parameters, int slots, bool overlap = true);

  /// PipelineStage::set_master_weights().
  void set_master_weights(const std::function<Tensor(const std::string& name)>& find) {
    stage_.set_master_weights(find);
  }
  /// Calls `hooks` in all passes from now on.
  void set_hooks(model::ParameterHooks* hooks) { stage_.set_hooks(hooks); }
  /// Shows all training passes to `observer`, which are its hooks, too, and must outlive them.
  void set_observer(PassObserver* observer);
  /// Times all training passes from now on; null ends that. `timers` must outlive them.
  void set_timers(device::Timers* timers) { timers_ = timers; }

  /// Multiplies the loss of which train() adds the gradient; 1 at first.
  void set_loss_scale(double scale) { loss_scale_ = scale; }

  /// Forward and backward of the global batch that starts after `consumed` samples: adds the
  /// gradient of the mean over micro-batches of their mean loss per token, plus that per sentence
  /// label, to the parameters' gradients. Summed over data ranks only as far as the hooks do.
  /// Collective over all ranks. Throws as data::read_micro_batch(), on the ranks that read tokens.
  /// Reads nothing where `prefetcher` has the batch.
  LossSum train(const data::Dataset& dataset, const data::Sampler& sampler, std::int64_t consumed,
                const pipeline::StageSchedule& schedule,
                const data::BatchPrefetcher* prefetcher = nullptr);

  /// The largest logit of the tokens with labels of the batch that ran last. Collective over all
  /// ranks.
  double largest_logit();

  /// Whether this rank reads token ids of a batch.
  bool reads_tokens() const;

  /// Forward alone, without dropout. Collective over all ranks; throws as train().
  LossSum evaluate(const data::Dataset& dataset, const data::Sampler& sampler,
                   std::int64_t consumed);

  /// Reads what evaluate() would: throws as data::read_micro_batch(), on the ranks that read
  /// tokens.
  void check(const data::Dataset& dataset, const data::Sampler& sampler, std::int64_t consumed);

  /// Calls `observer` for the tokens of each micro-batch that evaluate() runs, in one or more
  /// parts, on the ranks of the last stage: with the batch and the number of its first sample.
  /// Empty: none.
  using ScoreObserver = std::function<void(const data::Batch& batch, std::int64_t first_sample,
                                           const evaluate::ScoredTokens& tokens)>;
  void observe_scores(ScoreObserver observer);

  /// The loss of every sample of `dataset`, each once, in micro-batches spread over the data ranks:
  /// on any layout the same samples. `progress` gets the number of samples done so far. Collective
  /// over all ranks; throws as train().
  LossSum evaluate_all(const data::Dataset& dataset,
                       const std::function<void(std::int64_t)>& progress = {});

  Tensor input(int slot) override { return stage_.input(slot); }
  Tensor output(int slot) override { return stage_.output(slot); }
  Tensor gradient(int which) override { return stage_.gradient(which); }
  void forward(const pipeline::Step& step) override;
  void backward(const pipeline::Step& step, const Tensor& gradient) override;
  void weight_gradient(const pipeline::Step& step) override;

 private:
  LossSum run(const data::Dataset& dataset, const data::Sampler& sampler, std::int64_t consumed,
              const pipeline::StageSchedule& schedule, bool training);
  /// Runs the pass of `step` as a range and times it, and apart from that what it waits for other
  /// ranks.
  template <typename Pass>
  void timed_pass(device::Phase phase, const char* name, const pipeline::Step& step,
                  const Pass& pass);
  /// The timers while a batch trains, else null.
  device::Timers* timers() const { return training_ ? timers_ : nullptr; }
  void run_forward(const pipeline::Step& step);
  void load(const pipeline::Step& step);
  /// Calls the observer with tokens from `first` on, which are in the head.
  void show_scores(const ScoreObserver& observer, std::int64_t first,
                   const model::Head::Activations& head);
  /// How many sentence labels of the micro-batch that was loaded last have the largest logit of
  /// their sample.
  double count_correct();
  /// The tensors of a micro-batch, until the next call.
  const data::Batch& read(int micro_batch);
  /// Counts a micro-batch's last pass through a chunk; whether no other comes in this batch.
  bool is_last_pass(int chunk) { return --passes_left_[chunk] == 0; }

  comm::Groups& groups_;
  device::Backend& backend_;
  model::PipelineStage stage_;
  std::int64_t micro_batch_size_, vocab_;
  int slots_;
  bool overlap_;
  device::Timers* timers_ = nullptr;
  PassObserver* observer_ = nullptr;
  // The batch under way.
  const data::Dataset* dataset_ = nullptr;
  data::Sampler sampler_;
  std::int64_t consumed_ = 0;
  const data::BatchPrefetcher* prefetcher_ = nullptr;
  bool training_ = true;
  double loss_scale_ = 1.0;
  std::vector<std::int64_t> passes_left_;  ///< micro-batches yet to leave each chunk
  const data::Batch* current_ = nullptr;   ///< the micro-batch that was loaded last
  data::Batch batch_;                      ///< a micro-batch that was not prefetched
  double tokens_ = 0.0;                    ///< counted labels of the micro-batch loaded last
  double tokens_sum_ = 0.0;
  double sentences_ = 0.0;  ///< the same of sentence labels
  double sentences_sum_ = 0.0;
  int micro_batch_ = 0;  ///< the one that was loaded last
  double correct_sum_ = 0.0;
};

// ---- evaluations

/// Scores a task with the weights of `runner`, each sample once on any layout. `progress` gets the
/// number of samples done. Collective over all ranks, which return the same.
struct TaskScore {
  LossSum sum;
  std::vector<evaluate::Metric> metrics;
};
TaskScore score_task(const evaluate::Task& task, StageRunner& runner, comm::Groups& groups,
                     const std::function<void(std::int64_t)>& progress = {});

/// The deck's tasks, their files tokenized.
class TaskEvaluations {
 public:
  /// Reads the files, on every rank. Throws as evaluate::make_task(), naming evaluate.tasks.
  TaskEvaluations(const deck::Deck& deck, comm::Groups& groups);

  std::size_t size() const { return tasks_.size(); }
  /// What logs call the task: as evaluate::task_labels().
  const std::string& label(std::size_t i) const { return tasks_[i].label; }
  const std::optional<deck::Length>& every(std::size_t i) const { return tasks_[i].every; }
  std::int64_t samples(std::size_t i) const { return tasks_[i].task->dataset().samples(); }
  /// The metrics of task `i`, the most important first; `progress` as of score_task(). Collective
  /// over all ranks.
  std::vector<std::pair<std::string, double>> evaluate(
      std::size_t i, StageRunner& runner, const std::function<void(std::int64_t)>& progress = {});

 private:
  struct Entry {
    std::string label;
    std::optional<deck::Length> every;
    std::unique_ptr<const evaluate::Task> task;
  };
  comm::Groups& groups_;
  std::vector<Entry> tasks_;
};

/// The evaluations of a run, all collective over its ranks.
class Evaluations {
 public:
  /// Reads the tasks' files. `sampler` is that of batch.global, `reporter` null but on rank 0. All
  /// must outlive this. Throws as TaskEvaluations.
  Evaluations(const deck::Deck& deck, const deck::BatchSizes& batches, const data::Sampler& sampler,
              comm::Groups& groups, StageRunner& runner, TrainingLog& log,
              report::Reporter* reporter);
  /// Adds the dataset of a split that the deck evaluates: `valid` or `test`.
  void add(data::Split split, std::unique_ptr<const data::Dataset> dataset);

  const TaskEvaluations& tasks() const { return tasks_; }
  /// Reads the data of the evaluation of the validation split, if one is due after the iteration
  /// that follows `state`, which must not be the end of the run. Throws as StageRunner::check() and
  /// Dataset::require_unchanged().
  void check_next(const RunState& state);

  /// Calls `visit` after each batch that is evaluated, on all ranks.
  void after_each_batch(std::function<void()> visit) { after_batch_ = std::move(visit); }
  /// Runs those that are due after the iteration that took the run from `before` to `state`.
  void run_due(const RunState& state, const deck::Progress& before);
  /// Runs those at the end of the run, without those that were just due. False where a loss is not
  /// finite.
  bool run_at_end(const RunState& state, const deck::Progress& before);

 private:
  /// How many evaluations of the validation split have been due so far.
  std::int64_t count(const RunState& state) const;
  /// Evaluates on the evaluate.iterations batches that follow on those of `earlier` evaluations;
  /// returns the loss, and warns where it is not finite.
  double run(const RunState& state, data::Split split, const data::Dataset& dataset,
             std::int64_t earlier, bool at_end);
  void run_tasks(const RunState& state, const deck::Progress& before, bool at_end);

  const deck::Deck& deck_;
  const deck::BatchSizes& batches_;
  const data::Sampler& sampler_;
  StageRunner& runner_;
  TrainingLog& log_;
  report::Reporter* reporter_;
  TaskEvaluations tasks_;
  std::function<void()> after_batch_ = [] {};
  std::unique_ptr<const data::Dataset> valid_, test_;  ///< null: not evaluated
  std::shared_ptr<comm::Watchdog> watchdog_ = comm::Watchdog::shared();
};

/// Reads the files of the deck's tasks and returns a line for each. Throws as TaskEvaluations.
std::vector<std::string> check_tasks(const deck::Deck& deck);

}  // namespace trireme::train
