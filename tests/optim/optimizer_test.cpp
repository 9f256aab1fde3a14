// One rank's optimizer against the formulas in double.
#include "optim/optimizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "../model/tensors.hpp"
#include "comm/communicator.hpp"
#include "model/families/registry.hpp"
#include "model/spec.hpp"

namespace trireme::test {
namespace {

using optim::OptimizerType;

const model::Gpt2Config kModel{
    .layers = 2, .hidden = 8, .heads = 2, .ffn = 12, .sequence = 4, .positions = 4, .vocab = 13};

/// A matrix in double, row-major.
struct Matrix {
  std::int64_t rows, columns;
  std::vector<double> values = std::vector<double>(rows * columns);

  double& operator()(std::int64_t i, std::int64_t j) { return values[i * columns + j]; }
  double operator()(std::int64_t i, std::int64_t j) const { return values[i * columns + j]; }
};

Matrix operator*(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.columns};
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t k = 0; k < a.columns; ++k)
      for (std::int64_t j = 0; j < b.columns; ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t{a.columns, a.rows};
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < a.columns; ++j) t(j, i) = a(i, j);
  return t;
}

/// Five quintic iterations as github.com/KellerJordan/Muon writes them, on the wide orientation.
Matrix newton_schulz(const Matrix& u) {
  Matrix x = u.rows > u.columns ? transposed(u) : u;
  const double size = norm(x.values) + 1e-7;
  for (double& value : x.values) value /= size;
  for (int i = 0; i < 5; ++i) {
    const Matrix a = x * transposed(x), squared = a * a;
    Matrix b = a;
    for (std::size_t k = 0; k < b.values.size(); ++k)
      b.values[k] = -4.7750 * a.values[k] + 2.0315 * squared.values[k];
    const Matrix bx = b * x;
    for (std::size_t k = 0; k < x.values.size(); ++k)
      x.values[k] = 3.4445 * x.values[k] + bx.values[k];
  }
  return u.rows > u.columns ? transposed(x) : x;
}

/// Algorithm 2 of Loshchilov and Hutter with clipping by global norm, in double.
struct Reference {
  LogicalTensors weight, m, v;

  /// Muon's update of a matrix of a layer, of which q, k and v are matrices each.
  void update_matrix(const model::Parameter& parameter, const std::vector<double>& gradient,
                     double scale, const optim::OptimizerConfig& config, double rate,
                     double decay) {
    std::vector<double>&w = weight[parameter.name], &momentum = m[parameter.name];
    std::size_t first = 0;
    for (const model::RowBlock& block : parameter.blocks()) {
      Matrix u{block.rows, parameter.shape[1]};
      for (std::size_t i = 0; i < u.values.size(); ++i) {
        double& sum = momentum[first + i];
        const double g = gradient[first + i] * scale;
        sum = config.momentum * sum + g;
        u.values[i] = config.nesterov ? g + config.momentum * sum : sum;
      }
      const Matrix o = newton_schulz(u);
      const double factor = config.muon_scale == deck::MuonScale::match_rms
                                ? 0.2 * std::sqrt(static_cast<double>(std::max(o.rows, o.columns)))
                                : std::sqrt(std::max(1.0, static_cast<double>(o.rows) /
                                                              static_cast<double>(o.columns)));
      for (std::size_t i = 0; i < o.values.size(); ++i)
        w[first + i] -= rate * (factor * o.values[i] + decay * w[first + i]);
      first += o.values.size();
    }
  }

