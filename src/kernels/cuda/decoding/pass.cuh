// One token through all layers in one kernel: see pass.hpp.
#pragma once

#include "kernels/cuda/decoding/pass_work.cuh"

namespace trireme::kernels::cuda {

/// Warps that multiply, two slices of k each, and one that streams. With twice as many warps a
/// thread has 96 registers, too few for attention; the ring leaves little cache for local memory.
inline constexpr int kPassReaders = kLinearSlices / 2;
inline constexpr int kPassReaderThreads = 32 * kPassReaders;
inline constexpr int kPassThreads = kPassReaderThreads + 32;
inline constexpr int kPassEights = 2;              // of rows of the weight in a chunk
inline constexpr int kPassRows = 8 * kPassEights;  // at most; one for a lane that copies
inline constexpr int kPassBatch = 4;               // parts whose sums are added together
inline constexpr int kPassHeads = 2;               // query heads of one block, at most
inline constexpr int kPassKeyBytes = 65536;        // of the cache, where other blocks are free

struct PassShape {
  int instructions;
  unsigned ring;  ///< bytes of shared memory; what follows is the work area of an instruction
};

/// Sums of a batch of rows by warp.
using PassSums = float[kLinearSlices][kPassBatch * kPassRows];

/// What a block keeps in static shared memory; the ring and the work area are dynamic.
template <typename T>
struct PassShared {
  RingBarriers ring;
  PassSums sums[2];
  PassInstruction<T> read[2], written;
  ShiftedSums classes[kStatisticsClasses];
};

/// A block's outputs of a linear layer.
struct LinearShare {
  int begin, count;
};
template <typename T>
__device__ __forceinline__ LinearShare share_of(const PassInstruction<T>& i) {
  const LinearWork<T>& w = i.linear;
  int block = static_cast<int>(blockIdx.x) + i.rotation;
  if (block >= static_cast<int>(gridDim.x)) block -= static_cast<int>(gridDim.x);
  return {block * w.share + min(block, w.extra), w.share + (block < w.extra ? 1 : 0)};
}
/// How LinearWork cuts the weight of a block that computes `count` outputs.
struct LinearCut {
  int part, chunks, steps;
};
inline LinearCut cut_of(int count, int k, bool gated, int chunk_bytes) {
  const int most = gated ? kPassRows / 2 : kPassRows, parts = (count + most - 1) / most;
  const int part = (count + parts - 1) / parts, rows = gated ? 2 * part : part;
  const int all = (k + kLinearStep - 1) / kLinearStep;
  const int most_steps = chunk_bytes / (rows * kLinearStep * 2);
  if (all <= most_steps) return {part, 1, all};
  // Each warp has a step of each slice; a short rest is added to the last chunk.
  const int steps =
      most_steps < kLinearSlices ? kLinearSlices : most_steps / kLinearSlices * kLinearSlices;
  const int chunks = (all + 3 * steps / 4) / steps;
  return {part, chunks > 1 ? chunks : 1, steps};
}
/// The chunks of a part, of which the last has what is left of k.
struct ChunkShape {
  int k, chunks, columns;  ///< columns of all but the last
  unsigned stride;         ///< bytes from a row to the next: eight are read without bank conflicts
  template <typename T>
  __device__ explicit ChunkShape(const LinearWork<T>& w)
      : k(w.k), chunks(w.chunks), columns(w.steps * kLinearStep) {
    const int last = k - (chunks - 1) * columns;
    stride = ((2u * static_cast<unsigned>(max(columns * (chunks > 1), last)) + 127) & ~127u) + 64;
  }
  __device__ int columns_of(int chunk) const {
    return chunk + 1 == chunks ? k - chunk * columns : columns;
  }
  __device__ unsigned room(int rows) const { return ring_bytes(rows * stride); }
};

__device__ __forceinline__ void sync_readers() { named_barrier_sync(1, kPassReaderThreads); }

// ---- the streaming warp

__device__ __forceinline__ void prefetch_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

template <typename T>
__device__ __forceinline__ void stream_linear(const PassInstruction<T>& instruction,
                                              RingWriter& ring) {
  const LinearWork<T>& w = instruction.linear;
  const LinearShare share = share_of(instruction);
  if (share.count == 0) return;
  const int lane = threadIdx.x % 32;
  // What all blocks read is brought to the L2 cache by one of them.
  const int line = (static_cast<int>(blockIdx.x) * 32 + lane) * 64;
  if (w.norm.weight && line < w.k) prefetch_line(w.norm.weight + line);
  if (w.norm.weight && w.norm.bias && line < w.k) prefetch_line(w.norm.bias + line);
  if (w.bias) {
    const int last = share.begin + share.count - 1;
    for (int o = share.begin + lane * 64; o < last + 64; o += 32 * 64)
      prefetch_line(w.bias + min(o, last));
  }
  const ChunkShape shape(w);
  for (int first = 0; first < share.count; first += w.part) {
    const int outputs = min(w.part, share.count - first);
    const int rows = w.gated ? 2 * outputs : outputs;
    const unsigned room = shape.room(rows);
    const bool up = lane >= outputs;
    const T* row =
        w.weight + (std::int64_t{up ? w.n - outputs : 0} + share.begin + first + lane) * shape.k;
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      const unsigned bytes = 2u * shape.columns_of(chunk);
      unsigned char* to = ring.make_room(room, rows * bytes);
      if (lane < rows) ring.copy(to + lane * shape.stride, row + chunk * shape.columns, bytes);
      ring.advance(room);
    }
  }
}

