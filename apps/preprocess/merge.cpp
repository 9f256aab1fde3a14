#include "data/prepare/merge.hpp"

#include "core/plural.hpp"
#include "preprocess/commands.hpp"

namespace trireme::preprocess {

po::options_description merge_options() {
  po::options_description options("merge");
  options.add_options()  //
      ("output", po::value<std::string>()->required()->value_name("PREFIX"),
       "the dataset to write: PREFIX.bin and PREFIX.idx, and PREFIX.json where all inputs have "
       "one");
  return options;
}

void merge(const po::variables_map& values) {
  std::vector<std::filesystem::path> inputs;
  if (values.count("words") > 0)
    for (const std::string& word : values["words"].as<std::vector<std::string>>())
      inputs.emplace_back(word);
  const auto output = values["output"].as<std::string>();
  const data::MergeSummary summary = data::merge_datasets(inputs, output);
  print_out(fmt::format("{}.{{bin,idx}}: {}, {}, {} from {}\n", output,
                        counted(summary.documents, "document"),
                        counted(summary.sequences, "sequence"), counted(summary.tokens, "token"),
                        counted(inputs.size(), "dataset")));
  if (summary.without_info)
    print_out(fmt::format("no {}.json: '{}' has none that names its tokenizer\n", output,
                          summary.without_info->string()));
}

}  // namespace trireme::preprocess
