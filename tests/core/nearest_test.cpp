#include "core/nearest.hpp"

#include <gtest/gtest.h>

#include <string>

namespace trireme {
namespace {

TEST(Nearest, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("layers", "Layers"), 0);
  EXPECT_EQ(edit_distance("layres", "layers"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("weight_decy", "weight_decay"), 1);
}

TEST(Nearest, NearestWord) {
  EXPECT_EQ(nearest("hiden", {"layers", "hidden", "heads"}), "hidden");
  EXPECT_EQ(nearest("lr", {"type", "peak"}), "");
  EXPECT_EQ(nearest("", {"type", "peak"}), "");
  EXPECT_EQ(nearest(std::string(100'000, 'x'), {"type"}), "");
}

TEST(Nearest, SaysWhatWasMeant) {
  EXPECT_EQ(did_you_mean("sumary", {"follow", "summary"}), "; did you mean 'summary'?");
  EXPECT_EQ(did_you_mean("xyz", {"follow", "summary"}), "");
}

}  // namespace
}  // namespace trireme
