// Kinds of nodes as decks and --gpus-per-node write them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>
#include <system_error>

#include "deck/value.hpp"

namespace trireme::deck {
namespace {

/// Digits alone; empty for anything else.
std::optional<std::int64_t> plain_number(std::string_view text) {
  constexpr std::int64_t kMax = 1 << 20;
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool good = error == std::errc() && stop == end && value >= 0 && value <= kMax;
  return good ? std::optional(value) : std::nullopt;
}

/// "2*a10:4", "a10:4" or "4".
NodeKind node_kind_of(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  const std::string whole(text);
  const auto bad = [&] {
    return BadValue(fmt::format(
        "'{}' is no kind of nodes; write GPUs per node (8), their type (a10:4), and with several "
        "kinds the number of nodes (2*a10:4)",
        printable(whole)));
  };
  NodeKind kind;
  if (const std::size_t star = text.find('*'); star != std::string_view::npos) {
    kind.nodes = plain_number(text.substr(0, star));
    if (!kind.nodes || *kind.nodes == 0) throw bad();
    text.remove_prefix(star + 1);
  }
  if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    const auto is_plain = [](unsigned char c) {
      return std::isalnum(c) || c == '_' || c == '-' || c == '.';
    };
    kind.gpu = text.substr(0, colon);
    if (kind.gpu.empty() || !std::all_of(kind.gpu.begin(), kind.gpu.end(), is_plain)) throw bad();
    text.remove_prefix(colon + 1);
  }
  const auto gpus = plain_number(text);
  if (!gpus || (*gpus == 0 && !kind.gpu.empty())) throw bad();
  kind.gpus = *gpus;
  return kind;
}

}  // namespace

std::vector<NodeKind> Codec<std::vector<NodeKind>>::read(const Item& item, const Rules&) {
  std::vector<NodeKind> kinds;
  if (item.kind == Item::Kind::list) {
    for (const Item& element : item.items) kinds.push_back(node_kind_of(read_text(element)));
  } else {
    std::istringstream words(read_text(item));
    for (std::string word; std::getline(words, word, ',');) kinds.push_back(node_kind_of(word));
  }
  if (kinds.empty()) throw BadValue("expected kinds of nodes, such as a10:4");
  if (kinds.size() > 1)
    for (const NodeKind& kind : kinds)
      if (!kind.nodes || kind.gpus == 0)
        throw BadValue("several kinds of nodes each need their number of nodes and GPUs (2*a10:4)");
  return kinds;
}

std::string Codec<std::vector<NodeKind>>::write(const std::vector<NodeKind>& value) {
  std::vector<std::string> words;
  for (const NodeKind& kind : value)
    words.push_back(fmt::format("{}{}{}", kind.nodes ? fmt::format("{}*", *kind.nodes) : "",
                                kind.gpu.empty() ? "" : kind.gpu + ":", kind.gpus));
  return fmt::format("{}", fmt::join(words, ","));
}

}  // namespace trireme::deck
