// What `trireme-report follow` shows of a run.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "report/follow/verdicts.hpp"

namespace trireme::report {

/// A run and the answers about it.
struct Page {
  std::string folder;
  RunState run;
  double now = 0;
  bool ended = false;  ///< nothing more is to come
  /// Is it running, are the GPUs busy, is there no error, is the deck what was asked?
  std::array<Verdict, 4> verdicts;
  std::vector<std::string> notes;  ///< stragglers, lines that could not be read

  /// Whether none of the answers is bad.
  bool well() const;
};

/// The page as text: progress, figures, GPUs, answers, notes; what is not known is "-". Lines end
/// in newlines. Words of judgement have colours where `colour` says so.
std::string to_text(const Page& page, bool colour);

}  // namespace trireme::report
