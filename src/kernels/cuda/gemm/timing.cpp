#include "kernels/cuda/gemm/timing.hpp"

#include <algorithm>
#include <cmath>

#include "core/cuda/check.hpp"
#include "kernels/cuda/gemm/plain.hpp"

namespace trireme::kernels::cuda {
namespace {

// Calls of a product are timed together for two milliseconds, in rounds over all candidates, so
// that a change of the GPU's clock hits all alike; after a tenth of a second of load, because in
// training the GPU runs at the clock that its power allows under load, where other kernels win. A
// GPU that has just timed another product needs no more than to fill its pipelines.
constexpr int kRounds = 5;
constexpr float kSampleMs = 2.0f;
constexpr int kMostCalls = 50;
constexpr float kWarmUpMs = 100.0f;
constexpr float kStillWarmUpMs = 10.0f;
// Candidates whose quickest call took more than this many of the fastest one's are out.
constexpr float kHopeless = 1.15f;
// Among candidates as near as this, the library's order decides: less depends on chance.
constexpr float kEqual = 1.005f;

/// A tensor of random numbers, in memory of its own; without any where there is no room.
class RandomTensor {
 public:
  RandomTensor(const Tensor& like, std::uint64_t seed, const Context& context)
      : tensor_{nullptr, like.dtype, like.shape} {
    if (cudaMalloc(&tensor_.data, like.bytes()) != cudaSuccess) {
      cudaGetLastError();  // not to be reported again by the next launch
      tensor_.data = nullptr;
      return;
    }
    fill_random(tensor_, seed, context);
  }
  ~RandomTensor() { cudaFree(tensor_.data); }
  RandomTensor(const RandomTensor&) = delete;

  void* data() const { return tensor_.data; }

 private:
  Tensor tensor_;
};

struct Contender {
  Algorithm algorithm;
  float call_ms = HUGE_VALF;
  std::vector<float> samples;

  float median() {
    std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
    return samples[samples.size() / 2];
  }
};

class Race {
 public:
  Race(const Matmul& matmul, const Operands& operands, const Context& context)
      : matmul_(matmul), operands_(operands), context_(context) {}

  bool runs(const Algorithm& algorithm) const {
    return matmul_.run(algorithm, operands_, context_) == CUBLAS_STATUS_SUCCESS;
  }

  /// Milliseconds of one of `calls` calls.
  float time(const Algorithm& algorithm, int calls) {
    begin_.record(context_.stream);
    for (int i = 0; i < calls; ++i) runs(algorithm);
    end_.record(context_.stream);
    end_.synchronize();
    return trireme::cuda::Event::milliseconds(begin_, end_) / static_cast<float>(calls);
  }

 private:
  const Matmul& matmul_;
  const Operands operands_;
  const Context& context_;
  trireme::cuda::Event begin_{/*timed=*/true}, end_{/*timed=*/true};
};

/// Those that run, less the hopeless ones, after calls that load their code and put the GPU under
/// load for `warm_up_ms`.
std::vector<Contender> qualify(Race& race, const std::vector<Algorithm>& candidates,
                               float warm_up_ms) {
  std::vector<Contender> contenders;
  for (const Algorithm& algorithm : candidates)
    if (race.runs(algorithm)) contenders.push_back({.algorithm = algorithm});
  float best = HUGE_VALF, spent = 0.0f;
  for (int pass = 0; pass < 3 || (pass < 20 * kMostCalls && spent < warm_up_ms); ++pass)
    for (Contender& contender : contenders) {
      const float ms = race.time(contender.algorithm, 1);
      contender.call_ms = std::min(contender.call_ms, ms);
      best = std::min(best, ms);
      spent += ms;
    }
  std::erase_if(contenders, [&](const Contender& it) { return it.call_ms > kHopeless * best; });
  return contenders;
}

}  // namespace

std::optional<Algorithm> fastest(const Matmul& matmul, const std::vector<Algorithm>& candidates,
                                 const Gemm& args, const Context& context, bool warm) {
  if (candidates.empty()) return std::nullopt;
  TRIREME_CUDA(cudaStreamSynchronize(context.stream));
  const RandomTensor a(args.a, 1, context), b(args.b, 2, context), c(args.c, 3, context);
  if (!c.data() && args.beta != 0.0) return candidates.front();
  Race race(matmul,
            {.a = a.data() ? a.data() : args.a.data,
             .b = b.data() ? b.data() : args.b.data,
             .c = c.data() ? c.data() : args.c.data,
             .bias = args.bias.data,
             .beta = static_cast<float>(args.beta)},
            context);

  std::vector<Contender> contenders = qualify(race, candidates, warm ? kStillWarmUpMs : kWarmUpMs);
  if (contenders.empty()) return std::nullopt;
  for (int round = 0; round < kRounds; ++round)
    for (Contender& contender : contenders) {
      const float calls = std::ceil(kSampleMs / std::max(contender.call_ms, 1e-3f));
      contender.samples.push_back(
          race.time(contender.algorithm, std::min(static_cast<int>(calls), kMostCalls)));
    }
  float best = HUGE_VALF;
  for (Contender& contender : contenders) best = std::min(best, contender.median());
  for (Contender& contender : contenders)
    if (contender.median() <= kEqual * best) return contender.algorithm;
  return std::nullopt;
}

}  // namespace trireme::kernels::cuda
