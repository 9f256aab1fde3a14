#include "tokenizer/preprocess/preprocess.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <semaphore>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "tokenizer/kinds.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {
namespace {

constexpr std::uint64_t kBadLinesShown = 10;

using Ids = std::vector<std::int32_t>;

/// The token ids of a batch of documents.
struct EncodedBatch {
  Ids ids;                             ///< all documents, concatenated
  std::vector<std::size_t> lengths;    ///< of each sequence
  std::vector<std::size_t> sequences;  ///< of each document
  std::vector<std::string> bad;        ///< messages of the skipped documents
  std::uint64_t bytes = 0;
};

/// The lines of `text` that are not blank.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    lines.push_back(line);
  }
  return lines;
}

/// The sequences of a text, without eod.
std::vector<Ids> encode_text(const Tokenizer& tokenizer, const PreprocessOptions& options,
                             const std::string& text) {
  const std::vector<std::string_view> parts =
      options.presplit_sentences ? lines_of(text)
      : options.split_sentences
          ? split_sentences(text, *options.split_sentences, options.keep_newlines)
          : std::vector<std::string_view>{text};
  std::vector<Ids> sequences;
  for (const std::string_view part : parts)
    if (Ids ids = tokenizer.encode(part); !ids.empty()) sequences.push_back(std::move(ids));
  return sequences;
}

/// The sequences of a document. Throws DataError that begins with its place.
std::vector<Ids> encode_document(const Tokenizer& tokenizer, const PreprocessOptions& options,
                                 const DocumentBatch& batch, const DocumentBatch::Record& record) {
  const std::string text = document_text(batch, record, options.source.key);
  std::vector<Ids> sequences;
  try {
    sequences = encode_text(tokenizer, options, text);
  } catch (const DataError& error) {
    throw DataError("{}: {}", place_of(batch, record), error.what());
  }
  if (options.append_eod && !sequences.empty()) sequences.back().push_back(*tokenizer.eod());
  return sequences;
}

EncodedBatch encode_batch(const Tokenizer& tokenizer, const PreprocessOptions& options,
                          const DocumentBatch& batch) {
  EncodedBatch encoded;
  encoded.bytes = batch.bytes.size();
  for (const DocumentBatch::Record& record : batch.records) {
    if (options.presplit_sentences && !batch.json && record.line > 0)
      throw UsageError(
          "--presplit-sentences: a document of '{}' is one line; give --document file, or JSON "
          "lines",
          batch.input);
    std::vector<Ids> sequences;
    try {
      sequences = encode_document(tokenizer, options, batch, record);
    } catch (const DataError& error) {
      if (!options.skip_bad) throw;
      encoded.bad.emplace_back(error.what());
      continue;
    }
    for (const Ids& ids : sequences) {
      encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
      encoded.lengths.push_back(ids.size());
    }
    encoded.sequences.push_back(sequences.size());
  }
  return encoded;
}

bool has_sentences(const PreprocessOptions& options) {
  return options.presplit_sentences || options.split_sentences;
}

/// "a.txt, b.txt", for messages.
std::string name_inputs(std::vector<std::string> inputs) {
  std::ranges::replace(inputs, std::string("-"), std::string("standard input"));
  return fmt::format("{}", fmt::join(inputs, ", "));
}

/// Bytes of the inputs; 0, for unknown, when one of them is not a regular file.
double input_bytes(const std::vector<std::string>& inputs) {
  double bytes = 0;
  for (const std::string& input : inputs) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(input, error)) return 0;
    bytes += static_cast<double>(std::filesystem::file_size(input, error));
  }
  return bytes;
}

/// Writes and counts the batches in their order, and reports progress.
class Collector {
 public:
  Collector(const Tokenizer& tokenizer, const PreprocessOptions& options)
      : log_(options.log),
        inputs_(name_inputs(options.source.inputs)),
        info_{.tokenizer = tokenizer.identity(),
              .options = DatasetInfo::Options{.key = options.source.key,
                                              .append_eod = options.append_eod,
                                              .presplit_sentences = options.presplit_sentences,
                                              .keep_blank_lines = options.source.keep_blank_lines,
                                              .split_sentences = language_of(options),
                                              .keep_newlines = options.keep_newlines}},
        writer_(dataset_prefix(options), tokenizer.vocab_size()),
        progress_("tokenizing", "B", input_bytes(options.source.inputs), options.progress) {
    summary_.dataset = dataset_prefix(options);
    summary_.vocab_size = tokenizer.vocab_size();
  }

