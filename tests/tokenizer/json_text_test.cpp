#include "tokenizer/preprocess/json_text.hpp"

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

TEST(JsonText, ObjectsAreTold) {
  for (const char* line : {R"({"text": 1})", "{}", R"( {"a": {"b": [NaN]}} )"})
    EXPECT_TRUE(is_json_object(line)) << line;
  for (const char* line : {"", "[]", "3", R"("{}")", "{", "{}{}", R"({"": )", "NaN", "[{}]"})
    EXPECT_FALSE(is_json_object(line)) << line;
}

}  // namespace
}  // namespace trireme::tokenizer
