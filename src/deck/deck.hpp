// The deck as the program sees it: one struct per section, each member named exactly like its key.
//
// A Deck is made by load() or parse() (load.hpp), which leave every default filled in and every
// value checked. Keys whose feature is not built have no member: setting them is an error. Units,
// ranges, defaults and one line of help for every key are in one table (schema.hpp, keys/).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deck/choices.hpp"
#include "deck/model.hpp"

namespace trireme::deck {

struct Run {
  std::string name;
  std::string output;
  std::int64_t seed = 0;
  Device device{};  ///< never `automatic` in a loaded deck: see LoadOptions
  bool deterministic = false;
  bool mixed_gpus = false;

  bool operator==(const Run&) const = default;
};

struct Overlap {
  bool gradients = false;
  bool parameters = false;
  bool pipeline = false;

  bool operator==(const Overlap&) const = default;
};

struct Parallel {
  std::int64_t tensor = 0;
  std::int64_t pipeline = 0;
  std::optional<std::int64_t> data;                    ///< unset (`auto`) until resolve_world_size
  std::optional<std::vector<std::int64_t>> partition;  ///< unset (`auto`): layers_per_stage()
  PipelineSchedule schedule{};
  std::int64_t interleave = 0;
  bool sequence = false;
  std::int64_t zero = 0;
  std::int64_t bucket = 0;
  Overlap overlap;

  bool operator==(const Parallel&) const = default;
};

/// All of it set, or nothing.
struct Rampup {
  std::optional<std::int64_t> start;
  std::optional<std::int64_t> step;
  std::optional<std::int64_t> samples;

  bool operator==(const Rampup&) const = default;
};

struct Batch {
  std::int64_t micro = 0;
  std::int64_t global = 0;
  Rampup rampup;

  bool operator==(const Batch&) const = default;
};

struct Tokenizer {
  std::optional<TokenizerType> type;
  std::optional<std::string> vocab;
  std::optional<std::string> merges;
  std::optional<std::string> model;
  std::optional<bool> lowercase;

  bool operator==(const Tokenizer&) const = default;
};

/// One dataset, or several that are mixed.
struct Datasets {
  std::vector<std::string> names;  ///< prefixes or names of data.corpora, at least one
  std::vector<double> weights;     ///< one for each name, or none

  bool operator==(const Datasets&) const = default;
};

/// Names for datasets.
struct Corpora {
  std::map<std::string, std::string, std::less<>> prefixes;  ///< by name

  bool operator==(const Corpora&) const = default;
};

/// How samples of model.family = bert are made. Every member is unset for another family, and
/// unless noted always set for bert.
struct BertData {
  std::optional<BertDialect> dialect;
  std::optional<double> mask_probability;       ///< unset: tfrecord, whose samples are masked
  std::optional<std::int64_t> max_predictions;  ///< unset: as many as mask_probability gives
  std::optional<std::int64_t> max_ngram;        ///< unset: v0 and tfrecord
  std::optional<double> short_sequence;         ///< unset: tfrecord
  std::optional<SentenceTask> sentence_task;

  bool operator==(const BertData&) const = default;
};

struct Data {
  std::optional<Datasets> train;  ///< set where the program needs data (LoadOptions)
  std::optional<Datasets> valid;  ///< unset: a part of train
  std::optional<Datasets> test;   ///< unset: a part of train
  std::vector<double> split;      ///< weights of train, valid and test in data.train
  std::int64_t seed = 0;
  Tokenizer tokenizer;
  std::optional<Corpora> corpora;
  std::optional<std::string> index_cache;
  std::optional<std::string> index_files;
  bool reset_positions = false;
  bool reset_attention = false;
  bool eod_loss = false;
  BertData bert;

  bool operator==(const Data&) const = default;
};

/// Iterations from `first` to `last`, both included.
struct IterationRange {
  std::int64_t first = 0;
  std::int64_t last = 0;

  bool operator==(const IterationRange&) const = default;
};

/// Checks for silent data corruption: wrong results without an error.
struct Verify {
  std::optional<std::int64_t> step_every;     ///< iterations between passes that run twice
  std::optional<std::int64_t> weights_every;  ///< iterations between comparisons of replicas
  std::optional<std::string> inject;          ///< a bit flip, for tests

