// The kernel of a decoding pass, and its making.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cuda/decoding/attention_keys.cuh"
#include "kernels/cuda/decoding/pass.hpp"
#include "kernels/cuda/decoding/pass_attention.cuh"
#include "kernels/cuda/workspace.hpp"

namespace trireme::kernels::cuda {

/// Copies an instruction by one warp: starts with fetch(), ends with keep().
template <typename T>
struct InstructionCopy {
  static constexpr int kWords = sizeof(PassInstruction<T>) / 8, kOwn = (kWords + 31) / 32;
  static_assert(sizeof(PassInstruction<T>) % 8 == 0);
  std::uint64_t words[kOwn];

  __device__ void fetch(const PassInstruction<T>* from) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = i * 32 + static_cast<int>(threadIdx.x) % 32;
      if (at < kWords) words[i] = __ldg(reinterpret_cast<const unsigned long long*>(from) + at);
    }
  }
  __device__ void keep(PassInstruction<T>& to) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = i * 32 + static_cast<int>(threadIdx.x) % 32;
      if (at < kWords) reinterpret_cast<std::uint64_t*>(&to)[at] = words[i];
    }
  }
};

// Bound by the bytes of the weights. A block for each SM; all are there at the same time. Attention
// reads a row of the cache by kLanes lanes, for kHeads heads at most.
template <typename T, int kLanes, int kHeads>
__global__ void __launch_bounds__(kPassThreads, 1)
    decode_pass(const PassInstruction<T>* instructions, const PassShape shape, PassState* state,
                const std::int32_t* line, const std::int32_t* position) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ __align__(16) unsigned char own[sizeof(PassShared<T>)];
  PassShared<T>& shared = *reinterpret_cast<PassShared<T>*>(own);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    for (unsigned i = 0; i < kRingChunks; ++i) {
      make_barrier(&shared.ring.full[i], 1);
      make_barrier(&shared.ring.empty[i], kPassReaders);
    }
    publish_barriers();
  }
  const unsigned tag = *reinterpret_cast<const volatile unsigned*>(&state->pass);
  PassSequence sequence{};
  if (line) {
    sequence.line = *line;
    sequence.end = sequence.line < 0 ? 0 : *position + 1;
  }
  __syncthreads();
  if (warp == kPassReaders) {
    RingWriter ring{.barriers = &shared.ring, .memory = memory, .capacity = shape.ring};
    InstructionCopy<T> next;
    next.fetch(instructions);
    for (int i = 0; i < shape.instructions; ++i) {
      __syncwarp();
      next.keep(shared.written);
      __syncwarp();
      if (i + 1 < shape.instructions) next.fetch(instructions + i + 1);
      const PassInstruction<T>& instruction = shared.written;
      if (instruction.is_attention)
        stream_keys<T, kLanes, kHeads>(instruction, sequence, ring);
      else
        stream_linear(instruction, ring);
    }
  } else {
    RingReader ring(&shared.ring, memory, shape.ring);
    unsigned char* work = memory + shape.ring;
    unsigned turn = 0;
    InstructionCopy<T> next;
    if (warp == kPassReaders - 1) {
      next.fetch(instructions);
      next.keep(shared.read[0]);
    }
    for (int i = 0; i < shape.instructions; ++i) {
      sync_readers();  // all have ended the last instruction, and this one can be read
      const bool fetches = warp == kPassReaders - 1 && i + 1 < shape.instructions;
      if (fetches) next.fetch(instructions + i + 1);
      const PassInstruction<T>& instruction = shared.read[i % 2];
      if (instruction.is_attention)
        run_attention<T, kLanes, kHeads>(instruction, sequence, tag, work, ring);
      else
        run_linear(instruction, tag, reinterpret_cast<T*>(work), shared, ring, turn);
      if (fetches) next.keep(shared.read[(i + 1) % 2]);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(&state->exited, 1) == gridDim.x - 1) {
    state->exited = 0;
    state->pass = tag + 1;
  }
#endif
}

