// Chinese words: jieba's segmentation.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::tokenizer {

/// The code points of UTF-8, with U+FFFD for invalid parts; and back.
std::u32string decode_text(std::string_view text);
std::string encode_text(std::u32string_view text);

/// jieba.cut(text, cut_all=False) of jieba 0.42 (MIT licence): the most probable path through the
/// words of a dictionary; unknown words by a hidden Markov model of characters that begin,
/// continue, end or are a word.
class Jieba {
 public:
  /// `folder` is that of the Python package. Throws IoError when its dict.txt or
  /// finalseg/prob_{start,trans,emit}.py cannot be read, DataError for malformed ones.
  explicit Jieba(const std::filesystem::path& folder);
  ~Jieba();

  /// Calls `take` with every word of `text`, which they join to.
  void cut(std::u32string_view text, const std::function<void(std::u32string_view)>& take) const;

 private:
  class Model;
  std::unique_ptr<const Model> model_;
};

}  // namespace trireme::tokenizer
