#include "deck/suggest.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "deck/schema.hpp"
#include "deck/synonyms.hpp"

namespace trireme::deck {
namespace {

TEST(Suggest, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("layers", "Layers"), 0);
  EXPECT_EQ(edit_distance("layres", "layers"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("weight_decy", "weight_decay"), 1);
}

TEST(Suggest, NearestWord) {
  EXPECT_EQ(nearest("hiden", {"layers", "hidden", "heads"}), "hidden");
  EXPECT_EQ(nearest("lr", {"type", "peak"}), "");
  EXPECT_EQ(nearest("", {"type", "peak"}), "");
  EXPECT_EQ(nearest(std::string(100'000, 'x'), {"type"}), "");
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
