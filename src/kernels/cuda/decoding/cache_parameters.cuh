// What attention kernels over a paged cache are told, from the arguments of operations.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cuda/decoding/attention_keys.cuh"
#include "kernels/decoding.hpp"

namespace trireme::kernels::cuda {

template <typename T>
CacheParameters<T> cache_parameters(const Tensor& qkv, const KeyValueCache& cache,
                                    const CacheRows& rows, const CacheSizes& sizes) {
  int shift = -1;
  for (int i = 0; i < 31; ++i)
    if (std::int64_t{1} << i == sizes.positions) shift = i;
  return {.qkv = qkv.as<T>(),
          .keys = cache.keys.as<T>(),
          .values = cache.values.as<T>(),
          .out = nullptr,
          .table = cache.table,
          .lines = rows.lines,
          .row_positions = rows.positions,
          .stride = cache.stride,
          .columns = cache.columns,
          .heads = static_cast<int>(sizes.heads),
          .kv_heads = static_cast<int>(sizes.kv_heads),
          .d = static_cast<int>(sizes.head_dim),
          .positions = static_cast<int>(sizes.positions),
          .shift = shift,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(sizes.head_dim))),
          .append = false,
          .window = 0};
}

template <typename T>
CacheParameters<T> cache_parameters(const AttentionPaged& args, const CacheSizes& sizes) {
  CacheParameters<T> p = cache_parameters<T>(args.qkv, args.cache, args.rows, sizes);
  p.out = args.out.as<T>();
  p.append = args.append;
  p.window = static_cast<int>(std::min<std::int64_t>(args.window, INT32_MAX));
  return p;
}

}  // namespace trireme::kernels::cuda
