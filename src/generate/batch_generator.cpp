// Many continuations at a time, and beam search.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "generate/generator.hpp"

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
  std::vector<std::size_t> sampled;
  const std::vector<Chunk> chunks = take_chunks(sampled);
  std::vector<ChosenToken> tokens = choose_tokens(chunks, sampled);
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

std::vector<Chunk> BatchGenerator::take_chunks(std::vector<std::size_t>& sampled) {
  std::vector<Chunk> chunks;
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
  return chunks;
}

std::vector<ChosenToken> BatchGenerator::choose_tokens(const std::vector<Chunk>& chunks,
                                                       const std::vector<std::size_t>& sampled) {
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
    return tokens;
  }
  const auto logits = decoder_.run(chunks);
  for (std::size_t k = 0; k < sampled.size(); ++k) {
    const Sequence& sequence = active_[sampled[k]];
    std::vector<double> own = logits[k];
    tokens.push_back(next_token(own, sequence.context, sequence.job.request, sequence.job.sample));
  }
  return tokens;
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

// ---- beam search

namespace {

/// An extension of a partial continuation by one token.
struct Candidate {
  std::size_t parent = 0;
  std::int32_t id = 0;
  double log_probability = 0.0;
};

/// The most likely `count` extensions of `parents` by ids below `vocab`; of equal ones those of the
/// earlier parent and the lower id.
std::vector<Candidate> best_extensions(std::span<const Beam> parents,
                                       std::span<const std::vector<double>> logits,
                                       std::int64_t vocab, std::size_t count) {
  std::vector<Candidate> all;
  for (std::size_t parent = 0; parent < parents.size(); ++parent) {
    const double log_sum = log_sum_exp(logits[parent]);
    for (std::int64_t id = 0; id < vocab; ++id)
      all.push_back({parent, static_cast<std::int32_t>(id),
                     parents[parent].log_probability + logits[parent][id] - log_sum});
  }
  const auto kept = std::min(count, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(kept), all.end(),
                    [](const Candidate& a, const Candidate& b) {
                      if (a.log_probability != b.log_probability)
                        return a.log_probability > b.log_probability;
                      return std::pair(a.parent, a.id) < std::pair(b.parent, b.id);
                    });
  all.resize(kept);
  return all;
}

/// Tokens that a search adds at most.
std::int64_t tokens_of(const BatchDecoder& decoder, std::int64_t prompt,
                       const BeamOptions& options) {
  return std::min(options.tokens, decoder.capacity() - prompt);
}

/// Blocks that a search has in use at most: in its last pass each beam writes a block of its own,
/// while the caches before it, which may share the whole blocks of the prompt alone, are there.
std::int64_t blocks_of(const BatchDecoder& decoder, std::int64_t prompt,
                       const BeamOptions& options) {
  const BlockTable& table = decoder.blocks();
  const std::int64_t tokens = tokens_of(decoder, prompt, options);
  if (tokens == 1) return table.blocks_for(prompt);
  const std::int64_t parents = tokens == 2 ? 1 : options.beams;
  const std::int64_t shared = prompt / table.positions();
  return shared + parents * (table.blocks_for(prompt + tokens - 2) - shared) + options.beams;
}

}  // namespace

void check_beam_search(const BatchDecoder& decoder, std::span<const std::int32_t> prompt,
                       const BeamOptions& options) {
  BatchGenerator::check_prompt(decoder, prompt);
  const auto size = static_cast<std::int64_t>(prompt.size());
  const std::int64_t needed = blocks_of(decoder, size, options), positions = CachePlan::kPositions;
  if (needed > decoder.blocks().blocks())
    throw DataError(
        "the KV cache is too small: {} of {} after {} of the prompt may need {} of {} positions, "
        "and it has {}; give it {} positions (--cache), or search with fewer beams or tokens",
        counted(options.beams, "beam"), counted(tokens_of(decoder, size, options), "token"),
        counted(size, "token"), counted(needed, "block"), positions, decoder.blocks().blocks(),
        needed * positions);
}

std::vector<Beam> beam_search(BatchDecoder& decoder, std::span<const std::int32_t> prompt,
                              const BeamOptions& options) {
  const int beams = options.beams;
  TRIREME_CHECK(beams >= 1 && 2 * beams <= decoder.limits().sequences, "{} beams with {} caches",
                beams, decoder.limits().sequences);
  check_beam_search(decoder, prompt, options);
  const std::int64_t vocab = options.vocab == 0 ? decoder.vocab() : options.vocab;
  const auto size = static_cast<std::int64_t>(prompt.size());
  const std::int64_t limit = tokens_of(decoder, size, options);
  // The caches of an earlier search.
  for (int slot = 0; slot < 2 * beams; ++slot) decoder.release(slot);

  std::vector<Beam> complete;
  const auto finish = [&](Beam beam, std::size_t tokens, Stop stop) {
    beam.stop = stop;
    beam.score =
        beam.log_probability / std::pow(static_cast<double>(tokens), options.length_penalty);
    complete.push_back(std::move(beam));
  };

  // The prompt in pieces; beam 0 alone has it at first.
  std::span<const std::vector<double>> logits;
  for (std::int64_t done = 0; done < size;) {
    const std::int64_t count = std::min(size - done, decoder.limits().pass_tokens);
    const auto part = prompt.subspan(done, count);
    logits = decoder.run({{.slot = 0,
                           .past = done,
                           .ids = {part.begin(), part.end()},
                           .wants_logits = done + count == size}});
    done += count;
  }
  std::vector<Beam> live(1);
  int half = 0;  // the caches of `live` begin here
  for (std::int64_t step = 1; !live.empty(); ++step) {
    // Twice as many, so that enough are left when some end their document.
    std::vector<Beam> next;
    std::vector<std::pair<int, int>> copies;
    for (const Candidate& each : best_extensions(live, logits, vocab, 2 * beams)) {
      Beam beam = live[each.parent];
      beam.log_probability = each.log_probability;
      if (each.id == options.eod) {
        finish(std::move(beam), static_cast<std::size_t>(step), Stop::eod);
        continue;
      }
      if (std::ssize(next) == beams) continue;
      beam.ids.push_back(each.id);
      copies.emplace_back(half + static_cast<int>(each.parent),
                          (beams - half) + static_cast<int>(next.size()));
      next.push_back(std::move(beam));
    }
    live = std::move(next);
    if (step == limit) {
      const Stop stop = limit < options.tokens ? Stop::context : Stop::tokens;
      for (Beam& beam : live) finish(std::move(beam), static_cast<std::size_t>(step), stop);
      break;
    }
    if (live.empty()) break;
    decoder.copy(copies);
    half = beams - half;
    std::vector<Chunk> chunks;
    for (std::size_t i = 0; i < live.size(); ++i)
      chunks.push_back({.slot = half + static_cast<int>(i),
                        .past = size + step - 1,
                        .ids = {live[i].ids.back()}});
    logits = decoder.run(chunks);
  }
  std::ranges::stable_sort(complete, std::greater(), &Beam::score);
  if (std::ssize(complete) > beams) complete.resize(beams);
  return complete;
}

}  // namespace trireme::generate
