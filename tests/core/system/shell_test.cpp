#include "core/system/process.hpp"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(ShellWord, QuotesWhereItHasTo) {
  EXPECT_EQ(shell_word("run.output=/a-b/c_1,d:e"), "run.output=/a-b/c_1,d:e");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("it's"), "\"it's\"");
}

TEST(ShellWord, AShellReadsBackWhatWasQuoted) {
  for (const std::string word : {"", "a b", "it's", "''", "$HOME `id` \\ \"x\"", "a;b|c&d", "~",
                                 "*", "[1, 2]", "{a: b}", "#x", "!", "it's!", "tab\there", "ü"}) {
    const std::string command = "printf %s " + shell_word(word);
    const ShellAnswer answer = ask_shell(command);
    EXPECT_EQ(answer.code, 0);
    EXPECT_EQ(answer.output, word) << command;
  }
}

TEST(AskShell, GivesAllThatWasPrintedAndTheExitCode) {
  const ShellAnswer answer = ask_shell("seq 5000; exit 7");
  EXPECT_EQ(answer.code, 7);
  EXPECT_EQ(answer.output.size(), 23893u);
  EXPECT_TRUE(answer.output.ends_with("4999\n5000\n"));
  EXPECT_EQ(ask_shell("kill -9 $$").code, 128);
  EXPECT_EQ(ask_shell("not-a-program 2>/dev/null").code, 127);
}

}  // namespace
}  // namespace trireme
