#include "report/runs/run_history.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/load.hpp"

namespace trireme::report {
namespace {

// ---------------------------------------------------------------------------- plot

/// The x value of a training line or evaluation; empty when unknown.
template <typename Row>
std::optional<double> x_of(const Row& row, PlotAxis axis) {
  switch (axis) {
    case PlotAxis::iterations:
      return static_cast<double>(row.iteration);
    case PlotAxis::samples:
      return row.samples;
    case PlotAxis::tokens:
      return row.tokens;
  }
  throw InternalError("unknown axis {}", static_cast<int>(axis));
}

constexpr const char* name_of(PlotAxis axis) {
  return axis == PlotAxis::iterations ? "iterations"
         : axis == PlotAxis::samples  ? "consumed samples"
                                      : "consumed tokens";
}

/// The curve of `value` over the rows; rows that do not have it interrupt the line.
template <typename Row>
Series series_of(const std::vector<Row>& rows, PlotAxis axis, std::optional<double> Row::*value) {
  Series series;
  for (const Row& row : rows)
    if (const auto x = x_of(row, axis))
      series.points.emplace_back(*x,
                                 (row.*value).value_or(std::numeric_limits<double>::quiet_NaN()));
  return series;
}

bool has_values(const Series& series) {
  return std::any_of(series.points.begin(), series.points.end(),
                     [](const auto& point) { return std::isfinite(point.second); });
}

void require_plottable(const RunHistory& run, PlotAxis axis) {
  if (run.train.empty()) throw DataError("{}: no training line in it", run.name);
  if (std::none_of(run.train.begin(), run.train.end(),
                   [&](const TrainRow& row) { return x_of(row, axis).has_value(); }))
    throw DataError("{}: its training lines do not have the {} (try --x iterations)", run.name,
                    name_of(axis));
}

// ---------------------------------------------------------------------------- CSV

using Cells = std::vector<std::string>;

std::string cell(const std::optional<double>& value) {
  return value ? fmt::format("{}", *value) : "";
}

Cells train_cells(const std::string& run, const TrainRow& row) {
  return {run,
          "train",
          std::to_string(row.iteration),
          cell(row.samples),
          cell(row.tokens),
          cell(row.loss),
          cell(row.learning_rate),
          cell(row.grad_norm),
          cell(row.global_batch),
          cell(row.ms),
          cell(row.tokens_per_second),
          cell(row.tflops),
          cell(row.mfu)};
}

// ---------------------------------------------------------------------------- differences

std::vector<ValueDifference> compare_starts(const StartEvent& a, const StartEvent& b) {
  const auto layout = [](const StartEvent& start) {
    return fmt::format("tensor {} x pipeline {} x data {}", start.layout.tensor,
                       start.layout.pipeline, start.layout.data);
  };
  const auto hosts = [](const StartEvent& start) {
    return fmt::format("{}", fmt::join(start.hosts, " "));
  };
  std::vector<ValueDifference> all = {{"program", a.program, b.program},
                                      {"version", a.version, b.version},
                                      {"device", a.device, b.device},
                                      {"layout", layout(a), layout(b)},
                                      {"hosts", hosts(a), hosts(b)}};
  std::erase_if(all, [](const ValueDifference& value) { return value.a == value.b; });
  return all;
}

std::vector<ValueDifference> compare_decks(const std::filesystem::path& a,
                                           const std::filesystem::path& b) {
  const auto load = [](const auto& path) { return deck::load(path, {}, {.need_data = false}); };
  std::vector<ValueDifference> keys;
  for (const deck::Change& change : deck::compare_for_restart(load(a), load(b)))
    if (change.key != "run.name" && change.key != "run.output")
      keys.push_back({change.key, change.before, change.after});
  return keys;
}

/// A loss as a console log has it.
std::optional<double> round_as_log(const std::optional<double>& loss) {
  return loss ? std::optional(std::stod(fmt::format("{:.6E}", *loss))) : std::nullopt;
}

LossDifference compare_losses(const RunHistory& a, const RunHistory& b) {
  LossDifference difference{.rounded = a.is_log || b.is_log};
  const auto loss_of = [&](const TrainRow& row) {
    return difference.rounded ? round_as_log(row.loss) : row.loss;
  };
  auto other = b.train.begin();
  for (const TrainRow& row : a.train) {
    other = std::find_if(other, b.train.end(),
                         [&](const TrainRow& next) { return next.iteration >= row.iteration; });
    if (other == b.train.end()) break;
    if (other->iteration != row.iteration || !row.has_loss || !other->has_loss) continue;
    if (!row.since || row.since != other->since) {
      ++difference.other_means;
      continue;
    }
    if (difference.common++ == 0) difference.first = row.iteration;
    difference.last = row.iteration;
    const auto loss_a = difference.last_a = loss_of(row),
               loss_b = difference.last_b = loss_of(*other);
    if (loss_a != loss_b && !difference.diverged) difference.diverged = row.iteration;
    if (!loss_a || !loss_b) continue;
    const double distance = std::abs(*loss_a - *loss_b);
    if (distance > difference.largest) {
      difference.largest = distance;
      difference.largest_at = row.iteration;
    }
  }
  return difference;
}

std::string list_values(const std::vector<ValueDifference>& values) {
  std::string text;
  for (const auto& [name, a, b] : values)
    text +=
        fmt::format("  {}: {} | {}\n", name, a.empty() ? "unknown" : a, b.empty() ? "unknown" : b);
  return text;
}

std::string describe_loss(const LossDifference& loss) {
  const std::string others =
      loss.other_means == 0 ? ""
                            : fmt::format("  not compared: {}, of means of different iterations\n",
                                          counted(loss.other_means, "common training line"));
  if (loss.common == 0)
    return (others.empty() ? "loss: nothing to compare: no iteration is reported by both runs\n"
                           : "loss: nothing to compare\n") +
           others;
  const std::string range =
      fmt::format("{}, iterations {} to {}{}", counted(loss.common, "common training line"),
                  loss.first, loss.last, loss.rounded ? ", to the 7 digits of a log" : "");
  if (!loss.diverged) return fmt::format("loss: equal in {}\n{}", range, others);
  const auto value = [](const std::optional<double>& of) {
    return of ? fmt::format("{:.6f}", *of) : "not finite";
  };
  const std::string largest = loss.largest > 0
                                  ? fmt::format("  largest difference: {:.6g} at iteration {}\n",
                                                loss.largest, loss.largest_at)
                                  : "";
  return fmt::format(
      "loss: different in {}\n  first difference: iteration {}\n{}  at iteration {}: {} | {}\n{}",
      range, *loss.diverged, largest, loss.last, value(loss.last_a), value(loss.last_b), others);
}

/// Says where compared losses are of earlier starts than the deck of run `name`.
std::string describe_deck(const std::string& name, std::int64_t since, const LossDifference& loss) {
  if (loss.common == 0 || loss.first > since) return "";
  return fmt::format(
      "  {}: this is the deck of its last start, from iteration {} on; those of earlier losses are "
      "not kept\n",
      name, since + 1);
}

}  // namespace

Chart plot_runs(const std::vector<RunHistory>& runs, PlotAxis axis, bool logarithmic_loss) {
  Chart chart{.x_label = name_of(axis)};
  Panel loss{.title = "loss", .logarithmic = logarithmic_loss};
  Panel rate{.title = "learning rate", .from_zero = true};
  Panel speed{.title = "tokens per second", .from_zero = true};
  bool validation = false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunHistory& run = runs[i];
    require_plottable(run, axis);
    chart.names.push_back(run.name);
    const auto add = [&](Panel& panel, Series series) {
      series.color = i;
      if (has_values(series)) panel.series.push_back(std::move(series));
    };
    add(loss, series_of(run.train, axis, &TrainRow::loss));
    Series evaluations = series_of(run.validation, axis, &EvalRow::loss);
    evaluations.dots = true;
    validation = validation || has_values(evaluations);
    add(loss, std::move(evaluations));
    add(rate, series_of(run.train, axis, &TrainRow::learning_rate));
    add(speed, series_of(run.train, axis, &TrainRow::tokens_per_second));
  }
  if (validation) loss.title = "loss (lines: training, dots: validation)";
  for (Panel& panel : std::vector{std::move(loss), std::move(rate), std::move(speed)})
    if (!panel.series.empty()) chart.panels.push_back(std::move(panel));
  if (chart.panels.empty()) throw DataError("there is nothing to plot: no line has a finite value");
  return chart;
}

