#include "generate/batch_decoder.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "model/stage/stage_memory.hpp"

namespace trireme::generate {

BatchDecoder::BatchDecoder(device::Backend& backend, const model::ParameterStore& parameters,
                           const model::ModelSpec& spec, const BatchLimits& limits,
                           comm::Groups* groups)
    : backend_(backend),
      groups_(groups),
      spec_(spec),
      limits_(limits),
      capacity_(spec.embedding.positions),
      dtype_(parameters.precision().activations) {
  limits_.pass_tokens = std::max(limits_.pass_tokens, max_rows());
  const grid::Layout layout =
      groups ? groups->layout : grid::Layout{.partition = {static_cast<int>(spec.layers())}};
  const int stage = groups ? groups->place.pipeline : 0;
  TRIREME_CHECK(layout.data == 1 && layout.chunks == 1, "generation has one copy of the model");
  const grid::LayerRange layers = layout.layers_of(stage);
  for (int layer = layers.first; layer < layers.first + layers.count; ++layer)
    stage_.blocks.emplace_back(spec, layer).bind(parameters);
  if (layout.is_first(stage)) stage_.embedding.emplace(spec).bind(parameters);
  if (layout.is_last(stage)) stage_.head.emplace(spec).bind(parameters);
  allocate();
  cache_.emplace(backend,
                 CachedLayers{.spec = spec_,
                              .first = layers.first,
                              .count = layers.count,
                              .tensor_ranks = layout.tensor,
                              .dtype = dtype_},
                 limits_, groups ? groups->world.get() : nullptr);
  capacity_ = std::min(capacity_, cache_plan().blocks * CachePlan::kPositions);
}

namespace {

/// Rows of the smallest pass of several sequences on a GPU. GEMMs of 16 rows take 2 to 18 % less
/// time than those of 2 to 8 with 1.5B in bf16 on one H200, 6 to 15 % more with Llama-3.2-1B, and
/// no pass takes longer than one of more sequences.
constexpr std::int64_t kMinPaddedRows = 16;

}  // namespace

bool BatchDecoder::pads() const { return alone() && !backend_.is_host_memory(); }

std::int64_t BatchDecoder::max_rows() const {
  return pads() && limits_.sequences > 1 ? std::max(limits_.sequences, kMinPaddedRows)
                                         : limits_.sequences;
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
  scratch.top = arena.take(sizes.statistics(), {2 * sizes.tokens() * kernels::kMaxTopLogits});
  return scratch;
}

void BatchDecoder::allocate() {
  model::Arena count;
  take_scratch(count, sizes(limits_.pass_tokens));
  scratch_memory_ = backend_.allocate(count.bytes(), "activations");
  if (stage_.head) {
    model::Arena head;
    const HeadScratch scratch = take_head(head, sizes(max_rows()));
    head_memory_ = backend_.allocate(head.bytes(), "logits");
    read_back_ = backend_.allocate_on_host(std::max(scratch.gathered.bytes(), scratch.top.bytes()),
                                           "logits");
  }
  tables_.emplace(backend_, spec_, sizes(1), capacity(), /*pass_tokens=*/0);
  model::StageConfig longest{
      .spec = spec_, .tensor_ranks = sizes(1).tensor_ranks, .precision = mixed_precision(dtype_)};
  longest.spec.sequence = limits_.pass_tokens;
  backend_.reserve_workspace(model::kernel_workspace_bytes(longest));
  input_memory_ =
      backend_.allocate(4 * sizeof(std::int32_t) * limits_.pass_tokens, "ids and positions");
  inputs_ = static_cast<std::int32_t*>(input_memory_.get());
}

std::string BatchDecoder::capacity_text() const {
  if (capacity_ == spec_.embedding.positions)
    return fmt::format("the model's context holds {} (model.positions)", capacity_);
  return fmt::format("the KV cache holds {}", capacity_);
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
  check_and_run(chunks, {});
  return logits_;
}

std::span<const TopTokens> BatchDecoder::run_top(const std::vector<Chunk>& chunks,
                                                 std::int64_t count, std::int64_t columns) {
  TRIREME_CHECK(
      count >= 1 && count <= std::min(kernels::kMaxTopLogits, columns) && columns <= vocab(),
      "{} of {} logits", count, columns);
  // Ranks of a group send all logits to the first one.
  check_and_run(chunks, alone() ? Wanted{count, columns} : Wanted());
  if (alone()) return top_;
  top_.resize(logits_.size());
  for (std::size_t i = 0; i < top_.size(); ++i) {
    const std::vector<double>& all = logits_[i];
    std::vector<std::int32_t> ids(columns);
    std::iota(ids.begin(), ids.end(), 0);
    std::partial_sort(
        ids.begin(), ids.begin() + count, ids.end(),
        [&](std::int32_t a, std::int32_t b) { return all[a] != all[b] ? all[a] > all[b] : a < b; });
    ids.resize(count);
    top_[i].logits.clear();
    for (const std::int32_t id : ids) top_[i].logits.push_back(all[id]);
    top_[i].ids = std::move(ids);
  }
  return top_;
}

void BatchDecoder::check_and_run(const std::vector<Chunk>& chunks, const Wanted& wanted) {
  std::vector<std::int64_t> numbers;
  std::int64_t tokens = 0, logits = 0;
  for (const Chunk& chunk : chunks) {
    const std::int64_t count = std::ssize(chunk.ids);
    TRIREME_CHECK(chunk.slot >= 0 && chunk.slot < limits_.sequences, "slot {} of {}", chunk.slot,
                  limits_.sequences);
    TRIREME_CHECK(count >= 1 && chunk.past >= 0 && chunk.past + count <= capacity(),
                  "{} tokens after {}, the model holds {}", count, chunk.past, capacity());
    for (const std::int32_t id : chunk.ids)
      TRIREME_CHECK(id >= 0 && id < vocab(), "id {} in a vocabulary of {}", id, vocab());
    tokens += count;
    logits += chunk.wants_logits;
    numbers.insert(numbers.end(), {chunk.slot, chunk.past, chunk.wants_logits, count});
    numbers.insert(numbers.end(), chunk.ids.begin(), chunk.ids.end());
  }
  TRIREME_CHECK(tokens >= 1 && tokens <= limits_.pass_tokens && logits <= limits_.sequences,
                "a pass of {} tokens with {} logits", tokens, logits);
  send(Command::run, numbers);
  run_pass(chunks, wanted);
}

void BatchDecoder::copy(const std::vector<std::pair<int, int>>& slots) {
  std::vector<std::int64_t> numbers;
  for (const auto& [from, to] : slots) numbers.insert(numbers.end(), {from, to});
  send(Command::copy, numbers);
  for (const auto& [from, to] : slots) cache_->share(from, to);
}

void BatchDecoder::release(int slot) {
  send(Command::release, {slot});
  cache_->release(slot);
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
      run_pass(chunks, {});
    } else if (command == Command::copy) {
      for (std::size_t i = 0; i < numbers.size(); i += 2)
        cache_->share(static_cast<int>(numbers[i]), static_cast<int>(numbers[i + 1]));
    } else if (command == Command::release) {
      cache_->release(static_cast<int>(numbers[0]));
    }
  }
}

