// Evaluation on texts: the datasets, what a model says of targets and choices, and the scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/error.hpp"
#include "data/dataset.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::evaluate {

// Texts as datasets for evaluation: windows over a stream of tokens, and contexts with the tokens
// that should follow (cloze tasks).

/// Texts that cannot be scored: the message names no file, which only the caller knows.
class UnscorableText : public DataError {
 public:
  using DataError::DataError;
};

/// Windows of `sequence` tokens over a stream of N tokens, `step` apart. Every token but the first
/// is the label of exactly one window: window 0 has `sequence` labels, each other one the last
/// `step`, which so have at least sequence - step tokens of context. Source: Megatron-LM,
/// tasks/zeroshot_gpt2 (--overlapping-eval), without its last windows, which score nothing.
class WindowDataset final : public data::Dataset {
 public:
  /// `padding` fills the last window. Throws UsageError unless 1 <= step <= sequence,
  /// UnscorableText for fewer than two tokens.
  WindowDataset(std::vector<std::int32_t> tokens, std::int64_t sequence, std::int64_t step,
                std::int32_t padding);

  std::int64_t samples() const override { return samples_; }
  const std::vector<data::Field>& fields() const override { return fields_; }
  void read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const override;
  void require_unchanged() const override {}
  /// Tokens of the stream.
  std::int64_t tokens() const { return std::ssize(tokens_); }

 private:
  std::vector<std::int32_t> tokens_;
  std::int64_t sequence_, step_, samples_ = 0;
  std::int32_t padding_;
  std::vector<data::Field> fields_;
};

/// A context and the tokens that should follow it.
struct ClozeItem {
  std::vector<std::int32_t> context, target;
  std::string place = "";  ///< "file:line", for messages
};

/// One item a sample, padded at the end; its labels are the targets. Of an item longer than
/// `sequence` + 1 the first tokens of the context are dropped.
class ClozeDataset final : public data::Dataset {
 public:
  /// Every item has a target of 1 to `sequence` tokens; an empty context becomes `padding`. Throws
  /// UnscorableText where there is no item, DataError where one has a target of another length.
  ClozeDataset(std::vector<ClozeItem> items, std::int64_t sequence, std::int32_t padding);

  std::int64_t samples() const override { return std::ssize(items_); }
  const std::vector<data::Field>& fields() const override { return fields_; }
  void read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const override;
  void require_unchanged() const override {}
  const std::vector<ClozeItem>& items() const { return items_; }

 private:
  std::vector<ClozeItem> items_;
  std::int64_t sequence_;
  std::int32_t padding_;
  std::vector<data::Field> fields_;
};

/// LAMBADA's items of JSON lines with a "text" in `path`. The target is the last token of the text;
/// with `strict` all tokens of " " and its last word, and the context is the text before it,
/// stripped. The first `limit` lines. Throws IoError and DataError that names the line.
std::vector<ClozeItem> read_lambada(const std::string& path, const tokenizer::Tokenizer& tokenizer,
                                    bool strict,
                                    std::int64_t limit = std::numeric_limits<std::int64_t>::max());

/// The token ids of the documents in `path` (JSON lines with a "text"; *.txt, compressed or not, is
/// one document), each followed by the end-of-document token where the tokenizer has one; reads no
/// further document once there are `enough`. Throws IoError and DataError.
std::vector<std::int32_t> read_documents(
    const std::string& path, const tokenizer::Tokenizer& tokenizer,
    std::int64_t enough = std::numeric_limits<std::int64_t>::max());

/// The text of a file, compressed or not. Throws IoError, and DataError where it is not UTF-8.
std::string read_text(const std::string& path);

/// The first samples of a dataset, which must outlive this.
class FirstSamples final : public data::Dataset {
 public:
  FirstSamples(const data::Dataset& whole, std::int64_t samples)
      : whole_(whole), samples_(std::min(whole.samples(), samples)) {}

  std::int64_t samples() const override { return samples_; }
  const std::vector<data::Field>& fields() const override { return whole_.fields(); }
  void read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const override {
    whole_.read(sample, tensors);
  }
  void require_unchanged() const override { whole_.require_unchanged(); }

 private:
  const data::Dataset& whole_;
  std::int64_t samples_;
};

// Text of tokenized corpora as people write it. Source: Megatron-LM, tasks/zeroshot_gpt2.

/// Undoes the tokenization of WikiText: " @-@ ", spaces before punctuation and within brackets and
/// quotes, headings. The replacements and their order are Megatron-LM's wikitext_detokenizer().
std::string detokenize_wikitext(std::string text);

/// Undoes the tokenization of the Penn Treebank: Megatron-LM's ptb_detokenizer().
std::string detokenize_ptb(std::string text);

/// The detokenizer that Megatron-LM takes for a file: by its path, "ptb" or else WikiText's.
std::string detokenize(std::string text, const std::filesystem::path& path);

/// Python's str.replace().
std::string replace_all(const std::string& text, std::string_view from, std::string_view to);

/// Python's str.strip(): without the white space at both ends.
std::string_view strip_space(std::string_view text);

/// Where the last word of `text`, which does not end with white space, begins: what follows the
/// last white space; text.size() for an empty text.
std::size_t last_word(std::string_view text);

/// Words of `text` as the word-level perplexity counts them: what single spaces separate, after
/// white space at both ends is removed.
std::int64_t count_words(std::string_view text);

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
  std::string place = "";  ///< "file:line", for messages
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
/// continuation. `place` is the question's. Throws DataError where no token is left for the target.
ClozeItem encode_pair(const Question::Choice& choice, const tokenizer::Tokenizer& tokenizer,
                      const std::string& place = "");

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
  /// wikitext: tokens from one window to the next; without it 32, in shorter windows all.
  std::optional<std::int64_t> overlap;
  /// The first windows, texts or questions alone.
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
};

/// What logs call each of the tasks: its name; where several have it, with its file's without the
/// suffix, "blimp/anaphor_number"; where these are equal, with as much of the paths as tells them
/// apart, "perplexity/de/news" and "perplexity/en/news", or the suffix; else with a number.
std::vector<std::string> task_labels(std::span<const TaskSpec> tasks);

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
