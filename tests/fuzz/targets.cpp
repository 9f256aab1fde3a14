#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "checkpoint/file.hpp"
#include "checkpoint/local/shard.hpp"
#include "convert/convert.hpp"
#include "convert/huggingface/safetensors.hpp"
#include "convert/torch/archive.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "data/bert/bert_split.hpp"
#include "data/indexed_dataset.hpp"
#include "data/numpy.hpp"
#include "deck/load.hpp"
#include "fuzz.hpp"
#include "plan/cluster/cluster.hpp"
#include "report/runs/run_history.hpp"
#include "seeds.hpp"
#include "tokenizer/kinds.hpp"
#include "tokenizer/preprocess/preprocess.hpp"
#include "tokenizer/tokenizer.hpp"
#ifdef TRIREME_FUZZ_SERVE
#include "serve/server.hpp"
#endif

namespace trireme::fuzz {
namespace {

namespace fs = std::filesystem;
using Folder = const fs::path&;
using Bytes = std::string_view;

const fs::path kSource = TRIREME_SOURCE_DIR;
/// Elements that a reader is asked for: a header may claim any number.
constexpr std::int64_t kMaxElements = 1 << 20;

fs::path write(const fs::path& path, Bytes bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::vector<std::string> files(const std::vector<fs::path>& paths) {
  std::vector<std::string> contents;
  for (const fs::path& path : paths) contents.push_back(read_file(kSource / path));
  return contents;
}

std::vector<std::string> files_in(const fs::path& folder, const std::string& extension) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(kSource / folder))
    if (entry.path().extension() == extension) paths.push_back(folder / entry.path().filename());
  std::sort(paths.begin(), paths.end());
  return files(paths);
}

const std::vector<std::string> kYaml = {": ",
                                        "- ",
                                        "\n",
                                        "  ",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "&a ",
                                        "*a",
                                        "!!str ",
                                        "<<: *a",
                                        "|\n",
                                        ">\n",
                                        "'",
                                        "\"",
                                        "#",
                                        "1e999",
                                        "-1",
                                        ".inf",
                                        "auto",
                                        "true",
                                        "9223372036854775808",
                                        "0-11-8",
                                        "iterations"};
const std::vector<std::string> kJson = {
    "{",       "}",     "[",       "]",       ":",
    ",",       "\"",    "\\u0000", "\\ud800", "null",
    "true",    "1e999", "-0",      "NaN",     "99999999999999999999",
    "\"text\""};

// ---- readers

void read_index(Bytes bytes, Folder folder) {
  write(folder / "a.idx", bytes);
  const data::IndexedDataset dataset(folder / "a");
  for (std::int64_t i = 0; i < std::min<std::int64_t>(dataset.sequences(), 100); ++i)
    (void)dataset.length(i);
  std::vector<std::int64_t> tokens(
      static_cast<std::size_t>(std::min(dataset.tokens(), kMaxElements)));
  if (!tokens.empty()) dataset.read_tokens(0, tokens);
}

/// The tokens of an index that fits: the file may have another size, or ids of any value.
void read_tokens(Bytes bytes, Folder folder) {
  const fs::path prefix = folder / "tokens";
  write(fs::path(prefix).concat(".bin"), bytes);
  const data::IndexedDataset dataset(prefix);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(dataset.tokens()));
  dataset.read_tokens(0, tokens);
}

void read_records(Bytes bytes, Folder folder) {
  const fs::path path = write(folder / "a.tfrecord", bytes);
  if (data::is_gzip(path)) data::unpack_gzip(path, folder / "a.unpacked");
  data::NpyArray offsets(data::scan_records(path));
  const data::RecordFile file(path, "'a.tfrecord'", std::move(offsets));
  std::string record;
  for (std::int64_t i = 0; i < file.records(); ++i) {
    file.read(i, record);
    (void)data::parse_pretraining_example(record, file.place_of(i));
  }
}

/// A record's data, which a file's checksums protect.
void read_example(Bytes bytes, Folder) { (void)data::parse_pretraining_example(bytes, "'a'"); }

void read_npy(Bytes bytes, Folder folder) {
  const data::NpyArray array = data::NpyArray::map(write(folder / "a.npy", bytes));
  std::int64_t sum = 0;
  for (std::int64_t row = 0; row < std::min(array.rows(), kMaxElements / 64); ++row)
    for (std::int64_t column = 0; column < std::min<std::int64_t>(array.columns(), 64); ++column)
      sum ^= array(row, column);
  (void)sum;
}

