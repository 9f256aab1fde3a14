// Attention in a decoding pass.
#pragma once

#include "kernels/cuda/decoding/pass.cuh"
#include "kernels/cuda/rotary.cuh"

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
template <typename T, int kLanes, int kHeads>
struct AttentionShare {
  using Reader = KeyReader<T, kLanes, kHeads, true, kParts>;
  static constexpr int kOfPart = kWarps * Reader::kStep;  // keys of a part's first steps

  int chunks, splits, head_group, split, kv, first_head, heads, begin, end;
  int there;  ///< parts of the keys that are there, of which every splits-th is this block's
  bool active;

  __device__ AttentionShare(const PassInstruction<T>& instruction, const PassSequence& sequence) {
    const CacheParameters<T>& p = instruction.attention.cache;
    const int group = p.heads / p.kv_heads;
    chunks = (group + kHeads - 1) / kHeads;
    end = sequence.end;
    begin = p.window > 0 ? max(0, end - p.window) : 0;
    const int units = p.kv_heads * chunks, bytes = (end - begin) * p.d * 4;
    splits = 1;
    while (splits < kParts && 2 * splits * units <= static_cast<int>(gridDim.x) &&
           bytes > splits * kPassKeyBytes)
      splits *= 2;
    int block = static_cast<int>(blockIdx.x) + instruction.rotation;
    if (block >= static_cast<int>(gridDim.x)) block -= static_cast<int>(gridDim.x);
    head_group = block / splits;
    split = block % splits;
    kv = head_group / chunks;
    first_head = kv * group + head_group % chunks * kHeads;
    heads = min(kHeads, (kv + 1) * group - first_head);
    there = min(max((end - begin + kOfPart - 1) / kOfPart, 1), kParts);
    active = block < units * splits && split < there;
  }
  /// The part of the keys that the block's unit `unit` belongs to. A part has kWarps units, a unit
  /// is what one warp attends to.
  __device__ int part_of(int unit) const { return split + unit / kWarps * splits; }
  __device__ bool is_there(int unit) const { return part_of(unit) < there; }
  /// The first key of a unit, which has those of a step, and of every Reader::kStride-th after it.
  __device__ int first_of(int unit) const {
    return begin + (part_of(unit) * kWarps + unit % kWarps) * Reader::kStep;
  }
};

/// A chunk of the ring has a step of keys and values of kPassReaders units: of each [kStep, d].
template <typename Reader, typename T>
__device__ __forceinline__ unsigned keys_room(const CacheParameters<T>& p) {
  return ring_bytes(2u * 2 * kPassReaders * Reader::kStep * p.d);
}
/// Where it has those of a warp's unit, in elements: values follow kPassReaders units of keys.
template <typename Reader, typename T>
__device__ __forceinline__ int keys_of_warp(const CacheParameters<T>& p, int warp, bool values) {
  return (values * kPassReaders + warp) * Reader::kStep * p.d;
}

/// The streaming warp's part of attention: a chunk for each step that is in the cache.
template <typename T, int kLanes, int kHeads>
__device__ __forceinline__ void stream_keys(const PassInstruction<T>& instruction,
                                            const PassSequence& sequence, RingWriter& ring) {
  using Share = AttentionShare<T, kLanes, kHeads>;
  using Reader = typename Share::Reader;
  const CacheParameters<T>& p = instruction.attention.cache;
  const Share share(instruction, sequence);
  if (!share.active) return;
  const std::int32_t* blocks = p.table + sequence.line * p.columns;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = lane % kPassReaders;
  const bool values = lane / kPassReaders == 1, copies = lane < 2 * kPassReaders;
  const T* from = values ? p.values : p.keys;
  const unsigned room = keys_room<Reader>(p);
  for (int unit = 0; share.is_there(unit); unit += kPassReaders)
    for (int first = share.first_of(unit), step = 0; first < share.end;
         first += Reader::kStride, step += Reader::kStride) {
      // A lane copies the keys or the values of a warp's unit.
      int key = share.first_of(unit + warp) + step;
      const int limit =
          copies && share.is_there(unit + warp) ? min(key + Reader::kStep, share.end - 1) : 0;
      const unsigned bytes = 2u * p.d * max(limit - key, 0);
      unsigned char* to = ring.make_room(room, __reduce_add_sync(~0u, bytes));
      to += 2 * keys_of_warp<Reader>(p, warp, values);
      while (key < limit) {  // what is in one block of the cache
        const int next = min(limit, (key | (p.positions - 1)) + 1);
        const unsigned part = 2u * p.d * (next - key);
        ring.copy(to, from + p.place(blocks, key, share.kv), part);
        to += part;
        key = next;
      }
      __syncwarp();
      ring.advance(room);
    }
}

