#include "generate/batch_generator.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/error.hpp"

namespace trireme::generate {

void BatchGenerator::check_prompt(const BatchDecoder& decoder,
                                  std::span<const std::int32_t> prompt) {
  if (prompt.empty()) throw UsageError("the prompt is empty: it must have at least one token");
  const auto size = static_cast<std::int64_t>(prompt.size());
  if (size >= decoder.capacity())
    throw DataError(
        "the prompt has {} tokens, but {}, of which one at least is for the continuation", size,
        decoder.capacity_text());
}

BatchGenerator::Ticket BatchGenerator::submit(Job job) {
  check_prompt(job.prompt);
  if (job.request.vocab == 0) job.request.vocab = decoder_.vocab();
  queue_.emplace_back();
  Sequence& sequence = queue_.back();
  sequence.ticket = next_ticket_++;
  sequence.context = job.prompt;
  sequence.limit = std::min(job.prompt.size() + static_cast<std::size_t>(job.request.tokens),
                            static_cast<std::size_t>(decoder_.capacity()));
  sequence.blocks = decoder_.blocks().blocks_for(static_cast<std::int64_t>(sequence.limit));
  sequence.job = std::move(job);
  return sequence.ticket;
}

template <typename Ended>
void BatchGenerator::remove(const Ended& ended) {
  std::erase_if(active_, [&](const Sequence& sequence) {
    if (!ended(sequence)) return false;
    promised_ -= sequence.blocks;
    decoder_.release(sequence.slot);
    return true;
  });
}

void BatchGenerator::cancel(Ticket ticket) {
  const auto is_it = [&](const Sequence& sequence) { return sequence.ticket == ticket; };
  std::erase_if(queue_, is_it);
  remove(is_it);
}

void BatchGenerator::start_waiting() {
  std::vector<bool> taken(decoder_.limits().sequences, false);
  for (const Sequence& sequence : active_) taken[sequence.slot] = true;
  for (std::size_t slot = 0; slot < taken.size() && !queue_.empty(); ++slot) {
    if (taken[slot]) continue;
    if (promised_ + queue_.front().blocks > decoder_.blocks().blocks()) break;
    active_.push_back(std::move(queue_.front()));
    queue_.pop_front();
    active_.back().slot = static_cast<int>(slot);
    promised_ += active_.back().blocks;
  }
}

bool BatchGenerator::step() {
  start_waiting();
  if (active_.empty()) return false;
  std::vector<Chunk> chunks;
  std::vector<std::size_t> sampled;  // the sequences that get a token
  // Each sequence has room for a token: prompts divide what is left in turn.
  std::int64_t room = decoder_.limits().pass_tokens - std::ssize(active_);
  for (std::size_t i = 0; i < active_.size(); ++i) {
    Sequence& sequence = active_[i];
    const std::int64_t new_tokens = std::ssize(sequence.context) - sequence.cached;
    const std::int64_t count = std::min(new_tokens, 1 + room);
    // Attention of a prompt in one pass needs no cache: what fits a later pass waits for it.
    const bool fits_later = new_tokens <= decoder_.limits().pass_tokens - std::ssize(active_);
    if (count < new_tokens && fits_later && !chunks.empty()) continue;
    room -= count - 1;
    const auto begin = sequence.context.begin() + sequence.cached;
    const bool complete = count == new_tokens;
    chunks.push_back({.slot = sequence.slot,
                      .past = sequence.cached,
                      .ids = {begin, begin + count},
                      .wants_logits = complete});
    sequence.cached += count;
    if (complete) sampled.push_back(i);
  }
  // Tokens are chosen from the largest logits alone where that is enough for all.
  std::int64_t count = 1, columns = 0;
  for (const std::size_t i : sampled) {
    const Request& request = active_[i].job.request;
    const std::int64_t needed = needed_logits(request);
    if (columns == 0) columns = request.vocab;
    const bool enough = needed > 0 && needed <= columns && columns == request.vocab;
    count = count == 0 || !enough ? 0 : std::max(count, needed);
  }
  std::vector<ChosenToken> tokens;
  if (count > 0 && columns > 0) {
    // Few counts, so that captured passes are used again.
    const std::int64_t few =
        std::min({static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count))),
                  kernels::kMaxTopLogits, columns});
    const auto top = decoder_.run_top(chunks, few, columns);
    for (std::size_t k = 0; k < sampled.size(); ++k) {
      const Sequence& sequence = active_[sampled[k]];
      tokens.push_back(
          next_token(top[k], sequence.context.size(), sequence.job.request, sequence.job.sample));
    }
  } else {
    const auto logits = decoder_.run(chunks);
    for (std::size_t k = 0; k < sampled.size(); ++k) {
      const Sequence& sequence = active_[sampled[k]];
      std::vector<double> own = logits[k];
      tokens.push_back(
          next_token(own, sequence.context, sequence.job.request, sequence.job.sample));
    }
  }
  std::vector<Ticket> ended;
  for (std::size_t k = 0; k < sampled.size(); ++k) {
    Sequence& sequence = active_[sampled[k]];
    if (advance(sequence, std::move(tokens[k]))) ended.push_back(sequence.ticket);
  }
  remove([&](const Sequence& sequence) {
    return std::ranges::find(ended, sequence.ticket) != ended.end();
  });
  return true;
}

bool BatchGenerator::advance(Sequence& sequence, ChosenToken token) {
  const Job& job = sequence.job;
  if (token.score.id == job.request.eod) return end(sequence, Stop::eod);
  sequence.context.push_back(token.score.id);
  const bool continues = !job.on_token || job.on_token(token);
  if (job.request.alternatives) sequence.tokens.push_back(std::move(token));
  if (!continues) return end(sequence, Stop::text);
  if (sequence.context.size() < sequence.limit) return false;
  const bool full = job.prompt.size() + job.request.tokens > sequence.limit;
  return end(sequence, full ? Stop::context : Stop::tokens);
}

bool BatchGenerator::end(Sequence& sequence, Stop stop) {
  const auto first =
      sequence.context.begin() + static_cast<std::ptrdiff_t>(sequence.job.prompt.size());
  if (sequence.job.on_end)
    sequence.job.on_end({.ids = {first, sequence.context.end()},
                         .stop = stop,
                         .tokens = std::move(sequence.tokens)});
  return true;
}

}  // namespace trireme::generate
