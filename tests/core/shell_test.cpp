#include "core/shell.hpp"

#include <gtest/gtest.h>

#include <cstdio>

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
    FILE* shell = ::popen(command.c_str(), "r");
    ASSERT_NE(shell, nullptr);
    char text[64] = {};
    const std::size_t size = std::fread(text, 1, sizeof text, shell);
    EXPECT_EQ(::pclose(shell), 0);
    EXPECT_EQ(std::string(text, size), word) << command;
  }
}

}  // namespace
}  // namespace trireme
