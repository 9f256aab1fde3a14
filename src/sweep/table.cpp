// What the runs of a sweep have come to: the figures of each, and tables of all.
#include "sweep/sweep.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "deck/deck.hpp"
#include "deck/keys/schema.hpp"
#include "deck/value.hpp"

namespace trireme::sweep {
namespace {

using Json = nlohmann::json;

std::optional<double> number(const Json& event, const char* key) {
  const auto value = event.find(key);
  if (value == event.end() || !value->is_number()) return std::nullopt;
  return value->get<double>();
}

/// A value of each training line.
class Series {
 public:
  void add(const std::optional<double>& value, bool warm_up) {
    if (value) (warm_up ? first_ : rest_).push_back(*value);
  }
  std::optional<double> median() const {
    const std::vector<double>& values = rest_.empty() ? first_ : rest_;
    return values.empty() ? std::nullopt : std::optional(trireme::median(values));
  }

 private:
  std::vector<double> first_;  // lines after a start
  std::vector<double> rest_;
};

class Reader {
 public:
  void read(const Json& event) {
    const auto kind = event.find("kind");
    if (kind == event.end()) return;
    if (*kind == "start") {
      figures_.started = true;
      figures_.exit_code.reset();
      warm_up_ = true;
    } else if (*kind == "train") {
      read_train(event);
    } else if (*kind == "eval" && event.value("split", "") == "valid") {
      figures_.valid_loss = number(event, "loss");
    } else if (*kind == "memory") {
      const auto gpu = number(event, "gpu_bytes");
      figures_.memory_bytes = gpu ? gpu : number(event, "peak_bytes");
    } else if (*kind == "stop") {
      if (const auto code = number(event, "exit_code"))
        figures_.exit_code = static_cast<int>(*code);
      figures_.finished = event.value("reason", "finished") == "finished";
    }
  }

  Figures take() {
    figures_.ms = ms_.median();
    figures_.samples_per_second = samples_.median();
    figures_.tokens_per_second = tokens_.median();
    figures_.mfu = mfu_.median();
    return figures_;
  }

 private:
  void read_train(const Json& event) {
    const auto ms = number(event, "ms");
    const auto batch = number(event, "global_batch");
    figures_.iteration = static_cast<std::int64_t>(number(event, "iteration").value_or(0));
    figures_.loss = number(event, "loss");
    ms_.add(ms, warm_up_);
    if (ms && batch && *ms > 0) samples_.add(*batch / *ms * 1e3, warm_up_);
    tokens_.add(number(event, "tokens_per_second"), warm_up_);
    mfu_.add(number(event, "mfu"), warm_up_);
    warm_up_ = false;
  }

  Figures figures_;
  Series ms_, samples_, tokens_, mfu_;
  bool warm_up_ = true;
};

}  // namespace

Figures read_figures(const std::filesystem::path& run_folder) {
  std::ifstream file(run_folder / "metrics.jsonl");
  Reader reader;
  for (std::string line; std::getline(file, line);) {
    const Json event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_object()) reader.read(event);
  }
  return reader.take();
}

// ---- tables

