#include "kernels/cuda/decoding/pass.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/cuda/check.hpp"
#include "kernels/cuda/workspace.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::cuda {
namespace {

/// With fewer operations a fused kernel is no faster: it has to fill its ring first.
constexpr std::size_t kMinSteps = 8;
constexpr std::int64_t kMaxColumns = 32768, kMaxNormColumns = 16384;

bool half_precision(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

bool same(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.size() == b.size() && a.dtype == b.dtype;
}
bool overlap(const Tensor& a, const Tensor& b) {
  const auto *x = static_cast<const std::byte*>(a.data), *y = static_cast<const std::byte*>(b.data);
  return x < y + b.bytes() && y < x + a.bytes();
}

}  // namespace

Tensor PassStep::y() const {
  const auto* linear = std::get_if<DecodeLinear>(&operation);
  return linear ? linear->y : std::get<AttentionPaged>(operation).out;
}

// ---- memory

PassMemory::~PassMemory() {
  for (const Part& part : parts_) cudaFree(part.memory);
}

std::byte* PassMemory::add(std::size_t contents, std::size_t bytes) {
  // A capture forbids what could wait for it, which a new allocation does not.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  TRIREME_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  Part part{.bytes = contents + bytes, .contents = {}};
  const cudaError_t code = cudaMalloc(&part.memory, part.bytes);
  TRIREME_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  TRIREME_CUDA(code);
  parts_.push_back(std::move(part));
  return static_cast<std::byte*>(parts_.back().memory);
}

void PassMemory::upload(cudaStream_t stream) {
  if (parts_.empty()) return;
  for (const Part& part : parts_) {
    TRIREME_CUDA(cudaMemsetAsync(part.memory, 0, part.bytes, stream));
    TRIREME_CUDA(cudaMemcpyAsync(part.memory, part.contents.data(), part.contents.size(),
                                 cudaMemcpyHostToDevice, stream));
  }
  TRIREME_CUDA(cudaStreamSynchronize(stream));
}

// ---- what a pass takes

std::optional<int> DecodingPass::writer_of(const Tensor& tensor) const {
  for (int i = static_cast<int>(steps_.size()) - 1; i >= 0; --i) {
    const Tensor y = steps_[i].y();
    if (same(y, tensor)) return i;
    if (overlap(y, tensor)) return std::nullopt;
  }
  return -1;
}

bool DecodingPass::follows(const Tensor& x) const {
  return steps_.empty() || same(steps_.back().y(), x);
}

bool DecodingPass::covers(const DecodeLinear& args) const {
  const std::int64_t k = args.x.size(), n = args.y.size();
  const bool aligned = k % 8 == 0 && aligned16(args.x.data) && aligned16(args.weight.data) &&
                       aligned16(args.norm.weight.data) && aligned16(args.norm.bias.data);
  return context_.is_hopper() && half_precision(args.x.dtype) && args.x.shape.rank() >= 2 &&
         k == args.x.shape[args.x.shape.rank() - 1] && aligned && n > 0 && n <= INT32_MAX &&
         k <= (args.norm.weight ? kMaxNormColumns : kMaxColumns) &&
         args.weight.size() == (args.gated ? 2 : 1) * n * k &&
         (!args.residual || !args.function);  // the order of whose sums is the compiler's
}

bool DecodingPass::covers(const AttentionPaged& args) const {
  const std::int64_t d = args.cache.keys.shape[2], heads = args.heads, kv = args.kv_heads;
  const std::int64_t group = heads / kv;
  return context_.is_hopper() && half_precision(args.qkv.dtype) && args.append &&
         args.qkv.size() == (heads + 2 * kv) * d && d <= 128 && d % 8 == 0 &&
         args.cache.stride % 8 == 0 &&
         std::has_single_bit(static_cast<std::uint64_t>(args.cache.keys.shape[1])) &&
         aligned16(args.qkv.data) && aligned16(args.cache.keys.data) &&
         aligned16(args.cache.values.data) &&
         kv * ((group + kPlannedHeads - 1) / kPlannedHeads) <= context_.sms &&
         // as attention_paged() orders its sums
         heads / std::min<std::int64_t>(group, 8) < 2 * context_.sms;
}

void DecodingPass::add(PassStep step) {
  if (const auto before = writer_of(step.y()); before && *before >= 0)
    steps_[*before].overwritten = true;
  steps_.push_back(std::move(step));
}

bool DecodingPass::take(const DecodeLinear& args) {
  const auto fits = [&] {
    return !rotary_ && follows(args.x) && writer_of(args.y) &&
           (!args.residual || writer_of(args.residual)) &&
           (steps_.empty() || steps_.back().y().dtype == args.y.dtype);
  };
  if (!covers(args) || !fits()) flush();
  if (!covers(args)) return false;
  add({.operation = args,
       .rotary = std::nullopt,
       .x_from = static_cast<int>(steps_.size()) - 1,
       .residual_from = args.residual ? *writer_of(args.residual) : -1});
  return true;
}

bool DecodingPass::take(const Rotary& args) {
  const bool fits = !steps_.empty() && !rotary_ && args.positions && !args.inverse &&
                    same(steps_.back().y(), args.qkv) &&
                    std::holds_alternative<DecodeLinear>(steps_.back().operation);
  if (!fits) {
    flush();
    return false;
  }
  rotary_ = args;
  return true;
}

bool DecodingPass::take(const AttentionPaged& args) {
  const auto same_kind = [&](const PassStep& step) {
    const auto* other = std::get_if<AttentionPaged>(&step.operation);
    return !other ||
           (other->rows.lines == args.rows.lines && other->rows.positions == args.rows.positions &&
            other->heads == args.heads && other->kv_heads == args.kv_heads &&
            other->cache.keys.shape == args.cache.keys.shape);
  };
  const bool rotated =
      !rotary_ || (rotary_->positions == args.rows.positions && same(rotary_->qkv, args.qkv) &&
                   rotary_->heads == args.heads && rotary_->kv_heads == args.kv_heads);
  const bool fits = !steps_.empty() && follows(args.qkv) && rotated && writer_of(args.out) &&
                    std::ranges::all_of(steps_, same_kind);
  if (!covers(args) || !fits) {
    flush();
    return false;
  }
  if (rotary_) steps_.back().overwritten = true;
  add({.operation = args,
       .rotary = std::exchange(rotary_, std::nullopt),
       .x_from = static_cast<int>(steps_.size()) - 1});
  return true;
}

void DecodingPass::flush() {
  const std::vector<PassStep> steps = std::exchange(steps_, {});
  const std::optional<Rotary> last = std::exchange(rotary_, std::nullopt);
  const bool together = steps.size() >= kMinSteps && enqueue_pass(steps, context_, memory_);
  kernels_ += together;
  if (!together)
    for (const PassStep& step : steps) {
      if (step.rotary) rotary(*step.rotary, context_);
      if (const auto* linear = std::get_if<DecodeLinear>(&step.operation))
        decode_linear(*linear, context_);
      else
        attention_paged(std::get<AttentionPaged>(step.operation), context_);
    }
  if (last) rotary(*last, context_);
}

}  // namespace trireme::kernels::cuda
