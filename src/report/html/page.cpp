#include "report/html/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "deck/describe.hpp"
#include "deck/load.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

/// `paths`, with the runs in a folder of runs.
std::vector<fs::path> expand(const std::vector<fs::path>& paths) {
  std::vector<fs::path> runs;
  for (const fs::path& path : paths) {
    std::vector<fs::path> inside;
    if (fs::is_directory(path) && !fs::exists(path / "metrics.jsonl"))
      for (const fs::directory_entry& entry : fs::directory_iterator(path))
        if (fs::exists(entry.path() / "metrics.jsonl")) inside.push_back(entry.path());
    if (fs::is_directory(path) && !fs::exists(path / "metrics.jsonl") && inside.empty())
      throw IoError(
          "'{}' is no run folder: it has no metrics.jsonl, and none of its folders has one",
          path.string());
    std::sort(inside.begin(), inside.end());
    if (inside.empty()) inside = {path};
    runs.insert(runs.end(), inside.begin(), inside.end());
  }
  return runs;
}

/// The deck keys in which the runs differ, and each run's values.
PageJson deck_differences(const std::vector<fs::path>& runs) {
  std::vector<std::optional<deck::Deck>> decks;
  for (const fs::path& run : runs) {
    try {
      decks.emplace_back(deck::load((run / "deck.yaml").string(), {}, {.need_data = false}));
    } catch (const Error&) {  // a log, or a deck of another version
      decks.emplace_back();
    }
  }
  PageJson keys = PageJson::object();
  const auto first = std::find_if(decks.begin(), decks.end(), [](const auto& d) { return d; });
  if (first == decks.end()) return keys;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!decks[i]) continue;
    for (const deck::Change& change : deck::compare_for_restart(**first, *decks[i])) {
      if (change.key == "run.name" || change.key == "run.output") continue;
      PageJson& values = keys[change.key];
      if (values.is_null())
        for (const auto& each : decks)
          values.push_back(each ? PageJson(change.before) : PageJson());
      values[i] = change.after;
    }
  }
  return keys;
}

/// Names that tell runs apart: the last folders of their paths, as many as it takes.
std::vector<std::string> short_names(const std::vector<fs::path>& runs) {
  std::vector<std::string> names;
  for (int parts = 1; parts < 64; ++parts) {
    names.clear();
    for (const fs::path& run : runs) {
      fs::path name, rest = fs::absolute(run).lexically_normal();
      if (rest.filename().empty()) rest = rest.parent_path();
      for (int i = 0; i < parts && rest.has_filename(); ++i, rest = rest.parent_path())
        name = name.empty() ? rest.filename() : rest.filename() / name;
      names.push_back(name.string());
    }
    if (std::set<std::string>(names.begin(), names.end()).size() == names.size()) break;
  }
  return names;
}

std::string replaced(std::string text, std::string_view mark, std::string_view by) {
  const std::size_t at = text.find(mark);
  TRIREME_CHECK(at != std::string::npos, "the page has no {}", mark);
  return text.replace(at, mark.size(), by);
}

}  // namespace

std::string html_page(const std::vector<fs::path>& paths, std::FILE* progress) {
  const std::vector<fs::path> runs = expand(paths);
  const std::vector<std::string> names = short_names(runs);
  PageJson data{{"made", unix_time()}, {"runs", PageJson::array()}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    PageJson run = run_json(runs[i], progress);
    run["name"] = names[i];
    data["runs"].push_back(std::move(run));
  }
  data["keys"] = deck_differences(runs);
  // Nothing in the data can end the element that holds it.
  std::string text;
  for (const char c : data.dump(-1, ' ', false, PageJson::error_handler_t::replace))
    text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  std::string page(html::kPage);
  page = replaced(std::move(page), "/*uplot.css*/", html::kUplotCss);
  page = replaced(std::move(page), "/*report.css*/", html::kStyle);
  page = replaced(std::move(page), "/*uplot.js*/", html::kUplot);
  page = replaced(std::move(page), "/*report.js*/", html::kScript);
  return replaced(std::move(page), "/*data*/", text);
}

}  // namespace trireme::report
