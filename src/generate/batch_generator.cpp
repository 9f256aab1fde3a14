#include "generate/batch_generator.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace trireme::generate {

void BatchGenerator::check_prompt(std::span<const std::int32_t> prompt) const {
  if (prompt.empty()) throw UsageError("the prompt is empty: it must have at least one token");
  const auto size = static_cast<std::int64_t>(prompt.size());
  if (size >= decoder_.capacity())
    throw DataError(
        "the prompt has {} tokens, but the model's context holds {} (model.positions), of which "
        "one at least is for the continuation",
        size, decoder_.capacity());
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
  sequence.job = std::move(job);
  return sequence.ticket;
}

void BatchGenerator::cancel(Ticket ticket) {
  const auto is_it = [&](const Sequence& sequence) { return sequence.ticket == ticket; };
  std::erase_if(queue_, is_it);
  std::erase_if(active_, is_it);
}

void BatchGenerator::start_waiting() {
  std::vector<bool> taken(decoder_.limits().sequences, false);
  for (const Sequence& sequence : active_) taken[sequence.slot] = true;
  for (std::size_t slot = 0; slot < taken.size() && !queue_.empty(); ++slot) {
    if (taken[slot]) continue;
    active_.push_back(std::move(queue_.front()));
    queue_.pop_front();
    active_.back().slot = static_cast<int>(slot);
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
  const auto logits = decoder_.run(chunks);
  std::vector<Ticket> ended;
  for (std::size_t k = 0; k < sampled.size(); ++k) {
    Sequence& sequence = active_[sampled[k]];
    if (advance(sequence, logits[k])) ended.push_back(sequence.ticket);
  }
  std::erase_if(active_, [&](const Sequence& sequence) {
    return std::ranges::find(ended, sequence.ticket) != ended.end();
  });
  return true;
}

bool BatchGenerator::advance(Sequence& sequence, std::vector<double> logits) {
  const Job& job = sequence.job;
  ChosenToken token = next_token(logits, sequence.context, job.request, job.sample);
  if (token.score.id == job.request.eod) return end(sequence, Stop::eod);
  sequence.context.push_back(token.score.id);
  const bool goes_on = !job.on_token || job.on_token(token);
  if (job.request.alternatives) sequence.tokens.push_back(std::move(token));
  if (!goes_on) return end(sequence, Stop::text);
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
