// The variables of a script, and which of them its own assignments do not change.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::convert::shell {

/// Variables that are given beside the script: they win over its own assignments.
using Definitions = std::map<std::string, std::string, std::less<>>;

/// Values by name: a scalar has one element.
using Values = std::map<std::string, std::vector<std::string>, std::less<>>;

/// The variables at one place of a script, its arguments `$1`, `$@` and `$#` among them. Those of
/// the definitions are fixed: set(), append() and unset() leave them alone.
class Variables {
 public:
  /// Those of `definitions`, and what the script `file` is called. `environment` are variables that
  /// a script which starts this one has exported.
  Variables(const Definitions& definitions, const std::string& file,
            const Values& environment = {});

  const Values& values() const { return values_; }
  /// Whether anything is known of `name`; a mark (unknown.hpp) counts.
  bool contains(std::string_view name) const { return values_.contains(name); }
  bool has_arguments() const { return contains("1") || contains("@"); }

  void set(const std::string& name, std::vector<std::string> elements);
  /// `NAME+=( ... )`: puts `elements` behind those of the array.
  void append(const std::string& name, const std::vector<std::string>& elements);
  /// `NAME+=text`: puts `text` behind the scalar's.
  void append(const std::string& name, const std::string& text);
  void unset(const std::string& name);

  /// `export NAME`: programs that are started get the variable.
  void export_name(const std::string& name) { exported_.insert(name); }
  /// The variables that are exported.
  Values exported() const;

  /// Gives a function, or a script, that is called as `words`, its name first, arguments of its
  /// own; returns those of the caller, which restore_arguments() takes back.
  Values replace_arguments(const std::vector<std::string>& words);
  void restore_arguments(Values outer);

 private:
  Values values_;
  std::set<std::string, std::less<>> fixed_;
  std::set<std::string, std::less<>> exported_;
};

}  // namespace trireme::convert::shell
