#include "corpus/corpus.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "core/error.hpp"
#include "corpus/stream.hpp"

namespace trireme::corpus {
namespace {

constexpr std::size_t kShingleCharacters = 5;

}  // namespace

std::vector<std::uint64_t> shingles(std::string_view text) {
  std::vector<std::size_t> starts;  // of the characters
  starts.reserve(text.size());
  for (std::size_t at = 0; at < text.size(); ++at)
    if ((text[at] & 0xC0) != 0x80) starts.push_back(at);
  std::vector<std::uint64_t> set;
  if (starts.size() <= kShingleCharacters) return set;
  set.reserve(starts.size() - kShingleCharacters);
  for (std::size_t i = 0; i + kShingleCharacters < starts.size(); ++i) {
    // At most 20 bytes: three words.
    std::uint64_t words[3] = {};
    const std::size_t bytes = starts[i + kShingleCharacters] - starts[i];
    std::memcpy(words, text.data() + starts[i], bytes);
    std::uint64_t hash = mix64(words[0] ^ bytes << 56);
    if (bytes > 8) hash = mix64(mix64(hash ^ words[1]) ^ words[2]);
    set.push_back(hash);
  }
  std::ranges::sort(set);
  const auto rest = std::ranges::unique(set);
  set.erase(rest.begin(), rest.end());
  return set;
}

double jaccard(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b,
               JaccardRule rule) {
  if (a.empty() || b.empty()) return 0;
  std::size_t common = 0;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    common += *i == *j;
    const bool step_a = *i <= *j, step_b = *j <= *i;
    i += step_a;
    j += step_b;
  }
  const std::size_t whole = rule == JaccardRule::smaller  ? std::min(a.size(), b.size())
                            : rule == JaccardRule::larger ? std::max(a.size(), b.size())
                                                          : a.size() + b.size() - common;
  return static_cast<double>(common) / static_cast<double>(whole);
}

MinHash::MinHash(std::uint64_t seed, int hashes) {
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(hashes); ++i)
    functions_.push_back({mix64(mix64(seed) + 2 * i) | 1, mix64(mix64(seed) + 2 * i + 1)});
}

std::vector<std::uint32_t> MinHash::signature(const std::vector<std::uint64_t>& shingles) const {
  // Multiply-shift hashing: the upper 32 bits of multiplier * shingle + offset.
  std::vector<std::uint32_t> minima(functions_.size(), ~std::uint32_t{0});
  for (std::size_t f = 0; f < functions_.size(); ++f) {
    std::uint64_t minimum = ~std::uint64_t{0};
    for (const std::uint64_t shingle : shingles)
      minimum = std::min(minimum, functions_[f].multiplier * shingle + functions_[f].offset);
    minima[f] = static_cast<std::uint32_t>(minimum >> 32);
  }
  return minima;
}

std::vector<std::uint64_t> MinHash::bands(const std::vector<std::uint32_t>& signature, int bands) {
  const std::size_t rows = signature.size() / static_cast<std::size_t>(bands);
  std::vector<std::uint64_t> hashes;
  for (std::size_t band = 0; band < static_cast<std::size_t>(bands); ++band) {
    std::uint64_t hash = band;
    for (std::size_t row = 0; row < rows; ++row) hash = mix64(hash ^ signature[band * rows + row]);
    hashes.push_back(hash);
  }
  return hashes;
}

namespace {

/// A document that is no exact copy.
struct Entry {
  std::uint64_t offset = 0;  ///< of its line in the spool
  std::uint64_t number = 0;  ///< among all documents that were read, from 1
  std::uint32_t size = 0;    ///< of its line
  std::uint32_t characters = 0;
};

/// Documents whose signatures have an equal band.
struct Bucket {
  std::uint64_t hash = 0;
  std::vector<std::uint32_t> documents;
};

/// Two documents that belong to one group.
struct Pair {
  std::uint32_t a, b;
};

class Deduplication {
 public:
  explicit Deduplication(const DedupOptions& options)
      : options_(options),
        hash_(options.seed, options.hashes),
        collector_("dedup", options.stream),
        spool_(options.stream.output) {}

  Report run() {
    read();
    spool_.flush();
    Groups groups(entries_.size());
    for (int band = 0; options_.near && band < options_.bands; ++band) compare(band, groups);
    write(groups);
    return collector_.finish();
  }

