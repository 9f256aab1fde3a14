// Attention in a decoding pass.
#pragma once

#include "kernels/cuda/decoding/pass.cuh"
#include "kernels/cuda/rotary_pair.cuh"

namespace trireme::kernels::cuda {

/// What the warps and the kParts parts of the keys give, in the work area.
template <int kLanes, int kHeads>
struct AttentionSums {
  using Part = PartSums<kHeads, kLanes * kElements>;
  /// What a turn of the warps gives: four to a part of the keys.
  static constexpr int kUnits = kHeads == 1 ? kParts * kWarps : kPassReaders;
  Part units[kUnits], parts[kParts];
};

/// The sequence of the pass.
struct PassSequence {
  std::int32_t line;  ///< of the table
  int end;            ///< its tokens, the new one included
};

/// How the blocks share attention: `splits` of them have a group of query heads, each some parts of
/// the keys.
template <typename T, int kHeads>
struct AttentionShare {
  int chunks, splits, unit, split, kv, first_head, heads, begin;
  bool active;

  __device__ AttentionShare(const PassInstruction<T>& instruction, const PassSequence& sequence) {
    const CacheParameters<T>& p = instruction.attention.cache;
    const int group = p.heads / p.kv_heads;
    chunks = (group + kHeads - 1) / kHeads;
    begin = p.window > 0 ? max(0, sequence.end - p.window) : 0;
    const int units = p.kv_heads * chunks, bytes = (sequence.end - begin) * p.d * 4;
    splits = 1;
    while (splits < kParts && 2 * splits * units <= static_cast<int>(gridDim.x) &&
           bytes > splits * kPassKeyBytes)
      splits *= 2;
    int block = static_cast<int>(blockIdx.x) + instruction.rotation;
    if (block >= static_cast<int>(gridDim.x)) block -= static_cast<int>(gridDim.x);
    active = block < units * splits;
    unit = block / splits;
    split = block % splits;
    kv = unit / chunks;
    first_head = kv * group + unit % chunks * kHeads;
    heads = min(kHeads, (kv + 1) * group - first_head);
  }
};

/// Reads a step of keys and values before `limit` from the cache, whose blocks have a power of two
/// of positions; zeros from there on.
template <typename Reader, typename Step>
__device__ __forceinline__ void read_keys(const Reader& reader, int first, int limit, Step& step) {
  const auto& p = reader.p;
  const int column = reader.column(), mask = p.positions - 1;
  const std::int64_t head = std::int64_t{reader.kv} * p.positions * p.d + column;
#pragma unroll
  for (int u = 0; u < Reader::kUnroll; ++u) {
    const int key = reader.key_of(first, u);
    step.keys[u] = step.values[u] = {};
    if (key >= limit || column >= p.d) continue;
    const std::int64_t place = reader.blocks[key >> p.shift] * p.stride + head + (key & mask) * p.d;
    step.keys[u] = load<kElements>(p.keys + place);
    step.values[u] = load<kElements>(p.values + place);
  }
}

/// Writes q of the heads, then k and v, to `staged` [heads + 2, d], q and k rotated.
template <typename T>
__device__ void stage_heads(const PassInstruction<T>& instruction, int first_head, int heads,
                            int kv, int position, unsigned tag, T* staged) {
  const CacheParameters<T>& p = instruction.attention.cache;
  const PassInput<T>& input = instruction.x;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int head = static_cast<int>(threadIdx.x) / 32; head < heads + 2; head += kPassReaders) {
    const int from = head < heads    ? first_head + head
                     : head == heads ? p.heads + kv
                                     : p.heads + p.kv_heads + kv;
    if (8 * lane < p.d)
      *reinterpret_cast<Elements<T, 8>*>(staged + head * p.d + 8 * lane) =
          read_input(input, from * p.d + 8 * lane, tag);
  }
  sync_readers();
  const float* cosines = instruction.attention.rotary;
  if (!cosines) return;
  cosines += std::int64_t{max(position, 0)} * p.d;
  const int half = p.d / 2;
  for (int i = threadIdx.x; i < (heads + 1) * half; i += kPassReaderThreads) {
    const int head = i / half, column = i - head * half;
    T* low = staged + head * p.d + column;
    const RotatedPair pair =
        rotate_pair(to_float(low[0]), to_float(low[half]), cosines[column], cosines[half + column]);
    low[0] = from_float<T>(pair.low);
    low[half] = from_float<T>(pair.high);
  }
  sync_readers();
}