  void take(const EncodedBatch& batch) {
    std::span<const std::int32_t> rest = batch.ids;
    auto length = batch.lengths.begin();
    for (std::size_t sequences : batch.sequences) {
      for (; sequences > 0; --sequences, ++length) {
        writer_.add_sequence(rest.first(*length));
        rest = rest.subspan(*length);
      }
      writer_.end_document();
    }
    for (const std::string& message : batch.bad) report_bad(message);
    summary_.documents += batch.sequences.size();
    summary_.tokens += batch.ids.size();
    summary_.bytes += batch.bytes;
    progress_.update(static_cast<double>(summary_.bytes));
  }

  PreprocessSummary finish() {
    if (summary_.documents == 0) throw DataError("{}: no document to write", inputs_);
    info_.largest_id = writer_.largest_id();
    info_.documents = summary_.documents;
    info_.tokens = summary_.tokens;
    writer_.finish(info_);
    summary_.seconds = clock_.seconds();
    return summary_;
  }

 private:
  static std::string language_of(const PreprocessOptions& options) {
    return options.split_sentences ? std::string(options.split_sentences->code) : "";
  }

  // A broken pipe of the log does not stop the work.
  void log(const std::string& line) {
    if (log_) std::fputs(line.c_str(), log_);
  }

  void report_bad(const std::string& message) {
    ++summary_.skipped;
    if (summary_.skipped <= kBadLinesShown) log(fmt::format("skipped: {}\n", message));
    if (summary_.skipped == kBadLinesShown)
      log("further unreadable documents are counted without a message\n");
  }

  std::FILE* log_;
  std::string inputs_;  ///< for messages
  DatasetInfo info_;
  DatasetWriter writer_;
  PreprocessSummary summary_;
  Stopwatch clock_;
  Progress progress_;
};

}  // namespace

std::string dataset_prefix(const PreprocessOptions& options) {
  return fmt::format("{}_{}_{}", options.output, options.source.key,
                     has_sentences(options) ? "sentence" : "document");
}

