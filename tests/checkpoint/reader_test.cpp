#include "checkpoint/file.hpp"

#include <hdf5.h>
#include <sys/stat.h>

#include <fstream>
#include <random>

#include "../message_of.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "one_rank.hpp"

namespace trireme::checkpoint {
namespace {

class ReaderTest : public OneRankTest {
 protected:
  /// Expects that opening `path` throws DataError with `part` in its text.
  static void expect_refused(const std::filesystem::path& path, const std::string& part) {
    try {
      const Reader reader(path);
      FAIL() << "was opened";
    } catch (const DataError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
      EXPECT_NE(text.find(path.string()), std::string::npos) << text;
    }
  }

  /// Writes a file without syncing it: these tests write many.
  static void write_quickly(const std::filesystem::path& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  }

  /// Opens `path` for writing with HDF5 and runs `change` on it.
  template <typename Change>
  static void edit(const std::filesystem::path& path, Change&& change) {
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    ASSERT_GE(file, 0);
    change(file);
    H5Fclose(file);
  }

  /// Reads every tensor of `path` and returns whether all have the known values of `version`.
  static bool reads_as(const std::filesystem::path& path, std::int64_t version) {
    const Reader reader(path);
    ShardedTensors sharded(small_model(), Sharding::first_rank, 0, 1);
    const Attributes attributes = {{"format_version", kFormatVersion},
                                   {"iteration", version},
                                   {"program", std::string("trireme")}};
    if (reader.header().tensors.size() != sharded.tensors.size() ||
        reader.header().attributes != attributes || reader.header().deck != kOneRankDeck)
      return false;
    for (const LocalTensor& tensor : sharded.tensors)
      reader.read_whole(tensor.name, tensor.dtype, tensor.pieces[0].data);
    return sharded.first_difference(version).empty();
  }
};

TEST_F(ReaderTest, ReadsWholeTensorsAndParts) {
  const std::filesystem::path path = save_step(3);
  EXPECT_TRUE(reads_as(path, 3));
  const Reader reader(path);
  const TensorInfo* word = reader.header().find("model/embedding/word");
  ASSERT_NE(word, nullptr);
  std::vector<float> part(6);
  reader.read(*word, {{4, 1, 10, 2}, {5, 2, 0, 2}}, part.data());
  const std::int64_t indices[] = {58, 59, 60, 61, 72, 73};
  for (std::size_t i = 0; i < part.size(); ++i)
    EXPECT_EQ(part[i], static_cast<float>(known_value(word->name, indices[i], 3)));
  EXPECT_THROW(reader.read_whole("model/absent", DType::f32, part.data()), DataError);
  EXPECT_THROW(reader.read_whole("model/embedding/word", DType::f64, part.data()), DataError);
}

TEST_F(ReaderTest, NewerVersionsAreRefused) {
  const std::filesystem::path path = save_step(3);
  edit(path, [](hid_t file) {
    const hid_t attribute = H5Aopen(file, "format_version", H5P_DEFAULT);
    const std::int64_t version = 99;
    EXPECT_GE(H5Awrite(attribute, H5T_NATIVE_INT64, &version), 0);
    H5Aclose(attribute);
  });
  expect_refused(path, "has format version 99; this program reads versions up to 2");
}

TEST_F(ReaderTest, ForeignHdf5FilesAreRefused) {
  const std::filesystem::path path = save_step(3);
  edit(path, [](hid_t file) { H5Adelete(file, "format_version"); });
  expect_refused(path, "not a checkpoint of Trireme: it has no attribute 'format_version'");
  save_step(3);
  edit(path, [](hid_t file) { H5Ldelete(file, "deck", H5P_DEFAULT); });
  expect_refused(path, "'deck'");
  save_step(3);
  edit(path, [](hid_t file) {
    H5Adelete_by_name(file, "model/embedding/word", "checksum", H5P_DEFAULT);
  });
  expect_refused(path, "'checksum'");
  save_step(3);
  edit(path, [](hid_t file) {
    const hsize_t extents[] = {2, 2, 2};
    const hid_t space = H5Screate_simple(3, extents, nullptr);
    H5Dclose(
        H5Dcreate2(file, "cube", H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(space);
  });
  expect_refused(path, "'cube' has 3 axes, not 1 or 2");
  save_step(3);
  edit(path, [](hid_t file) {
    const hsize_t extents[] = {std::uint64_t{1} << 40, 1024};
    const hid_t space = H5Screate_simple(2, extents, nullptr);
    H5Dclose(
        H5Dcreate2(file, "vast", H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(space);
  });
  expect_refused(path, "'vast' [1099511627776, 1024] stores 0 bytes");
  save_step(3);
  edit(path, [](hid_t file) {
    const hsize_t extents[] = {0};
    const hid_t space = H5Screate_simple(1, extents, nullptr);
    H5Dclose(
        H5Dcreate2(file, "void", H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(space);
  });
  expect_refused(path, "'void' [0] has no elements");
}

TEST_F(ReaderTest, MissingAttributesAreNamedWithTheFile) {
  const std::filesystem::path path = save_step(3);
  const Header header = read_header(path);
  EXPECT_EQ(message_of<DataError>([&] { header.get<double>("absent"); }),
            "'" + path.string() + "': the checkpoint has no attribute 'absent'");
  EXPECT_EQ(message_of<DataError>([&] { header.get<double>("iteration"); }),
            "'" + path.string() + "': the checkpoint's attribute 'iteration' has another type");
}

TEST_F(ReaderTest, OnlyRegularFilesAreOpened) {
  std::filesystem::create_directories(folder_);
  const std::filesystem::path fifo = folder_ / "fifo.h5", zeros = folder_ / "zeros.h5";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", zeros);
  EXPECT_EQ(message_of<IoError>([&] { Reader reader(fifo); }),
            "'" + fifo.string() + "' is not a regular file but a FIFO");
  EXPECT_EQ(message_of<IoError>([&] { Reader reader(zeros); }),
            "'" + zeros.string() + "' is not a regular file but a device");
}

/// With a tensor that is large enough to be compressed.
std::vector<ShardedTensors::Logical> compressible_model() {
  auto model = small_model();
  model.push_back({"model/large", {160, 128}});
  return model;
}

/// Flips bytes of a checkpoint, compressed or not.
class FlippedByteTest : public ReaderTest, public testing::WithParamInterface<int> {};

TEST_P(FlippedByteTest, IsNamed) {
  const auto model = GetParam() > 0 ? compressible_model() : small_model();
  const std::filesystem::path path = save_step(3, GetParam(), model);
  EXPECT_EQ(verify(path).tensors, model.size());
  const std::string good = read_file(path);
  const std::filesystem::path bad = folder_ / "bad.h5";
  std::mt19937 random(20240917);
  int in_structure = 0, in_tensors = 0;
  constexpr int kTrials = 1000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::string content = good;
    // The first and the last bytes, then any.
    const std::size_t at = trial < 64    ? static_cast<std::size_t>(trial)
                           : trial < 128 ? content.size() - 1 - static_cast<std::size_t>(trial - 64)
                                         : random() % content.size();
    const auto flip = static_cast<char>(trial % 2 == 0 ? 1 << random() % 8 : 1 + random() % 255);
    content[at] = static_cast<char>(content[at] ^ flip);
    write_quickly(bad, content);
    const std::string message = message_of<DataError>([&] { verify(bad); });
    bool names_tensor = false;
    for (const ShardedTensors::Logical& tensor : model)
      names_tensor = names_tensor || message.find("'" + tensor.name + "'") != std::string::npos;
    in_tensors += names_tensor;
    const bool names_structure = message.find("its structure is damaged") != std::string::npos;
    in_structure += names_structure;
    EXPECT_TRUE(names_tensor || names_structure ||
                message.find("is not a readable checkpoint") != std::string::npos)
        << "byte " << at << " of " << good.size() << ": " << message;
  }
  EXPECT_GT(in_structure, kTrials / 10);
  EXPECT_GT(in_tensors, kTrials / 10);
}

INSTANTIATE_TEST_SUITE_P(Compression, FlippedByteTest, testing::Values(0, 6));

TEST_F(ReaderTest, Hdf5ReadsCompressedTensors) {
  const std::filesystem::path path = save_step(3, /*compression=*/9, compressible_model());
  ShardedTensors sharded(compressible_model(), Sharding::first_rank, 0, 1);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  for (const LocalTensor& tensor : sharded.tensors) {
    const hid_t dataset = H5Dopen2(file, tensor.name.c_str(), H5P_DEFAULT);
    const hid_t creation = H5Dget_create_plist(dataset);
    const bool large = tensor.name == "model/large";
    EXPECT_EQ(H5Pget_nfilters(creation), large ? 2 : 0);
    EXPECT_GE(H5Dread(dataset, tensor.dtype == DType::f64 ? H5T_NATIVE_DOUBLE : H5T_NATIVE_FLOAT,
                      H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.pieces[0].data),
              0);
    H5Pclose(creation);
    H5Dclose(dataset);
  }
  H5Fclose(file);
  EXPECT_EQ(sharded.first_difference(3), "");
}

TEST_F(ReaderTest, FilesOfVersion1HaveNoChecksumOfTheStructureAndLoad) {
  const std::filesystem::path path = save_step(3);
  ShardedTensors sharded(small_model(), Sharding::first_rank, 0, 1);
  sharded.fill(3);
  edit(path, [&](hid_t file) {
    const auto write = [&](const char* object, const char* name, hid_t type, const void* value) {
      const hid_t holder = H5Oopen(file, object, H5P_DEFAULT);
      const hid_t attribute = H5Aopen(holder, name, H5P_DEFAULT);
      EXPECT_GE(H5Awrite(attribute, type, value), 0);
      H5Aclose(attribute);
      H5Oclose(holder);
    };
    for (const LocalTensor& tensor : sharded.tensors) {
      const std::uint64_t sum = checksum(/*version=*/1, tensor.shape, tensor.dtype,
                                         tensor.pieces[0].slabs, tensor.pieces[0].data);
      write(tensor.name.c_str(), "checksum", H5T_NATIVE_UINT64, &sum);
    }
    const std::int64_t version = 1;
    write("/", "format_version", H5T_NATIVE_INT64, &version);
  });
  EXPECT_FALSE(verify(path).structure);
  ShardedTensors read(small_model(), Sharding::columns, 0, 1);
  load(path, *world_, read.tensors);
  EXPECT_EQ(read.first_difference(3), "");
}

TEST_F(ReaderTest, NoTruncationGoesUnnoticed) {
  const std::filesystem::path path = save_step(3);
  const std::string good = read_file(path);
  const std::filesystem::path bad = folder_ / "bad.h5";
  for (std::size_t size = 0; size < good.size(); size += 1 + good.size() / 100) {
    write_quickly(bad, good.substr(0, size));
    EXPECT_THROW(Reader{bad}, DataError) << size << " of " << good.size() << " bytes";
  }
}

}  // namespace
}  // namespace trireme::checkpoint
