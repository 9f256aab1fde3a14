// One token through all layers in one kernel: see pass.hpp.
#pragma once

#include "kernels/cuda/decoding/pass_ring.cuh"
#include "kernels/cuda/decoding/pass_work.cuh"

namespace trireme::kernels::cuda {

/// Warps that multiply, two slices of k each, and one that streams. With twice as many warps a
/// thread has 96 registers, too few for attention; the ring leaves little cache for local memory.
inline constexpr int kPassReaders = kLinearSlices / 2;
inline constexpr int kPassReaderThreads = 32 * kPassReaders;
inline constexpr int kPassThreads = kPassReaderThreads + 32;
inline constexpr int kPassRows = 32;         // of the weight in a chunk: one for a lane that copies
inline constexpr int kPassBatch = 2;         // parts whose sums are added together
inline constexpr int kPassHeads = 4;         // query heads of one block, at most
inline constexpr int kPassBlocks = 64;       // of kStatisticsColumns columns, at most
inline constexpr int kPassKeyBytes = 65536;  // of the cache, where other blocks are free

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
  ShiftedSums columns[kPassBlocks];
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

template <typename T>
__device__ __forceinline__ void stream_linear(const PassInstruction<T>& instruction,
                                              RingWriter& ring) {
  const LinearWork<T>& w = instruction.linear;
  const LinearShare share = share_of(instruction);
  if (share.count == 0) return;
  const int lane = threadIdx.x % 32;
  if (w.norm.weight) {
    const unsigned bytes = 2u * static_cast<unsigned>(w.k), room = ring_bytes(bytes);
    for (int i = 0; i < (w.norm.bias ? 2 : 1); ++i) {
      unsigned char* to = ring.make_room(room, bytes);
      if (lane == 0) ring.copy(to, i == 0 ? w.norm.weight : w.norm.bias, bytes);
      ring.advance(room);
    }
  }
  if (w.bias) {
    const int last = share.begin + share.count - 1;
    for (int o = share.begin + lane * 64; o < last + 64; o += 32 * 64)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(w.bias + min(o, last)));
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

/// Writes norm(x) to `staged` [k, and zeros to a whole step].
template <typename T>
__device__ __forceinline__ void stage_input(const PassInstruction<T>& instruction, unsigned tag,
                                            T* staged, ShiftedSums (&sums)[kPassBlocks],
                                            RingReader& ring) {
  const LinearWork<T>& w = instruction.linear;
  const int k = w.k, padded = (k + kLinearStep - 1) / kLinearStep * kLinearStep;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // A warp has every kPassReaders-th block of columns, a lane eight of each.
  const auto for_blocks = [&](auto body) {
    for (int block = warp; block * kStatisticsColumns < padded; block += kPassReaders) {
      const int i = block * kStatisticsColumns + 8 * lane;
      body(block, i, reinterpret_cast<Elements<T, 8>*>(staged + i));
    }
  };
  float shift = 0.0f;
  if (w.norm.mean) shift = read_element(instruction.x, 0, tag);
  constexpr int kAtOnce = 4;
  for (int first = warp; first * kStatisticsColumns < padded; first += kAtOnce * kPassReaders) {
    PassRead<T> reads[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = (first + j * kPassReaders) * kStatisticsColumns + 8 * lane;
      if (i < k) reads[j].start(instruction.x, i);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int block = first + j * kPassReaders, i = block * kStatisticsColumns + 8 * lane;
      if (block * kStatisticsColumns >= padded) break;
      Elements<T, 8> x = {};
      if (i < k) x = reads[j].finish(instruction.x, i, tag);
      if (i < padded) *reinterpret_cast<Elements<T, 8>*>(staged + i) = x;
      if (!w.norm.weight) continue;
      const ShiftedSums own = columns_sums(widen<T, 8>(x), i < k, shift);
      if (lane == 0) sums[block] = own;
    }
  }
  sync_readers();
  if (!w.norm.weight) return;
  ShiftedSums all;
  for (int block = 0; block * kStatisticsColumns < k; block += 8) {
    ShiftedSums next[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) next[i] = sums[block + i];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if ((block + i) * kStatisticsColumns < k) {
        all.sum = __fadd_rn(all.sum, next[i].sum);
        all.squares = __fadd_rn(all.squares, next[i].squares);
      }
  }
  const Statistics statistics = statistics_from(all, k, shift, w.norm.mean, w.norm.eps);
  // The weight and the bias are two chunks.
  const unsigned room = ring_bytes(2u * static_cast<unsigned>(k));
  NormParameters<T> norm = w.norm;
  norm.weight = reinterpret_cast<const T*>(ring.wait_for(room));
  const RingPosition begin = ring.at;
  if (norm.bias) {
    ring.at.advance(room);
    norm.bias = reinterpret_cast<const T*>(ring.wait_for(room));
  }
  for_blocks([&](int, int i, Elements<T, 8>* to) {
    if (i < k) *to = normalize<T, 8>(norm, *to, i, statistics);
  });
  ring.at = begin;
  ring.release(room);
  if (norm.bias) {
    ring.at.fit(room, ring.capacity);
    ring.release(room);
  }
  sync_readers();
}

/// A warp's operands of a step: kEights times eight rows of the weight, and x.
template <typename T, int kEights>
struct StepOperands {
  uint4 a[kEights][2];
  Elements<T, 8> x[2];

  /// `row` are the lane's places in the chunk, `x_row` that in x, of the step's first column; there
  /// are `columns` from it on. kWhole: a step of them, or more.
  template <bool kWhole>
  __device__ __forceinline__ void load(const unsigned char* const (&row)[kEights], unsigned offset,
                                       const T* x_row, int columns) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const bool there = kWhole || 32 * part + 8 * (lane % 4) < columns;
      x[part] = {};
      if (lane < 4 && there) x[part] = *reinterpret_cast<const Elements<T, 8>*>(x_row + 32 * part);
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        if (!kWhole) a[e][part] = make_uint4(0, 0, 0, 0);
        if (there) a[e][part] = *reinterpret_cast<const uint4*>(row[e] + offset + 64 * part);
      }
    }
  }
  __device__ __forceinline__ void add_to(float (&sums)[2][4]) const {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const std::uint32_t* v = x[part].words;
#pragma unroll
      for (int e = 0; e < kEights; e += 2) {
        const uint4 &low = a[e][part], &high = a[e + 1 < kEights ? e + 1 : e][part];
        multiply(sums[e / 2], low.x, high.x, low.y, high.y, v[0], v[1], T{});
      }
#pragma unroll
      for (int e = 0; e < kEights; e += 2) {
        const uint4 &low = a[e][part], &high = a[e + 1 < kEights ? e + 1 : e][part];
        multiply(sums[e / 2], low.z, high.z, low.w, high.w, v[2], v[3], T{});
      }
    }
  }
};

