// Runs as one HTML page that needs nothing else: no network, no other file.
#pragma once

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::report {

/// The page of `paths`: run folders, metrics.jsonl files, logs of Megatron-LM's; a folder whose
/// subfolders are run folders, as of a sweep, stands for those. Curves have every training line:
/// the page draws lowest and highest values of what is visible. Text of runs and decks is data that
/// the page shows as text. `progress` gets a progress meter, null nothing. Throws IoError and
/// DataError for what cannot be read.
std::string html_page(const std::vector<std::filesystem::path>& paths,
                      std::FILE* progress = nullptr);

using PageJson = nlohmann::ordered_json;

/// The data of a run folder, a metrics.jsonl or a log of Megatron-LM's, as report.js reads it: the
/// columns of training lines, evaluations and GPUs (base64 of f32 or f64), marks, the timeline.
/// `progress` gets a progress meter, null nothing.
/// Throws IoError for what cannot be read, and DataError where there is no training line.
PageJson run_json(const std::filesystem::path& path, std::FILE* progress);

/// The files of this folder and of third_party that a page consists of, as text.
namespace html {
extern const std::string_view kPage, kStyle, kScript;  ///< report.html, report.css, report.js
extern const std::string_view kUplot, kUplotCss;
}  // namespace html

}  // namespace trireme::report
