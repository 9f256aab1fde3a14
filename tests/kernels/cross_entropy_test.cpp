#include "kernels/vocabulary.hpp"

#include "kernel_testing.hpp"

namespace trireme::kernels {
namespace {

// One tensor rank's part of the vocabulary, with padding columns up to `stored`.
template <typename T>
struct Shard {
  std::int64_t first, columns;
  Owned<T> logits, max, sum, target;
};

// Cuts logits [rows, vocabulary] into `count` shards of equal stored width, the padding poisoned,
// and takes the steps of the loss with plain reductions between them.
template <typename T>
struct Parallel {
  std::vector<std::int32_t> labels;
  std::vector<Shard<T>> shards;
  double loss = 0.0;

  Parallel(const Owned<double>& logits, std::vector<std::int32_t> labels_in, int count)
      : labels(std::move(labels_in)) {
    const std::int64_t rows = logits.shape()[0], vocabulary = logits.shape()[1];
    const std::int64_t stored = (vocabulary + count - 1) / count + 3;
    for (int shard = 0; shard < count; ++shard) {
      const std::int64_t first = std::min(shard * stored, vocabulary);
      const std::int64_t columns = std::min(stored, vocabulary - first);
      shards.push_back({first, columns, Owned<T>({rows, stored}), Owned<T>({rows}),
                        Owned<T>({rows}), Owned<T>({rows})});
      for (std::int64_t t = 0; t < rows; ++t)
        for (std::int64_t i = 0; i < columns; ++i)
          shards.back().logits[t * stored + i] = static_cast<T>(logits[t * vocabulary + first + i]);
    }
  }

  void forward() {
    std::vector<Owned<T>> local_max;
    for (Shard<T>& shard : shards) {
      host::cross_entropy_statistics({shard.logits.tensor(), shard.first, shard.columns,
                                      labels.data(), shard.max.tensor(), shard.sum.tensor(),
                                      shard.target.tensor()});
      local_max.push_back(shard.max);
    }
    all_reduce(&Shard<T>::max, [](T a, T b) { return std::max(a, b); });
    for (std::size_t i = 0; i < shards.size(); ++i)
      host::cross_entropy_rescale(
          {local_max[i].tensor(), shards[i].max.tensor(), shards[i].sum.tensor()});
    all_reduce(&Shard<T>::sum, std::plus<T>());
    all_reduce(&Shard<T>::target, std::plus<T>());
    Owned<double> total({1}, 1.5);
    Shard<T>& any = shards.back();
    host::cross_entropy_loss(
        {labels.data(), any.max.tensor(), any.sum.tensor(), any.target.tensor(), total.tensor()});
    loss = total[0] - 1.5;
  }

  void backward(double scale) {
    for (Shard<T>& shard : shards)
      host::cross_entropy_backward({shard.logits.tensor(), shard.first, shard.columns,
                                    labels.data(), shard.max.tensor(), shard.sum.tensor(), scale});
  }

