// Scripts in which the training command, or a part of it, is not to be found.
#include <fmt/format.h>

#include <algorithm>

#include "convert/convert.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/value.hpp"
#include "fixture.hpp"

namespace trireme::convert::flags {
namespace {

namespace fs = std::filesystem;

class Scripts : public FolderTest {};

TEST_F(Scripts, VariablesThatTheScriptDoesNotSet) {
  const fs::path script =
      file("train.sh",
           "python pretrain_gpt.py --num-layers $L --hidden-size 64 --num-attention-heads 4 \\\n "
           "--micro-batch-size 2 --seq-length 8 --lr 1 --train-iters 1 --save $(date)/x \\\n "
           "--tokenizer-type NullTokenizer --vocab-size 9 $MORE --num-workers $W");
  EXPECT_EQ(errors_of({.file = script}),
            script.string() +
                ":1: --num-layers $L: the script does not define $L (give --define L=...)\n" +
                script.string() +
                ":1: --save $(date)/x: the script does not define $(date) (replace it with its "
                "value)\n2 errors; no deck was written.");
  EXPECT_EQ(errors_of({.file = script, .definitions = {{"L", "2"}}, .ignored = {"save"}}), "");
}

TEST_F(Scripts, AnUnknownLengthIsStillALength) {
  const fs::path script =
      file("train.sh",
           "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 \\\n "
           "--micro-batch-size 2 --global-batch-size 8 --seq-length 8 --lr 1 --train-samples $S "
           "\\\n --lr-warmup-samples 8 --rampup-batch-size 2 2 64 --vocab-file v.json --data-path "
           "d --merge-file $M");
  EXPECT_EQ(errors_of({.file = script}),
            script.string() +
                ":1: --train-samples $S: the script does not define $S (give --define S=...)\n" +
                script.string() +
                ":1: --merge-file $M: the script does not define $M (give --define M=...)\n2 "
                "errors; no deck was written.");
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
  EXPECT_EQ(problem("python tools/run_text_generation_server.py --num-layers 2"),
            at +
                "runs run_text_generation_server.py, which serves a model over HTTP: trireme-serve "
                "does that");
  EXPECT_EQ(problem("python tasks/main.py --task RACE --num-layers 2"),
            at + "runs main.py, which evaluates a checkpoint: trireme-evaluate does that");
  EXPECT_EQ(
      problem("torchrun --nnodes $N $PROGRAM --num-layers 2"),
      at + "runs $PROGRAM, where the script does not define $PROGRAM (give --define PROGRAM=...)");
  EXPECT_EQ(problem("sbatch -N 2 job.sh"),
            at + "starts job.sh: convert that, with --define for what it takes from here");
  EXPECT_EQ(problem("if have x; then A=1; fi; eval $A"),
            at + "runs $A (line 1 sets it under a condition), where the script does not define $A "
                 "(line 1 sets it under a condition) (give --define A=...)");
}

TEST_F(Scripts, FlagsThatNoCommandHas) {
  const fs::path script =
      file("x.sh",
           "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --lr 1 "
           "\\\n --train-iters 9 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 2 "
           "\\\n --tokenizer-type NullTokenizer --vocab-size 9 --data-path d \\\n # --seed 1 \\\n "
           "--seed 2 --num-layers 4");
  const Result result = convert({.file = script});
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_EQ(result.notes[0], script.string() +
                                 ":5: --seed 2 --num-layers 4 is not part of the command: the line "
                                 "before it does not end in '\\'");
  EXPECT_NE(result.deck.find("  layers: 2 "), std::string::npos);
  EXPECT_EQ(result.deck.find("seed:"), std::string::npos);
}

TEST_F(Scripts, FlagsThatNoCommandHasExplainWhatIsMissing) {
  const fs::path script =
      file("x.sh", "python pretrain_gpt.py --num-layers 2 \\\n # --seed 1 \\\n --lr 1\n");
  EXPECT_NE(errors_of({.file = script})
                .find(script.string() + ":3: --lr 1 is not part of the command: the line before it "
                                        "does not end in '\\'\n"),
            std::string::npos)
      << errors_of({.file = script});
}

constexpr const char* kSmall =
    "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --lr 1 "
    "--train-iters 9 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 2 "
    "--tokenizer-type NullTokenizer --vocab-size 9 --data-path d ";

TEST_F(Scripts, TextWithALineBreakStaysInItsComment) {
  // As a note, as the origin of a key, as what is left out, as the script's own name.
  const fs::path script =
      file("a\nb: c.sh", std::string(kSmall) + "--load 'x\ny: z' --num-workers '1\n- 2' \\\n --\n");
  EXPECT_NE(errors_of({.file = script}).find("'--' is not a value of any flag"), std::string::npos);
  const fs::path noted =
      file("a\nb: c.sh", std::string(kSmall) + "--num-workers '1\n- 2' \\\n --load $'x\ny: z'");
  std::string errors = errors_of({.file = noted});
  EXPECT_NE(errors.find("checkpoint.load = \"x y: z\": must be one line"), std::string::npos)
      << errors;
  const Result result = convert({.file = noted, .ignored = {"load"}});
  deck::Problems problems("deck", {});
  deck::read_yaml(result.deck, 0, problems);
  problems.raise_if_any();
  for (const std::string& note : result.notes)
    EXPECT_EQ(note.find('\n'), std::string::npos) << note;
}

TEST_F(Scripts, ArgumentsReachTheTrainingCommand) {
  file("train.sh",
       "python pretrain_gpt.py --num-layers $1 --hidden-size 64 --num-attention-heads $2 --lr 1 "
       "--train-iters 9 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 2 "
       "--tokenizer-type NullTokenizer --vocab-size 9 --data-path d");
  const fs::path outer = file("cases.sh", "set -- 3 4\nbash train.sh $1 $2");
  for (const Result& result : {convert({.file = folder_ / "train.sh", .arguments = {"3", "4"}}),
                               convert({.file = outer})}) {
    EXPECT_NE(result.deck.find("  layers: 3 "), std::string::npos) << result.deck;
    EXPECT_NE(result.deck.find("  heads: 4 "), std::string::npos) << result.deck;
  }
}

TEST_F(Scripts, VariablesBeforeAScriptReachItAndSoDoTenArguments) {
  file("train.sh",
       "python pretrain_gpt.py --num-layers ${10} --hidden-size 64 --num-attention-heads $HEADS "
       "--lr $10 --train-iters 9 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 2 "
       "--tokenizer-type NullTokenizer --vocab-size 9 --data-path d");
  const Result result =
      convert({.file = file("outer.sh", "HEADS=4 bash train.sh 1 2 3 4 5 6 7 8 9 3")});
  for (const char* text : {"  layers: 3 ", "  heads: 4 ", "  peak: 10 "})
    EXPECT_NE(result.deck.find(text), std::string::npos) << text << "\n" << result.deck;
}

TEST_F(Scripts, HostsOfDeepSpeed) {
  const std::string flags = std::string(kSmall).substr(std::string("python ").size());
  const Result result = convert({.file = file("x.sh", "deepspeed -i node1:4,5@node-2:0 " + flags)});
  EXPECT_EQ(result.hosts, "node1 slots=2 gpus=4,5\nnode-2 slots=1 gpus=0\n");
  EXPECT_EQ(convert({.file = file("y.sh", kSmall)}).hosts, "");
}

TEST_F(Scripts, HostfileOfDeepSpeed) {
  file("hosts", "# two kinds\nnode1 slots=4\n\nnode2 slots=2 # smaller\nnode3 slots=4\n");
  const std::string flags = std::string(kSmall).substr(std::string("python ").size());
  const auto hosts = [&](const std::string& options) {
    const Result result =
        convert({.file = file("x.sh", "deepspeed --hostfile hosts " + options + " " + flags)});
    const std::size_t at = result.deck.find("# Its ranks: ");
    return result.deck.substr(at, result.deck.find(' ', at + 13) - at) + "\n" + result.hosts;
  };
  EXPECT_EQ(hosts(""),
            "# Its ranks: 10\nnode1 slots=4 gpus=0,1,2,3\nnode2 slots=2 gpus=0,1\n"
            "node3 slots=4 gpus=0,1,2,3\n");
  EXPECT_EQ(hosts("--num_nodes 2 --num_gpus 2"),
            "# Its ranks: 4\nnode1 slots=2 gpus=0,1\nnode2 slots=2 gpus=0,1\n");
  EXPECT_EQ(hosts("-i node1:1,3@node2"),
            "# Its ranks: 4\nnode1 slots=2 gpus=1,3\nnode2 slots=2 gpus=0,1\n");
  EXPECT_EQ(hosts("--exclude node1@node3:0"),
            "# Its ranks: 5\nnode2 slots=2 gpus=0,1\nnode3 slots=3 gpus=1,2,3\n");
  // A hostfile that is elsewhere: its ranks must be given.
  EXPECT_NE(errors_of({.file = file("y.sh", "deepspeed --hostfile /absent/hosts " + flags)})
                .find("give --ranks N"),
            std::string::npos);
  file("hosts", "node1\n");
  EXPECT_EQ(message_of<DataError>([&] { hosts(""); }),
            (folder_ / "hosts").string() + ":1: expected 'HOST slots=N'");
}

TEST_F(Scripts, DatasetsAreMadeByTriremesPreprocess) {
  const fs::path script =
      file("p.sh",
           "python tools/preprocess_data.py --input 'my corpus.json' --output-prefix my-gpt2 "
           "--vocab v.json --dataset-impl mmap --tokenizer-type GPT2BPETokenizer --merge-file "
           "m.txt --append-eod --workers 8 --json-keys text title");
  const Result result = convert({.file = script});
  EXPECT_EQ(result.deck, "");
  const std::string line =
      "trireme-preprocess --input 'my corpus.json' --output my-gpt2 --workers 8 --append-eod "
      "--vocab v.json --merges m.txt --tokenizer gpt2";
  EXPECT_EQ(result.commands, line + "\n" + line + " --key title\n");
  EXPECT_TRUE(result.unbuilt.empty());
  const Result both = convert(
      {.file = file("both.sh", read_file(script) + "\npython pretrain_gpt.py --lr 1 $FLAGS\n")});
  EXPECT_EQ(both.commands, result.commands);
  ASSERT_FALSE(both.notes.empty());
  EXPECT_NE(both.notes.back().find(":2: pretrain_gpt.py is ignored"), std::string::npos);
  const Result sentences =
      convert({.file = file("q.sh",
                            "python preprocess_data.py --input a --output-prefix b --vocab v.txt "
                            "--tokenizer-type BertWordPieceLowerCase --split-sentences "
                            "--lang german")});
  EXPECT_TRUE(sentences.unbuilt.empty());
  EXPECT_NE(sentences.commands.find(" --split-sentences "), std::string::npos)
      << sentences.commands;
  EXPECT_TRUE(
      sentences.commands.ends_with("--language german --tokenizer wordpiece --lowercase true\n"))
      << sentences.commands;
  const fs::path wrong = file("r.sh", "python preprocess_data.py --input $IN --find-bugs 3");
  EXPECT_EQ(errors_of({.file = wrong}),
            fmt::format("{0}:1: --input: the script does not define $IN (give --define "
                        "IN=...)\n{0}:1: '--find-bugs' has no counterpart\n{0}:1: --output-prefix "
                        "is missing\n3 errors; no command was written.",
                        wrong.string()));
}

TEST_F(Scripts, TextIsGeneratedByTriremesGenerate) {
  const Result result = convert(
      {.file = file("g.sh",
                    "python tools/generate_samples_gpt2.py --num-layers 24 --hidden-size 1024 "
                    "--num-attention-heads 16 --load checkpoints/x --batch-size 8 --fp16 "
                    "--temperature 0.9 --top_p 0.8 --top_k 0 --out-seq-length 100 --recompute "
                    "--sample-input-file in.txt --sample-output-file out.txt")});
  EXPECT_EQ(result.commands,
            "trireme-convert megatron checkpoints/x x.h5\n"
            "trireme-generate --checkpoint x.h5 --temperature 0.9 --tokens 100 --input "
            "in.txt --recompute --top-p 0.8 --output out.txt\n");
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_NE(result.notes[0].find("names a checkpoint of Megatron-LM"), std::string::npos);
  // The first release fetched the vocabulary: the checkpoint's deck names one.
  const Result fetched =
      convert({.file = file("f.sh",
                            "python generate_samples.py --load x --tokenizer-type GPT2BPETokenizer "
                            "--num-samples 10 --genfile o.json --top_p 0")});
  EXPECT_EQ(fetched.commands,
            "trireme-convert megatron x x.h5\n"
            "trireme-generate --checkpoint x.h5 --prompt '' --samples 10 --json --output o.json\n");
  const Result files = convert(
      {.file =
           file("v.sh", "python generate_samples_gpt.py --load x --vocab-file v --merge-file m")});
  EXPECT_EQ(files.commands,
            "trireme-convert megatron x x.h5\n"
            "trireme-generate --checkpoint x.h5 --vocab v --merges m --tokenizer gpt2\n");
}

TEST_F(Scripts, TextIsScoredByTriremesEvaluate) {
  const std::string command =
      "python tasks/main.py --valid-data wiki.test.tokens --load x --vocab-file v.json "
      "--merge-file m.txt --num-layers 24 --task ";
  const std::string convert_line = "trireme-convert megatron x x.h5 --write-deck evaluated.yaml\n";
  const std::string with_files =
      "trireme-evaluate evaluated.yaml data.tokenizer.type=gpt2 data.tokenizer.vocab=v.json "
      "data.tokenizer.merges=m.txt --checkpoint x.h5 ";
  const Result result =
      convert({.file = file("e.sh", command + "WIKITEXT103 --overlapping-eval 16")});
  EXPECT_EQ(result.commands,
            convert_line + with_files +
                "--task wikitext --overlapping-eval 16 --input wiki.test.tokens\n");
  EXPECT_TRUE(result.unbuilt.empty());
  EXPECT_EQ(
      convert({.file = file("l.sh", command + "LAMBADA --strict-lambada")}).commands,
      convert_line + with_files + "--task lambada --strict-lambada --input wiki.test.tokens\n");
  // The first release fetched the vocabulary; its default overlap is 32.
  const std::string first = "python evaluate_gpt2.py --valid-data t --load x --num-layers 24 ";
  EXPECT_EQ(convert({.file = file("w.sh", first)}).commands,
            convert_line +
                "trireme-evaluate evaluated.yaml --checkpoint x.h5 --task wikitext "
                "--overlapping-eval 32 --input t\n");
  EXPECT_NE(
      convert({.file = file("c.sh", first + "--cloze-eval")}).commands.find("--task lambada "),
      std::string::npos);
  const std::string script =
      "python scripts/run_gpt2_eval.py --num-layers 24 --model-path x --data-path t --batch-size "
      "16 "
      "--cache-dir cache --eval-iters 5000 --webtext-eval";
  EXPECT_EQ(convert({.file = file("s.sh", script)}).commands,
            convert_line +
                "trireme-evaluate evaluated.yaml --checkpoint x.h5 --task perplexity --iterations "
                "5000 --input t\n");
  EXPECT_NE(
      errors_of({.file = file("r.sh", command + "RACE")}).find("--task RACE has no counterpart"),
      std::string::npos);
}

TEST_F(Scripts, FlagsOfMegatronCore) {
  const Result result = convert(
      {.file =
           file("c.sh",
                std::string("torchrun --nproc_per_node 4 ") +
                    std::string(kSmall).substr(std::string("python ").size()) +
                    "--num-layers 10 --pipeline-model-parallel-size 4 "
                    "--decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 3 "
                    "--micro-batch-size 1 --global-batch-size 4 --grad-reduce-in-bf16 --bf16 "
                    "--save s --save-interval 5 --save-retain-interval 10 --rerun-mode disabled")});
  for (const char* text : {"  partition: 1-3-3-3 ", "  gradients: same ", "  keep: 1 ",
                           "  keep_every: 10 iterations "})
    EXPECT_NE(result.deck.find(text), std::string::npos) << text << "\n" << result.deck;
}

TEST_F(Scripts, SentencePieceOfTheFirstRelease) {
  const std::string command =
      "python pretrain_gpt2.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --lr 1 "
      "--train-iters 9 --seq-length 8 --max-position-embeddings 8 --batch-size 2 --train-data "
      "webtext --tokenizer-type SentencePieceTokenizer --save s ";
  const Result named = convert({.file = file("a.sh", command + "--tokenizer-path my.model")});
  EXPECT_NE(named.deck.find("    model: my.model "), std::string::npos) << named.deck;
  EXPECT_NE(named.deck.find("  every: 5000 iterations "), std::string::npos) << named.deck;
  EXPECT_NE(named.deck.find("  zero: 0 "), std::string::npos) << named.deck;
  const Result bare = convert({.file = file("b.sh", command)});
  EXPECT_NE(bare.deck.find("    model: tokenizer.model "), std::string::npos) << bare.deck;
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
                        "where the script does not define $FLAGS (give --define FLAGS=...)",
                        script.string()));
}

}  // namespace
}  // namespace trireme::convert::flags
