#include "kernels/embedding.hpp"

#include <cstring>

#include "kernels/host/compute.hpp"
#include "kernels/host/dropout_mask.hpp"
#include "kernels/host/math.hpp"
#include "kernels/preconditions.hpp"

namespace trireme::kernels::host {
namespace {

void look_up(const EmbeddingForward& args, std::int64_t tokens, std::int64_t h) {
  const std::int64_t rows = args.table.shape[0];
  const std::size_t row_bytes = h * size_of(args.table.dtype);
  parallel_for(tokens, [&](std::int64_t t) {
    std::byte* out = static_cast<std::byte*>(args.out.data) + t * row_bytes;
    const std::int64_t row = args.ids[t] - args.first_row;
    if (row >= 0 && row < rows)
      std::memcpy(out, static_cast<const std::byte*>(args.table.data) + row * row_bytes, row_bytes);
    else
      std::memset(out, 0, row_bytes);
  });
}

template <typename T>
void add_gradient(const EmbeddingBackward& args, std::int64_t tokens, std::int64_t h) {
  const std::int64_t rows = args.dtable.shape[0];
  // A task owns columns, not tokens: two tokens with one id never meet in two threads.
  parallel_blocks(h, kColumnBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t row = args.ids[t] - args.first_row;
      if (row < 0 || row >= rows) continue;
      const T* dout = args.dout.as<T>() + t * h;
      T* dtable = args.dtable.as<T>() + row * h;
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) dtable[i] += dout[i];
    }
  });
}

template <typename T>
void add_position(const PositionDropout& args) {
  const std::int64_t b = args.x.shape[1], h = args.x.shape[2];
  const bool drops = args.dropout.probability > 0.0;
  parallel_for(args.x.shape[0] * b, [&](std::int64_t t) {
    T* x = args.x.as<T>() + t * h;
    const std::int64_t place = args.first_position + t / b;
    const T* position = args.position.as<T>() + (args.rows ? args.rows[t] : place) * h;
    if (drops) {
      const T* factors = draw_row<T>(args.dropout, place, t % b, h);
#pragma omp simd
      for (std::int64_t i = 0; i < h; ++i) x[i] = (x[i] + position[i]) * factors[i];
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < h; ++i) x[i] += position[i];
    }
  });
}

template <typename T>
void add_position_gradient(const PositionBackward& args) {
  const std::int64_t b = args.dout.shape[1], h = args.dout.shape[2];
  parallel_for(args.dout.shape[0], [&](std::int64_t i) {
    T* dposition = args.dposition.as<T>() + i * h;
    for (std::int64_t j = 0; j < b; ++j) {
      const T* dout = args.dout.as<T>() + (i * b + j) * h;
#pragma omp simd
      for (std::int64_t k = 0; k < h; ++k) dposition[k] += dout[k];
    }
  });
}

}  // namespace

void embedding_forward(const EmbeddingForward& args) {
  const char* op = "embedding_forward";
  const DType dtype = args.table.dtype;
  const auto [rows, h] = extents_of(op, "table", args.table);
  const std::int64_t tokens = args.out.size() / h;
  check_shape(op, "table", args.table, dtype, {rows, h});
  check_matrix(op, "out", args.out, dtype, {tokens, h});
  TRIREME_CHECK(args.ids != nullptr || tokens == 0, "{}: ids has no memory", op);
  look_up(args, tokens, h);
}

void embedding_backward(const EmbeddingBackward& args) {
  const char* op = "embedding_backward";
  const DType dtype = args.dout.dtype;
  const auto [rows, h] = extents_of(op, "dtable", args.dtable);
  const std::int64_t tokens = args.dout.size() / h;
  check_shape(op, "dtable", args.dtable, accumulation_type(dtype), {rows, h});
  check_matrix(op, "dout", args.dout, dtype, {tokens, h});
  TRIREME_CHECK(args.ids != nullptr || tokens == 0, "{}: ids has no memory", op);
  using Args = EmbeddingBackward;
  compute(args, dtype, {&Args::dout}, {}, [tokens, h = h](const Args& a, auto zero) {
    add_gradient<decltype(zero)>(a, tokens, h);
  });
}

void position_dropout(const PositionDropout& args) {
  const char* op = "position_dropout";
  const DType dtype = args.x.dtype;
  TRIREME_CHECK(args.x.shape.rank() == 3, "{}: x is {}, expected [s, b, h]", op,
                to_string(args.x.shape));
  const auto [positions, h] = extents_of(op, "position", args.position);
  check_shape(op, "x", args.x, dtype, {args.x.shape[0], args.x.shape[1], h});
  check_shape(op, "position", args.position, dtype, {positions, h});
  TRIREME_CHECK(
      args.rows || (args.first_position >= 0 && args.first_position + args.x.shape[0] <= positions),
      "{}: positions {} to {} of a table of {}", op, args.first_position,
      args.first_position + args.x.shape[0] - 1, positions);
  check_dropout(op, args.dropout);
  using Args = PositionDropout;
  compute(args, dtype, {&Args::x, &Args::position}, {&Args::x},
          [](const Args& a, auto zero) { add_position<decltype(zero)>(a); });
}

void position_backward(const PositionBackward& args) {
  const char* op = "position_backward";
  const DType dtype = args.dout.dtype;
  TRIREME_CHECK(args.dout.shape.rank() == 3, "{}: dout is {}, expected [s, b, h]", op,
                to_string(args.dout.shape));
  const auto [positions, h] = extents_of(op, "dposition", args.dposition);
  check_shape(op, "dout", args.dout, dtype, {args.dout.shape[0], args.dout.shape[1], h});
  check_shape(op, "dposition", args.dposition, accumulation_type(dtype), {positions, h});
  TRIREME_CHECK(args.dout.shape[0] <= positions, "{}: {} positions, but a table of {}", op,
                args.dout.shape[0], positions);
  using Args = PositionBackward;
  compute(args, dtype, {&Args::dout}, {},
          [](const Args& a, auto zero) { add_position_gradient<decltype(zero)>(a); });
}

}  // namespace trireme::kernels::host
