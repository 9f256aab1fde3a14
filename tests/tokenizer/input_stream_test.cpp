#include "tokenizer/preprocess/preprocess.hpp"

#include <random>

#include "fixture.hpp"
#include "packed.hpp"

namespace trireme::tokenizer {
namespace {

using Members = std::vector<Member>;  // names and contents

Members read_all(const std::string& input) {
  InputStream stream(input);
  Members texts;
  std::string buffer(1000, '\0');
  while (stream.next()) {
    texts.emplace_back(stream.name(), "");
    while (const std::size_t got = stream.read(buffer.data(), buffer.size()))
      texts.back().second.append(buffer, 0, got);
  }
  return texts;
}

struct Packing {
  const char* ending;
  int filter;
};
constexpr Packing kPackings[] = {{".gz", ARCHIVE_FILTER_GZIP},
                                 {".bz2", ARCHIVE_FILTER_BZIP2},
                                 {".xz", ARCHIVE_FILTER_XZ},
                                 {".zst", ARCHIVE_FILTER_ZSTD}};

class InputStreamTest : public FolderTest {
 protected:
  InputStreamTest() {
    std::mt19937 random(3);
    for (int i = 0; i < 100'000; ++i) text_ += fmt::format("{}\n", random());
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string text_;  // a megabyte that does not pack well
};

TEST_F(InputStreamTest, UnpacksWhatItFinds) {
  EXPECT_EQ(read_all(write("plain.txt", text_)), (Members{{path("plain.txt"), text_}}));
  EXPECT_EQ(read_all(write("empty.txt", "")), Members{});
  for (const auto& [ending, filter] : kPackings) {
    const std::string name = path(std::string("a.txt") + ending);
    write_packed(name, filter, text_);
    EXPECT_EQ(read_all(name), (Members{{name, text_}})) << ending;
    EXPECT_EQ(InputStream(name).plain_name(), path("a.txt"));
    // The name is no matter.
    std::filesystem::rename(name, path("other"));
    EXPECT_EQ(read_all(path("other")), (Members{{path("other"), text_}})) << ending;
  }
}

TEST_F(InputStreamTest, ReadsTheTextsOfAnArchiveInOrder) {
  const std::vector<Member> members = {{"b/", ""},           {"README.md", "not a text"},
                                       {"b/2.txt", "two\n"}, {"a.jsonl", text_},
                                       {"c.json", ""},       {"skip.txt.bak", "x"}};
  for (const auto& [ending, filter] :
       {Packing{"", ARCHIVE_FILTER_NONE}, kPackings[0], kPackings[2], kPackings[3]}) {
    const std::string name = path(std::string("a.tar") + ending);
    write_tar(name, filter, members);
    EXPECT_EQ(
        read_all(name),
        (Members{{name + ":b/2.txt", "two\n"}, {name + ":a.jsonl", text_}, {name + ":c.json", ""}}))
        << ending;
  }
  write_tar(path("none.tar"), ARCHIVE_FILTER_NONE, {{"README.md", "x"}});
  EXPECT_EQ(message_of<DataError>([&] { read_all(path("none.tar")); }),
            path("none.tar") + ": the archive has no member *.txt, *.json or *.jsonl");
  // Left out in silence it would be missing from the dataset.
  write_tar(path("packed.tar"), ARCHIVE_FILTER_NONE, {{"a.txt", "x"}, {"b.jsonl.gz", "y"}});
  EXPECT_EQ(message_of<DataError>([&] { read_all(path("packed.tar")); }),
            path("packed.tar") +
                ":b.jsonl.gz: a gzip file inside an archive cannot be read; decompress it first");
}

TEST_F(InputStreamTest, ReadsArchivesInsideAnArchive) {
  // OpenWebText: openwebtext.tar.xz of urlsf_subset*_data.xz, which are tar archives of texts.
  const auto packed = [&](int filter, const std::vector<Member>& members) {
    write_tar(path("inner"), filter, members);
    return read_file(path("inner"));
  };
  write_packed(path("inner.txt.bz2"), ARCHIVE_FILTER_BZIP2, "packed");
  const std::string inner_xz =
      packed(ARCHIVE_FILTER_XZ, {{"0-a.txt", text_}, {"c.bin", "x"}, {"0-b.txt", "two"}});
  const std::vector<Member> members = {
      {"o/", ""},
      {"o/urlsf_0_data.xz", inner_xz},
      {"o/urlsf_1_data.xz", packed(ARCHIVE_FILTER_XZ, {{"1-a.txt", "three"}})},
      {"o/t.tar", packed(ARCHIVE_FILTER_NONE, {{"2-a.txt", "four"}})},
      {"o/d.txt.bz2", read_file(path("inner.txt.bz2"))},
      {"o/e.txt", "last"}};
  const std::string name = path("openwebtext.tar.xz");
  write_tar(name, ARCHIVE_FILTER_XZ, members);
  EXPECT_EQ(read_all(name), (Members{{name + ":o/urlsf_0_data.xz:0-a.txt", text_},
                                     {name + ":o/urlsf_0_data.xz:0-b.txt", "two"},
                                     {name + ":o/urlsf_1_data.xz:1-a.txt", "three"},
                                     {name + ":o/t.tar:2-a.txt", "four"},
                                     {name + ":o/d.txt.bz2", "packed"},
                                     {name + ":o/e.txt", "last"}}));
  std::string broken = inner_xz;
  broken.resize(broken.size() / 2);
  write_tar(path("broken.tar"), ARCHIVE_FILTER_NONE, {{"a.txt", "x"}, {"b.xz", broken}});
  const std::string message = message_of<DataError>([&] { read_all(path("broken.tar")); });
  EXPECT_TRUE(message.starts_with(path("broken.tar") + ":b.xz:0-a.txt: broken ")) << message;
  std::string deep = packed(ARCHIVE_FILTER_NONE, {{"a.txt", "x"}});
  for (int i = 0; i < 4; ++i) deep = packed(ARCHIVE_FILTER_NONE, {{"a.tar", deep}});
  EXPECT_EQ(message_of<DataError>([&] { read_all(write("deep.tar", deep)); }),
            path("deep.tar:a.tar:a.tar:a.tar:a.tar: archives are nested more than 4 deep"));
}

TEST_F(InputStreamTest, TruncatedInputsAreErrors) {
  for (const bool tar : {false, true})
    for (const auto& [ending, filter] : kPackings) {
      const std::string whole = path("whole"), cut = path(std::string("cut") + ending);
      if (tar)
        write_tar(whole, filter, {{"a.txt", text_}});
      else
        write_packed(whole, filter, text_);
      const std::string bytes = read_file(whole);
      for (const std::size_t left : {bytes.size() / 2, bytes.size() - 5}) {
        write_file_atomically(cut, bytes.substr(0, left));
        const std::string message = message_of<DataError>([&] { read_all(cut); });
        EXPECT_EQ(message.find(cut), 0u) << message;
        EXPECT_NE(message.find(": broken "), std::string::npos) << message;
      }
    }
  write_tar(path("whole"), ARCHIVE_FILTER_NONE, {{"a.txt", text_}});
  const std::string cut = write("cut.tar", read_file(path("whole")).substr(0, 1000));
  EXPECT_EQ(
      message_of<DataError>([&] { read_all(cut); }).find(cut + ":a.txt: broken tar archive: "), 0u);
}

TEST_F(InputStreamTest, DamagedInputsAreErrors) {
  for (const auto& [ending, filter] : kPackings) {
    // zstd writes its checksum only where it is asked to.
    if (filter == ARCHIVE_FILTER_ZSTD) continue;
    const std::string name = path(std::string("a") + ending);
    write_packed(name, filter, text_);
    std::string bytes = read_file(name);
    for (const std::size_t at : {bytes.size() / 3, bytes.size() / 2, bytes.size() - 6}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      write_file_atomically(name, damaged);
      const std::string message = message_of<DataError>([&] { read_all(name); });
      EXPECT_EQ(message.find(name + ": broken "), 0u) << ending << " at " << at << ": " << message;
    }
  }
  // The checksum of an archive's packing is verified after its last text, too.
  write_tar(path("a.tar.gz"), ARCHIVE_FILTER_GZIP, {{"a.txt", "one"}, {"b.bin", text_}});
  std::string bytes = read_file(path("a.tar.gz"));
  bytes[bytes.size() - 6] = static_cast<char>(bytes[bytes.size() - 6] ^ 0x55);
  write_file_atomically(path("a.tar.gz"), bytes);
  EXPECT_EQ(message_of<DataError>([&] { read_all(path("a.tar.gz")); }),
            path("a.tar.gz") + ": broken gzip stream: incorrect data check");
}

TEST_F(InputStreamTest, WhatFollowsAStreamIsReadOrAnError) {
  for (const auto& [ending, filter] : {kPackings[0], kPackings[1]}) {
    const std::string name = path(std::string("a") + ending);
    write_packed(name, filter, text_);
    const std::string one = read_file(name);
    const auto with_rest = [&](const std::string& rest) {
      write_file_atomically(name, one + rest);
      return name;
    };
    EXPECT_EQ(read_all(with_rest(one)), (Members{{name, text_ + text_}}));
    EXPECT_EQ(read_all(with_rest(std::string(300'000, '\0'))), (Members{{name, text_}}));
    std::string damaged = one;
    damaged[0] ^= 0x55;
    for (const std::string& rest : {damaged, one.substr(0, 5), std::string("\0x", 2)}) {
      const std::string message = message_of<DataError>([&] { read_all(with_rest(rest)); });
      EXPECT_EQ(message.find(name + ": broken "), 0u) << message;
    }
    // In an archive, where gzip is refused.
    if (filter == ARCHIVE_FILTER_GZIP) continue;
    write_tar(path("a.tar"), ARCHIVE_FILTER_NONE, {{"a.txt.bz2", one + damaged}, {"b.txt", "x"}});
    EXPECT_EQ(message_of<DataError>([&] { read_all(path("a.tar")); }),
              fmt::format("{}:a.txt.bz2: broken compressed stream: damaged or foreign data after "
                          "byte {}",
                          path("a.tar"), one.size()));
  }
}

TEST_F(InputStreamTest, ADamagedHeaderOfATarIsAnError) {
  write_tar(path("a.tar"), ARCHIVE_FILTER_NONE, {{"a.txt", "one"}, {"b.txt", "two"}});
  std::string bytes = read_file(path("a.tar"));
  bytes[bytes.find("b.txt")] = 'c';
  write_file_atomically(path("a.tar"), bytes);
  EXPECT_EQ(message_of<DataError>([&] { read_all(path("a.tar")); }),
            path("a.tar") + ": broken tar archive: Damaged tar archive");
}

TEST_F(InputStreamTest, WhatCannotBeReadIsAnIoError) {
  EXPECT_EQ(message_of<IoError>([&] { InputStream(path("absent")); }),
            "cannot open '" + path("absent") + "': No such file or directory");
  EXPECT_EQ(message_of<IoError>([&] { read_all(folder_.string()); }),
            "cannot read '" + folder_.string() + "': Is a directory");
}

}  // namespace
}  // namespace trireme::tokenizer
