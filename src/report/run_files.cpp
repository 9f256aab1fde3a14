#include "report/run_files.hpp"

#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>

#include "core/clock.hpp"
#include "core/content_hash.hpp"
#include "core/error.hpp"

namespace trireme::report {
namespace {

/// The low `bytes` bytes of `value`, least significant first.
std::string little_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
  return out;
}

// -- Protocol-buffer fields: a key (field number and wire type), then the value ------------------

enum class Wire { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
  return out;
}

std::string key(int field, Wire wire) {
  return varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
}

std::string field_varint(int field, std::int64_t value) {
  return key(field, Wire::varint) + varint(static_cast<std::uint64_t>(value));
}

std::string field_double(int field, double value) {
  return key(field, Wire::fixed64) + little_endian(std::bit_cast<std::uint64_t>(value), 8);
}

std::string field_float(int field, float value) {
  return key(field, Wire::fixed32) + little_endian(std::bit_cast<std::uint32_t>(value), 4);
}

std::string field_bytes(int field, std::string_view value) {
  return key(field, Wire::bytes).append(varint(value.size())).append(value);
}

// -- Messages of TensorFlow's event.proto and summary.proto ---------------------------------------

constexpr int kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
              kEventSessionLog = 7;
constexpr int kSummaryValue = 1, kValueTag = 1, kValueSimpleValue = 2;
constexpr int kSessionLogStatus = 1, kSessionLogStart = 1;

/// Files of one process and second differ in a count, which the first goes without.
std::string new_file_name() {
  static std::atomic<int> made = 0;
  const int before = made++;
  char host[HOST_NAME_MAX + 1] = "localhost";
  ::gethostname(host, HOST_NAME_MAX);
  const std::string name = fmt::format("events.out.tfevents.{:010d}.{}.{}",
                                       static_cast<std::int64_t>(unix_time()), host, ::getpid());
  return before == 0 ? name : fmt::format("{}.{}", name, before);
}

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path, Mode mode) : path_(path) {
  if (path.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error)
      throw IoError("cannot make folder '{}': {}", path.parent_path().string(), error.message());
  }
  const char* flags = mode == Mode::fresh ? "wbe" : mode == Mode::resume ? "abe" : "wbxe";
  file_.reset(std::fopen(path.c_str(), flags));
  if (!file_) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
}

void OutputFile::write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size())
    throw IoError("cannot write '{}': {}", path_.string(), std::strerror(errno));
}

void OutputFile::flush() {
  if (std::fflush(file_.get()) != 0)
    throw IoError("cannot write '{}': {}", path_.string(), std::strerror(errno));
}

void OutputFile::line(std::string_view text) {
  write(text);
  write("\n");
  flush();
}

// ---------------------------------------------------------------------------- TensorBoard

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t flush_every)
    : file_(folder / new_file_name(), OutputFile::Mode::exclusive), flush_every_(flush_every) {
  TRIREME_CHECK(flush_every >= 1, "flush every {} scalars", flush_every);
  record(field_double(kEventWallTime, unix_time()) +
         field_bytes(kEventFileVersion, "brain.Event:2"));
  flush();
}

void EventFile::begin_at(std::int64_t step, double time) {
  record(field_double(kEventWallTime, time) + field_varint(kEventStep, step) +
         field_bytes(kEventSessionLog, field_varint(kSessionLogStatus, kSessionLogStart)));
  flush();
}

void EventFile::scalar(std::string_view tag, std::int64_t step, double value, double time) {
  const std::string point =
      field_bytes(kValueTag, tag) + field_float(kValueSimpleValue, static_cast<float>(value));
  record(field_double(kEventWallTime, time) + field_varint(kEventStep, step) +
         field_bytes(kEventSummary, field_bytes(kSummaryValue, point)));
  if (++unflushed_ >= flush_every_) flush();
}

void EventFile::flush() {
  file_.flush();
  unflushed_ = 0;
}

void EventFile::record(std::string_view event) {
  const std::string length = little_endian(event.size(), 8);
  file_.write(length);
  file_.write(little_endian(masked_crc32c(length), 4));
  file_.write(event);
  file_.write(little_endian(masked_crc32c(event), 4));
}

}  // namespace trireme::report
