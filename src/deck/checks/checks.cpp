#include "deck/checks/checks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deck/keys/schema.hpp"

namespace trireme::deck {

Place Checker::place_of(Paths paths) const {
  Place place;
  for (const std::string_view path : paths) {
    const auto given = given_.places.find(path);
    if (given == given_.places.end()) continue;
    if (place.line == 0 || given->second.source > 0) place = given->second;
    if (place.source > 0) break;
  }
  return place;
}

void Checker::require(bool holds, Paths paths, const std::function<std::string()>& message,
                      Suggestion suggestion) {
  const auto is_bad = [&](std::string_view path) { return given_.bad.contains(path); };
  if (holds || std::any_of(paths.begin(), paths.end(), is_bad)) return;
  problems_.add(place_of(paths), message() + override_that_leaves_out(paths, suggestion),
                suggestion == Suggestion::give_key);
}

std::string Checker::override_that_leaves_out(Paths paths, Suggestion suggestion) const {
  const bool leaves_out =
      suggestion == Suggestion::leave_out_first || suggestion == Suggestion::leave_out_one;
  if (!leaves_out || place_of(paths).source == 0) return "";
  const auto in_deck = [&](std::string_view path) {
    const auto given = given_.places.find(path);
    return given != given_.places.end() && given->second.source == 0 && find_key(path) != nullptr;
  };
  const auto end = suggestion == Suggestion::leave_out_one ? paths.end() : paths.begin() + 1;
  const auto found = std::find_if(paths.begin(), end, in_deck);
  return found == end ? "" : fmt::format(" ('{}=' takes it out of the deck)", *found);
}

void check_together(const Deck& deck, const Given& given, const LoadOptions& options,
                    Problems& problems) {
  Checker checker(deck, given, problems);
  checker.family();
  checker.model();
  checker.layout();
  checker.pipeline();
  checker.batch_and_length();
  checker.rampup();
  checker.skipped_data();
  checker.schedule();
  checker.tokenizer();
  checker.data(options);
  checker.evaluation_tasks();
  checker.bert();
  checker.llama();
  checker.checkpoints();
  checker.paths();
  checker.device();
  checker.mup();
  checker.spike();
  checker.optimizer();
  checker.fp8();
  checker.loss_scale();
  checker.recompute();
}

bool obeys_layout_rules(const Deck& deck) {
  Problems problems("", {});
  const Given given;
  Checker checker(deck, given, problems);
  checker.layout();
  checker.pipeline();
  checker.batch_and_length();
  checker.rampup();
  checker.bert();
  checker.llama();
  checker.optimizer();
  checker.fp8();
  checker.recompute();
  return problems.empty();
}

void Checker::tokenizer() {
  const Tokenizer& tokenizer = deck_.data.tokenizer;
  const auto is = [&](TokenizerType type) { return tokenizer.type == type; };
  struct Requirement {
    std::string_view path;
    bool given;
    bool used;
  };
  const bool gpt2 = is(TokenizerType::gpt2);
  const bool wordpiece = is(TokenizerType::wordpiece);
  const bool encdec = is(TokenizerType::encdec);
  const Requirement requirements[] = {
      {"data.tokenizer.vocab", tokenizer.vocab.has_value(),
       gpt2 || wordpiece || encdec || is(TokenizerType::whitespace)},
      {"data.tokenizer.merges", tokenizer.merges.has_value(), gpt2},
      {"data.tokenizer.model", tokenizer.model.has_value(),
       encdec || is(TokenizerType::sentencepiece) || is(TokenizerType::bpe)},
      {"data.tokenizer.lowercase", tokenizer.lowercase.has_value(), wordpiece},
  };
  for (const auto& [path, given, used] : requirements) {
    require(
        given || !used, {"data.tokenizer.type", path},
        [&, path = path] {
          // A vocabulary alone is mostly one of whole words.
          return fmt::format(
              "data.tokenizer.type = {} needs '{}'{}", name_of(*tokenizer.type), path,
              gpt2 && tokenizer.vocab ? "; a vocabulary of whole words, without merges, "
                                        "belongs to type 'whitespace'"
                                      : "");
        },
        Suggestion::give_key);
    require(
        !given || used, {path, "data.tokenizer.type"},
        [&, path = path] {
          return tokenizer.type ? fmt::format("data.tokenizer.type = {} has no use for '{}'",
                                              name_of(*tokenizer.type), path)
                                : fmt::format("'{}' needs data.tokenizer.type", path);
        },
        tokenizer.type ? Suggestion::another_value : Suggestion::give_key);
  }
  require(
      deck_.model.vocab || tokenizer.type,
      {"model.vocab", "data.tokenizer.type", "data.tokenizer", "data"},
      [] {
        return "missing key 'data.tokenizer.type': give it, or the size of the vocabulary in "
               "'model.vocab'";
      },
      Suggestion::give_key);
}

void Checker::data(const LoadOptions& options) {
  require(
      deck_.data.train || !options.need_data, {"data.train", "data"},
      [] { return fmt::format("missing key 'data.train': {}", find_key("data.train")->help); },
      Suggestion::give_key);
  const std::vector<double>& split = deck_.data.split;
  const double sum = std::accumulate(split.begin(), split.end(), 0.0);
  const std::string written = Codec<std::vector<double>>::write(split);
  require(split.size() <= 3 && sum > 0 && std::isfinite(sum), {"data.split"}, [&] {
    return fmt::format(
        "data.split = {}: give at most three weights, for train, valid and test, with a finite sum "
        "above 0 (try 969,30,1)",
        written);
  });
  require(has_valid_part(deck_) || !deck_.evaluate.every, {"evaluate.every", "data.split"}, [&] {
    return fmt::format(
        "evaluate.every = {} has nothing to evaluate: data.split = {} has no validation part (try "
        "969,30,1, or give data.valid)",
        write_length(*deck_.evaluate.every), written);
  });
  require(has_valid_part(deck_) || has_test_part(deck_) || !deck_.evaluate.tasks.empty() ||
              !deck_.evaluate.at_end,
          {"evaluate.at_end", "data.split"}, [&] {
            return fmt::format(
                "evaluate.at_end = true has nothing to evaluate: data.split = {} has no validation "
                "or test part (try 969,30,1, or give data.valid or data.test)",
                written);
          });
  struct Part {
    std::string_view path;
    const std::optional<Datasets>& datasets;
  };
  for (const auto& [path, datasets] : {Part{"data.train", deck_.data.train},
                                       {"data.valid", deck_.data.valid},
                                       {"data.test", deck_.data.test}}) {
    const bool mixed = datasets && (datasets->names.size() > 1 || !datasets->weights.empty());
    require(
        !mixed || !deck_.data.index_files, {"data.index_files", path},
        [&, path = path, &datasets = datasets] {
          return fmt::format(
              "data.index_files gives the indices of one dataset, but {} mixes {}; leave "
              "data.index_files out",
              path, datasets->names.size());
        },
        Suggestion::leave_out_first);
  }
}

void Checker::evaluation_tasks() {
  const Evaluate& evaluate = deck_.evaluate;
  if (evaluate.tasks.empty()) return;
  require(
      deck_.data.tokenizer.type.has_value(), {"evaluate.tasks", "data.tokenizer.type"},
      [] {
        return "evaluate.tasks needs 'data.tokenizer.type', which turns its texts into token ids";
      },
      Suggestion::give_key);
  for (const EvaluationTask& task : evaluate.tasks)
    require(task.every || evaluate.every || evaluate.at_end,
            {"evaluate.tasks", "evaluate.every", "evaluate.at_end"}, [&] {
              return fmt::format(
                  "evaluate.tasks: '{}' is never evaluated: give it `every`, or evaluate.every",
                  task.name);
            });
}

void Checker::checkpoints() {
  const Checkpoint& checkpoint = deck_.checkpoint;
  require(
      !checkpoint.keep_every || checkpoint.keep, {"checkpoint.keep_every", "checkpoint.keep"}, [&] {
        return fmt::format(
            "checkpoint.keep_every = {} has no effect while checkpoint.keep = all (try keep: 2)",
            write_length(*checkpoint.keep_every));
      });
  const LocalCheckpoint& local = checkpoint.local;
  require(local.path.has_value() == local.every.has_value(),
          {local.path ? "checkpoint.local.path" : "checkpoint.local.every", "checkpoint.local"},
          [&] {
            return fmt::format("checkpoint.local.{} without checkpoint.local.{}; give both or none",
                               local.path ? "path" : "every", local.path ? "every" : "path");
          });
  require(!local.partner || local.path, {"checkpoint.local.partner", "checkpoint.local"}, [] {
    return "checkpoint.local.partner = true has no effect without checkpoint.local.path; leave "
           "it out";
  });
}

void Checker::paths() {
  constexpr std::size_t kMaxPath = 4096;  // PATH_MAX of Linux
  const auto check = [&](std::string_view key, const std::string& path) {
    require(path != "~" && !path.starts_with("~/"), {key}, [&] {
      const char* home = std::getenv("HOME");
      return fmt::format("{} = {}: shells alone know '~': write {}{}", key, printable(path),
                         home ? home : "/home/NAME", printable(path.substr(1)));
    });
    require(path.size() < kMaxPath, {key}, [&] {
      return fmt::format("{} = {}: a path has at most {} bytes, not {}", key, printable(path),
                         kMaxPath - 1, path.size());
    });
  };
  const auto check_optional = [&](std::string_view key, const auto& path) {
    if (path) check(key, *path);
  };
  require(deck_.run.name != "." && deck_.run.name != "..", {"run.name"}, [&] {
    return fmt::format("run.name = {}: the run's folder is named after it; give another name",
                       deck_.run.name);
  });
  check("run.output", deck_.run.output);
  check_optional("data.tokenizer.vocab", deck_.data.tokenizer.vocab);
  check_optional("data.tokenizer.merges", deck_.data.tokenizer.merges);
  check_optional("data.tokenizer.model", deck_.data.tokenizer.model);
  check_optional("checkpoint.load", deck_.checkpoint.load);
  check_optional("checkpoint.local.path", deck_.checkpoint.local.path);
  for (const auto& [key, datasets] :
       {std::pair<std::string_view, const std::optional<Datasets>&>("data.train", deck_.data.train),
        {"data.valid", deck_.data.valid},
        {"data.test", deck_.data.test}})
    if (datasets)
      for (const std::string& name : datasets->names) check(key, name);
  if (deck_.data.corpora)
    for (const auto& each : deck_.data.corpora->prefixes) check("data.corpora", each.second);
}

void Checker::device() {
  const bool on_host = deck_.run.device == Device::host;
  require(
      !on_host || !deck_.comm.nccl_debug, {"comm.nccl_debug", "run.device"},
      [&] {
        return fmt::format("comm.nccl_debug = {} needs run.device = cuda; leave it out",
                           *deck_.comm.nccl_debug);
      },
      Suggestion::leave_out_first);
  // NCCL says nothing to a word that it does not know, and nothing else either.
  constexpr std::string_view kLevels[] = {"VERSION", "WARN", "INFO", "TRACE"};
  const std::string level = deck_.comm.nccl_debug.value_or("INFO");
  require(std::find(std::begin(kLevels), std::end(kLevels), level) != std::end(kLevels),
          {"comm.nccl_debug"}, [&] {
            return fmt::format("comm.nccl_debug = {}: allowed are {}", level,
                               fmt::join(kLevels, ", "));
          });
}

}  // namespace trireme::deck
