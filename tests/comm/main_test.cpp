#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "as_rank.h"
#include "contract.h"
#include "megatron/comm/processes/gloo_backend.h"

// The tests' main: `--as-rank NAME …` makes this program one rank that a test has launched.
namespace {

megatron::comm::Environment environment() {
  megatron::comm::Environment result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string_view(argv[1]) == "--as-rank") {
    try {
      return megatron::comm::as_rank(argv[2], {argv + 3, argv + argc}, environment());
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      return 1;
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