namespace {

constexpr int kChunkBytes = 30 << 10;    // of weights, about
constexpr unsigned kMinRing = 96 << 10;  // of any chunk

// What plans of memory count.
static_assert(kParts == kPlannedParts && kPassHeads == kPlannedHeads);
static_assert(sizeof(PassInstruction<__half>) <= kPassInstructionBytes);

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

/// What the steps of a pass need in addition to their operands.
struct Needs {
  std::size_t work = 0;      // bytes of shared memory
  std::size_t words = 0;     // tagged words of 16-bit elements
  std::size_t partials = 0;  // tagged floats
};

/// The attention of a pass, the same in all layers; none: no steps of it.
const AttentionPaged* attention_of(const std::vector<PassStep>& steps) {
  for (const PassStep& step : steps)
    if (const auto* attention = std::get_if<AttentionPaged>(&step.operation)) return attention;
  return nullptr;
}

template <int kLanes, int kHeads>
Needs needs_of(const std::vector<PassStep>& steps) {
  Needs needs;
  for (const PassStep& step : steps) {
    needs.words += rounded_up(step.y().size(), 32);
    if (const auto* linear = std::get_if<DecodeLinear>(&step.operation)) {
      needs.work = std::max(needs.work, 2 * rounded_up(linear->x.size(), kLinearStep));
      continue;
    }
    const auto& attention = std::get<AttentionPaged>(step.operation);
    const std::int64_t d = attention.cache.keys.shape[2];
    const std::int64_t group = attention.heads / attention.kv_heads;
    needs.work = std::max(needs.work, sizeof(AttentionSums<kLanes, kHeads>) + 2 * (kHeads + 2) * d);
    needs.partials +=
        attention.kv_heads * ((group + kHeads - 1) / kHeads) * kParts * kHeads * (d + 2);
  }
  needs.work = rounded_up(needs.work, 128);
  return needs;
}

/// Makes the instructions of a pass.
template <typename T, int kHeads>
class Instructions {
 public:
  Instructions(int sms, std::uint32_t* words, uint2* partials)
      : sms_(sms), words_(words), partials_(partials) {}

  std::vector<PassInstruction<T>> of(const std::vector<PassStep>& steps) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const PassStep& step = steps[i];
      PassInstruction<T> to{};
      const auto* linear = std::get_if<DecodeLinear>(&step.operation);
      to.x = input(step.x_from, linear ? linear->x : std::get<AttentionPaged>(step.operation).qkv);
      to.y = {.tagged = i + 1 < steps.size() ? words_ : nullptr,
              .plain = step.overwritten ? nullptr : step.y().template as<T>()};
      words_ += rounded_up(step.y().size(), 32);
      to.rotation = rotation_;
      to.is_attention = !linear;
      if (linear)
        to.linear = work_of(*linear, step.residual_from);
      else
        to.attention = work_of(step);
      all_.push_back(to);
    }
    return std::move(all_);
  }

 private:
  static const T* pointer(const Tensor& tensor) { return tensor ? tensor.as<T>() : nullptr; }
  PassInput<T> input(int from, const Tensor& tensor) const {
    if (from < 0) return {.tagged = nullptr, .plain = pointer(tensor)};
    return {.tagged = all_[from].y.tagged, .plain = nullptr};
  }
  /// The next instruction begins with the blocks that this one gives less to.
  void turn(std::int64_t more) {
    rotation_ = static_cast<int>((rotation_ + sms_ - more % sms_) % sms_);
  }

  LinearWork<T> work_of(const DecodeLinear& args, int residual_from) {
    const auto n = static_cast<int>(args.y.size()), k = static_cast<int>(args.x.size());
    const int share = n / sms_, extra = n % sms_;
    const LinearCut cut = cut_of(share + (extra > 0 ? 1 : 0), k, args.gated, kChunkBytes);
    turn(extra);
    return {.weight = args.weight.as<T>(),
            .norm = {.weight = pointer(args.norm.weight),
                     .bias = pointer(args.norm.bias),
                     .eps = static_cast<float>(args.norm.eps),
                     .mean = args.norm.kind == NormKind::layer},
            .bias = pointer(args.bias),
            .residual = args.residual ? input(residual_from, args.residual) : PassInput<T>{},
            .n = n,
            .k = k,
            .share = share,
            .extra = extra,
            .part = cut.part,
            .chunks = cut.chunks,
            .steps = cut.steps,
            .gated = args.gated,
            .function = epilogue_of(args.function)};
  }
  AttentionWork<T> work_of(const PassStep& step) {
    const auto& args = std::get<AttentionPaged>(step.operation);
    const CacheSizes sizes =
        cache_sizes("attention_paged", args.qkv, args.cache, args.heads, args.kv_heads);
    AttentionWork<T> work{.cache = cache_parameters<T>(args, sizes),
                          .rotary = step.rotary ? step.rotary->table.template as<float>() : nullptr,
                          .rotated = step.rotary ? args.qkv.as<T>() : nullptr,
                          .partials = partials_};
    const int group = work.cache.heads / work.cache.kv_heads;
    const int units = work.cache.kv_heads * ((group + kHeads - 1) / kHeads);
    partials_ += std::int64_t{units} * kParts * kHeads * (work.cache.d + 2);
    turn(units);
    return work;
  }

  int sms_, rotation_ = 0;
  std::uint32_t* words_;
  uint2* partials_;
  std::vector<PassInstruction<T>> all_;
};

