#include "deck/synonyms.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "deck/schema.hpp"

namespace trireme::deck {
namespace {

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
