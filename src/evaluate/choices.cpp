#include "evaluate/tasks.hpp"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/preprocess/preprocess.hpp"

namespace trireme::evaluate {
namespace {

using Json = nlohmann::json;
using Make = Question (*)(const Json& line);

/// A problem of one line, without its place.
struct BadLine : std::runtime_error {
  using std::runtime_error::runtime_error;
};

const Json& member(const Json& object, const char* key) {
  if (!object.is_object()) throw BadLine("expected a JSON object");
  const auto found = object.find(key);
  if (found == object.end()) throw BadLine(fmt::format("there is no key '{}'", key));
  return *found;
}

std::string text(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (!value.is_string()) throw BadLine(fmt::format("'{}' is no text", key));
  return value.get<std::string>();
}

/// A whole number, also one that is written as text.
std::int64_t whole(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_string()) {
    const auto& digits = value.get_ref<const std::string&>();
    if (!digits.empty() && digits.size() < 10 &&
        digits.find_first_not_of("0123456789") == std::string::npos)
      return std::stoll(digits);
  }
  throw BadLine(fmt::format("'{}' is no whole number", key));
}

std::vector<std::string> texts(const Json& object, const char* key) {
  std::vector<std::string> found;
  const Json& list = member(object, key);
  if (!list.is_array()) throw BadLine(fmt::format("'{}' is no list of texts", key));
  for (const Json& each : list) {
    if (!each.is_string()) throw BadLine(fmt::format("'{}' is no list of texts", key));
    found.push_back(each.get<std::string>());
  }
  if (found.empty()) throw BadLine(fmt::format("'{}' is empty", key));
  return found;
}

std::size_t answer_of(std::int64_t number, std::int64_t first, std::size_t choices) {
  const std::int64_t index = number - first;
  if (index < 0 || index >= static_cast<std::int64_t>(choices))
    throw BadLine(fmt::format("the answer {} is none of {} choices", number, choices));
  return static_cast<std::size_t>(index);
}

/// One context, and each choice after a space: the harness's target_delimiter.
Question after_one_context(const std::string& context, const std::vector<std::string>& choices,
                           std::size_t answer) {
  Question question{.choices = {}, .answer = answer};
  for (const std::string& choice : choices)
    question.choices.push_back({context, fmt::format(" {}", choice), choice});
  return question;
}

/// Python's str.capitalize().
std::string capitalized(const std::string& text) {
  const auto whole = icu::UnicodeString::fromUTF8(text);
  if (whole.isEmpty()) return text;
  const UChar32 first = whole.char32At(0);
  icu::UnicodeString rest = whole.tempSubString(U16_LENGTH(first));
  std::string out;
  // Of some characters the title case is several.
  icu::UnicodeString(first)
      .toTitle(nullptr, icu::Locale::getRoot(), U_TITLECASE_NO_BREAK_ADJUSTMENT)
      .append(rest.toLower(icu::Locale::getRoot()))
      .toUTF8String(out);
  return out;
}

/// The harness's preprocess() of HellaSwag: brackets are left over from WikiHow.
std::string without_brackets(const std::string& raw) {
  std::string text = replace_all(std::string(strip_space(raw)), " [title]", ". ");
  for (std::size_t open = 0; (open = text.find('[', open)) != std::string::npos;) {
    const std::size_t close = text.find_first_of("]\n", open);
    if (close == std::string::npos) break;
    if (text[close] == ']')
      text.erase(open, close + 1 - open);
    else
      ++open;
  }
  return replace_all(text, "  ", " ");
}

Question hellaswag(const Json& line) {
  const std::string context = fmt::format("{}: {} {}", text(line, "activity_label"),
                                          text(line, "ctx_a"), capitalized(text(line, "ctx_b")));
  std::vector<std::string> endings = texts(line, "endings");
  for (std::string& ending : endings) ending = without_brackets(ending);
  return after_one_context(without_brackets(context), endings,
                           answer_of(whole(line, "label"), 0, endings.size()));
}

Question piqa(const Json& line) {
  return after_one_context(fmt::format("Question: {}\nAnswer:", text(line, "goal")),
                           {text(line, "sol1"), text(line, "sol2")},
                           answer_of(whole(line, "label"), 0, 2));
}

Question arc(const Json& line) {
  const Json& question = member(line, "question");
  const bool published = question.is_object();
  std::vector<std::string> choices, labels;
  if (published) {
    for (const Json& choice : member(question, "choices")) {
      choices.push_back(text(choice, "text"));
      labels.push_back(text(choice, "label"));
    }
  } else {
    choices = texts(member(line, "choices"), "text");
    labels = texts(member(line, "choices"), "label");
  }
  const std::string key = text(line, "answerKey");
  const auto answer = std::ranges::find(labels, key);
  if (answer == labels.end() || labels.size() != choices.size())
    throw BadLine(fmt::format("answerKey '{}' is the label of no choice", key));
  return after_one_context(fmt::format("Question: {}\nAnswer:",
                                       published ? text(question, "stem") : text(line, "question")),
                           choices, static_cast<std::size_t>(answer - labels.begin()));
}

Question winogrande(const Json& line) {
  const std::string sentence = text(line, "sentence");
  const std::size_t gap = sentence.find('_');
  if (gap == std::string::npos) throw BadLine("the sentence has no gap '_'");
  const std::string rest(strip_space(std::string_view(sentence).substr(gap + 1)));
  Question question{.choices = {}, .answer = answer_of(whole(line, "answer"), 1, 2)};
  for (const char* option : {"option1", "option2"})
    question.choices.push_back(
        {sentence.substr(0, gap) + text(line, option), fmt::format(" {}", rest), rest});
  return question;
}

Question blimp(const Json& line) {
  return after_one_context("", {text(line, "sentence_good"), text(line, "sentence_bad")}, 0);
}

Question own_choices(const Json& line) {
  Question question;
  for (const std::string& choice : texts(line, "choices"))
    question.choices.push_back({text(line, "prompt"), choice, choice});
  question.answer = answer_of(whole(line, "answer"), 0, question.choices.size());
  return question;
}

Question own_target(const Json& line) {
  const std::string target = text(line, "target");
  return {.choices = {{text(line, "prompt"), target, target}}, .answer = 0};
}

constexpr std::pair<std::string_view, Make> kTasks[] = {
    {"hellaswag", hellaswag},   {"piqa", piqa},   {"arc", arc},
    {"winogrande", winogrande}, {"blimp", blimp}, {"choices", own_choices}};

/// The labels of PIQA's questions, a line each, if they are in a separate file; else empty.
struct Labels {
  explicit Labels(const std::string& questions)
      : path(std::filesystem::path(tokenizer::without_compression_suffix(questions))
                 .replace_extension("")
                 .string() +
             "-labels.lst") {
    if (!std::filesystem::exists(path)) return;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines.emplace_back(strip_space(line));
    while (!lines.empty() && lines.back().empty()) lines.pop_back();
  }

