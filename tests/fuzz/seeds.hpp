// Files that are right, of formats whose files the tests do not keep: what fuzz changes.
#pragma once

#include <filesystem>
#include <string>

namespace trireme::fuzz {

/// Files that the project's own writers write in `folder`.
std::string a_checkpoint(const std::filesystem::path& folder);
std::string a_compressed_checkpoint(const std::filesystem::path& folder);
std::string a_shard(const std::filesystem::path& folder);
std::string a_safetensors(const std::filesystem::path& folder);

/// torch.save() of a dict with a tensor.
std::string an_archive();
/// A tf.train.Example of BERT's create_pretraining_data.
std::string an_example();
/// A TFRecord file of two of them.
std::string a_record_file();

}  // namespace trireme::fuzz
