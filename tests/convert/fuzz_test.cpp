// Scripts that no person wrote: recipes with bytes and pieces changed. Each gives a deck that can
// be read, or one error with a message; nothing else, and soon.
#include <algorithm>
#include <random>
#include <typeinfo>

#include "convert/convert.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/value.hpp"
#include "fixture.hpp"

namespace trireme::convert::flags {
namespace {

namespace fs = std::filesystem;

const fs::path kScripts = fs::path(TRIREME_SOURCE_DIR) / "tests/data/flags";

// What shells and argparse give a meaning to, and what has been one's end.
const std::vector<std::string> kPieces = {"<<",
                                          "<<E\n",
                                          "\nE\n",
                                          "g=<<",
                                          "$(",
                                          "${",
                                          "$((",
                                          "))",
                                          "`",
                                          "\"",
                                          "'",
                                          "\\",
                                          "\n",
                                          "\r\n",
                                          "#SBATCH ",
                                          "--",
                                          "=",
                                          "-",
                                          "--=",
                                          "--num-layers --",
                                          " if ",
                                          " then ",
                                          " fi;",
                                          "case x in ",
                                          " *) ",
                                          ";;",
                                          " esac ",
                                          "for i in ",
                                          " do ",
                                          " done ",
                                          "f() { ",
                                          " } ",
                                          "function ",
                                          "((",
                                          "[[ ",
                                          " ]]",
                                          "a[",
                                          "]=",
                                          "+=(",
                                          "${A[",
                                          "${A:-",
                                          "${@",
                                          "$@",
                                          "eval ",
                                          "bash -c ",
                                          "source ",
                                          ". ",
                                          "sed s/a/b/ ",
                                          "shift ",
                                          "&&",
                                          "||",
                                          "|",
                                          "&>",
                                          "2>",
                                          ">>",
                                          "<a b>",
                                          "\x01",
                                          "\x02",
                                          "\x7f",
                                          "\xc3",
                                          "\xe2\x80\xa8",
                                          ": x",
                                          " # ",
                                          "- ",
                                          "{a: b",
                                          "[1, 2",
                                          "&a ",
                                          "*a ",
                                          "!a ",
                                          "| ",
                                          "> ",
                                          "%",
                                          "'a\nb' ",
                                          "\"a\nb\" ",
                                          "-1",
                                          "1e999",
                                          "99999999999999999999",
                                          ".",
                                          "$((9**9**9))",
                                          "--ranks",
                                          "--vocab-size 3\n",
                                          "--load $'x",
                                          "python x.py --num-layers 2 ",
                                          "\t"};

std::string mutated(std::string text, const std::vector<std::string>& scripts,
                    std::mt19937& random) {
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  const auto changes = 1 + below(4);
  for (std::size_t i = 0; i < changes; ++i) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t length = std::min(below(60), text.size() - at);
    switch (below(6)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(below(text.size() + 1), text.substr(at, length));
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      case 3: {
        const std::string& other = scripts[below(scripts.size())];
        text.insert(at, other, below(other.size()), below(200));
        break;
      }
      default:
        text.insert(at, kPieces[below(kPieces.size())]);
    }
  }
  return text;
}

/// "" where `request` becomes a deck that can be read, which `decks` counts, or an error that says
/// something; else what happened.
std::string trouble_with(const Request& request, int& decks) {
  try {
    const Result result = convert(request);
    ++decks;
    deck::Problems problems("deck", {});
    deck::read_yaml(result.deck, 0, problems);
    return problems.empty() ? "" : "the deck cannot be read";
  } catch (const InternalError& error) {
    return error.what();
  } catch (const Error& error) {
    return error.what()[0] == '\0' ? "an error without a message" : "";
  } catch (const std::exception& error) {
    return std::string(typeid(error).name()) + ": " + error.what();
  }
}

class Fuzz : public FolderTest {
 protected:
  std::vector<std::string> scripts() const {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(kScripts))
      if (entry.path().extension() == ".sh") paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    std::vector<std::string> texts;
    for (const fs::path& path : paths) texts.push_back(read_file(path));
    return texts;
  }
};

TEST_F(Fuzz, ScriptsGiveADeckThatCanBeReadOrAnError) {
  // What the scripts source and name lies next to them.
  fs::copy(kScripts, folder_);
  const std::vector<std::string> originals = scripts();
  ASSERT_FALSE(originals.empty());
  std::mt19937 random(1234);
  constexpr int kScripts = 1000;
  int decks = 0;
  for (int i = 0; i < kScripts; ++i) {
    const std::string text = mutated(originals[random() % originals.size()], originals, random);
    const fs::path path = file("script.sh", text);
    Request request{.file = path,
                    .definitions = {{"SLURM_NNODES", "2"}, {"steps", "32"}, {"each", "64"}},
                    .ignored = {"gradient_accumulation_steps"}};
    ASSERT_EQ(trouble_with(request, decks), "") << "script " << i << ":\n" << text;
  }
  // Mutations that leave nothing of a recipe would prove little.
  EXPECT_GT(decks, kScripts / 20);
}

TEST_F(Fuzz, ConfigurationsGiveADeckThatCanBeReadOrAnError) {
  const std::string original = read_file(kScripts / "r0_ds_config.json");
  std::mt19937 random(1234);
  int decks = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string text = mutated(original, {original}, random);
    Request request{.file = kScripts / "r0_deepspeed_3d.sh",
                    .ds_config = file("ds.json", text),
                    .definitions = {{"steps", "32"}, {"each", "64"}},
                    .ignored = {"gradient_accumulation_steps"}};
    ASSERT_EQ(trouble_with(request, decks), "") << "configuration " << i << ":\n" << text;
  }
  EXPECT_GT(decks, 0);
}

TEST_F(Fuzz, DeepNestingIsAnError) {
  const auto repeated = [](const std::string& piece) {
    std::string text;
    for (int i = 0; i < 200'000; ++i) text += piece;
    return text;
  };
  const auto problem = [&](const std::string& text) {
    const fs::path path = file("deep.sh", text);
    return message_of<DataError>([&] { convert({.file = path}); });
  };
  for (const char* piece :
       {"\"$(", "$(", "${A:-", "$((", "#SBATCH ", "f() { ", "if ", "`", "eval "})
    EXPECT_NE(problem("run " + repeated(piece)), "") << piece;
  EXPECT_NE(problem(repeated("#SBATCH ")), "");
  const Request request{.file = kScripts / "r0_deepspeed_3d.sh",
                        .ds_config = file("deep.json", repeated("{\"a\":"))};
  EXPECT_EQ(message_of<DataError>([&] { convert(request); }),
            "'" + request.ds_config.string() + "' is nested more than 64 deep");
}

}  // namespace
}  // namespace trireme::convert::flags
