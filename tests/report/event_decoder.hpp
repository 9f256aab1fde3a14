// An independent reader of TensorBoard event files, for tests: bytes in, events out.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::report {

struct DecodedEvent {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string file_version;
  std::string tag;
  std::optional<float> value;
  std::optional<int> session_status;
};

/// CRC-32C, bit by bit as its definition has it.
inline std::uint32_t slow_crc32c(std::string_view bytes) {
  std::uint32_t remainder = ~0u;
  for (const char byte : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const std::uint32_t in = static_cast<unsigned char>(byte) >> bit & 1;
      remainder = (remainder >> 1) ^ ((remainder & 1) != in ? 0x82F63B78u : 0u);
    }
  return ~remainder;
}

/// Takes values off the front of a message.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : bytes_(bytes) {}

  bool done() const { return bytes_.empty(); }

  template <typename T>
  T fixed() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
  }

  std::string_view take(std::size_t count) {
    if (count > bytes_.size()) throw std::runtime_error("message ends early");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes() { return take(varint()); }

 private:
  std::string_view bytes_;
};

inline DecodedEvent decode_event(std::string_view message) {
  DecodedEvent event;
  for (ProtoReader fields(message); !fields.done();) {
    switch (fields.varint()) {
      case 1 << 3 | 1:
        event.wall_time = fields.fixed<double>();
        break;
      case 2 << 3 | 0:
        event.step = static_cast<std::int64_t>(fields.varint());
        break;
      case 3 << 3 | 2:
        event.file_version = fields.bytes();
        break;
      case 5 << 3 | 2: {
        ProtoReader summary(fields.bytes());
        if (summary.varint() != (1 << 3 | 2)) throw std::runtime_error("not a summary value");
        for (ProtoReader value(summary.bytes()); !value.done();) {
          const std::uint64_t key = value.varint();
          if (key == (1 << 3 | 2))
            event.tag = value.bytes();
          else if (key == (2 << 3 | 5))
            event.value = value.fixed<float>();
          else
            throw std::runtime_error("unknown field of a summary value");
        }
        if (!summary.done()) throw std::runtime_error("more than one summary value");
        break;
      }
      case 7 << 3 | 2: {
        ProtoReader log(fields.bytes());
        if (log.varint() != (1 << 3 | 0)) throw std::runtime_error("not a session status");
        event.session_status = static_cast<int>(log.varint());
        break;
      }
      default:
        throw std::runtime_error("unknown field of an event");
    }
  }
  return event;
}

/// All events of a file's content; throws std::runtime_error where a frame is not what it should
/// be.
inline std::vector<DecodedEvent> decode_event_file(std::string_view content) {
  const auto check = [](std::string_view data, std::uint32_t masked) {
    const std::uint32_t rotated = masked - 0xa282ead8u;
    if ((rotated >> 17 | rotated << 15) != slow_crc32c(data))
      throw std::runtime_error("wrong checksum");
  };
  std::vector<DecodedEvent> events;
  for (ProtoReader file(content); !file.done();) {
    const std::string_view length = file.take(8);
    check(length, file.fixed<std::uint32_t>());
    const std::string_view message = file.take(ProtoReader(length).fixed<std::uint64_t>());
    check(message, file.fixed<std::uint32_t>());
    events.push_back(decode_event(message));
  }
  return events;
}

}  // namespace trireme::report