// ---- on every rank

void BatchDecoder::run_pass(const std::vector<Chunk>& chunks, const Wanted& wanted) {
  for (const Chunk& chunk : chunks)
    cache_->prepare(chunk.slot, chunk.past, chunk.past + std::ssize(chunk.ids));
  const Pass pass = upload_inputs(chunks);
  const auto work = [&] { enqueue(pass, wanted); };
  if (pass.chunks.empty() && alone()) {
    Step& step = steps_[{pass.rows, wanted}];
    if (step.ran && !step.work) step.work = backend_.capture(work);
    if (step.work)
      step.work->replay();
    else
      work();
    step.ran = true;
  } else {
    work();
  }
  const auto count = std::ranges::count(chunks, true, &Chunk::wants_logits);
  logits_.assign(wanted.count == 0 && (leads() || stage_.head) ? count : 0, {});
  if (count == 0) return;
  if (stage_.head) read_logits(count, pass, wanted);
  if (wanted.count == 0) move_logits(count);
}

namespace {

/// CachedTokens::fresh_starts; 0 for rows of other chunks.
std::vector<std::int32_t> fresh_starts(std::span<const model::CachedChunk> chunks,
                                       std::int64_t window) {
  std::vector<std::int32_t> starts;
  std::int64_t first = 0;  // row of the chunk, counted from the fresh ones that it follows
  for (const model::CachedChunk& chunk : chunks) {
    if (!chunk.fresh()) first = 0;
    for (std::int64_t i = 0; i < chunk.tokens; ++i)
      starts.push_back(static_cast<std::int32_t>(
          chunk.fresh() ? first + (window > 0 ? std::max<std::int64_t>(i - window + 1, 0) : 0)
                        : 0));
    if (chunk.fresh()) first += chunk.tokens;
  }
  return starts;
}

}  // namespace

