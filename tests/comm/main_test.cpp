#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "as_rank.h"
#include "contract.h"
#include "megatron/comm/processes/environment.h"
#include "megatron/comm/processes/gloo_backend.h"

// The tests' main: `--as-rank NAME …` makes this program one rank that a test has launched.
int main(int argc, char** argv) {
  if (argc > 2 && std::string_view(argv[1]) == "--as-rank") {
    try {
      return megatron::comm::as_rank(argv[2], {argv + 3, argv + argc}, megatron::comm::process_environment());
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      return 1;
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
