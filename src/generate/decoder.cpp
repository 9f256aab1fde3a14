#include "generate/decoder.hpp"

#include <algorithm>

#include "model/stage/stage_memory.hpp"

namespace trireme::generate {

PositionTables::PositionTables(device::Backend& backend, const model::ModelSpec& spec,
                               const model::LayerSizes& sizes, std::int64_t positions,
                               std::int64_t pass_tokens) {
  const auto take_rotary = [&](model::Arena arena) {
    rotary_ = take_rotary_table(arena, spec, sizes, positions);
    return arena.bytes();
  };
  if (const std::size_t bytes = take_rotary(model::Arena()); bytes > 0) {
    rotary_memory_ = backend.allocate(bytes, "rotary positions");
    take_rotary(model::Arena(rotary_memory_.get()));
    write_rotary_table(backend, spec, rotary_);
  }
  if (spec.window() == 0 || spec.window() >= pass_tokens) return;
  std::vector<std::int32_t> starts(pass_tokens);
  model::narrow_to_window(spec.window(), /*micro_batch=*/1, starts);
  window_memory_ = backend.allocate(starts.size() * sizeof(std::int32_t), "window");
  backend.upload(window_memory_.get(), starts.data(), starts.size() * sizeof(std::int32_t));
}

Decoder::Scratch Decoder::take_scratch(model::Arena& arena, const model::LayerSizes& sizes) const {
  model::LayerSizes last = sizes;
  last.sequence = 1;
  Scratch scratch;
  scratch.head = head_.take(arena, last);
  scratch.ids = arena.take_ints(sizes.tokens());
  scratch.stream = arena.take(sizes.precision.activations, sizes.hidden_shape());
  scratch.embedding = embedding_.take(arena, sizes);
  scratch.blocks.resize(blocks_.size());
  arena.overlay(blocks_.size(),
                [&](std::size_t i) { scratch.blocks[i] = blocks_[i].take(arena, sizes); });
  std::vector<const model::TransformerBlock*> blocks;
  for (const model::TransformerBlock& block : blocks_) blocks.push_back(&block);
  scratch.workspace = take_workspace(arena, sizes, blocks);
  return scratch;
}

Decoder::Decoder(device::Backend& backend, const model::ParameterStore& parameters,
                 const model::ModelSpec& spec)
    : backend_(backend),
      spec_(spec),
      dtype_(parameters.precision().activations),
      embedding_(spec),
      head_(spec),
      tables_(backend, spec, sizes(1), capacity(), capacity()),
      logits_(spec.vocab) {
  for (int layer = 0; layer < spec.layers(); ++layer)
    blocks_.emplace_back(spec, layer).bind(parameters);
  embedding_.bind(parameters);
  head_.bind(parameters);
  model::Arena count;
  take_scratch(count, sizes(capacity()));
  scratch_memory_ = backend.allocate(count.bytes(), "activations");
  model::StageConfig longest{.spec = spec, .precision = mixed_precision(dtype_)};
  longest.spec.sequence = capacity();
  backend.reserve_workspace(model::kernel_workspace_bytes(longest));
}

model::LayerSizes Decoder::sizes(std::int64_t tokens) const {
  return {.hidden = spec_.hidden, .sequence = tokens, .precision = mixed_precision(dtype_)};
}

model::LayerContext Decoder::context(std::int64_t tokens) {
  model::LayerContext context(sizes(tokens), backend_, serial_);
  context.rotary = tables_.rotary();
  return context;
}

std::span<const double> Decoder::logits(std::span<const std::int32_t> context) {
  const auto size = static_cast<std::int64_t>(context.size());
  TRIREME_CHECK(size >= 1 && size <= capacity(), "a context of {} tokens, the model holds {}", size,
                capacity());
  for (const std::int32_t id : context)
    TRIREME_CHECK(id >= 0 && id < vocab(), "id {} in a vocabulary of {}", id, vocab());

  compute_logits(run(context));
  return logits_;
}

Tensor Decoder::run(std::span<const std::int32_t> ids) {
  const auto tokens = static_cast<std::int64_t>(ids.size());
  const model::LayerContext context = this->context(tokens);
  const model::PassInfo pass{.training = false, .document_start = tables_.window_starts()};
  model::Arena arena(scratch_memory_.get());
  const Scratch scratch = take_scratch(arena, context);
  const Tensor& stream = scratch.stream;
  backend_.upload(scratch.ids, ids.data(), ids.size_bytes());
  embedding_.forward(context, pass, {.ids = scratch.ids}, scratch.embedding, stream);
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    blocks_[i].forward(context, scratch.workspace, pass, stream, scratch.blocks[i], stream);
  return stream.rows(tokens - 1, 1);
}

void Decoder::compute_logits(const Tensor& stream) {
  const model::LayerContext context = this->context(1);
  model::Arena arena(scratch_memory_.get());
  // The head's part comes first in the scratch memory, wherever `stream` is after it.
  const model::Head::Activations head = head_.take(arena, context);
  head_.logits(context, stream, head);
  dispatch(dtype_, [&](auto element) {
    std::vector<decltype(element)> values(logits_.size());
    backend_.download(values.data(), head.logits.data, values.size() * sizeof(element));
    std::copy(values.begin(), values.end(), logits_.begin());
  });
}

}  // namespace trireme::generate