std::string export_csv(const std::vector<RunHistory>& runs) {
  TableRows rows = {{"run", "kind", "iteration", "samples", "tokens", "loss", "learning_rate",
                     "grad_norm", "global_batch", "ms", "tokens_per_second", "tflops", "mfu"}};
  for (const RunHistory& run : runs) {
    for (const TrainRow& row : run.train) rows.push_back(train_cells(run.name, row));
    for (const EvalRow& row : run.validation) {
      Cells cells = {run.name,          "valid",          std::to_string(row.iteration),
                     cell(row.samples), cell(row.tokens), cell(row.loss)};
      cells.resize(rows[0].size());
      rows.push_back(std::move(cells));
    }
  }
  return csv_table(rows);
}

RunDifference compare_runs(const RunHistory& a, const RunHistory& b) {
  RunDifference difference{.a = a.name,
                           .b = b.name,
                           .programs = !a.start.program.empty() && !b.start.program.empty(),
                           .decks = !a.deck.empty() && !b.deck.empty(),
                           .deck_since_a = a.start.iteration,
                           .deck_since_b = b.start.iteration,
                           .loss = compare_losses(a, b)};
  if (difference.programs) difference.properties = compare_starts(a.start, b.start);
  if (difference.decks) difference.keys = compare_decks(a.deck, b.deck);
  return difference;
}

std::string to_text(const RunDifference& difference) {
  std::string text = fmt::format("{} | {}\n", difference.a, difference.b);
  if (!difference.programs)
    text += "program: not compared (a console log does not name it)\n";
  else if (difference.properties.empty())
    text += "program: same version, device, layout and hosts\n";
  else
    text += "program:\n" + list_values(difference.properties);
  if (!difference.decks)
    text += "deck: not compared (both must be run folders with a deck.yaml)\n";
  else if (difference.keys.empty())
    text += "deck: equal except run.name and run.output\n";
  else
    text += fmt::format("deck: {}\n", counted(difference.keys.size(), "different key")) +
            list_values(difference.keys);
  if (difference.decks)
    text += describe_deck(difference.a, difference.deck_since_a, difference.loss) +
            describe_deck(difference.b, difference.deck_since_b, difference.loss);
  return text + describe_loss(difference.loss);
}

}  // namespace trireme::report
