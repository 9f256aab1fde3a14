#include "generate/batch_decoder.hpp"

#include <algorithm>

#include "model/stage/stage_memory.hpp"

namespace trireme::generate {

BatchDecoder::BatchDecoder(device::Backend& backend, const model::ParameterStore& parameters,
                           const model::ModelSpec& spec, const BatchLimits& limits,
                           comm::Groups* groups)
    : backend_(backend),
      groups_(groups),
      spec_(spec),
      limits_(limits),
      dtype_(parameters.precision().activations) {
  limits_.pass_tokens = std::max(limits_.pass_tokens, limits_.sequences);
  const grid::Layout layout =
      groups ? groups->layout : grid::Layout{.partition = {static_cast<int>(spec.layers())}};
  const int stage = groups ? groups->place.pipeline : 0;
  TRIREME_CHECK(layout.data == 1 && layout.chunks == 1, "generation has one copy of the model");
  const grid::LayerRange layers = layout.layers_of(stage);
  first_layer_ = layers.first;
  for (int layer = layers.first; layer < layers.first + layers.count; ++layer)
    stage_.blocks.emplace_back(spec, layer).bind(parameters);
  if (layout.is_first(stage)) stage_.embedding.emplace(spec).bind(parameters);
  if (layout.is_last(stage)) stage_.head.emplace(spec).bind(parameters);
  allocate();
}

model::LayerSizes BatchDecoder::sizes(std::int64_t tokens) const {
  return {.hidden = spec_.hidden,
          .sequence = tokens,
          .tensor_ranks = groups_ ? groups_->layout.tensor : 1,
          .precision = mixed_precision(dtype_)};
}

BatchDecoder::Scratch BatchDecoder::take_scratch(model::Arena& arena,
                                                 const model::LayerSizes& sizes) const {
  Scratch scratch;
  scratch.ids = arena.take_ints(sizes.tokens());
  scratch.positions = arena.take_ints(sizes.tokens());
  scratch.stream = arena.take(dtype_, sizes.hidden_shape());
  if (stage_.embedding) scratch.embedding = stage_.embedding->take(arena, sizes);
  scratch.blocks.resize(stage_.blocks.size());
  arena.overlay(stage_.blocks.size(),
                [&](std::size_t i) { scratch.blocks[i] = stage_.blocks[i].take(arena, sizes); });
  std::vector<const model::TransformerBlock*> blocks;
  for (const model::TransformerBlock& block : stage_.blocks) blocks.push_back(&block);
  if (!blocks.empty()) scratch.workspace = take_workspace(arena, sizes, blocks);
  return scratch;
}

BatchDecoder::HeadScratch BatchDecoder::take_head(model::Arena& arena,
                                                  const model::LayerSizes& sizes) const {
  HeadScratch scratch;
  scratch.last = arena.take(dtype_, sizes.hidden_shape());
  scratch.head = stage_.head->take(arena, sizes);
  scratch.gathered =
      arena.take(dtype_, {sizes.tensor_ranks, sizes.tokens(), stage_.head->local_vocab(sizes)});
  return scratch;
}

void BatchDecoder::allocate() {
  model::Arena count;
  take_scratch(count, sizes(limits_.pass_tokens));
  scratch_memory_ = backend_.allocate(count.bytes(), "activations");
  if (stage_.head) {
    model::Arena head;
    take_head(head, sizes(limits_.sequences));
    head_memory_ = backend_.allocate(head.bytes(), "logits");
  }
  const auto take_caches = [&](model::Arena arena) {
    for (std::vector<Tensor>* tensors : {&keys_, &values_}) {
      tensors->clear();
      for (std::size_t i = 0; i < stage_.blocks.size(); ++i) {
        const auto& attention = spec_.blocks[first_layer_ + i].attention;
        tensors->push_back(
            arena.take(dtype_, {limits_.sequences, attention.kv_heads / sizes(1).tensor_ranks,
                                capacity(), attention.head_dim}));
      }
    }
    return arena.bytes();
  };
  cache_memory_ = backend_.allocate(std::max<std::size_t>(take_caches(model::Arena()), 1),
                                    "key and value caches");
  take_caches(model::Arena(cache_memory_.get()));
  const auto take_rotary = [&](model::Arena arena) {
    rotary_ = take_rotary_table(arena, spec_, sizes(1), capacity());
    return arena.bytes();
  };
  if (const std::size_t bytes = take_rotary(model::Arena()); bytes > 0) {
    rotary_memory_ = backend_.allocate(bytes, "rotary positions");
    take_rotary(model::Arena(rotary_memory_.get()));
    write_rotary_table(backend_, spec_, rotary_);
  }
  model::StageConfig longest{
      .spec = spec_, .tensor_ranks = sizes(1).tensor_ranks, .precision = mixed_precision(dtype_)};
  longest.spec.sequence = limits_.pass_tokens;
  backend_.reserve_workspace(model::kernel_workspace_bytes(longest));
}

// ---- what the first rank does, and the others with it

void BatchDecoder::send(Command command, const std::vector<std::int64_t>& numbers) {
  if (alone()) return;
  std::int64_t header[] = {static_cast<std::int64_t>(command), std::ssize(numbers)};
  groups_->world->broadcast(header, sizeof header, 0);
  std::vector<std::int64_t> payload = numbers;
  if (!payload.empty())
    groups_->world->broadcast(payload.data(), payload.size() * sizeof(std::int64_t), 0);
}

BatchDecoder::Command BatchDecoder::receive(std::vector<std::int64_t>& numbers) {
  std::int64_t header[2];
  groups_->world->broadcast(header, sizeof header, 0);
  numbers.resize(header[1]);
  if (!numbers.empty())
    groups_->world->broadcast(numbers.data(), numbers.size() * sizeof(std::int64_t), 0);
  return static_cast<Command>(header[0]);
}

std::span<const std::vector<double>> BatchDecoder::run(const std::vector<Chunk>& chunks) {
  std::vector<std::int64_t> numbers;
  std::int64_t tokens = 0, wanted = 0;
  for (const Chunk& chunk : chunks) {
    const std::int64_t count = std::ssize(chunk.ids);
    TRIREME_CHECK(chunk.slot >= 0 && chunk.slot < limits_.sequences, "slot {} of {}", chunk.slot,
                  limits_.sequences);
    TRIREME_CHECK(count >= 1 && chunk.past >= 0 && chunk.past + count <= capacity(),
                  "{} tokens after {}, the model holds {}", count, chunk.past, capacity());
    for (const std::int32_t id : chunk.ids)
      TRIREME_CHECK(id >= 0 && id < vocab(), "id {} in a vocabulary of {}", id, vocab());
    tokens += count;
    wanted += chunk.wants_logits;
    numbers.insert(numbers.end(), {chunk.slot, chunk.past, chunk.wants_logits, count});
    numbers.insert(numbers.end(), chunk.ids.begin(), chunk.ids.end());
  }
  TRIREME_CHECK(tokens >= 1 && tokens <= limits_.pass_tokens && wanted <= limits_.sequences,
                "a pass of {} tokens with {} logits", tokens, wanted);
  send(Command::run, numbers);
  run_stage(chunks);
  return logits_;
}

void BatchDecoder::copy(const std::vector<std::pair<int, int>>& slots) {
  std::vector<std::int64_t> numbers;
  for (const auto& [from, to] : slots) numbers.insert(numbers.end(), {from, to});
  send(Command::copy, numbers);
  copy_caches(slots);
}

void BatchDecoder::keep_alive() { send(Command::keep_alive, {}); }

void BatchDecoder::stop() { send(Command::stop, {}); }

void BatchDecoder::follow() {
  std::vector<std::int64_t> numbers;
  while (true) {
    const Command command = receive(numbers);
    if (command == Command::stop) return;
    if (command == Command::run) {
      std::vector<Chunk> chunks;
      for (auto at = numbers.begin(); at != numbers.end();) {
        Chunk chunk{.slot = static_cast<int>(at[0]), .past = at[1], .wants_logits = at[2] != 0};
        const std::int64_t count = at[3];
        chunk.ids.assign(at + 4, at + 4 + count);
        at += 4 + count;
        chunks.push_back(std::move(chunk));
      }
      run_stage(chunks);
    } else if (command == Command::copy) {
      std::vector<std::pair<int, int>> slots;
      for (std::size_t i = 0; i < numbers.size(); i += 2)
        slots.emplace_back(static_cast<int>(numbers[i]), static_cast<int>(numbers[i + 1]));
      copy_caches(slots);
    }
  }
}

// ---- on every rank

void BatchDecoder::run_stage(const std::vector<Chunk>& chunks) {
  std::vector<std::int32_t> ids, positions;
  for (const Chunk& chunk : chunks)
    for (std::size_t i = 0; i < chunk.ids.size(); ++i) {
      ids.push_back(chunk.ids[i]);
      positions.push_back(static_cast<std::int32_t>(chunk.past + static_cast<std::int64_t>(i)));
    }
  model::LayerContext context(sizes(std::ssize(ids)), backend_, tensor());
  context.rotary = rotary_;
  model::Arena arena(scratch_memory_.get());
  const Scratch scratch = take_scratch(arena, context);
  const Tensor& stream = scratch.stream;
  const int stage = groups_ ? groups_->place.pipeline : 0;
  if (stage_.embedding) {
    backend_.upload(scratch.ids, ids.data(), ids.size() * sizeof(std::int32_t));
    backend_.upload(scratch.positions, positions.data(), positions.size() * sizeof(std::int32_t));
    stage_.embedding->forward(context, {.training = false},
                              {.ids = scratch.ids, .positions = scratch.positions},
                              scratch.embedding, stream);
  } else {
    groups_->pipeline->receive(stream.data, stream.bytes(), stage - 1, comm::kActivationTag)
        ->wait();
  }
  std::vector<model::CachedSequence> sequences(chunks.size());
  for (std::size_t i = 0; i < stage_.blocks.size(); ++i) {
    for (std::size_t k = 0; k < chunks.size(); ++k)
      sequences[k] = {.keys = cache_of(keys_[i], chunks[k].slot),
                      .values = cache_of(values_[i], chunks[k].slot),
                      .tokens = std::ssize(chunks[k].ids),
                      .past = chunks[k].past};
    stage_.blocks[i].forward_cached(context, scratch.workspace, scratch.blocks[i], stream,
                                    sequences);
  }
  if (!stage_.head)
    groups_->pipeline->send(stream.data, stream.bytes(), stage + 1, comm::kActivationTag)->wait();
  compute_logits(stream, chunks);
}

void BatchDecoder::compute_logits(const Tensor& stream, const std::vector<Chunk>& chunks) {
  const auto wanted =
      static_cast<std::int64_t>(std::ranges::count(chunks, true, &Chunk::wants_logits));
  logits_.assign(leads() || stage_.head ? wanted : 0, {});
  if (wanted == 0) return;
  if (stage_.head) {
    const model::LayerContext context(sizes(wanted), backend_, tensor());
    model::Arena arena(head_memory_.get());
    const HeadScratch scratch = take_head(arena, context);
    std::int64_t end = 0, row = 0;
    for (const Chunk& chunk : chunks) {
      end += std::ssize(chunk.ids);
      if (!chunk.wants_logits) continue;
      const Tensor last = stream.rows(end - 1, 1);
      backend_.copy(scratch.last.rows(row++, 1).data, last.data, last.bytes());
    }
    stage_.head->logits(context, scratch.last, scratch.head);
    const Tensor& local = scratch.head.logits;  // [B, V / t]
    const int ranks = context.tensor_ranks;
    backend_.copy(scratch.gathered.rows(tensor().rank(), 1).data, local.data, local.bytes());
    if (ranks > 1) tensor().all_gather(scratch.gathered.data, local.size(), dtype_);

    const std::int64_t columns = local.shape[1];
    std::vector<std::byte> raw(scratch.gathered.bytes());
    backend_.download(raw.data(), scratch.gathered.data, raw.size());
    for (std::int64_t b = 0; b < wanted; ++b) {
      logits_[b].resize(vocab());
      for (int rank = 0; rank < ranks; ++rank) {
        const std::int64_t first = rank * columns,
                           count = std::clamp<std::int64_t>(vocab() - first, 0, columns);
        const std::byte* from = raw.data() + (rank * wanted + b) * columns * size_of(dtype_);
        if (dtype_ == DType::f64) {
          const auto* values = reinterpret_cast<const double*>(from);
          std::copy(values, values + count, logits_[b].begin() + first);
          continue;
        }
        std::vector<float> values(count);
        convert_to_float(from, values.size(), dtype_, values.data());
        std::ranges::copy(values, logits_[b].begin() + first);
      }
    }
  }
  move_logits(wanted);
}

void BatchDecoder::move_logits(std::size_t count) {
  if (!groups_ || groups_->layout.pipeline == 1) return;
  const int last = groups_->layout.rank_of({.pipeline = groups_->layout.pipeline - 1});
  comm::MpiCommunicator& world = *groups_->world;
  if (world.rank() != 0 && world.rank() != last) return;
  std::vector<double> flat(count * vocab());
  if (world.rank() == last) {
    for (std::size_t i = 0; i < count; ++i)
      std::ranges::copy(logits_[i], flat.begin() + i * vocab());
    world.send(flat.data(), flat.size() * sizeof(double), 0, comm::kActivationTag)->wait();
  } else {
    world.receive(flat.data(), flat.size() * sizeof(double), last, comm::kActivationTag)->wait();
    for (std::size_t i = 0; i < count; ++i)
      logits_[i].assign(flat.begin() + i * vocab(), flat.begin() + (i + 1) * vocab());
  }
}

void BatchDecoder::copy_caches(const std::vector<std::pair<int, int>>& slots) {
  for (const auto& [from, to] : slots)
    for (const std::vector<Tensor>* tensors : {&keys_, &values_})
      for (const Tensor& all : *tensors) {
        const Tensor source = cache_of(all, from);
        backend_.copy(cache_of(all, to).data, source.data, source.bytes());
      }
}

}  // namespace trireme::generate