 private:
  Outcome hash_document(Document& document) const {
    Outcome outcome;
    outcome.characters = count_characters(document.text);
    const Hash128 hash = hash128(document.text);
    outcome.hashes = {hash.low, hash.high};
    if (options_.near) {
      const auto set = shingles(document.text);
      const auto bands = set.empty() ? std::vector<std::uint64_t>(
                                           static_cast<std::size_t>(options_.bands), kNoBand)
                                     : MinHash::bands(hash_.signature(set), options_.bands);
      outcome.hashes.insert(outcome.hashes.end(), bands.begin(), bands.end());
    }
    outcome.lines.push_back(json_line(document, options_.stream.source.key, document.text));
    return outcome;
  }

  /// Drops exact copies; the others go to the spool with the bands of their signatures.
  void read() {
    std::unordered_map<Hash128, std::uint64_t, Hash128Bucket> seen;
    std::uint64_t number = 0;
    for_each_document(
        options_.stream, [this](Document& document) { return hash_document(document); },
        [&](Outcome& outcome) {
          ++number;
          if (!outcome.reason.empty()) return collector_.take(outcome);
          const auto [first, fresh] =
              seen.emplace(Hash128{outcome.hashes[0], outcome.hashes[1]}, number);
          if (!fresh) return drop(outcome, "exact duplicate", first->second);
          const std::string& line = outcome.lines.front();
          if (line.size() > ~std::uint32_t{0} || entries_.size() == ~std::uint32_t{0})
            throw DataError("document {}: dedup takes documents below 4 GB and 2^32 of them",
                            number);
          entries_.push_back({spool_.append(line), number, static_cast<std::uint32_t>(line.size()),
                              static_cast<std::uint32_t>(outcome.characters)});
          bands_.insert(bands_.end(), outcome.hashes.begin() + 2, outcome.hashes.end());
        },
        [&](std::uint64_t bytes) { collector_.read_bytes(bytes); });
  }

  void drop(Outcome& outcome, const std::string& reason, std::uint64_t original) {
    if (!options_.stream.dropped.empty()) {
      outcome.dropped_line =
          with_field(with_field(outcome.lines.front(), "reason", reason), "duplicate_of", original);
    }
    outcome.reason = reason;
    collector_.take(outcome);
  }

  std::vector<Bucket> buckets_of(int band) const {
    std::vector<std::pair<std::uint64_t, std::uint32_t>> order;
    const auto bands = static_cast<std::size_t>(options_.bands);
    for (std::uint32_t i = 0; i < entries_.size(); ++i) {
      const std::uint64_t hash = bands_[i * bands + static_cast<std::size_t>(band)];
      if (hash != kNoBand) order.emplace_back(hash, i);
    }
    std::ranges::sort(order);
    std::vector<Bucket> buckets;
    for (auto begin = order.begin(); begin != order.end();) {
      const auto end = std::find_if(begin, order.end(),
                                    [&](const auto& entry) { return entry.first != begin->first; });
      if (end - begin > 1) {
        buckets.push_back({begin->first, {}});
        for (auto i = begin; i != end; ++i) buckets.back().documents.push_back(i->second);
      }
      begin = end;
    }
    return buckets;
  }

  std::vector<std::uint64_t> shingles_of(std::uint32_t document) const {
    const Entry& entry = entries_[document];
    const std::string line = spool_.read(entry.offset, entry.size);
    return shingles(tokenizer::json_text(line, options_.stream.source.key, "a temporary file"));
  }

  /// Compares a random document of the bucket with the others, again for `rounds` documents.
  /// Documents that are in one group already need no comparison.
  std::vector<Pair> duplicates_in(Bucket bucket, const std::vector<std::uint32_t>& group_of) const {
    std::vector<Pair> pairs;
    for (int round = 0; bucket.documents.size() > 1 && round != options_.rounds; ++round) {
      const std::uint64_t draw = mix64(options_.seed ^ mix64(bucket.hash + std::uint64_t(round)));
      const std::uint32_t main = bucket.documents[draw % bucket.documents.size()];
      std::vector<std::uint64_t> main_set;
      std::erase_if(bucket.documents, [&](std::uint32_t other) {
        if (group_of[other] == group_of[main]) return true;
        if (main_set.empty()) main_set = shingles_of(main);
        const double similarity = jaccard(main_set, shingles_of(other), options_.rule);
        if (similarity >= options_.duplicate) pairs.push_back({main, other});
        return similarity > options_.similar;
      });
    }
    return pairs;
  }

