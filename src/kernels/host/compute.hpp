// How the host computes an operation: its threads, their scratch memory, and the type in which it
// computes on 16-bit tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/tensor.hpp"

namespace trireme::kernels::host {

/// Makes the host kernels called from this thread use `threads` OpenMP threads, and OpenBLAS one:
/// GEMMs are cut among our threads. No result depends on the number.
void use_threads(int threads);

/// Runs body(i) for i in [0, count), spread over the threads. The body must not throw.
template <typename Body>
void parallel_for(std::int64_t count, const Body& body) {
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

/// Cuts [0, count) into blocks of `block` and runs body(begin, end) for each, spread over the
/// threads. The cut does not depend on the number of threads.
template <typename Body>
void parallel_blocks(std::int64_t count, std::int64_t block, const Body& body) {
  parallel_for((count + block - 1) / block, [&](std::int64_t i) {
    const std::int64_t begin = i * block;
    body(begin, begin + block < count ? begin + block : count);
  });
}

/// At least `count` elements of working memory of the calling thread, of any content. It is kept
/// between calls, so that a training loop allocates nothing after its first step; the next call
/// with the same types on this thread hands out the same memory. `Owner` keeps users apart.
template <typename T, typename Owner>
T* scratch(std::size_t count) {
  thread_local std::vector<T> memory;
  if (memory.size() < count) {
    memory = std::vector<T>();  // before the larger one is allocated: the content is not needed
    memory.resize(count);
  }
  return memory.data();
}

// ---- 16-bit types: arithmetic in fp32 on copies of the tensors, results rounded once when they
// are stored. It trains small models for tests; it is not fast.

/// Tensors of an operation's arguments.
template <typename Args>
using Members = std::initializer_list<Tensor Args::*>;

struct HalfStorage;

/// Calls function(args, T{}) with the type T, float or double, in which the host computes on
/// tensors of `dtype`. For a 16-bit type the tensors of `read` and `written` that are of it are
/// replaced by fp32 copies: those of `read` hold their values before the call, those of `written`
/// are rounded back after it. An operation that adds to a tensor names it in both.
template <typename Args, typename Function>
void compute(const Args& args, DType dtype, Members<Args> read, Members<Args> written,
             const Function& function) {
  if (dtype == accumulation_type(dtype)) {
    dispatch(dtype, [&](auto zero) { function(args, zero); });
    return;
  }
  const auto is_copied = [&](const Tensor& tensor) { return tensor && tensor.dtype == dtype; };
  std::size_t count = 0;
  for (const auto& members : {read, written})
    for (const auto member : members)
      if (is_copied(args.*member)) count += (args.*member).size();
  float* memory = scratch<float, HalfStorage>(count);

  Args copies = args;
  const auto widen = [&](Tensor Args::*member) {
    Tensor& copy = copies.*member;
    copy = {memory, DType::f32, copy.shape};
    memory += copy.size();
  };
  for (const auto member : read) {
    if (!is_copied(args.*member)) continue;
    widen(member);
    convert_to_float((args.*member).data, (args.*member).size(), dtype,
                     (copies.*member).template as<float>());
  }
  for (const auto member : written)
    if (is_copied(copies.*member)) widen(member);
  function(copies, float{});
  for (const auto member : written)
    if (is_copied(args.*member))
      convert_from_float((copies.*member).template as<float>(), (args.*member).size(), dtype,
                         (args.*member).data);
}

}  // namespace trireme::kernels::host