  template <typename Operation>
  void all_reduce(Owned<T> Shard<T>::*member, Operation operation) {
    Owned<T> total = shards[0].*member;
    for (std::size_t other = 1; other < shards.size(); ++other)
      for (std::int64_t t = 0; t < total.size(); ++t)
        total[t] = operation(total[t], (shards[other].*member)[t]);
    for (Shard<T>& shard : shards) shard.*member = total;
  }
};

// Loss and gradient with the whole vocabulary at hand.
double reference(const Owned<double>& logits, const std::vector<std::int32_t>& labels, double scale,
                 std::vector<double>& gradient) {
  const std::int64_t rows = logits.shape()[0], vocabulary = logits.shape()[1];
  gradient.assign(rows * vocabulary, 0.0);
  double loss = 0.0;
  for (std::int64_t t = 0; t < rows; ++t) {
    if (labels[t] < 0) continue;
    double max = -std::numeric_limits<double>::infinity(), sum = 0.0;
    for (std::int64_t i = 0; i < vocabulary; ++i) max = std::max(max, logits[t * vocabulary + i]);
    for (std::int64_t i = 0; i < vocabulary; ++i) sum += std::exp(logits[t * vocabulary + i] - max);
    for (std::int64_t i = 0; i < vocabulary; ++i)
      gradient[t * vocabulary + i] =
          scale * (std::exp(logits[t * vocabulary + i] - max) / sum - (i == labels[t]));
    loss += std::log(sum) + max - logits[t * vocabulary + labels[t]];
  }
  return loss;
}

template <typename T>
void expect_plain_loss(const Owned<double>& logits, const std::vector<std::int32_t>& labels,
                       int count) {
  const std::int64_t rows = logits.shape()[0], vocabulary = logits.shape()[1];
  std::vector<double> gradient;
  const double loss = reference(logits, labels, 0.25, gradient);
  Parallel<T> parallel(logits, labels, count);
  parallel.forward();
  EXPECT_NEAR(parallel.loss, loss, tolerance<T>(1e-6) * std::max(1.0, loss));
  parallel.backward(0.25);
  for (const Shard<T>& shard : parallel.shards) {
    std::vector<double> expected;
    const std::int64_t stored = shard.logits.shape()[1];
    for (std::int64_t t = 0; t < rows; ++t)
      for (std::int64_t i = 0; i < stored; ++i)
        expected.push_back(i < shard.columns ? gradient[t * vocabulary + shard.first + i] : 0.0);
    expect_close("dlogits", shard.logits, expected, tolerance<T>(3e-6));
  }
}

template <typename T>
class CrossEntropyTest : public ::testing::Test {};
TYPED_TEST_SUITE(CrossEntropyTest, StorageTypes);

TYPED_TEST(CrossEntropyTest, ShardsCombineToThePlainLoss) {
  Owned<double> logits({6, 33}, 0.0);
  for (std::int64_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>(3 * philox_normal(1, 0, i));
  for (const int count : {1, 2, 4})
    expect_plain_loss<TypeParam>(logits, {0, 32, -1, 17, 8, 9}, count);
}

TYPED_TEST(CrossEntropyTest, OneTokenAndOnlyIgnoredTokens) {
  Owned<double> logits({1, 7}, 0.0);
  for (std::int64_t i = 0; i < 7; ++i) logits[i] = 0.5 * static_cast<double>(i);
  expect_plain_loss<TypeParam>(logits, {3}, 2);
  Parallel<TypeParam> ignored(logits, {-1}, 2);
  ignored.forward();
  EXPECT_EQ(ignored.loss, 0.0);
  ignored.backward(1.0);
  for (const auto& shard : ignored.shards)
    for (std::int64_t i = 0; i < shard.logits.size(); ++i) EXPECT_EQ(shard.logits[i], 0.0);
}

TYPED_TEST(CrossEntropyTest, ExtremeLogitsStayFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  Owned<double> logits({4, 5}, 0.0);
  const std::vector<double> rows = {1e4,  -1e4, 0, 0,    3,   -infinity, 2, 1,         -1e4, 5,
                                    -1e4, -1e4, 0, -1e4, 1e4, 1e4,       0, -infinity, 1e4,  0};
  for (std::int64_t i = 0; i < logits.size(); ++i) logits[i] = rows[i];
  for (const int count : {1, 2, 4}) expect_plain_loss<TypeParam>(logits, {0, 4, 2, 3}, count);
}

TYPED_TEST(CrossEntropyTest, ThreadsChangeNothing) {
  using T = TypeParam;
  Owned<double> logits = Owned<double>::random({37, 301}, 1);
  std::vector<std::int32_t> labels;
  for (int t = 0; t < 37; ++t) labels.push_back(8 * t - 1);
  expect_threads_change_nothing<T>("dlogits", [&] {
    Parallel<T> parallel(logits, labels, 1);
    parallel.forward();
    parallel.backward(1.0);
    return parallel.shards[0].logits;
  });
}

TEST(CrossEntropy, GradientMatchesFiniteDifferences) {
  Owned<double> logits = Owned<double>::random({3, 11}, 1, 2.0);
  const std::vector<std::int32_t> labels = {10, -1, 4};
  Parallel<double> parallel(logits, labels, 1);
  parallel.forward();
  parallel.backward(0.5);
  Owned<double> gradient({3, 11});
  for (std::int64_t t = 0; t < 3; ++t)
    for (std::int64_t i = 0; i < 11; ++i)
      gradient[t * 11 + i] =
          parallel.shards[0].logits[t * parallel.shards[0].logits.shape()[1] + i];
  expect_gradient("dlogits", logits, gradient, [&] {
    Parallel<double> again(logits, labels, 1);
    again.forward();
    return 0.5 * again.loss;
  });
}

TEST(CrossEntropy, ZLossAddsTheGradientOfTheSquaredLogSumExp) {
  Owned<double> logits = Owned<double>::random({3, 11}, 1, 2.0);
  const std::vector<std::int32_t> labels = {10, -1, 4};
  constexpr double kZLoss = 0.03;
  const auto run = [&](Owned<double>& scratch, double& loss, double& largest) {
    Owned<double> max({3}), sum({3}), target({3}), total({1}, 0.0), most({1}, -100.0);
    host::cross_entropy_statistics_backward(
        {.statistics = {scratch.tensor(), 0, 11, labels.data(), max.tensor(), sum.tensor(),
                        target.tensor()},
         .scale = 0.5,
         .z_loss = kZLoss});
    host::cross_entropy_loss({labels.data(), max.tensor(), sum.tensor(), target.tensor(),
                              total.tensor(), most.tensor()});
    loss = total[0];
    for (const std::int64_t t : {0, 2}) loss += kZLoss * std::pow(std::log(sum[t]) + max[t], 2);
    largest = most[0];
  };
  Owned<double> gradient = logits;
  double loss = 0.0, largest = 0.0;
  run(gradient, loss, largest);
  double expected = -100.0;  // of the tokens that count
  for (std::int64_t i = 0; i < 33; ++i)
    if (i / 11 != 1) expected = std::max(expected, std::as_const(logits)[i]);
  EXPECT_EQ(largest, expected);
  expect_gradient("dlogits", logits, gradient, [&] {
    Owned<double> scratch = logits;
    double value = 0.0;
    run(scratch, value, largest);
    return 0.5 * value;
  });
}

TEST(CrossEntropy, RefusesMoreColumnsThanStored) {
  Owned<float> logits({2, 4}, 0.0), max({2}), sum({2}), target({2});
  const std::int32_t labels[] = {0, 1};
  EXPECT_THROW(host::cross_entropy_statistics(
                   {logits.tensor(), 0, 5, labels, max.tensor(), sum.tensor(), target.tensor()}),
               InternalError);
}

TEST(SelectLabels, ListsTokensLabelsAndPlaces) {
  using Ints = std::vector<std::int32_t>;
  const Ints labels = {-1, 5, -1, 0, 9};
  Ints rows(4, 7), selected(4, 7), places(5, 7);
  host::select_labels({labels.data(), 5, rows.data(), selected.data(), 4, places.data()});
  EXPECT_EQ(rows, (Ints{1, 3, 4, -1}));
  EXPECT_EQ(selected, (Ints{5, 0, 9, -1}));
  EXPECT_EQ(places, (Ints{-1, 0, -1, 1, 2}));
  EXPECT_THROW(
      host::select_labels({labels.data(), 5, rows.data(), selected.data(), 2, places.data()}),
      InternalError);
}

}  // namespace
}  // namespace trireme::kernels
