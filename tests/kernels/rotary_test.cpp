#include "kernels/attention.hpp"

#include "kernel_testing.hpp"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kSequence = 5, kSamples = 2, kHeads = 4, kKvHeads = 2, kDim = 6;
constexpr std::int64_t kColumns = (kHeads + 2 * kKvHeads) * kDim;
constexpr std::int64_t kQkColumns = (kHeads + kKvHeads) * kDim;
constexpr std::int64_t kTokens = kSequence * kSamples;
const Shape kQkv{kSequence, kSamples, kColumns};

double angle(std::int64_t position, std::int64_t i) {
  return static_cast<double>(position) * std::pow(100.0, -2.0 * static_cast<double>(i) / kDim);
}

template <typename T>
Owned<T> angles(std::int64_t positions) {
  Owned<T> table({positions, kDim});
  for (std::int64_t p = 0; p < positions; ++p)
    for (std::int64_t i = 0; i < kDim / 2; ++i) {
      table[p * kDim + i] = static_cast<T>(std::cos(angle(p, i)));
      table[p * kDim + kDim / 2 + i] = static_cast<T>(std::sin(angle(p, i)));
    }
  return table;
}

// The rotation as a complex product; values are left alone.
template <typename T>
std::vector<double> rotated(const Owned<T>& qkv,
                            const std::function<std::int64_t(std::int64_t)>& position) {
  std::vector<double> expected;
  for (std::int64_t i = 0; i < qkv.size(); ++i) expected.push_back(qkv[i]);
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (std::int64_t head = 0; head < kHeads + kKvHeads; ++head)
      for (std::int64_t i = 0; i < kDim / 2; ++i) {
        const std::int64_t low = t * kColumns + head * kDim + i, high = low + kDim / 2;
        const double a = angle(position(t), i);
        expected[low] = qkv[low] * std::cos(a) - qkv[high] * std::sin(a);
        expected[high] = qkv[low] * std::sin(a) + qkv[high] * std::cos(a);
      }
  return expected;
}

template <typename T>
class RotaryTest : public ::testing::Test {};
TYPED_TEST_SUITE(RotaryTest, StorageTypes);

TYPED_TEST(RotaryTest, RotatesQueriesAndKeysByTheirPositions) {
  using T = TypeParam;
  Owned<T> table = angles<T>(9);
  Owned<T> qkv = Owned<T>::random(kQkv, 1);
  const std::vector<double> by_index =
      rotated(qkv, [](std::int64_t t) { return 3 + t / kSamples; });
  host::rotary({qkv.tensor(), table.tensor(), kHeads, kKvHeads, 3});
  expect_close("by index", qkv, by_index, tolerance<T>(3e-7));

  qkv = Owned<T>::random(kQkv, 1);
  const Owned<T> original = qkv;
  const std::vector<std::int32_t> positions = {0, 0, 1, 1, 2, 0, 0, 1, 8, 2};
  const std::vector<double> given = rotated(qkv, [&](std::int64_t t) { return positions[t]; });
  host::rotary({qkv.tensor(), table.tensor(), kHeads, kKvHeads, 0, positions.data()});
  expect_close("given", qkv, given, tolerance<T>(3e-7));
  // The inverse rotation is the backward pass, since the rotation is orthogonal.
  host::rotary({qkv.tensor(), table.tensor(), kHeads, kKvHeads, 0, positions.data(), true});
  std::vector<double> before;
  for (std::int64_t i = 0; i < original.size(); ++i) before.push_back(original[i]);
  expect_close("there and back", qkv, before, tolerance<T>(5e-7));
}

TEST(Rotary, RefusesPositionsBeyondItsTable) {
  Owned<float> table = angles<float>(4), qkv(kQkv, 1.0);
  EXPECT_THROW(host::rotary({qkv.tensor(), table.tensor(), kHeads, kKvHeads}), InternalError);
}

// Norms of a token's queries and keys, each head apart or all together.
struct NormProblem {
  bool whole;
  Owned<double> qkv, kept, q_weight, k_weight, rstd, sums, dout, dqkv, dq_weight, dk_weight;

  explicit NormProblem(bool whole_in)
      : whole(whole_in),
        qkv(Owned<double>::random(kQkv, 1)),
        kept({kSequence, kSamples, kQkColumns}),
        q_weight(Owned<double>::random({whole ? kHeads * kDim : kDim}, 2)),
        k_weight(Owned<double>::random({whole ? kKvHeads * kDim : kDim}, 3)),
        rstd({kTokens, whole ? 2 : kHeads + kKvHeads}),
        sums({kTokens, 2}),
        dout(Owned<double>::random(kQkv, 4)),
        dqkv(dout),
        dq_weight(q_weight.shape(), 0.0),
        dk_weight(k_weight.shape(), 0.0) {}

  std::int64_t width() const { return whole ? kHeads * kDim : 0; }
  Owned<double> forward() {
    Owned<double> out = qkv;
    if (whole) host::qk_norm_sums({out.tensor(), sums.tensor(), kHeads, kKvHeads});
    host::qk_norm_forward({out.tensor(), kept.tensor(), q_weight.tensor(), k_weight.tensor(),
                           rstd.tensor(), whole ? sums.tensor() : Tensor(), kHeads, kKvHeads,
                           width(), 1e-3});
    return out;
  }
  void backward() {
    if (whole)
      host::qk_norm_sums({dqkv.tensor(), sums.tensor(), kHeads, kKvHeads, kept.tensor(),
                          q_weight.tensor(), k_weight.tensor(), rstd.tensor()});
    host::qk_norm_backward({dqkv.tensor(), kept.tensor(), q_weight.tensor(), k_weight.tensor(),
                            rstd.tensor(), whole ? sums.tensor() : Tensor(), dq_weight.tensor(),
                            dk_weight.tensor(), kHeads, kKvHeads, width()});
  }
};

TEST(QkNorm, FollowsTheFormulaAndFiniteDifferences) {
  for (const bool whole : {false, true}) {
    NormProblem p(whole);
    const Owned<double> out = p.forward();
    std::vector<double> expected;
    for (std::int64_t i = 0; i < out.size(); ++i) expected.push_back(std::as_const(p.qkv)[i]);
    for (std::int64_t t = 0; t < kTokens; ++t)
      for (std::int64_t i = 0; i < kQkColumns; ++i) {
        const bool is_q = i < kHeads * kDim;
        const std::int64_t part = is_q ? 0 : kHeads * kDim, j = i - part;
        const std::int64_t n = whole ? (is_q ? kHeads : kKvHeads) * kDim : kDim;
        const std::int64_t first = t * kColumns + part + j / n * n;
        double squares = 0.0;
        for (std::int64_t c = 0; c < n; ++c) squares += std::pow(p.qkv[first + c], 2);
        const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-3);
        expected[t * kColumns + i] *= rstd * (is_q ? p.q_weight : p.k_weight)[j % n];
      }
    expect_close("out", out, expected, 1e-13);
    p.backward();
    const auto loss = [&] { return dot(p.forward(), p.dout); };
    expect_gradient("dqkv", p.qkv, p.dqkv, loss);
    expect_gradient("dq_weight", p.q_weight, p.dq_weight, loss);
    expect_gradient("dk_weight", p.k_weight, p.dk_weight, loss);
  }
}

}  // namespace
}  // namespace trireme::kernels
