// What people see: Megatron-LM's log lines, on standard output and in console.log.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "report/metrics.hpp"
#include "report/output_file.hpp"

namespace trireme::report {

/// Megatron-LM's training line, byte for byte, followed by tokens per second, TFLOP/s, MFU ("-"
/// when the device's peak is not known) and the time left until `total_iterations`.
std::string training_line(const TrainEvent& event, std::int64_t total_iterations);

/// Megatron-LM's validation line between its two rules of dashes: three lines.
std::string validation_lines(const EvalEvent& event);

/// One line each for the other events.
std::string start_line(const StartEvent& event);
std::string checkpoint_line(const CheckpointEvent& event);
std::string memory_line(const MemoryEvent& event);
std::string stop_line(const StopEvent& event);

/// Prints to standard output and to console.log, flushed line by line.
class Console {
 public:
  /// Opens the file at `path`. Throws IoError.
  Console(const std::filesystem::path& path, OutputFile::Mode mode) : log_(path, mode) {}

  /// Prints `text`, which may have several lines, and a newline. Throws IoError when the file
  /// cannot be written; a closed standard output is no error.
  void print(std::string_view text);

 private:
  OutputFile log_;
};

}  // namespace trireme::report
