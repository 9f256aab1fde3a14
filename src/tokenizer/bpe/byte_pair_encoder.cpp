#include "tokenizer/bpe/gpt2.hpp"

#include <algorithm>
#include <cstring>
#include <queue>

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/utf8.hpp"

namespace trireme::tokenizer {
namespace {

/// The character that GPT-2's files write for each byte: the same in Latin-1 where that is visible,
/// otherwise the next of U+0100, U+0101, ... (bytes_to_unicode of OpenAI's encoder.py).
constexpr std::array<char32_t, 256> kByteCharacters = [] {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                         (byte >= 0xAE && byte <= 0xFF);
    characters[byte] = visible ? byte : next++;
  }
  return characters;
}();

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

/// A symbol of the word that is being merged, in a doubly linked list that ends with -1.
struct Symbol {
  std::int32_t id, previous, next;
};

/// A queued merge; stale when one of its symbols has changed since.
struct Candidate {
  std::int32_t rank, position, left, right, merged;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

BytePairEncoder::BytePairEncoder(const Vocabulary& vocabulary,
                                 const std::filesystem::path& merges) {
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::string character;
    append_utf8(character, kByteCharacters[byte]);
    const auto id = vocabulary.find(character);
    if (!id)
      throw DataError("{}: the vocabulary has no token '{}' for byte {}{}",
                      vocabulary.path().string(), character, byte,
                      vocabulary.find("<unk>")
                          ? "; with '<unk>' it looks like one of whole words, which belongs to the "
                            "whitespace tokenizer"
                          : "");
    byte_ids_[byte] = *id;
  }

  const std::string content = read_regular_file(merges);
  std::string_view rest = content;
  std::int32_t rank = 0;
  for (int number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos)
      throw DataError("{}:{}: expected two tokens, got '{}'", merges.string(), number,
                      replace_invalid_utf8(line));
    const std::string left(line.substr(0, blank)), right(line.substr(blank + 1));
    hash_.add(line);
    const auto id = [&](const std::string& token) {
      const auto found = vocabulary.find(token);
      if (!found)
        throw DataError(
            "{}:{}: token '{}' is not in the vocabulary; do the two files belong together?",
            merges.string(), number, replace_invalid_utf8(token));
      return *found;
    };
    merges_.emplace(pair_key(id(left), id(right)), Merge{rank++, id(left + right)});
  }
}

BytePairEncoder::BytePairEncoder(const std::array<std::int32_t, 256>& byte_ids,
                                 const std::vector<Rule>& rules,
                                 std::unordered_map<std::string, std::int32_t> whole_words)
    : byte_ids_(byte_ids), whole_words_(std::move(whole_words)) {
  merges_.reserve(rules.size());
  std::int32_t rank = 0;
  for (const Rule& rule : rules) {
    merges_.insert_or_assign(pair_key(rule.left, rule.right), Merge{rank++, rule.merged});
    hash_.add(&rule, sizeof rule);
  }
  hash_.add(byte_ids_.data(), sizeof byte_ids_);
  const auto whole = static_cast<std::int64_t>(whole_words_.size());
  hash_.add(&whole, sizeof whole);
}

const BytePairEncoder::Merge* BytePairEncoder::find(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairEncoder::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (!whole_words_.empty())
    if (const auto whole = whole_words_.find(std::string(word)); whole != whole_words_.end())
      return ids.push_back(whole->second);
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char byte : word) {
    const std::int32_t id = byte_ids_[static_cast<std::uint8_t>(byte)];
    if (id < 0) continue;
    const auto position = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, position - 1, position + 1});
  }
  const auto length = static_cast<std::int32_t>(symbols.size());
  if (length == 0) return;
  symbols.back().next = -1;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto at = [&](std::int32_t position) -> Symbol& {
    return symbols[static_cast<std::size_t>(position)];
  };
  const auto propose = [&](std::int32_t position) {
    if (position < 0 || at(position).next < 0) return;
    const std::int32_t left = at(position).id, right = at(at(position).next).id;
    if (const Merge* merge = find(left, right))
      queue.push({merge->rank, position, left, right, merge->id});
  };

  for (std::int32_t i = 0; i < length; ++i) propose(i);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = at(best.position);
    // A symbol merged away has id -1; one that grew has another id.
    if (left.id != best.left || left.next < 0 || at(left.next).id != best.right) continue;
    Symbol& right = at(left.next);
    left.id = best.merged;
    left.next = right.next;
    if (right.next >= 0) at(right.next).previous = best.position;
    right.id = -1;
    propose(left.previous);
    propose(best.position);
  }

  for (std::int32_t i = 0; i >= 0; i = at(i).next) ids.push_back(at(i).id);
}

void WordCache::encode(const BytePairEncoder& encoder, std::string_view word,
                       std::vector<std::int32_t>& ids) {
  if (word.size() > Entry{}.word.size()) return encoder.encode(word, ids);
  Entry& entry = entries_[std::hash<std::string_view>{}(word) % entries_.size()];
  if (entry.length == word.size() &&
      std::memcmp(entry.word.data(), word.data(), word.size()) == 0) {
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  const std::size_t before = ids.size();
  encoder.encode(word, ids);
  const std::size_t count = ids.size() - before;
  if (count > entry.ids.size()) return;
  std::copy(word.begin(), word.end(), entry.word.begin());
  std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), entry.ids.begin());
  entry.length = static_cast<std::uint8_t>(word.size());
  entry.count = static_cast<std::uint8_t>(count);
}

std::unique_ptr<WordCache> WordCaches::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<WordCache> cache = std::move(idle_.back());
      idle_.pop_back();
      return cache;
    }
  }
  return std::make_unique<WordCache>();
}

void WordCaches::give_back(std::unique_ptr<WordCache> cache) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(cache));
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes)
    append_utf8(token, kByteCharacters[static_cast<std::uint8_t>(byte)]);
  return token;
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  static const auto bytes = [] {
    std::unordered_map<char32_t, char> map;
    for (std::size_t byte = 0; byte < 256; ++byte)
      map.emplace(kByteCharacters[byte], static_cast<char>(byte));
    return map;
  }();
  std::string result;
  for (std::size_t position = 0; position < token.size();) {
    const Utf8Step step = read_utf8(token, position);
    const auto found = bytes.find(step.code_point);
    if (found == bytes.end()) return std::nullopt;
    result.push_back(found->second);
    position += step.length;
  }
  return result;
}

}  // namespace trireme::tokenizer