  void update(const std::vector<model::Parameter>& table, const LogicalTensors& gradient,
              const optim::OptimizerConfig& config, double rate, double weight_decay, int step) {
    double squares = 0.0;
    for (const auto& [name, g] : gradient) squares += norm(g) * norm(g);
    const double scale =
        config.clip > 0 ? std::min(1.0, config.clip / (std::sqrt(squares) + 1e-6)) : 1.0;
    for (const model::Parameter& parameter : table) {
      const std::string& name = parameter.name;
      const double decay = parameter.shape.rank() == 2 ? weight_decay : 0.0;
      if (config.type == OptimizerType::muon &&
          group_of(parameter) == model::ParameterGroup::matrix) {
        update_matrix(parameter, gradient.at(name), scale, config, rate, decay);
        continue;
      }
      std::vector<double>& w = weight[name];
      std::vector<double> direction(w.size());
      const bool in_gradient =
          config.type == OptimizerType::adam || config.type == OptimizerType::sgd;
      for (std::size_t i = 0; i < w.size(); ++i) {
        const double g = gradient.at(name)[i] * scale + (in_gradient ? decay * w[i] : 0.0);
        if (config.type == OptimizerType::sgd) {
          direction[i] = m[name][i] = config.momentum * m[name][i] + g;
          continue;
        }
        m[name][i] = config.beta1 * m[name][i] + (1 - config.beta1) * g;
        v[name][i] = config.beta2 * v[name][i] + (1 - config.beta2) * g * g;
        const double mean = m[name][i] / (1 - std::pow(config.beta1, step));
        const double variance = v[name][i] / (1 - std::pow(config.beta2, step));
        direction[i] =
            mean / (std::sqrt(variance) + config.eps) + (in_gradient ? 0.0 : decay * w[i]);
      }
      const bool by_trust =
          config.type == OptimizerType::lamb && norm(w) > 0 && norm(direction) > 0;
      const double length = by_trust ? rate * norm(w) / norm(direction) : rate;
      for (std::size_t i = 0; i < w.size(); ++i) w[i] -= length * direction[i];
    }
  }
};

/// A model's weights and optimizer on this rank alone.
struct Fixture {
  Fixture(const optim::OptimizerConfig& config, DType dtype)
      : parameters(*backend, model::declare_parameters(model::gpt2_spec(kModel)), {1, 1, 1, {2}},
                   {}, mixed_precision(dtype), {.gradients = true}),
        optimizer(*backend, parameters, {alone, alone, nullptr}, config) {
    if (dtype == accumulation_type(dtype)) parameters.initialize(1);
  }

  LogicalTensors gathered(const Tensor& flat, Flat kind) {
    return gather(optimizer, parameters.table(), flat, kind, alone);
  }

  /// Random gradients of a standard deviation that differs from one parameter to the next.
  LogicalTensors draw_gradients(std::mt19937_64& random) {
    LogicalTensors tensors;
    for (const model::Parameter& parameter : parameters.table()) {
      std::normal_distribution<double> normal(0.0, 1e-3 * static_cast<double>(1 + random() % 20));
      std::vector<double> values(parameter.shape.size());
      for (double& value : values) value = normal(random);
      const Tensor gradient = parameters[parameter.name].gradient;
      assign(gradient, values);
      tensors[parameter.name] = to_doubles(gradient);
    }
    return tensors;
  }

  std::unique_ptr<device::Backend> backend = device::make_host_backend(1);
  comm::SerialCommunicator alone;
  model::ParameterStore parameters;
  optim::Optimizer optimizer;
};

class UpdateRule
    : public ::testing::TestWithParam<std::tuple<OptimizerType, DType, double, std::int64_t>> {};

