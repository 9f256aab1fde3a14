#include "report/follow/slurm.hpp"

#include <algorithm>
#include <cctype>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/shell.hpp"

namespace trireme::report {
namespace {

/// The value of `key` in " A=1 B=some words C=2": up to the next word that is a key.
std::string value_of(const std::string& line, const std::string& key) {
  const std::string begin = fmt::format(" {}=", key);
  const std::size_t found = line.find(begin);
  if (found == std::string::npos) return "";
  const std::string_view rest = std::string_view(line).substr(found + begin.size());
  for (std::size_t space = rest.find(' '); space != std::string_view::npos;
       space = rest.find(' ', space + 1)) {
    const std::string_view next = rest.substr(space + 1);
    const std::size_t word =
        std::find_if_not(next.begin(), next.end(),
                         [](unsigned char c) { return std::isalnum(c) || c == '/' || c == ':'; }) -
        next.begin();
    if (word > 0 && word < next.size() && next[word] == '=')
      return std::string(rest.substr(0, space));
  }
  return std::string(rest);
}

}  // namespace

bool is_job_id(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0) return false;
  if (digits == text.size()) return true;
  const std::string_view part = text.substr(digits + 1);
  return (text[digits] == '_' || text[digits] == '+') && !part.empty() &&
         part.find_first_not_of("0123456789") == std::string_view::npos;
}

SlurmJob parse_job(const std::string& id, const std::string& output) {
  const std::string line = fmt::format(" {}", output.substr(0, output.find('\n')));
  const std::string state = value_of(line, "JobState");
  if (state.empty())
    throw DataError("Slurm tells nothing of job {}:{}; name the run folder instead", id,
                    line == " " ? " no answer" : line);
  const bool several = output.find("\nJobId=") != std::string::npos;
  if (several && !value_of(line, "ArrayJobId").empty())
    throw DataError("job {} is an array: name one of its jobs, such as {}_0", id, id);
  return {.state = {id, state, value_of(line, "Reason")},
          .directory = value_of(line, "WorkDir"),
          .out = value_of(line, "StdOut"),
          .err = value_of(line, "StdErr")};
}

SlurmJob find_job(const std::string& id) {
  TRIREME_CHECK(is_job_id(id), "'{}' is no job", id);  // a shell will read it
  return parse_job(id, ask_shell("scontrol show job -o " + id + " 2>&1").output);
}

std::filesystem::path run_folder_of(const SlurmJob& job) {
  const std::string key = "run folder ";
  std::string text;
  try {
    text = read_file(job.out);
  } catch (const IoError& error) {
    throw DataError("job {} is {}, and its output names no run folder: {}", job.state.id,
                    job.state.state, error.what());
  }
  for (std::size_t at = text.rfind(key); at != std::string::npos; at = text.rfind(key, at - 1)) {
    // srun --label has the task's number before it, mpirun --tag-output the rank's.
    const std::size_t line = text.rfind('\n', at) + 1;
    const std::string_view label(text.data() + line, at - line);
    if (!label.empty() && !label.ends_with(": ") && !label.ends_with(">:")) continue;
    const std::size_t begin = at + key.size();
    return job.directory / text.substr(begin, text.find_first_of("\r\n", begin) - begin);
  }
  throw DataError("job {} is {}, and its output '{}' names no run folder (yet)", job.state.id,
                  job.state.state, job.out.string());
}

}  // namespace trireme::report
