#include "tokenizer/preprocess/preprocess.hpp"

#include <functional>
#include <memory>
#include <sstream>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "tokenizer/sentencepiece.hpp"
#include "tokenizer/wordpiece.hpp"

namespace trireme::tokenizer {
namespace {

/// Calls `take` with each line of the documents that is not empty.
void for_each_line(const DocumentSource& source, const std::function<void(std::string&)>& take) {
  DocumentReader reader(source);
  DocumentBatch batch;
  while (reader.read(batch)) {
    for (const auto& record : batch.records) {
      std::istringstream document(document_text(batch, record, source.key));
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
  const bool wordpiece = options.type == "wordpiece";
  if (!wordpiece && options.type != "sentencepiece")
    throw UsageError(
        "a tokenizer of type '{}' cannot be trained: expected sentencepiece or wordpiece",
        options.type);
  if (wordpiece && !options.lowercase)
    throw UsageError(
        "the wordpiece tokenizer needs 'lowercase': true for a vocabulary without capitals "
        "(uncased), else false");
  if (!wordpiece && options.lowercase)
    throw UsageError("the sentencepiece tokenizer has no use for 'lowercase'");

  const Stopwatch clock;
  TrainingSummary summary;
  WordPieceTrainer pieces(options.lowercase.value_or(false));
  std::vector<std::string> lines;
  auto reading = std::make_unique<Progress>("reading text", "B", /*total=*/0, options.progress);
  for_each_line(options.source, [&](std::string& line) {
    ++summary.lines;
    summary.bytes += line.size();
    reading->update(static_cast<double>(summary.bytes));
    if (wordpiece)
      pieces.add(line);
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
