#include <charconv>

#include "core/plural.hpp"
#include "data/prepare/split_lines.hpp"
#include "data/split.hpp"
#include "preprocess/commands.hpp"

namespace trireme::preprocess {
namespace {

std::vector<double> parse_fractions(const std::string& text) {
  std::vector<double> fractions;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    double fraction = 0;
    const auto [stop, error] =
        std::from_chars(text.data() + at, text.data() + end, fraction, std::chars_format::fixed);
    if (error != std::errc() || stop != text.data() + end)
      throw UsageError("--fractions {}: expected numbers, such as 0.95,0.04,0.01", text);
    fractions.push_back(fraction);
    at = end + 1;
  }
  return fractions;
}

}  // namespace

po::options_description split_options() {
  po::options_description options("split");
  options.add_options()  //
      ("input",
       po::value<std::vector<std::string>>()->required()->multitoken()->value_name("FILE..."),
       "JSON lines, packed or not")  //
      ("output", po::value<std::string>()->required()->value_name("DIR"),
       "folder for train.jsonl, valid.jsonl and test.jsonl, and the .lines that say where each "
       "line came from")  //
      ("fractions", po::value<std::string>()->required()->value_name("A,B,C"),
       "of train, valid and test")  //
      ("seed", po::value<std::int64_t>()->default_value(1234)->value_name("N"),
       "decides which line goes where");
  return options;
}

void split(const po::variables_map& values) {
  data::LineSplitOptions work;
  work.inputs = values["input"].as<std::vector<std::string>>();
  work.folder = values["output"].as<std::string>();
  work.fractions = parse_fractions(values["fractions"].as<std::string>());
  work.seed = values["seed"].as<std::int64_t>();
  const data::LineCounts counts = data::split_lines(work);
  for (std::size_t part = 0; part < counts.size(); ++part)
    if (counts[part] > 0)
      print_out(fmt::format("{}/{}.jsonl: {}\n", work.folder.string(),
                            data::name_of(static_cast<data::Split>(part)),
                            counted(counts[part], "line")));
}

}  // namespace trireme::preprocess
