#include "evaluate/tasks.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "../message_of.hpp"
#include "../scratch_folder.hpp"
#include "core/error.hpp"

namespace trireme::evaluate {
namespace {

class ChoicesTest : public testing::Test {
 protected:
  std::vector<Question> read(const char* task, const std::string& lines,
                             std::int64_t limit = 1000) {
    std::ofstream(path_) << lines << "\n";
    return read_questions(task, path_.string(), limit);
  }
  std::string refusal(const char* task, const std::string& line) {
    const std::string message = message_of<DataError>([&] { read(task, line); });
    return message.substr(std::min(message.find("/q") + 1, message.size()));
  }
  const ScratchFolder scratch_;
  const std::filesystem::path path_ = scratch_.path() / "q.jsonl";
};

// The expected texts are what the harness's Python functions return for these lines.
TEST_F(ChoicesTest, HellaSwagIsCleanedAsByTheHarness) {
  const auto questions = read(
      "hellaswag", R"({"activity_label": "Roof shingle removal", "ctx_a": "A man [title] high.", )"
                   R"("ctx_b": "hE [step] goes  UP", "label": "1", )"
                   R"("endings": [" he falls [x] down.", "he [a[b] rests", "[c\n] end"]})");
  ASSERT_EQ(questions.size(), 1u);
  EXPECT_EQ(questions[0].answer, 1u);
  ASSERT_EQ(questions[0].choices.size(), 3u);
  const auto& choices = questions[0].choices;
  EXPECT_EQ(choices[0].context, "Roof shingle removal: A man. high. He goes up");
  EXPECT_EQ(choices[0].continuation, " he falls down.");
  EXPECT_EQ(choices[1].text, "he rests");
  EXPECT_EQ(choices[2].text, "[c\n] end");
  const auto sharp =
      read("hellaswag", R"({"activity_label": "A", "ctx_a": "B.", "ctx_b": "ßETA Go", )"
                        R"("label": "0", "endings": ["x", "y"]})");
  EXPECT_EQ(sharp[0].choices[0].context, "A: B. Sseta go");
}

TEST_F(ChoicesTest, ReadsTheOtherPublishedForms) {
  auto found = read("piqa", R"({"goal": "Cut", "sol1": "a knife", "sol2": "a spoon", "label": 0})");
  EXPECT_EQ(found[0].choices[1].context, "Question: Cut\nAnswer:");
  EXPECT_EQ(found[0].choices[1].continuation, " a spoon");
  std::ofstream(scratch_.path() / "q-labels.lst") << "0\n1\n";
  found = read("piqa",
               "{\"goal\": \"A\", \"sol1\": \"b\", \"sol2\": \"c\"}\n"
               "{\"goal\": \"A\", \"sol1\": \"b\", \"sol2\": \"c\"}");
  EXPECT_EQ(found[0].answer, 0u);
  EXPECT_EQ(found[1].answer, 1u);
  // The name of a compressed file, which it need not be.
  const auto packed = scratch_.path() / "q.jsonl.gz";
  std::filesystem::copy(path_, packed);
  EXPECT_EQ(read_questions("piqa", packed.string(), 1000)[1].answer, 1u);

  const char* published =
      R"({"question": {"stem": "Why?", "choices": [{"text": "x", "label": "A"}, )"
      R"({"text": "y", "label": "B"}]}, "answerKey": "B"})";
  const char* hugging_face = R"({"question": "Why?", "choices": {"text": ["x", "y"], )"
                             R"("label": ["1", "2"]}, "answerKey": "2"})";
  for (const char* line : {published, hugging_face}) {
    found = read("arc", line);
    EXPECT_EQ(found[0].answer, 1u);
    EXPECT_EQ(found[0].choices[1].context, "Question: Why?\nAnswer:");
    EXPECT_EQ(found[0].choices[1].continuation, " y");
  }

  found = read("winogrande", R"({"sentence": "The _ is wet.", "option1": "cup", "option2": "oar", )"
                             R"("answer": "2"})");
  EXPECT_EQ(found[0].answer, 1u);
  EXPECT_EQ(found[0].choices[0].context, "The cup");
  EXPECT_EQ(found[0].choices[1].context, "The oar");
  EXPECT_EQ(found[0].choices[1].continuation, " is wet.");

  found = read("blimp", R"({"sentence_good": "He rows.", "sentence_bad": "He row."})");
  EXPECT_EQ(found[0].choices[1].context, "");
  EXPECT_EQ(found[0].choices[1].continuation, " He row.");

  found = read("choices", R"({"prompt": "2 + 2 =", "choices": [" 4", " 5"], "answer": 0})");
  EXPECT_EQ(found[0].choices[1].continuation, " 5");
}

TEST_F(ChoicesTest, WhatIsWrongIsSaidWithItsLine) {
  EXPECT_EQ(refusal("piqa", R"({"goal": "A", "sol1": "b", "sol2": "c"})"),
            "q.jsonl:1: there is no key 'label'");
  EXPECT_EQ(refusal("choices", R"({"prompt": "p", "choices": ["a"], "answer": 1})"),
            "q.jsonl:1: the answer 1 is none of 1 choices");
  EXPECT_EQ(refusal("choices", R"({"prompt": "p", "choices": "a", "answer": 0})"),
            "q.jsonl:1: 'choices' is no list of texts");
  EXPECT_EQ(refusal("blimp", "[1]"), "q.jsonl:1: expected a JSON object");
  EXPECT_EQ(refusal("blimp", "{"),
            "q.jsonl:1: this is not JSON, or a value is of another type than expected");
  EXPECT_EQ(
      refusal("winogrande", R"({"sentence": "x", "option1": "a", "option2": "b", "answer": "1"})"),
      "q.jsonl:1: the sentence has no gap '_'");
  const auto bytes = tokenizer::make_tokenizer({.type = "bytes"});
  for (const auto& [choice, problem] :
       {std::pair{"", "no token is left to predict of ''"},
        std::pair{"12345", "a target of 5 tokens: expected 1 to model.sequence = 4"}}) {
    read("choices", fmt::format("{0}[\"a\", \"b\"]}}\n{0}[\"{1}\"]}}",
                                R"({"answer": 0, "prompt": "p", "choices": )", choice));
    EXPECT_EQ(message_of<DataError>([&] {
                make_task({.name = "choices", .file = path_.string()}, *bytes, /*sequence=*/4);
              }),
              fmt::format("{}:2: {}", path_.string(), problem));
  }
}

TEST_F(ChoicesTest, LabelsOfAnotherFileAreRefused) {
  const std::string line = R"({"goal": "A", "sol1": "b", "sol2": "c"})",
                    labelled = R"({"goal": "A", "sol1": "b", "sol2": "c", "label": 1})";
  std::ofstream(scratch_.path() / "q-labels.lst") << "0\n1\n0\n\n";
  EXPECT_EQ(refusal("piqa", line + "\n" + line), "q-labels.lst' has 3 labels, but '" +
                                                     path_.string() +
                                                     "' has 2 questions: it is of another file");
  EXPECT_EQ(read("piqa", line + "\n" + line, 2).size(), 2u) << "the limit may cut the questions";
  EXPECT_EQ(read("piqa", line + "\n" + line + "\n" + line).size(), 3u);
  EXPECT_EQ(read("piqa", labelled)[0].answer, 1u) << "the labels are not used";
}

TEST_F(ChoicesTest, ALimitReadsNoFurther) {
  const std::string line = R"({"sentence_good": "a", "sentence_bad": "b"})";
  EXPECT_EQ(read("blimp", line + "\n" + line + "\nnot JSON", 2).size(), 2u);
}

TEST(EncodePair, WhiteSpaceThatEndsTheContextBelongsToTheContinuation) {
  const auto bytes = tokenizer::make_tokenizer({.type = "bytes"});
  const ClozeItem item = encode_pair({"ab ", "cd", "cd"}, *bytes);
  EXPECT_EQ(item.context, (std::vector<std::int32_t>{'a', 'b'}));
  EXPECT_EQ(item.target, (std::vector<std::int32_t>{' ', 'c', 'd'}));
  EXPECT_THROW(encode_pair({"ab", "", ""}, *bytes), DataError);
  // As Python's rstrip(): white space of Unicode, at the end alone.
  for (const std::string space : {"\xC2\xA0", "\xE3\x80\x80", "\x1F", "\n\xC2\x85"}) {
    const ClozeItem other = encode_pair({" a" + space, "c", "c"}, *bytes);
    EXPECT_EQ(other.context, (std::vector<std::int32_t>{' ', 'a'}));
    EXPECT_EQ(other.target.size(), space.size() + 1);
  }
}

TEST(JudgeChoices, NormalisesByCharactersAndCountsTiesForTheFirst) {
  const Question::Choice brief{"", "", "ab"}, accented{"", "", "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9"};
  const std::vector<Question> questions = {{{brief, accented}, 1}, {{brief, brief}, 0}};
  // Of 2 and 4 characters: -3 is more likely, -4 more likely per character.
  const std::vector<double> likelihoods = {-3.0, -4.0, -1.0, -1.0};
  const ChoiceResult result = judge_choices(questions, likelihoods);
  EXPECT_EQ(result.correct, 1);
  EXPECT_EQ(result.correct_normalised, 2);
  EXPECT_DOUBLE_EQ(result.standard_error(0.5), std::sqrt(0.25));
  EXPECT_DOUBLE_EQ(ChoiceResult{.questions = 1}.standard_error(1.0), 0.0);
}

}  // namespace
}  // namespace trireme::evaluate