// ---- a linear layer

/// Sixteen bytes of x as the operands of an mma want them: words 0 and 2, then 1 and 3.
template <typename T>
__device__ __forceinline__ Elements<T, 8> in_turn(const Elements<T, 8>& x) {
  Elements<T, 8> turned;
#pragma unroll
  for (int i = 0; i < 4; ++i) turned.words[i] = x.words[i % 2 * 2 + i / 2];
  return turned;
}

/// Writes norm(x), in_turn(), to `staged` [k, and zeros to a whole step]. A warp writes what it
/// reads.
template <typename T>
__device__ __forceinline__ void stage_input(const PassInstruction<T>& instruction, unsigned tag,
                                            T* staged, ShiftedSums (&classes)[kStatisticsClasses]) {
  const LinearWork<T>& w = instruction.linear;
  const int k = w.k, steps = (k + kLinearStep - 1) / kLinearStep;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Eight lanes have a step; so the warp has four of each round of steps, of different classes.
  constexpr int kRound = 4 * kPassReaders, kColumns = kRound * kLinearStep, kAtOnce = 4;
  static_assert(kRound == kStatisticsClasses);
  const int own = warp + kPassReaders * (lane / 8), begin = own * kLinearStep + lane % 8 * 8;
  const bool has_norm = w.norm.weight != nullptr;
  const PassInput<T>& input = instruction.x;
  Elements<T, 8> weight = {}, bias = {};
  const auto load_norm = [&](int i) {
    weight = load<8>(w.norm.weight + i);
    if (w.norm.bias) bias = load<8>(w.norm.bias + i);
  };
  if (has_norm && begin < k) load_norm(begin);
  PassElement<T> first;
  if (w.norm.mean) first.start(input, 0);
  float shift = 0.0f;
  ShiftedSums sums;
  for (int round = 0; round * kRound < steps; round += kAtOnce) {
    PassRead<T> reads[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = begin + (round + j) * kColumns;
      if (i < k) reads[j].start(input, i);
    }
    // What was not there is read again, all of it together.
    for (bool there = false; !there;) {
      there = true;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = begin + (round + j) * kColumns;
        if (!__any_sync(~0u, i < k && !reads[j].is_there(input, tag))) continue;
        if (i < k) reads[j].start(input, i);
        there = false;
      }
      if (w.norm.mean && __any_sync(~0u, !first.is_there(input, tag))) {
        first.start(input, 0);
        there = false;
      }
    }
    shift = w.norm.mean ? first.value() : 0.0f;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = begin + (round + j) * kColumns;
      if (own + (round + j) * kRound >= steps) break;
      Elements<T, 8> x = {};
      if (i < k) {
        x = reads[j].value(input);
        if (has_norm) sums.add(widen<T, 8>(x), shift);
      }
      *reinterpret_cast<Elements<T, 8>*>(staged + i) = in_turn(x);
    }
  }
  if (has_norm) {
    __syncwarp();
    const ShiftedSums of_class = sums.over_lanes<8>();
    if (lane % 8 == 0) classes[own] = of_class;
    sync_readers();
    const Statistics statistics = statistics_from(classes[lane], k, shift, w.norm.mean, w.norm.eps);
    for (int i = begin; i < k; i += kColumns) {
      auto* to = reinterpret_cast<Elements<T, 8>*>(staged + i);
      *to = in_turn(normalize<T, 8>(in_turn(*to), weight, bias, statistics));
      if (i + kColumns < k) load_norm(i + kColumns);
    }
  }
  __syncwarp();
}

