// What the tests of BERT's samples share: vocabularies, samples as vectors, and the reference
// program.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "data/bert/sample.hpp"
#include "dataset_files.hpp"

namespace trireme::data {

/// [PAD] 0, [CLS] 1, [SEP] 2, [MASK] 3; of the `ids` ids, multiples of `continues` continue a word.
inline std::shared_ptr<const BertVocabulary> make_vocabulary(std::int64_t ids,
                                                             std::int64_t continues) {
  BertVocabulary vocabulary{.cls = 1, .sep = 2, .mask = 3, .pad = 0};
  for (std::int64_t id = 0; id < ids; ++id)
    vocabulary.continues_word.push_back(id % continues == 0);
  return std::make_shared<const BertVocabulary>(std::move(vocabulary));
}

/// The memory of one sample.
struct SampleBuffer {
  std::vector<std::vector<std::int32_t>> values;
  std::vector<std::span<std::int32_t>> tensors;

  explicit SampleBuffer(const std::vector<Field>& fields) {
    for (const Field& field : fields)
      values.emplace_back(static_cast<std::size_t>(field.size), -99);
    for (auto& value : values) tensors.emplace_back(value);
  }
  explicit SampleBuffer(std::int64_t sequence)
      : SampleBuffer(
            {{"", sequence, 0}, {"", sequence, 0}, {"", sequence, 0}, {"", 1, 0}, {"", 1, 0}}) {}

  const std::vector<std::int32_t>& tokens() const { return values[0]; }
  const std::vector<std::int32_t>& types() const { return values[1]; }
  const std::vector<std::int32_t>& labels() const { return values[2]; }
  std::int32_t length() const { return values[3][0]; }
  std::int32_t sentence_label() const { return values[4][0]; }
};

/// Sample `i` of `dataset`.
inline SampleBuffer read_sample(const Dataset& dataset, std::int64_t i) {
  SampleBuffer buffer(dataset.fields());
  dataset.read(i, buffer.tensors);
  return buffer;
}

/// Expects a sample to be one that reference.py printed.
inline void expect_sample(const SampleBuffer& found, const nlohmann::json& expected) {
  EXPECT_EQ(found.tokens(), expected["tokens"].get<std::vector<std::int32_t>>());
  EXPECT_EQ(found.types(), expected["types"].get<std::vector<std::int32_t>>());
  EXPECT_EQ(found.labels(), expected["labels"].get<std::vector<std::int32_t>>());
  EXPECT_EQ(found.length(), expected["length"].get<std::int32_t>());
  EXPECT_EQ(found.sentence_label(), expected["sentence_label"].get<std::int32_t>());
}

/// Runs reference.py, which writes `count` corpora to `folder`; its lines. None where this
/// machine's python3 has no numpy.
inline std::vector<nlohmann::json> run_reference(const std::string& kind,
                                                 const std::filesystem::path& folder, int count) {
  const std::string python = "/usr/bin/python3";
  if (std::system((python + " -c 'import numpy' 2>/dev/null").c_str()) != 0) return {};
  const std::string command =
      fmt::format("{} -B '{}' {} '{}' {}", python, golden("bert/reference.py").string(), kind,
                  folder.string(), count);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string output;
  for (int c = std::fgetc(pipe.get()); c != EOF; c = std::fgetc(pipe.get()))
    output += static_cast<char>(c);
  std::vector<nlohmann::json> lines;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  EXPECT_EQ(lines.size(), static_cast<std::size_t>(count)) << command;
  return lines;
}

/// The format of a reference line.
inline BertFormat format_of(const nlohmann::json& line) {
  BertFormat format{.sequence = line["sequence"],
                    .mask_probability = line["mask"],
                    .max_ngram = line["ngram"],
                    .vocabulary = make_vocabulary(line["ids"], line["continues"])};
  if (!line["max_predictions"].is_null()) format.max_predictions = line["max_predictions"];
  return format;
}

}  // namespace trireme::data
