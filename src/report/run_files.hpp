// The files that a run appends to while people and programs read them: lines of text, TensorBoard
// events, without protobuf (TFRecord framing around hand-encoded Event messages), and Prometheus's
// newest values.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deck/deck.hpp"
#include "report/metrics.hpp"

namespace trireme::report {

/// An append-only file that closes itself. What it cannot take, because a disk is full, stays in
/// memory: the next flush() begins with it.
class OutputFile {
 public:
  enum class Mode {
    fresh,      ///< truncates an existing file
    resume,     ///< appends to an existing file
    exclusive,  ///< the file must not exist
  };

  /// Opens `path`, creating its folder when absent. Throws IoError.
  OutputFile(const std::filesystem::path& path, Mode mode);
  OutputFile(OutputFile&&) = default;
  OutputFile& operator=(OutputFile&&) = default;
  /// Flushes; what cannot be written then is lost.
  ~OutputFile();

  /// Appends `bytes`; they may stay in memory until `flush`. Throws IoError.
  void write(std::string_view bytes);

  /// Passes all bytes to the operating system. Throws IoError.
  void flush();

  /// Writes `text` and a newline, and flushes. Throws IoError.
  void line(std::string_view text);

  const std::filesystem::path& path() const { return path_; }
  /// Bytes that are in memory alone.
  std::size_t unwritten() const { return unwritten_.size(); }

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Closer> file_;
  std::string unwritten_;
};

/// One event file. Its first record names the format ("brain.Event:2").
class EventFile {
 public:
  /// Makes events.out.tfevents.<time>.<host>.<pid> in `folder`. Records reach the file after every
  /// `flush_every` scalars and at the end. Throws IoError; InternalError unless flush_every >= 1.
  EventFile(const std::filesystem::path& folder, std::int64_t flush_every);

  /// Tells TensorBoard that a run begins or resumes with `step`: points of older files from that
  /// step on are no longer shown. Flushes. `time` in seconds since 1970. Throws IoError.
  void begin_at(std::int64_t step, double time);

  /// One point of the curve `tag`, `time` in seconds since 1970. Throws IoError.
  void scalar(std::string_view tag, std::int64_t step, double value, double time);

  /// Passes all bytes to the operating system. Throws IoError.
  void flush();

  const std::filesystem::path& path() const { return file_.path(); }
  /// Bytes that are in memory alone.
  std::size_t unwritten() const { return file_.unwritten(); }

 private:
  void record(std::string_view event);

  OutputFile file_;
  std::int64_t flush_every_;
  std::int64_t unflushed_ = 0;
};

// The newest values of a run in Prometheus's text format, for node_exporter's textfile collector.

/// A file that is replaced at every event. Each value has the label `run`; values that are not
/// known are left out.
class PrometheusFile {
 public:
  /// `run` is the run's name.
  PrometheusFile(std::filesystem::path path, std::string run);

  /// Takes the values of an event, and replaces the file. False where it cannot be written.
  bool on(const StartEvent& event, double time);
  bool on(const TrainEvent& event, double time);
  bool on(const RewindEvent& event, double time);
  bool on(const EvalEvent& event, double time);
  bool on(const TaskEvent& event, double time);
  bool on(const CheckpointEvent& event, double time);
  bool on(const MemoryEvent& event, double time);
  bool on(const GpuEvent& event, double time);
  bool on(const StopEvent& event, double time);

  /// What is written: for each metric its help, its type and its values.
  std::string text() const;

 private:
  /// Sets trireme_<name>, with `labels` such as split="valid" and the run's.
  void set(const std::string& name, double value, const std::string& labels = "");
  bool write(double time);

  std::filesystem::path path_;
  std::string run_;                                              ///< the label
  std::map<std::string, std::map<std::string, double>> values_;  ///< by metric, then by labels
};

/// A string as a label's value, quoted.
std::string prometheus_label(std::string_view value);

// TensorBoard curves: the events of metrics.jsonl under the tags of a dialect.

/// One point of the curve `tag`.
struct Point {
  std::string tag;
  std::int64_t x = 0;
  double y = 0;
  bool operator==(const Point&) const = default;
};

/// Converts a run's events, in their order, to points.
class Curves {
 public:
  virtual ~Curves() = default;

