// Evaluation tasks on texts: what a model says of targets and choices, and the scores that follow.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/dataset.hpp"
#include "evaluate/text_datasets.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::evaluate {

// What a model says of the targets of a cloze dataset: log-probabilities, and the most likely
// token.

/// Logits of one token on one tensor rank: of the ids from `first_id` on.
struct LocalLogits {
  std::int64_t first_id = 0;
  std::vector<float> values;
};

/// What the head computed of consecutive tokens of a micro-batch (Batch's memory layout).
struct ScoredTokens {
  std::int64_t first = 0;
  /// Of each token's label over the whole vocabulary, in nats, the same on all tensor ranks;
  /// undefined where the label is ignored.
  std::vector<double> log_probabilities;
  /// The logits of a token, its number counted from the start of the micro-batch.
  std::function<LocalLogits(std::int64_t token)> logits;
};

/// Of every target its log-probability and, if wanted, the most likely token in its place, over all
/// ranks: of equal logits the lower id.
class ClozeScores {
 public:
  enum class Want { log_probabilities, best_tokens };

  /// `dataset` must outlive this.
  explicit ClozeScores(const ClozeDataset& dataset, Want want = Want::best_tokens);

  /// Takes part of a micro-batch that begins with sample `first_sample`.
  void add(const data::Batch& batch, std::int64_t first_sample, const ScoredTokens& tokens);

  /// Combines the ranks, each of which may have seen any part. `max` takes the maximum of each of
  /// `count` numbers over all ranks.
  void combine(const std::function<void(double* values, std::size_t count)>& max);

  // After combine():

  /// The sum of the log-probabilities of item `item`'s target.
  double log_probability(std::int64_t item) const;
  /// Whether every token of its target is the most likely one; with Want::best_tokens.
  bool is_correct(std::int64_t item) const;
  /// How many items are.
  std::int64_t correct() const;

 private:
  std::span<const double> of_item(const std::vector<double>& values, std::int64_t item) const;

  const ClozeDataset& dataset_;
  Want want_;
  std::vector<std::size_t> offsets_;  ///< of each item's first target in the vectors below
  std::vector<double> log_probability_, logit_, id_;
};

// Counted baselines: what a model must beat to have learnt more than frequencies.

/// Mean negative log-likelihood per token in nats of counted models, the same labels as a GPT's
/// loss.
struct NgramLoss {
  double unigram = 0.0;
  double bigram = 0.0;
  std::int64_t tokens = 0;
};

/// Counts tokens and pairs of `train` (each of its samples once) and scores `held_out`. The unigram
/// has one added to each count; the bigram is interpolated with it by Witten-Bell: P(b|a) = (c(a,b)
/// + T(a) P(b)) / (c(a) + T(a)), T(a) the number of different followers of a. Source: Chen,
/// Goodman, "An empirical study of smoothing techniques for language modeling" (1998), section 2.4.
/// Datasets of tokens and labels (data::field), the ids of both below `vocab`. Reads both wholly,
/// in one process, and keeps a number for each pair that differs in memory. `progress` gets a
/// progress meter, null nothing. Throws as Dataset::read.
NgramLoss ngram_loss(const data::Dataset& train, const data::Dataset& held_out, std::int64_t vocab,
                     std::FILE* progress = nullptr);

// Multiple choice by likelihood, and prompts with targets: examples of their files as contexts and
// continuations. Conventions: EleutherAI's lm-evaluation-harness 0.4, without few-shot examples.

/// A question: each choice is a context with the continuation whose likelihood is compared.
struct Question {
  struct Choice {
    std::string context, continuation;
    std::string text;  ///< of the choice alone: its characters divide the normalised likelihood
  };
  std::vector<Choice> choices;
  std::size_t answer = 0;
};

/// Whether read_questions() reads the files of `task`: hellaswag, piqa, arc, winogrande, blimp, and
/// choices, the form for one's own questions.
bool is_multiple_choice(std::string_view task);

/// The questions of `path`, JSON lines as published for `task`, the first `limit` of them:
///   hellaswag   activity_label, ctx_a, ctx_b, endings, label
///   piqa        goal, sol1, sol2, and label, or the file *-labels.lst next to *.jsonl
///   arc         question.stem, question.choices [{text, label}], answerKey; or Hugging Face's form
///   winogrande  sentence with _, option1, option2, answer: the likelihood of what follows the gap
///   blimp       sentence_good, sentence_bad
///   choices     prompt, choices, answer (counted from 0); continuations are taken as they are
/// Throws IoError, and DataError that names file and line.
std::vector<Question> read_questions(std::string_view task, const std::string& path,
                                     std::int64_t limit);

/// Each line {"prompt": ..., "target": ...} of `path` as a question with one choice. Throws as
/// read_questions().
std::vector<Question> read_targets(const std::string& path, std::int64_t limit);

/// The tokens of a context and its continuation: encoded as one text, of which those past the
/// tokens of the context alone are the target; white space that ends the context belongs to the
/// continuation. Throws UnscorableText where no token is left for the target.
ClozeItem encode_pair(const Question::Choice& choice, const tokenizer::Tokenizer& tokenizer);

/// How a model answers.
struct ChoiceResult {
  std::int64_t questions = 0;
  std::int64_t correct = 0, correct_normalised = 0;
  double accuracy() const { return share(correct); }
  double accuracy_normalised() const { return share(correct_normalised); }
  /// The standard error of such an accuracy: sqrt(p (1 - p) / (n - 1)); 0 for one question.
  double standard_error(double accuracy) const;

 private:
  double share(std::int64_t count) const {
    return static_cast<double>(count) / static_cast<double>(questions);
  }
};

/// The answer to a question is the choice with the largest log-likelihood, normalised with the
/// largest log-likelihood per character of its text; of equal ones the first.
/// `log_likelihoods` has one for each choice of each question in turn.
ChoiceResult judge_choices(std::span<const Question> questions,
                           std::span<const double> log_likelihoods);

// The tasks on texts: what a model scores, and what the scores say. trireme-evaluate and the
// evaluations of a training run make them alike.

/// A task on a file.
struct TaskSpec {
  std::string name;  ///< one of task_names()
  std::string file;
  std::int64_t overlap = 32;  ///< wikitext: tokens from one window to the next
  /// The first windows, texts or questions alone.
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
};

/// perplexity, wikitext, lambada, strict-lambada, hellaswag, piqa, arc, winogrande, blimp, choices
/// and targets.
const std::vector<std::string_view>& task_names();

/// One number of a result.
struct Metric {
  std::string name;
  std::variant<std::int64_t, double> value;
};

/// Summed over all ranks.
struct SummedLoss {
  double loss = 0.0;    ///< negative log-likelihood of the labels in nats
  double tokens = 0.0;  ///< labels
};

/// A task with its file tokenized.
class Task {
 public:
  virtual ~Task() = default;

  /// What the model scores, each sample once.
  virtual const data::Dataset& dataset() const = 0;
  /// New scores, which the forward passes over dataset() fill; null: the loss alone is needed.
  virtual std::unique_ptr<ClozeScores> scores() const { return nullptr; }
  /// The numbers that matter most first. `scores` are those of scores(), combined.
  virtual std::vector<Metric> result(const SummedLoss& loss, const ClozeScores* scores) const = 0;
};

/// Reads the file of `spec` for a model of context length `sequence`. Throws UsageError for an
/// overlap outside 1 .. sequence, IoError, and DataError that names file and line.
std::unique_ptr<const Task> make_task(const TaskSpec& spec, const tokenizer::Tokenizer& tokenizer,
                                      std::int64_t sequence);

}  // namespace trireme::evaluate
