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

namespace trireme::deck {

/// What a Length counts. A fraction is of schedule.decay.
enum class Unit { iterations, samples, seconds, minutes, hours, fraction };

constexpr auto names_of(Unit) {
  return std::to_array<std::string_view>(
      {"iterations", "samples", "seconds", "minutes", "hours", "fraction"});
}

/// A number with its unit, such as `2000 iterations` or `90 minutes`. A bare number of the deck has
/// already got the unit that `train` counts in.
struct Length {
  double value = 0;
  Unit unit = Unit::iterations;

  bool operator==(const Length&) const = default;
};

struct Run {
  std::string name;
  std::string output;
  std::int64_t seed = 0;
  Device device{};  ///< never `automatic` in a loaded deck: see LoadOptions
  bool deterministic = false;
  bool mixed_gpus = false;

  bool operator==(const Run&) const = default;
};

struct Dropout {
  double attention = 0;
  double hidden = 0;

  bool operator==(const Dropout&) const = default;
};

/// Keys that only model.family = bert has: set for bert, unset for another family.
struct BertModel {
  std::optional<bool> binary_head;
  std::optional<bool> post_norm;
  std::optional<bool> deep_init;

  bool operator==(const BertModel&) const = default;
};

/// Rotary positions, which only model.family = llama has. Those below `scaling` are set only with
/// one.
struct Position {
  std::optional<double> theta;
  std::optional<PositionScaling> scaling;
  std::optional<double> factor;
  std::optional<std::int64_t> original;  ///< tokens
  std::optional<double> low;
  std::optional<double> high;

  bool operator==(const Position&) const = default;
};

/// Maximal update parametrization: set only where `base` is.
struct Mup {
  std::optional<std::int64_t> base;       ///< the hidden width that rates were tuned at
  std::optional<std::int64_t> base_head;  ///< elements of a head there

  bool operator==(const Mup&) const = default;
};

struct Model {
  Family family{};
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t ffn = 0;
  std::int64_t sequence = 0;
  std::int64_t positions = 0;
  std::optional<std::int64_t> vocab;  ///< unset: the tokenizer's
  Dropout dropout;
  double init_std = 0;
  double layernorm_eps = 0;
  bool embedding_layernorm = false;
  bool tie_embeddings = false;
  double z_loss = 0;  ///< coefficient; 0: none
  Mup mup;
  BertModel bert;
  // Of model.family = llama alone: set for llama, unset for another family.
  std::optional<std::int64_t> kv_heads;
  std::optional<std::int64_t> head_dim;
  std::optional<GatedActivation> activation;
  std::optional<NormPlacement> norm_placement;
  std::optional<QkNorm> qk_norm;
  std::optional<LinearBias> bias;
  std::optional<std::int64_t> window;  ///< tokens; unset: attention to all earlier tokens
  Position position;

  /// Elements of an attention head; 0 without heads.
  std::int64_t head_size() const { return head_dim.value_or(heads > 0 ? hidden / heads : 0); }

  bool operator==(const Model&) const = default;
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

/// Those but `value` are set only where the scale is dynamic: see is_dynamic.
struct LossScale {
  std::optional<double> value;  ///< unset: `dynamic`
  std::optional<LossScaleDialect> dialect;
  std::optional<double> initial;
  std::optional<std::int64_t> window;
  std::optional<std::int64_t> hysteresis;
  std::optional<double> minimum;

  bool operator==(const LossScale&) const = default;
};

/// Set only where precision.gemm is fp8.
struct Fp8 {
  std::optional<Fp8Recipe> recipe;
  std::optional<Fp8Type> forward;
  std::optional<Fp8Type> backward;
  std::optional<std::int64_t> first_layers;  ///< that stay in precision.compute
  std::optional<std::int64_t> last_layers;

  bool operator==(const Fp8&) const = default;
};

struct Precision {
  Compute compute{};
  GemmPrecision gemm{};
  Fp8 fp8;
  GradientPrecision gradients{};
  LossScale loss_scale;

  bool operator==(const Precision&) const = default;
};

struct Recompute {
  Granularity granularity{};
  std::optional<RecomputeMethod> method;  ///< set for full alone, as is `layers`
  std::optional<std::int64_t> layers;
  bool partition = false;
  bool offload = false;
  bool contiguous = false;

  bool operator==(const Recompute&) const = default;
};

/// Factors of a hyperparameter for each group of parameters.
struct GroupFactors {
  double embedding = 1;
  double matrices = 1;  ///< of layers
  double head = 1;
  double vectors = 1;  ///< biases and norms

  bool operator==(const GroupFactors&) const = default;
};

/// Set for optimizer.type muon alone.
struct Muon {
  std::optional<MuonScale> scale;
  std::optional<bool> nesterov;

  bool operator==(const Muon&) const = default;
};

struct Optimizer {
  OptimizerType type{};
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  std::optional<double> momentum;  ///< set for sgd and muon alone
  Muon muon;
  double weight_decay = 0;
  GroupFactors rate;   ///< of the learning rate
  GroupFactors decay;  ///< of the weight decay
  double clip = 0;     ///< 0: no clipping

  bool operator==(const Optimizer&) const = default;
};

struct WeightDecay {
  double end = 0;
  RampType type{};

  bool operator==(const WeightDecay&) const = default;
};

/// Set for schedule.type lr-range-test alone.
struct RangeTest {
  std::optional<Length> step;
  std::optional<double> rate;
  std::optional<bool> staircase;

  bool operator==(const RangeTest&) const = default;
};

/// Set only with schedule.type = wsd.
struct Wsd {
  std::optional<Length> decay;  ///< of the last part; a fraction is of schedule.decay
  std::optional<WsdShape> shape;

  bool operator==(const Wsd&) const = default;
};

struct Schedule {
  ScheduleType type{};
  ScheduleDialect dialect{};
  std::optional<double> peak;  ///< set but for a range test
  double minimum = 0;
  Length warmup;
  Length decay;
  WeightDecay weight_decay;
  RangeTest range_test;
  Wsd wsd;

  bool operator==(const Schedule&) const = default;
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

/// Iterations whose loss or gradient norm is far above those before, and whose updates are skipped.
/// Set only where `above` is.
struct Spike {
  std::optional<double> above;         ///< standard deviations over the mean of the window
  std::optional<std::int64_t> window;  ///< iterations
  std::optional<std::int64_t> limit;   ///< updates skipped in a run

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

}  // namespace trireme::deck