namespace {

using Row = std::vector<std::string>;

constexpr double kMebi = 1.0 / (1 << 20);
constexpr std::size_t kFirstKey = 2;  // after name and state

std::string cell(const std::optional<double>& value, const char* format, double scale = 1) {
  return value ? fmt::format(fmt::runtime(format), *value * scale) : "";
}

using nlohmann::ordered_json;

/// The value of a key of the deck: a number where the key is one, else text.
ordered_json key_value(const std::string& path, const std::string& text) {
  const deck::Key* key = deck::find_key(path);
  try {
    if (key && key->type == deck::Codec<std::int64_t>::kType)
      return deck::parse_whole(text, deck::Suffix::allowed);
    if (key &&
        (key->type == deck::Codec<double>::kType || key->type == deck::Codec<deck::Length>::kType))
      return deck::parse_real(text);
  } catch (const deck::BadValue&) {  // "auto", or a number with its unit
  }
  return text;
}

/// An array of objects whose members are the columns. Names, states and values of keys that are
/// text stay text even where they look like numbers; figures are numbers, and so are the columns
/// from `first_extra` on in which each cell is one. What is not known is null.
std::string json_table(const TableRows& rows, const Row& keys, std::size_t first_extra) {
  const auto number = [](const std::string& text) {
    const auto value = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    return value.is_number() ? value : ordered_json(text);
  };
  const auto of_numbers = [&](std::size_t column) {
    return std::all_of(rows.begin() + 1, rows.end(), [&](const Row& row) {
      return row[column].empty() || number(row[column]).is_number();
    });
  };
  ordered_json table = ordered_json::array();
  for (std::size_t i = 1; i < rows.size(); ++i) {
    ordered_json object;
    for (std::size_t c = 0; c < rows[0].size(); ++c) {
      const std::string& text = rows[i][c];
      const bool is_key = c >= kFirstKey && c < kFirstKey + keys.size();
      const bool is_figure = c >= kFirstKey + keys.size() && (c < first_extra || of_numbers(c));
      object[rows[0][c]] = text.empty() ? ordered_json()
                           : is_key     ? key_value(keys[c - kFirstKey], text)
                           : is_figure  ? number(text)
                                        : ordered_json(text);
    }
    table.push_back(std::move(object));
  }
  return table.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

/// The cells of a line of CSV.
Row split_csv(std::string_view line) {
  Row cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"')
        cells.back() += line[++i];
      else
        quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      cells.emplace_back();
    } else if (line[i] != '\r') {
      cells.back() += line[i];
    }
  }
  return cells;
}

/// What the run sets `key` to.
std::string value_of(const deck::SweepRun& run, const std::string& key) {
  for (const deck::SweptValue& value : run.values)
    if (value.key == key) return value.value.empty() ? "default" : value.value;
  return "";
}

void append(Row& row, const Row& more) { row.insert(row.end(), more.begin(), more.end()); }

Row figures_row(const Figures& figures, std::size_t planned_bytes) {
  return {cell(figures.loss, "{:.4f}"),
          cell(figures.valid_loss, "{:.4f}"),
          cell(figures.ms, "{:.1f}"),
          cell(figures.samples_per_second, "{:.2f}"),
          cell(figures.tokens_per_second, "{:.0f}"),
          cell(figures.mfu, "{:.1f}", 100),
          cell(figures.memory_bytes, "{:.0f}", kMebi),
          cell(static_cast<double>(planned_bytes), "{:.0f}", kMebi)};
}

const Row kFigureNames{"loss",     "valid loss", "ms/iteration", "samples/s",
                       "tokens/s", "MFU %",      "memory MiB",   "planned MiB"};

/// The names of the columns that every table of the sweep has.
Row own_columns(const PlannedSweep& sweep) {
  Row columns{"run", "state"};
  append(columns, sweep.section.keys);
  append(columns, kFigureNames);
  return columns;
}

}  // namespace

std::vector<Status> all_statuses(const PlannedSweep& sweep, const Queue& queue) {
  std::vector<Status> statuses;
  for (std::size_t i = 0; i < sweep.runs.size(); ++i)
    statuses.push_back(status_of(sweep, i, queue));
  return statuses;
}

std::string count_line(const std::vector<Status>& statuses) {
  std::vector<std::string> parts;
  for (int state = 0; state <= static_cast<int>(State::too_large); ++state) {
    const auto count = std::count_if(statuses.begin(), statuses.end(), [&](const Status& status) {
      return status.state == static_cast<State>(state);
    });
    if (count > 0) parts.push_back(fmt::format("{} {}", count, name_of(static_cast<State>(state))));
  }
  return fmt::format("{} run{}: {}", statuses.size(), statuses.size() == 1 ? "" : "s",
                     fmt::join(parts, ", "));
}

