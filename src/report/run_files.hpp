// The files that a run appends to while people and programs read them: lines of text, and
// TensorBoard events, without protobuf (TFRecord framing around hand-encoded Event messages).
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "report/metrics.hpp"

namespace trireme::report {

/// An append-only file that closes itself.
class OutputFile {
 public:
  enum class Mode {
    fresh,      ///< truncates an existing file
    resume,     ///< appends to an existing file
    exclusive,  ///< the file must not exist
  };

  /// Opens `path`, creating its folder when absent. Throws IoError.
  OutputFile(const std::filesystem::path& path, Mode mode);

  /// Appends `bytes`; they may stay in memory until `flush`. Throws IoError.
  void write(std::string_view bytes);

  /// Passes all bytes to the operating system. Throws IoError.
  void flush();

  /// Writes `text` and a newline, and flushes. Throws IoError.
  void line(std::string_view text);

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Closer> file_;
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
  bool on(const EvalEvent& event, double time);
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

}  // namespace trireme::report
