#include "tokenizer/utf8.hpp"

#include <cstdint>
#include <cstring>

namespace trireme::tokenizer {
namespace {

/// The character after a lead byte: its length in bytes (0: not a lead byte), and the range of its
/// second byte, which excludes overlong forms, surrogates and code points past U+10FFFF (Unicode,
/// table 3-7).
struct Lead {
  std::uint8_t length, second_low, second_high;
};

Lead classify(std::uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step read_utf8(std::string_view text, std::size_t position) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[position + i]); };
  const Lead lead = classify(byte(0));
  if (lead.length == 1) return {1, true, byte(0)};
  if (lead.length == 0) return {1, false, kReplacement};
  char32_t code_point = byte(0) & (0x7Fu >> lead.length);
  for (std::size_t i = 1; i < lead.length; ++i) {
    const std::uint8_t low = i == 1 ? lead.second_low : 0x80;
    const std::uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (position + i >= text.size() || byte(i) < low || byte(i) > high)
      return {i, false, kReplacement};
    code_point = code_point << 6 | (byte(i) & 0x3Fu);
  }
  return {lead.length, true, code_point};
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    std::uint64_t eight = 0;
    while (position + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + position, sizeof eight);
      if (eight & 0x8080808080808080u) break;
      position += sizeof eight;
    }
    if (position == text.size()) break;
    const Utf8Step step = read_utf8(text, position);
    if (!step.valid) return position;
    position += step.length;
  }
  return position;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    repaired.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    append_utf8(repaired, kReplacement);
    text.remove_prefix(read_utf8(text, 0).length);
  }
  return repaired;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto append = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    append(code_point);
    return;
  }
  if (code_point < 0x800) {
    append(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      append(0xE0 | code_point >> 12);
    } else {
      append(0xF0 | code_point >> 18);
      append(0x80 | (code_point >> 12 & 0x3F));
    }
    append(0x80 | (code_point >> 6 & 0x3F));
  }
  append(0x80 | (code_point & 0x3F));
}

}  // namespace trireme::tokenizer
