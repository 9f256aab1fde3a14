#include "evaluate/tasks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "data/dataset.hpp"

namespace trireme::evaluate {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

}  // namespace

ClozeScores::ClozeScores(const ClozeDataset& dataset, Want want) : dataset_(dataset), want_(want) {
  std::size_t targets = 0;
  for (const ClozeItem& item : dataset.items()) {
    offsets_.push_back(targets);
    targets += item.target.size();
  }
  log_probability_.assign(targets, kNone);
  if (want_ != Want::best_tokens) return;
  logit_.assign(targets, kNone);
  id_.assign(targets, 0.0);
}

void ClozeScores::add(const data::Batch& batch, std::int64_t first_sample,
                      const ScoredTokens& tokens) {
  const auto labels = batch.tensor(data::field::kLabels);
  const std::int64_t samples = batch.samples();
  const std::int64_t sequence = std::ssize(labels) / samples;
  const std::int64_t end = tokens.first + std::ssize(tokens.log_probabilities);
  for (std::int64_t j = 0; j < samples; ++j) {
    if (first_sample + j >= dataset_.samples()) return;
    std::size_t target = offsets_[first_sample + j];
    for (std::int64_t i = 0; i < sequence; ++i) {
      const std::int64_t token = i * samples + j;
      if (labels[token] == data::kIgnoredLabel) continue;
      const std::size_t at = target++;
      if (token < tokens.first || token >= end) continue;
      log_probability_[at] = tokens.log_probabilities[token - tokens.first];
      if (want_ != Want::best_tokens) continue;
      const LocalLogits local = tokens.logits(token);
      const auto best = std::ranges::max_element(local.values);
      if (best == local.values.end()) continue;
      logit_[at] = *best;
      id_[at] = static_cast<double>(local.first_id + (best - local.values.begin()));
    }
  }
}

void ClozeScores::combine(const std::function<void(double*, std::size_t)>& max) {
  max(log_probability_.data(), log_probability_.size());
  if (want_ != Want::best_tokens) return;
  const std::vector<double> mine = logit_;
  max(logit_.data(), logit_.size());
  // The lowest of the ids that have the largest logit: as a maximum of their negatives.
  for (std::size_t i = 0; i < id_.size(); ++i) id_[i] = mine[i] == logit_[i] ? -id_[i] : kNone;
  max(id_.data(), id_.size());
  for (double& id : id_) id = -id;
}

std::span<const double> ClozeScores::of_item(const std::vector<double>& values,
                                             std::int64_t item) const {
  return std::span(values).subspan(offsets_[item], dataset_.items()[item].target.size());
}

double ClozeScores::log_probability(std::int64_t item) const {
  const auto values = of_item(log_probability_, item);
  return std::accumulate(values.begin(), values.end(), 0.0);
}

bool ClozeScores::is_correct(std::int64_t item) const {
  return std::ranges::equal(dataset_.items()[item].target, of_item(id_, item),
                            [](std::int32_t wanted, double found) { return wanted == found; });
}

std::int64_t ClozeScores::correct() const {
  std::int64_t correct = 0;
  for (std::int64_t item = 0; item < dataset_.samples(); ++item) correct += is_correct(item);
  return correct;
}

namespace {

/// Calls `visit(previous, token)` for every label of the dataset that counts; `what` is the work.
template <typename Visit>
void for_each_pair(const data::Dataset& dataset, const char* what, std::FILE* progress,
                   Visit&& visit) {
  Progress meter(what, "sample", static_cast<double>(dataset.samples()), progress);
  data::Batch sample;
  sample.resize(dataset.fields(), 1);
  const auto tokens = sample.tensor(data::field::kTokens);
  const auto labels = sample.tensor(data::field::kLabels);
  for (std::int64_t number = 0; number < dataset.samples(); ++number) {
    sample.read(dataset, number, 0);
    for (std::size_t i = 0; i < labels.size(); ++i)
      if (labels[i] != data::kIgnoredLabel) visit(tokens[i], labels[i]);
    meter.update(static_cast<double>(number + 1));
  }
}

}  // namespace