void read_checkpoint(Bytes bytes, Folder folder) {
  const checkpoint::Reader reader(write(folder / "a.h5", bytes));
  for (const checkpoint::TensorInfo& tensor : reader.header().tensors) {
    if (tensor.shape.size() > kMaxElements) continue;
    std::vector<double> elements(static_cast<std::size_t>(tensor.shape.size()));
    reader.read_whole(tensor.name, tensor.dtype, elements.data());
  }
}

void read_shard(Bytes bytes, Folder folder) {
  checkpoint::verify_shard(write(folder / "a.shard", bytes));
}

void read_safetensors(Bytes bytes, Folder folder) {
  const convert::huggingface::SafetensorsReader reader(write(folder / "a.safetensors", bytes));
  for (const auto& entry : reader.entries())
    if (entry.elements() <= kMaxElements) (void)reader.read(entry);
}

void read_archive(Bytes bytes, Folder folder) {
  const convert::torch::Archive archive(write(folder / "a.pt", bytes));
  (void)archive.root().fields();
  if (const auto tensor = convert::torch::as_tensor(archive.root()))
    if (tensor->elements() <= kMaxElements && tensor->dtype) (void)archive.read(*tensor);
}

void encode(const tokenizer::TokenizerSpec& spec) {
  const auto tokenizer = tokenizer::make_tokenizer(spec);
  const auto ids = tokenizer->encode("Hello, wor\xffld!  l\xc3\xb6w low lower \xe2\x82\xac\n\t123");
  (void)tokenizer->decode(ids);
  (void)tokenizer->bert_tokens();
}

void read_log(Bytes bytes, Folder) {
  report::MegatronLog log;
  std::istringstream lines{std::string(bytes)};
  for (std::string line; std::getline(lines, line);) (void)log.take(line);
  (void)log.memory();
}

void read_documents(Bytes bytes, Folder folder) {
  tokenizer::DocumentReader reader({.inputs = {write(folder / "a.jsonl", bytes).string()},
                                    .format = tokenizer::DocumentFormat::json_lines});
  tokenizer::DocumentBatch batch;
  while (reader.read(batch))
    for (const auto& record : batch.records) (void)tokenizer::document_text(batch, record, "text");
}

#ifdef TRIREME_FUZZ_SERVE
void read_request(Bytes bytes, Folder) {
  static const auto tokenizer = tokenizer::make_tokenizer({.type = "bytes"});
  for (const auto& parse : {serve::parse_openai, serve::parse_megatron}) {
    try {
      (void)parse(bytes, *tokenizer, {.prompt_tokens = 64, .new_tokens = 64});
    } catch (const serve::BadRequest&) {
    }
  }
}
#endif

// ---- seeds

/// Scripts that can be converted by themselves.
std::vector<std::string> scripts(Folder folder) {
  std::vector<std::string> readable;
  for (const std::string& script : files_in("tests/data/flags", ".sh")) try {
      (void)convert::flags::convert({.file = write(folder / "seed.sh", script)});
      readable.push_back(script);
    } catch (const Error&) {
      // It needs files or definitions.
    }
  return readable;
}

/// GPT-2's characters for the bytes, as JSON, and a few longer tokens.
std::string gpt2_vocab() {
  std::string json = "{";
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    json += fmt::format("\"\\u{:04x}\":{},", printable ? byte : next++, byte);
  }
  return json + R"("lo":256,"low":257,"\u0120low":258,"<|endoftext|>":259})";
}
const std::string kVocab = gpt2_vocab();
const std::string kMerges = "#version: 0.2\nl o\nlo w\n\xc4\xa0 low\n";
const std::string kTokenizerJson =
    R"({"version":"1.0","added_tokens":[{"id":9,"content":"<|end|>","special":true}],)"
    R"("normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},)"
    R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"!":0,"H":1,"e":2,"l":3,"o":4,"lo":5,"w":6,)"
    R"("low":7,"r":8},"merges":["l o","lo w"]}})";
const std::string kLog =
    " iteration       30/      50 | consumed samples:         1920 | elapsed time per iteration "
    "(ms): "
    "1423.8 | learning rate: 7.031E-07 | global batch size:    64 | lm loss: 1.017721E+01 | loss "
    "scale: 262144.0 | grad norm: 16.666 | number of skipped iterations:   0 |\n"
    "  hidden_size ..................................... 1024\n"
    "[Rank 0] (after 10 iterations) memory (MB) | allocated: 2.5 | max allocated: 3 | reserved: 4 "
    "| max "
    "reserved: 5\n";
const std::string kRequest =
    R"({"prompt":["Hello","a"],"max_tokens":8,"temperature":0.5,"top_p":0.9,"n":2,"stop":["x"],"logprobs":1,"seed":3})";
