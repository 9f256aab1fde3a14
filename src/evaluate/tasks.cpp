#include "evaluate/tasks.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "evaluate/choices.hpp"
#include "evaluate/text_datasets.hpp"

namespace trireme::evaluate {
namespace {

double mean(const SummedLoss& loss) { return loss.tokens > 0.0 ? loss.loss / loss.tokens : 0.0; }

/// exp(loss), the loss cut at 20, as Megatron-LM does; NaN stays NaN.
double perplexity(double loss) { return std::exp(std::min(loss, 20.0)); }

Metric tokens_of(const SummedLoss& loss) {
  return {"tokens", static_cast<std::int64_t>(loss.tokens)};
}

/// The loss of every token of a text.
class PerplexityTask final : public Task {
 public:
  PerplexityTask(const TaskSpec& spec, const tokenizer::Tokenizer& tokenizer, std::int64_t sequence)
      : windows_(read(spec, tokenizer, sequence), sequence, sequence, tokenizer.eod().value_or(0)) {
  }

  const data::Dataset& dataset() const override { return windows_; }
  std::vector<Metric> result(const SummedLoss& loss, const ClozeScores*) const override {
    return {{"loss", mean(loss)}, {"perplexity", perplexity(mean(loss))}, tokens_of(loss)};
  }

 private:
  static std::vector<std::int32_t> read(const TaskSpec& spec, const tokenizer::Tokenizer& tokenizer,
                                        std::int64_t sequence) {
    const std::int64_t tokens = spec.limit < std::numeric_limits<std::int64_t>::max() / sequence - 1
                                    ? spec.limit * sequence + 1
                                    : std::numeric_limits<std::int64_t>::max();
    auto ids = read_documents(spec.file, tokenizer, tokens);
    if (std::ssize(ids) > tokens) ids.resize(tokens);
    return ids;
  }

  WindowDataset windows_;
};

/// Word-level perplexity. Source: Megatron-LM, tasks/zeroshot_gpt2.
class WikitextTask final : public Task {
 public:
  WikitextTask(const TaskSpec& spec, const tokenizer::Tokenizer& tokenizer, std::int64_t sequence)
      : WikitextTask(read_file(spec.file), spec, tokenizer, sequence) {}

  const data::Dataset& dataset() const override { return windows_; }
  std::vector<Metric> result(const SummedLoss& loss, const ClozeScores*) const override {
    const double ratio = loss.tokens / static_cast<double>(std::max<std::int64_t>(words_ - 1, 1));
    return {{"loss", mean(loss)},
            {"perplexity", perplexity(mean(loss))},
            {"adjusted_perplexity", perplexity(mean(loss) * ratio)},
            {"token_ratio", ratio},
            {"words", words_},
            tokens_of(loss)};
  }

 private:
  WikitextTask(const std::string& text, const TaskSpec& spec, const tokenizer::Tokenizer& tokenizer,
               std::int64_t sequence)
      : words_(count_words(text)),
        windows_(tokenizer.encode(detokenize(text, spec.file)), sequence, spec.overlap,
                 tokenizer.eod().value_or(0)) {}

  std::int64_t words_;
  WindowDataset windows_;
};

/// Whether the model predicts the targets of contexts.
class TargetTask final : public Task {
 public:
  TargetTask(std::vector<ClozeItem> items, const tokenizer::Tokenizer& tokenizer,
             std::int64_t sequence)
      : dataset_(std::move(items), sequence, tokenizer.eod().value_or(0)) {}

  const data::Dataset& dataset() const override { return dataset_; }
  std::unique_ptr<ClozeScores> scores() const override {
    return std::make_unique<ClozeScores>(dataset_);
  }
  std::vector<Metric> result(const SummedLoss& loss, const ClozeScores* scores) const override {
    const std::int64_t correct = scores->correct();
    const ChoiceResult counts{.questions = dataset_.samples(), .correct = correct};
    return {{"accuracy", counts.accuracy()},
            {"accuracy_stderr", counts.standard_error(counts.accuracy())},
            {"correct", correct},
            {"examples", counts.questions},
            {"loss", mean(loss)},
            {"perplexity", perplexity(mean(loss))},
            tokens_of(loss)};
  }

