#include "kernels/vocabulary.hpp"

#include "kernel_testing.hpp"
#include "kernels/host/compute.hpp"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kVocabulary = 13, kHidden = 70, kShard = 5;  // shards of 5, 5 and 3 (+ 2)

const std::vector<std::int32_t> kIds = {0, 4, 5, 12, 9, 5, 5, 0, 10, 1};

template <typename T>
class EmbeddingTest : public ::testing::Test {};
TYPED_TEST_SUITE(EmbeddingTest, StorageTypes);

TYPED_TEST(EmbeddingTest, ShardsTogetherAreTheWholeTable) {
  using T = TypeParam;
  const std::int64_t tokens = static_cast<std::int64_t>(kIds.size());
  Owned<T> table = Owned<T>::random({3 * kShard, kHidden}, 1);
  std::vector<double> expected, sum(tokens * kHidden);
  for (const std::int32_t id : kIds)
    for (std::int64_t i = 0; i < kHidden; ++i) expected.push_back(table[id * kHidden + i]);
  Owned<T> total({tokens, kHidden}, 0.0);
  for (std::int64_t first = 0; first < kVocabulary; first += kShard) {
    Owned<T> out({tokens, kHidden});
    host::embedding_forward({kIds.data(), table.tensor().rows(first, kShard), first, out.tensor()});
    for (std::int64_t i = 0; i < out.size(); ++i) total[i] += out[i];
  }
  expect_close("embedding", total, expected, 0.0);
}

TYPED_TEST(EmbeddingTest, BackwardAddsToTheRowsOfThisShard) {
  using T = TypeParam;
  const std::int64_t tokens = static_cast<std::int64_t>(kIds.size());
  Owned<T> dout = Owned<T>::random({tokens, kHidden}, 1);
  for (std::int64_t first = 0; first < kVocabulary; first += kShard) {
    Owned<T> dtable = Owned<T>::random({kShard, kHidden}, 2);
    std::vector<double> expected;
    for (std::int64_t i = 0; i < dtable.size(); ++i) expected.push_back(dtable[i]);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < kHidden; ++i)
        if (kIds[t] >= first && kIds[t] < first + kShard)
          expected[(kIds[t] - first) * kHidden + i] += dout[t * kHidden + i];
    host::embedding_backward({kIds.data(), dout.tensor(), first, dtable.tensor()});
    expect_close("dtable", dtable, expected, tolerance<T>(3e-7));
  }
  expect_threads_change_nothing<T>("dtable", [&] {
    Owned<T> dtable({kVocabulary, kHidden}, 0.0);
    host::embedding_backward({kIds.data(), dout.tensor(), 0, dtable.tensor()});
    return dtable;
  });
}

TYPED_TEST(EmbeddingTest, PositionsAreAddedThenDropped) {
  using T = TypeParam;
  for (const auto& [s, b, h, first] : {std::array{1, 1, 1, 0}, {7, 3, 5, 0}, {4, 2, 33, 3}})
    for (const double probability : {0.0, 0.25}) {
      const Dropout dropout{probability, 9, &kFirstSample, 0, DropoutSite::embedding};
      Owned<T> x = Owned<T>::random({s, b, h}, 1), position = Owned<T>::random({8, h}, 2);
      std::vector<double> expected;
      for (std::int64_t e = 0; e < x.size(); ++e) {
        const std::int64_t i = first + e / (b * h), j = e / h % b, k = e % h;
        double factor = 1.0;
        if (probability > 0.0)
          host::DropoutMask(dropout, j).draw(static_cast<std::uint64_t>(i * h + k), 1, &factor);
        expected.push_back((x[e] + position[i * h + k]) * factor);
      }
      host::position_dropout({x.tensor(), position.tensor(), first, dropout});
      expect_close("x", x, expected, tolerance<T>(2e-7));
    }
}

TYPED_TEST(EmbeddingTest, PositionsMayBeGivenByToken) {
  using T = TypeParam;
  const std::vector<std::int32_t> rows = {0, 0, 1, 5, 0, 6, 1, 0};
  const Dropout dropout{0.25, 9, &kFirstSample, 0, DropoutSite::embedding};
  Owned<T> x = Owned<T>::random({4, 2, 33}, 1), position = Owned<T>::random({8, 33}, 2);
  std::vector<double> expected;
  for (std::int64_t e = 0; e < x.size(); ++e) {
    const std::int64_t t = e / 33, k = e % 33;
    double factor = 1.0;  // of the token's place, not of its row
    host::DropoutMask(dropout, t % 2).draw(static_cast<std::uint64_t>(t / 2 * 33 + k), 1, &factor);
    expected.push_back((x[e] + position[rows[t] * 33 + k]) * factor);
  }
  host::position_dropout({x.tensor(), position.tensor(), 0, dropout, rows.data()});
  expect_close("x", x, expected, tolerance<T>(2e-7));
}

TYPED_TEST(EmbeddingTest, PositionGradientSumsTheBatch) {
  using T = TypeParam;
  Owned<T> dout = Owned<T>::random({7, 3, 33}, 1), start = Owned<T>::random({9, 33}, 2);
  std::vector<double> expected;
  for (std::int64_t i = 0; i < start.size(); ++i) expected.push_back(start[i]);
  for (std::int64_t e = 0; e < dout.size(); ++e) expected[e / (3 * 33) * 33 + e % 33] += dout[e];
  Owned<T> dposition = start;
  host::position_backward({dout.tensor(), dposition.tensor()});
  expect_close("dposition", dposition, expected, tolerance<T>(3e-7));
}

TEST(Embedding, GradientsMatchFiniteDifferences) {
  const std::vector<std::int32_t> ids = {2, 0, 2, 1, 7, 2};
  const Dropout dropout{0.3, 9, &kFirstSample, 0, DropoutSite::embedding};
  Owned<double> table = Owned<double>::random({4, 5}, 1),
                position = Owned<double>::random({3, 5}, 2);
  Owned<double> dout = Owned<double>::random({3, 2, 5}, 3);
  const auto loss = [&] {
    Owned<double> x({3, 2, 5});
    host::embedding_forward({ids.data(), table.tensor(), 0, x.tensor()});
    host::position_dropout({x.tensor(), position.tensor(), 0, dropout});
    return dot(x, dout);
  };
  Owned<double> dx({3, 2, 5}), dtable({4, 5}, 0.0), dposition({3, 5}, 0.0);
  host::dropout_backward({dout.tensor(), dx.tensor(), dropout});
  host::position_backward({dx.tensor(), dposition.tensor()});
  host::embedding_backward({ids.data(), dx.tensor(), 0, dtable.tensor()});
  expect_gradient("dtable", table, dtable, loss);
  expect_gradient("dposition", position, dposition, loss);
}

TEST(Embedding, RefusesPositionsBeyondTheTable) {
  Owned<float> x({4, 1, 2}, 0.0), position({6, 2}, 0.0);
  try {
    host::position_dropout({x.tensor(), position.tensor(), 3, {}});
    FAIL() << "accepted";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("positions 3 to 6 of a table of 6"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace trireme::kernels