const std::string kMegatronRequest =
    R"({"prompts":["Hello"],"tokens_to_generate":8,"top_k":1,"temperature":1.0,"add_BOS":false})";

}  // namespace

std::vector<Target> all_targets(const fs::path& folder) {
  write(folder / "a.bin", read_file(kSource / "tests/data/megatron/a.bin"));
  write(folder / "tokens.idx", read_file(kSource / "tests/data/megatron/a.idx"));
  const std::vector<std::string> none;
  std::vector<Target> targets = {
      {"deck", files_in("inputs", ".yaml"), kYaml,
       [](Bytes bytes, Folder) {
         (void)deck::parse(bytes, "fuzz.yaml", {}, {.need_data = false});
       }},
      {"cluster", files_in("inputs/clusters", ".yaml"), kYaml,
       [](Bytes bytes, Folder) {
         (void)plan::parse_cluster(std::string(bytes), kSource / "inputs/clusters/fuzz.yaml");
       }},
      {"index", files({"tests/data/megatron/a.idx"}), none, read_index},
      {"bin", files({"tests/data/megatron/a.bin"}), none, read_tokens},
      {"tfrecord", {a_record_file()}, {"\x1f\x8b"}, read_records},
      {"tf-example", {an_example()}, {"input_ids", "\x0a", "\x12", "\x1a"}, read_example},
      {"npy",
       files_in("tests/data/megatron", ".npy"),
       {"'descr': ", "'<i8'", "'shape': (", "True"},
       read_npy},
      {"checkpoint",
       {a_checkpoint(folder), a_compressed_checkpoint(folder)},
       {"OHDR", "OCHK", "FRHP", "TREE", "SNOD"},
       read_checkpoint},
      {"shard", {a_shard(folder)}, kJson, read_shard},
      {"safetensors", {a_safetensors(folder)}, kJson, read_safetensors},
      {"pickle",
       {an_archive()},
       {"(", "t", "R", "q\1", "h\1", "}", "]", "\x8a\xff", "."},
       read_archive},
      {"gpt2-vocab",
       {kVocab},
       kJson,
       [](Bytes bytes, Folder at) {
         encode({.type = "gpt2",
                 .vocab = write(at / "v.json", bytes),
                 .merges = write(at / "m.txt", kMerges)});
       }},
      {"gpt2-merges",
       {kMerges},
       {" ", "\n", "\xc4\xa0"},
       [](Bytes bytes, Folder at) {
         encode({.type = "gpt2",
                 .vocab = write(at / "v.json", kVocab),
                 .merges = write(at / "m.txt", bytes)});
       }},
      {"tokenizer-json",
       {kTokenizerJson},
       kJson,
       [](Bytes bytes, Folder at) {
         encode({.type = "bpe", .model = write(at / "tokenizer.json", bytes)});
       }},
      {"wordpiece",
       {"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n,\nlow\n##er\nwor\n##ld\n"},
       {"##", "\n", "[UNK]"},
       [](Bytes bytes, Folder at) {
         encode({.type = "wordpiece", .vocab = write(at / "v.txt", bytes), .lowercase = true});
       }},
      {"whitespace",
       {R"({"<unk>":0,"Hello,":1,"low":2,"<|endoftext|>":3})"},
       kJson,
       [](Bytes bytes, Folder at) {
         encode({.type = "whitespace", .vocab = write(at / "v.json", bytes)});
       }},
      {"json-lines",
       {"{\"text\": \"a\\n\\u00e4\"}\n{\"id\": 1, \"text\": \"b\"}\n"},
       kJson,
       read_documents},
      {"shell",
       scripts(folder),
       {"$(", "${", "))", "`", "\"", "<<E\n", "; do ", " fi;", "eval ", "--"},
       [](Bytes bytes, Folder at) {
         (void)convert::flags::convert({.file = write(at / "a.sh", bytes)});
       }},
      {"megatron-log",
       {kLog},
       {" | ", ": ", "lm loss:", "iteration", "1e999", "nan", "["},
       read_log},
  };
#ifdef TRIREME_FUZZ_SERVE
  targets.push_back({"http-request", {kRequest, kMegatronRequest}, kJson, read_request});
#endif
  const std::vector<std::string> text(200, "hello low lower world");
  targets.push_back({"sentencepiece",
                     {tokenizer::train_sentencepiece(text, {290, "bpe"}).model},
                     none,
                     [](Bytes bytes, Folder at) {
                       encode({.type = "sentencepiece", .model = write(at / "a.model", bytes)});
                     }});
  return targets;
}

}  // namespace trireme::fuzz