  void compare(int band, Groups& groups) const {
    std::vector<Bucket> buckets = buckets_of(band);
    // As the bands before have left them, so that the work of one band depends on no order.
    std::vector<std::uint32_t> group_of(entries_.size());
    for (std::uint32_t i = 0; i < group_of.size(); ++i) group_of[i] = groups.first(i);
    Progress progress(fmt::format("comparing, band {} of {}", band + 1, options_.bands), "bucket",
                      static_cast<double>(buckets.size()), options_.stream.progress);
    std::size_t next = 0, done = 0;
    in_order<Bucket>(
        options_.stream.workers,
        [&](Bucket& bucket) {
          if (next == buckets.size()) return false;
          bucket = std::move(buckets[next++]);
          return true;
        },
        [&](const Bucket& bucket) { return duplicates_in(bucket, group_of); },
        [&](const std::vector<Pair>& pairs) {
          for (const Pair& pair : pairs) groups.join(pair.a, pair.b);
          progress.update(static_cast<double>(++done));
        });
  }

  void write(Groups& groups) {
    for (std::uint32_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      Outcome outcome;
      outcome.characters = entry.characters;
      outcome.lines.push_back(spool_.read(entry.offset, entry.size));
      if (const std::uint32_t first = groups.first(i); first != i)
        drop(outcome, "near duplicate", entries_[first].number);
      else
        collector_.take(outcome);
    }
  }

  static constexpr std::uint64_t kNoBand = 0;  ///< of texts without shingles

  const DedupOptions& options_;
  MinHash hash_;
  Collector collector_;
  Spool spool_;
  std::vector<Entry> entries_;
  std::vector<std::uint64_t> bands_;  ///< [documents, bands]
};

}  // namespace

Report dedup(const DedupOptions& options) {
  if (options.bands < 1 || options.hashes < 1 || options.hashes % options.bands != 0)
    throw UsageError("--hashes {} must be a multiple of --bands {}", options.hashes, options.bands);
  if (options.rounds == 0 || options.rounds < -1)
    throw UsageError("--rounds {}: expected -1 or at least 1", options.rounds);
  for (const double share : {options.similar, options.duplicate})
    if (!(share >= 0 && share <= 1))
      throw UsageError("similarities are between 0 and 1, not {}", share);
  return Deduplication(options).run();
}

std::uint64_t shuffle(const ShuffleOptions& options) {
  constexpr std::size_t kParts = 256;
  using tokenizer::DocumentFormat;
  const DocumentFormat format = options.source.format;
  if (format == DocumentFormat::text_files || format == DocumentFormat::files_by_name)
    throw UsageError("shuffle is for lines, not for --document file");
  tokenizer::DocumentReader reader(options.source);
  tokenizer::PartFile output(options.output);
  // A line's place is decided by a random key; its first byte chooses the part.
  struct Line {
    std::uint64_t key, offset;
    std::size_t size;
  };
  std::vector<Spool> spools;
  for (std::size_t part = 0; part < kParts; ++part) spools.emplace_back(options.output);
  std::vector<std::vector<Line>> lines(kParts);
  std::uint64_t count = 0, bytes = 0;
  {
    Progress progress("shuffling", "B", input_bytes(options.source.inputs), options.progress);
    tokenizer::DocumentBatch batch;
    while (reader.read(batch)) {
      for (const auto& record : batch.records) {
        const auto line = std::string_view(batch.bytes).substr(record.offset, record.size);
        if (batch.json && !tokenizer::is_json_object(line))
          throw DataError("{}: not a JSON object", tokenizer::place_of(batch, record));
        const std::uint64_t key = mix64(mix64(options.seed) ^ mix64(count++));
        const std::size_t part = key >> 56;
        lines[part].push_back({key, spools[part].append(line), line.size()});
      }
      progress.update(static_cast<double>(bytes += batch.bytes.size()));
    }
  }
  if (count == 0) throw DataError("{}: no line to write", options.source.inputs.front());
  for (std::size_t part = 0; part < kParts; ++part) {
    spools[part].flush();
    const std::string text = spools[part].read(0, spools[part].size());
    std::ranges::sort(lines[part], {},
                      [](const Line& line) { return std::pair(line.key, line.offset); });
    std::string ordered;
    for (const Line& line : lines[part]) {
      ordered.append(text, line.offset, line.size);
      ordered += '\n';
    }
    output.write(ordered.data(), ordered.size());
  }
  output.sync();
  output.publish();
  return count;
}

}  // namespace trireme::corpus