NgramLoss ngram_loss(const data::Dataset& train, const data::Dataset& held_out, std::int64_t vocab,
                     std::FILE* progress) {
  std::vector<double> counts(vocab, 0.0), contexts(vocab, 0.0), followers(vocab, 0.0);
  std::unordered_map<std::uint64_t, double> pairs;
  double total = 0.0;
  const auto pair_key = [&](std::int32_t a, std::int32_t b) {
    return static_cast<std::uint64_t>(a) * vocab + b;
  };
  for_each_pair(train, "counting", progress, [&](std::int32_t a, std::int32_t b) {
    ++total;
    ++counts[b];
    ++contexts[a];
    if (++pairs[pair_key(a, b)] == 1.0) ++followers[a];
  });

  NgramLoss loss;
  for_each_pair(held_out, "scoring", progress, [&](std::int32_t a, std::int32_t b) {
    const double unigram = (counts[b] + 1.0) / (total + static_cast<double>(vocab));
    const auto found = pairs.find(pair_key(a, b));
    const double pair = found == pairs.end() ? 0.0 : found->second;
    const double weight = contexts[a] + followers[a];
    const double bigram = weight > 0.0 ? (pair + followers[a] * unigram) / weight : unigram;
    loss.unigram -= std::log(unigram);
    loss.bigram -= std::log(bigram);
    ++loss.tokens;
  });
  if (loss.tokens > 0) {
    loss.unigram /= static_cast<double>(loss.tokens);
    loss.bigram /= static_cast<double>(loss.tokens);
  }
  return loss;
}

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
      : WikitextTask(read_text(spec.file), spec, tokenizer, sequence) {}

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
        windows_(tokenizer.encode(detokenize(text, spec.file)), sequence,
                 spec.overlap.value_or(std::min<std::int64_t>(32, sequence)),
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
        items.push_back(encode_pair(choice, tokenizer, question.place));
    return items;
  }

  std::vector<Question> questions_;
  ClozeDataset dataset_;
};

/// The last `folders` folders of `path` and its name, with its suffix or without.
std::string end_of_path(const std::filesystem::path& path, std::ptrdiff_t folders, bool suffix) {
  const std::filesystem::path whole = path.lexically_normal().relative_path();
  auto first = whole.end();
  for (std::ptrdiff_t i = 0; i <= folders && first != whole.begin(); ++i) --first;
  std::filesystem::path end;
  for (; first != whole.end(); ++first) end /= *first;
  return suffix ? end.string() : end.replace_extension().string();
}

}  // namespace

std::vector<std::string> task_labels(std::span<const TaskSpec> tasks) {
  std::vector<std::string> labels(tasks.size());
  std::ptrdiff_t deepest = 0;
  for (const TaskSpec& task : tasks) {
    const std::filesystem::path path = task.file;
    deepest = std::max(deepest, std::distance(path.begin(), path.end()));
  }
  const auto label_unique = [&](const auto& label_of) {
    std::vector<std::string> all;
    for (const TaskSpec& task : tasks) all.push_back(label_of(task));
    for (std::size_t i = 0; i < tasks.size(); ++i)
      if (labels[i].empty() && std::ranges::count(all, all[i]) == 1) labels[i] = all[i];
  };
  label_unique([](const TaskSpec& task) { return task.name; });
  for (const bool suffix : {false, true})
    for (std::ptrdiff_t folders = 0; folders < deepest; ++folders)
      label_unique([&](const TaskSpec& task) {
        return task.name + "/" + end_of_path(task.file, folders, suffix);
      });
  for (std::size_t i = 0; i < tasks.size(); ++i)  // one file twice
    if (labels[i].empty())
      labels[i] =
          fmt::format("{}/{}#{}", tasks[i].name, end_of_path(tasks[i].file, 0, false), i + 1);
  return labels;
}

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
      items.push_back(encode_pair(question.choices.front(), tokenizer, question.place));
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