BatchDecoder::Pass BatchDecoder::upload_inputs(const std::vector<Chunk>& chunks) {
  Pass pass;
  const bool single = std::ranges::all_of(
      chunks, [](const Chunk& chunk) { return chunk.ids.size() == 1 && chunk.wants_logits; });
  for (const Chunk& chunk : chunks) {
    pass.rows += std::ssize(chunk.ids);
    if (chunk.wants_logits) pass.wanted_rows.push_back(pass.rows - 1);
    if (!single) pass.chunks.push_back({.tokens = std::ssize(chunk.ids), .past = chunk.past});
  }
  // Few sizes, so that captured passes are used again.
  if (single && pads() && pass.rows > 1) {
    const auto rows = std::max(pass.rows, kMinPaddedRows);
    pass.rows = std::min<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)), max_rows());
  }
  std::vector<std::int32_t> inputs(3 * pass.rows);
  std::fill_n(inputs.begin() + 2 * pass.rows, pass.rows, -1);  // padding
  std::int64_t row = 0;
  for (const Chunk& chunk : chunks)
    for (std::size_t i = 0; i < chunk.ids.size(); ++i, ++row) {
      inputs[row] = chunk.ids[i];
      inputs[pass.rows + row] =
          static_cast<std::int32_t>(chunk.past + static_cast<std::int64_t>(i));
      inputs[2 * pass.rows + row] = chunk.slot;
    }
  const std::vector<std::int32_t> starts = fresh_starts(pass.chunks, spec_.window());
  pass.has_starts = std::ranges::any_of(starts, [](std::int32_t start) { return start > 0; });
  if (pass.has_starts) inputs.insert(inputs.end(), starts.begin(), starts.end());
  backend_.upload(inputs_, inputs.data(), inputs.size() * sizeof(std::int32_t));
  cache_->upload_table();
  return pass;
}

void BatchDecoder::enqueue(const Pass& pass, const Wanted& wanted) {
  model::LayerContext context(sizes(pass.rows), backend_, tensor());
  context.rotary = tables_->rotary();
  model::Arena arena(scratch_memory_.get());
  const Scratch scratch = take_scratch(arena, context);
  const Tensor& stream = scratch.stream;
  const std::int32_t *positions = inputs_ + pass.rows, *lines = positions + pass.rows;
  const int stage = groups_ ? groups_->place.pipeline : 0;
  if (stage_.embedding) {
    stage_.embedding->forward(context, {.training = false},
                              {.ids = inputs_, .positions = positions}, scratch.embedding, stream);
  } else {
    groups_->pipeline->receive(stream.data, stream.bytes(), stage - 1, comm::kActivationTag)
        ->wait();
  }
  for (std::size_t i = 0; i < stage_.blocks.size(); ++i)
    stage_.blocks[i].forward_cached(
        context, scratch.workspace, scratch.blocks[i], stream,
        {.cache = cache_->layer(i),
         .rows = {.lines = lines, .positions = positions},
         .chunks = pass.chunks,
         .fresh_starts = pass.has_starts ? lines + pass.rows : nullptr});
  if (!stage_.head)
    groups_->pipeline->send(stream.data, stream.bytes(), stage + 1, comm::kActivationTag)->wait();
  else if (!pass.wanted_rows.empty())
    enqueue_head(stream, pass, wanted);
}

