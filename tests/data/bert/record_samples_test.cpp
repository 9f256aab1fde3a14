#include "data/bert/bert_split.hpp"

#include <zlib.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "bert/bert_samples.hpp"
#include "core/files.hpp"

namespace trireme::data {
namespace {

// ---- writing, as TensorFlow and protobuf do

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
  return bytes += static_cast<char>(value);
}

std::string bytes_field(int field, const std::string& bytes) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(bytes.size()) + bytes;
}

/// An Int64List or FloatList, packed or one element after the other.
std::string list_of(const std::vector<double>& values, bool floats, bool packed) {
  std::string all;
  for (const double value : values) {
    std::string element;
    if (floats)
      append(element, static_cast<float>(value));
    else
      element = varint(static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
    all += packed ? element : varint(1 << 3 | (floats ? 5 : 0)) + element;
  }
  return packed ? bytes_field(1, all) : all;
}

using Lists = std::map<std::string, std::vector<double>>;

std::string example_of(const Lists& lists, bool packed = true,
                       const std::set<std::string>& swapped = {}) {
  std::string features;
  for (const auto& [name, values] : lists) {
    const bool floats = (name == "masked_lm_weights") != swapped.contains(name);
    const std::string feature = bytes_field(floats ? 2 : 3, list_of(values, floats, packed));
    features += bytes_field(1, bytes_field(1, name) + bytes_field(2, feature));
  }
  return bytes_field(1, features);
}

std::string record_of(const std::string& data) {
  std::string length;
  append(length, std::uint64_t{data.size()});
  std::string record = length;
  append(record, masked_crc32c(length));
  record += data;
  append(record, masked_crc32c(data));
  return record;
}

constexpr std::int64_t kRecordSequence = 8;

/// Example `i`: its number is its third token.
Lists lists_of(int i) {
  return {{"input_ids", {1, 3, 100.0 + i, 2, 50, 2, 0, 0}},
          {"input_mask", {1, 1, 1, 1, 1, 1, 0, 0}},
          {"segment_ids", {0, 0, 0, 0, 1, 1, 0, 0}},
          {"masked_lm_positions", {1, 4, 0}},
          {"masked_lm_ids", {77, 78, 0}},
          {"masked_lm_weights", {1, 1, 0}},
          {"next_sentence_labels", {static_cast<double>(i % 2)}}};
}

class RecordSamplesTest : public ScratchTest {
 protected:
  RecordSamplesTest() {
    config_.files = {file("a.tfrecord")};
    config_.sequence = kRecordSequence;
    config_.vocab = 1000;
    config_.shuffle = false;
  }

  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  void write(const std::string& name, int first, int count) {
    std::string bytes;
    for (int i = first; i < first + count; ++i) bytes += record_of(example_of(lists_of(i), i % 2));
    write_file_atomically(folder_ / name, bytes);
  }

  /// Expects an error that names a.tfrecord from a file of one good record and `record`.
  void expect_refused(const std::string& record, const std::string& text) {
    SCOPED_TRACE(text);
    write_file_atomically(folder_ / "a.tfrecord", record_of(example_of(lists_of(0))) + record);
    const auto [message, code] = error_of([&] {
      const auto samples = open_records(config_);
      read_sample(*samples, 0);
      read_sample(*samples, 1);
    });
    EXPECT_EQ(code, ExitCode::data) << message;
    EXPECT_NE(message.find(file("a.tfrecord") + "', record 1 at byte "), std::string::npos)
        << message;
    EXPECT_NE(message.find(text), std::string::npos) << message;
  }
  void expect_refused(const std::string& name, const std::vector<double>& values,
                      const std::string& text) {
    Lists lists = lists_of(1);
    lists[name] = values;
    expect_refused(record_of(example_of(lists)), text);
  }

  /// The numbers of samples [0, count).
  static std::vector<int> numbers(const Dataset& samples, std::int64_t count) {
    std::vector<int> found;
    for (std::int64_t i = 0; i < count; ++i)
      found.push_back(read_sample(samples, i).tokens()[2] - 100);
    return found;
  }

  RecordConfig config_;
};

TEST_F(RecordSamplesTest, ReadsExamples) {
  write("a.tfrecord", 0, 4);
  const auto samples = open_records(config_);
  EXPECT_EQ(samples->samples(), 4);
  for (int i = 0; i < 4; ++i) {
    const SampleBuffer sample = read_sample(*samples, i);
    EXPECT_EQ(sample.tokens(), (std::vector<std::int32_t>{1, 3, 100 + i, 2, 50, 2, 0, 0}));
    EXPECT_EQ(sample.types(), (std::vector<std::int32_t>{0, 0, 0, 0, 1, 1, 0, 0}));
    EXPECT_EQ(sample.labels(), (std::vector<std::int32_t>{-1, 77, -1, -1, 78, -1, -1, -1}));
    EXPECT_EQ(sample.length(), 6);
    EXPECT_EQ(sample.sentence_label(), i % 2);
  }
}

TEST_F(RecordSamplesTest, TakesListsPatternsAndGzip) {
  write("b_1.tfrecord", 0, 3);
  write("b_0.tfrecord", 3, 2);
  const std::string plain = read_file(folder_ / "b_1.tfrecord");
  // Two members one after the other, as `cat a.gz b.gz` gives.
  for (const auto& [from, to] :
       {std::pair{0, 100}, std::pair{100, static_cast<int>(plain.size())}}) {
    gzFile packed = gzopen(file("c.gz").c_str(), from == 0 ? "wb" : "ab");
    gzwrite(packed, plain.data() + from, static_cast<unsigned>(to - from));
    gzclose(packed);
  }
  config_.files = {file("b_*.tfrecord"), file("c.gz")};
  config_.index_cache = folder_ / "cache";
  EXPECT_EQ(numbers(*open_records(config_), 8), (std::vector<int>{3, 4, 0, 1, 2, 0, 1, 2}));
  // A process that does not build finds what the builder left.
  EXPECT_EQ(numbers(*open_records(config_, {.builds = false}), 8),
            (std::vector<int>{3, 4, 0, 1, 2, 0, 1, 2}));
  // A file that has changed is scanned again.
  write("b_0.tfrecord", 5, 4);
  EXPECT_EQ(numbers(*open_records(config_), 4), (std::vector<int>{5, 6, 7, 8}));

  config_.files = {file("none_*.tfrecord")};
  expect_error(ExitCode::deck, "no file matches", [&] { open_records(config_); });
  config_.files = {file("none.tfrecord")};
  expect_error(ExitCode::io, "none.tfrecord", [&] { open_records(config_); });
}

TEST_F(RecordSamplesTest, ShufflesEveryEpochAnewAndAlike) {
  write("a.tfrecord", 0, 37);
  config_.shuffle = true;
  config_.samples = 100;
  const auto samples = open_records(config_);
  const std::vector<int> order = numbers(*samples, 100);
  EXPECT_EQ(numbers(*open_records(config_), 100), order);
  const std::vector<int> first(order.begin(), order.begin() + 37);
  const std::vector<int> second(order.begin() + 37, order.begin() + 74);
  EXPECT_NE(first, second);
  for (std::vector<int> epoch : {first, second}) {
    EXPECT_FALSE(std::ranges::is_sorted(epoch));
    std::ranges::sort(epoch);
    std::vector<int> all(37);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(epoch, all);
  }
  config_.seed = 5;
  EXPECT_NE(numbers(*open_records(config_), 37), first);
}

TEST(Permuted, IsAUniformPermutation) {
  for (const std::int64_t n : {1, 2, 3, 4, 5, 16, 17, 100, 1000}) {
    std::set<std::int64_t> seen;
    for (std::int64_t k = 0; k < n; ++k) seen.insert(permuted(k, n, 1234, 7));
    EXPECT_EQ(std::ssize(seen), n);
    EXPECT_EQ(*seen.rbegin(), n - 1);
  }
  // Over epochs every element comes to every place alike: chi-square at 30 * 29 degrees of freedom.
  constexpr int kN = 30, kEpochs = 6000;
  std::vector<double> counts(kN * kN);
  for (int epoch = 0; epoch < kEpochs; ++epoch)
    for (int k = 0; k < kN; ++k)
      ++counts[static_cast<std::size_t>(k * kN + permuted(k, kN, 3, epoch))];
  double chi_square = 0;
  for (const double count : counts)
    chi_square += (count - kEpochs / kN) * (count - kEpochs / kN) / (kEpochs / kN);
  EXPECT_LT(chi_square, 1030);  // exceeded with a probability below 1e-4
  EXPECT_GT(chi_square, 720);
}

TEST_F(RecordSamplesTest, RefusesWhatIsNoExample) {
  const std::string good = example_of(lists_of(1));
  expect_refused("input_ids", {1, 2, 3}, "input_ids has 3 elements, model.sequence is 8");
  expect_refused("segment_ids", {0, 1}, "segment_ids has 2 elements, model.sequence is 8");
  expect_refused("input_ids", {1, 3, 1000, 2, 50, 2, 0, 0},
                 "input_ids has a 1000; expected 0 to 999");
  expect_refused("input_ids", {1, 3, -1, 2, 50, 2, 0, 0}, "input_ids has a -1; expected 0 to 999");
  expect_refused("segment_ids", {0, 0, 0, 0, 2, 1, 0, 0}, "segment_ids has a 2; expected 0 to 1");
  expect_refused("input_mask", {1, 1, 0, 1, 1, 1, 0, 0},
                 "input_mask is not ones followed by zeros");
  expect_refused("input_mask", {1, 1, 2, 0, 0, 0, 0, 0},
                 "input_mask is not ones followed by zeros");
  expect_refused("masked_lm_positions", {1, 6, 0}, "masked_lm_positions has a 6; expected 0 to 5");
  expect_refused("masked_lm_ids", {1, 2000, 0}, "masked_lm_ids has a 2000; expected 0 to 999");
  expect_refused("masked_lm_ids", {1}, "masked_lm_ids has 1 elements");
  expect_refused("masked_lm_weights", {1, 1}, "masked_lm_weights has 2 elements");
  expect_refused("masked_lm_weights", {1, 0.5, 0}, "masked_lm_weights has 0.5, expected 0 or 1");
  expect_refused("next_sentence_labels", {2}, "next_sentence_labels has a 2; expected 0 to 1");
  expect_refused("next_sentence_labels", {}, "next_sentence_labels has 0 elements");
  for (const auto& [name, values] : lists_of(1)) {
    Lists lists = lists_of(1);
    lists.erase(name);
    expect_refused(record_of(example_of(lists)), fmt::format("no feature '{}'", name));
    expect_refused(record_of(example_of(lists_of(1), true, {name})),
                   fmt::format("feature '{}' is not a list of {}", name,
                               name == "masked_lm_weights" ? "floats" : "whole numbers"));
  }
  expect_refused(record_of("not a message"), "not a tf.train.Example");
  expect_refused(record_of(std::string(12, '\xff')), "a number of more than 64 bits");
  config_.max_predictions = 20;
  write("a.tfrecord", 0, 1);
  expect_error(ExitCode::data,
               "masked_lm_positions has 3 elements, data.bert.max_predictions is 20",
               [&] { read_sample(*open_records(config_), 0); });
}

TEST_F(RecordSamplesTest, RefusesDamagedFiles) {
  const std::string good = record_of(example_of(lists_of(1)));
  std::string bad = good;
  bad[3] ^= 1;
  expect_refused(bad, "damaged: the checksum of its length is wrong");
  bad = good;
  bad[40] ^= 1;
  expect_refused(bad, "damaged: the checksum of its data is wrong");
  bad = good;
  bad.back() ^= 1;
  expect_refused(bad, "damaged: the checksum of its data is wrong");
  expect_refused(good.substr(0, 11), "truncated: its header needs 12 bytes, the file has 11");
  expect_refused(good.substr(0, good.size() - 1), "truncated: it needs");

  write_file_atomically(folder_ / "a.tfrecord", "some text that is no record");
  expect_error(ExitCode::data, "a.tfrecord', record 0 at byte 0: not a TFRecord file",
               [&] { open_records(config_); });
  write_file_atomically(folder_ / "a.tfrecord", "");
  expect_error(ExitCode::deck, "without a record", [&] { open_records(config_); });
  // gzip cut short, damaged, and with a foreign rest.
  for (const int damage : {0, 1, 2}) {
    gzFile packed = gzopen(file("a.tfrecord").c_str(), "wb");
    gzwrite(packed, good.data(), static_cast<unsigned>(good.size()));
    gzclose(packed);
    std::string bytes = read_file(folder_ / "a.tfrecord");
    if (damage == 0)
      bytes.resize(bytes.size() - 9);
    else if (damage == 1)
      bytes[bytes.size() - 6] ^= 1;  // its own checksum
    else
      bytes += "rest";
    write_file_atomically(folder_ / "a.tfrecord", bytes);
    expect_error(ExitCode::data, "a.tfrecord': broken gzip stream after",
                 [&] { open_records(config_); });
  }
}

// Whatever bytes are changed, cut or put in: a sample as it was, or one error of data or I/O.
TEST_F(RecordSamplesTest, SurvivesRandomDamage) {
  const std::string good = record_of(example_of(lists_of(0))) + record_of(example_of(lists_of(1)));
  const std::string message = example_of(lists_of(0), false);
  std::mt19937 random(1);
  const auto damage = [&](std::string bytes) {
    for (std::uint32_t times = 1 + random() % 3; times-- > 0 && !bytes.empty();) {
      const std::size_t at = random() % bytes.size();
      const std::uint32_t kind = random() % 3;
      if (kind == 0)
        bytes[at] = static_cast<char>(random());
      else if (kind == 1)
        bytes.resize(at);
      else
        bytes.insert(at, 1 + random() % 20, static_cast<char>(random()));
    }
    return bytes;
  };
  const std::filesystem::path path = folder_ / "a.tfrecord";
  for (int i = 0; i < 300; ++i) {
    std::ofstream(path, std::ios::binary) << damage(good);  // without a sync: hundreds are slow
    const auto [text, code] = error_of([&] {
      std::vector<RecordFile> files;
      files.emplace_back(path, path.string(), NpyArray(scan_records(path)));
      const RecordSamples samples(config_, std::move(files));
      for (const int number : numbers(samples, samples.samples())) EXPECT_LE(number, 1);
    });
    if (code == ExitCode::success || code == ExitCode::deck) continue;  // cut between records
    EXPECT_TRUE(code == ExitCode::data || code == ExitCode::io) << text;
    EXPECT_NE(text.find("a.tfrecord"), std::string::npos) << text;
  }
  // Damage that the checksums cover.
  SampleBuffer buffer(kRecordSequence);
  BertSample sample(buffer.tensors);
  for (int i = 0; i < 10000; ++i) {
    const auto [text, code] = error_of([&] {
      fill_sample(parse_pretraining_example(damage(message), "here"), config_, "here", sample);
    });
    EXPECT_TRUE(code == ExitCode::success || code == ExitCode::data) << text;
    EXPECT_TRUE(code != ExitCode::data || text.starts_with("here: ")) << text;
  }
}

}  // namespace
}  // namespace trireme::data
