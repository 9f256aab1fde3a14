// How a GEMM and a collective over tensor ranks run at the same time: the rows of a matrix lie in
// equal parts, one for each rank, and flags in GPU memory say which of them are there.
#pragma once

#include <cstdint>

#include "core/philox.hpp"

namespace trireme {

/// Parts of a matrix's rows that other ranks write while a GEMM is enqueued which reads it: part p
/// is there once flags[p] has reached `epoch`. That of this rank, `own`, is there from the start.
struct PartArrivals {
  const std::uint32_t* flags = nullptr;  ///< [parts]; null: all parts are there
  std::uint32_t epoch = 0;
  int parts = 1;
  int own = 0;

  explicit operator bool() const { return flags != nullptr; }
};

/// Whether a flag of value `shown` has reached `epoch`. Epochs count up modulo 2^32; two that are
/// compared are less than 2^31 apart.
TRIREME_HOST_DEVICE constexpr bool flag_reached(std::uint32_t shown, std::uint32_t epoch) {
  return static_cast<std::int32_t>(shown - epoch) >= 0;
}

}  // namespace trireme
