// Training of WordPiece and byte-level BPE vocabularies: both merge frequent pairs.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>
#include <set>

#include "core/error.hpp"
#include "core/text.hpp"
#include "tokenizer/bpe/bpe.hpp"
#include "tokenizer/kinds.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {
namespace {

constexpr const char* kSpecial[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

std::vector<std::string_view> characters_of(std::string_view word) {
  std::vector<std::string_view> characters;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length = read_utf8(word, at).length;
    characters.push_back(word.substr(at, length));
    at += length;
  }
  return characters;
}

using Counts = std::map<std::string, std::int64_t, std::less<>>;

/// The `most` most frequent characters; ties go to the lower code point.
std::set<std::string, std::less<>> frequent_characters(const Counts& words, std::size_t most) {
  Counts counts;
  for (const auto& [word, count] : words)
    for (const std::string_view character : characters_of(word))
      counts.try_emplace(std::string(character)).first->second += count;
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [character, count] : counts) order.emplace_back(-count, character);
  std::ranges::sort(order);
  order.resize(std::min(order.size(), most));
  std::set<std::string, std::less<>> characters;
  for (auto& [count, character] : order) characters.insert(std::move(character));
  return characters;
}

using Pair = std::pair<std::int32_t, std::int32_t>;

/// A word as ids of pieces.
struct Word {
  std::vector<std::int32_t> pieces;
  std::int64_t count;
};

/// Merges pairs of adjacent pieces, the most frequent first; of equally frequent ones that of the
/// lower ids.
class Merger {
 public:
  /// The second piece of a pair loses `mark` characters in the merged piece.
  Merger(std::vector<std::string> pieces, std::vector<Word> words, std::size_t mark)
      : pieces_(std::move(pieces)), words_(std::move(words)), mark_(mark) {
    for (std::size_t id = 0; id < pieces_.size(); ++id)
      ids_.emplace(pieces_[id], static_cast<std::int32_t>(id));
    for (std::size_t index = 0; index < words_.size(); ++index)
      for_each_pair(words_[index], [&](Pair pair) { change(pair, words_[index].count, index); });
    for (const auto& [pair, entry] : pairs_) queue_.push({entry.count, pair});
  }

  /// Merges until there are `size` pieces, or no pair occurs twice; appends the merged pairs to
  /// `merges` unless it is null. `progress` gets a progress meter unless it is null.
  std::vector<std::string> run(std::size_t size, std::FILE* progress,
                               std::vector<Pair>* merges = nullptr) {
    Progress meter("merging", "piece", static_cast<double>(size), progress);
    while (pieces_.size() < size && !queue_.empty()) {
      meter.update(static_cast<double>(pieces_.size()));
      const Candidate best = queue_.top();
      queue_.pop();
      // Each change of a count queues the pair again: entries with an older count are stale.
      if (best.count < 2 || pairs_.at(best.pair).count != best.count) continue;
      merge(best.pair);
      if (merges) merges->push_back(best.pair);
    }
    return std::move(pieces_);
  }

 private:
  struct Entry {
    std::int64_t count = 0;
    std::vector<std::size_t> words;  ///< indices, with repetitions; some may lack the pair by now
  };
  struct Candidate {
    std::int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  template <typename Visit>
  static void for_each_pair(const Word& word, Visit&& visit) {
    for (std::size_t at = 0; at + 1 < word.pieces.size(); ++at)
      visit(Pair(word.pieces[at], word.pieces[at + 1]));
  }

  void change(Pair pair, std::int64_t by, std::size_t index) {
    Entry& entry = pairs_[pair];
    entry.count += by;
    if (by > 0) entry.words.push_back(index);
  }

  /// The id of the merged piece, which another merge may have made before.
  std::int32_t merged_id(Pair pair) {
    const std::string piece = pieces_[static_cast<std::size_t>(pair.first)] +
                              pieces_[static_cast<std::size_t>(pair.second)].substr(mark_);
    const auto [found, fresh] = ids_.emplace(piece, static_cast<std::int32_t>(pieces_.size()));
    if (fresh) pieces_.push_back(piece);
    return found->second;
  }

