#include "tokenizer/preprocess/preprocess.hpp"

#include <deque>
#include <future>
#include <semaphore>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "tokenizer/preprocess/dataset_writer.hpp"
#include "tokenizer/vocabulary.hpp"

namespace trireme::tokenizer {
namespace {

constexpr std::uint64_t kBadLinesShown = 10;

/// A batch's documents as ids.
struct EncodedBatch {
  std::vector<std::int32_t> ids;     ///< of all documents
  std::vector<std::size_t> lengths;  ///< of each
  std::vector<std::string> bad;      ///< messages of those left out
  std::uint64_t bytes = 0;
};

EncodedBatch encode_batch(const Tokenizer& tokenizer, const PreprocessOptions& options,
                          const DocumentBatch& batch) {
  EncodedBatch encoded;
  encoded.bytes = batch.bytes.size();
  for (const DocumentBatch::Record& record : batch.records) {
    std::vector<std::int32_t> ids;
    try {
      ids = tokenizer.encode(document_text(batch, record, options.source.key));
    } catch (const DataError& error) {
      if (!options.skip_bad) throw;
      encoded.bad.emplace_back(error.what());
      continue;
    }
    if (options.append_eod && !ids.empty()) ids.push_back(*tokenizer.eod());
    encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
    encoded.lengths.push_back(ids.size());
  }
  return encoded;
}

/// Takes the batches in order: writes, counts, reports.
class Collector {
 public:
  Collector(const Tokenizer& tokenizer, const PreprocessOptions& options)
      : log_(options.log), writer_(dataset_prefix(options), tokenizer.vocab_size()) {
    summary_.dataset = dataset_prefix(options);
  }

  void take(const EncodedBatch& batch) {
    std::span<const std::int32_t> rest = batch.ids;
    for (const std::size_t length : batch.lengths) {
      writer_.add_document(rest.first(length));
      rest = rest.subspan(length);
    }
    for (const std::string& message : batch.bad) report_bad(message);
    summary_.documents += batch.lengths.size();
    summary_.tokens += batch.ids.size();
    summary_.bytes += batch.bytes;
    report_progress();
  }

  PreprocessSummary finish() {
    if (summary_.documents == 0) throw DataError("the input has no document");
    writer_.finish();
    summary_.seconds = clock_.seconds();
    return summary_;
  }

 private:
  static std::string dataset_prefix(const PreprocessOptions& options) {
    return fmt::format("{}_{}_document", options.output, options.source.key);
  }

  // A log that cannot be written to any more is no reason to give up the work.
  void log(const std::string& line) {
    if (log_) std::fputs(line.c_str(), log_);
  }

  void report_bad(const std::string& message) {
    ++summary_.skipped;
    if (summary_.skipped <= kBadLinesShown) log(fmt::format("skipped: {}\n", message));
    if (summary_.skipped == kBadLinesShown) log("further bad documents are only counted\n");
  }

  void report_progress() {
    const double seconds = clock_.seconds();
    if (seconds < next_report_) return;
    next_report_ = seconds + 1.0;
    const double megabytes = 1e-6 * static_cast<double>(summary_.bytes);
    log(fmt::format("{:.1f} MB, {} documents, {:.1f} MB/s, {:.0f} documents/s\n", megabytes,
                    summary_.documents, megabytes / seconds,
                    static_cast<double>(summary_.documents) / seconds));
  }

  std::FILE* log_;
  DatasetWriter writer_;
  PreprocessSummary summary_;
  Stopwatch clock_;
  double next_report_ = 1.0;
};

}  // namespace

PreprocessSummary preprocess(const Tokenizer& tokenizer, const PreprocessOptions& options) {
  if (options.append_eod && !tokenizer.eod())
    throw UsageError("this {} vocabulary has no token to append at the end of a document ('{}')",
                     tokenizer.name(), kEndOfText);
  if (options.workers < 1) throw UsageError("at least one worker is needed");
  DocumentReader reader(options.source);
  Collector collector(tokenizer, options);

  // Twice as many batches as workers are on their way, so that a slow batch at the front leaves no
  // worker idle; the semaphore lets `workers` of them run. Declared before the batches, which use
  // it until the last of them has been waited for.
  std::counting_semaphore<> running(options.workers);
  std::deque<std::future<EncodedBatch>> batches;
  const auto take_first = [&] {
    collector.take(batches.front().get());
    batches.pop_front();
  };
  DocumentBatch batch;
  while (reader.read(batch)) {
    batches.push_back(std::async(std::launch::async, [&, batch = std::move(batch)] {
      running.acquire();
      struct Release {
        std::counting_semaphore<>& semaphore;
        ~Release() { semaphore.release(); }
      } release{running};
      return encode_batch(tokenizer, options, batch);
    }));
    if (batches.size() >= 2 * static_cast<std::size_t>(options.workers)) take_first();
  }
  while (!batches.empty()) take_first();
  return collector.finish();
}

}  // namespace trireme::tokenizer
