// Runs as one HTML page that needs nothing else: no network, no other file.
#pragma once

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::report {

/// The page of `paths`: run folders, metrics.jsonl files, logs of Megatron-LM's; a folder whose
/// subfolders are run folders, as of a sweep, stands for those. Curves have every training line:
/// the page draws lowest and highest values of what is visible. Text of runs and decks is data that
/// the page shows as text. `progress` gets a progress meter, null nothing. A run without a training
/// line, such as one that starts up, is left out, and `warn` gets a message that names it. Throws
/// IoError and DataError for what cannot be read, and DataError where no run has a training line.
std::string html_page(
    const std::vector<std::filesystem::path>& paths, std::FILE* progress = nullptr,
    const std::function<void(const std::string& message)>& warn = [](const std::string&) {});

using PageJson = nlohmann::ordered_json;

/// The data of a run folder, a metrics.jsonl or a log of Megatron-LM's, as report.js reads it: the
/// columns of training lines, evaluations and GPUs (base64 of f32 or f64), marks, the timeline.
/// `progress` gets a progress meter, null nothing.
/// Throws IoError for what cannot be read.
PageJson run_json(const std::filesystem::path& path, std::FILE* progress);

/// The files of this folder and of third_party that a page consists of, as text.
namespace html {
extern const std::string_view kPage, kStyle, kScript;  ///< report.html, report.css, report.js
extern const std::string_view kUplot, kUplotCss;
}  // namespace html

// The numbers of a page, packed as base64: columns that grow with a run, and images of many ranks.

/// What has no value.
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// `size` bytes in base64 (RFC 4648).
inline std::string base64(const void* data, std::size_t size) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::string text;
  text.reserve((size + 2) / 3 * 4);
  for (std::size_t i = 0; i < size; i += 3) {
    const auto at = [&](std::size_t j) { return i + j < size ? std::uint32_t{bytes[i + j]} : 0; };
    const std::uint32_t word = at(0) << 16 | at(1) << 8 | at(2);
    for (const int shift : {18, 12, 6, 0}) text += kDigits[word >> shift & 63];
  }
  if (size % 3 > 0) text.replace(text.size() - (3 - size % 3), 3 - size % 3, 3 - size % 3, '=');
  return text;
}

/// Numbers in the order of bytes of this machine, which is that of browsers.
template <typename Element>
std::string pack(const std::vector<double>& values) {
  std::vector<Element> packed(values.begin(), values.end());
  return base64(packed.data(), packed.size() * sizeof(Element));
}

/// Columns of numbers that grow together, by name; NaN where a row has no value.
class Columns {
 public:
  void begin_row() { ++rows_; }
  void set(const char* name, double value) {
    std::vector<double>& column = columns_[name];
    column.resize(rows_, kUnknown);
    column.back() = value;
  }
  std::size_t rows() const { return rows_; }

  /// Columns that have a value; those in `exact` in double precision.
  PageJson json(const std::set<std::string>& exact) const {
    PageJson json{{"rows", rows_}};
    for (auto [name, column] : columns_) {
      column.resize(rows_, kUnknown);
      if (std::all_of(column.begin(), column.end(), [](double x) { return std::isnan(x); }))
        continue;
      if (exact.count(name) > 0)
        json["f64"][name] = pack<double>(column);
      else
        json["f32"][name] = pack<float>(column);
    }
    return json;
  }

 private:
  std::size_t rows_ = 0;
  std::map<std::string, std::vector<double>> columns_;
};

/// Values of many ranks or GPUs over the run, as an image of at most `kMaxColumns` columns:
/// neighbouring events become their mean.
class HeatMap {
 public:
  void add(double x, std::vector<double> values) {
    rows_ = std::max(rows_, values.size());
    x_.push_back(x);
    columns_.push_back(std::move(values));
    if (columns_.size() >= 2 * kMaxColumns) halve();
  }
  bool empty() const { return columns_.empty(); }

  PageJson json(const std::vector<std::string>& labels) {
    while (columns_.size() > kMaxColumns) halve();
    std::vector<double> values;
    for (std::vector<double>& column : columns_) {
      column.resize(rows_, kUnknown);
      values.insert(values.end(), column.begin(), column.end());
    }
    return {{"rows", rows_},
            {"columns", columns_.size()},
            {"x", x_},
            {"labels", labels},
            {"values", pack<float>(values)}};
  }

 private:
  static constexpr std::size_t kMaxColumns = 400;

  void halve() {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < columns_.size(); i += 2, ++kept) {
      std::vector<double> merged = columns_[i];
      if (i + 1 < columns_.size())
        for (std::size_t row = 0; row < std::min(merged.size(), columns_[i + 1].size()); ++row)
          merged[row] = (merged[row] + columns_[i + 1][row]) / 2;
      columns_[kept] = std::move(merged);
      x_[kept] = x_[i];
    }
    columns_.resize(kept);
    x_.resize(kept);
  }

  std::size_t rows_ = 0;
  std::vector<double> x_;
  std::vector<std::vector<double>> columns_;
};

}  // namespace trireme::report