  void merge(Pair pair) {
    const std::int32_t id = merged_id(pair);
    std::vector<std::size_t> indices = std::move(pairs_.at(pair).words);
    std::ranges::sort(indices);
    indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
    std::set<Pair> changed;
    for (const std::size_t index : indices) {
      Word& word = words_[index];
      const auto count_pairs = [&](std::int64_t by) {
        for_each_pair(word, [&](Pair other) {
          change(other, by, index);
          changed.insert(other);
        });
      };
      count_pairs(-word.count);
      std::vector<std::int32_t> merged;
      for (std::size_t at = 0; at < word.pieces.size(); ++at) {
        const bool here = word.pieces[at] == pair.first && at + 1 < word.pieces.size() &&
                          word.pieces[at + 1] == pair.second;
        merged.push_back(here ? id : word.pieces[at]);
        at += here ? 1 : 0;
      }
      word.pieces = std::move(merged);
      count_pairs(word.count);
    }
    for (const Pair& other : changed)
      if (const std::int64_t count = pairs_.at(other).count; count > 1) queue_.push({count, other});
  }

  std::vector<std::string> pieces_;
  std::vector<Word> words_;
  std::size_t mark_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::map<Pair, Entry> pairs_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

void WordPieceTrainer::add(std::string_view text) {
  for_each_bert_word(text, lowercase_, [&](std::string_view word) {
    const auto characters = [&] { return characters_of(word).size(); };
    if (word.size() > kMaxWordCharacters && characters() > kMaxWordCharacters) return;
    ++counts_[std::string(word)];
  });
}

std::vector<std::string> WordPieceTrainer::train(std::int32_t size, std::int32_t alphabet,
                                                 std::FILE* progress) const {
  if (size < 1) throw UsageError("--size {}: a vocabulary needs at least one piece", size);
  if (alphabet < 1) throw UsageError("--alphabet {}: at least one character is needed", alphabet);
  if (counts_.empty()) throw DataError("there is no text to train on");
  const Counts sorted(counts_.begin(), counts_.end());  // an order that does not depend on hashes
  const auto characters = frequent_characters(sorted, static_cast<std::size_t>(alphabet));

  std::vector<std::vector<std::string>> spelled;
  std::vector<Word> words;
  std::set<std::string> first(characters.begin(), characters.end()), later;
  for (const auto& [word, count] : sorted) {
    std::vector<std::string> spelling;
    for (const std::string_view character : characters_of(word)) {
      if (!characters.contains(character)) break;
      spelling.push_back(std::string(spelling.empty() ? "" : kContinues).append(character));
    }
    if (spelling.size() < characters_of(word).size()) continue;
    later.insert(spelling.begin() + 1, spelling.end());
    spelled.push_back(std::move(spelling));
    words.push_back({{}, count});
  }
  std::vector<std::string> pieces(std::begin(kSpecial), std::end(kSpecial));
  pieces.insert(pieces.end(), first.begin(), first.end());
  pieces.insert(pieces.end(), later.begin(), later.end());
  if (pieces.size() > static_cast<std::size_t>(size))
    throw DataError(
        "a vocabulary of {} pieces is too small: the special tokens and the characters of this "
        "corpus alone are {}; give --size {} or more, or a smaller --alphabet",
        size, pieces.size(), pieces.size());

  std::unordered_map<std::string_view, std::int32_t> ids;
  for (std::size_t id = 0; id < pieces.size(); ++id)
    ids.emplace(pieces[id], static_cast<std::int32_t>(id));
  for (std::size_t index = 0; index < words.size(); ++index)
    for (const std::string& piece : spelled[index]) words[index].pieces.push_back(ids.at(piece));
  const std::vector<std::string> learnt = Merger(pieces, std::move(words), kContinues.size())
                                              .run(static_cast<std::size_t>(size), progress);
  if (learnt.size() < static_cast<std::size_t>(size))
    throw DataError(
        "this corpus has {} pieces that occur twice or more, fewer than {}; give --size {} or "
        "less, or more text",
        learnt.size(), size, learnt.size());
  return learnt;
}

// ---------------------------------------------------------------------------- byte-level BPE

namespace {

std::string_view pattern_called(const std::string& name) {
  if (name == "gpt2") return kGpt2Pattern;
  if (name == "llama3") return kLlama3Pattern;
  if (name == "qwen") return kQwenPattern;
  throw UsageError("--pattern {}: expected gpt2, llama3 or qwen", name);
}

/// tokenizer.json of byte-level BPE with these tokens and merges; <|endoftext|> is the first token.
std::string write_json(const std::vector<std::string>& tokens, const std::vector<Pair>& merges,
                       std::string_view pattern, bool nfc) {
  using nlohmann::ordered_json;
  ordered_json byte_level = {{"type", "ByteLevel"},
                             {"add_prefix_space", false},
                             {"trim_offsets", true},
                             {"use_regex", false}};
  ordered_json split = {{"type", "Split"},
                        {"pattern", {{"Regex", pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
  ordered_json vocab = ordered_json::object(), pairs = ordered_json::array();
  for (std::size_t id = 0; id < tokens.size(); ++id) vocab[tokens[id]] = id;
  const auto token = [&](std::int32_t id) { return tokens[static_cast<std::size_t>(id)]; };
  for (const auto& [left, right] : merges)
    pairs.push_back(ordered_json::array({token(left), token(right)}));
  ordered_json json;
  json["version"] = "1.0";
  json["truncation"] = nullptr;
  json["padding"] = nullptr;
  json["added_tokens"] = ordered_json::array({{{"id", 0},
                                               {"content", kEndOfText},
                                               {"single_word", false},
                                               {"lstrip", false},
                                               {"rstrip", false},
                                               {"normalized", false},
                                               {"special", true}}});
  json["normalizer"] = nfc ? ordered_json{{"type", "NFC"}} : ordered_json();
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", ordered_json::array({split, byte_level})}};
  json["post_processor"] = nullptr;
  json["decoder"] = byte_level;
  json["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false}};
  json["model"]["vocab"] = std::move(vocab);
  json["model"]["merges"] = std::move(pairs);
  return json.dump(1) + "\n";
}

}  // namespace

BpeTrainer::BpeTrainer(const std::string& pattern)
    : pattern_(pattern_called(pattern)), nfc_(pattern == "qwen"), words_(pattern_) {}

void BpeTrainer::add(std::string_view text) {
  std::string repaired = replace_invalid_utf8(text);
  if (nfc_) repaired = normalize_nfc(repaired);
  const std::string_view valid = repaired;
  for (std::size_t begin = 0; begin < valid.size();) {
    const std::size_t end = words_.end_of_word(valid, begin);
    ++counts_[std::string(valid.substr(begin, end - begin))];
    begin = end;
  }
}

std::string BpeTrainer::train(std::int32_t size, std::FILE* progress) const {
  constexpr std::int32_t kSmallest = 257;
  if (size < kSmallest)
    throw UsageError("--size {}: {} and the 256 bytes alone are {} ids", size, kEndOfText,
                     kSmallest);
  if (counts_.empty()) throw DataError("there is no text to train on");
  // The bytes in the order of their characters, as in the tokenizers library.
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    tokens.push_back(token_of_bytes({&c, 1}));
  }
  std::ranges::sort(tokens);
  tokens.insert(tokens.begin(), std::string(kEndOfText));
  std::array<std::int32_t, 256> ids{};
  for (std::size_t id = 1; id < tokens.size(); ++id)
    ids[static_cast<std::uint8_t>(bytes_of_token(tokens[id])->front())] =
        static_cast<std::int32_t>(id);

  const Counts sorted(counts_.begin(), counts_.end());  // an order that does not depend on hashes
  std::vector<Word> words;
  for (const auto& [word, count] : sorted) {
    Word& spelled = words.emplace_back(Word{{}, count});
    for (const char c : word) spelled.pieces.push_back(ids[static_cast<std::uint8_t>(c)]);
  }
  std::vector<Pair> merges;
  tokens = Merger(std::move(tokens), std::move(words), 0)
               .run(static_cast<std::size_t>(size), progress, &merges);
  if (tokens.size() < static_cast<std::size_t>(size))
    throw DataError(
        "this corpus has {} tokens that occur twice or more, fewer than {}; give --size {} or "
        "less, or more text",
        tokens.size(), size, tokens.size());
  return write_json(tokens, merges, pattern_, nfc_);
}

}  // namespace trireme::tokenizer