  std::string path;
  std::vector<std::string> lines;
};

/// Characters of UTF-8, at least 1: the length that divides a log-likelihood.
double length_of(std::string_view text) {
  const auto characters = std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  return std::max(1.0, static_cast<double>(characters));
}

std::vector<Question> read_lines(const std::string& path, std::int64_t limit,
                                 const std::function<Question(Json& line, std::size_t i)>& make) {
  const tokenizer::DocumentSource source{.inputs = {path},
                                         .format = tokenizer::DocumentFormat::json_lines};
  tokenizer::DocumentReader reader(source);
  tokenizer::DocumentBatch batch;
  std::vector<Question> questions;
  while (reader.read(batch))
    for (const auto& record : batch.records) {
      if (std::ssize(questions) >= limit) return questions;
      const std::string place = tokenizer::place_of(batch, record);
      const auto fail = [&](const char* reason) { return DataError("{}: {}", place, reason); };
      try {
        Json line = Json::parse(std::string_view(batch.bytes).substr(record.offset, record.size));
        questions.push_back(make(line, questions.size()));
        questions.back().place = place;
      } catch (const BadLine& problem) {
        throw fail(problem.what());
      } catch (const Json::exception&) {
        throw fail("this is not JSON, or a value is of another type than expected");
      }
    }
  if (questions.empty()) throw DataError("{}: there is no example in it", path);
  return questions;
}

}  // namespace

