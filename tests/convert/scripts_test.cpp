// Scripts in which the training command, or a part of it, is not to be found.
#include <fmt/format.h>

#include <algorithm>

#include "convert/flags/convert.hpp"
#include "core/error.hpp"
#include "deck/document.hpp"
#include "deck/problems.hpp"
#include "fixture.hpp"

namespace trireme::convert::flags {
namespace {

namespace fs = std::filesystem;

std::string errors_of(const Request& request) {
  return message_of<DeckError>([&] { convert(request); });
}

class Scripts : public FolderTest {};

TEST_F(Scripts, VariablesThatTheScriptDoesNotSet) {
  const fs::path script =
      file("train.sh",
           "python pretrain_gpt.py --num-layers $L --hidden-size 64 --num-attention-heads 4 \\\n"
           " --micro-batch-size 2 --seq-length 8 --lr 1 --train-iters 1 --save $(date)/x \\\n"
           " --tokenizer-type NullTokenizer --vocab-size 9 $MORE --num-workers $W");
  EXPECT_EQ(errors_of({.file = script}),
            script.string() +
                ":1: --num-layers $L: the script does not say what $L is (give --define L=...)\n" +
                script.string() +
                ":1: --save $(date)/x: the script does not say what $(date) is (write the value in "
                "its place)\n2 errors; no deck was written.");
  EXPECT_EQ(errors_of({.file = script, .definitions = {{"L", "2"}}, .ignored = {"save"}}), "");
}

TEST_F(Scripts, AnUnknownLengthIsStillALength) {
  const fs::path script =
      file("train.sh",
           "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 \\\n"
           " --micro-batch-size 2 --global-batch-size 8 --seq-length 8 --lr 1 --train-samples $S "
           "\\\n --lr-warmup-samples 8 --rampup-batch-size 2 2 64 --vocab-file v.json --data-path "
           "d --merge-file $M");
  EXPECT_EQ(
      errors_of({.file = script}),
      script.string() +
          ":1: --train-samples $S: the script does not say what $S is (give --define S=...)\n" +
          script.string() +
          ":1: --merge-file $M: the script does not say what $M is (give --define M=...)\n"
          "2 errors; no deck was written.");
}

TEST_F(Scripts, ProgramsThatDoNotTrain) {
  const auto problem = [&](const std::string& text) {
    const fs::path script = file("x.sh", text);
    std::string message = message_of<DataError>([&] { convert({.file = script}); });
    return message.substr(std::min(message.find("--num-layers"), message.size()));
  };
  const std::string at = "--num-layers; " + (folder_ / "x.sh").string() + ":1 ";
  EXPECT_EQ(problem("python generate_samples_gpt.py --num-layers 2"),
            at + "runs generate_samples_gpt.py, which generates text: trireme-generate does that");
  EXPECT_EQ(problem("python tasks/main.py --task RACE --num-layers 2"),
            at + "runs main.py, which evaluates a checkpoint: trireme-evaluate does that");
  EXPECT_EQ(problem("torchrun --nnodes $N $PROGRAM --num-layers 2"),
            at + "runs $PROGRAM, where the script does not say what $PROGRAM is (give --define "
                 "PROGRAM=...)");
  EXPECT_EQ(problem("sbatch -N 2 job.sh"),
            at + "starts job.sh: convert that, with --define for what it takes from here");
  EXPECT_EQ(problem("if have x; then A=1; fi; eval $A"),
            at + "runs $A (line 1 sets it under a condition), where the script does not say what "
                 "$A (line 1 sets it under a condition) is (give --define A=...)");
}

TEST_F(Scripts, FlagsThatNoCommandHas) {
  const fs::path script = file(
      "x.sh",
      "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --lr 1 \\\n"
      " --train-iters 9 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 2 \\\n"
      " --tokenizer-type NullTokenizer --vocab-size 9 --data-path d \\\n"
      " # --seed 1 \\\n --seed 2 --num-layers 4");
  const Result result = convert({.file = script});
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_EQ(result.notes[0],
            script.string() +
                ":5: --seed 2 --num-layers 4 is no part of the command: the line before it does "
                "not end in '\\'");
  EXPECT_NE(result.deck.find("  layers: 2 "), std::string::npos);
  EXPECT_EQ(result.deck.find("seed:"), std::string::npos);
}

constexpr const char* kSmall =
    "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --lr 1 "
    "--train-iters 9 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 2 "
    "--tokenizer-type NullTokenizer --vocab-size 9 --data-path d ";

TEST_F(Scripts, TextWithALineBreakStaysInItsComment) {
  // As a note, as the origin of a key, as what is left out, as the script's own name.
  const fs::path script =
      file("a\nb: c.sh", std::string(kSmall) + "--load 'x\ny: z' --num-workers '1\n- 2' \\\n --\n");
  EXPECT_NE(errors_of({.file = script}).find("'--' belongs to no flag"), std::string::npos);
  const fs::path noted = file("a\nb: c.sh", std::string(kSmall) +
                                                "--num-workers '1\n- 2' "
                                                "\\\n --load $'x\ny: z'");
  std::string errors = errors_of({.file = noted});
  EXPECT_NE(errors.find("checkpoint.load cannot have this value: it is not one line of UTF-8"),
            std::string::npos)
      << errors;
  const Result result = convert({.file = noted, .ignored = {"load"}});
  deck::Problems problems("deck", {});
  deck::read_yaml(result.deck, 0, problems);
  problems.raise_if_any();
  for (const std::string& note : result.notes)
    EXPECT_EQ(note.find('\n'), std::string::npos) << note;
}

TEST_F(Scripts, DashesAloneAreNoFlag) {
  const fs::path script = file("x.sh", "python pretrain_gpt.py --num-layers --");
  EXPECT_EQ(errors_of({.file = script}).find(script.string() + ":1: --num-layers has no value\n"),
            0u)
      << errors_of({.file = script});
}

TEST_F(Scripts, CommandsThatHideTheirFlags) {
  const fs::path script = file("train.sh", "prepare.py\npython pretrain_gpt.py --lr 1 $FLAGS");
  EXPECT_EQ(message_of<DataError>([&] { convert({.file = script}); }),
            fmt::format("'{0}' has no training command: expected a program such as pretrain_gpt.py "
                        "with --num-layers; {0}:1 runs prepare.py; {0}:2 runs pretrain_gpt.py, "
                        "where the script does not say what $FLAGS is (give --define FLAGS=...)",
                        script.string()));
}

}  // namespace
}  // namespace trireme::convert::flags
