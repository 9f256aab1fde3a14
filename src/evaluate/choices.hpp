// Multiple choice by likelihood, and prompts with targets: examples of their files as contexts and
// continuations. Conventions: EleutherAI's lm-evaluation-harness 0.4, without few-shot examples.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evaluate/text_datasets.hpp"

namespace trireme::evaluate {

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

}  // namespace trireme::evaluate