  /// The points of an event, in the order in which they are written; none where the dialect does
  /// not have it. Absent values make no point.
  virtual std::vector<Point> of(const StartEvent&) { return {}; }
  virtual std::vector<Point> of(const TrainEvent& event) = 0;
  virtual std::vector<Point> of(const EvalEvent& event) = 0;
  /// In every dialect tasks/<task>/<metric>, over iterations.
  std::vector<Point> of(const TaskEvent& event) const;
  virtual std::vector<Point> of(const TimersEvent& event) = 0;
  virtual std::vector<Point> of(const MemoryEvent&) { return {}; }
  virtual std::vector<Point> of(const CheckpointEvent&) { return {}; }
};

/// The tags of this program:
///   train/loss, with a sentence head train/sentence_loss, train/grad_norm, train/learning_rate,
///   train/loss_scale, train/global_batch,
///   train/iteration_ms, train/tokens_per_second, train/model_tflops_per_rank, train/mfu,
///   train/consumed_samples, train/consumed_tokens, train/skipped, train/nan, and with log.norms
///   train/parameter_norm, train/gradient_zeros, train/largest_logit, with log.norms: layers
///   norms/<part>/{gradient,update,parameters} of layers/<i>, embedding, head  (TrainEvent)
///   <split>/loss, <split>/perplexity, with a sentence head
///   <split>/sentence_loss, <split>/sentence_accuracy                          (EvalEvent)
///   timers/<timer>_ms, of the slowest rank                                    (TimersEvent)
///   memory/resident_bytes, memory/peak_bytes, memory/gpu_bytes                (MemoryEvent)
///   checkpoint/seconds                                                        (CheckpointEvent)
/// The x axis of all of them is the iteration.
std::unique_ptr<Curves> trireme_curves();

/// Megatron-LM's tags of 2023:
///   learning-rate, batch-size, lm loss, with a sentence head sop loss, loss-scale, world-size,
///   grad-norm, and with log.norms
///   num-zeros, params-norm; each also as '<tag> vs samples'                   (TrainEvent)
///   iteration-time, in seconds                                                (TrainEvent)
///   lm loss validation, lm loss validation ppl, with a sentence head the same of sop loss;
///   each also ' vs samples'                                                   (EvalEvent)
///   <timer>-time, in seconds, of the slowest rank                             (TimersEvent)
/// The x axis is the iteration, or the consumed samples. Points are
/// log.every iterations apart, as training lines. Omitted: the test split, which Megatron-LM adds
/// to the validation curve, and its command line as text, which this program does not have.
std::unique_ptr<Curves> megatron_curves();

/// The tags of BigScience's Megatron-DeepSpeed:
///   steps-vs-samples/y=steps,x=samples, steps-vs-samples/y=samples,x=steps, the same with tokens
///   learning-rate/learning-rate, loss-scale/loss-scale, grad-norm/grad-norm, and with log.norms
///   num-zeros/num-zeros, params-norm/params-norm; each also ' vs samples' and ' vs tokens'
///   batch-size/batch-size, also ' vs samples'
///   lm-loss-training/lm loss, with a sentence head lm-loss-training/sop loss, also ' vs samples',
///   ' vs tokens' and
///   ' vs gigaflos (without embeddings)'
///   iteration-time/iteration-time, in seconds, also ' vs samples' and ' vs tokens'
///   iteration-time/samples per second, iteration-time/tokens per second; each also ' per replica'
///   iteration-time/TFLOPs per gpu (estimated)                                 (TrainEvent)
///   lm-loss-validation/lm loss validation, ... validation ppl; each also ' vs samples', ' vs
///   tokens' and ' vs gigaflos (without embeddings)'; of the test split under
///   lm-loss-validation/test                                                   (EvalEvent)
///   time/<timer>-time, in seconds, of the slowest rank                        (TimersEvent)
///   iteration-time/world_size: at every start the ranks, then 0               (StartEvent)
/// A gigaflo is 6 * tokens * parameters without embeddings / 1e9. The estimate of TFLOPs is
/// BigScience's own: 24 * (4 with full recomputation, else 3) * B s l h^2 (1 + s / (6 h) + V / (16
/// l h)); it counts causal attention in full, unlike the console's figure. Omitted: the sequence
/// length of a curriculum, which this program does not have, and the command line as text.
std::unique_ptr<Curves> bigscience_curves();

/// The curves of log.tensorboard.dialect.
std::unique_ptr<Curves> make_curves(deck::TensorboardDialect dialect);

}  // namespace trireme::report