/// Reads a warp's step of keys and values before `limit` from its chunk; zeros from there on.
template <typename Reader, typename T, typename Step>
__device__ __forceinline__ void read_keys(const Reader& reader, const T* chunk, int first,
                                          int limit, Step& step) {
  const int column = reader.column(), warp = threadIdx.x / 32;
  const T* keys = chunk + keys_of_warp<Reader>(reader.p, warp, false) + column;
  const T* values = chunk + keys_of_warp<Reader>(reader.p, warp, true) + column;
#pragma unroll
  for (int u = 0; u < Reader::kUnroll; ++u) {
    const int key = reader.key_of(first, u);
    step.keys[u] = step.values[u] = {};
    if (key >= limit || column >= reader.p.d) continue;
    step.keys[u] = load<kElements>(keys + (key - first) * reader.p.d);
    step.values[u] = load<kElements>(values + (key - first) * reader.p.d);
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
                                              const PassSequence& sequence, unsigned tag,
                                              unsigned char* work, RingReader& ring) {
  using Share = AttentionShare<T, kLanes, kHeads>;
  using Reader = typename Share::Reader;
  using Sums = AttentionSums<kLanes, kHeads>;
  constexpr int kColumns = kLanes * kElements;  // d, or more
  const CacheParameters<T>& p = instruction.attention.cache;
  const Share share(instruction, sequence);
  if (!share.active) return;
  Sums& sums = *reinterpret_cast<Sums*>(work);
  T* staged = reinterpret_cast<T*>(work + sizeof(Sums));
  const int warp = threadIdx.x / 32, end = sequence.end, there = share.there;
  const Reader reader{.p = p,
                      .blocks = p.table + sequence.line * p.columns,
                      .kv = share.kv,
                      .begin = share.begin,
                      .end = end};
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
  const unsigned room = keys_room<Reader>(p);
  for (int turn = 0; share.is_there(turn); turn += Sums::kUnits) {
    for (int unit = turn; unit < turn + Sums::kUnits && share.is_there(unit);
         unit += kPassReaders) {
      Softmax<kHeads> state;
#pragma unroll
      for (int g = 0; g < kHeads; ++g) {
        state.sum[g] = {};
        state.largest[g] = -INFINITY;
        state.total[g] = 0.0f;
      }
      const bool own = share.is_there(unit + warp);
      int first = share.first_of(unit + warp);
      for (int of_ring = share.first_of(unit); of_ring < end; of_ring += Reader::kStride) {
        const T* chunk = ring.template pointer<T>(ring.wait_for(room));
        if (own && first < end) {
          typename Reader::Step step;
          read_keys(reader, chunk, first, end - 1, step);
          reader.read_new(first, new_key, new_value, step);
          reader.add(first, step, query, state);
        }
        ring.release(room);
        first += Reader::kStride;
      }
      if (own) write_warp<kLanes, kHeads>(state, sums.units[unit + warp - turn]);
    }
    sync_readers();
    for (int task = threadIdx.x; task < Sums::kUnits / kWarps * kHeads * kColumns;
         task += kPassReaderThreads) {
      const int i = task / (kHeads * kColumns), g = task / kColumns % kHeads, c = task % kColumns;
      const int part = share.part_of(turn + i * kWarps);
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
      instruction.attention.partials + std::int64_t{share.head_group} * kParts * kHeads * line;
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
  const bool first_of_group = share.head_group % share.chunks == 0;
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

}  // namespace trireme::kernels::cuda