/// Adds to `sums` the dot products of a part's `rows` rows of weights, from the ring, with x at
/// `staged` [k], over this warp's two slices of k: its index, and its index + kPassReaders.
template <typename T, int kEights>
__device__ __forceinline__ void multiply_part(const ChunkShape& shape, int rows, const T* staged,
                                              RingReader& ring, float (&sums)[2][2][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned room = shape.room(rows);
  constexpr int kNext = kPassReaders * kLinearStep;  // columns to the other slice's step
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    const int first = warp * kLinearStep;
    int left = shape.columns_of(chunk) - first;
    const T* x = staged + chunk * shape.columns + first + 8 * (lane % 4);
    const unsigned char* row[kEights];
    const unsigned char* weights = ring.wait_for(room) + 2 * first + 16 * (lane % 4);
    // Rows past the last one are read as the last one: their sums are not used.
#pragma unroll
    for (int e = 0; e < kEights; ++e)
      row[e] = weights + min(lane / 4 + 8 * e, rows - 1) * shape.stride;
    unsigned offset = 0;
    for (; left >= kNext + kLinearStep; left -= 2 * kNext) {
      StepOperands<T, kEights> even, odd;
      even.template load<true>(row, offset, x, left);
      odd.template load<true>(row, offset + 2 * kNext, x + kNext, left);
      even.add_to(sums[0]);
      odd.add_to(sums[1]);
      offset += 4 * kNext;
      x += 2 * kNext;
    }
    if (left > 0) {
      StepOperands<T, kEights> even;
      even.template load<false>(row, offset, x, left);
      even.add_to(sums[0]);
    }
    if (left > kNext) {
      StepOperands<T, kEights> odd;
      odd.template load<false>(row, offset + 2 * kNext, x + kNext, left - kNext);
      odd.add_to(sums[1]);
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
  for (int batch = 0; batch < share.count; batch += kPassBatch * w.part) {
    // The threads of the first warps finish an output each.
    const int own = batch + warp * w.part + lane;
    const bool finishes = warp < kPassBatch && lane < w.part && own < share.count;
    const int o = share.begin + own;
    float bias = 0.0f, residual = 0.0f;
    const bool has_residual = w.residual.tagged || w.residual.plain;
    if (finishes && w.bias) bias = to_float(w.bias[o]);
    if (finishes && has_residual) residual = read_element(w.residual, o, tag);
    if (batch == 0) stage_input(instruction, tag, staged, shared.columns, ring);
    PassSums& sums = shared.sums[turn++ % 2];
    for (int part = 0; part < kPassBatch; ++part) {
      const int outputs = min(w.part, share.count - batch - part * w.part);
      if (outputs <= 0) break;
      const int rows = w.gated ? 2 * outputs : outputs;
      float accumulators[2][2][4] = {};
      if (rows <= 8)
        multiply_part<T, 1>(shape, rows, staged, ring, accumulators);
      else if (rows <= 16)
        multiply_part<T, 2>(shape, rows, staged, ring, accumulators);
      else if (rows <= 24)
        multiply_part<T, 3>(shape, rows, staged, ring, accumulators);
      else
        multiply_part<T, 4>(shape, rows, staged, ring, accumulators);
      if (lane % 4 == 0) {
#pragma unroll
        for (int slice = 0; slice < 2; ++slice) {
          float* to = sums[warp + slice * kPassReaders] + part * kPassRows + lane / 4;
#pragma unroll
          for (int i = 0; i < 4; ++i) to[8 * i] = accumulators[slice][i / 2][2 * (i % 2)];
        }
      }
    }
    sync_readers();
    if (!finishes) continue;
    const int outputs = min(w.part, share.count - batch - warp * w.part);
    const auto total = [&](int row) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kLinearSlices; ++i) sum += sums[i][warp * kPassRows + row];
      return sum;
    };
    write_output(instruction.y, o,
                 finished<T>({.bias = w.bias != nullptr,
                              .gated = w.gated,
                              .residual = has_residual,
                              .function = w.function},
                             total(lane), w.gated ? total(outputs + lane) : 0.0f, bias, residual),
                 tag);
  }
}

}  // namespace trireme::kernels::cuda
