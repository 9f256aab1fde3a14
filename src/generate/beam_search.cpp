#include "generate/beam_search.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "generate/batch_generator.hpp"

namespace trireme::generate {
namespace {

/// An extension of a partial continuation by one token.
struct Candidate {
  std::size_t parent = 0;
  std::int32_t id = 0;
  double log_probability = 0.0;
};

/// The most likely `count` extensions of `parents`; of equal ones those of the earlier parent and
/// the lower id.
std::vector<Candidate> best_extensions(std::span<const Beam> parents,
                                       std::span<const std::vector<double>> logits,
                                       std::int64_t vocab, std::size_t count) {
  std::vector<Candidate> all;
  for (std::size_t parent = 0; parent < parents.size(); ++parent) {
    const auto row = std::span(logits[parent]).first(vocab);
    if (!std::ranges::all_of(row, [](double x) { return std::isfinite(x); }))
      throw CodedError<ExitCode::diverged>(
          "the model's logits are not finite: its training has diverged");
    const double best = *std::ranges::max_element(row);
    double sum = 0.0;
    for (const double logit : row) sum += std::exp(logit - best);
    const double log_sum = best + std::log(sum);
    for (std::int64_t id = 0; id < vocab; ++id)
      all.push_back({parent, static_cast<std::int32_t>(id),
                     parents[parent].log_probability + row[id] - log_sum});
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
