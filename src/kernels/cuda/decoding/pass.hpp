// One token through many layers by one kernel, which reads weights without a pause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/attention.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/decoding.hpp"

namespace trireme::kernels::cuda {

/// An operation of a pass.
struct PassStep {
  std::variant<DecodeLinear, AttentionPaged> operation;
  std::optional<Rotary> rotary;  ///< of the attention's qkv, before it
  int x_from = -1;               ///< the step that writes x or qkv; -1: it was there before
  int residual_from = -1;        ///< the same of a residual
  bool overwritten = false;      ///< a later step writes y

  Tensor y() const;
};

/// Device memory of the passes of a capture: instructions, and what blocks hand to each other.
class PassMemory {
 public:
  PassMemory() = default;
  ~PassMemory();
  PassMemory(const PassMemory&) = delete;
  PassMemory& operator=(const PassMemory&) = delete;

  /// Memory of `contents`, from begin(), and `bytes` of zeros after it; in a capture.
  std::byte* add(std::size_t contents, std::size_t bytes);
  /// What upload() writes to the last memory added.
  void fill(std::vector<std::byte> contents) { parts_.back().contents = std::move(contents); }
  /// Writes it all; after the capture.
  void upload(CUstream_st* stream);

 private:
  struct Part {
    void* memory = nullptr;
    std::size_t bytes = 0;
    std::vector<std::byte> contents;
  };
  std::vector<Part> parts_;
};

/// Enqueues `steps`, of one 16-bit type, as one kernel; false, without having done so, where the
/// GPU has no room for it.
bool enqueue_pass(const std::vector<PassStep>& steps, const Context& context, PassMemory& memory);

/// Gathers the operations of a CUDA graph that is captured, and enqueues chains of those on one
/// row, each of which reads the result of the one before, as one kernel. Results are the same bits
/// as those of the operations' own kernels. The graph may be launched while this lives.
class DecodingPass {
 public:
  explicit DecodingPass(const Context& context) : context_(context) {}

  /// Takes an operation, which flush() enqueues with those before it. False for others: what came
  /// before them is enqueued.
  bool take(const DecodeLinear& args);
  bool take(const Rotary& args);
  bool take(const AttentionPaged& args);
  template <typename Arguments>
  bool take(const Arguments&) {
    flush();
    return false;
  }
  /// Enqueues what has been taken.
  void flush();
  /// Writes what the kernels read; after the capture.
  void upload() { memory_.upload(context_.stream); }
  /// Chains that have become one kernel.
  int kernels() const { return kernels_; }

 private:
  bool covers(const DecodeLinear& args) const;
  bool covers(const AttentionPaged& args) const;
  /// Whether the next step may read x: the last one writes it, or there is none.
  bool follows(const Tensor& x) const;
  /// The last step that writes `tensor`; -1: none. Nothing where one writes a part of it.
  std::optional<int> writer_of(const Tensor& tensor) const;
  void add(PassStep step);

  Context context_;
  std::vector<PassStep> steps_;
  std::optional<Rotary> rotary_;  ///< of the qkv that the last step writes
  PassMemory memory_;
  int kernels_ = 0;
};

}  // namespace trireme::kernels::cuda
