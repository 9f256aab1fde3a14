#include "checkpoint/file.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/files.hpp"
#include "one_rank.hpp"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

class InspectTest : public OneRankTest {};

double known_sum_of_squares(const ShardedTensors::Logical& tensor, std::int64_t version) {
  double sum = 0;
  for (std::int64_t i = 0; i < tensor.shape.size(); ++i) {
    const double exact = known_value(tensor.name, i, version);
    const double stored = tensor.dtype == DType::f64 ? exact : static_cast<float>(exact);
    sum += stored * stored;
  }
  return sum;
}

/// The program's standard output.
std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string output;
  for (int c = std::fgetc(pipe.get()); c != EOF; c = std::fgetc(pipe.get()))
    output += static_cast<char>(c);
  return output;
}

TEST_F(InspectTest, JsonHasEverything) {
  const json found = json::parse(describe(save_step(5), true));
  EXPECT_EQ(found["attributes"],
            json({{"format_version", 2}, {"iteration", 5}, {"program", "trireme"}}));
  EXPECT_EQ(found["deck"], kOneRankDeck);
  ASSERT_EQ(found["tensors"].size(), small_model().size());
  for (const ShardedTensors::Logical& tensor : small_model()) {
    bool listed = false;
    for (const json& row : found["tensors"]) {
      if (row["name"] != tensor.name) continue;
      listed = true;
      EXPECT_EQ(row["shape"].size(), static_cast<std::size_t>(tensor.shape.rank()));
      EXPECT_EQ(row["shape"][0], tensor.shape[0]);
      EXPECT_EQ(row["dtype"], name_of(tensor.dtype));
      EXPECT_EQ(row["checksum"].get<std::string>().size(), 16u);
      EXPECT_NEAR(row["sum_of_squares"], known_sum_of_squares(tensor, 5), 1e-9);
    }
    EXPECT_TRUE(listed) << tensor.name;
  }
}

TEST_F(InspectTest, TextIsForPeople) {
  const std::string text = describe(save_step(5), false);
  for (const char* part : {"7 tensors, 1620 elements", "every checksum is right", "iteration",
                           "model/layers/10/mlp/down/weight      [12, 48]", "fp64", "layers: 2"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
}

TEST_F(InspectTest, DamageIsFound) {
  const std::filesystem::path path = save_step(5);
  std::string content = read_file(path);
  const auto value = static_cast<float>(known_value("model/embedding/word", 50, 5));
  const std::size_t at =
      content.find(std::string(reinterpret_cast<const char*>(&value), sizeof value));
  ASSERT_NE(at, std::string::npos);
  content[at] = static_cast<char>(content[at] ^ 1);
  write_file_atomically(path, content);
  EXPECT_THROW(describe(path, true), DataError);
}

TEST_F(InspectTest, H5pySeesTheLogicalTensors) {
  const std::string python = "/usr/bin/python3";
  if (std::system((python + " -c 'import h5py' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << python << " has no h5py (Debian: python3-h5py)";
  const std::filesystem::path path = save_step(5);
  write_file_atomically(folder_ / "list.py", R"(
import h5py, json, sys
found = {}
with h5py.File(sys.argv[1], 'r') as file:
    def visit(name, item):
        if isinstance(item, h5py.Dataset) and name != 'deck':
            data = item[...].astype('f8')
            found[name] = {'shape': list(data.shape), 'dtype': str(item.dtype),
                           'sum': float((data * data).sum())}
    file.visititems(visit)
    print(json.dumps({'tensors': found, 'deck': file['deck'][()].decode(),
                      'iteration': int(file.attrs['iteration'])}))
)");
  const json seen =
      json::parse(output_of(python + " " + (folder_ / "list.py").string() + " " + path.string()));
  EXPECT_EQ(seen["iteration"], 5);
  EXPECT_EQ(seen["deck"], kOneRankDeck);
  ASSERT_EQ(seen["tensors"].size(), small_model().size());
  for (const ShardedTensors::Logical& tensor : small_model()) {
    ASSERT_TRUE(seen["tensors"].contains(tensor.name)) << tensor.name;
    const json& row = seen["tensors"][tensor.name];
    json shape = json::array();
    for (int axis = 0; axis < tensor.shape.rank(); ++axis) shape.push_back(tensor.shape[axis]);
    EXPECT_EQ(row["shape"], shape) << tensor.name;
    EXPECT_EQ(row["dtype"], tensor.dtype == DType::f64 ? "float64" : "float32");
    EXPECT_NEAR(row["sum"], known_sum_of_squares(tensor, 5), 1e-9) << tensor.name;
  }
}

}  // namespace
}  // namespace trireme::checkpoint
