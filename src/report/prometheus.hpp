// The newest values of a run in Prometheus's text format, for node_exporter's textfile collector.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "report/metrics.hpp"

namespace trireme::report {

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
