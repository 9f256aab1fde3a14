// The rotation of a pair of elements, the same bits in every kernel.
#pragma once

namespace trireme::kernels::cuda {

struct RotatedPair {
  float low, high;
};
__device__ __forceinline__ RotatedPair rotate_pair(float low, float high, float cosine,
                                                   float sine) {
  return {fmaf(low, cosine, -(high * sine)), fmaf(high, cosine, low * sine)};
}

}  // namespace trireme::kernels::cuda
