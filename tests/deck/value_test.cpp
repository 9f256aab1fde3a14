#include "deck/value.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/error.hpp"
#include "deck/keys/schema.hpp"

namespace trireme::deck {
namespace {

TEST(Number, WholeNumbersAreExactInAnyForm) {
  EXPECT_EQ(parse_whole("0"), 0);
  EXPECT_EQ(parse_whole("1_000"), 1000);
  EXPECT_EQ(parse_whole("-1.5e9"), -1'500'000'000);
  EXPECT_EQ(parse_whole("120e-1"), 12);
  EXPECT_EQ(parse_whole("9223372036854775807"), INT64_MAX);
  for (const char* text : {"1.5", "1e-1", "", "e9", "1__0", "_1", "1_", "0x10", "12 "})
    EXPECT_THROW(parse_whole(text), BadValue) << text;
  EXPECT_THROW(parse_whole("9223372036854775808"), BadValue);
  EXPECT_THROW(parse_whole("1e9999999999"), BadValue);
}

TEST(Number, RealNumbersAreRoundedOnce) {
  EXPECT_EQ(parse_real("0.1"), 0.1);
  EXPECT_EQ(parse_real("-2_0.5e-3"), -0.0205);
  EXPECT_THROW(parse_real("1e999"), BadValue);
  EXPECT_THROW(parse_real("1.5 hours"), BadValue);
}

TEST(Number, SuffixesCountAndPercentIsAShare) {
  EXPECT_EQ(parse_whole("10k", Suffix::allowed), 10'000);
  EXPECT_EQ(parse_whole("1.5B", Suffix::allowed), 1'500'000'000);
  EXPECT_EQ(parse_whole("0.25M", Suffix::allowed), 250'000);
  EXPECT_THROW(parse_whole("1.0005k", Suffix::allowed), BadValue);
  EXPECT_THROW(parse_whole("k", Suffix::allowed), BadValue);
  EXPECT_THROW(parse_whole("10k"), BadValue);
  EXPECT_EQ(parse_real("5%"), 0.05);
  EXPECT_EQ(parse_real("0.1%"), 0.001);
  EXPECT_THROW(parse_real("%"), BadValue);
}

TEST(Number, LeadsALength) {
  EXPECT_EQ(leading_number("20s"), "20");
  EXPECT_EQ(leading_number("1.5e3 samples"), "1.5e3");
  EXPECT_EQ(leading_number("2 epochs"), "2");
  EXPECT_EQ(leading_number("2e"), "2");
  EXPECT_EQ(leading_number("-1e-3x"), "-1e-3");
  EXPECT_EQ(leading_number("x"), "");
}

TEST(Number, ClockTimesAreSeconds) {
  EXPECT_EQ(parse_clock("1:30:00"), 5400);
  EXPECT_EQ(parse_clock("100:00:07"), 360'007);
  EXPECT_EQ(parse_clock("90 minutes"), std::nullopt);
  for (const char* text :
       {"1:30", ":30:00", "1:60:00", "1:3:00", "1:00:60", "-1:00:00", "1:00:00:00"})
    EXPECT_THROW(parse_clock(text), BadValue) << text;
}

TEST(Number, IsToldFromText) {
  EXPECT_TRUE(is_decimal("-.5e+3"));
  EXPECT_FALSE(is_decimal("data_1"));
  EXPECT_THROW(is_decimal("010"), BadValue);
}

TEST(NodeKinds, AreReadFromAListOrATextAndReadBack) {
  using Kinds = Codec<std::vector<NodeKind>>;
  const auto read = [](const std::string& yaml) {
    Problems problems("", {});
    return Kinds::read(read_yaml(yaml, 0, problems), {});
  };
  const std::vector<NodeKind> two = {{1, "a100", 8}, {2, "a10", 4}};
  EXPECT_EQ(read("[1*a100:8, 2*a10:4]"), two);
  EXPECT_EQ(read("1*a100:8, 2*a10:4"), two);
  EXPECT_EQ(read(Kinds::write(two)), two);
  EXPECT_EQ(read("8"), (std::vector<NodeKind>{{{}, "", 8}}));
  EXPECT_EQ(read("a10:4"), (std::vector<NodeKind>{{{}, "a10", 4}}));
  for (const char* bad : {"x", "-1", "a10:", ":4", "a10:0", "0*4", "2*", "a b:4", "[]", "a10:4, 8",
                          "1*a:0, 1*b:2", "99999999"})
    EXPECT_THROW(read(bad), BadValue) << bad;
}

TEST(TimeOption, IsWrittenAsInADeckOrInSlurm) {
  EXPECT_EQ(read_time_option("--time", "90min"), 5400);
  EXPECT_EQ(read_time_option("--time", "20s"), 20);
  EXPECT_EQ(read_time_option("--time", "1.5 hours"), 5400);
  EXPECT_EQ(read_time_option("--time", ".5h"), 1800);
  EXPECT_EQ(read_time_option("--time", "1:30:00"), 5400);
  EXPECT_EQ(read_time_option("--time", "1h30m"), 5400);
  EXPECT_EQ(read_time_option("--time", "1h 30 min"), 5400);
  EXPECT_EQ(read_time_option("--time", "1d2h"), 93600);
  EXPECT_EQ(read_time_option("--time", "2 days"), 172800);
  EXPECT_EQ(read_time_option("--time", "90:00"), 5400);
  EXPECT_EQ(read_time_option("--time", "1-00:00:10"), 86410);
  for (const char* text :
       {"", "90", "10k", "5%", "90 iterations", "-1 s", "1h-5m", "1e30h", "soon"}) {
    try {
      read_time_option("--time", text);
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_EQ(error.what(), fmt::format("--time {}: expected a time, such as 90min, 1.5 hours or "
                                          "1:30:00",
                                          text));
    }
  }
}

TEST(Synonyms, NameKeysThatExistAndAreNoKeysThemselves) {
  std::set<std::string> names;
  for (const Synonym& synonym : synonyms()) {
    EXPECT_TRUE(names.insert(plain_name(synonym.name)).second) << synonym.name << " is there twice";
    EXPECT_EQ(find_synonym(synonym.name), &synonym);
    EXPECT_TRUE(synonym.key.empty() || find_key(synonym.key) || is_section(synonym.key))
        << synonym.name;
    EXPECT_FALSE(synonym.key.empty() && synonym.note.empty()) << synonym.name;
    EXPECT_EQ(find_key(synonym.name), nullptr);
  }
  EXPECT_EQ(find_synonym("Grad Accumulation")->key, "batch.global");
  EXPECT_EQ(find_synonym("frobnicate"), nullptr);
}

TEST(Synonyms, OfValues) {
  EXPECT_EQ(synonymous_value("torch.bfloat16", {"fp32", "bf16"}), "bf16");
  EXPECT_EQ(synonymous_value("bfloat16", {"megatron", "v1"}), "");
}

}  // namespace

}  // namespace trireme::deck
