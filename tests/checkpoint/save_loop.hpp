// What save_loop writes and the kill test expects.
#pragma once

#include "sharded_tensors.hpp"

namespace trireme::checkpoint {

/// Some megabytes in tensors of several sizes.
inline std::vector<ShardedTensors::Logical> loop_model() {
  std::vector<ShardedTensors::Logical> model = {{"model/embedding/word", {2048, 256}}};
  for (int layer = 0; layer < 8; ++layer)
    model.push_back({"model/layers/" + std::to_string(layer) + "/weight", {256, 256}});
  return model;
}

/// The value of every element of checkpoint `step`: cheap, and different in each.
inline float loop_value(std::int64_t step) { return static_cast<float>(step) + 0.5f; }

inline void fill_quickly(ShardedTensors& sharded, std::int64_t step) {
  for (const LocalTensor& tensor : sharded.tensors)
    for (const Piece& piece : tensor.pieces)
      for (std::int64_t i = 0; i < count_elements(piece.slabs); ++i)
        static_cast<float*>(piece.data)[i] = loop_value(step);
}

}  // namespace trireme::checkpoint