/// A warp's operands of a step: kPassEights times eight rows of the weight, and x.
struct StepOperands {
  uint4 a[kPassEights][2];
  uint2 x[2];

  /// `row` are the lane's places in the chunk, `x_row` that in x, kOffset bytes before the step.
  template <int kOffset>
  __device__ __forceinline__ void load(const unsigned (&row)[kPassEights], unsigned x_row) {
    load_x<kOffset>(x[0], x_row);
    load_x<kOffset + 64>(x[1], x_row);
#pragma unroll
    for (int e = 0; e < kPassEights; ++e) {
      load_row<kOffset>(a[e][0], row[e]);
      load_row<kOffset + 64>(a[e][1], row[e]);
    }
  }
  /// Rows 0 .. 7 of an mma are the words 0 and 2 of eight rows of the weight, rows 8 .. 15 the
  /// words 1 and 3; of its columns the first has those words of x, the second these.
  template <typename T>
  __device__ __forceinline__ void add_to(float (&sums)[kPassEights][4]) const {
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
      for (int e = 0; e < kPassEights; ++e)
        multiply(sums[e], a[e][part].x, a[e][part].y, a[e][part].z, a[e][part].w, x[part].x,
                 x[part].y, T{});
  }

 private:
  template <int kOffset>
  static __device__ __forceinline__ void load_x(uint2& to, unsigned from) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2+%3];"
                 : "=r"(to.x), "=r"(to.y)
                 : "r"(from), "n"(kOffset)
                 : "memory");
  }
  template <int kOffset>
  static __device__ __forceinline__ void load_row(uint4& to, unsigned from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4+%5];"
                 : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
                 : "r"(from), "n"(kOffset)
                 : "memory");
  }
};

/// Writes zeros past the `columns` columns of a step, whose `rows` rows begin at `begin`, `stride`
/// bytes apart; by one warp, before it releases the chunk.
__device__ __forceinline__ void clear_past(int columns, int rows, unsigned begin, unsigned stride) {
  const int pieces = (kLinearStep - columns) / 8;
  for (int i = threadIdx.x % 32; i < rows * pieces; i += 32)
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(begin + i / pieces * stride +
                                                                  2 * columns + i % pieces * 16),
                 "r"(0)
                 : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the next copy comes after it
  __syncwarp();
}

