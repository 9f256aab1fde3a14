#include "sweep/figures.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/clock.hpp"

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
  std::optional<double> middle() const {
    const std::vector<double>& values = rest_.empty() ? first_ : rest_;
    return values.empty() ? std::nullopt : std::optional(median(values));
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
    }
  }

  Figures take() {
    figures_.ms = ms_.middle();
    figures_.samples_per_second = samples_.middle();
    figures_.tokens_per_second = tokens_.middle();
    figures_.mfu = mfu_.middle();
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

}  // namespace trireme::sweep
