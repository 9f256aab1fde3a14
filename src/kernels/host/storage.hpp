// Half precision on the host: arithmetic in fp32 on copies of the tensors, results rounded once
// when they are stored. It trains small models for tests; it is not fast.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "core/dtype.hpp"
#include "core/tensor.hpp"
#include "kernels/host/threads.hpp"

namespace trireme::kernels::host {

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
