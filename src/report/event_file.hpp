// TensorBoard event files, without protobuf: TFRecord framing around hand-encoded Event messages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "report/output_file.hpp"

namespace trireme::report {

/// One event file. Its first record names the format ("brain.Event:2").
class EventFile {
 public:
  /// Makes events.out.tfevents.<time>.<host>.<pid> in `folder`. Records reach the file after every
  /// `flush_every` scalars and at the end. Throws IoError; InternalError unless flush_every >= 1.
  EventFile(const std::filesystem::path& folder, std::int64_t flush_every);

  /// Tells TensorBoard that a run begins, or goes on, with `step`: what older files of the folder
  /// hold from that step on is no longer shown. Flushes. `time` in seconds since 1970. Throws
  /// IoError.
  void begin_at(std::int64_t step, double time);

  /// One point of the curve `tag`, `time` in seconds since 1970. Throws IoError.
  void scalar(std::string_view tag, std::int64_t step, double value, double time);

  /// Hands everything to the operating system. Throws IoError.
  void flush();

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void record(std::string_view event);

  OutputFile file_;
  std::int64_t flush_every_;
  std::int64_t unflushed_ = 0;
};

}  // namespace trireme::report