TEST_P(UpdateRule, FollowsTheFormulas) {
  const auto [type, dtype, clip, bucket] = GetParam();
  // Newton-Schulz multiplies what rounding leaves of small singular values by up to 3.4445^5.
  const double rounding = type == OptimizerType::muon ? 100.0 : 1.0;
  const double tolerance = rounding * (dtype == DType::f64 ? 1e-13 : 1e-6);
  const optim::OptimizerConfig config{.type = type,
                                      .beta1 = 0.8,
                                      .beta2 = 0.95,
                                      .eps = 1e-5,
                                      .momentum = 0.7,
                                      .clip = clip,
                                      .bucket = bucket};
  Fixture run(config, dtype);
  const auto& table = run.parameters.table();
  Reference reference{run.gathered(run.parameters.weights(), Flat::parameters), zeros(table),
                      zeros(table)};
  std::mt19937_64 random(8);
  LogicalTensors moved;
  for (int step = 1; step <= 6; ++step) {
    const double rate = 1e-2 / step, decay = 0.1 * step;
    const LogicalTensors gradient = run.draw_gradients(random);
    reference.update(table, gradient, config, rate, decay, step);
    run.optimizer.reduce_gradients();
    run.optimizer.update({.learning_rate = rate,
                          .weight_decay = decay,
                          .gradient_norm = run.optimizer.gradient_norm()});
    EXPECT_EQ(run.optimizer.step(), step);
    const LogicalTensors weights = run.gathered(run.parameters.weights(), Flat::parameters);
    const auto& states = run.optimizer.states();
    const LogicalTensors m = run.gathered(states[0].tensor, Flat::moments);
    LogicalTensors v = zeros(table);
    if (type == OptimizerType::muon) {
      for (const optim::OwnedPart& part : run.optimizer.owned_parts())
        if (group_of(*part.parameter) != model::ParameterGroup::matrix)
          for (const double value :
               to_doubles(states[1].tensor.rows(part.state_offset, part.elements())))
            moved[part.parameter->name].push_back(value);
      for (auto& [name, values] : moved) v[name] = std::exchange(values, {});
    } else if (states.size() > 1) {
      v = run.gathered(states[1].tensor, Flat::moments);
    }
    for (const model::Parameter& parameter : table) {
      const std::string& name = parameter.name;
      const auto close = [&](const LogicalTensors& ours, const LogicalTensors& expected) {
        return distance(ours.at(name), expected.at(name)) <= tolerance * norm(expected.at(name));
      };
      EXPECT_TRUE(close(weights, reference.weight)) << name << ", step " << step;
      EXPECT_TRUE(close(m, reference.m)) << "momentum of " << name << ", step " << step;
      EXPECT_TRUE(close(v, reference.v)) << "variance of " << name << ", step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    TypePrecisionClipBucket, UpdateRule,
    ::testing::Combine(::testing::Values(OptimizerType::adamw, OptimizerType::adam,
                                         OptimizerType::sgd, OptimizerType::lamb,
                                         OptimizerType::muon),
                       ::testing::Values(DType::f64, DType::f32), ::testing::Values(0.0, 0.05, 1e9),
                       ::testing::Values(64, 25'000'000)));

TEST(Optimizer, MuonScalesAndMomenta) {
  for (const deck::MuonScale scale : {deck::MuonScale::match_rms, deck::MuonScale::spectral})
    for (const bool nesterov : {false, true}) {
      const optim::OptimizerConfig config{.type = OptimizerType::muon,
                                          .momentum = 0.9,
                                          .muon_scale = scale,
                                          .nesterov = nesterov,
                                          .clip = 0};
      Fixture run(config, DType::f64);
      const auto& table = run.parameters.table();
      Reference reference{run.gathered(run.parameters.weights(), Flat::parameters), zeros(table),
                          zeros(table)};
      std::mt19937_64 random(8);
      for (int step = 1; step <= 3; ++step) {
        reference.update(table, run.draw_gradients(random), config, 1e-2, 0.1, step);
        run.optimizer.update({.learning_rate = 1e-2, .weight_decay = 0.1});
      }
      for (const auto& [name, weight] : run.gathered(run.parameters.weights(), Flat::parameters))
        EXPECT_LE(distance(weight, reference.weight.at(name)), 1e-12 * norm(weight)) << name;
    }
}

TEST(Optimizer, GroupsHaveRatesAndDecaysOfTheirOwn) {
  const deck::GroupFactors rate{.embedding = 2, .matrices = 3, .vectors = 5};
  const deck::GroupFactors decay{.embedding = 0, .matrices = 0.5, .vectors = 0.25};
  Fixture run({.rate = rate, .decay = decay, .bucket = 64}, DType::f64);
  for (const model::Parameter& parameter : run.parameters.table()) {
    const Tensor weight = run.parameters[parameter.name].weight;
    assign(weight, std::vector<double>(weight.size(), 3.0));
  }
  run.optimizer.update({.learning_rate = 0.01, .weight_decay = 0.5});  // all gradients are zero
  for (const model::Parameter& parameter : run.parameters.table()) {
    const Tensor weight = run.parameters[parameter.name].weight;
    const model::ParameterGroup group = group_of(parameter);
    const double factor = group == model::ParameterGroup::embedding ? 0.0
                          : group == model::ParameterGroup::matrix  ? 3 * 0.5
                                                                    : 5 * 0.25;
    for (const double value : to_doubles(weight))
      EXPECT_NEAR(value, 3.0 * (1 - 0.01 * 0.5 * factor), 1e-14) << parameter.name;
  }
}

TEST(Optimizer, DecaysMatricesAlone) {
  Fixture run({}, DType::f64);
  for (const char* name : {"final_norm/bias", "layers/0/mlp/up/bias", "layers/1/mlp/up/weight"}) {
    const Tensor weight = run.parameters[name].weight;
    assign(weight, std::vector<double>(weight.size(), 3.0));
  }
  run.optimizer.update({.learning_rate = 0.1, .weight_decay = 0.5});  // all gradients are zero
  EXPECT_EQ(run.parameters["final_norm/bias"].weight.as<double>()[0], 3.0);
  EXPECT_EQ(run.parameters["final_norm/weight"].weight.as<double>()[0], 1.0);
  EXPECT_EQ(run.parameters["layers/0/mlp/up/bias"].weight.as<double>()[0], 3.0);
  EXPECT_NEAR(run.parameters["layers/1/mlp/up/weight"].weight.as<double>()[0], 3.0 * 0.95, 1e-15);
}

TEST(Optimizer, NormIsThatOfAllGradients) {
  Fixture run({}, DType::f64);
  std::mt19937_64 random(9);
  double squares = 0.0;
  for (const auto& [name, gradient] : run.draw_gradients(random))
    squares += norm(gradient) * norm(gradient);
  EXPECT_NEAR(run.optimizer.gradient_norm(), std::sqrt(squares), 1e-14 * std::sqrt(squares));
}

TEST(Optimizer, TakesTheLossScaleOutOfTheGradient) {
  constexpr double kScale = 65536;  // a power of two: scaling rounds nothing
  Fixture plain({.clip = 0.02}, DType::f64), scaled({.clip = 0.02}, DType::f64);
  std::mt19937_64 random(10);
  for (const auto& [name, gradient] : plain.draw_gradients(random)) {
    std::vector<double> values = gradient;
    for (double& value : values) value *= kScale;
    assign(scaled.parameters[name].gradient, values);
  }
  const double norm = plain.optimizer.gradient_norm();
  EXPECT_EQ(scaled.optimizer.gradient_norm(kScale), norm);
  plain.optimizer.update({.learning_rate = 0.1, .gradient_norm = norm});
  scaled.optimizer.update({.learning_rate = 0.1, .gradient_norm = norm, .loss_scale = kScale});
  EXPECT_EQ(scaled.gathered(scaled.parameters.weights(), Flat::parameters),
            plain.gathered(plain.parameters.weights(), Flat::parameters));
}

TEST(Optimizer, NormOfAGradientThatOverflowedIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Fixture run({}, DType::f32);
    run.parameters["layers/1/norm2/bias"].gradient.as<float>()[3] = bad;
    EXPECT_FALSE(std::isfinite(run.optimizer.gradient_norm(1024)));
  }
}

TEST(Optimizer, TakesTheBytesThatWerePlanned) {
  const auto check = [](const optim::OptimizerConfig& config, std::size_t states, DType dtype) {
    Fixture run(config, dtype);
    std::size_t bytes = dtype == DType::f16 ? 2 * run.parameters.weights().bytes() : 0;
    for (const optim::OptimizerState& state : run.optimizer.states()) bytes += state.tensor.bytes();
    EXPECT_EQ(run.optimizer.states().size(), states);
    EXPECT_EQ(bytes, optim::Optimizer::planned_bytes(run.parameters.placement(), {}, config,
                                                     mixed_precision(dtype)));
  };
  check({}, 2, DType::f32);
  check({}, 2, DType::f16);
  check({.type = optim::OptimizerType::lamb}, 2, DType::f32);
  check({.type = optim::OptimizerType::sgd, .momentum = 0.9}, 1, DType::f32);
  check({.type = optim::OptimizerType::sgd}, 0, DType::f32);
}

}  // namespace
}  // namespace trireme::test
