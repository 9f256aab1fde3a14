// Chains of operations on one row as one kernel, against the operations' own kernels: the same
// bits.
#include "kernels/cuda/decoding/pass.hpp"

#include <cuda_runtime_api.h>

#include "core/cuda/check.hpp"
#include "workbench.hpp"

namespace trireme::kernels {
namespace {

struct Model {
  std::int64_t layers, hidden, heads, kv_heads, d, ffn, vocab;
  bool gated = false, bias = true, rotary = false;
  NormKind norm = NormKind::layer;
  std::int64_t window = 0;
  std::int64_t positions = 64;  ///< of a block of the cache
};

cuda::Context context_of(device::Backend& backend) {
  cuda::Context context{.stream = backend.stream()};
  int major = 0, minor = 0;
  const auto get = [](int& value, cudaDeviceAttr attribute) {
    TRIREME_CUDA(cudaDeviceGetAttribute(&value, attribute, 0));
  };
  get(context.sms, cudaDevAttrMultiProcessorCount);
  get(major, cudaDevAttrComputeCapabilityMajor);
  get(minor, cudaDevAttrComputeCapabilityMinor);
  get(context.shared_memory_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  context.capability = 10 * major + minor;
  return context;
}

void run_on(device::Backend& backend, const DecodeLinear& args) { backend.decode_linear(args); }
void run_on(device::Backend& backend, const Rotary& args) { backend.rotary(args); }
void run_on(device::Backend& backend, const AttentionPaged& args) { backend.attention_paged(args); }

/// A model with random weights and a cache, whose pass over one token is enqueued by `operation`.
class Pass {
 public:
  static constexpr std::int64_t kTokens = 1280;  // of the cache

  Pass(DType dtype, const Model& model) : bench_(true, dtype, dtype), model_(model) {
    const std::int64_t h = model.hidden, width = (model.heads + 2 * model.kv_heads) * model.d;
    const auto matrix = [&](std::int64_t n, std::int64_t k) {
      return bench_.random({n, k}, ++seed_, 1.0 / std::sqrt(static_cast<double>(k)));
    };
    const auto vector = [&](std::int64_t n, bool there) {
      return there ? bench_.random({n}, ++seed_) : Tensor();
    };
    const bool layer = model.norm == NormKind::layer;
    const auto norm = [&] {
      return DecodeNorm{vector(h, true), vector(h, layer), 1e-5, model.norm};
    };
    for (std::int64_t i = 0; i < model.layers; ++i)
      layers_.push_back({.norm1 = norm(),
                         .norm2 = norm(),
                         .qkv = matrix(width, h),
                         .projection = matrix(h, model.heads * model.d),
                         .fc1 = matrix((model.gated ? 2 : 1) * model.ffn, h),
                         .fc2 = matrix(h, model.ffn),
                         .qkv_bias = vector(width, model.bias),
                         .projection_bias = vector(h, model.bias),
                         .fc1_bias = vector(model.ffn, model.bias && !model.gated),
                         .fc2_bias = vector(h, model.bias),
                         .cache = bench_.random({blocks() * 2 * cached()}, ++seed_)});
    norm_ = norm();
    head_ = matrix(model.vocab, h);
    input_ = bench_.random({1, h}, ++seed_);
    stream_ = bench_.poisoned({1, h});
    qkv_ = bench_.poisoned({1, 1, width});
    attended_ = bench_.poisoned({1, model.heads * model.d});
    activated_ = bench_.poisoned({1, model.ffn});
    logits_ = bench_.poisoned({1, model.vocab});
    rotary_ = bench_.wide_random({kTokens, model.d}, ++seed_);
    std::vector<std::int32_t> table;
    for (std::int64_t i = 0; i < blocks(); ++i)
      table.push_back(static_cast<std::int32_t>((i * 7 + 3) % blocks()));
    table_ = bench_.integers(table);
    place_ = const_cast<std::int32_t*>(bench_.integers({0, 0}));
  }

  device::Backend& backend() { return bench_.backend(); }

  /// The new token has `tokens` before it.
  void begin(std::int32_t tokens) {
    const std::int32_t place[] = {0, tokens};
    backend().upload(place_, place, sizeof place);
    backend().copy(stream_.data, input_.data, input_.bytes());
  }

  /// Calls operation(arguments) for each of the pass.
  template <typename Operation>
  void run(const Operation& operation) {
    const CacheRows rows{place_, place_ + 1};
    const Tensor qkv = qkv_.view({1, qkv_.size()});
    for (const Layer& layer : layers_) {
      operation(DecodeLinear{.x = stream_,
                             .weight = layer.qkv,
                             .y = qkv,
                             .norm = layer.norm1,
                             .bias = layer.qkv_bias});
      if (model_.rotary)
        operation(Rotary{.qkv = qkv_,
                         .table = rotary_,
                         .heads = model_.heads,
                         .kv_heads = model_.kv_heads,
                         .positions = rows.positions});
      const auto part = [&](std::int64_t first) {
        return layer.cache.rows(first, cached())
            .view({model_.kv_heads, model_.positions, model_.d});
      };
      operation(AttentionPaged{.qkv = qkv,
                               .cache = {part(0), part(cached()), 2 * cached(), table_, blocks()},
                               .rows = rows,
                               .out = attended_,
                               .heads = model_.heads,
                               .kv_heads = model_.kv_heads,
                               .append = true,
                               .window = model_.window});
      operation(DecodeLinear{.x = attended_,
                             .weight = layer.projection,
                             .y = stream_,
                             .bias = layer.projection_bias,
                             .residual = stream_});
      operation(DecodeLinear{.x = stream_,
                             .weight = layer.fc1,
                             .y = activated_,
                             .norm = layer.norm2,
                             .bias = layer.fc1_bias,
                             .function = model_.gated ? Activation::silu : Activation::gelu_tanh,
                             .gated = model_.gated});
      operation(DecodeLinear{.x = activated_,
                             .weight = layer.fc2,
                             .y = stream_,
                             .bias = layer.fc2_bias,
                             .residual = stream_});
    }
    operation(DecodeLinear{.x = stream_, .weight = head_, .y = logits_, .norm = norm_});
  }

  /// Everything that a pass writes.
  std::vector<std::vector<double>> written() {
    std::vector<std::vector<double>> all = {bench_.read(stream_), bench_.read(qkv_),
                                            bench_.read(attended_), bench_.read(activated_),
                                            bench_.read(logits_)};
    for (const Layer& layer : layers_) all.push_back(bench_.read(layer.cache));
    return all;
  }
  std::vector<double> logits() { return bench_.read(logits_); }

 private:
  struct Layer {
    DecodeNorm norm1, norm2;
    Tensor qkv, projection, fc1, fc2, qkv_bias, projection_bias, fc1_bias, fc2_bias, cache;
  };
  std::int64_t blocks() const { return kTokens / model_.positions; }
  std::int64_t cached() const { return model_.kv_heads * model_.positions * model_.d; }

  Workbench bench_;
  Model model_;
  std::uint64_t seed_ = 0;
  std::vector<Layer> layers_;
  DecodeNorm norm_;
  Tensor head_, input_, stream_, qkv_, attended_, activated_, logits_, rotary_;
  const std::int32_t* table_ = nullptr;
  std::int32_t* place_ = nullptr;
};

/// What is captured by hand, so that a test sees whether it became one kernel.
class Graph {
 public:
  explicit Graph(Pass& pass) : pass_(context_of(pass.backend())), stream_(pass.backend().stream()) {
    TRIREME_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    pass.run([&](const auto& args) { taken_ += pass_.take(args); });
    pass_.flush();
    cudaGraph_t graph = nullptr;
    TRIREME_CUDA(cudaStreamEndCapture(stream_, &graph));
    TRIREME_CUDA(cudaGraphInstantiate(&executable_, graph, 0));
    TRIREME_CUDA(cudaGraphDestroy(graph));
    pass_.upload();
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  void launch() { TRIREME_CUDA(cudaGraphLaunch(executable_, stream_)); }
  int taken() const { return taken_; }
  int kernels() const { return pass_.kernels(); }

 private:
  cuda::DecodingPass pass_;
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
  int taken_ = 0;
};

bool has_kernel(device::Backend& backend) { return context_of(backend).capability == 90; }

TEST(DecodingPass, HasTheBitsOfItsOperations) {
  const Model models[] = {
      {.layers = 2,
       .hidden = 1600,
       .heads = 25,
       .kv_heads = 25,
       .d = 64,
       .ffn = 6400,
       .vocab = 5003},
      // Blocks of the cache that have less than what a warp reads together.
      {.layers = 2,
       .hidden = 72,
       .heads = 3,
       .kv_heads = 3,
       .d = 24,
       .ffn = 200,
       .vocab = 131,
       .positions = 8},
      {.layers = 2,
       .hidden = 2048,
       .heads = 32,
       .kv_heads = 8,
       .d = 64,
       .ffn = 1024,
       .vocab = 1000,
       .gated = true,
       .bias = false,
       .rotary = true,
       .norm = NormKind::rms},
      {.layers = 2,
       .hidden = 896,
       .heads = 14,
       .kv_heads = 2,
       .d = 64,
       .ffn = 4864,
       .vocab = 999,
       .gated = true,
       .rotary = true,
       .norm = NormKind::rms,
       .window = 100},
      {.layers = 2, .hidden = 4608, .heads = 6, .kv_heads = 6, .d = 128, .ffn = 520, .vocab = 40},
      {.layers = 2,
       .hidden = 512,
       .heads = 4,
       .kv_heads = 1,
       .d = 128,
       .ffn = 1000,
       .vocab = 7,
       .bias = false,
       .rotary = true,
       .positions = 1},
  };
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Model& model : models) {
      Pass pass(dtype, model);
      if (!has_kernel(pass.backend())) GTEST_SKIP() << "needs compute capability 9.0";
      Graph graph(pass);
      EXPECT_EQ(graph.kernels(), 1);
      for (const std::int32_t tokens : {0, 1, 63, 64, 257, 700, 1270}) {
        pass.begin(tokens);
        pass.run([&](const auto& args) { run_on(pass.backend(), args); });
        const auto expected = pass.written();
        for (int repeat = 0; repeat < 2; ++repeat) {
          pass.begin(tokens);
          graph.launch();
          const auto found = pass.written();
          for (std::size_t i = 0; i < expected.size(); ++i)
            for (std::size_t j = 0; j < expected[i].size(); ++j)
              ASSERT_EQ(found[i][j], expected[i][j])
                  << name_of(dtype) << ", hidden " << model.hidden << ", " << tokens
                  << " tokens, tensor " << i << ", element " << j;
        }
      }
    }
}

/// The tags of results, of which there are 65,536, are used again.
TEST(DecodingPass, StaysRightForMorePassesThanTags) {
  Pass pass(
      DType::bf16,
      {.layers = 2, .hidden = 64, .heads = 2, .kv_heads = 2, .d = 32, .ffn = 256, .vocab = 300});
  if (!has_kernel(pass.backend())) GTEST_SKIP() << "needs compute capability 9.0";
  Graph graph(pass);
  ASSERT_EQ(graph.kernels(), 1);
  const auto logits = [&] {
    pass.begin(100);
    graph.launch();
    return pass.logits();
  };
  const auto expected = logits();
  for (int i = 0; i < 660; ++i) {
    for (int j = 0; j < 100; ++j) graph.launch();  // of other tokens: the stream changes
    ASSERT_NE(pass.logits(), expected) << i;
    ASSERT_EQ(logits(), expected) << i;
  }
}

/// What no pass takes is left to the operations' own kernels, in their order.
TEST(DecodingPass, LeavesOtherOperationsAlone) {
  const Model model{
      .layers = 2, .hidden = 64, .heads = 2, .kv_heads = 2, .d = 32, .ffn = 256, .vocab = 300};
  {
    Pass pass(DType::f32, model);
    Graph graph(pass);
    EXPECT_EQ(graph.kernels(), 0);
    EXPECT_EQ(graph.taken(), 0);
  }
  {
    Model odd = model;
    odd.hidden = 66;  // rows that are no multiple of 16 bytes
    Pass pass(DType::bf16, odd);
    EXPECT_EQ(Graph(pass).kernels(), 0);
  }
  // Too few for a kernel: they are enqueued one by one.
  Model one = model;
  one.layers = 1;
  Pass pass(DType::bf16, one);
  if (!has_kernel(pass.backend())) return;  // which takes nothing
  pass.begin(17);
  pass.run([&](const auto& args) { run_on(pass.backend(), args); });
  const auto expected = pass.written();
  Graph graph(pass);
  EXPECT_EQ(graph.kernels(), 0);
  pass.begin(17);
  graph.launch();
  EXPECT_EQ(pass.written(), expected);
}

}  // namespace
}  // namespace trireme::kernels
