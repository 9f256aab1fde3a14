#include "tokenizer/preprocess/preprocess.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "tokenizer/bpe/bpe.hpp"
#include "tokenizer/sentencepiece.hpp"
#include "tokenizer/wordpiece.hpp"

namespace trireme::tokenizer {
namespace {

/// Calls `take` with each line of the documents that is not empty; with `whole` with each document.
void for_each_text(const DocumentSource& source, bool whole,
                   const std::function<void(std::string&)>& take) {
  DocumentReader reader(source);
  DocumentBatch batch;
  while (reader.read(batch)) {
    for (const auto& record : batch.records) {
      std::string text = document_text(batch, record, source.key);
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

}  // namespace

TrainingSummary train_tokenizer(const TrainingOptions& options) {
  const bool wordpiece = options.type == "wordpiece", bpe = options.type == "bpe";
  if (!wordpiece && !bpe && options.type != "sentencepiece")
    throw UsageError(
        "a tokenizer of type '{}' cannot be trained: expected sentencepiece, wordpiece or bpe",
        options.type);
  if (wordpiece && !options.lowercase)
    throw UsageError(
        "the wordpiece tokenizer needs 'lowercase': true for a vocabulary without capitals "
        "(uncased), else false");
  if (!wordpiece && options.lowercase)
    throw UsageError("the {} tokenizer has no use for 'lowercase'", options.type);

  const Stopwatch clock;
  TrainingSummary summary;
  WordPieceTrainer pieces(options.lowercase.value_or(false));
  BpeTrainer tokens(options.pattern);
  std::vector<std::string> lines;
  auto reading = std::make_unique<Progress>("reading text", "B", /*total=*/0, options.progress);
  for_each_text(options.source, bpe, [&](std::string& line) {
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
  reading.reset();  // the training itself reports no progress
  if (options.progress && summary.bytes >= kLongTrainingBytes)
    std::fputs(fmt::format("training on {}, {}\n", counted(summary.lines, "line"),
                           counted(summary.bytes, "byte"))
                   .c_str(),
               options.progress);
  if (wordpiece) {
    std::string vocab;
    for (const std::string& piece : pieces.train(options.size, options.alphabet))
      vocab += piece + "\n";
    write_file_atomically(options.output, vocab);
  } else if (bpe) {
    write_file_atomically(options.output, tokens.train(options.size));
  } else {
    const SentencePieceModel trained =
        train_sentencepiece(lines, {.size = options.size,
                                    .model_type = options.model_type,
                                    .bert_tokens = options.bert_tokens});
    write_file_atomically(vocab_path(options.output), trained.vocab);
    write_file_atomically(options.output, trained.model);
  }
  summary.seconds = clock.seconds();
  return summary;
}

}  // namespace trireme::tokenizer
