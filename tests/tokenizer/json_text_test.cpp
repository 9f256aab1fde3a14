#include "tokenizer/preprocess/preprocess.hpp"

#include "fixture.hpp"

namespace trireme::tokenizer {
namespace {

std::string text_of(const std::string& line) { return json_text(line, "text", "here"); }

TEST(JsonText, PythonsNumbersAreNumbers) {
  EXPECT_EQ(text_of(R"({"score": NaN, "text": "a"})"), "a");
  EXPECT_EQ(text_of(R"({"range": [-Infinity,Infinity], "text": "a", "n": {"x":NaN}})"), "a");
  EXPECT_EQ(text_of(R"({"score": NaN, "text": "NaN \"-Infinity\\", "\"NaN": 1})"),
            R"(NaN "-Infinity\)");
  EXPECT_EQ(message_of<DataError>([] { text_of(R"({"text": NaN})"); }),
            "here: 'text' is a number, not a string");
  // Other faults of the line are still told by their place.
  EXPECT_EQ(message_of<DataError>([] {
              text_of(R"({"text": "a", "score": -Infinity,})");
            }).find("here: not JSON at byte 34: syntax error while parsing object key"),
            0u);
  for (const char* line : {R"({"text": "a", "n": 5NaN})", R"({"text": "a", "n": --Infinity})",
                           R"({"text": "a", "n": NaNNaN})", R"({"text": "a", "n": nan})",
                           R"({"text": "a"} NaN)", R"({"text": "a", NaN: 1})", "NaN", "-Infinity"})
    EXPECT_THROW(text_of(line), DataError) << line;
}

TEST(JsonText, PythonsNumbersAreOfAnySize) {
  const std::string digits(400, '7');
  for (const std::string& number : {std::string("1e999"), std::string("-1E+999"),
                                    std::string("9.5e+0999"), digits, "-" + digits + ".5e1"}) {
    EXPECT_EQ(text_of(R"({"x": )" + number + R"(, "text": "a"})"), "a") << number;
    EXPECT_EQ(text_of(R"({"text": "a 1e999", "x":[)" + number + "]}"), "a 1e999") << number;
  }
  EXPECT_EQ(message_of<DataError>([] { text_of(R"({"text": 1e999})"); }),
            "here: 'text' is a number, not a string");
  for (const char* number :
       {"--1e999", "+1e999", "01e999", "1.e999", ".1e999", "1e999.5", "1e999e1", "1e999e",
        "1e999-1", "1e9991e999", "-", "1e", "1e999NaN", "0x1e999"})
    EXPECT_THROW(text_of(std::string(R"({"text": "a", "x": )") + number + "}"), DataError)
        << number;
}

TEST(JsonText, OtherKeysMayHoldHalfASurrogatePair) {
  EXPECT_EQ(text_of(R"({"text": "ok", "title": "cut \ud83d"})"), "ok");
  EXPECT_EQ(text_of(R"({"title": "\uDE00\ud83dx\\", "\udfff": "\ud83d\ud83d", "text": "ok"})"),
            "ok");
  EXPECT_EQ(text_of(R"({"a": ["\ud800"], "text": "\ud83d\ude00 \\ud800 \ufffd", "n": NaN})"),
            "\U0001F600 \\ud800 \uFFFD");
  EXPECT_EQ(text_of(R"({"text": "\ud800", "text": "the last one counts"})"), "the last one counts");
  for (const char* line : {R"({"text": "a\ud800"})", R"({"n": NaN, "text": "\ude00\ud83d"})",
                           R"({"text": "\uD83D\\ude00"})"})
    EXPECT_EQ(message_of<DataError>([&] { text_of(line); }),
              R"(here: 'text' has half of a surrogate pair (\ud800 to \udfff): no character)")
        << line;
  for (const char* line : {R"({"text": "a", "b": "\ud80"})", R"({"text": "a", "b": "\ud800)",
                           R"({"text": "a", "b": "\ud800\x"})", R"({"text": "a", "b": \ud800})",
                           R"({"text": "a", "b": "\ud8+0"})"})
    EXPECT_THROW(text_of(line), DataError) << line;
}

TEST(JsonText, ObjectsAreTold) {
  for (const char* line :
       {R"({"text": 1})", "{}", R"( {"a": {"b": [NaN]}} )", R"({"": "\ud800", "n": 1e999})"})
    EXPECT_TRUE(is_json_object(line)) << line;
  for (const char* line : {"", "[]", "3", R"("{}")", "{", "{}{}", R"({"": )", "NaN", "[{}]"})
    EXPECT_FALSE(is_json_object(line)) << line;
}

}  // namespace
}  // namespace trireme::tokenizer
