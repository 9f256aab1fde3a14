#include <gtest/gtest.h>

#include <set>

#include "convert/flags/table/flag.hpp"
#include "deck/schema.hpp"

namespace trireme::convert::flags {
namespace {

void check_rows(const std::vector<Flag>& table) {
  std::set<std::string_view> names;
  for (const Flag& flag : table) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name << " has two rows";
    EXPECT_FALSE(flag.name.starts_with('-')) << flag.name;
    const bool explains = flag.fate == Fate::dropped || flag.fate == Fate::refused;
    EXPECT_EQ(explains, !flag.note.empty()) << flag.name;
    if (flag.fate == Fate::key || !flag.key.empty()) {
      EXPECT_NE(deck::find_key(flag.key), nullptr) << flag.name << " names '" << flag.key << "'";
    }
    if (flag.fate == Fate::key && flag.takes == Takes::nothing) {
      EXPECT_FALSE(flag.word.empty()) << flag.name << " stands for no value";
    }
  }
}

TEST(FlagTable, NamesEveryFlagOnceAndOnlyKeysThatExist) { check_rows(command_flags()); }
TEST(FlagTable, NamesEveryJsonKeyOnceAndOnlyKeysThatExist) { check_rows(json_keys()); }

TEST(FlagTable, FindsBothSpellings) {
  ASSERT_NE(find_flag(command_flags(), "deepspeed_config"), nullptr);
  EXPECT_EQ(find_flag(command_flags(), "deepspeed_config"),
            find_flag(command_flags(), "deepspeed-config"));
  EXPECT_EQ(find_flag(command_flags(), "num-layer"), nullptr);
  EXPECT_EQ(suggestion(command_flags(), "num-layer", "--"), "; did you mean '--num-layers'?");
  EXPECT_EQ(suggestion(command_flags(), "zzzzzzzz", "--"), "");
}

TEST(FlagTable, BothNormsOfMegatronsLogAreOneKey) {
  for (const char* name : {"log-params-norm", "log-num-zeros-in-grad"}) {
    const Flag* flag = find_flag(command_flags(), name);
    ASSERT_NE(flag, nullptr) << name;
    EXPECT_EQ(flag->key, "log.norms") << name;
    EXPECT_EQ(flag->word, "true") << name;
  }
}

}  // namespace
}  // namespace trireme::convert::flags
