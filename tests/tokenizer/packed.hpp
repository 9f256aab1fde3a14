// Packed files for tests to read.
#pragma once

#include <archive.h>
#include <archive_entry.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trireme::tokenizer {

/// A member of a tar archive: its path and content.
using Member = std::pair<std::string, std::string>;

/// Writes `members` to `path` in libarchive's format `format`, packed by its filter `filter`.
inline void write_archive(const std::filesystem::path& path, int format, int filter,
                          const std::vector<Member>& members) {
  archive* file = archive_write_new();
  ASSERT_EQ(archive_write_add_filter(file, filter), ARCHIVE_OK) << archive_error_string(file);
  ASSERT_EQ(archive_write_set_format(file, format), ARCHIVE_OK);
  ASSERT_EQ(archive_write_open_filename(file, path.c_str()), ARCHIVE_OK);
  for (const auto& [name, content] : members) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_filetype(entry, name.ends_with('/') ? AE_IFDIR : AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, static_cast<la_int64_t>(content.size()));
    ASSERT_EQ(archive_write_header(file, entry), ARCHIVE_OK);
    ASSERT_EQ(archive_write_data(file, content.data(), content.size()),
              static_cast<la_ssize_t>(content.size()));
    archive_entry_free(entry);
  }
  ASSERT_EQ(archive_write_free(file), ARCHIVE_OK);
}

/// Writes one packed file.
inline void write_packed(const std::filesystem::path& path, int filter,
                         const std::string& content) {
  write_archive(path, ARCHIVE_FORMAT_RAW, filter, {{"data", content}});
}

/// Writes a tar archive.
inline void write_tar(const std::filesystem::path& path, int filter,
                      const std::vector<Member>& members) {
  write_archive(path, ARCHIVE_FORMAT_TAR_PAX_RESTRICTED, filter, members);
}

}  // namespace trireme::tokenizer