  bool operator==(const Verify&) const = default;
};

/// Iterations whose loss or gradient norm is far above those before: their updates are skipped, or
/// the run resumes from an earlier checkpoint with later data. Set only where `above` is.
struct Spike {
  std::optional<double> above;         ///< standard deviations over the mean of the window
  std::optional<std::int64_t> window;  ///< iterations
  std::optional<std::int64_t> limit;   ///< spikes of a run that are handled
  std::optional<std::int64_t> back;    ///< checkpoints to go back; unset: the update is skipped
  std::optional<std::int64_t> skip;    ///< iterations of data that are skipped; unset: to the spike

  bool operator==(const Spike&) const = default;
};

struct Train {
  std::optional<std::int64_t> iterations;  ///< exactly one of iterations and samples is set
  std::optional<std::int64_t> samples;
  std::optional<Length> exit_interval;
  std::optional<Length> exit_duration;
  std::optional<std::string> kill_switch;
  std::vector<IterationRange> skip;  ///< in order, without overlaps
  std::int64_t diverged_after = 0;   ///< bad iterations in a row that stop the run
  Verify verify;
  Spike spike;

  bool operator==(const Train&) const = default;
};

/// A task on a text, evaluated during training.
struct EvaluationTask {
  std::string name;             ///< such as lambada
  std::string file;             ///< the texts or questions
  std::optional<Length> every;  ///< unset: evaluate.every

  bool operator==(const EvaluationTask&) const = default;
};

struct Evaluate {
  std::optional<Length> every;
  std::int64_t iterations = 0;
  bool at_end = false;
  std::vector<EvaluationTask> tasks;

  bool operator==(const Evaluate&) const = default;
};

/// Checkpoints on disks of the nodes.
struct LocalCheckpoint {
  std::optional<std::string> path;
  std::optional<Length> every;
  bool partner = false;  ///< each node keeps a copy of another's file

  bool operator==(const LocalCheckpoint&) const = default;
};

struct Checkpoint {
  std::optional<Length> every;
  bool at_end = false;
  std::optional<std::int64_t> keep;  ///< unset: all
  std::optional<Length> keep_every;
  std::optional<bool> async;  ///< unset: where host memory allows
  std::optional<std::int64_t> stripes;
  std::optional<std::int64_t> compression;  ///< level of deflate; unset: not compressed
  LocalCheckpoint local;
  std::optional<std::string> load;

  bool operator==(const Checkpoint&) const = default;
};

struct Tensorboard {
  bool enable = false;
  TensorboardDialect dialect{};
  std::int64_t flush_every = 0;

  bool operator==(const Tensorboard&) const = default;
};

struct Comm {
  Length timeout;
  std::optional<std::string> nccl_debug;

  bool operator==(const Comm&) const = default;
};

/// Recording of timelines.
struct Trace {
  std::vector<IterationRange> iterations;  ///< in order, without overlaps

  bool operator==(const Trace&) const = default;
};

struct Log {
  std::int64_t every = 0;
  Tensorboard tensorboard;
  bool timers = false;
  bool memory = false;
  LogNorms norms{};
  std::optional<std::int64_t> gpu_every;
  bool rank_files = false;
  ConsoleLine console{};  ///< of training lines on a terminal
  std::optional<std::string> prometheus;
  Trace trace;

  bool operator==(const Log&) const = default;
};

/// Shell commands that rank 0 runs while training continues.
struct Hooks {
  std::optional<std::string> checkpoint, stop, fault;
  Length timeout;

  bool operator==(const Hooks&) const = default;
};

/// Nodes that are alike; written "2*a10:4", two nodes with four A10s each.
struct NodeKind {
  std::optional<std::int64_t> nodes;  ///< unset: as many as the run needs
  std::string gpu;                    ///< Slurm's name of the GPU's type; "" for any
  std::int64_t gpus = 0;              ///< per node; 0: the ranks compute on CPUs

  bool operator==(const NodeKind&) const = default;
};

/// Where jobs run: read by --print-job and 'trireme-sweep --submit' alone.
struct Cluster {
  std::optional<std::vector<NodeKind>> kinds;
  std::optional<std::string> partition;
  std::optional<std::string> account;
  std::optional<std::string> image;
  std::optional<std::string> modules;
  std::optional<Length> time;