/// The readers' part of attention.
template <typename T, int kLanes, int kHeads>
__device__ __forceinline__ void run_attention(const PassInstruction<T>& instruction,
                                              PassSequence sequence, unsigned tag,
                                              unsigned char* work) {
  using Reader = KeyReader<T, kLanes, kHeads, true, kParts>;
  using Sums = AttentionSums<kLanes, kHeads>;
  constexpr int kColumns = kLanes * kElements;     // d, or more
  constexpr int kOfPart = kWarps * Reader::kStep;  // keys of a part's first steps
  const CacheParameters<T>& p = instruction.attention.cache;
  const AttentionShare<T, kHeads> share(instruction, sequence);
  if (!share.active) return;
  Sums& sums = *reinterpret_cast<Sums*>(work);
  T* staged = reinterpret_cast<T*>(work + sizeof(Sums));
  const int warp = threadIdx.x / 32, end = sequence.end;
  const Reader reader{.p = p,
                      .blocks = p.table + sequence.line * p.columns,
                      .kv = share.kv,
                      .begin = share.begin,
                      .end = end};
  // The parts of the keys that are there, of which every share.splits-th is this block's.
  const int there = min(max((end - share.begin + kOfPart - 1) / kOfPart, 1), kParts);
  const auto part_of = [&](int i) { return share.split + i * share.splits; };
  const auto is_there = [&](int unit) { return part_of(unit / kWarps) < there; };
  const auto first_of = [&](int unit) {
    return share.begin + (part_of(unit / kWarps) * kWarps + unit % kWarps) * Reader::kStep;
  };
  if (share.split >= there) return;
  typename Reader::Step step;
  if (is_there(warp)) read_keys(reader, first_of(warp), end - 1, step);  // before q is there
  stage_heads(instruction, share.first_head, share.heads, share.kv, end - 1, tag, staged);
  const T *new_key = staged + share.heads * p.d, *new_value = new_key + p.d;
  Values<kElements> query[kHeads];
#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
    query[g] = {};
    if (g < share.heads)
      query[g] = values_of<T, true>(
          load_part<T, true>(staged + g * p.d + reader.column(), p.d - reader.column()));
#pragma unroll
    for (int c = 0; c < kElements; ++c) query[g][c] *= p.scale;
  }
  for (int turn = 0; is_there(turn); turn += Sums::kUnits) {
    for (int unit = turn + warp; unit < turn + Sums::kUnits && is_there(unit);
         unit += kPassReaders) {
      Softmax<kHeads> state;
#pragma unroll
      for (int g = 0; g < kHeads; ++g) {
        state.sum[g] = {};
        state.largest[g] = -INFINITY;
        state.total[g] = 0.0f;
      }
      const int begin = first_of(unit);
      for (int first = begin; first < end; first += Reader::kStride) {
        if (unit != warp || first != begin) read_keys(reader, first, end - 1, step);
        reader.read_new(first, new_key, new_value, step);
        reader.add(first, step, query, state);
      }
      write_warp<kLanes, kHeads>(state, sums.units[unit - turn]);
    }
    sync_readers();
    for (int task = threadIdx.x; task < Sums::kUnits / kWarps * kHeads * kColumns;
         task += kPassReaderThreads) {
      const int i = task / (kHeads * kColumns), g = task / kColumns % kHeads, c = task % kColumns;
      const int part = part_of(turn / kWarps + i);
      if (part >= there) break;
      const auto& units =
          reinterpret_cast<const typename Sums::Part(&)[kWarps]>(sums.units[i * kWarps]);
      const PartSum sum = combine_warps(units, g, c);
      sums.parts[part].sum[g][c] = sum.sum;
      if (c == 0) {
        sums.parts[part].largest[g] = sum.largest;
        sums.parts[part].total[g] = sum.total;
      }
    }
    sync_readers();
  }
  // The first block of a group gathers the parts of the others, a line of d + 2 floats for a head.
  const int line = p.d + 2, lines = share.heads * line;
  uint2* partials =
      instruction.attention.partials + std::int64_t{share.unit} * kParts * kHeads * line;
  const bool gathers = share.split == 0;
  for (int task = threadIdx.x; share.splits > 1 && task < there * lines;
       task += kPassReaderThreads) {
    const int part = task / lines, g = (task - part * lines) / line;
    const int c = task - part * lines - g * line;
    const bool own = part % share.splits == share.split;
    if (own == gathers) continue;
    auto& sum = sums.parts[part];
    float& value = c < p.d ? sum.sum[g][c] : c == p.d ? sum.largest[g] : sum.total[g];
    uint2* word = partials + (part * kHeads + g) * line + c;
    if (gathers)
      value = read_float(word, tag);
    else
      write_float(word, value, tag);
  }
  if (!gathers) return;
  if (share.splits > 1) sync_readers();
  for (int task = threadIdx.x; task < share.heads * kColumns; task += kPassReaderThreads) {
    const int g = task / kColumns, c = task % kColumns;
    if (c >= p.d) continue;
    PartSum of[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      of[i] = {-INFINITY, 0.0f, 0.0f};
      if (i < there) of[i] = sum_at(&sums.parts[i], g, c);
    }
    const PartSum all = combine(of);
    write_output(instruction.y, (share.first_head + g) * p.d + c,
                 end > 0 ? all.sum / all.total : 0.0f, tag);
  }
  const bool first_of_group = share.unit % share.chunks == 0;
  if (T* rotated = instruction.attention.rotated) {
    for (int i = threadIdx.x; i < share.heads * p.d; i += kPassReaderThreads)
      rotated[share.first_head * p.d + i] = staged[i];
    for (int i = threadIdx.x; first_of_group && i < p.d; i += kPassReaderThreads)
      rotated[(p.heads + share.kv) * p.d + i] = new_key[i];
  }
  if (end > 0 && first_of_group) {
    const std::int64_t place = p.place(reader.blocks, end - 1, share.kv);
    for (int i = threadIdx.x; i < p.d; i += kPassReaderThreads) {
      p.keys[place + i] = new_key[i];
      p.values[place + i] = new_value[i];
    }
  }
}

/// Brings the keys and values that this block will read to the L2 cache; by the streaming warp.
template <typename T, int kHeads>
__device__ __forceinline__ void prefetch_keys(const PassInstruction<T>& instruction,
                                              PassSequence sequence) {
  const CacheParameters<T>& p = instruction.attention.cache;
  const AttentionShare<T, kHeads> share(instruction, sequence);
  if (!share.active || share.split > 0) return;
  const std::int32_t* blocks = p.table + sequence.line * p.columns;
  // A lane takes the positions of every 32nd block of the cache.
  const int first = share.begin / p.positions;
  for (int column = first + static_cast<int>(threadIdx.x) % 32; column * p.positions < sequence.end;
       column += 32) {
    const std::int64_t place = p.place(blocks, column * p.positions, share.kv);
    for (const T* from : {p.keys + place, p.values + place})
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from),
                   "r"(2 * p.positions * p.d)
                   : "memory");
  }
}

}  // namespace trireme::kernels::cuda