std::string status_text(const PlannedSweep& sweep, const std::vector<Status>& statuses) {
  TableRows rows{{"run", "state", "iterations", "loss"}};
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    const auto& [state, note, figures] = statuses[i];
    rows.push_back(
        {sweep.runs[i].name(),
         note.empty() ? name_of(state) : fmt::format("{} ({})", name_of(state), note),
         fmt::format("{}/{}", figures.iteration, deck::total_iterations(sweep.runs[i].deck)),
         cell(figures.loss, "{:.4f}")});
  }
  return aligned_table(rows, 2) + count_line(statuses) + "\n";
}

std::string plan_text(const PlannedSweep& sweep, const std::vector<Status>& statuses,
                      const std::vector<std::string>& commands) {
  std::string text;
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    const PlannedRun& run = sweep.runs[i];
    const auto& [state, note, figures] = statuses[i];
    text += fmt::format("{}: {} rank{}, {} a rank, {}{}\n  {}\n", run.name(), run.need.ranks,
                        run.need.ranks == 1 ? "" : "s",
                        human_bytes(static_cast<double>(run.need.bytes)), name_of(state),
                        note.empty() ? "" : ": " + note, commands[i]);
  }
  return text + count_line(statuses) + "\n";
}

ExtraColumns read_extra_columns(const std::string& text, const std::string& source,
                                const PlannedSweep& sweep) {
  ExtraColumns extra;
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    Row cells = split_csv(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (cells[0].starts_with('#') || (cells.size() == 1 && cells[0].empty())) continue;
    const std::string name = cells[0];
    cells.erase(cells.begin());
    if (extra.columns.empty()) {
      extra.columns = cells;
      Row columns = own_columns(sweep);
      for (const std::string& column : cells) {
        if (std::ranges::find(columns, column) != columns.end())
          throw DataError("{}:{}: the table has a column '{}' already; give it another name",
                          source, number, column);
        columns.push_back(column);
      }
      continue;
    }
    if (cells.size() != extra.columns.size())
      throw DataError("{}:{}: {} cells after the name, but the first line has {}", source, number,
                      cells.size(), extra.columns.size());
    const auto has_name = [&](const PlannedRun& run) { return run.name() == name; };
    if (std::none_of(sweep.runs.begin(), sweep.runs.end(), has_name))
      throw DataError("{}:{}: the sweep has no run '{}'", source, number, name);
    if (std::ranges::find(extra.rows, name, &std::pair<std::string, Row>::first) !=
        extra.rows.end())
      throw DataError("{}:{}: run '{}' is there twice", source, number, name);
    extra.rows.emplace_back(name, cells);
  }
  if (extra.columns.empty()) throw DataError("{}: no line with the names of columns", source);
  return extra;
}

std::string table(const PlannedSweep& sweep, const std::vector<Status>& statuses,
                  TableFormat format, const ExtraColumns& extra) {
  TableRows rows{own_columns(sweep)};
  const std::size_t first_extra = rows[0].size();
  append(rows[0], extra.columns);
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    const PlannedRun& run = sweep.runs[i];
    Row row{run.name(), name_of(statuses[i].state)};
    for (const std::string& key : sweep.section.keys) row.push_back(value_of(run.swept, key));
    append(row, figures_row(statuses[i].figures, run.need.bytes));
    const auto found = std::find_if(extra.rows.begin(), extra.rows.end(),
                                    [&](const auto& each) { return each.first == run.name(); });
    append(row, found == extra.rows.end() ? Row(extra.columns.size()) : found->second);
    rows.push_back(row);
  }
  switch (format) {
    case TableFormat::csv:
      return csv_table(rows);
    case TableFormat::markdown:
      return markdown_table(rows, 2);
    case TableFormat::json:
      return json_table(rows, sweep.section.keys, first_extra);
    case TableFormat::text:
      break;
  }
  return aligned_table(rows, 2);
}

}  // namespace trireme::sweep