  bool operator==(const Cluster&) const = default;
};

struct Deck {
  Run run;
  Model model;
  Parallel parallel;
  Batch batch;
  Precision precision;
  Recompute recompute;
  Optimizer optimizer;
  Schedule schedule;
  Data data;
  Train train;
  Evaluate evaluate;
  Checkpoint checkpoint;
  Comm comm;
  Log log;
  Hooks hooks;
  Cluster cluster;

  bool operator==(const Deck&) const = default;
};

/// Iterations of the whole run. A last batch that train.samples does not fill is dropped.
std::int64_t total_iterations(const Deck& deck);

/// Samples of all iterations of the run.
std::int64_t total_samples(const Deck& deck);

/// `length` in iterations from the start of the run, rounded up. `length` must not be a time.
std::int64_t in_iterations(const Length& length, const Deck& deck);

/// `length`, from the start of the run, in samples. A fraction is of schedule.decay, rounded down;
/// `length` must not be a time.
std::int64_t in_samples(const Length& length, const Deck& deck);

/// `length`, which must be a time, in seconds.
double in_seconds(const Length& length);

/// The weights of the parts of data.train: data.split without those that have datasets of their
/// own, and so no part in data.train.
std::vector<double> effective_split(const Deck& deck);

/// Whether there is data for validation: its own datasets or a part of data.train.
bool has_valid_part(const Deck& deck);

/// Whether there is data for tests: its own datasets or a part of data.train.
bool has_test_part(const Deck& deck);

/// Whether the loss scale follows overflows: that of fp16, unless the deck gives a number.
bool is_dynamic(const Precision& precision);

/// Transformer layers of each pipeline stage: parallel.partition; where it is `auto` equal numbers,
/// or, if the stages do not divide the layers, nearly equal FLOPs, the head's counted.
std::vector<std::int64_t> layers_per_stage(const Deck& deck);

// ---- how many samples each iteration of a run takes: a constant, or a growing number in a ramp-up

/// How far a run has come.
struct Progress {
  std::int64_t iteration = 0;
  std::int64_t samples = 0;  ///< that these iterations have taken

  bool operator==(const Progress&) const = default;
};

/// The size of the global batch as a function of the samples that a run has taken. With
/// batch.rampup it is start + k * step after k of the (global - start) / step equal parts of the
/// ramp's samples, and batch.global as soon as more than those are taken. Source: Megatron-LM's
/// --rampup-batch-size, whose floating-point arithmetic decides at the borders of the parts.
class BatchSizes {
 public:
  /// A ramp-up that the deck's checks refuse counts as none, as does a size below 1 as 1.
  explicit BatchSizes(const Batch& batch);

  /// Samples of the iteration that follows on `samples`.
  std::int64_t at(std::int64_t samples) const;

  /// `iterations` further than `from`.
  Progress advance(const Progress& from, std::int64_t iterations) const;

  /// As few iterations further than `from` as take the run to `samples` or more.
  Progress reach(const Progress& from, std::int64_t samples) const;

  /// As many iterations further than `from` as fit into `samples`: what does not fill a batch is
  /// left over.
  Progress fill(const Progress& from, std::int64_t samples) const;

  /// How often a fresh run `reaches` a multiple of `every` up to `now`.
  std::int64_t times_reached(const Length& every, const Progress& now) const;

 private:
  /// Iterations of one size in a row.
  struct SizeRange {
    std::int64_t batch;
    std::int64_t iterations;
  };
  SizeRange size_range(std::int64_t samples) const;
  std::int64_t step_at(std::int64_t samples) const;
  /// Advances by `limit(now, batch)` iterations, computed anew wherever the size changes.
  template <typename Limit>
  Progress walk(Progress now, Limit limit) const;

  std::int64_t largest_;
  std::int64_t start_;           ///< the first size; largest_ where there is no ramp-up
  std::int64_t step_ = 0;        ///< growth
  std::int64_t steps_ = 0;       ///< how often it grows
  std::int64_t ramp_ = -1;       ///< samples of the ramp-up
  double samples_per_step_ = 1;  ///< need not be whole
};

/// Whether a run that advances from `before` to `now` reaches a multiple of `every`, which is a
/// number of iterations or of samples.
bool reaches(const Length& every, const Progress& before, const Progress& now);

/// Where a run of `deck` ends that resumes at `from`: after train.iterations, or where no whole
/// batch is left of train.samples.
Progress end_of_run(const Deck& deck, const Progress& from = {});

}  // namespace trireme::deck