 private:
  ClozeDataset dataset_;
};

/// Multiple choice by likelihood.
class ChoiceTask final : public Task {
 public:
  ChoiceTask(std::vector<Question> questions, const tokenizer::Tokenizer& tokenizer,
             std::int64_t sequence)
      : questions_(std::move(questions)),
        dataset_(items(questions_, tokenizer), sequence, tokenizer.eod().value_or(0)) {}

  const data::Dataset& dataset() const override { return dataset_; }
  std::unique_ptr<ClozeScores> scores() const override {
    return std::make_unique<ClozeScores>(dataset_, ClozeScores::Want::log_probabilities);
  }
  std::vector<Metric> result(const SummedLoss& loss, const ClozeScores* scores) const override {
    std::vector<double> likelihoods(dataset_.samples());
    for (std::int64_t i = 0; i < dataset_.samples(); ++i)
      likelihoods[i] = scores->log_probability(i);
    const ChoiceResult found = judge_choices(questions_, likelihoods);
    return {{"accuracy", found.accuracy()},
            {"accuracy_stderr", found.standard_error(found.accuracy())},
            {"accuracy_norm", found.accuracy_normalised()},
            {"accuracy_norm_stderr", found.standard_error(found.accuracy_normalised())},
            {"correct", found.correct},
            {"correct_norm", found.correct_normalised},
            {"examples", found.questions},
            {"loss", mean(loss)},
            tokens_of(loss)};
  }

 private:
  static std::vector<ClozeItem> items(const std::vector<Question>& questions,
                                      const tokenizer::Tokenizer& tokenizer) {
    std::vector<ClozeItem> items;
    for (const Question& question : questions)
      for (const Question::Choice& choice : question.choices)
        items.push_back(encode_pair(choice, tokenizer));
    return items;
  }

  std::vector<Question> questions_;
  ClozeDataset dataset_;
};

}  // namespace

const std::vector<std::string_view>& task_names() {
  static const std::vector<std::string_view> names = {
      "perplexity", "wikitext",   "lambada", "strict-lambada", "hellaswag", "piqa",
      "arc",        "winogrande", "blimp",   "choices",        "targets"};
  return names;
}

namespace {

std::unique_ptr<const Task> task_of(const TaskSpec& spec, const tokenizer::Tokenizer& tokenizer,
                                    std::int64_t sequence) {
  const auto& [name, file, overlap, limit] = spec;
  if (name == "perplexity") return std::make_unique<PerplexityTask>(spec, tokenizer, sequence);
  if (name == "wikitext") return std::make_unique<WikitextTask>(spec, tokenizer, sequence);
  if (is_multiple_choice(name))
    return std::make_unique<ChoiceTask>(read_questions(name, file, limit), tokenizer, sequence);
  std::vector<ClozeItem> items;
  if (name == "targets") {
    for (const Question& question : read_targets(file, limit))
      items.push_back(encode_pair(question.choices.front(), tokenizer));
  } else {
    TRIREME_CHECK(name == "lambada" || name == "strict-lambada", "no task is called '{}'", name);
    items = read_lambada(file, tokenizer, name == "strict-lambada", limit);
  }
  return std::make_unique<TargetTask>(std::move(items), tokenizer, sequence);
}

}  // namespace

std::unique_ptr<const Task> make_task(const TaskSpec& spec, const tokenizer::Tokenizer& tokenizer,
                                      std::int64_t sequence) {
  try {
    return task_of(spec, tokenizer, sequence);
  } catch (const UnscorableText& error) {
    throw DataError("{}: {}", spec.file, error.what());
  }
}

}  // namespace trireme::evaluate