PreprocessSummary preprocess(const Tokenizer& tokenizer, const PreprocessOptions& options) {
  if (options.append_eod && !tokenizer.eod())
    throw UsageError("this {} vocabulary has no token to append at the end of a document ('{}')",
                     tokenizer.name(), kEndOfText);
  if (options.workers < 1) throw UsageError("--workers {}: must be at least 1", options.workers);
  if (options.presplit_sentences && options.split_sentences)
    throw UsageError("--split-sentences and --presplit-sentences exclude each other");
  if (options.keep_newlines && !options.split_sentences)
    throw UsageError("--keep-newlines is for --split-sentences");
  if (options.log && tokenizer.bert_tokens() && !has_sentences(options))
    std::fputs(
        "warning: this tokenizer has BERT's tokens, and the documents are not split into "
        "sentences; BERT's sentence pairs need --split-sentences or --presplit-sentences\n",
        options.log);
  DocumentReader reader(options.source);
  Collector collector(tokenizer, options);

  // Two batches per worker are in flight, so that a slow first batch leaves no worker idle; the
  // semaphore lets `workers` of them run. It is declared before `batches`, whose destructors wait
  // for threads that use it.
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

PresplitSummary presplit(const PresplitOptions& options) {
  PresplitSummary summary;
  PartFile output(options.output);
  DocumentReader reader(options.source);
  Progress meter("splitting", "B", /*total=*/0, options.progress);
  double bytes = 0;
  DocumentBatch batch;
  while (reader.read(batch)) {
    meter.update(bytes += static_cast<double>(batch.bytes.size()));
    for (const DocumentBatch::Record& record : batch.records) {
      std::string text = document_text(batch, record, options.source.key);
      if (options.standardize_punctuation) text = standardize_punctuation(text);
      std::string split;
      for (const std::string_view line : lines_of(text)) {
        for (const std::string_view sentence : split_sentences(line, *options.rules)) {
          if (!split.empty()) split += '\n';
          split += sentence;
          ++summary.sentences;
        }
      }
      const auto read = std::string_view(batch.bytes).substr(record.offset, record.size);
      const std::string& key = options.source.key;
      const std::string line = batch.json
                                   ? with_json_value(read, key, nlohmann::json(split).dump()) + "\n"
                                   : nlohmann::json{{key, split}}.dump() + "\n";
      output.write(line.data(), line.size());
      ++summary.documents;
    }
  }
  if (summary.documents == 0)
    throw DataError("{}: no document to write", name_inputs(options.source.inputs));
  output.sync();
  output.publish();
  return summary;
}

namespace {

/// Calls `take` with each line of the documents that is not empty; with `whole` with each document.
/// Those that cannot be read are left out if `skip_bad`.
void for_each_text(const DocumentSource& source, bool whole, bool skip_bad,
                   const std::function<void(std::string&)>& take) {
  DocumentReader reader(source);
  DocumentBatch batch;
  while (reader.read(batch)) {
    for (const auto& record : batch.records) {
      std::string text;
      try {
        text = document_text(batch, record, source.key);
      } catch (const DataError&) {
        if (!skip_bad) throw;
        continue;
      }
      if (whole) {
        if (!text.empty()) take(text);
        continue;
      }
      std::istringstream document(std::move(text));
      for (std::string line; std::getline(document, line);)
        if (!line.empty()) take(line);
    }
  }
}

/// Training on so many bytes takes several seconds.
constexpr std::uint64_t kLongTrainingBytes = 10'000'000;

std::filesystem::path vocab_path(std::filesystem::path model) {
  return model.extension() == ".model" ? model.replace_extension(".vocab") : model += ".vocab";
}

/// The file of a SentencePiece model's pieces. Throws UsageError where it is an input, which would
/// be lost, or a folder.
std::filesystem::path checked_vocab_path(const TrainingOptions& options) {
  const std::filesystem::path path = vocab_path(options.output);
  std::error_code ignored;
  const auto is_path = [&](const std::string& input) {
    return std::filesystem::equivalent(path, input, ignored);
  };
  const char* problem = std::ranges::any_of(options.source.inputs, is_path) ? "this is an input"
                        : std::filesystem::is_directory(path, ignored)      ? "this is a folder"
                                                                            : nullptr;
  if (problem)
    throw UsageError("{}, where the pieces of {} are written: {}; name another model",
                     path.string(), options.output.string(), problem);
  return path;
}

/// Publishes `text`, on disk first.
void publish(PartFile& file, const std::string& text) {
  file.write(text.data(), text.size());
  file.sync();
  file.publish();
}

}  // namespace

TrainingSummary train_tokenizer(const TrainingOptions& options) {
  const bool wordpiece = options.type == "wordpiece", bpe = options.type == "bpe";
  if (!wordpiece && !bpe && options.type != "sentencepiece")
    throw UsageError(
        "a tokenizer of type '{}' cannot be trained: expected sentencepiece, wordpiece or bpe",
        options.type);
  if (wordpiece && !options.lowercase)
    throw UsageError(
        "the wordpiece tokenizer needs --lowercase: true for a vocabulary without capitals "
        "(uncased), else false");
  if (!wordpiece && options.lowercase)
    throw UsageError("the {} tokenizer has no use for --lowercase", options.type);

  // Before the work, which may take hours.
  PartFile output(options.output);
  std::optional<PartFile> pieces_of_model;
  if (!wordpiece && !bpe) pieces_of_model.emplace(checked_vocab_path(options));

  const Stopwatch clock;
  TrainingSummary summary;
  WordPieceTrainer pieces(options.lowercase.value_or(false));
  BpeTrainer tokens(options.pattern);
  std::vector<std::string> lines;
  auto reading = std::make_unique<Progress>("reading text", "B", /*total=*/0, options.progress);
  for_each_text(options.source, bpe, options.skip_bad, [&](std::string& line) {
    if (bpe)
      summary.lines += static_cast<std::uint64_t>(std::count(line.begin(), line.end(), '\n'));
    ++summary.lines;
    summary.bytes += line.size();
    reading->update(static_cast<double>(summary.bytes));
    if (wordpiece)
      pieces.add(line);
    else if (bpe)
      tokens.add(line);
    else
      lines.push_back(std::move(line));
  });
  reading.reset();
  // SentencePiece's library reports no progress.
  if (options.progress && !wordpiece && !bpe && summary.bytes >= kLongTrainingBytes)
    std::fputs(fmt::format("training on {}, {}\n", counted(summary.lines, "line"),
                           counted(summary.bytes, "byte"))
                   .c_str(),
               options.progress);
  if (wordpiece) {
    std::string vocab;
    for (const std::string& piece : pieces.train(options.size, options.alphabet, options.progress))
      vocab += piece + "\n";
    publish(output, vocab);
  } else if (bpe) {
    publish(output, tokens.train(options.size, options.progress));
  } else {
    const SentencePieceModel trained =
        train_sentencepiece(lines, {.size = options.size,
                                    .model_type = options.model_type,
                                    .bert_tokens = options.bert_tokens});
    publish(*pieces_of_model, trained.vocab);
    publish(output, trained.model);
  }
  summary.seconds = clock.seconds();
  return summary;
}

}  // namespace trireme::tokenizer