template <typename T, int kLanes, int kHeads>
bool enqueue(const std::vector<PassStep>& steps, const Context& context, PassMemory& memory) {
  const auto kernel = decode_pass<T, kLanes, kHeads>;
  cudaFuncAttributes attributes;
  TRIREME_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  const Needs needs = needs_of<kLanes, kHeads>(steps);
  const std::size_t room = context.shared_memory_bytes - attributes.sharedSizeBytes;
  if (needs.work + kMinRing > room) return false;
  const std::size_t ring = (room - needs.work) / 128 * 128;
  TRIREME_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(ring + needs.work)));
  int blocks = 0;
  TRIREME_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kPassThreads,
                                                             ring + needs.work));
  if (blocks == 0) return false;

  // state | instructions | words | partials
  constexpr std::size_t kState = rounded_up(sizeof(PassState), 256);
  const std::size_t listed = rounded_up(steps.size() * sizeof(PassInstruction<T>), 256);
  const std::size_t words = rounded_up(sizeof(std::uint32_t) * needs.words, 256);
  std::byte* begin = memory.add(kState + listed, words + sizeof(uint2) * needs.partials);
  auto* tagged = reinterpret_cast<std::uint32_t*>(begin + kState + listed);
  const auto instructions =
      Instructions<T, kHeads>(context.sms, tagged,
                              reinterpret_cast<uint2*>(begin + kState + listed + words))
          .of(steps);
  std::vector<std::byte> contents(kState + listed);
  const PassState first{.pass = 1, .exited = 0};
  std::memcpy(contents.data(), &first, sizeof first);
  std::memcpy(contents.data() + kState, instructions.data(),
              instructions.size() * sizeof(instructions[0]));
  memory.fill(std::move(contents));

  const AttentionPaged* attention = attention_of(steps);
  const CacheRows rows = attention ? attention->rows : CacheRows();
  const PassShape shape{.instructions = static_cast<int>(steps.size()),
                        .ring = static_cast<unsigned>(ring)};
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;  // all blocks at the same time
  attribute.val.cooperative = 1;
  const cudaLaunchConfig_t config{.gridDim = dim3(static_cast<unsigned>(context.sms)),
                                  .blockDim = dim3(kPassThreads),
                                  .dynamicSmemBytes = ring + needs.work,
                                  .stream = context.stream,
                                  .attrs = &attribute,
                                  .numAttrs = 1};
  TRIREME_CUDA(cudaLaunchKernelEx(
      &config, kernel, reinterpret_cast<const PassInstruction<T>*>(begin + kState), shape,
      reinterpret_cast<PassState*>(begin), rows.lines, rows.positions));
  return true;
}

template <typename T>
bool enqueue_in(const std::vector<PassStep>& steps, const Context& context, PassMemory& memory) {
  const AttentionPaged* attention = attention_of(steps);
  const bool wide = attention && attention->cache.keys.shape[2] > 64;
  if (attention && attention->heads != attention->kv_heads)
    return wide ? enqueue<T, 16, kPassHeads>(steps, context, memory)
                : enqueue<T, 8, kPassHeads>(steps, context, memory);
  return wide ? enqueue<T, 16, 1>(steps, context, memory)
              : enqueue<T, 8, 1>(steps, context, memory);
}

}  // namespace

bool enqueue_pass(const std::vector<PassStep>& steps, const Context& context, PassMemory& memory) {
  return steps.front().y().dtype == DType::bf16 ? enqueue_in<__nv_bfloat16>(steps, context, memory)
                                                : enqueue_in<__half>(steps, context, memory);
}

}  // namespace trireme::kernels::cuda
