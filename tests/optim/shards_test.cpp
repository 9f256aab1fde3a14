#include "optim/sharding/shards.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace trireme::optim {
namespace {

TEST(Shards, BucketsAndOwnersCoverEverythingOnce) {
  for (const int count : {1, 2, 3, 8}) {
    for (const std::int64_t size : {0, 48, 240, 24'000}) {
      for (const std::int64_t bucket : {1, 50, 64, 25'000'000}) {
        const Shards shards({size}, bucket, count);
        std::int64_t end = 0;
        for (const Range& range : shards.buckets()) {
          EXPECT_EQ(range.begin, end);
          EXPECT_GT(range.size(), 0);
          EXPECT_EQ(range.size() % count, 0);
          EXPECT_LE(range.size(), std::max<std::int64_t>(bucket, count));
          end = range.end;
        }
        EXPECT_EQ(end, size);

        std::vector<int> owners(size, 0);
        for (int index = 0; index < count; ++index) {
          std::int64_t owned = 0;
          for (const Range& range : shards.owned(index)) {
            for (std::int64_t i = range.begin; i < range.end; ++i) ++owners[i];
            owned += range.size();
          }
          EXPECT_EQ(owned, size / count);
        }
        EXPECT_EQ(owners, std::vector<int>(size, 1));
      }
    }
  }
}

TEST(Shards, ShardIsTheEqualPartOfEachBucket) {
  const Shards shards({20}, 8, 4);
  EXPECT_EQ(shards.buckets(), (std::vector<Range>{{0, 8}, {8, 16}, {16, 20}}));
  EXPECT_EQ(shards.owned(0), (std::vector<Range>{{0, 2}, {8, 10}, {16, 17}}));
  EXPECT_EQ(shards.owned(3), (std::vector<Range>{{6, 8}, {14, 16}, {19, 20}}));
}

TEST(Shards, BucketsEndWhereTheyAreToldTo) {
  const Shards shards({8, 8, 28, 32}, 8, 4);
  EXPECT_EQ(shards.buckets(), (std::vector<Range>{{0, 8}, {8, 16}, {16, 24}, {24, 28}, {28, 32}}));
  const auto inner = shards.buckets_in({8, 28});
  EXPECT_EQ(std::vector<Range>(inner.begin(), inner.end()),
            (std::vector<Range>{{8, 16}, {16, 24}, {24, 28}}));
  EXPECT_TRUE(shards.buckets_in({8, 8}).empty());
  // The elements that a shard has before those of a bucket.
  std::int64_t before = 0;
  for (const Range& bucket : shards.buckets()) {
    EXPECT_EQ(shards.state_offset(bucket), before);
    before += shards.owned_of(bucket, 3).size();
  }
}

TEST(Shards, BucketsBetweenEndsAreEqual) {
  const Shards shards({4 * 1600}, 5000, 4);
  EXPECT_EQ(shards.buckets(), (std::vector<Range>{{0, 3200}, {3200, 6400}}));
  // Shards begin where kernels read 16 bytes at a time.
  const Shards aligned({64 * 1001}, 20'000, 4);
  for (const Range& bucket : aligned.buckets())
    EXPECT_EQ(bucket.size() / 4 % model::kParameterAlignment, 0);
}

TEST(Shards, RefusesWhatDoesNotDivide) {
  try {
    Shards({10}, 4, 4);
    FAIL() << "10 elements were cut into 4 shards";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("10 elements cannot be divided into 4 shards"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(Shards({10}, 4, 0), InternalError);
}

}  // namespace
}  // namespace trireme::optim
