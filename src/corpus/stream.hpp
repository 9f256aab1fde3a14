// Streams of documents: read in order, worked on by any number of threads, written in order, with a
// report of what was dropped and why.
#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/clock.hpp"
#include "core/text.hpp"
#include "tokenizer/preprocess/preprocess.hpp"

namespace trireme::corpus {

/// Inputs and outputs of a command.
struct StreamOptions {
  tokenizer::DocumentSource source;
  std::filesystem::path output;   ///< JSON lines; for filter_urls() lines of text
  std::filesystem::path dropped;  ///< JSON lines of the dropped documents with "reason", or empty
  std::filesystem::path report;   ///< the report as JSON, or empty
  bool skip_bad = false;          ///< drop unreadable documents ("unreadable") instead of throwing
  int workers = 1;                ///< threads; the files do not depend on their number
  std::FILE* progress = nullptr;  ///< for the progress meter
};

/// A document of a stream.
struct Document {
  std::string place;  ///< "input:line", for messages
  std::string line;   ///< the JSON object as the input has it; for plain text {key: text}
  std::string text;   ///< under the source's key
  /// The string under `key`; "" when there is none.
  std::string field(const std::string& key) const;
};

/// Reads one record. Throws DataError that begins with its place, as document_text().
Document read_document(const tokenizer::DocumentBatch& batch,
                       const tokenizer::DocumentBatch::Record& record, const std::string& key);

/// tokenizer::with_json_value(). Bytes of `value` that are not UTF-8 become U+FFFD.
std::string with_field(std::string_view line, const std::string& key, const nlohmann::json& value);

/// The JSON line of a document whose text under `key` is `text`, with its newline.
std::string json_line(const Document& document, const std::string& key, const std::string& text);

/// What a command has made of one document.
struct Outcome {
  std::vector<std::string> lines;         ///< to write, each with its newline
  std::string reason;                     ///< why the document is dropped; "" when it is kept
  std::vector<std::string_view> changes;  ///< what was changed in it, for the report
  std::string dropped_line;               ///< for StreamOptions::dropped
  std::string url;                        ///< to look up among the URLs seen; "" for none
  std::uint64_t characters = 0;           ///< of the text that was read
  std::vector<std::uint64_t> hashes;      ///< of the command's own; the stream ignores them
};

/// Counts of documents and their characters.
struct Count {
  std::uint64_t documents = 0;
  std::uint64_t characters = 0;
  void add(std::uint64_t more) { ++documents, characters += more; }
};

/// What a command has read, written and dropped.
struct Report {
  std::string command;
  Count read, kept;
  std::map<std::string, Count> dropped;  ///< by reason
  std::map<std::string, Count> changed;  ///< by kind of change
  std::uint64_t bytes = 0;               ///< of input, after decompression
  double seconds = 0;

  /// A table for people; characters are code points of the documents as they were read.
  std::string table() const;
  /// The same as a JSON object.
  nlohmann::ordered_json json() const;
};

/// Bytes of the inputs; 0, for unknown, when one of them is not a regular file or is packed.
double input_bytes(const std::vector<std::string>& inputs);

/// Number of code points of valid UTF-8.
std::uint64_t count_characters(std::string_view text);

/// A 128-bit hash of bytes, for equality of texts and URLs among billions.
struct Hash128 {
  std::uint64_t low = 0, high = 0;
  bool operator==(const Hash128&) const = default;
};
Hash128 hash128(std::string_view bytes);

/// For hashed sets of Hash128: it is random enough as it is.
struct Hash128Bucket {
  std::size_t operator()(const Hash128& hash) const { return hash.low; }
};

/// Mixes the bits of a 64-bit word (the finalizer of SplitMix64).
std::uint64_t mix64(std::uint64_t word);

/// A temporary file without a name, in the folder of `near`: bytes are appended, then read back.
class Spool {
 public:
  /// Throws IoError.
  explicit Spool(const std::filesystem::path& near);
  Spool(Spool&& other) noexcept;
  ~Spool();
  /// Appends bytes and returns their offset. Throws IoError.
  std::uint64_t append(std::string_view bytes);
  /// Must come between the last append() and the first read(). Throws IoError.
  void flush();
  /// The bytes at `offset`. May be called from several threads. Throws IoError.
  std::string read(std::uint64_t offset, std::size_t size) const;
  std::uint64_t size() const { return written_ + buffer_.size(); }

 private:
  std::filesystem::path folder_;
  int fd_ = -1;
  std::uint64_t written_ = 0;
  std::string buffer_;
};

/// Writes the outputs of a command in the order of its inputs and counts them.
class Collector {
 public:
  /// Throws IoError when an output cannot be created.
  Collector(std::string command, const StreamOptions& options);
  /// Writes and counts one outcome.
  void take(const Outcome& outcome);
  /// Adds bytes of input to the progress.
  void read_bytes(std::uint64_t bytes);
  /// Publishes all files. Throws IoError.
  Report finish();

 private:
  StreamOptions options_;
  Report report_;
  Stopwatch clock_;
  Progress progress_;
  tokenizer::PartFile output_;
  std::unique_ptr<tokenizer::PartFile> dropped_;
};

/// Calls `work(batch)` on `workers` threads and `take(result)` on this one, in the order of the
/// batches that `read(batch)` gives until it returns false. Two batches a worker are in flight.
/// Throws the first error in that order.
template <typename Batch, typename Read, typename Work, typename Take>
void in_order(int workers, const Read& read, const Work& work, const Take& take) {
  using Result = decltype(work(std::declval<const Batch&>()));
  std::counting_semaphore<> running(workers);  // outlives the threads of `results`
  std::deque<std::future<Result>> results;
  const auto take_first = [&] {
    take(results.front().get());
    results.pop_front();
  };
  Batch batch;
  while (read(batch)) {
    results.push_back(std::async(std::launch::async, [&, batch = std::move(batch)] {
      running.acquire();
      struct Release {
        std::counting_semaphore<>& semaphore;
        ~Release() { semaphore.release(); }
      } release{running};
      return work(batch);
    }));
    if (results.size() >= 2 * static_cast<std::size_t>(workers)) take_first();
    batch = {};
  }
  while (!results.empty()) take_first();
}

/// Reads the source, calls `step` on every document (concurrently) and `take` on every outcome in
/// order, with the bytes of input read so far. A document that cannot be read throws DataError, or
/// with skip_bad has the reason "unreadable". Throws UsageError without a worker.
void for_each_document(const StreamOptions& options, const std::function<Outcome(Document&)>& step,
                       const std::function<void(Outcome&)>& take,
                       const std::function<void(std::uint64_t)>& read_bytes);

}  // namespace trireme::corpus