void BatchDecoder::enqueue_head(const Tensor& stream, const Pass& pass, const Wanted& wanted) {
  const model::LayerContext context(sizes(pass.logits_rows()), backend_, tensor());
  model::Arena arena(head_memory_.get());
  const HeadScratch scratch = take_head(arena, context);
  if (!pass.chunks.empty())
    for (std::size_t row = 0; row < pass.wanted_rows.size(); ++row) {
      const Tensor last = stream.rows(pass.wanted_rows[row], 1);
      backend_.copy(scratch.last.rows(static_cast<std::int64_t>(row), 1).data, last.data,
                    last.bytes());
    }
  stage_.head->logits(context, pass.chunks.empty() ? stream : scratch.last, scratch.head);
  const Tensor& local = scratch.head.logits;  // [B, V / t]
  if (wanted.count > 0) {
    const Tensor values = model::front(scratch.top, {local.shape[0], wanted.count});
    return backend_.top_logits({.logits = local,
                                .columns = wanted.columns,
                                .values = values,
                                .ids = reinterpret_cast<std::int32_t*>(
                                    static_cast<std::byte*>(values.data) + values.bytes())});
  }
  backend_.copy(scratch.gathered.rows(tensor().rank(), 1).data, local.data, local.bytes());
  if (context.tensor_ranks > 1) tensor().all_gather(scratch.gathered.data, local.size(), dtype_);
}

void BatchDecoder::read_logits(std::int64_t count, const Pass& pass, const Wanted& wanted) {
  model::Arena arena(head_memory_.get());
  const std::int64_t rows = pass.logits_rows();
  const HeadScratch scratch = take_head(arena, sizes(rows));
  const auto* raw = static_cast<const std::byte*>(read_back_.get());
  const auto read = [](const std::byte* from, std::int64_t size, DType dtype, double* to) {
    if (dtype == DType::f64) {
      std::copy_n(reinterpret_cast<const double*>(from), size, to);
      return;
    }
    std::vector<float> values(size);
    convert_to_float(from, values.size(), dtype, values.data());
    std::ranges::copy(values, to);
  };
  if (wanted.count > 0) {
    const Tensor values = model::front(scratch.top, {rows, wanted.count});
    backend_.download(read_back_.get(), values.data,
                      values.bytes() + rows * wanted.count * sizeof(std::int32_t));
    const auto* ids = reinterpret_cast<const std::int32_t*>(raw + values.bytes());
    top_.resize(count);
    for (std::int64_t b = 0; b < count; ++b) {
      top_[b].ids.assign(ids + b * wanted.count, ids + (b + 1) * wanted.count);
      top_[b].logits.resize(wanted.count);
      read(raw + b * wanted.count * size_of(values.dtype), wanted.count, values.dtype,
           top_[b].logits.data());
    }
    return;
  }
  const std::int64_t columns = scratch.gathered.shape[2];
  backend_.download(read_back_.get(), scratch.gathered.data, scratch.gathered.bytes());
  for (std::int64_t b = 0; b < count; ++b) {
    logits_[b].resize(vocab());
    for (int rank = 0; rank < sizes(1).tensor_ranks; ++rank) {
      const std::int64_t first = rank * columns,
                         part = std::clamp<std::int64_t>(vocab() - first, 0, columns);
      read(raw + (rank * rows + b) * columns * size_of(dtype_), part, dtype_,
           logits_[b].data() + first);
    }
  }
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

}  // namespace trireme::generate