bool is_multiple_choice(std::string_view task) {
  return std::ranges::any_of(kTasks, [&](const auto& each) { return each.first == task; });
}

std::vector<Question> read_questions(std::string_view task, const std::string& path,
                                     std::int64_t limit) {
  const auto found =
      std::ranges::find_if(kTasks, [&](const auto& each) { return each.first == task; });
  TRIREME_CHECK(found != std::end(kTasks), "no multiple-choice task is called '{}'", task);
  if (task != "piqa")
    return read_lines(path, limit, [&](Json& line, std::size_t) { return found->second(line); });
  const Labels labels(path);
  bool has_own = false;  // which come first
  auto questions = read_lines(path, limit, [&](Json& line, std::size_t i) {
    has_own = has_own || (line.is_object() && line.contains("label"));
    if (i < labels.lines.size() && line.is_object() && !line.contains("label"))
      line["label"] = labels.lines[i];
    return found->second(line);
  });
  const bool is_cut = std::ssize(questions) == limit;
  if (!is_cut && !has_own && labels.lines.size() > questions.size())
    throw DataError("'{}' has {} labels, but '{}' has {} questions: it is of another file",
                    labels.path, labels.lines.size(), path, questions.size());
  return questions;
}

std::vector<Question> read_targets(const std::string& path, std::int64_t limit) {
  return read_lines(path, limit, [](Json& line, std::size_t) { return own_target(line); });
}

ClozeItem encode_pair(const Question::Choice& choice, const tokenizer::Tokenizer& tokenizer,
                      const std::string& place) {
  // As the harness's _encode_pair() does.
  std::string_view context = choice.context;
  const std::string_view stripped = strip_space(context);
  context = stripped.empty()
                ? stripped
                : context.substr(0, stripped.data() + stripped.size() - context.data());
  ClozeItem item{.context = tokenizer.encode(context), .target = {}, .place = place};
  if (context.empty()) item.context.clear();
  const std::vector<std::int32_t> both = tokenizer.encode(choice.context + choice.continuation);
  const std::size_t before = item.context.size();
  if (both.size() <= before)
    throw DataError("{}: no token is left to predict of '{}'", place, choice.continuation);
  item.target.assign(both.begin() + static_cast<std::ptrdiff_t>(before), both.end());
  return item;
}

double ChoiceResult::standard_error(double accuracy) const {
  if (questions < 2) return 0.0;
  return std::sqrt(accuracy * (1.0 - accuracy) / static_cast<double>(questions - 1));
}

ChoiceResult judge_choices(std::span<const Question> questions,
                           std::span<const double> log_likelihoods) {
  ChoiceResult result{.questions = std::ssize(questions)};
  for (const Question& question : questions) {
    const std::size_t count = question.choices.size();
    const auto scores = log_likelihoods.first(count);
    log_likelihoods = log_likelihoods.subspan(count);
    std::vector<double> normalised(count);
    for (std::size_t i = 0; i < count; ++i)
      normalised[i] = scores[i] / length_of(question.choices[i].text);
    const auto chosen = [](const auto& values) {
      return static_cast<std::size_t>(std::ranges::max_element(values) - values.begin());
    };
    result.correct += chosen(scores) == question.answer;
    result.correct_normalised += chosen(normalised) == question.answer;
  }
  return result;
}

}  // namespace trireme::evaluate
