#include <fmt/ranges.h>

#include "convert/shell/script.hpp"
#include "core/error.hpp"
#include "fixture.hpp"
#include "shell_words.hpp"

namespace trireme::convert::shell {
namespace {

namespace fs = std::filesystem;

/// command_lines(), a newline after each.
std::string commands_of(std::string_view text, const Definitions& definitions = {}) {
  std::string lines;
  for (const std::string& line : command_lines(text, definitions)) lines += line + "\n";
  return lines;
}

TEST(Shell, ReadsQuotesAndContinuedLines) {
  EXPECT_EQ(commands_of("run a 'b c' \"d  e\" f\\ g \\\n  h # i\n"), "run|a|b c|d  e|f g|h\n");
  EXPECT_EQ(commands_of("run \"a \\\"b\\\" \\$c\" '' \"\""), "run|a \"b\" $c||\n");
  EXPECT_EQ(commands_of("run a#b; go > log 2>&1 | tee x & stop"), "run|a#b\ngo\nstop\n");
}

TEST(Shell, ExpandsVariables) {
  EXPECT_EQ(commands_of("A=1\nB=${A}2\nrun $A ${B} \"$A $B\" '$A'"), "run|1|12|1 12|$A\n");
  EXPECT_EQ(commands_of("A='x  y'; run $A \"$A\""), "run|x|y|x  y\n");
  EXPECT_EQ(commands_of("A=\"--x 1\"; A=\"$A --y 2\"; A+=' --z'; run $A"), "run|--x|1|--y|2|--z\n");
  EXPECT_EQ(commands_of("run ${A:-7} ${B-8} ${C:=9}; D=; run ${D:-0}${D-1}${D:+2}"),
            "run|7|8|9\nrun|0\n");
  EXPECT_EQ(commands_of("export A=1 B=2; declare -r C=3; run $A$B$C"), "run|123\n");
}

TEST(Shell, KnowsMoreThanNineArguments) {
  EXPECT_EQ(commands_of("run ${10:-4} ${11} $10"), "run|4|{${11}}|{$1}0\n");
  EXPECT_EQ(commands_of("run \"${@:2}\" ${@:3} end"), "run|end\n");
}

TEST(Shell, TakesAValueThatMustBeThere) {
  EXPECT_EQ(commands_of("A=1; run ${A:?is missing} ${B?}"), "run|1|{${B?}}\n");
}

TEST(Shell, MarksPlaceholders) {
  EXPECT_EQ(commands_of("A=<path to x>_text; B=<path>/y; run $A $B --save <folder (e.g. /z)> <f>"),
            "run|{<path to x>}_text|{<path>}/y|--save|{<folder (e.g. /z)>}|{<f>}\n");
  EXPECT_EQ(commands_of("A=\"1 <the first> 2\"; run $A ${B:-<a path>} '<a b>' \"<ab>\""),
            "run|1|{<the first>}|2|{<a path>}|<a b>|<ab>\n");
  EXPECT_EQ(commands_of("run <in >out; run <in 2>out; run < in > out; run <in>>out"),
            "run\nrun\nrun\nrun\n");
  const auto run = follow("#SBATCH <options> --nodes=2", "test.sh");
  EXPECT_EQ(run.sbatch.back(), "--nodes=2");
}

TEST(Shell, ExpandsArrays) {
  EXPECT_EQ(commands_of("A=(\n  a   # one\n  'b c'\n)\nA+=(d)\nrun \"${A[@]}\" ${A[1]}"),
            "run|a|b c|d|b|c\n");
  EXPECT_EQ(commands_of("A=(); run \"${A[@]}\" \"$@\" end"), "run|end\n");
}

TEST(Shell, IndexesArrays) {
  EXPECT_EQ(commands_of("A=(2 4 6); I=1; run ${A[I]} ${A[$I+1]} ${A[-1]} ${#A[@]} ${A[3]}"),
            "run|4|6|6|3|{${A[3]}}\n");
  EXPECT_EQ(commands_of("A=(a b); A[1]=c; run \"${A[@]}\"; A[7]=d; run ${A[7]} ${A[@]}"),
            "run|a|c\nrun|d|{$A}\n");
  EXPECT_EQ(commands_of("declare -A C=( [small]=2 [large]='4 5' ); K=large; run ${C[small]} "
                        "\"${C[$K]}\" ${C[none]}"),
            "run|2|4 5|{${C[none]}}\n");
  EXPECT_EQ(commands_of("declare -A C; C[x]=1; C[$UNKNOWN]=2; run ${C[x]} ${C[y]}"),
            "run|{${C[x]}}|{${C[y]}}\n");
  EXPECT_EQ(commands_of("A=abc; run ${#A} ${#B}"), "run|3|{${#B}}\n");
}

TEST(Shell, SlicesArrays) {
  EXPECT_EQ(commands_of("f() { run \"${@:2}\" ${@:1:1} ${@:9}; }; f a 'b c' d"), "run|b c|d|a\n");
  EXPECT_EQ(commands_of("A=(a b c); N=1; run ${A[@]:1} ${A[@]:N:1} ${A[@]:X}"),
            "run|b|c|b|{${A[@]:X}}\n");
}

TEST(Shell, FollowsTheCommandOfSsh) {
  EXPECT_EQ(commands_of("A=1; ssh -p 2 host \"cd x && run $A\"; ssh host go"),
            "run|1\nssh|host|go\n");
}

TEST(Shell, TakesPrefixesAndSuffixesOff) {
  EXPECT_EQ(commands_of("P=a/b.c/d.tar.gz; run ${P##*/} ${P#*/} ${P%.*} ${P%%.*} ${P%.gz} ${P#a/}"),
            "run|d.tar.gz|b.c/d.tar.gz|a/b.c/d.tar|a/b|a/b.c/d.tar|b.c/d.tar.gz\n");
  EXPECT_EQ(commands_of("P=a-b-c; run ${P/-/_} ${P//-/_} ${P//-} ${P^^} ${P%x} ${P#[a]}"),
            "run|a_b-c|a_b_c|abc|A-B-C|a-b-c|-b-c\n");
  EXPECT_EQ(commands_of("run ${U##*/} \"${U//a/b}\""), "run|{${U##*/}}|{${U//a/b}}\n");
}

TEST(Shell, ReadsHereDocumentsIntoVariables) {
  EXPECT_EQ(commands_of("N=2\nread -r -d '' A <<END\n--x $N \\\n  --y 3\nEND\nrun $A"),
            "run|--x|2|--y|3\n");
  EXPECT_EQ(commands_of("IFS= read -rd '' A <<'END'\n--x $N\n\nEND\nrun \"$A\""), "run|--x $N\n");
  EXPECT_EQ(commands_of("read A <<END\n1\n2\nEND\nread B\nrun $A $B"), "run|1|{$B}\n");
}

TEST(Shell, Calculates) {
  EXPECT_EQ(commands_of("A=3; B=4; run $((A*B)) $(($A * ($B+1) % 4)) $((2**10/3)) $((-A))"),
            "run|12|3|341|-3\n");
  EXPECT_EQ(commands_of("run $((1/0)) $((X*2)) $((9223372036854775807+1))"),
            "run|{$((1/0))}|{$((X*2))}|{$((9223372036854775807+1))}\n");
}

TEST(Shell, MarksWhatIsUnknown) {
  EXPECT_EQ(commands_of("run $HOME/x $(hostname -f | head -1) `date +%s` $1"),
            "run|{$HOME}/x|{$(hostname -f | head -1)}|{`date +%s`}|{$1}\n");
  EXPECT_EQ(commands_of("HOME=a; run $HOME $B", {{"HOME", "b"}, {"B", "c"}}), "run|b|c\n");
  EXPECT_EQ(shown(unknown("$A")), "$A");
}

TEST(Shell, LeavesDefinitionsOutsideTheScriptAlone) {
  EXPECT_EQ(commands_of("A=1; A+=2; A=(3 4); A+=(5); A[0]=6; unset A\nrun $A", {{"A", "a"}}),
            "run|a\n");
  EXPECT_EQ(
      commands_of("for A in 1; do run $A; done\nB=1; B+=2; run $B; unset B; run $B", {{"A", "a"}}),
      "run|a\nrun|12\nrun|{$B}\n");
}

TEST(Shell, GivesAFunctionItsArguments) {
  EXPECT_EQ(commands_of("inner() { run $# \"$@\" $2; }\nouter() { inner x \"$1\"; run $1 $#; "
                        "}\nouter 1 2 3\nrun $1"),
            "run|2|x|1|1\nrun|1|3\nrun|{$1}\n");
}

TEST(Shell, ShiftsTheArgumentsOfAFunction) {
  EXPECT_EQ(
      commands_of("f() { local A=$1; shift; run $A $1 $# \"$@\"; shift 5; run $#; }\nf 1 2 3"),
      "run|1|2|2|2|3\nrun|2\n");
}

TEST(Shell, FollowsConditions) {
  const std::string script =
      "if [ \"$A\" = yes ]; then X=1\nelif [[ $A -gt 3 ]]; then\n  X=2\nelse\n  X=3\nfi\nrun $X";
  EXPECT_EQ(commands_of("A=yes\n" + script), "run|1\n");
  EXPECT_EQ(commands_of("A=4\n" + script), "run|2\n");
  EXPECT_EQ(commands_of("A=2\n" + script), "run|3\n");
  EXPECT_EQ(commands_of(script), "run|{$X (line 5 sets it under a condition)}\n");
  EXPECT_EQ(commands_of("A=true\nif $A; then run 1; else run 2; fi"), "run|1\n");
  EXPECT_EQ(commands_of("A=; [ -z \"$A\" ] && run 1 || run 2; [ -n \"$A\" ] && run 3"), "run|1\n");
  EXPECT_EQ(commands_of("if have x; then A=1; fi; have y || B=1; run $A $B"),
            "have|x\nhave|y\nrun|{$A (line 1 sets it under a condition)}|{$B}\n");
  EXPECT_EQ(commands_of("if [ 1 -eq 2 ]; then if true; then run 1; fi; run 2; fi; run 3"),
            "run|3\n");
  EXPECT_EQ(commands_of("for A in 1 2; do run $A; done; for B in 5; do run $B; done"),
            "run|{$A}\nrun|5\n");
}

TEST(Shell, TakesAnUnsetVariableAsEmpty) {
  EXPECT_EQ(commands_of("if [ -z \"$A\" ]; then A=4; fi; [[ -n ${B} ]] && C=1; run $A $C"),
            "run|4|{$C}\n");
  EXPECT_EQ(commands_of("if [[ -z $1 ]]; then A=1; else A=2; fi; run $A"), "run|1\n");
  EXPECT_EQ(commands_of("if [ ! -z $A ]; then B=1; fi; ! [ -n \"$A\" ] && C=2; run $B $C"),
            "run|{$B (line 1 sets it under a condition)}|2\n");
  // What asks for a value does not end the script.
  EXPECT_EQ(commands_of("[ -z $A ] && exit 1; if [ -z $B ]; then echo usage; exit; fi; run 1"),
            "run|1\n");
  EXPECT_EQ(commands_of("if have x; then A=1; fi; if [ -z $A ]; then A=2; fi; run $A"),
            "have|x\nrun|{$A (line 1 sets it under a condition)}\n");
  EXPECT_EQ(commands_of("if [ -z $A ]; then B=1; fi; run $B", {{"A", "a"}}), "run|{$B}\n");
}

TEST(Shell, FollowsArithmeticConditions) {
  EXPECT_EQ(commands_of("A=2; B=3\nif (( A * 2 > B )); then run 1; else run 2; fi\nif ((A % 2 != "
                        "0)); then run 3; fi; (( $A <= 2 )) && run 4; ((A - 2)) || run 5\nif (( A "
                        "> C && 1 )); then D=1; fi; run $D"),
            "run|1\nrun|4\nrun|5\nrun|{$D (line 4 sets it under a condition)}\n");
  EXPECT_EQ(commands_of("for (( i = 0; i < 3; i++ )); do run 1; done; f() { run 2; }; f; (run 3)"),
            commands_of("for (( i = 0; i < 3; i++ )); do run 1; done") + "run|2\nrun|3\n");
}

TEST(Shell, KeepsWhatAConditionAddsTo) {
  EXPECT_EQ(commands_of("A=(--x 1); B='--y 2'; C='--z'\nif have x; then A+=(--w); B=\"$B --v\"; "
                        "C+=' --u'; fi\nrun ${A[@]} $B $C"),
            "have|x\nrun|--x|1|{$A (line 2 sets it under a condition)}|--y|2|{$B (line 2 sets it "
            "under a condition)}|--z|{$C (line 2 sets it under a condition)}\n");
}

TEST(Shell, FollowsCases) {
  const std::string script =
      "case $A in\n  small) X=1 ;;\n  m*|'large') X=2; Y=3 ;;\n  *) exit 1 ;;\nesac\nrun $X $Y";
  EXPECT_EQ(commands_of("A=small; X=0\n" + script), "run|1|{$Y}\n");
  EXPECT_EQ(commands_of("A=medium\n" + script), "run|2|3\n");
  EXPECT_EQ(commands_of("A=large\n" + script), "run|2|3\n");
  EXPECT_EQ(commands_of("A=huge\n" + script), "");
  EXPECT_EQ(
      commands_of(script),
      "run|{$X (line 3 sets it under a condition)}|{$Y (line 3 sets it under a condition)}\n");
  EXPECT_EQ(commands_of("A=1; case \"$A\" in 1) (run 1);; 2) run 2;; esac; run 3"),
            "run|1\nrun|3\n");
  EXPECT_EQ(commands_of("A=x; case $A in y) case 1 in *) run 1;; esac;; x) run 2;; esac"),
            "run|2\n");
}

TEST(Shell, InvertsConditions) {
  EXPECT_EQ(commands_of("A=1\nif ! [ $A = 1 ]; then run 1; else run 2; fi"), "run|2\n");
  EXPECT_EQ(commands_of("A=; ! [ $A ] && run 1; ! [ 1 ] || run 2"), "run|1\nrun|2\n");
}

TEST(Shell, FollowsLoopsOnConditions) {
  EXPECT_EQ(commands_of("A=1; while [ $A = 2 ]; do run 1; done; until [ $A = 1 ]; do run 2; done; "
                        "while true; do run 3; done; until have x; do run 4; done; B=(1); while [ "
                        "${#C[@]} != 1 ]; do run 5; done"),
            "run|3\nhave|x\nrun|4\nrun|5\n");
}

TEST(Shell, TakesAScriptWithoutArgumentsForOneThatGotNone) {
  const std::string reads = "case $1 in\n -a|--all) A=2; shift;;\n *) exit 1;; esac\ndone\nrun $A";
  for (const std::string loop :
       {"while [[ $# -gt 0 ]]\ndo\n", "while [ -n \"${1}\" ]; do ", "until [ $# = 0 ]; do ",
        "while getopts a: o; do ", "for B in \"$@\"; do ", "for B; do "})
    EXPECT_EQ(commands_of("A=1\n" + loop + reads), "run|1\n") << loop;
  EXPECT_EQ(commands_of("f() { while [ $# -gt 0 ]; do run $1; break; done; }\nf; f 2"), "run|2\n");
}

TEST(Shell, TakesTheArgumentsThatSetGives) {
  EXPECT_EQ(
      commands_of(
          "set -euo pipefail\nset -- 4 'a b'\nrun $# $1 \"$2\" \"$@\"\nset -x; shift; run $1"),
      "run|2|4|a b|4|a b\nrun|a|b\n");
  EXPECT_EQ(commands_of("set --; [ -z $1 ] && run none"), "run|none\n");
  std::string words;
  for (const RunCommand& command : follow("run $2 $#", "test.sh", {}, {"8", "1"}).commands)
    words += fmt::format("{} ", fmt::join(command.words, "|"));
  EXPECT_EQ(words, "run|1|2 ");
}

class ShellFiles : public FolderTest {};

TEST_F(ShellFiles, FollowsScriptsThatItStartsWithTheirArguments) {
  file("size.sh", "SIZE=$1");
  file("train.sh", "#SBATCH --nodes=2 -n 4\nrun $1 $# ${SIZE:-none} $SHARED");
  file("outer.sh", "");
  const auto outer = [&](const std::string& text) {
    const shell::Run run = follow(text, folder_ / "outer.sh");
    std::string lines = fmt::format("{}:", fmt::join(run.sbatch, " "));
    for (const RunCommand& command : run.commands)
      lines += fmt::format("{}:{} ", fs::path(command.file).filename().string(),
                           fmt::join(command.words, "|"));
    return lines;
  };
  EXPECT_EQ(outer(". ./size.sh 6; run $SIZE $1"), ":outer.sh:run|6|\x01$1\x02 ");
  // A script that is started gets what is exported, and none of its #SBATCH lines counts.
  EXPECT_EQ(outer("SIZE=7; export SHARED=1; bash train.sh 8 1"), ":train.sh:run|8|2|none|1 ");
  EXPECT_EQ(outer("export SIZE=7 SHARED=2; srun -n 4 bash ./train.sh 8"),
            ":train.sh:srun|-n|4|run|8|1|7|2 ");
  EXPECT_EQ(
      outer("export SHARED=3; sbatch -N 3 train.sh; ./train.sh"),
      "-N 3 --nodes=2 -n 4:train.sh:run|\x01$1\x02|0|none|3 train.sh:run|\x01$1\x02|0|none|3 ");
  // One that submits itself, and one that is not there, are commands like others.
  EXPECT_EQ(outer("sbatch outer.sh; bash absent.sh 3"),
            ":outer.sh:sbatch|outer.sh outer.sh:bash|absent.sh|3 ");
  file("loop.sh", "bash outer.sh");
  EXPECT_EQ(outer("bash loop.sh"), ":loop.sh:bash|outer.sh ");
}

TEST_F(ShellFiles, SourcesFilesNextToTheScript) {
  file("a.sh", "A=1");
  file("b.sh", "B=2");
  std::string words;
  for (const RunCommand& command :
       follow("D=$(cd $(dirname $0) && pwd)\n. `pwd`/a.sh\nsource $D/b.sh\nrun $A $B",
              folder_ / "test.sh")
           .commands)
    words += fmt::format("{} ", fmt::join(command.words, "|"));
  EXPECT_EQ(words, "run|1|2 ");
}

TEST(Shell, FollowsFunctionsAndInnerCommands) {
  EXPECT_EQ(commands_of("f() { run $1 \"$@\"; }\nfunction g {\n f $1 2\n}\ng 1"), "run|1|1|2\n");
  EXPECT_EQ(commands_of("A='run a'; eval $A b; srun -n 2 bash -c \"x $A \\$R\""),
            "run|a|b\nsrun|-n|2|x|run|a|{$R}\n");
  EXPECT_EQ(commands_of("A=$(cat << END\nrun 'it(s' \"$B\"\nEND\n)\nB=1\n$A"),
            "run|'it(s'|\"{$B}\"\n");
  EXPECT_EQ(commands_of("echo run; cd x || exit 1; run $(dirname a/b.sh)/$(basename $0)"),
            "run|a/test.sh\n");
}

TEST(Shell, KeepsWrittenFilesAndJobOptions) {
  const auto run = follow(
      "#SBATCH --nodes=2 -n 4\nN=3\ncat <<EOT > a.json\n{\"x\": $N}\nEOT\ncat > b.json "
      "<<'EOT'\n$N\nEOT\n",
      "test.sh");
  EXPECT_EQ(run.files.at("a.json"), "{\"x\": 3}\n");
  EXPECT_EQ(run.files.at("b.json"), "$N\n");
  EXPECT_EQ(run.sbatch, (std::vector<std::string>{"--nodes=2", "-n", "4"}));
  const auto either = follow("if have x; then echo 1 > a; else\n echo 2 > a; fi", "test.sh");
  EXPECT_EQ(shown(either.files.at("a")), "a (line 2 writes it under a condition)");
  const auto echoed =
      follow("N=3\necho '{' > a\necho -e \" \\\"x\\\": $N\" >> a; echo } >> a", "test.sh");
  EXPECT_EQ(echoed.files.at("a"), "{\n \"x\": 3\n}\n");
}

TEST_F(ShellFiles, FillsInTemplates) {
  file("t.json", "{\"x\": BATCH, \"y\": BATCH,\n \"z\": \"FOLDER\"}");
  const auto files = [&](const std::string& text) {
    return follow("N=3\n" + text, folder_ / "test.sh").files;
  };
  const std::string filled = "{\"x\": 3, \"y\": 3,\n \"z\": \"a/b\"}";
  EXPECT_EQ(files("sed s/BATCH/$N/g t.json \\\n | sed \"s#FOLDER#a/b#\" > o.json").at("o.json"),
            filled);
  EXPECT_EQ(files("sed s/BATCH/$N/ t.json > o.json").at("o.json").substr(0, 19),
            "{\"x\": 3, \"y\": BATCH");
  // Patterns, and what passes through another program, are not followed.
  EXPECT_EQ(files("sed 's/B.*H/3/' t.json > o.json; sed s/BATCH/$N/ t.json | head | sed s/a/b/ > "
                  "p; sed s/a/b/ no.json > q"),
            (std::map<std::string, std::string>()));
}

TEST(Shell, AHereDocumentWithoutACommandIsReadByNothing) {
  EXPECT_EQ(commands_of("g=<<"), "");
  EXPECT_EQ(commands_of("g=1 <<E\nx\nE\n<<E\ny\nE\nrun $g"), "run|1\n");
}

TEST(Shell, RefusesWhatIsNoScript) {
  const auto problem = [](const char* text) {
    return message_of<DataError>([&] { follow(text, "bad.sh"); });
  };
  EXPECT_EQ(problem("run\nrun 'a"), "bad.sh:2: a quote is not closed");
  EXPECT_EQ(problem("A=(1 2"), "bad.sh:1: '(' is not closed");
  EXPECT_EQ(problem("f() {\nrun"), "bad.sh:1: the function 'f' is not closed");
  EXPECT_EQ(problem("f() { f; }; f"), "bad.sh: the script calls itself");
  EXPECT_EQ(
      problem("A=xxxxxxxxxxxxxxxx\nf() { A=$A$A$A$A; }\nf; f; f; f; f; f; f; f; f; f; f; f; f"),
      "a word of the script grows beyond 4 MiB");
}

TEST(Shell, SurvivesEveryPrefixOfAScript) {
  const std::string script =
      "#SBATCH -n 2\nA=(a 'b' \"c ${D:-x}\")\nf() { x $1; }\nif [ $A ]; then y `z`; else\ncat <<E "
      "> g\n$((1+(2)))\nE\nfi; case $A in a) b;; esac; w \"$(v \"u\")\" ${A[0]} 2>&1 | t";
  for (std::size_t length = 0; length <= script.size(); ++length)
    message_of<DataError>([&] { follow(script.substr(0, length), "part.sh"); });
}

}  // namespace
}  // namespace trireme::convert::shell
