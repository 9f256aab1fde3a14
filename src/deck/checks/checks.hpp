// Checks that involve more than one key. Each names the keys and a value that works.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "deck/deck.hpp"
#include "deck/load.hpp"
#include "deck/value.hpp"

namespace trireme::deck {

/// Where the values were given, and which are bad.
struct Given {
  std::map<std::string, Place, std::less<>> places;  ///< of keys and sections
  std::set<std::string, std::less<>> bad;            ///< keys that have an error
};

/// Adds a problem for each rule that the values break. Rules that involve a bad key are left out.
void check_together(const Deck& deck, const Given& given, const LoadOptions& options,
                    Problems& problems);

/// Adds a problem for each rule that the values of a deck break.
class Checker {
 public:
  /// `given` tells which keys the deck has, and where. All must outlive this.
  Checker(const Deck& deck, const Given& given, Problems& problems)
      : deck_(deck), given_(given), problems_(problems) {}

  // Each looks at the keys of its name, and at those of other sections that they must fit.
  void model();
  void layout();
  void pipeline();
  void batch_and_length();
  void rampup();
  void skipped_data();
  void schedule();
  void range_test();
  void tokenizer();
  /// Without options.need_data a deck need not name its data.
  void data(const LoadOptions& options);
  void evaluation_tasks();
  /// Keys that belong to another family than the deck's.
  void family();
  /// What BERT needs, and what it has no use for.
  void bert();
  /// What Llama needs, and what it has no use for.
  void llama();
  void checkpoints();
  /// Names of files and folders, in which '~' stands for no home.
  void paths();
  void device();
  void mup();
  void spike();
  void optimizer();
  void fp8();
  void loss_scale();
  void recompute();

 private:
  using Paths = std::initializer_list<std::string_view>;

  void gpu_kernels();
  void bert_model();
  void bert_samples();
  void position();

  /// The override that gives one of `paths`, else the first of them that the deck gives.
  Place place_of(Paths paths) const;

  /// What a message suggests: another value, to leave out the first of the paths or any one, or to
  /// give a key that is missing.
  enum class Suggestion { another_value, leave_out_first, leave_out_one, give_key };

  /// Reports `message` unless the rule holds or one of the keys is itself bad.
  void require(bool holds, Paths paths, const std::function<std::string()>& message,
               Suggestion suggestion = Suggestion::another_value);

  /// Where an override breaks the rule and `suggestion` is to leave out one of `paths` that the
  /// deck has: the override that does. Else "".
  std::string override_that_leaves_out(Paths paths, Suggestion suggestion) const;

  const Deck& deck_;
  const Given& given_;
  Problems& problems_;
};

/// A key whose value does not fit others, and a line that says so.
struct BatchProblem {
  std::string_view key;
  std::string text;
};

/// Why batch.global, or a batch.rampup all of which is given, does not fit `data` copies of the
/// model or the length of the run; nothing when they do.
std::optional<BatchProblem> batch_problem(const Deck& deck, std::int64_t data);

/// Whether a deck that a run accepts breaks no rule with another layout, micro-batch or
/// recomputation.
bool obeys_layout_rules(const Deck& deck);

}  // namespace trireme::deck
