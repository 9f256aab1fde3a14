// The kinds of tokenizer, each in the file of its name. make_tokenizer chooses among them.
#pragma once

#include <filesystem>
#include <memory>

#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

/// GPT-2's byte-level BPE: ids equal to those of OpenAI's encoder.py. eod is <|endoftext|>.
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const std::filesystem::path& vocab,
                                               const std::filesystem::path& merges);

/// A SentencePiece model of any kind. eod is the model's end-of-sentence piece, or else its piece
/// <|endoftext|>.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& model);

/// Words between white space (as Python's str.split() cuts), looked up whole; others become <unk>.
/// The vocabulary must have <unk> and <|endoftext|>, which is eod. Decoding puts one blank between
/// words.
std::unique_ptr<Tokenizer> make_whitespace_tokenizer(const std::filesystem::path& vocab);

/// Bytes as ids 0 to 255, any bytes; 256 is eod and decodes to nothing.
std::unique_ptr<Tokenizer> make_bytes_tokenizer();

}  // namespace trireme::tokenizer
