#include "megatron/base/stack_frames.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(StackFrames, AreCutOutOfWhatLibtorchSays) {
  EXPECT_EQ(
      without_stack_frames("rendezvous: no store.\n"
                           "  got:  The client socket has failed to connect to [a]:1 (errno: 111 - Connection "
                           "refused).\n"
                           "Exception raised from throwConnectError at ../torch/socket.cpp:452 (most recent call "
                           "first):\n"
                           "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f in lib.so)\n"
                           "frame #12: main + 0x1 (0x5 in /usr/bin/megatron)\n"
                           "\n"
                           "  fix:  check MASTER_ADDR"),
      "rendezvous: no store.\n"
      "  got:  The client socket has failed to connect to [a]:1 (errno: 111 - Connection refused).\n"
      "  fix:  check MASTER_ADDR");
  EXPECT_EQ(without_stack_frames("bad size Exception raised from f at g.cpp:1 (most recent call first):\n"
                                 "C++ CapturedTraceback:\n#4 c10::f from ??:0\n#15 main from ??:0\n"),
            "bad size");
}

TEST(StackFrames, AreAllThatIsCut) {
  for (const char* text : {"", "one line", "#1 of the list\n\n  got:  frames of a picture\n", "two\nlines\n"})
    EXPECT_EQ(without_stack_frames(text), text);
}

TEST(StackFrames, FirstLineIsWhatHappened) {
  EXPECT_EQ(first_line_of("closed by peer\nException raised from f (most recent call first):\nframe #0: x"),
            "closed by peer");
  EXPECT_EQ(first_line_of("closed"), "closed");
  EXPECT_EQ(first_line_of("failed with [/x/gloo/tcp/pair.h:311] Connect timeout [none]"),
            "failed with Connect timeout [none]");
}

}  // namespace
}  // namespace megatron
