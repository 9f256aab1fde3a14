// What trireme-plan prints: tables for people, JSON and CSV for programs, a deck and a timeline.
#pragma once

#include <optional>
#include <string>

#include "plan/search/layout_search.hpp"

namespace trireme::plan_app {

/// All that a search has to say.
struct Answer {
  const plan::Cluster* cluster = nullptr;
  std::int64_t iterations = 0;                   ///< of the run
  std::optional<plan::TimedLayout> given;        ///< the deck's own layout
  std::string given_problem;                     ///< why it could not be timed
  std::optional<plan::TimedLayout> repartition;  ///< the same with its fastest partition
  plan::SearchResult search;
};

/// Why the ranking is empty.
std::string why_no_layout(const Answer& answer);
/// The ranking as a table, the given layout's time by what takes it, and why it is slower.
std::string to_text(const Answer& answer);
/// {"given": ..., "best": ..., "ranked": [...], "pareto": [...]}
std::string to_json(const Answer& answer);
/// FASOP's columns, and ours.
std::string to_csv(const Answer& answer);
/// `layout`'s deck with a head that says what it was made for.
std::string to_deck(const plan::TimedLayout& layout, const plan::Cluster& cluster,
                    const std::string& command);

/// One step of `layout` as the simulator times it, as the timeline of a run
/// (report/runs/run_history.hpp) with a rank for each stage: passes alone, without the optimizer.
std::string to_timeline(const plan::TimedLayout& layout, const plan::Cluster& cluster,
                        std::int64_t vocab);

/// A job script of Slurm that trains `deck_file`, which has the deck of `layout`. Throws UsageError
/// for nodes of several kinds, whose GPUs have names in Slurm that the cluster file does not give.
std::string to_job(const plan::TimedLayout& layout, const plan::Cluster& cluster,
                   std::int64_t vocab, const std::string& deck_file);

}  // namespace trireme::plan_app
