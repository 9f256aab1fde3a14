#include <array>
#include <nlohmann/json.hpp>

#include "bench/gpu/commands.hpp"
#include "bench/gpu/epilogues.hpp"

namespace trireme::bench::gpu {
namespace {

using kernels::cuda::GemmChoice;

constexpr std::int64_t kTokens = 16384;
constexpr std::int64_t kPaddedVocabulary = 50304;

struct Model {
  const char* name;
  std::int64_t hidden;
};
constexpr std::array<Model, 4> kModels = {
    {{"124M", 768}, {"355M", 1024}, {"774M", 1280}, {"1.5B", 1600}}};

/// A linear layer y [T, out] = x [T, in] weight^T.
struct Linear {
  const char* name;
  std::int64_t in, out;
  bool bias;
};

std::array<Linear, 5> linears_of(std::int64_t hidden) {
  return {{{"qkv", hidden, 3 * hidden, true},
           {"proj", hidden, hidden, true},
           {"fc1", hidden, 4 * hidden, true},
           {"fc2", 4 * hidden, hidden, true},
           {"logits", hidden, kPaddedVocabulary, false}}};
}

/// One product, by the rows, columns and terms of its result.
struct Product {
  std::string name;
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, weight_gradient = false, bias = false;
};

std::vector<Product> products_of(const Model& model) {
  std::vector<Product> products;
  for (const Linear& linear : linears_of(model.hidden)) {
    const auto name = [&](const char* kind) {
      return fmt::format("{} {} {}", model.name, linear.name, kind);
    };
    products.push_back({.name = name("forward"),
                        .m = kTokens,
                        .n = linear.out,
                        .k = linear.in,
                        .transpose_b = true,
                        .bias = linear.bias});
    products.push_back(
        {.name = name("input gradient"), .m = kTokens, .n = linear.in, .k = linear.out});
    products.push_back({.name = name("weight gradient"),
                        .m = linear.out,
                        .n = linear.in,
                        .k = kTokens,
                        .transpose_a = true,
                        .weight_gradient = true});
  }
  return products;
}

struct Measured {
  Product product;
  double first = 0.0, fastest = 0.0;  ///< TFLOP/s
};

double tflops(Meter& meter, Runner& runner, const Product& product, DType dtype) {
  const double ms = meter.time([&]() -> Call {
    const auto& [name, m, n, k, ta, tb, weight_gradient, bias] = product;
    const kernels::Gemm args{
        .a = meter.random(ta ? Shape{k, m} : Shape{m, k}, dtype),
        .b = meter.random(tb ? Shape{n, k} : Shape{k, n}, dtype),
        .c = meter.zeros({m, n}, weight_gradient ? accumulation_type(dtype) : dtype),
        .transpose_a = ta,
        .transpose_b = tb,
        .beta = weight_gradient ? 1.0 : 0.0,
        .bias = bias ? meter.random({n}, dtype) : Tensor{}};
    return [&runner, args] { runner.run.gemm(args, runner.context); };
  });
  return 1e-9 * 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
         static_cast<double>(product.k) / ms;
}

void print(const Meter& meter, const Settings& settings, const std::vector<Measured>& rows,
           const std::vector<WithEpilogue>& epilogues) {
  if (settings.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const auto& [product, first, fastest] : rows)
      list.push_back({{"name", product.name},
                      {"m", product.m},
                      {"n", product.n},
                      {"k", product.k},
                      {"first_tflops", first},
                      {"fastest_tflops", fastest}});
    const nlohmann::ordered_json all = {{"gpu", meter.gpu().name},
                                        {"type", name_of(settings.dtype)},
                                        {"product_gflops", meter.product_rate()},
                                        {"rows", list},
                                        {"epilogues", to_json(epilogues)}};
    fmt::print("{}\n", all.dump(2));
    return;
  }
  fmt::print("{:<28} {:<20} {:>7} {:>7} {:>8} {:>9}\n", "product", "m x n x k", "first", "fastest",
             "gain", "of 8192^3");
  for (const auto& [product, first, fastest] : rows)
    fmt::print("{:<28} {:<20} {:>7.0f} {:>7.0f} {:>6.1f} % {:>7.1f} %\n", product.name,
               fmt::format("{} x {} x {}", product.m, product.n, product.k), first, fastest,
               100 * (fastest / first - 1), 100 * 1e3 * fastest / meter.product_rate());
  print(epilogues);
  fmt::print(
      "\nTFLOP/s in {} on {}: the kernel that cuBLASLt's heuristic puts first, and the fastest of "
      "its candidates\nand the own kernels; the product of 8192^3 runs at {:.0f} TFLOP/s; medians "
      "of {}\n",
      name_of(settings.dtype), meter.gpu().name, 1e-3 * meter.product_rate(), settings.repeats);
}

}  // namespace

void measure_products(const Settings& settings) {
  Meter meter(settings);
  Runner first(meter, GemmChoice::first), fastest(meter, GemmChoice::timed);
  std::vector<Measured> rows;
  std::vector<WithEpilogue> epilogues;
  for (const Model& model : kModels) {
    for (const Product& product : products_of(model))
      if (settings.wants(product.name))
        rows.push_back({product, tflops(meter, first, product, settings.dtype),
                        tflops(meter, fastest, product, settings.dtype)});
    const auto more = measure_epilogues(meter, settings, model.name, kTokens, model.hidden);
    epilogues.insert(epilogues.end(), more.begin(), more.end());
  }
  print(meter, settings, rows, epilogues);
}

}  // namespace trireme::bench::gpu
