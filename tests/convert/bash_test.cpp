// Scripts whose words are compared with those that bash passes to the program: loops, functions,
// subshells, conditions, arithmetic.
#include <fmt/ranges.h>

#include "convert/shell/script.hpp"
#include "core/error.hpp"
#include "fixture.hpp"
#include "shell_words.hpp"

namespace trireme::convert::shell {
namespace {

/// command_lines(), joined by `;`.
std::string words_of(std::string_view text, const std::vector<std::string>& arguments = {}) {
  return fmt::format("{}", fmt::join(command_lines(text, {}, arguments), ";"));
}

TEST(Bash, AnAssignmentBeforeACommandHoldsForThatCommand) {
  EXPECT_EQ(words_of("S=1; S=8 true; run $S"), "run|1");
  EXPECT_EQ(words_of("S=1; S=8 run $S"), "run|1");
  EXPECT_EQ(words_of("S=8 true; run $S"), "run|{$S}");
  EXPECT_EQ(words_of("f() { run $S; }; S=1; S=2 f; run $S"), "run|2;run|1");
  EXPECT_EQ(words_of("S=1; S=8 eval 'run $S'"), "run|8");
  EXPECT_EQ(words_of("S=1; S=2 T=3; run $S$T"), "run|23");
}

TEST(Bash, LocalVariablesEndWithTheirFunction) {
  EXPECT_EQ(words_of("f() { local X=3; X=4; run $X; }; X=1; f; run $X"), "run|4;run|1");
  EXPECT_EQ(words_of("f() { local X; X=4; }; f; run $X"), "run|{$X}");
  EXPECT_EQ(words_of("f() { local X=2; g; run $X; }; g() { X=3; }; X=1; f; run $X"), "run|3;run|1");
  EXPECT_EQ(words_of("f() { local A=(1 2); A+=(3); run ${A[@]}; }; A=(9); f; run ${A[@]}"),
            "run|1|2|3;run|9");
  EXPECT_EQ(words_of("f() { declare -g X=2; export Y=3; }; X=1; f; run $X $Y"), "run|2|3");
}

TEST(Bash, ReturnEndsItsFunction) {
  EXPECT_EQ(words_of("f() { X=4; return; X=5; }; f; run $X"), "run|4");
  EXPECT_EQ(words_of("f() { if [ $1 = a ]; then X=1; return 0; fi; X=2; }; f a; run $X; f b; run "
                     "$X"),
            "run|1;run|2");
  EXPECT_EQ(words_of("f() { return 1; }; f && X=1 || X=2; run $X"), "run|2");
  EXPECT_EQ(words_of("f() { for i in 1 2 3; do [ $i = 2 ] && return; R=$i; done; }; f; run $R"),
            "run|1");
  // After a return that may run, the rest of the function may run.
  EXPECT_EQ(words_of("f() { if have x; then return; fi; X=2; }\nX=1; f; run $X"),
            "have|x;run|{$X (line 1 sets it under a condition)}");
}

TEST(Bash, SubshellsKeepTheirAssignments) {
  EXPECT_EQ(words_of("X=1; ( X=2; run $X ); run $X"), "run|2;run|1");
  EXPECT_EQ(words_of("X=1; ( exit 1 ) || X=2; run $X"), "run|2");
  EXPECT_EQ(words_of("f() ( X=5; run $X ); X=1; f; run $X"), "run|5;run|1");
  EXPECT_EQ(words_of("X=1; { X=2; } | cat; X=3 & run $X; { X=4; }; run $X"), "run|1;run|4");
  EXPECT_EQ(words_of("X=1; Y=$(echo $((X++))); run $X $Y"), "run|1|1");
  EXPECT_EQ(words_of("X=8; Y=9; export Y; bash -c 'run $X $Y'"), "run|{$X}|9");
}

TEST(Bash, AGroupFollowsTheLinkBeforeIt) {
  EXPECT_EQ(words_of("X=0; [ 1 = 2 ] && { X=1; X=2; }; run $X"), "run|0");
  EXPECT_EQ(words_of("[ 1 = 2 ] || { X=1; Y=2; }; run $X $Y"), "run|1|2");
  EXPECT_EQ(words_of("X=0; false && if true; then X=1; fi; run $X"), "run|0");
  EXPECT_EQ(words_of("X=0; false && for i in 1 2; do X=$i; done; run $X"), "run|0");
}

TEST(Bash, ArithmeticAssigns) {
  EXPECT_EQ(words_of("S=1; ((S++)); run $S; ((S=5)); run $S; ((S+=2)); run $S"),
            "run|2;run|5;run|7");
  EXPECT_EQ(words_of("let S=3+4 'T = S * 2'; let S--; run $S $T"), "run|6|14");
  EXPECT_EQ(words_of("X=8; run $((X++)) $X $((++X)) $((X--)) $X"), "run|8|9|10|10|9");
  EXPECT_EQ(words_of("A=(1 2 3); ((A[1] += 5)); run ${A[@]} $((A[1] * 2))"), "run|1|7|3|14");
  EXPECT_EQ(words_of("i=0; ((i++)) || X=zero; run $X $i"), "run|zero|1");
  EXPECT_EQ(words_of("S=1; if have x; then ((S++)); fi\nT=1; ((T = f(2))); run $S $T"),
            "have|x;run|{$S (line 1 sets it under a condition)}|{$T}");
  EXPECT_EQ(words_of("declare -i N=3+4; N+=2; run $N"), "run|9");
}

TEST(Bash, ArithmeticHasTheOperatorsOfC) {
  EXPECT_EQ(words_of("run $((010)) $((0x1F)) $((2#101)) $((1<<4|1)) $((~0)) $((!3))"),
            "run|8|31|5|17|-1|0");
  EXPECT_EQ(words_of("run $((1 ? 2 : 3)) $((5>3 && 2>1)) $((7&3)) $((7^1)) $((-7%3)) $((5 - -3))"),
            "run|2|1|3|6|-1|8");
  EXPECT_EQ(words_of("A=( $((1<<10))\n --y 2\n); run ${A[@]}"), "run|1024|--y|2");
  EXPECT_EQ(words_of("run $((08)) $((0 && X++)) $((1 || 1/0))"), "run|{$((08))}|0|1");
}

TEST(Bash, PrintfFormats) {
  EXPECT_EQ(words_of("printf -v X '%03d-%s' 8 a; run $X"), "run|008-a");
  EXPECT_EQ(words_of("X=$(printf '%s,' a b c); run ${X%,}"), "run|a,b,c");
  EXPECT_EQ(words_of("X=1; printf -v X '%d' $U; run $X"), "run|{$U}");
  EXPECT_EQ(words_of("X=1; printf -v X '%q' a; run $X"), "run|{$X}");
  EXPECT_EQ(follow("printf '%s\\n' a b > f", "test.sh").files.at("f"), "a\nb\n");
}

TEST(Bash, DoubleBracketsMatchPatterns) {
  EXPECT_EQ(words_of("a=bcd; [[ $a == b* ]] && X=1; [[ $a == \"b*\" ]] || Y=2; run $X $Y"),
            "run|1|2");
  EXPECT_EQ(words_of("[[ 10 > 9 ]] && X=1 || X=2; [[ 10 -gt 9 ]] && Y=1; run $X $Y"), "run|2|1");
  EXPECT_EQ(words_of("a=x86_64; [[ $a =~ ^x([0-9]+)_ ]] && run ${BASH_REMATCH[1]}"), "run|86");
  EXPECT_EQ(words_of("[[ axb =~ \"a.b\" ]] || run literal"), "run|literal");
  EXPECT_EQ(words_of("A=1; if [[ -z $A || ( $A == 1 && ! $A == 2 ) ]]; then run 1; fi"), "run|1");
  EXPECT_EQ(words_of("A='a b'; [[ $A == 'a b' && -n $A &&\n 010 -eq 8 ]] && run 1"), "run|1");
  EXPECT_EQ(words_of("X=1; [[ $U == a* ]] && X=2; [[ a == @(a|b) ]] && Y=1; run $X $Y"),
            "run|{$X (line 1 sets it under a condition)}|{$Y (line 1 sets it under a condition)}");
  EXPECT_EQ(words_of("case 'b*' in \"b*\") run 1;; esac; case bc in 'b*') run 2;; esac"), "run|1");
  EXPECT_EQ(words_of("case b in (a) run 1;; (b) run 2;; esac"), "run|2");
  EXPECT_EQ(words_of("[ 1 -eq 1 -a 2 -eq 3 ] || run 1; [ -n ] && run 2"), "run|1;run|2");
}

TEST(Bash, FollowsEachPassOfALoop) {
  EXPECT_EQ(words_of("i=0; while [ $i -lt 3 ]; do i=$((i+1)); S=\"${S:-}$i\"; done; run $i $S"),
            "run|3|123");
  EXPECT_EQ(words_of("i=0; while true; do ((i++)); if [ $i -ge 5 ]; then break; fi; done; run $i"),
            "run|5");
  EXPECT_EQ(words_of("S=0; for i in $(seq 1 3) {4..5}; do S=$((S+i)); done; run $S $i"),
            "run|15|5");
  EXPECT_EQ(words_of("S=; for ((i=0; i<4; i++)); do [ $i = 1 ] && continue; S+=$i; done; run $S"),
            "run|023");
  EXPECT_EQ(words_of("S=; for i in 1 2; do for j in a b; do [ $j = b ] && continue 2; S+=$i$j; "
                     "done; done; run $S"),
            "run|1a2a");
  EXPECT_EQ(words_of("while [ $# -gt 0 ]; do case $1 in --l) L=$2; shift 2;; *) shift;; esac; "
                     "done; run $L $#",
                     {"--l", "4", "x"}),
            "run|4|0");
}

TEST(Bash, WhatAnUndecidedLoopChangesIsUnknown) {
  EXPECT_EQ(words_of("N=0\nwhile read -r a; do N=$((N+1)); done < file\nrun $N"),
            "run|{$N (line 2 sets it in a loop)}");
  EXPECT_EQ(words_of("N=0; while true; do N=$((N+1)); done; M=1; run $N $M"),
            "run|{$N (line 1 sets it in a loop)}|1");
  EXPECT_EQ(words_of("N=1; for i in $(ls); do N=$i; done; run $N"),
            "run|{$N (line 1 sets it in a loop)}");
  EXPECT_EQ(words_of("N=1; for i in 1 2; do N=$i; grep x y && break; done; run $N"),
            "grep|x|y;run|{$N (line 1 sets it in a loop)}");
  // Passes with different commands: what differs is unknown in the one that is kept.
  EXPECT_EQ(words_of("S=1; for i in 1 2; do S=$((S*2)); run $S 4; done; run $S"),
            "run|{$((S*2))}|4;run|4");
  EXPECT_EQ(words_of("for i in 1 2; do run 4; done"), "run|4");
}

TEST(Bash, ReadsEscapedQuotes) {
  EXPECT_EQ(words_of("run $'a\\'b' $'x\\ty' \"$'x'\""), "run|a'b|x\ty|$'x'");
  EXPECT_EQ(words_of("A=( $'(' 1 ); run ${A[1]}"), "run|1");
}

TEST(Bash, ExpandsDefaultsAndPatterns) {
  EXPECT_EQ(words_of("X=${A:-${B:-8}}; run $X ${C:-a b} \"${C:-a b}\" ${A:-\"a b\"}"),
            "run|8|a|b|a b|a b");
  EXPECT_EQ(words_of(": ${X:=8}; run $X"), "run|8");
  EXPECT_EQ(words_of("Y=gz; X=x.gz; run ${X%$Y} ${X/$Y/z} ${X/#x/y} ${X:0:1} ${X: -2}"),
            "run|x.|x.z|y.gz|x|gz");
  EXPECT_EQ(words_of("A=(1 2); IFS=,; X=\"${A[*]}\"; unset IFS; run $X ${!A[@]}"), "run|1,2|0|1");
  EXPECT_EQ(words_of("IFS=, read -ra P <<< '1,2,3'; read A B <<< 'x y'; run ${P[2]} $B ${#P[@]}"),
            "run|3|y|3");
  EXPECT_EQ(words_of("A=(1 2); A[1]=5; A=(7 8); A+=x; run ${A[@]}"), "run|7x|8");
  EXPECT_EQ(words_of("run \"$*\" $#", {"a", "b c"}), "run|a b c|2");
}

TEST(Bash, RefusesWhatItCannotRead) {
  const auto problem = [](const char* text) {
    return message_of<DataError>([&] { follow(text, "bad.sh"); });
  };
  EXPECT_EQ(problem("case a in a) run 1;& b) run 2;; esac"),
            "bad.sh:1: ';&' of a case is not supported (end the branch with ';;')");
  EXPECT_EQ(problem("run\n[[ a == b"), "bad.sh:2: '[[' is not closed");
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "{ ";
  EXPECT_EQ(problem(deep.c_str()), "bad.sh:1: blocks are nested more than 64 deep");
}

}  // namespace
}  // namespace trireme::convert::shell
