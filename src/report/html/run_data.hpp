// What a page knows of a run: numbers packed as base64, marks, timelines.
#pragma once

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace trireme::report {

using PageJson = nlohmann::ordered_json;

/// The data of a run folder, a metrics.jsonl or a log of Megatron-LM's, as report.js reads it: the
/// columns of training lines, evaluations and GPUs (base64 of f32 or f64), marks, the timeline.
/// `progress` gets a progress meter, null nothing.
/// Throws IoError for what cannot be read, and DataError where there is no training line.
PageJson run_json(const std::filesystem::path& path, std::FILE* progress);

}  // namespace trireme::report