/// Adds to `sums` the dot products of a part's `rows` rows of weights, from the ring, with x [k] at
/// address `x` in shared memory, over this warp's two slices of k: its index, and its index +
/// kPassReaders. Loops are not unrolled: what does not fit into the instruction cache is slower.
template <typename T>
__device__ __forceinline__ void multiply_part(const ChunkShape& shape, int rows, unsigned x,
                                              RingReader& ring, float (&sums)[2][kPassEights][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned room = shape.room(rows);
  constexpr int kNext = 2 * kPassReaders * kLinearStep;  // bytes to the other slice's step
  const unsigned own = 2 * warp * kLinearStep + 16 * (lane % 4) + lane / 4 * shape.stride;
  // Rows that are not there are the last one.
  const unsigned second = (min(lane / 4 + 8, rows - 1) - lane / 4) * shape.stride;
  const unsigned in_first = rows < 8 ? min(0, rows - 1 - lane / 4) * shape.stride : 0;
  x += 2 * warp * kLinearStep + 16 * (lane % 4) + lane / 4 % 2 * 8;
#pragma unroll 1
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    const int columns = shape.columns_of(chunk);
    const unsigned begin = ring.wait_for(room);
    unsigned at = x;
    x += 2 * columns;
    if (const int rest = columns % kLinearStep;
        rest != 0 && columns / kLinearStep % kPassReaders == warp)
      clear_past(rest, rows, begin + 2 * (columns - rest), shape.stride);
    unsigned row[kPassEights] = {begin + own + in_first, begin + own + second};
    StepOperands even, odd;
#pragma unroll 1
    for (int left = columns - warp * kLinearStep; left > 0; left -= kNext) {
      const bool both = left > kNext / 2;
      even.load<0>(row, at);
      if (both) odd.load<kNext>(row, at);
      even.add_to<T>(sums[0]);
      if (both) odd.add_to<T>(sums[1]);
#pragma unroll
      for (int e = 0; e < kPassEights; ++e) row[e] += 2 * kNext;
      at += 2 * kNext;
    }
    ring.release(room);
  }
}

/// The readers' part of a linear layer. `turn` counts batches of sums.
template <typename T>
__device__ __forceinline__ void run_linear(const PassInstruction<T>& instruction, unsigned tag,
                                           T* staged, PassShared<T>& shared, RingReader& ring,
                                           unsigned& turn) {
  const LinearWork<T>& w = instruction.linear;
  const LinearShare share = share_of(instruction);
  if (share.count == 0) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const ChunkShape shape(w);
  const unsigned x = in_register(shared_address(staged));
  for (int batch = 0; batch < share.count; batch += kPassBatch * w.part) {
    // The first threads finish an output each.
    const int part_of = static_cast<int>(threadIdx.x) / kPassRows;
    const int row_of = static_cast<int>(threadIdx.x) % kPassRows;
    const int own = batch + part_of * w.part + row_of, o = share.begin + own;
    const bool finishes = part_of < kPassBatch && row_of < w.part && own < share.count;
    PassElement<T> bias, residual;
    const PassInput<T> biases{.tagged = nullptr, .plain = w.bias};
    const bool has_residual = w.residual.tagged || w.residual.plain;
    if (finishes && w.bias) bias.start(biases, o);
    if (finishes && has_residual) residual.start(w.residual, o);
    if (batch == 0) stage_input(instruction, tag, staged, shared.classes);
    PassSums& sums = shared.sums[turn++ % 2];
    for (int part = 0; part < kPassBatch; ++part) {
      const int outputs = min(w.part, share.count - batch - part * w.part);
      if (outputs <= 0) break;
      float accumulators[2][kPassEights][4] = {};
      multiply_part<T>(shape, w.gated ? 2 * outputs : outputs, x, ring, accumulators);
      if (lane % 4 == 0) {
#pragma unroll
        for (int slice = 0; slice < 2; ++slice)
#pragma unroll
          for (int e = 0; e < kPassEights; ++e)
            sums[warp + slice * kPassReaders][part * kPassRows + 8 * e + lane / 4] =
                accumulators[slice][e][0] + accumulators[slice][e][3];
      }
    }
    sync_readers();
    if (!finishes) continue;
    const auto total = [&](int row) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kLinearSlices; ++i) sum += sums[i][part_of * kPassRows + row];
      return sum;
    };
    const int outputs = min(w.part, share.count - batch - part_of * w.part);
    const float first = total(row_of), second = w.gated ? total(outputs + row_of) : 0.0f;
    write_output(instruction.y, o,
                 finished<T>({.bias = w.bias != nullptr,
                              .gated = w.gated,
                              .residual = has_residual,
                              .function = w.function},
                             first, second, bias.value(),
                             has_residual ? residual.finish(w.residual, o, tag) : 0.0f),
                 tag);
  }
}

}  // namespace trireme::kernels::cuda
